//! slurm.conf as it stands in the file, against what slurmctld has.

use std::collections::BTreeSet;

use super::super::facts::Facts;
use super::super::slurm_file::Doubled;
use super::{Found, conf};

/// What doctor judges, as slurm.conf names it.
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

/// Words whose order and case do not matter; `180 sec` is `180`.
pub(super) fn normal(value: &str) -> BTreeSet<String> {
    value.trim_end_matches(" sec").split(',').map(|word| word.trim().to_ascii_lowercase()).collect()
}

pub(super) fn read(facts: &Facts, found: &mut Found) {
    let (Some(conf), Ok(file)) = (conf(facts), &facts.slurm_file) else { return };
    for key in JUDGED {
        let Some(line) = file.last(key) else { continue };
        let running = conf.get(key);
        // What another prints as a list of several lines is not compared.
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
        let put = merged.unwrap_or_else(|| format!("keep one line of {key}"));
        found.wrong(format!("{}: {key} is set {} times, and {lost} is lost", at.join(", "), at.len()), put);
    }
}
