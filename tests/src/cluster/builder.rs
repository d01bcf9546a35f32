//! The description of a cluster before it starts.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use super::conf::{SlurmConf, merge};
use super::{CONTROLLER, Cluster};

/// Environment variable with the root directory of the Slurm to test, for all clusters of a test run.
pub const SLURM_ROOT: &str = "RAILGATE_TEST_SLURM_ROOT";

/// A cluster that is not running yet.
#[derive(Clone, Debug)]
pub struct Builder {
    pub(super) nodes: Vec<String>,
    pub(super) cpus: usize,
    pub(super) slurm_root: PathBuf,
    pub(super) conf: SlurmConf,
    pub(super) options: Vec<(String, String)>,
    pub(super) files: Vec<(PathBuf, String, u32)>,
    pub(super) config: toml::Table,
    pub(super) node_config: BTreeMap<String, toml::Table>,
    pub(super) hardware: String,
    pub(super) hardware_of: BTreeMap<String, String>,
    pub(super) railgate: bool,
    pub(super) installed: bool,
    pub(super) programs: Option<PathBuf>,
    pub(super) memory_groups: bool,
    pub(super) keep: bool,
}

impl Builder {
    /// A cluster of `nodes` nodes, named gn1, gn2, … and simulated as `h100-sxm`.
    pub fn new(nodes: usize) -> Self {
        Builder {
            nodes: (1..=nodes).map(|number| format!("gn{number}")).collect(),
            cpus: 128,
            slurm_root: std::env::var_os(SLURM_ROOT).map_or_else(|| PathBuf::from("/"), PathBuf::from),
            conf: SlurmConf::new("test", CONTROLLER),
            options: Vec::new(),
            files: Vec::new(),
            config: toml::Table::new(),
            node_config: BTreeMap::new(),
            hardware: "h100-sxm".to_owned(),
            hardware_of: BTreeMap::new(),
            railgate: true,
            installed: true,
            programs: None,
            memory_groups: false,
            keep: false,
        }
    }

    /// Replaces the names gn1, gn2, …; one name for each node.
    pub fn named(mut self, names: &[&str]) -> Self {
        self.nodes = names.iter().map(|&name| name.to_owned()).collect();
        self
    }

    /// Sets a key of slurm.conf, replacing its default.
    pub fn slurm_conf(mut self, key: &str, value: &str) -> Self {
        self.options.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Root directory of the Slurm to run, made with debootstrap. Default: [`SLURM_ROOT`], or `/`.
    pub fn slurm_root(mut self, root: impl Into<PathBuf>) -> Self {
        self.slurm_root = root.into();
        self
    }

    /// Puts a file on every machine. A text that begins with `#!` becomes executable.
    pub fn file(mut self, path: impl Into<PathBuf>, text: &str) -> Self {
        let mode = if text.starts_with("#!") { 0o755 } else { 0o644 };
        self.files.push((path.into(), text.to_owned(), mode));
        self
    }

    /// Merges TOML into the railgate.toml of every machine.
    ///
    /// # Errors
    /// `text` is not valid TOML.
    pub fn config(mut self, text: &str) -> Result<Self> {
        merge(&mut self.config, toml::from_str(text).context("the test's configuration")?);
        Ok(self)
    }

    /// Merges TOML into the railgate.toml of one machine (`ctl` is the controller).
    ///
    /// # Errors
    /// `text` is not valid TOML.
    pub fn config_of(mut self, machine: &str, text: &str) -> Result<Self> {
        let table = toml::from_str(text).context("the test's configuration")?;
        merge(self.node_config.entry(machine.to_owned()).or_default(), table);
        Ok(self)
    }

    /// Sets the simulated hardware of every node: a profile and the faults present from the start, for example
    /// `h100-sxm:gpu-lost@3,ib-port-down`. Default: `h100-sxm`.
    pub fn hardware(mut self, machine: &str) -> Self {
        machine.clone_into(&mut self.hardware);
        self
    }

    /// Sets the simulated hardware of one node.
    pub fn hardware_of(mut self, node: &str, machine: &str) -> Self {
        self.hardware_of.insert(node.to_owned(), machine.to_owned());
        self
    }

    /// Directory of railgate's programs, for example `target/release`. Default: the directory of the running program.
    pub fn programs(mut self, dir: impl Into<PathBuf>) -> Self {
        self.programs = Some(dir.into());
        self
    }

    /// Gives the machines their hardware and configuration but leaves railgate to be installed by the test: its files and its
    /// lines of slurm.conf and plugstack.conf are missing.
    pub fn bare(mut self) -> Self {
        self.installed = false;
        self.conf.keep_plain();
        self
    }

    /// Uses real memory control groups, which hold jobs to the memory they requested. [`super::memory_groups`] returns whether
    /// this machine supports them.
    pub fn memory_groups(mut self) -> Self {
        self.memory_groups = true;
        self.slurm_conf("TaskPlugin", "task/cgroup")
            .slurm_conf("SelectTypeParameters", "CR_Core_Memory")
            .slurm_conf("DefMemPerNode", "60")
    }

    /// Runs Slurm without railgate.
    pub fn plain(mut self) -> Self {
        self.railgate = false;
        self
    }

    /// Keeps the cluster running after this process ends.
    pub fn keep(mut self) -> Self {
        self.keep = true;
        self
    }

    /// Starts the cluster and waits until every node is idle.
    ///
    /// # Errors
    /// The user is not root, a program is missing, or a daemon did not start; the message contains its log.
    pub fn start(self) -> Result<Cluster> {
        Cluster::start(self)
    }

    /// Starts the cluster, runs `test` on it, and keeps the logs if the test fails.
    ///
    /// # Errors
    /// The cluster did not start, or the error that `test` returned.
    pub fn test(self, test: impl FnOnce(&Cluster) -> Result<()>) -> Result<()> {
        let cluster = self.start()?;
        let result = catch_unwind(AssertUnwindSafe(|| test(&cluster)));
        if !matches!(result, Ok(Ok(()))) {
            // First, for a reader who has only the start of the output; the test harness prints it again at the end.
            if let Ok(Err(error)) = &result {
                eprintln!("--- error\n{error:#}");
            }
            eprintln!("{}", cluster.describe());
            let name = std::thread::current().name().unwrap_or("cluster").replace("::", "-");
            let place = std::env::temp_dir().join(format!("railgate-{name}-{}", std::process::id()));
            match cluster.save_logs(&place) {
                Ok(()) => eprintln!("logs: {}", place.display()),
                Err(error) => eprintln!("logs could not be saved: {error:#}"),
            }
        }
        match result {
            Ok(result) => result,
            Err(panic) => resume_unwind(panic),
        }
    }
}
