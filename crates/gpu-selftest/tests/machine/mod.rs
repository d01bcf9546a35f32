//! A machine with a simulated libcuda and libnvidia-ml.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::io::{BufRead as _, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use cuda::Device;
use railgate_model::{GpuProcess, GpuSelfTested, PciAddress, Reading};
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
        let name = || "NVIDIA H200".to_owned();
        let device = |bus| Device { bus, name: name(), capability: 90, free_mib: 40, total_mib: 0 };
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

    /// Starts the program with few products, and leaves it.
    pub(crate) fn start(&self, arguments: &[&str]) -> Child {
        self.install();
        let few = ["--products", "1", "--tiles", "4"];
        let mut command = command(self.dir.path(), &[&few, arguments].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Exit code and lines.
    pub(crate) fn lines(&self, arguments: &[&str]) -> (i32, Vec<GpuSelfTested>) {
        self.install();
        self.more_lines(arguments)
    }

    /// The same with the libraries as they are, which another process may have loaded.
    pub(crate) fn more_lines(&self, arguments: &[&str]) -> (i32, Vec<GpuSelfTested>) {
        let few = ["--products", "1", "--tiles", "4"];
        let output = program(self.dir.path(), &[&few, arguments].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        (output.status.code().unwrap(), lines)
    }
}

fn command(libraries: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_railgate-gpu-selftest"));
    command.args(arguments).env("LD_LIBRARY_PATH", libraries);
    command
}

pub(crate) fn program(libraries: &Path, arguments: &[&str]) -> Output {
    command(libraries, arguments).output().unwrap()
}

/// The first line that a started program prints.
pub(crate) fn first_line(child: &mut Child) -> String {
    line_of(child.stdout.as_mut().unwrap())
}

/// The first line of its standard error.
pub(crate) fn first_progress(child: &mut Child) -> String {
    line_of(child.stderr.as_mut().unwrap())
}

fn line_of(from: impl Read) -> String {
    let mut line = String::new();
    BufReader::new(from).read_line(&mut line).unwrap();
    line
}

/// A process of someone else on a card.
pub(crate) fn other_process(pid: u32) -> GpuProcess {
    GpuProcess {
        pid,
        used_mib: Reading::Known(512),
        name: Reading::Failed("not read".to_owned()),
        uid: Reading::Failed("not read".to_owned()),
        exiting: false,
        slurm_job: Reading::Known(None),
    }
}

pub(crate) fn of<'a>(lines: &'a [GpuSelfTested], gpu: &PciAddress, test: &str) -> &'a GpuSelfTested {
    let mut found = lines.iter().filter(|line| line.gpu == *gpu && line.test == test);
    let one = found.next().unwrap_or_else(|| panic!("{gpu} {test} is not among {lines:?}"));
    assert_eq!(found.next(), None);
    one
}

pub(crate) fn why(line: &GpuSelfTested) -> &str {
    line.unknown.as_deref().unwrap_or_else(|| panic!("{line:?}"))
}
