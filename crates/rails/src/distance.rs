use railgate_model::{Distance, PciAddress, PciDevice, Reading, Snapshot};

/// A function of the PCI tree by its address, if the tree was read and has it.
pub(crate) fn device(snapshot: &Snapshot, address: Option<&PciAddress>) -> Option<PciDevice> {
    let address = address?;
    let devices = &snapshot.pci.data()?.devices;
    devices.iter().find(|device| device.address == *address).cloned()
}

/// How far two functions are from each other, as NCCL counts it.
///
/// A switch shows itself as an upstream bridge with one downstream bridge for each slot, so two devices of
/// one switch have all bridges in common but their own last one. Without a common bridge the way leads
/// through the CPU: one NUMA node is a host bridge (PHB), two are not (SYS).
pub(crate) fn between(a: &PciDevice, b: &PciDevice) -> Distance {
    let common = a.bridges.iter().zip(&b.bridges).take_while(|(left, right)| left == right).count();
    if a.root == b.root && common > 0 {
        let own = (a.bridges.len() - common).max(b.bridges.len() - common);
        return if own <= 1 { Distance::Pix } else { Distance::Pxb };
    }
    match (&a.numa_node, &b.numa_node) {
        (Reading::Known(left), Reading::Known(right)) if left == right => Distance::Phb,
        (Reading::Known(_), Reading::Known(_)) => Distance::Sys,
        // A machine that does not tell NUMA nodes apart has one as far as anybody can see.
        _ if a.root == b.root => Distance::Phb,
        _ => Distance::Sys,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(address: &str, numa: Reading<u32>, root: &str, bridges: &[&str]) -> PciDevice {
        PciDevice {
            address: address.parse().unwrap(),
            vendor: 0,
            device: 0,
            class: 0,
            numa_node: numa,
            bridges: bridges.iter().map(|bridge| bridge.parse().unwrap()).collect(),
            root: root.to_owned(),
            link: Reading::Unsupported,
            acs: Reading::Unsupported,
        }
    }

    #[test]
    fn distances_follow_bridges_then_numa() {
        let known = Reading::Known;
        let gpu = device("0:1b:00.0", known(0), "pci0000:15", &["0:15:01.0", "0:16:00.0", "0:17:00.0"]);
        let near = device("0:18:00.0", known(0), "pci0000:15", &["0:15:01.0", "0:16:00.0", "0:17:01.0"]);
        let two_switches = device(
            "0:1e:00.0",
            known(0),
            "pci0000:15",
            &["0:15:01.0", "0:16:00.0", "0:17:02.0", "0:1c:00.0", "0:1d:00.0"],
        );
        let same_socket = device("0:29:00.0", known(0), "pci0000:28", &["0:28:01.0"]);
        let other_socket = device("0:99:00.0", known(1), "pci0000:98", &["0:98:01.0"]);
        assert_eq!(between(&gpu, &near), Distance::Pix);
        assert_eq!(between(&gpu, &two_switches), Distance::Pxb);
        assert_eq!(between(&gpu, &same_socket), Distance::Phb);
        assert_eq!(between(&gpu, &other_socket), Distance::Sys);
        for (a, b) in [(&gpu, &near), (&gpu, &two_switches), (&gpu, &other_socket)] {
            assert_eq!(between(a, b), between(b, a));
        }
    }

    #[test]
    fn a_flat_machine_without_numa_is_one_host_bridge() {
        let a = device("0:05:00.0", Reading::Unsupported, "pci0000:00", &[]);
        let b = device("0:06:00.0", Reading::Unsupported, "pci0000:00", &[]);
        let far = device("0:06:00.0", Reading::Unsupported, "pci0001:00", &[]);
        assert_eq!(between(&a, &b), Distance::Phb);
        assert_eq!(between(&a, &far), Distance::Sys);
    }
}
