//! Each node alone: the full check, and all tests of its GPUs.

use std::collections::BTreeSet;

use railgate_model::{GpuSelfTested, Severity, ValueCheck, Verdict};
use serde::Deserialize;

use super::{Command, Of, Program, Stage, of_each_node};
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
        Command::new("gpus", Program::GpuSelfTest, &["--length", "full"], 300),
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
            outcome = outcome.max(one);
            details.extend(findings);
        }
        if outcome == Outcome::Pass {
            clean.insert(node);
        } else {
            let unknown = details.iter().filter(|detail| !is_found(detail)).count();
            let what = format!(
                "checks of {node}: {} failures and warnings, {unknown} unknown",
                details.len() - unknown
            );
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
        let tests = match of.result.output("gpus").map(tests) {
            Some(Ok(tests)) => tests,
            Some(Err(why)) => {
                unknown.insert(format!("{node}: {why}"));
                continue;
            }
            None => continue,
        };
        for test in tests {
            let to = test.to.map(|to| format!(" to {to}")).unwrap_or_default();
            let part = format!("{node} {}{to}", test.gpu);
            match &test.values {
                ValueCheck::Right { .. } => compared += 1,
                ValueCheck::Wrong { compared: of, wrong: count, .. } => {
                    compared += 1;
                    wrong.insert(format!("{part}: {}: {count} of {of} values wrong", test.test));
                }
                ValueCheck::None => {}
            }
            if let Some(why) = &test.unknown {
                unknown.insert(format!("{part}: {}: {why}", test.test));
            }
            for (name, value) in &test.measured {
                let (unit, better, judged) = kind(name);
                let tolerance = if judged { OF_CARDS } else { Tolerance::None };
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

/// The lines of `railgate-gpu-selftest`.
fn tests(output: &Output) -> Result<Vec<GpuSelfTested>, String> {
    let lines: Result<Vec<GpuSelfTested>, _> = output.stdout.lines().map(serde_json::from_str).collect();
    match lines {
        Ok(tests) if tests.is_empty() => Err(output.reason().unwrap_or("no GPU was tested").to_owned()),
        Ok(tests) => Ok(tests),
        Err(why) => Err(format!("railgate-gpu-selftest printed a line that is not a result: {why}")),
    }
}

/// Unit of a figure, which of its ends is good, and whether cards must agree in it.
fn kind(name: &str) -> (&'static str, Better, bool) {
    match name {
        // The kernel that compares values does not load the card.
        name if name.ends_with("_tflops") => ("TFLOP/s", Better::Higher, name == "rate_tflops"),
        // The first copies of a host vary by themselves.
        "host_to_device_gb_s" => ("GB/s", Better::Higher, false),
        name if name.ends_with("_gb_s") => ("GB/s", Better::Higher, true),
        name if name.ends_with("_mhz") => ("MHz", Better::Higher, false),
        name if name.ends_with("_w") => ("W", Better::Neither, false),
        name if name.ends_with("_c") => ("°C", Better::Lower, false),
        _ => ("", Better::Neither, false),
    }
}
