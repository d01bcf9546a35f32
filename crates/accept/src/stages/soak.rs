//! The tests of the nodes again and again: what fails only after hours, how warm it gets, and whether the checks find faults that
//! are injected.

use railgate_model::{Severity, Verdict};
use serde::Deserialize;

use super::{Command, Of, Program, Stage, Unit, node, of_each_node};
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
    let mut commands = Vec::new();
    for (number, fault) in plan.soak.iter().flat_map(Soak::faults).filter(|(_, fault)| is_in(fault, unit)) {
        let id = |step: &str| format!("fault.{number}.{step}");
        let run = |step: &str, words: &[String]| {
            let (program, args) = words.split_first()?;
            let (program, args) = (Program::At(program.clone()), args.to_vec());
            Some(Command { id: id(step), program, args, limit_s: INJECT_S })
        };
        commands.extend(run("inject", &fault.inject));
        commands.push(Command::new(&id("check"), Program::Railgate, &["check", "--format", "json"], 300));
        commands.extend(run("undo", &fault.undo));
    }
    commands.extend(node::commands());
    commands
}

fn is_in(fault: &Fault, unit: &Unit) -> bool {
    unit.nodes.first() == Some(&fault.node) && unit.repetition == fault.repetition.0
}

fn judge(build: &mut Build<'_>, results: &[Of<'_>]) {
    node::judge(build, results, "soak");
    build.course(".power_w", "soak.", "Highest power in each round, W");
    build.course(".temperature_c", "soak.", "Highest temperature in each round, °C");
    for (number, fault) in build.plan.soak.iter().flat_map(Soak::faults) {
        let of = results.iter().find(|of| is_in(fault, of.unit));
        let (outcome, found) =
            of.map_or((Outcome::Unknown, vec!["no result".to_owned()]), |of| found(of, number, fault));
        let what = format!("fault {number}, injected into {}: {} must find it", fault.node, fault.check);
        build.add(
            Item::new(&format!("soak.fault.{number}"), "soak", outcome, &what)
                .details(found)
                .tolerance("the check warns or fails", "the plan"),
        );
        let undone = of.and_then(|of| of.result.output(&format!("fault.{number}.undo")));
        if let Some(undo) = undone.filter(|undo| undo.exit != Some(0)) {
            let why = undo.reason().unwrap_or("no reason is known");
            build.exceptions.push(format!("fault {number} of {} was not undone: {why}", fault.node));
        }
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
    let checked: Checked = match of.result.json(&format!("fault.{number}.check")) {
        Ok(checked) => checked,
        Err(why) => return (Outcome::Unknown, vec![why]),
    };
    let all = checked.verdict.findings.iter().chain(&checked.verdict.shadow);
    let named: Vec<_> =
        all.filter(|finding| finding.check == fault.check && finding.severity >= Severity::Warn).collect();
    let line = |finding: &&railgate_model::Finding| {
        format!("{} {}: {}", finding.severity, finding.subject(), finding.what)
    };
    if named.is_empty() {
        (Outcome::Fail, vec![format!("{} found nothing", fault.check)])
    } else {
        (Outcome::Pass, named.iter().map(line).collect())
    }
}
