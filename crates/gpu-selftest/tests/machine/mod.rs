//! A machine with a simulated libcuda and libnvidia-ml.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::path::Path;
use std::process::{Command, Output};

use cuda::Device;
use railgate_model::{GpuSelfTested, PciAddress, Reading};
use tempfile::TempDir;

/// Two cards, whose addresses no other test uses, because one test of a card excludes another.
pub(crate) struct Machine {
    pub(crate) dir: TempDir,
    pub(crate) cuda: cuda::Scenario,
    pub(crate) nvml: nvidia_ml::Scenario,
    pub(crate) addresses: Vec<PciAddress>,
}

impl Machine {
    pub(crate) fn new(first_bus: i32) -> Self {
        let profile = railgate_profiles::load("h200-sxm", &[]).unwrap();
        let mut gpus = railgate_simulate::simulated(&profile, &[]).gpus.data().unwrap().clone();
        gpus.gpus.truncate(2);
        gpus.count = Reading::Known(2);
        let buses = [first_bus, first_bus + 1];
        let addresses: Vec<PciAddress> =
            buses.iter().map(|bus| format!("0000:{bus:02x}:00.0").parse().unwrap()).collect();
        for (gpu, address) in gpus.gpus.iter_mut().zip(&addresses) {
            gpu.pci = Reading::Known(*address);
            gpu.processes = Reading::Known(Vec::new());
        }
        let device = |bus| Device { bus, name: "NVIDIA H200".to_owned(), capability: 90, free_mib: 40 };
        Machine {
            dir: tempfile::tempdir().unwrap(),
            cuda: cuda::Scenario { devices: buses.map(device).to_vec(), ..cuda::Scenario::default() },
            nvml: nvidia_ml::Scenario::of(&gpus),
            addresses,
        }
    }

    /// Writes the simulated libraries.
    pub(crate) fn install(&self) {
        self.cuda.install(self.dir.path()).unwrap();
        nvidia_ml::install(self.dir.path(), &self.nvml).unwrap();
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.install();
        program(self.dir.path(), arguments)
    }

    /// Exit code and lines.
    pub(crate) fn lines(&self, arguments: &[&str]) -> (i32, Vec<GpuSelfTested>) {
        let output = self.run(&[&["--products", "1", "--tiles", "4"], arguments].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        (output.status.code().unwrap(), lines)
    }
}

pub(crate) fn program(libraries: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_railgate-gpu-selftest"))
        .args(arguments)
        .env("LD_LIBRARY_PATH", libraries)
        .output()
        .unwrap()
}
