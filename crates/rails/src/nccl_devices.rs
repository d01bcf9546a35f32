//! How NCCL finds a machine's devices in a topology file. Both sides use this: [`crate::topology()`] writes the file, and
//! `railgate-topology-check` compares a file with the machine.

use railgate_model::{Distance, Hca, LinkLayer, PciAddress, Port, RailGpu, RailMap, Reading};

use crate::map::BY_PROFILE;

/// The GPU stands under one switch with its rail's HCA: the tree shows it, or the profile knows what the tree hides. A
/// GPU of another socket may have the rail all the same, where there are fewer HCAs than GPUs.
pub fn belong_together(map: &RailMap, gpu: &RailGpu) -> bool {
    map.method == BY_PROFILE || gpu.distance.is_some_and(|distance| distance <= Distance::Pxb)
}

/// NCCL looks its HCAs up with device and function set to zero: ports and virtual functions merge.
pub fn as_nccl_finds_it(address: &PciAddress) -> PciAddress {
    PciAddress { device: 0, function: 0, ..*address }
}

/// The bus id by which NCCL looks an HCA up. NCCL's own transport speaks InfiniBand and RoCE; what has another link
/// layer (EFA) comes from a network plugin, and aws-ofi-nccl hands over the address as it is.
pub fn busid_of(hca: &Hca) -> Option<PciAddress> {
    let address = hca.pci.known()?;
    let foreign = |port: &Port| matches!(port.link_layer, Reading::Known(LinkLayer::Other(_)));
    let plugin = !hca.ports.is_empty() && hca.ports.iter().all(foreign);
    Some(if plugin { *address } else { as_nccl_finds_it(address) })
}

/// Elements that NCCL adds to a file: of each GPU itself and up to eight ends of its NVLinks, of each HCA two.
pub fn room_wanted(gpus: usize, hcas: usize) -> usize {
    9 * gpus + 2 * hcas
}

/// `0-31,64-95` as the kernel's `cpumap`: groups of 32 bits, most significant first. `None` for what is no
/// list, has no CPU, or is too long for one attribute of NCCL's parser.
pub fn cpu_mask(list: &str) -> Option<String> {
    const MAX_CPUS: u32 = 896;
    let mut groups: Vec<u32> = Vec::new();
    for range in list.trim().split(',').filter(|range| !range.is_empty()) {
        let (from, to) = match range.split_once('-') {
            Some((from, to)) => (from.trim().parse().ok()?, to.trim().parse().ok()?),
            None => {
                let only: u32 = range.trim().parse().ok()?;
                (only, only)
            }
        };
        if from > to || to >= MAX_CPUS {
            return None;
        }
        for cpu in from..=to {
            let group = (cpu / 32) as usize;
            if groups.len() <= group {
                groups.resize(group + 1, 0);
            }
            groups[group] |= 1 << (cpu % 32);
        }
    }
    let text: Vec<String> = groups.iter().rev().map(|group| format!("{group:08x}")).collect();
    (!text.is_empty()).then(|| text.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_the_kernels() {
        assert_eq!(cpu_mask("0-3"), Some("0000000f".to_owned()));
        assert_eq!(cpu_mask("0-31,64-65\n"), Some("00000003,00000000,ffffffff".to_owned()));
        assert_eq!(cpu_mask(""), None);
        assert_eq!(cpu_mask("3-1"), None);
        assert_eq!(cpu_mask("0-99999"), None);
    }
}
