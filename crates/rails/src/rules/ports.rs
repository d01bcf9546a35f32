//! Selects the ports of a job.

use std::collections::BTreeSet;

use railgate_model::{JobGpus, PciAddress, Rail};

use super::Context;

/// The card of a port: an HCA's address without function, the same for two ports or two functions.
pub(super) fn card(rail: &Rail) -> Option<PciAddress> {
    rail.pci.known().map(|address| PciAddress { function: 0, ..*address })
}

/// Returns indices into the map's rails, ascending.
pub(super) fn ports(context: &Context<'_>) -> BTreeSet<usize> {
    let (rails, gpus) = (&context.map.rails, &context.map.gpus);
    let mine: Vec<_> = gpus.iter().filter(|gpu| context.shape.gpus.has(gpu.index) != Some(false)).collect();
    // A GPU without a rail (its port is down, or the wiring is unknown) may need any of them. So may a GPU that is
    // missing in the snapshot.
    let known = match &context.shape.gpus {
        JobGpus::These { present, missing } => missing.is_empty() && mine.len() == present.len(),
        JobGpus::All { .. } | JobGpus::None | JobGpus::Unclear(_) => false,
    };
    if !known || mine.len() == gpus.len() || mine.iter().any(|gpu| gpu.rail.is_none()) {
        return (0..rails.len()).collect();
    }
    let own: BTreeSet<usize> =
        mine.iter().filter_map(|gpu| gpu.rail).filter(|rail| *rail < rails.len()).collect();
    // The second port of a card is as near as the first, and not the rail of any GPU.
    let beside = |index: usize| {
        card(&rails[index]).is_some()
            && gpus.iter().all(|gpu| gpu.rail != Some(index))
            && own.iter().any(|mine| card(&rails[*mine]) == card(&rails[index]))
    };
    let mut wanted: BTreeSet<usize> =
        (0..rails.len()).filter(|index| own.contains(index) || beside(*index)).collect();
    if context.shape.nodes != Some(1) {
        even_out(rails, mine.len(), &mut wanted);
    }
    wanted
}

/// If GPUs share HCAs, two GPUs may need one HCA on this node and two on the next, but NCCL wants the same number on
/// all nodes. So each node uses as many as any selection of this number of GPUs could need, the nearest first.
fn even_out(rails: &[Rail], gpus: usize, wanted: &mut BTreeSet<usize>) {
    while wanted.len() < gpus.min(rails.len()) {
        let far = |index: &usize| {
            let socket = rails[*index].numa_node.known();
            let same = socket.is_some() && wanted.iter().any(|have| rails[*have].numa_node.known() == socket);
            (!same, wanted.iter().map(|have| have.abs_diff(*index)).min(), *index)
        };
        let Some(next) = (0..rails.len()).filter(|index| !wanted.contains(index)).min_by_key(far) else {
            return;
        };
        wanted.insert(next);
    }
}
