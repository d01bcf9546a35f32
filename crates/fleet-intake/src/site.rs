//! Events from the site's table of what nodes share.

use std::collections::BTreeMap;

use railgate_fleet::{Event, Shared, What};
use railgate_model::UnixMillis;

use crate::nodes::is_old;
use crate::{by_root, is_node_name};

/// What each node shared when it was taken in last, and since when.
pub(crate) type Placed = BTreeMap<String, (Vec<Shared>, UnixMillis)>;

/// Takes over the table. A row is valid from the time when it is seen first. Its event is made again before it is deleted as too old.
pub(crate) fn observe(
    known: &mut Placed,
    table: &BTreeMap<String, Vec<Shared>>,
    now: UnixMillis,
    from: UnixMillis,
) -> Vec<Event> {
    let old = is_old(now, from);
    let mut events = Vec::new();
    for (node, shares) in table.iter().filter(|(node, _)| is_node_name(node)) {
        if known.get(node).is_some_and(|(known, made)| known == shares && *made >= old) {
            continue;
        }
        known.insert(node.clone(), (shares.clone(), now));
        let names: Vec<String> = shares.iter().map(|one| format!("{:?}={}", one.kind, one.name)).collect();
        let what = What::Placed { node: node.clone(), shares: shares.clone() };
        events.push(by_root(format!("placed/{node}/{}", names.join(",")), now, what));
    }
    events
}
