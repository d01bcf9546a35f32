//! Which RDMA devices are nearest to a GPU: enough to know whose port it is on a shared node. The rail map
//! proper is made by another room; here ties stay ties.

use railgate_node::{Fabric, Pci, PciAddress, PciDevice, Profile};

/// Names of the devices nearest to the GPU with this index and address; `None` where it cannot be told.
pub(crate) fn nearest(
    index: u32,
    gpu: Option<PciAddress>,
    fabric: &Fabric,
    pci: Option<&Pci>,
    profile: Option<&Profile>,
) -> Option<Vec<String>> {
    let wiring = profile.map_or(&[][..], |profile| profile.rails.wiring.as_slice());
    let wired: Vec<String> =
        wiring.iter().filter(|(wired, _)| *wired == index).map(|(_, hca)| hca.clone()).collect();
    if !wired.is_empty() {
        return Some(wired);
    }
    let pci = pci?;
    let gpu = device(pci, gpu?)?;
    let mut best = Closeness::Elsewhere;
    let mut names = Vec::new();
    for hca in &fabric.hcas {
        let at = device(pci, *hca.pci.known()?)?;
        let closeness = closeness(gpu, at);
        if closeness > best {
            best = closeness;
            names.clear();
        }
        if closeness == best {
            names.push(hca.name.clone());
        }
    }
    Some(names)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Closeness {
    Elsewhere,
    SameNuma,
    /// So many bridges in common.
    SameSwitch(usize),
}

fn closeness(gpu: &PciDevice, hca: &PciDevice) -> Closeness {
    let common = gpu.bridges.iter().zip(&hca.bridges).take_while(|(a, b)| a == b).count();
    if gpu.root == hca.root && common > 0 {
        return Closeness::SameSwitch(common);
    }
    match (gpu.numa_node.known(), hca.numa_node.known()) {
        (Some(a), Some(b)) if a == b => Closeness::SameNuma,
        _ => Closeness::Elsewhere,
    }
}

fn device(pci: &Pci, address: PciAddress) -> Option<&PciDevice> {
    pci.devices.iter().find(|device| device.address == address)
}
