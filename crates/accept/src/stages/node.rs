//! Each node alone: the full check, and all tests of its GPUs.

use std::collections::BTreeSet;

use railgate_model::{GpuSelfTested, PciAddress, Severity, ValueCheck, Verdict};
use serde::Deserialize;

use super::{Command, Of, Program, Stage, is_injected, of_each_node};
use crate::figures::{Better, Tolerance};
use crate::report::{Build, Item, Outcome};
use crate::result::{Output, UnitResult};

pub(super) const STAGE: Stage = Stage {
    id: "node",
    about: "`railgate check --full` and all tests of the GPUs on each node",
    units: |plan| of_each_node("node", plan, plan.node, 15),
    commands: |_, _, _| commands(),
    judge: |build, results| judge(build, results, "node"),
};

/// Rates of cards: gpu-fryer passes a card within 10 % of the best one of its node; here the median of all cards of the machine type.
pub(super) const OF_CARDS: Tolerance = Tolerance::ShareOfMedian {
    share: 0.90,
    source: "a choice: cards of one type differ by a few percent; gpu-fryer uses the same 10 %",
};

pub(super) fn commands() -> Vec<Command> {
    vec![
        Command::new("check", Program::Railgate, &["check", "--full", "--format", "json"], 300),
        Command::new("gpus", Program::GpuSelfTest, &["--length", "full", "--deadline", "240"], 300),
    ]
}

/// The output of `railgate check --format json`.
#[derive(Deserialize)]
struct Checked {
    verdict: Verdict,
}

/// Judges verdicts and GPUs of all nodes. Ids of items and figures begin with `stage`.
pub(super) fn judge(build: &mut Build<'_>, results: &[Of<'_>], stage: &'static str) {
    let mut clean: BTreeSet<&str> = BTreeSet::new();
    let mut found = Vec::new();
    for node in &build.plan.nodes {
        let of_node: Vec<&Of<'_>> = results.iter().filter(|of| of.unit.nodes.first() == Some(node)).collect();
        if of_node.is_empty() {
            continue;
        }
        let mut outcome = Outcome::Pass;
        let mut details = BTreeSet::new();
        for of in of_node {
            let (one, findings) = verdict(of.result);
            let is_failure = |finding: &String| finding.starts_with(&format!("{} ", Severity::Fail));
            if findings.iter().any(is_failure) && !is_injected(build.plan, of.unit) {
                build.failed.insert((node.clone(), of.unit.id.clone()));
            }
            outcome = outcome.max(one);
            details.extend(findings);
        }
        if outcome == Outcome::Pass {
            clean.insert(node);
        } else {
            let unknown = details.iter().filter(|detail| !is_found(detail)).count();
            let what =
                format!("checks of {node}: {} failed or warned, {unknown} unknown", details.len() - unknown);
            found.push(
                Item::new(&format!("{stage}.{node}"), stage, outcome, &what)
                    .details(details.into_iter().collect())
                    .tolerance(
                        "no failure and no warning",
                        "docs/checks.md names each check with its thresholds",
                    ),
            );
        }
    }
    if !clean.is_empty() {
        let names: Vec<&str> = clean.into_iter().collect();
        let what = format!("no check found anything on {} of {} nodes", names.len(), build.plan.nodes.len());
        build.add(
            Item::new(&format!("{stage}.checks"), stage, Outcome::Pass, &what).tolerance(
                "no failure and no warning",
                "docs/checks.md names each check with its thresholds",
            ),
        );
    }
    found.into_iter().for_each(|item| build.add(item));
    gpus(build, results, stage);
}

/// Whether a line is about something that was found, not about something unknown.
fn is_found(detail: &str) -> bool {
    [Severity::Fail, Severity::Warn].iter().any(|severity| detail.starts_with(&format!("{severity} ")))
}

fn verdict(result: &UnitResult) -> (Outcome, Vec<String>) {
    let checked: Checked = match result.json("check") {
        Ok(checked) => checked,
        Err(why) => return (Outcome::Unknown, vec![why]),
    };
    let findings = checked.verdict.findings.iter().filter(|finding| finding.severity > Severity::Note);
    let mut outcome = Outcome::Pass;
    let mut details = Vec::new();
    for finding in findings {
        outcome =
            outcome.max(if finding.severity == Severity::Unknown { Outcome::Unknown } else { Outcome::Fail });
        details.push(format!("{} {}: {}", finding.severity, finding.subject(), finding.what));
    }
    (outcome, details)
}

