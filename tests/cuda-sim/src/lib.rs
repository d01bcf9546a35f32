//! A libcuda.so.1 without hardware, and a cuBLASLt, for `railgate-gpu-selftest`.
//!
//! The shared library reads a [`Scenario`] from `cuda-scenario.json` in the folder of its own file. Memory is memory of the process, and
//! kernels are functions of this library with the names of those in `crates/gpu-selftest/kernels/selftest.cu`: what the PTX
//! itself computes only a card can show.

mod cublaslt;
mod exports;
mod kernels;
mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

const FILE: &str = "cuda-scenario.json";

/// The cards, and what is wrong with them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    /// In the driver's order.
    pub devices: Vec<Device>,
    /// These symbols never return.
    pub hang: BTreeSet<String>,
    /// These return an error, by its number in the driver's header.
    pub fail: BTreeMap<String, u32>,
    /// Kernels that leave wrong bits in their result.
    pub wrong: Vec<Wrong>,
    /// Whether cuBLASLt is installed.
    pub cublaslt: bool,
}

/// A card.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Bus number on the PCI bus; the domain and the slot are 0.
    pub bus: i32,
    /// For example `NVIDIA H200`.
    pub name: String,
    /// Compute capability, 90 for 9.0.
    pub capability: i32,
    /// Free memory, MiB.
    pub free_mib: usize,
    /// All memory, MiB, if another process holds a part; 0: all is free.
    #[serde(default)]
    pub total_mib: usize,
}

/// A kernel that flips a bit of a word of 4 bytes of its result.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wrong {
    /// Position of the card.
    pub device: usize,
    /// For example `gemm_bf16`, or `cuMemcpyDtoDAsync`.
    pub kernel: String,
    /// Word of the result.
    pub word: usize,
    /// Bit of it.
    pub bit: u32,
}

impl Scenario {
    /// Writes the file for a library in `dir`.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        std::fs::write(dir.join(FILE), serde_json::to_vec(self)?)
    }

    /// Puts a copy of the library and this scenario into a folder, as `libcuda.so.1`, and cuBLASLt beside it.
    ///
    /// # Errors
    /// The library is not built, or the folder cannot be written.
    pub fn install(&self, dir: &Path) -> io::Result<()> {
        let program = std::env::current_exe()?;
        let places = program.ancestors().skip(1).take(3).flat_map(|dir| [dir.to_owned(), dir.join("deps")]);
        let built = places.map(|dir| dir.join("libcuda.so")).find(|path| path.is_file());
        let built =
            built.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "libcuda.so is not built"))?;
        std::fs::copy(built, dir.join("libcuda.so.1"))?;
        let cublaslt = dir.join("libcublasLt.so.13");
        if self.cublaslt && !cublaslt.exists() {
            // The loader takes both names for one library, which therefore knows the memory of the driver.
            std::os::unix::fs::symlink("libcuda.so.1", cublaslt)?;
        }
        self.write(dir)
    }

    fn read(dir: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&std::fs::read(dir.join(FILE))?)?)
    }
}
