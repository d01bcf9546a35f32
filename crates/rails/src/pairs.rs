//! Which GPU belongs to which port, and the order of the rails.

use railgate_model::{Distance, Gpu, PciAddress, PciDevice, Profile, Snapshot};

use crate::distance::device;
use crate::ports::Candidate;

/// A place where a GPU sits or should sit: pairs and order hang on it, so that a lost GPU moves nothing.
pub(crate) struct Anchor<'a> {
    /// `None` for a GPU that stands in the PCI tree and that NVML does not know.
    pub(crate) gpu: Option<&'a Gpu>,
    pub(crate) address: Option<PciAddress>,
    pub(crate) place: Option<PciDevice>,
}

/// The GPUs in PCI order. The second value counts those that the machine type has and that left no trace.
pub(crate) fn anchors<'a>(snapshot: &'a Snapshot, profile: &Profile) -> (Vec<Anchor<'a>>, usize) {
    let gpus = snapshot.gpus.data().map_or(&[][..], |gpus| &gpus.gpus);
    let mut anchors: Vec<Anchor<'a>> = gpus
        .iter()
        .map(|gpu| {
            let address = gpu.pci.known().copied();
            Anchor { gpu: Some(gpu), address, place: device(snapshot, address.as_ref()) }
        })
        .collect();
    let lacking = |anchors: &[Anchor<'_>]| {
        profile.gpus.count.map(|count| (count as usize).saturating_sub(anchors.len()))
    };
    let unplaced = anchors.iter().filter(|anchor| anchor.address.is_none()).count();
    if snapshot.gpus.data().is_none() || unplaced > 0 || lacking(&anchors).is_some_and(|lacking| lacking > 0)
    {
        let mut unclaimed: Vec<&PciDevice> = snapshot
            .pci
            .data()
            .map_or(&[][..], |pci| &pci.devices)
            .iter()
            .filter(|device| device.vendor == NVIDIA && matches!(device.class >> 8, 0x0300 | 0x0302))
            .filter(|device| anchors.iter().all(|anchor| anchor.address != Some(device.address)))
            .collect();
        unclaimed.sort_by_key(|device| device.address);
        if unplaced == unclaimed.len() {
            // As many without an address as addresses without a GPU: they are the same, in the same order.
            let lost = anchors.iter_mut().filter(|anchor| anchor.address.is_none());
            for (anchor, device) in lost.zip(unclaimed) {
                anchor.address = Some(device.address);
                anchor.place = Some(device.clone());
            }
        } else {
            anchors.extend(unclaimed.into_iter().map(|device| Anchor {
                gpu: None,
                address: Some(device.address),
                place: Some(device.clone()),
            }));
            anchors.sort_by_key(|anchor| (anchor.address.is_none(), anchor.address));
        }
    }
    let placed = anchors.iter().filter(|anchor| anchor.address.is_some()).count();
    let missing = profile.gpus.count.map_or(0, |count| (count as usize).saturating_sub(placed));
    (anchors, missing)
}

const NVIDIA: u32 = 0x10de;

/// An anchor's port, by its index, and how far it is.
pub(crate) type Pair = Option<(usize, Option<Distance>)>;

pub(crate) fn by_wiring(
    candidates: &[Candidate<'_>],
    anchors: &[Anchor<'_>],
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
    candidates: &[Candidate<'_>],
    anchors: usize,
    profile: &Profile,
) -> (Vec<Pair>, bool) {
    let near_by = |distance: Distance| distance <= Distance::Pxb;
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
    candidates: &[Candidate<'_>],
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
    candidates: &[Candidate<'_>],
    pairs: &[Pair],
    anchors: &[Anchor<'_>],
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
