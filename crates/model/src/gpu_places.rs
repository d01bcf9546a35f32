//! Where GPUs are, or should be.

use crate::{Gpu, PciAddress, PciDevice, Profile, Snapshot};

/// A place where a GPU is or should be: pairs and order depend on it, so that a lost GPU moves nothing.
#[derive(Clone, Debug)]
pub struct GpuPlace<'a> {
    /// `None` for a GPU that is in the PCI tree and that NVML does not list.
    pub gpu: Option<&'a Gpu>,
    pub address: Option<PciAddress>,
    /// Its function in the PCI tree.
    pub place: Option<&'a PciDevice>,
}

/// The GPUs in PCI order, and how many GPUs of the machine type left no trace.
pub(crate) fn gpu_places<'a>(snapshot: &'a Snapshot, profile: &Profile) -> (Vec<GpuPlace<'a>>, usize) {
    let gpus = snapshot.gpus.data().map_or(&[][..], |gpus| &gpus.gpus);
    let mut places: Vec<GpuPlace<'a>> = gpus
        .iter()
        .map(|gpu| {
            let address = gpu.pci.known().copied();
            GpuPlace {
                gpu: Some(gpu),
                address,
                place: address.zip(snapshot.pci.data()).and_then(|(at, pci)| pci.device(at)),
            }
        })
        .collect();
    let lacking = |places: &[GpuPlace<'_>]| {
        profile.gpus.count.map(|count| (count as usize).saturating_sub(places.len()))
    };
    let unplaced = places.iter().filter(|place| place.address.is_none()).count();
    if snapshot.gpus.data().is_none() || unplaced > 0 || lacking(&places).is_some_and(|lacking| lacking > 0) {
        let mut unclaimed: Vec<&'a PciDevice> = snapshot
            .pci
            .data()
            .map_or(&[][..], |pci| &pci.devices)
            .iter()
            .filter(|device| device.is_nvidia_gpu())
            .filter(|device| places.iter().all(|place| place.address != Some(device.address)))
            .collect();
        unclaimed.sort_by_key(|device| device.address);
        if unplaced == unclaimed.len() {
            // As many without an address as addresses without a GPU: they are the same, in the same order.
            let lost = places.iter_mut().filter(|place| place.address.is_none());
            for (place, device) in lost.zip(unclaimed) {
                place.address = Some(device.address);
                place.place = Some(device);
            }
        } else {
            places.extend(unclaimed.into_iter().map(|device| GpuPlace {
                gpu: None,
                address: Some(device.address),
                place: Some(device),
            }));
            places.sort_by_key(|place| (place.address.is_none(), place.address));
        }
    }
    let placed = places.iter().filter(|place| place.address.is_some()).count();
    let missing = profile.gpus.count.map_or(0, |count| (count as usize).saturating_sub(placed));
    (places, missing)
}
