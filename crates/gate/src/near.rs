//! Which RDMA devices are nearest to a GPU: enough to know whose port it is on a shared node. Equally near devices all count:
//! NCCL may use any of them.

use std::collections::BTreeSet;

use railgate_model::{Distance, Pci, PciAddress, PciDevice, Profile};

use crate::KnownHca;

/// The devices around some GPUs, by distance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Near {
    /// Names of the nearest ones.
    pub(crate) names: BTreeSet<String>,
    /// Names of those whose distance the tree does not tell.
    pub(crate) unclear: BTreeSet<String>,
}

/// Adds those of `hcas` that are nearest to the GPU with this index and address; `None` if the GPU's place is not known.
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
    let gpu = pci.device(gpu?)?;
    let mut best = Distance::Sys;
    let mut names = Vec::new();
    // Their NUMA nodes are not known: which of them is nearest is a guess, unless there is only one.
    let mut flat = Vec::new();
    for hca in hcas {
        let place = hca.pci.and_then(|at| pci.device(at));
        let Some((place, distance)) = place.and_then(|place| Some((place, Distance::between(gpu, place)?)))
        else {
            near.unclear.insert(hca.name.clone());
            continue;
        };
        if !distance.is_below_one_port() && !has_numa_nodes(gpu, place) {
            flat.push(hca.name.clone());
            continue;
        }
        if distance < best {
            best = distance;
            names.clear();
        }
        if distance == best {
            names.push(hca.name.clone());
        }
    }
    if names.is_empty() && flat.len() == 1 {
        near.names.extend(flat.drain(..));
    }
    if !best.is_below_one_port() {
        near.unclear.extend(flat);
    }
    if best == Distance::Sys && names.len() > 1 {
        // No device is at the GPU's socket, and all others are equally far.
        near.unclear.extend(names);
    } else {
        near.names.extend(names);
    }
    Some(())
}

fn has_numa_nodes(gpu: &PciDevice, hca: &PciDevice) -> bool {
    gpu.numa_node.known().is_some() && hca.numa_node.known().is_some()
}

/// The distance of the nearest of `hcas` to the GPU at this address; `None` if the tree tells that of none.
pub(crate) fn nearest_distance(pci: &Pci, gpu: PciAddress, hcas: &[PciAddress]) -> Option<Distance> {
    let gpu = pci.device(gpu)?;
    hcas.iter().filter_map(|hca| Distance::between(gpu, pci.device(*hca)?)).min()
}

#[cfg(test)]
mod tests {
    use railgate_model::Reading;

    use super::*;

    fn device(address: &str, numa_node: Reading<u32>, bridges: &[&str]) -> PciDevice {
        PciDevice {
            address: address.parse().unwrap(),
            vendor: 0,
            device: 0,
            class: 0,
            numa_node,
            bridges: bridges.iter().map(|bridge| bridge.parse().unwrap()).collect(),
            root: "pci0000:00".to_owned(),
            link: Reading::Unsupported,
            acs: Reading::Unsupported,
        }
    }

    /// The nearest of HCAs to the GPU, which is the first device, and those that cannot be told.
    fn near(devices: Vec<PciDevice>) -> (String, String) {
        let hcas: Vec<KnownHca> = devices[1..]
            .iter()
            .enumerate()
            .map(|(index, device)| KnownHca { name: format!("mlx5_{index}"), pci: Some(device.address) })
            .collect();
        let (gpu, pci) = (devices[0].address, Pci { devices });
        let mut near = Near::default();
        nearest(&mut near, 0, Some(gpu), &hcas, Some(&pci), None).unwrap();
        let shown = |names: BTreeSet<String>| names.into_iter().collect::<Vec<_>>().join(" ");
        (shown(near.names), shown(near.unclear))
    }

    fn two(a: &str, b: &str) -> (String, String) {
        (a.to_owned(), b.to_owned())
    }

    #[test]
    fn hcas_behind_several_switches_are_equally_near_as_for_nccl() {
        let gpu =
            device("0:20:00.0", Reading::Known(0), &["0:01:00.0", "0:02:00.0", "0:03:00.0", "0:04:00.0"]);
        let one =
            device("0:30:00.0", Reading::Known(0), &["0:01:00.0", "0:02:00.0", "0:05:00.0", "0:06:00.0"]);
        let other = device("0:40:00.0", Reading::Known(0), &["0:01:00.0", "0:07:00.0", "0:08:00.0"]);
        // More common bridges made mlx5_0 the only one, although the rail map gave mlx5_1 to the GPU as well.
        assert_eq!(near(vec![gpu, one, other]), two("mlx5_0 mlx5_1", ""));
    }

    #[test]
    fn a_machine_without_numa_nodes_tells_only_a_single_hca() {
        let flat = |address: &str| device(address, Reading::Unsupported, &[]);
        assert_eq!(near(vec![flat("0:05:00.0"), flat("0:06:00.0")]), two("mlx5_0", ""));
        assert_eq!(
            near(vec![flat("0:05:00.0"), flat("0:06:00.0"), flat("0:07:00.0")]),
            two("", "mlx5_0 mlx5_1")
        );
        let unread = device("0:06:00.0", Reading::Failed("gone".to_owned()), &[]);
        assert_eq!(near(vec![flat("0:05:00.0"), unread]), two("", "mlx5_0"));
    }

    #[test]
    fn a_socket_of_its_own_is_nearer_than_another() {
        let at = |address: &str, numa| device(address, Reading::Known(numa), &[]);
        let gpu = || at("0:05:00.0", 0);
        assert_eq!(near(vec![gpu(), at("0:06:00.0", 0), at("0:86:00.0", 1)]), two("mlx5_0", ""));
        assert_eq!(near(vec![gpu(), at("0:86:00.0", 1), at("0:87:00.0", 1)]), two("", "mlx5_0 mlx5_1"));
    }
}
