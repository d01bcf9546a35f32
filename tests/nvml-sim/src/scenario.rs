use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use railgate_model::{Gpu, Gpus};
use serde::{Deserialize, Serialize};

/// Name of the scenario's file, beside the library.
pub const SCENARIO_FILE: &str = "nvml-scenario.json";

/// Answers of the simulated driver. A known reading returns success with the value, an unsupported one "not supported", a failed
/// one "unknown error"; a lost GPU has no handle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Driver version, for example `580.159.04`.
    pub driver: String,
    /// NVML version, for example `13.580.159.04`.
    pub nvml: String,
    /// The GPUs by index, as in a snapshot.
    pub gpus: Vec<Gpu>,
    /// Faults of the library itself.
    #[serde(default)]
    pub behaviour: Behaviour,
    /// GPM metrics of every GPU, by metric ID. If empty, the GPUs do not support GPM.
    #[serde(default)]
    pub gpm: BTreeMap<u32, f64>,
}

/// Faults of the library. Symbols are given by their full name; `*` applies to all symbols without an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Behaviour {
    /// These symbols never return (they sleep, and SIGKILL ends them).
    pub hang: BTreeSet<String>,
    /// Calls about the GPUs with these indices never return.
    pub hang_gpus: BTreeSet<u32>,
    /// These first write one byte to a file. On a frozen file system (`fsfreeze`) the write hangs in the kernel and ignores
    /// SIGKILL.
    pub write_to: BTreeMap<String, PathBuf>,
    /// Delay of these symbols in milliseconds.
    pub delay_ms: BTreeMap<String, u64>,
    /// The GPU with this index is lost after this number of calls in a process.
    pub lost_after_calls: BTreeMap<u32, u64>,
    /// The per-link error counters of the GPU with this index grow by this number from one reading of a process to the next.
    pub nvlink_errors_grow: BTreeMap<u32, u64>,
    /// These return "not supported".
    pub not_supported: BTreeSet<String>,
    /// These return the given code.
    #[serde(rename = "return")]
    pub returns: BTreeMap<String, u32>,
}

impl Scenario {
    /// A driver that returns the snapshot's values.
    pub fn of(gpus: &Gpus) -> Self {
        let known = |text: Option<&String>| text.cloned().unwrap_or_else(|| "580.159.04".to_owned());
        Scenario {
            driver: known(gpus.driver.known()),
            nvml: known(gpus.nvml.known()),
            gpus: gpus.gpus.clone(),
            behaviour: Behaviour::default(),
            gpm: BTreeMap::new(),
        }
    }

    /// Reads the scenario from a folder.
    ///
    /// # Errors
    /// The file is missing or invalid.
    pub fn read(dir: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&fs::read(dir.join(SCENARIO_FILE))?)?)
    }

    /// Writes the scenario into a folder atomically: a loaded library reads either the old or the new one.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        let next = dir.join(format!("{SCENARIO_FILE}.next"));
        fs::write(&next, serde_json::to_vec_pretty(self)?)?;
        fs::rename(&next, dir.join(SCENARIO_FILE))
    }
}
