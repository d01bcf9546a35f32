//! Counts of job events for Prometheus. The ledger is authoritative; this only avoids reading all of it.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use railgate_fsutil::{FileLock, read_small, write_whole};
use railgate_metrics::{CONTROLLER_FILE, Decisions, TextfileDir, controller_page};
use railgate_runner::Config;
use railgate_slurm::{Entry, Event};

const FILE: &str = "decisions.json";
/// Longest wait for the lock when many jobs end at once; after that the event is not counted.
const WAIT: Duration = Duration::from_secs(2);

/// Counts a ledger entry, and writes the metrics file if the site enabled it. A failure is logged and has no other
/// effect. `own`: the controller's part of the state directory.
pub(crate) fn count(config: &Config, own: &Path, entry: &Entry) {
    let Some(dir) = &config.metrics.dir else { return };
    let counted = add(&own.join(FILE), entry, |decisions| {
        TextfileDir::open(dir)?.put(CONTROLLER_FILE, &controller_page(decisions))
    });
    if let Err(why) = counted {
        tracing::warn!(job = %entry.name, "metrics: {}: {why}", dir.display());
    }
}

fn add(path: &Path, entry: &Entry, publish: impl Fn(&Decisions) -> io::Result<()>) -> io::Result<()> {
    let _held = FileLock::take(&path.with_extension("lock"), WAIT)?;
    let text = match read_small(path) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => Vec::new(),
        read => read?,
    };
    // A damaged file starts at zero, as a counter may.
    let known: BTreeMap<String, u64> = serde_json::from_slice(&text).unwrap_or_default();
    let mut decisions: Decisions = known
        .into_iter()
        .filter_map(|(key, times)| {
            let (event, check) = key.split_once(' ')?;
            Some(((event.to_owned(), check.to_owned()), times))
        })
        .collect();
    *decisions.entry((event(entry.event).to_owned(), check(entry))).or_default() += 1;
    let all: BTreeMap<String, u64> =
        decisions.iter().map(|((event, check), times)| (format!("{event} {check}"), *times)).collect();
    write_whole(path, &serde_json::to_vec(&all)?, 0o600)?;
    publish(&decisions)
}

fn event(event: Event) -> &'static str {
    match event {
        Event::Death => "requeued",
        Event::NodeFail => "node-fail",
        Event::Move => "moved",
        Event::Requeued => "by-others",
        Event::Held => "held",
        Event::Left => "left",
        Event::Restarted => "restarted",
        Event::Dropped => "dropped",
    }
}

/// The first blamed check. A job's owner could write any name in a report; unknown ones become `other`.
fn check(entry: &Entry) -> String {
    let Some(subject) = entry.blamed.iter().map(|by| by.subject.as_str()).find(|subject| !subject.is_empty())
    else {
        return String::new();
    };
    let id = subject.split('@').next().unwrap_or_default();
    let known = railgate_gate::CHECKS.iter().any(|check| check.id == id);
    if known { id.to_owned() } else { "other".to_owned() }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use railgate_slurm::Blamed;

    use super::*;

    fn entry(event: Event, subject: &str) -> Entry {
        let blamed = Blamed { node: "n1".to_owned(), subject: subject.to_owned(), part: String::new() };
        Entry {
            schema: 1,
            time: 0,
            event,
            job: 7,
            name: "7".to_owned(),
            attempt: 0,
            ran_s: None,
            blamed: vec![blamed],
            why: String::new(),
            uid: None,
        }
    }

    #[test]
    fn events_are_counted_by_check_and_unknown_checks_as_other() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join(FILE);
        let page = RefCell::new(String::new());
        let publish = |decisions: &Decisions| {
            page.replace(controller_page(decisions));
            Ok(())
        };
        for (event, subject) in [
            (Event::Death, "gpu-lost@3"),
            (Event::Death, "gpu-lost@5"),
            (Event::Move, "ib-port@mlx5_0"),
            (Event::Held, "whatever-i-like"),
            (Event::NodeFail, ""),
        ] {
            add(&path, &entry(event, subject), publish).unwrap();
        }
        let lines: Vec<String> =
            page.borrow().lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
        let name = "railgate_job_decisions_total";
        let want = [
            format!("{name}{{event=\"held\",check=\"other\"}} 1"),
            format!("{name}{{event=\"moved\",check=\"ib-port\"}} 1"),
            format!("{name}{{event=\"node-fail\",check=\"\"}} 1"),
            format!("{name}{{event=\"requeued\",check=\"gpu-lost\"}} 2"),
        ];
        assert_eq!(lines, want);
        std::fs::write(&path, "{").unwrap();
        add(&path, &entry(Event::Left, "gpu-lost@1"), publish).unwrap();
        assert!(page.borrow().ends_with("{event=\"left\",check=\"gpu-lost\"} 1\n"), "{page:?}");
    }
}
