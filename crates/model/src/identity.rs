use std::collections::BTreeSet;

use crate::{Gpu, Hca, Snapshot};

impl Snapshot {
    /// Returns a name of a finding's part that stays with the hardware: the UUID of a GPU, otherwise its serial number,
    /// or the node GUID of an RDMA device. Empty if the part has no such name or it could not be read.
    pub fn identity(&self, part: &str) -> String {
        if let Ok(index) = part.parse::<u32>() {
            let gpus = self.gpus.data().map_or(&[][..], |gpus| gpus.gpus.as_slice());
            return gpus.iter().find(|gpu| gpu.index == index).and_then(of_gpu).unwrap_or_default();
        }
        // Further ports of a device are written as `mlx5_2:2`.
        let device = part.split(':').next().unwrap_or_default();
        let hcas = self.fabric.data().map_or(&[][..], |fabric| fabric.hcas.as_slice());
        hcas.iter().find(|hca| hca.name == device).and_then(of_hca).unwrap_or_default()
    }

    /// Returns these names of all GPUs and RDMA devices that could be read.
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
    // Software devices (rxe, siw) can all have a GUID of zeros.
    hca.node_guid.known().filter(|guid| guid.chars().any(|c| c.is_ascii_hexdigit() && c != '0')).cloned()
}
