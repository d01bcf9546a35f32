use std::collections::BTreeSet;

use crate::{Gpu, Hca, Snapshot};

impl Snapshot {
    /// What the part of a finding is called wherever it is: a GPU's UUID, else its serial number; a device's node
    /// GUID. Empty where the part has no such name or it could not be read.
    pub fn identity(&self, part: &str) -> String {
        if let Ok(index) = part.parse::<u32>() {
            let gpus = self.gpus.data().map_or(&[][..], |gpus| gpus.gpus.as_slice());
            return gpus.iter().find(|gpu| gpu.index == index).and_then(of_gpu).unwrap_or_default();
        }
        // A further port is `mlx5_2:2`.
        let device = part.split(':').next().unwrap_or_default();
        let hcas = self.fabric.data().map_or(&[][..], |fabric| fabric.hcas.as_slice());
        hcas.iter().find(|hca| hca.name == device).and_then(of_hca).unwrap_or_default()
    }

    /// The names of all GPUs and RDMA devices that could be read.
    pub fn identities(&self) -> BTreeSet<String> {
        let gpus = self.gpus.data().map_or(&[][..], |gpus| gpus.gpus.as_slice());
        let hcas = self.fabric.data().map_or(&[][..], |fabric| fabric.hcas.as_slice());
        gpus.iter().filter_map(of_gpu).chain(hcas.iter().filter_map(of_hca)).collect()
    }
}

fn of_gpu(gpu: &Gpu) -> Option<String> {
    gpu.uuid.known().or(gpu.serial.known()).cloned()
}

fn of_hca(hca: &Hca) -> Option<String> {
    // Devices without firmware of their own (rxe, siw) may all say zero.
    hca.node_guid.known().filter(|guid| guid.chars().any(|c| c.is_ascii_hexdigit() && c != '0')).cloned()
}

#[cfg(test)]
mod tests {
    use crate::simulate;

    #[test]
    fn parts_are_known_by_what_stays_with_them() {
        let (profile, faults) = simulate::parse("h100-sxm:gpu-lost@3", &[]).unwrap();
        let (node, sick) = (simulate::simulated(&profile, &[]), simulate::simulated(&profile, &faults));
        assert!(node.identity("3").starts_with("GPU-"), "{}", node.identity("3"));
        assert_eq!(node.identity("mlx5_2:2"), node.identity("mlx5_2"));
        assert!(node.identity("mlx5_2").contains(':'));
        assert_eq!((node.identity(""), node.identity("/home"), node.identity("9")), Default::default());
        assert_eq!(sick.identity("3"), "");
        assert_eq!(node.identities().len(), 8 + node.fabric.data().unwrap().hcas.len());
    }
}
