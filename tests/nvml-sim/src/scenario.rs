use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use railgate_model::{Gpu, Gpus};
use serde::{Deserialize, Serialize};

/// The scenario's file name, beside the library.
pub const SCENARIO_FILE: &str = "nvml-scenario.json";

/// What the simulated driver says. A GPU's values are answered as they stand: a known one with success,
/// an unsupported one with "not supported", a failed one with "unknown error"; a lost GPU has no handle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Driver version, `580.159.04`.
    pub driver: String,
    /// NVML version, `13.580.159.04`.
    pub nvml: String,
    /// As in a snapshot, by index.
    pub gpus: Vec<Gpu>,
    /// How the library behaves.
    #[serde(default)]
    pub behaviour: Behaviour,
    /// What GPM says of every GPU, by metric; where it is empty the GPUs have no GPM.
    #[serde(default)]
    pub gpm: BTreeMap<u32, f64>,
}

/// Misbehaviour. Symbols by their full name; `*` means every symbol that has no entry of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Behaviour {
    /// These never come back (asleep; SIGKILL helps).
    pub hang: BTreeSet<String>,
    /// These first write one byte to a file. On a frozen file system (`fsfreeze`) that hangs in the kernel,
    /// where SIGKILL does not help.
    pub write_to: BTreeMap<String, PathBuf>,
    /// These take so long, milliseconds.
    pub delay_ms: BTreeMap<String, u64>,
    /// This GPU (by index) is lost after so many calls in one process.
    pub lost_after_calls: BTreeMap<u32, u64>,
    /// These answer "not supported".
    pub not_supported: BTreeSet<String>,
    /// These answer with this code.
    #[serde(rename = "return")]
    pub returns: BTreeMap<String, u32>,
}

impl Scenario {
    /// A driver that says what the snapshot says.
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

    /// Reads the scenario of a folder.
    ///
    /// # Errors
    /// The file is missing or is not a scenario.
    pub fn read(dir: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&fs::read(dir.join(SCENARIO_FILE))?)?)
    }

    /// Writes the scenario into a folder, in one step: a library that is loaded sees the old or the new one.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        let next = dir.join(format!("{SCENARIO_FILE}.next"));
        fs::write(&next, serde_json::to_vec_pretty(self)?)?;
        fs::rename(&next, dir.join(SCENARIO_FILE))
    }
}
