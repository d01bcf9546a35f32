use std::collections::BTreeMap;

use railgate_model::{
    ComputePort, Gpu, GpuPlace, LeftOut, NotCompute, Profile, Rail, RailGpu, RailMap, Reading, Snapshot,
    compute_ports, port_state_text,
};

use crate::pairs::{Pair, by_distance, by_wiring, rail_numbers, rail_order};

/// [`RailMap::method`] if the pairs follow from the PCI tree.
pub const BY_TREE: &str = "pci tree";
/// [`RailMap::method`] if the tree is flat and the pairs are those of the machine profile.
pub const BY_PROFILE: &str = "profile wiring";
/// [`RailMap::method`] if neither determines the pairs, and equally near ports were assigned in order, as NCCL does.
pub const BY_ORDER: &str = "order of equals";
/// [`RailMap::method`] if there is nothing to pair.
pub const BY_NOTHING: &str = "none";

/// Returns the wiring of this node: the rail of each GPU, and the compute ports in rail order.
///
/// The number of a rail does not depend on current faults: a port that is down or a missing HCA leaves a gap, if the
/// profile gives the expected number.
pub fn rail_map<'p>(snapshot: &Snapshot, profile: impl Into<Option<&'p Profile>>) -> RailMap {
    let unknown = Profile::generic();
    let profile = profile.into().unwrap_or(&unknown);
    let mut notes = Vec::new();
    let gpus = snapshot.gpus.data().map_or(&[][..], |gpus| &gpus.gpus);
    if let Some(why) = snapshot.gpus.missing() {
        notes.push(format!("GPUs unknown: {why}"));
    }
    if let Some(why) = snapshot.fabric.missing() {
        notes.push(format!("RDMA ports unknown: {why}"));
    }
    if let Some(why) = snapshot.pci.missing() {
        notes.push(format!("PCI tree unknown: {why}"));
    }
    let found = compute_ports(snapshot, profile);
    let (anchors, candidates, wired) = (found.gpus, found.ports, found.by_wiring);
    notes.extend(found.notes);
    let left = |left: NotCompute<'_>| LeftOut {
        port: format!("{}:{}", left.hca.name, left.port.number),
        why: left.why,
    };
    let mut left_out: Vec<LeftOut> = found.left_out.into_iter().map(left).collect();
    let (pairs, guessed) = if wired {
        (by_wiring(&candidates, &anchors, profile), false)
    } else {
        by_distance(&candidates, anchors.len(), profile)
    };
    let method = match () {
        () if wired => BY_PROFILE,
        () if pairs.iter().all(Option::is_none) => BY_NOTHING,
        () if guessed => BY_ORDER,
        () => BY_TREE,
    };
    if method == BY_ORDER {
        notes.push(
            "the PCI tree does not tell which HCA belongs to which GPU: dealt out in order; `wiring` in the \
             machine profile's [rails] can tell"
                .to_owned(),
        );
    }

    let order = rail_order(&candidates, &pairs, &anchors, profile, wired);
    let numbers = rail_numbers(&candidates, &order, &pairs, profile, wired);
    let mut rails = Vec::new();
    let mut index_of = BTreeMap::new();
    for (number, candidate_index) in numbers.into_iter().zip(order) {
        let candidate = &candidates[candidate_index];
        if candidate.is_usable() {
            if !candidate.is_active() {
                notes.push(format!(
                    "{}: port is {}",
                    candidate.name(),
                    port_state_text(&candidate.port.state)
                ));
            }
            index_of.insert(candidate_index, rails.len());
            rails.push(rail(number, candidate));
        } else {
            let why = format!("rail {number}: port is {}", port_state_text(&candidate.port.state));
            notes.push(format!(
                "rail {number} is missing: {} is {}",
                candidate.name(),
                port_state_text(&candidate.port.state)
            ));
            left_out.push(LeftOut { port: candidate.name(), why });
        }
    }
    if let Some(expected) = profile.fabric.hcas
        && expected as usize != rails.len()
        && snapshot.fabric.data().is_some()
    {
        notes.push(format!("{} rails, the machine type has {expected}", rails.len()));
    }
    left_out.sort_by(|a, b| a.port.cmp(&b.port));

    RailMap {
        gpus: gpus.iter().map(|gpu| rail_gpu(gpu, &anchors, &pairs, &index_of)).collect(),
        rails,
        left_out,
        method: method.to_owned(),
        notes,
    }
}

/// `index_of` maps a candidate port to its rail, for candidates that are rails.
fn rail_gpu(
    gpu: &Gpu,
    anchors: &[GpuPlace<'_>],
    pairs: &[Pair],
    index_of: &BTreeMap<usize, usize>,
) -> RailGpu {
    let own = anchors
        .iter()
        .zip(pairs)
        .find(|(anchor, _)| anchor.gpu.is_some_and(|other| other.index == gpu.index));
    let anchor = own.map(|(anchor, _)| anchor);
    let pair = own.and_then(|(_, pair)| *pair).filter(|(candidate, _)| index_of.contains_key(candidate));
    RailGpu {
        index: gpu.index,
        pci: match anchor.and_then(|anchor| anchor.address) {
            Some(address) => Reading::Known(address),
            None => gpu.pci.clone(),
        },
        numa_node: match anchor.and_then(|anchor| anchor.place.as_ref()) {
            Some(place) => place.numa_node.clone(),
            None => Reading::Failed("not in the PCI tree".to_owned()),
        },
        rail: pair.and_then(|(candidate, _)| index_of.get(&candidate).copied()),
        distance: pair.and_then(|(_, distance)| distance),
    }
}

fn rail(number: usize, candidate: &ComputePort<'_>) -> Rail {
    Rail {
        number,
        hca: candidate.hca.name.clone(),
        port: candidate.port.number,
        pci: candidate.hca.pci.clone(),
        numa_node: candidate.hca.numa_node.clone(),
        link_layer: candidate.port.link_layer.clone(),
        rate_gbps: candidate.port.rate_gbps.clone(),
        state: candidate.port.state.clone(),
    }
}

#[cfg(test)]
mod tests;
