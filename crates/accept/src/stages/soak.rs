//! The tests of the nodes again and again: what fails only after hours, how warm it gets, and whether the checks find faults that
//! are injected.

use railgate_model::{Finding, Severity, Verdict};
use serde::Deserialize;

use super::{Command, Of, Program, Stage, Unit, node, of_each_node, rest};
use crate::plan::{Fault, Plan, Soak};
use crate::report::{Build, Item, Outcome};

pub(super) const STAGE: Stage = Stage {
    id: "soak",
    about: "the tests of stage node again and again: faults that come with time, power and temperature over time",
    units: |plan| of_each_node("soak", plan, plan.soak.as_ref().map(Soak::simple), 15),
    commands,
    judge,
};

/// Deadline of a command that injects or undoes a fault, seconds.
const INJECT_S: u64 = 60;

fn commands(plan: &Plan, unit: &Unit, _: &[String]) -> Vec<Command> {
    let mut commands = vec![rest::before()];
    for (number, fault) in plan.soak.iter().flat_map(Soak::faults).filter(|(_, fault)| is_in(fault, unit)) {
        let id = |step: &str| format!("fault.{number}.{step}");
        let run = |step: &str, words: &[String]| {
            let (program, args) = words.split_first()?;
            let (program, args) = (Program::At(program.clone()), args.to_vec());
            Some(Command { id: id(step), program, args, limit_s: INJECT_S, always: step == "undo" })
        };
        let check =
            |step: &str| Command::new(&id(step), Program::Railgate, &["check", "--format", "json"], 300);
        commands.push(check("before"));
        commands.extend(run("inject", &fault.inject));
        commands.push(check("check"));
        commands.extend(run("undo", &fault.undo));
    }
    commands.extend(node::commands());
    commands.push(rest::after());
    commands
}

/// Whether a fault is injected in a unit.
pub(crate) fn is_injected(plan: &Plan, unit: &Unit) -> bool {
    unit.stage == STAGE.id && plan.soak.iter().flat_map(Soak::faults).any(|(_, fault)| is_in(fault, unit))
}

fn is_in(fault: &Fault, unit: &Unit) -> bool {
    unit.nodes.first() == Some(&fault.node) && unit.repetition == fault.repetition.0
}

fn judge(build: &mut Build<'_>, results: &[Of<'_>]) {
    node::judge(build, results, "soak");
    build.course(".power_w", "soak.", "Highest power in each round, W");
    build.course(".temperature_c", "soak.", "Highest temperature in each round, °C");
    rest::show(build, results);
    for (number, fault) in build.plan.soak.iter().flat_map(Soak::faults) {
        let of = results.iter().find(|of| is_in(fault, of.unit));
        let (mut outcome, mut found) =
            of.map_or((Outcome::Unknown, vec!["no result".to_owned()]), |of| found(of, number, fault));
        if let Some(why) = of.and_then(|of| not_undone(of, number)) {
            outcome = Outcome::Fail;
            found.push(format!("not undone: {why}"));
            build.exceptions.push(format!("fault {number} of {} was not undone: {why}", fault.node));
        }
        let what = format!("fault {number} on {}: check {} must report it", fault.node, fault.check);
        build.add(
            Item::new(&format!("soak.fault.{number}"), "soak", outcome, &what).details(found).tolerance(
                "the check warns or fails after the injection, and did not before; the fault is undone",
                "the plan",
            ),
        );
    }
}

/// Why a fault that was injected may still be there.
fn not_undone(of: &Of<'_>, number: usize) -> Option<String> {
    let output = |step: &str| of.result.output(&format!("fault.{number}.{step}"));
    let injected = output("inject")?;
    match output("undo") {
        // Nothing was injected that could be undone.
        _ if injected.exit.is_some_and(|exit| exit != 0) => None,
        Some(undo) if undo.exit == Some(0) => None,
        Some(undo) => Some(undo.reason().unwrap_or("no reason is known").to_owned()),
        None => Some("not run".to_owned()),
    }
}

/// The output of `railgate check --format json`.
#[derive(Deserialize)]
struct Checked {
    verdict: Verdict,
}

/// What the check run after the injection found.
fn found(of: &Of<'_>, number: usize, fault: &Fault) -> (Outcome, Vec<String>) {
    match of.result.output(&format!("fault.{number}.inject")) {
        Some(injected) if injected.exit == Some(0) => {}
        Some(injected) => {
            let why = injected.reason().unwrap_or("no reason is known");
            return (Outcome::Unknown, vec![format!("not injected: {why}")]);
        }
        None => return (Outcome::Unknown, vec!["not injected".to_owned()]),
    }
    let findings = |step: &str| -> Result<Vec<Finding>, String> {
        let Verdict { findings, shadow, .. } =
            of.result.json::<Checked>(&format!("fault.{number}.{step}"))?.verdict;
        Ok(findings.into_iter().chain(shadow).filter(|finding| finding.check == fault.check).collect())
    };
    let (before, after) = match (findings("before"), findings("check")) {
        (Ok(before), Ok(after)) => (before, after),
        (Err(why), _) => return (Outcome::Unknown, vec![format!("before the injection: {why}")]),
        (_, Err(why)) => return (Outcome::Unknown, vec![why]),
    };
    let line = |finding: &Finding| format!("{} {}: {}", finding.severity, finding.subject(), finding.what);
    let is_bad = |finding: &&Finding| finding.severity >= Severity::Warn;
    let was_there = |finding: &Finding| {
        let same = |old: &&Finding| old.subject() == finding.subject() && old.severity >= finding.severity;
        before.iter().filter(is_bad).any(|old| same(&old))
    };
    let new: Vec<String> =
        after.iter().filter(is_bad).filter(|finding| !was_there(finding)).map(line).collect();
    if !new.is_empty() {
        return (Outcome::Pass, new);
    }
    // What was there before cannot show that the check finds the fault, and neither can a check without an answer.
    let old =
        after.iter().filter(is_bad).map(|finding| format!("also before the injection: {}", line(finding)));
    let unknown = after.iter().filter(|finding| finding.severity == Severity::Unknown).map(line);
    let unclear: Vec<String> = old.chain(unknown).collect();
    if unclear.is_empty() {
        (Outcome::Fail, vec![format!("{} found nothing", fault.check)])
    } else {
        (Outcome::Unknown, unclear)
    }
}
