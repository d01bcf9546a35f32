//! Which GPU belongs to which port, and the order of the rails.

use railgate_model::{ComputePort, Distance, GpuPlace, PciAddress, Profile};

/// An anchor's port, by its index, and how far it is.
pub(crate) type Pair = Option<(usize, Option<Distance>)>;

pub(crate) fn by_wiring(
    candidates: &[ComputePort<'_>],
    anchors: &[GpuPlace<'_>],
    profile: &Profile,
) -> Vec<Pair> {
    anchors
        .iter()
        .enumerate()
        .map(|(position, anchor)| {
            let index = anchor.gpu?.index;
            let (_, hca) = profile.rails.wiring.iter().find(|(wired, _)| *wired == index)?;
            let candidate = candidates.iter().position(|candidate| candidate.hca.name == *hca)?;
            Some((candidate, candidates[candidate].distances[position]))
        })
        .collect()
}

/// Each GPU takes its nearest port; of equally near ones that with the fewest GPUs so far. The second value
/// says that this was a guess: through the CPU all ports of a socket look the same.
///
/// Where the machine type has more ports than there are, a GPU with none under its switches has lost its own;
/// it gets none rather than somebody else's.
pub(crate) fn by_distance(
    candidates: &[ComputePort<'_>],
    anchors: usize,
    profile: &Profile,
) -> (Vec<Pair>, bool) {
    let near_by = Distance::is_below_one_port;
    let tells = candidates.iter().flat_map(|candidate| &candidate.distances).flatten().any(|d| near_by(*d));
    let lacks = profile.fabric.hcas.is_some_and(|expected| candidates.len() < expected as usize);
    let mut taken = vec![0_usize; candidates.len()];
    let mut guessed = false;
    let pairs = (0..anchors)
        .map(|gpu| {
            let best = candidates.iter().filter_map(|candidate| candidate.distances[gpu]).min()?;
            if tells && lacks && !near_by(best) {
                return None;
            }
            let near =
                || (0..candidates.len()).filter(|index| candidates[*index].distances[gpu] == Some(best));
            guessed |= !near_by(best) && near().count() > 1;
            let chosen = near().min_by_key(|index| taken[*index])?;
            taken[chosen] += 1;
            Some((chosen, Some(best)))
        })
        .collect();
    (pairs, guessed)
}

/// The number of each rail of `order`: its place, unless an HCA is gone and the GPUs show which one it was.
/// Then it leaves a gap, and the others keep the numbers that they have on every node of the type.
pub(crate) fn rail_numbers(
    candidates: &[ComputePort<'_>],
    order: &[usize],
    pairs: &[Pair],
    profile: &Profile,
    wired: bool,
) -> Vec<usize> {
    let plain = || (0..order.len()).collect();
    if wired {
        let mut names: Vec<&str> = Vec::new();
        for (_, hca) in &profile.rails.wiring {
            if !names.contains(&hca.as_str()) {
                names.push(hca);
            }
        }
        let place = |index: &usize| names.iter().position(|name| *name == candidates[*index].hca.name);
        return order.iter().map(place).collect::<Option<_>>().unwrap_or_else(plain);
    }
    let expected = profile.fabric.hcas.unwrap_or(0) as usize;
    let complete = profile.gpus.count.is_some_and(|count| pairs.len() == count as usize);
    if !complete || pairs.is_empty() || order.len() >= expected || !pairs.len().is_multiple_of(expected) {
        return plain();
    }
    let share = pairs.len() / expected;
    let number = |index: &usize| {
        let mut groups = pairs
            .iter()
            .enumerate()
            .filter(|(_, pair)| pair.is_some_and(|(other, _)| other == *index))
            .map(|(gpu, _)| gpu / share);
        let first = groups.next()?;
        groups.all(|group| group == first).then_some(first)
    };
    let numbers: Option<Vec<usize>> = order.iter().map(number).collect();
    numbers.filter(|numbers| numbers.windows(2).all(|pair| pair[0] < pair[1])).unwrap_or_else(plain)
}

/// By the order of the GPUs, whatever the HCAs are called. A card that lost its GPU stands where its own
/// address puts it: a switch owns a range of buses, so that is the same place.
pub(crate) fn rail_order(
    candidates: &[ComputePort<'_>],
    pairs: &[Pair],
    anchors: &[GpuPlace<'_>],
    profile: &Profile,
    wired: bool,
) -> Vec<usize> {
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    if wired {
        let place = |index: &usize| {
            let name = &candidates[*index].hca.name;
            profile.rails.wiring.iter().position(|(_, hca)| hca == name)
        };
        order.sort_by_key(|index| place(index).unwrap_or(usize::MAX));
        return order;
    }
    let card = |index: usize| {
        let address = candidates[index].hca.pci.known()?;
        Some(PciAddress { function: 0, ..*address })
    };
    let place = |index: &usize| {
        let first_gpu = pairs
            .iter()
            .zip(anchors)
            .filter(|(pair, _)| {
                pair.is_some_and(|(other, _)| {
                    other == *index || (card(*index).is_some() && card(other) == card(*index))
                })
            })
            .filter_map(|(_, anchor)| anchor.address)
            .min();
        let place = first_gpu.or(candidates[*index].hca.pci.known().copied());
        (place.is_none(), place)
    };
    // Stable: what stands at one place keeps the order of address, name and port.
    order.sort_by_key(place);
    order
}
