mod cause;

use std::panic::{AssertUnwindSafe, catch_unwind};

use railgate_model::{Action, Class, Finding, Fitness, PartName, Phase, Severity, Sign, Verdict};

use crate::plan::runs;
use crate::register::CheckInfo;
use crate::report::{Found, Passing, Report};
use crate::scene::Scene;
use crate::{CHECKS, GateConfig, PhasePolicy, Seen, class_cap};

/// Judges one reading of a node. This is a pure function: the same arguments give the same verdict. It never panics; a
/// check that panics becomes a finding of class `internal`, and the other findings stay.
///
/// The verdict is
/// - `unfit` if a finding drains (the policy of its phase, its class and the `action` of its check all allow it),
/// - else `unknown` if a part that the policy requires could not be read,
/// - else `degraded` if there is any finding other than notes and internal errors,
/// - else `fit`.
pub fn judge(config: &GateConfig, seen: &Seen<'_>) -> Verdict {
    judge_with(CHECKS, config, seen)
}

fn judge_with(checks: &[CheckInfo], config: &GateConfig, seen: &Seen<'_>) -> Verdict {
    let scene = match catch_unwind(AssertUnwindSafe(|| Scene::new(config, seen))) {
        Ok(scene) => scene,
        Err(panic) => {
            return Verdict {
                phase: seen.phase,
                fitness: Fitness::Unknown,
                action: Action::Report,
                findings: panicked("gate", &*panic),
                deciding: Some(0),
                shadow: Vec::new(),
                strikes: Vec::new(),
                signs: Vec::new(),
            };
        }
    };
    let mut judged = Vec::new();
    let mut strikes = Vec::new();
    let mut signs = Vec::new();
    for (rank, check) in checks.iter().enumerate() {
        if !runs(check, config, seen.phase, seen.job) {
            continue;
        }
        let mut report = Report::new(check.id);
        let done = catch_unwind(AssertUnwindSafe(|| {
            #[cfg(feature = "fault-injection")]
            assert!(check.id != "ib-rate", "injected");
            (check.judge)(&config.checks, &scene, &mut report);
        }));
        let findings = match done {
            Ok(()) => report.into_timed().collect(),
            // Findings that the check added before it panicked are discarded.
            Err(panic) => {
                panicked(check.id, &*panic).into_iter().map(|finding| (finding, None)).collect::<Vec<_>>()
            }
        };
        let cap = config.action_of(check, seen.memory);
        let policy = config.policy(seen.phase);
        for (mut finding, passing) in findings {
            let transient = check.transient.map(|window| Passing { window, written: Vec::new() });
            if let Some(passing) = passing.or(transient)
                && finding.severity == Severity::Fail
            {
                first_sight(config, seen, &passing, &mut finding);
                if passing.written.is_empty() {
                    strikes.push(finding.subject());
                } else {
                    signs.push(Sign { subject: finding.subject(), written: passing.written });
                }
            }
            judged.push(Judged { action: allowed(policy, cap, &finding), rank, finding });
        }
    }
    cause::add_shared(&scene, &mut judged);
    Verdict { strikes, signs, ..verdict(&scene, judged) }
}

/// Lowers a transient finding to a warning until it has been seen often enough.
fn first_sight(config: &GateConfig, seen: &Seen<'_>, passing: &Passing, finding: &mut Finding) {
    let identity = seen.now.identity(&finding.part);
    let now = seen.now.taken / 1000;
    let times = passing.written.iter().map(|time| time / 1000).collect::<Vec<_>>();
    let times = if times.is_empty() { vec![now] } else { times };
    let sights = seen.memory.sights(&finding.subject(), &identity, &times, now, passing.window);
    if sights < config.strikes {
        finding.severity = Severity::Warn;
        finding.what.push_str(&format!(", strike {sights} of {}", config.strikes));
    }
}

/// Returns the weakest of the actions that phase, class and check allow, and at least `report`. Findings of a check in
/// shadow are not reported, except that the check itself failed.
fn allowed(policy: &PhasePolicy, check: Action, finding: &Finding) -> Action {
    if check == Action::Shadow && finding.class != Class::Internal {
        return Action::Shadow;
    }
    policy.action(finding.severity).min(class_cap(finding.class)).min(check).max(Action::Report)
}

/// Whether phase and class allow a finding to drain, regardless of its check's `action`.
pub fn would_drain(config: &GateConfig, phase: Phase, finding: &Finding) -> bool {
    config.policy(phase).action(finding.severity).min(class_cap(finding.class)) == Action::Drain
}

#[derive(Debug)]
struct Judged {
    action: Action,
    rank: usize,
    finding: Finding,
}

fn verdict(scene: &Scene<'_>, mut judged: Vec<Judged>) -> Verdict {
    judged.sort_by(cause::order);
    let (shadow, judged): (Vec<_>, Vec<_>) =
        judged.into_iter().partition(|judged| judged.action == Action::Shadow);
    let action = judged.iter().map(|judged| judged.action).max().unwrap_or(Action::Report);
    let counts =
        |judged: &Judged| judged.finding.class != Class::Internal && judged.finding.severity > Severity::Note;
    let gone: Vec<PartName> = scene
        .required
        .iter()
        .copied()
        .filter(|part| scene.needed.contains(part) && missing(scene, *part).is_some())
        .collect();
    let of_gone = |judged: &Judged| match judged.finding.check.as_str() {
        "part-silent" => gone.iter().any(|part| judged.finding.part == part.as_str()),
        "kernel-log" => gone.contains(&PartName::KernelLog),
        _ => false,
    };
    let (fitness, deciding) = if action == Action::Drain {
        (Fitness::Unfit, judged.iter().position(|judged| judged.action == Action::Drain))
    } else if !gone.is_empty() {
        (Fitness::Unknown, judged.iter().position(of_gone))
    } else if let Some(worst) = judged.iter().position(counts) {
        (Fitness::Degraded, Some(worst))
    } else {
        (Fitness::Fit, None)
    };
    Verdict {
        phase: scene.phase(),
        fitness,
        action,
        findings: judged.into_iter().map(|judged| judged.finding).collect(),
        deciding,
        shadow: shadow.into_iter().map(|judged| judged.finding).collect(),
        strikes: Vec::new(),
        signs: Vec::new(),
    }
}

/// The reason why a part has no data; `None` if it has.
pub(crate) fn missing(scene: &Scene<'_>, part: PartName) -> Option<String> {
    match part {
        PartName::Gpus => scene.now.gpus.missing(),
        PartName::Fabric => scene.now.fabric.missing(),
        PartName::Pci => scene.now.pci.missing(),
        PartName::KernelLog => scene.now.kernel_log.missing(),
        PartName::Host => scene.now.host.missing(),
    }
}

/// Sort key that puts GPU 10 after GPU 9, and names after numbers.
fn part_order(part: &str) -> (bool, u32, &str) {
    match part.parse::<u32>() {
        Ok(number) => (false, number, part),
        Err(_) => (true, 0, part),
    }
}

fn panicked(check: &str, panic: &(dyn std::any::Any + Send)) -> Vec<Finding> {
    let said = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned());
    let mut report = Report::new(check);
    report.add(
        Found::unknown(Class::Internal, "", format!("the check itself failed: {said}"))
            .fix("report a bug")
            .row("check", said, "a result", "railgate"),
    );
    report.into_findings()
}

#[cfg(test)]
mod tests;
