//! Restarts by `railgate launch` inside an allocation: from the report of the node of the batch script into the ledger.
//!
//! launch is a program of the job's user and cannot write the ledger. What it reports counts against no budget and blames no node, so
//! a forged report only adds a line, as other ends of jobs do, and `[launch] max_restarts` limits how many restarts it names.

use std::path::Path;

use railgate_runner::Config;
use railgate_slurm::{Entry, Event, Ledger, hostlist};
use railgate_store::{Asked, Restarts, load_words};

use crate::call::now;
use crate::ended_job::{SHARE, Waiting};
use crate::tally;

/// Adds the restarts of an attempt to the ledger, once. Returns false while the report of that node is not complete.
///
/// # Errors
/// The report or the ledger could not be read, or the ledger not be written.
pub(crate) fn fold(config: &Config, own: &Path, cluster: &str, ended: &Waiting) -> Result<bool, String> {
    let note = &ended.note;
    let nodes = hostlist::expand(&note.nodelist).map_err(|why| why.to_string())?;
    // Slurm runs the batch script on the first node.
    let Some(batch_host) = nodes.get(..1) else { return Ok(true) };
    let (jobs, uid, attempt) = ([note.job], note.uid, note.restarts);
    let asked = Asked { cluster, jobs: &jobs, uid, attempt, nodes: batch_host };
    let words = load_words(&config.report, &asked, SHARE)?;
    let Some(word) = words.nodes.first().filter(|word| word.ended) else { return Ok(false) };
    if word.restarts.count > 0 {
        add(config, own, ended, &word.restarts)?;
    }
    Ok(true)
}

fn add(config: &Config, own: &Path, ended: &Waiting, restarts: &Restarts) -> Result<(), String> {
    let note = &ended.note;
    let ledger = Ledger::new(own).counting(config.requeue.window);
    // A process that was stopped may have written it.
    if ledger.has_restarts_of(note.job, note.restarts).map_err(|why| why.to_string())? {
        return Ok(());
    }
    let most = usize::try_from(config.launch.max_restarts).unwrap_or(usize::MAX);
    let count = restarts.count.min(most);
    let told = restarts.reasons.get(..count).unwrap_or(&restarts.reasons);
    let more = if count > told.len() { "; …" } else { "" };
    let what = if count == 1 { "1 restart".to_owned() } else { format!("{count} restarts") };
    let entry = Entry {
        schema: 1,
        time: now(),
        event: Event::Restarted,
        job: note.job,
        name: ended.name().to_string(),
        attempt: note.restarts,
        ran_s: None,
        blamed: Vec::new(),
        why: format!("{what} in the same allocation, self-reported: {}{more}", told.join("; ")),
        uid: Some(note.uid),
    };
    ledger.append(&entry).map_err(|why| why.to_string())?;
    tally::count(config, own, &entry);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Scene, ended_at};

    fn restarts(count: usize) -> Restarts {
        let reason = |start: usize| format!("n{start} is left out: gpu-lost@3: off bus");
        Restarts { count, reasons: (0..count.min(4)).map(reason).collect() }
    }

    /// The ledger after an attempt with this many restarts was added twice.
    fn added(count: usize) -> Vec<Entry> {
        let scene = Scene::new("0", "0");
        let config = scene.call().config;
        let ended = Waiting::new(&config, ended_at(7, now()));
        for _ in 0..2 {
            add(&config, &scene.path(""), &ended, &restarts(count)).unwrap();
        }
        scene.ledger()
    }

    #[test]
    fn restarts_have_one_line_that_blames_no_node() {
        let entries = added(2);
        let wants = "2 restarts in the same allocation, self-reported: n0 is left out: gpu-lost@3: off bus; \
                     n1 is left out: gpu-lost@3: off bus";
        assert_eq!(entries.iter().map(|entry| entry.why.as_str()).collect::<Vec<_>>(), [wants]);
        assert_eq!((entries[0].event, entries[0].blamed.len()), (Event::Restarted, 0));
    }

    #[test]
    fn the_site_limits_how_many_restarts_of_a_forged_report_count() {
        let entries = added(60);
        assert!(entries[0].why.starts_with("10 restarts in"), "launch.max_restarts: {entries:?}");
    }
}
