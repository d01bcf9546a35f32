//! Which RDMA devices are nearest to a GPU: enough to know whose port it is on a shared node. The rail map
//! proper is made by another room; here ties stay ties.

use std::collections::BTreeSet;
use std::fmt;

use railgate_model::{Pci, PciAddress, PciDevice, Profile, Reading};

use crate::KnownHca;

/// The devices around some GPUs, by distance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Near {
    /// Names of the nearest ones.
    pub(crate) names: BTreeSet<String>,
    /// Names of those whose place cannot be told.
    pub(crate) unclear: BTreeSet<String>,
}

/// Adds those of `hcas` that are nearest to the GPU with this index and address; `None` where it cannot be
/// told of any.
pub(crate) fn nearest(
    near: &mut Near,
    index: u32,
    gpu: Option<PciAddress>,
    hcas: &[KnownHca],
    pci: Option<&Pci>,
    profile: Option<&Profile>,
) -> Option<()> {
    let wiring = profile.map_or(&[][..], |profile| profile.rails.wiring.as_slice());
    let wired: Vec<String> =
        wiring.iter().filter(|(wired, _)| *wired == index).map(|(_, hca)| hca.clone()).collect();
    if !wired.is_empty() {
        near.names.extend(wired);
        return Some(());
    }
    let pci = pci?;
    let gpu = device(pci, gpu?)?;
    let mut best = Closeness::Elsewhere;
    let mut names = Vec::new();
    for hca in hcas {
        let place = hca.pci.and_then(|at| device(pci, at)).and_then(|at| closeness(gpu, at));
        let Some(closeness) = place else {
            near.unclear.insert(hca.name.clone());
            continue;
        };
        if closeness > best {
            best = closeness;
            names.clear();
        }
        if closeness == best {
            names.push(hca.name.clone());
        }
    }
    if best == Closeness::Elsewhere && names.len() > 1 {
        // A tree that hides everything (a virtual machine) makes all of them equally far.
        near.unclear.extend(names);
    } else {
        near.names.extend(names);
    }
    Some(())
}

/// How near the nearest of some devices is to a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Nearness {
    /// At another socket.
    Far,
    /// At the same socket.
    Numa,
    /// Below the same root port.
    Switch,
}

impl fmt::Display for Nearness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Nearness::Far => "far",
            Nearness::Numa => "numa",
            Nearness::Switch => "switch",
        })
    }
}

/// How near the nearest of `hcas` is to the GPU at this address; `None` where it cannot be told of any.
pub(crate) fn nearness(pci: &Pci, gpu: PciAddress, hcas: &[PciAddress]) -> Option<Nearness> {
    let gpu = device(pci, gpu)?;
    let closest = hcas.iter().filter_map(|hca| closeness(gpu, device(pci, *hca)?)).max()?;
    Some(match closest {
        Closeness::Elsewhere => Nearness::Far,
        Closeness::SameNuma => Nearness::Numa,
        Closeness::SameSwitch(_) => Nearness::Switch,
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Closeness {
    Elsewhere,
    SameNuma,
    /// So many bridges in common.
    SameSwitch(usize),
}

fn closeness(gpu: &PciDevice, hca: &PciDevice) -> Option<Closeness> {
    let common = gpu.bridges.iter().zip(&hca.bridges).take_while(|(a, b)| a == b).count();
    if gpu.root == hca.root && common > 0 {
        return Some(Closeness::SameSwitch(common));
    }
    match (&gpu.numa_node, &hca.numa_node) {
        (Reading::Failed(_), _) | (_, Reading::Failed(_)) => None,
        (Reading::Known(a), Reading::Known(b)) if a == b => Some(Closeness::SameNuma),
        _ => Some(Closeness::Elsewhere),
    }
}

fn device(pci: &Pci, address: PciAddress) -> Option<&PciDevice> {
    pci.devices.iter().find(|device| device.address == address)
}
