use std::collections::{BTreeMap, BTreeSet};

use railgate_fleet::{Judgement, Reason, SharedKind, Standing};

use crate::condition::{Condition, Priority};

/// Makes the conditions of a fleet's judgement: incidents that have not ended, and lemons.
///
/// - P0: a switch, a rail, a rack, power, cooling or a file server takes nodes with it.
/// - P1: a driver or an image does.
/// - P2: a job or the jobs of a user do; a lemon.
///
/// Nodes that are down or drained are not in a judgement: the caller adds them from Slurm, one condition each, with the key `node/NAME`,
/// and the reservations of all nodes ([`Condition::add_reservations`]).
pub fn fleet_conditions(judgement: &Judgement) -> Vec<Condition> {
    let of = |node: &String| (node.clone(), BTreeSet::new());
    let open = judgement.incidents.iter().filter(|incident| incident.end.is_none());
    let incidents = open.map(|incident| {
        let (key, priority) = match &incident.reason {
            Reason::Shared(shared) => {
                let priority = match shared.kind {
                    SharedKind::Driver | SharedKind::Image => Priority::P1,
                    _ => Priority::P0,
                };
                (format!("incident/{}/{}", shared.kind, shared.name).replace(' ', "-"), priority)
            }
            Reason::Job { job, attempt } => (format!("incident/job/{job}.{attempt}"), Priority::P2),
            Reason::User { uid } => (format!("incident/user/{uid}"), Priority::P2),
        };
        Condition {
            key,
            priority,
            title: incident.what.clone(),
            details: String::new(),
            check: None,
            nodes: incident.nodes.iter().map(of).collect(),
            since: Some(incident.start),
        }
    });
    let lemons = judgement.nodes.iter().filter(|record| record.standing == Standing::Lemon);
    let lemons = lemons.map(|record| Condition {
        key: format!("lemon/{}", record.node),
        priority: Priority::P2,
        title: format!(
            "{} fails more often than the fleet: {} faults, {:.1} expected",
            record.node, record.faults, record.expected
        ),
        details: record.reasons.join(" "),
        check: None,
        nodes: BTreeMap::from([of(&record.node)]),
        since: None,
    });
    incidents.chain(lemons).collect()
}
