//! Events from the ledger.

use railgate_fleet::{Event, Grade, NodeFinding, What};
use railgate_slurm::{Entry, Event as Happened};

use crate::attempts::finding;
use crate::{by_root, is_node_name};

/// Blamed parts are from drain reasons or from reports that users can write, and the ledger does not tell which: hearsay. That
/// a node was down is from slurmctld.
pub(crate) fn events(entry: &Entry) -> Vec<Event> {
    let mut events = Vec::new();
    for blamed in entry.blamed.iter().filter(|blamed| is_node_name(&blamed.node)) {
        let is_down = blamed.subject == "down" && entry.event == Happened::NodeFail;
        let what = if is_down {
            What::Down { node: blamed.node.clone() }
        } else {
            let card = Some(blamed.part.clone()).filter(|part| part.starts_with("GPU-"));
            let finding = finding(&blamed.node, &blamed.subject, card);
            What::Finding(NodeFinding { grade: Grade::Hearsay, ..finding })
        };
        let id = format!("ledger/{}/{}/{}/{}", entry.job, entry.attempt, blamed.node, blamed.subject);
        events.push(by_root(id, entry.time, what));
    }
    events
}
