//! What slurmctld has about the nodes of the job.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use railgate_slurm::{Client, HangNote, HangStage, NodeState, SlurmError, is_ours};

/// Between two questions to slurmctld.
const INTERVAL: Duration = Duration::from_millis(500);

/// The states of nodes, by name.
pub(crate) type States = BTreeMap<String, NodeState>;

/// Asks for the states of some nodes. Those that Slurm does not know are missing.
pub(crate) fn states(client: &Client, nodes: &[String]) -> Result<States, SlurmError> {
    Ok(client.nodes(nodes)?.into_iter().map(|state| (state.name.clone(), state)).collect())
}

/// Why a node has failed, by its state: down, or drained by railgate. A drain by an admin is a wish, not a fault.
pub(crate) fn failed(state: &NodeState) -> Option<String> {
    let reason = state.reason.as_ref().map(|reason| reason.text.as_str()).unwrap_or_default();
    if state.has("DOWN") || state.has("FAIL") || state.has("FAILING") {
        let reason = if reason.is_empty() { String::new() } else { format!(" ({reason})") };
        return Some(format!("{} in Slurm{reason}", state.state()));
    }
    (state.held() && is_ours(reason)).then(|| reason.to_owned())
}

/// Those of the nodes that can take part: neither down nor drained, and answering. All of them if slurmctld does not answer: srun finds out.
pub(crate) fn usable(client: &Client, nodes: &[String]) -> Vec<String> {
    let Ok(states) = states(client, nodes) else { return nodes.to_vec() };
    let good =
        |node: &&String| states.get(*node).is_some_and(|state| !state.held() && !state.has("NOT_RESPONDING"));
    nodes.iter().filter(good).cloned().collect()
}

/// Whether Slurm has one of the nodes down, or no longer knows it.
pub(crate) fn is_any_down(client: &Client, nodes: &[String]) -> bool {
    let down = |states: States| {
        let is_down = |node: &String| states.get(node).is_none_or(|state| state.has("DOWN"));
        nodes.iter().any(is_down)
    };
    states(client, nodes).is_ok_and(down)
}

/// Waits until the steps of earlier starts have ended, at most for a time.
pub(crate) fn wait_for_steps(client: &Client, jobs: &[u32], most: Duration) {
    let until = Instant::now() + most;
    while client.steps(jobs).is_ok_and(|steps| !steps.is_empty()) && Instant::now() < until {
        std::thread::sleep(INTERVAL);
    }
}

/// Whether the guard has ended the steps of one of these jobs since a time (Unix seconds), by the entry of any of its nodes.
pub(crate) fn hung(states: &States, jobs: &[u32], since: u64) -> bool {
    let ended =
        |note: &HangNote| jobs.contains(&note.job) && note.stage == HangStage::Ended && note.time >= since;
    states.values().any(|state| HangNote::all(&state.comment).iter().any(ended))
}
