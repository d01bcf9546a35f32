//! Compares slurm.conf with the settings that slurmctld has read.

use std::collections::BTreeSet;

use super::super::facts::Facts;
use super::super::slurm_file::Doubled;
use super::{Found, conf};

/// Keys that doctor checks, as spelled in slurm.conf.
const JUDGED: &[&str] = &[
    "PrologFlags",
    "SchedulerParameters",
    "JobRequeue",
    "PrologEpilogTimeout",
    "BatchStartTimeout",
    "JobFileAppend",
    "Prolog",
    "Epilog",
    "EpilogSlurmctld",
    "HealthCheckProgram",
    "HealthCheckInterval",
];

/// The words of a value; their order and case do not matter, and `180 sec` equals `180`.
pub(super) fn normal(value: &str) -> BTreeSet<String> {
    value.trim_end_matches(" sec").split(',').map(|word| word.trim().to_ascii_lowercase()).collect()
}

pub(super) fn read(facts: &Facts, found: &mut Found) {
    let (Some(conf), Ok(file)) = (conf(facts), &facts.slurm_file) else { return };
    for key in JUDGED {
        let Some(line) = file.last(key) else { continue };
        let running = conf.get(key);
        // A key with several lines is printed as a list and is not compared.
        let several = facts.repeatable(key) && file.all(key).len() > 1;
        if several || running.is_some_and(|running| normal(running) == normal(&line.value)) {
            continue;
        }
        let running = running.map_or_else(|| "no value".to_owned(), |value| format!("'{value}'"));
        found.wrong(
            format!("{}: {}={} is not in force: slurmctld has {running}", line.at, line.key, line.value),
            "restart slurmctld and slurmd",
        );
    }
}

pub(super) fn doubles(facts: &Facts, found: &mut Found) {
    let Ok(file) = &facts.slurm_file else { return };
    for Doubled { key, at, lost, merged } in file.doubled(|key| facts.repeatable(key)) {
        if still_run(facts, &key, &lost) {
            continue;
        }
        let put = merged.unwrap_or_else(|| format!("keep one line of {key}"));
        found.wrong(format!("{}: {key} is set {} times, and {lost} is lost", at.join(", "), at.len()), put);
    }
}

/// Whether a program of an earlier line still runs because the last line starts it too, through a link in a directory
/// or a script. A machine that is no node may lack these files, so the answer is then unknown.
fn still_run(facts: &Facts, key: &str, lost: &str) -> bool {
    let hooks = [
        ("Prolog", &facts.prolog),
        ("Epilog", &facts.epilog),
        ("HealthCheckProgram", &facts.periodic),
        ("EpilogSlurmctld", &facts.ctld),
    ];
    let Some((name, hook)) = hooks.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(key)) else {
        return false;
    };
    let elsewhere = hook.programs.is_empty() && name != "EpilogSlurmctld" && !facts.roles.compute;
    elsewhere || lost.split(',').all(|program| hook.runs(program))
}
