//! How far two PCI functions are from each other, as NCCL counts it: one answer for the gate and for the rail map.

use crate::{Distance, PciDevice, Reading};

impl Distance {
    /// The distance that the PCI tree tells; `None` if the functions have no bridge in common and the NUMA node of one could
    /// not be read.
    ///
    /// A switch has an upstream bridge and one downstream bridge for each slot, so two devices of one switch share all
    /// bridges but the last of each. Without a common bridge the path leads through the CPU: within one NUMA node through
    /// a host bridge (PHB), otherwise between sockets (SYS). A machine without NUMA nodes (the kernel's -1) is one node as
    /// far as one root complex reaches.
    pub fn between(a: &PciDevice, b: &PciDevice) -> Option<Distance> {
        let common = a.bridges.iter().zip(&b.bridges).take_while(|(left, right)| left == right).count();
        if a.root == b.root && common > 0 {
            let own = (a.bridges.len() - common).max(b.bridges.len() - common);
            return Some(if own <= 1 { Distance::Pix } else { Distance::Pxb });
        }
        match (&a.numa_node, &b.numa_node) {
            (Reading::Failed(_), _) | (_, Reading::Failed(_)) => None,
            (Reading::Known(left), Reading::Known(right)) if left == right => Some(Distance::Phb),
            (Reading::Known(_), Reading::Known(_)) => Some(Distance::Sys),
            _ => Some(Self::by_root(a, b)),
        }
    }

    /// As [`Distance::between`], and by the root complex where the tree does not tell: for the rail map, which needs an order
    /// of ports on every machine. Never for a verdict.
    pub fn assumed(a: &PciDevice, b: &PciDevice) -> Distance {
        Self::between(a, b).unwrap_or_else(|| Self::by_root(a, b))
    }

    fn by_root(a: &PciDevice, b: &PciDevice) -> Distance {
        if a.root == b.root { Distance::Phb } else { Distance::Sys }
    }

    /// Below one root port: the path does not lead through the CPU.
    pub fn is_below_one_port(self) -> bool {
        self <= Distance::Pxb
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reading;

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
        assert_eq!(Distance::assumed(&gpu, &near), Distance::Pix);
        assert_eq!(Distance::assumed(&gpu, &two_switches), Distance::Pxb);
        assert_eq!(Distance::assumed(&gpu, &same_socket), Distance::Phb);
        assert_eq!(Distance::assumed(&gpu, &other_socket), Distance::Sys);
        for (a, b) in [(&gpu, &near), (&gpu, &two_switches), (&gpu, &other_socket)] {
            assert_eq!(Distance::assumed(a, b), Distance::assumed(b, a));
        }
    }

    #[test]
    fn a_numa_node_that_could_not_be_read_leaves_the_distance_unknown() {
        let failed = || Reading::Failed("gone".to_owned());
        let a = device("0:05:00.0", failed(), "pci0000:00", &[]);
        let b = device("0:06:00.0", Reading::Known(0), "pci0000:00", &[]);
        assert_eq!(Distance::between(&a, &b), None);
        assert_eq!(Distance::assumed(&a, &b), Distance::Phb);
        // A common bridge tells it without NUMA nodes.
        let a = device("0:05:00.0", failed(), "pci0000:00", &["0:01:00.0"]);
        let b = device("0:06:00.0", failed(), "pci0000:00", &["0:01:00.0"]);
        assert_eq!(Distance::between(&a, &b), Some(Distance::Pix));
    }

    #[test]
    fn a_flat_machine_without_numa_is_one_host_bridge() {
        let a = device("0:05:00.0", Reading::Unsupported, "pci0000:00", &[]);
        let b = device("0:06:00.0", Reading::Unsupported, "pci0000:00", &[]);
        let far = device("0:06:00.0", Reading::Unsupported, "pci0001:00", &[]);
        assert_eq!(Distance::assumed(&a, &b), Distance::Phb);
        assert_eq!(Distance::assumed(&a, &far), Distance::Sys);
    }
}
