//! Reads which nodes of a running job stand still, from their partial reports.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use railgate_child::ask;
use railgate_node_report::{NodeReport, NodeWait};
use serde::{Deserialize, Serialize};

use super::dirs::{below, content_below, job_below, top};
use super::words::byte_budget;
use super::{LIVE, dir_name};
use crate::ReportConfig;

pub(super) const READ_WAITS: &str = "read-waits";
/// A file server that does not answer for longer is asked again later.
const TIME: Duration = Duration::from_secs(30);
/// Time for the child to send its reply after that.
const ANSWER: Duration = Duration::from_secs(2);
const MOST_NODES: usize = 16_384;
/// Largest reply for each node, bytes.
const REPLY: usize = 4096;

#[derive(Serialize, Deserialize)]
struct Order {
    dir: PathBuf,
    cluster: String,
    job: u32,
    uid: u32,
    attempt: u32,
    nodes: Vec<String>,
    max_bytes: u64,
}

/// The nodes of the attempt that stand still, by name, from their partial reports. A node that works, or has written none, is
/// missing. Reads as the job's owner, who could forge these files, to have the own job called hung.
///
/// # Errors
/// The directory cannot be read in time.
pub fn load_waits(
    config: &ReportConfig,
    report: &NodeReport,
    nodes: &[String],
) -> Result<Vec<(String, NodeWait)>, String> {
    let Some(dir) = &config.dir else { return Ok(Vec::new()) };
    if nodes.len() > MOST_NODES {
        return Err(format!("{} nodes are too many", nodes.len()));
    }
    let order = Order {
        dir: dir.clone(),
        cluster: report.cluster.clone(),
        job: report.job.id,
        uid: report.job.uid,
        attempt: report.attempt,
        nodes: nodes.iter().filter(|name| dir_name(name).is_some()).cloned().collect(),
        max_bytes: config.max_bytes(),
    };
    let input = serde_json::to_vec(&order).map_err(|why| why.to_string())?;
    let reply = ask(READ_WAITS, &input, TIME + ANSWER)?;
    if reply.len() > (nodes.len() + 1) * REPLY {
        return Err(format!("an answer of {} bytes for {} nodes", reply.len(), nodes.len()));
    }
    let waits: Vec<(String, NodeWait)> =
        serde_json::from_slice(&reply).map_err(|why| format!("answer: {why}"))?;
    let known = |(name, _): &(String, NodeWait)| order.nodes.contains(name);
    if waits.iter().all(known) { Ok(waits) } else { Err("an answer about other nodes".to_owned()) }
}

/// Runs in the child, as the job's owner.
pub(super) fn task(input: &[u8]) -> Result<Vec<u8>, String> {
    let order: Order = serde_json::from_slice(input).map_err(|why| why.to_string())?;
    serde_json::to_vec(&read(&order)?).map_err(|why| why.to_string())
}

/// The fields of a partial report that are needed; all others are skipped while it is parsed.
#[derive(Deserialize)]
struct Part {
    job: PartJob,
    attempt: u32,
    node: String,
    #[serde(default)]
    wait: Option<NodeWait>,
}

#[derive(Deserialize)]
struct PartJob {
    id: u32,
}

fn read(order: &Order) -> Result<Vec<(String, NodeWait)>, String> {
    let until = Instant::now() + TIME;
    let io = |why: nix::errno::Errno| std::io::Error::from(why).to_string();
    let cluster = dir_name(&order.cluster).ok_or("not a cluster name")?;
    let dir = top(&order.dir).map_err(io)?;
    let cluster = below(dir.as_fd(), cluster).map_err(io)?;
    let Some((dir, _)) = job_below(cluster.as_fd(), order.job, Some(order.uid))? else {
        return Ok(Vec::new());
    };
    let attempt = below(dir.as_fd(), &order.attempt.to_string()).map_err(io)?;
    let mut left = byte_budget(u32::try_from(order.nodes.len()).unwrap_or(u32::MAX));
    let mut found = Vec::new();
    for name in &order.nodes {
        if Instant::now() >= until {
            return Err("not all partial reports were read in time".to_owned());
        }
        // A part that cannot be read is that of a node that is not known to stand still.
        let Ok(Some((content, owner))) =
            content_below(attempt.as_fd(), &format!("{name}{LIVE}"), order.max_bytes, &mut left)
        else {
            continue;
        };
        let Ok(part) = serde_json::from_slice::<Part>(&content) else { continue };
        let same = (part.job.id, part.attempt, part.node.as_str()) == (order.job, order.attempt, name);
        if let Some(wait) = part.wait.filter(|_| same && owner == order.uid) {
            found.push((name.clone(), wait.bounded()));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_parts_of_this_attempt_that_stand_still_are_read() {
        let place = tempfile::tempdir().unwrap();
        let uid = nix::unistd::geteuid().as_raw();
        let attempt = place.path().join("alpha/7/1");
        std::fs::create_dir_all(&attempt).unwrap();
        let part = |node: &str, attempt: u32, wait: &str| {
            format!(
                r#"{{"schema":1,"job":{{"id":7,"uid":{uid}}},"attempt":{attempt},"node":"{node}","more":[1,2]{wait}}}"#
            )
        };
        let wait = format!(
            r#","wait":{{"since":5,"as_of":9,"gpus":2,"waiting_gpus":0,"at_rest":[{}]}}"#,
            vec![r#"{"rank":3,"kernel":"pipe_read"}"#; 40].join(",")
        );
        for (name, content) in [
            ("n1", part("n1", 1, &wait)),
            ("n2", part("n2", 1, "")),
            ("n3", part("n3", 0, &wait)),
            ("n4", part("n1", 1, &wait)),
            ("n5", "{".to_owned()),
        ] {
            std::fs::write(attempt.join(format!("{name}.live")), content).unwrap();
        }
        std::os::unix::fs::symlink("n1.live", attempt.join("n6.live")).unwrap();
        let order = Order {
            dir: place.path().to_owned(),
            cluster: "alpha".to_owned(),
            job: 7,
            uid,
            attempt: 1,
            nodes: (1..=7).map(|n| format!("n{n}")).collect(),
            max_bytes: 1 << 20,
        };
        // Root would become the owner of the directory, which is root here.
        let found = read(&order).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].0.as_str(), found[0].1.since, found[0].1.at_rest.len()), ("n1", 5, 16));
    }
}