/// Values and figures of the cards.
fn gpus(build: &mut Build<'_>, results: &[Of<'_>], stage: &'static str) {
    let (mut wrong, mut unknown, mut compared) = (BTreeSet::new(), BTreeSet::new(), 0_usize);
    for of in results {
        let Some(node) = of.unit.nodes.first() else { continue };
        let Some(output) = of.result.output("gpus") else {
            unknown.insert(format!("{node}: GPUs: not run"));
            continue;
        };
        let (tests, missing) = tests(output);
        unknown.extend(missing.into_iter().map(|why| format!("{node}: {why}")));
        for test in tests {
            let to = test.to.map(|to| format!(" to {to}")).unwrap_or_default();
            let part = format!("{node} {}{to}", test.gpu);
            match &test.values {
                ValueCheck::Right { .. } => compared += 1,
                ValueCheck::Wrong { compared: all, wrong: count, .. } => {
                    compared += 1;
                    if !is_injected(build.plan, of.unit) {
                        build.failed.insert((node.clone(), of.unit.id.clone()));
                    }
                    wrong.insert(format!("{part}: {}: {count} of {all} values wrong", test.test));
                }
                ValueCheck::None => {}
            }
            if let Some(why) = &test.unknown {
                unknown.insert(format!("{part}: {}: {why}", test.test));
            }
            for (name, value) in &test.measured {
                let (unit, better) = self_test_kind(name);
                let tolerance = if GpuSelfTested::COMPARABLE.contains(&(test.test.as_str(), name.as_str())) {
                    OF_CARDS
                } else {
                    Tolerance::None
                };
                let id = format!("{stage}.{}.{name}", test.test);
                build.figures.add(
                    &id,
                    unit,
                    better,
                    tolerance,
                    build.plan.machine(node),
                    node,
                    &part,
                    of.unit.repetition,
                    *value,
                );
            }
        }
    }
    if compared == 0 && unknown.is_empty() && wrong.is_empty() {
        return;
    }
    let outcome = match (wrong.is_empty(), unknown.is_empty()) {
        (false, _) => Outcome::Fail,
        (true, false) => Outcome::Unknown,
        (true, true) => Outcome::Pass,
    };
    let what =
        format!("values that GPUs compute, keep and copy: {compared} tests compared, {} wrong", wrong.len());
    build.add(
        Item::new(&format!("{stage}.gpu-values"), stage, outcome, &what)
            .details(wrong.into_iter().chain(unknown).collect())
            .tolerance("every value exact", "inputs are small integers whose sums are exact in every type"),
    );
}

/// Parses the output of `railgate-gpu-selftest`. Returns the results, and an error text for each missing result. A line that cannot be
/// parsed does not affect the other lines.
fn tests(output: &Output) -> (Vec<GpuSelfTested>, Vec<String>) {
    let (mut tests, mut missing) = (Vec::<GpuSelfTested>::new(), Vec::new());
    for (number, line) in output.stdout.lines().enumerate() {
        match serde_json::from_str(line) {
            Ok(test) => tests.push(test),
            Err(why) => {
                missing.push(format!("line {} of railgate-gpu-selftest is not a result: {why}", number + 1))
            }
        }
    }
    let reason = output.reason();
    match output.exit {
        Some(0 | 1) if tests.is_empty() => missing.push(reason.unwrap_or("no GPU was tested").to_owned()),
        Some(0 | 1) => {}
        Some(code) => missing.push(format!(
            "railgate-gpu-selftest ended with exit code {code}: {}",
            reason.unwrap_or("no reason is known")
        )),
        None => missing.push(format!("railgate-gpu-selftest: {}", reason.unwrap_or("killed"))),
    }
    // As the gate's check `gpu-selftest` decides it.
    let cards: BTreeSet<PciAddress> = tests.iter().map(|test| test.gpu).collect();
    for card in cards {
        let of_card = || tests.iter().filter(|test| test.gpu == card);
        if !of_card().any(|test| test.test == GpuSelfTested::LAST) {
            let after =
                of_card().next_back().map_or_else(String::new, |test| format!(" after {}", test.test));
            missing.push(format!("{card}: no result{after}"));
        }
    }
    (tests, missing)
}

/// Unit of a figure of the GPU self-test, and which of its ends is good.
pub fn self_test_kind(name: &str) -> (&'static str, Better) {
    match name {
        name if name.ends_with("_tflops") => ("TFLOP/s", Better::Higher),
        name if name.ends_with("_gb_s") => ("GB/s", Better::Higher),
        name if name.ends_with("_mhz") => ("MHz", Better::Higher),
        name if name.ends_with("_w") => ("W", Better::Neither),
        name if name.ends_with("_c") => ("°C", Better::Lower),
        _ => ("", Better::Neither),
    }
}
