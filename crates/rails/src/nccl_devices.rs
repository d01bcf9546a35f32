//! How NCCL identifies the devices of a machine in a topology file. [`crate::topology()`] writes such files, and
//! `railgate-topology-check` compares them with the machine.

use railgate_model::{Distance, Hca, LinkLayer, PciAddress, Port, RailGpu, RailMap, Reading};

use crate::map::BY_PROFILE;

/// Returns whether the GPU is under the same switch as the HCA of its rail, according to the PCI tree or, if that is
/// hidden, the profile. With fewer HCAs than GPUs, a GPU of another socket can also have the rail without being under
/// its switch.
pub fn belong_together(map: &RailMap, gpu: &RailGpu) -> bool {
    map.method == BY_PROFILE || gpu.distance.is_some_and(|distance| distance <= Distance::Pxb)
}

/// Returns the address with device and function set to zero, as NCCL uses it for HCAs: ports and virtual functions
/// merge.
pub fn as_nccl_finds_it(address: &PciAddress) -> PciAddress {
    PciAddress { device: 0, function: 0, ..*address }
}

/// Returns the bus id by which NCCL identifies an HCA. NCCL's own transport supports InfiniBand and RoCE. Devices with
/// another link layer (EFA) come from a network plugin, and aws-ofi-nccl passes their addresses unchanged.
pub fn busid_of(hca: &Hca) -> Option<PciAddress> {
    let address = hca.pci.known()?;
    let foreign = |port: &Port| matches!(port.link_layer, Reading::Known(LinkLayer::Other(_)));
    let plugin = !hca.ports.is_empty() && hca.ports.iter().all(foreign);
    Some(if plugin { *address } else { as_nccl_finds_it(address) })
}

/// Returns the number of elements that NCCL adds to a file: for each GPU the element itself and up to eight NVLink
/// ends, for each HCA two.
pub fn room_wanted(gpus: usize, hcas: usize) -> usize {
    9 * gpus + 2 * hcas
}

/// Converts a list of CPUs such as `0-31,64-95` to the format of the kernel's `cpumap`: groups of 32 bits, most
/// significant first. Returns `None` if the text is not a list, has no CPU, or is too long for an attribute of NCCL's
/// parser.
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
    fn cpu_masks_have_the_format_of_the_kernel() {
        assert_eq!(cpu_mask("0-3"), Some("0000000f".to_owned()));
        assert_eq!(cpu_mask("0-31,64-65\n"), Some("00000003,00000000,ffffffff".to_owned()));
        assert_eq!(cpu_mask(""), None);
        assert_eq!(cpu_mask("3-1"), None);
        assert_eq!(cpu_mask("0-99999"), None);
    }
}
