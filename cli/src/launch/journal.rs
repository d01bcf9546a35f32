//! The starts of a job: lines in its output, and a file for its report.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use railgate_fsutil::write_whole;
use railgate_node_report::{LAUNCH_FILE, LaunchStart, Launched, LeftOut};
use railgate_slurm::hostlist::compress;

use super::allocation::Allocation;
use crate::Site;
use crate::output::complain;

/// The cause of an end that Slurm or the job's owner wants.
pub(crate) const STOPPED: &str = "stopped";
/// The cause of an end that is the program's own error.
pub(crate) const PROGRAM: &str = "program";
/// Only the job's user reads and writes it.
const MODE: u32 = 0o600;

#[derive(Debug)]
pub(crate) struct Journal {
    file: PathBuf,
    launched: Launched,
    job: u32,
    /// The file could not be written, which has been printed.
    failed: bool,
}

/// `00:01:12`, `1-00:00:00`
pub(crate) fn duration(took: Duration) -> String {
    let seconds = took.as_secs();
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let clock = format!("{:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60);
    if days == 0 { clock } else { format!("{days}-{clock}") }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl Journal {
    pub(crate) fn new(site: &Site, allocation: &Allocation, restarts: u32) -> Self {
        let job = allocation.job;
        let file = site.places.run.join(format!("jobs/{job}/current/user/{LAUNCH_FILE}"));
        Journal { file, launched: Launched { restarts, starts: Vec::new() }, job, failed: false }
    }

    /// A start begins.
    pub(crate) fn begin(&mut self, number: u32, nodes: &[String], spares: &[String]) {
        let spare = match spares.len() {
            0 => String::new(),
            1 => format!(", 1 spare ({})", compress(spares)),
            more => format!(", {more} spares ({})", compress(spares)),
        };
        let first = nodes.first().map(String::as_str).unwrap_or_default();
        let count = match nodes.len() {
            1 => "1 node".to_owned(),
            more => format!("{more} nodes"),
        };
        complain!("start {number} on {count} {}{spare}, rank 0 on {first}", compress(nodes));
        self.launched.starts.push(LaunchStart {
            number,
            began: now(),
            ended: None,
            nodes: compress(nodes),
            node_count: nodes.len(),
            order: ordered(nodes),
            spares: compress(spares),
            code: None,
            cause: None,
            why: None,
            left_out: Vec::new(),
        });
        self.write();
    }

    /// It has ended.
    pub(crate) fn end(&mut self, code: u8, out: &[(String, String)], cause: &str, why: Option<&str>) {
        if let Some(start) = self.launched.starts.last_mut() {
            start.ended = Some(now());
            start.code = Some(code);
            start.cause = Some(cause.to_owned());
            start.why = why.map(str::to_owned);
            let out = out.iter().map(|(node, why)| LeftOut { node: node.clone(), why: why.clone() });
            start.left_out = out.collect();
        }
        self.write();
    }

    /// Nodes do not answer.
    pub(crate) fn waits(&self, nodes: &[String]) {
        complain!("launch: {} does not answer; waiting until Slurm has decided about it", compress(nodes));
    }

    /// Where more is found about an end.
    pub(crate) fn after(&self, cause: &str) -> String {
        if cause == STOPPED { String::new() } else { format!(". See: railgate report {}", self.job) }
    }

    fn write(&mut self) {
        let written = serde_json::to_vec(&self.launched)
            .map_err(std::io::Error::from)
            .and_then(|bytes| write_whole(&self.file, &bytes, MODE));
        let Err(why) = written else { return };
        if !std::mem::replace(&mut self.failed, true) {
            complain!("launch: the starts will not be in the job's report: {}: {why}", self.file.display());
        }
    }
}

/// The nodes one by one, if their order is not that of the list.
fn ordered(nodes: &[String]) -> Vec<String> {
    let in_order = railgate_slurm::hostlist::expand(&compress(nodes)).is_ok_and(|listed| listed == nodes);
    if in_order { Vec::new() } else { nodes.to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_slurm_writes_them() {
        let written = [5, 3672, 90_061].map(|seconds| duration(Duration::from_secs(seconds)));
        assert_eq!(written, ["00:00:05", "01:01:12", "1-01:01:01"]);
    }

    #[test]
    fn an_order_is_listed_only_where_it_differs() {
        let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(ordered(&names(&["gn1", "gn2"])), [""; 0]);
        assert_eq!(ordered(&names(&["gn4", "gn2"])), ["gn4", "gn2"]);
    }
}
