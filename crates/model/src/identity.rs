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
