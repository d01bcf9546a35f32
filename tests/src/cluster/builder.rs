//! What a cluster is to be, before it is started.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use super::conf::{SlurmConf, merge};
use super::{CONTROLLER, Cluster};

/// The environment variable that says where Slurm is installed, for all clusters of a test run.
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
    /// As many nodes, called gn1, gn2, …
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

    /// Other names than gn1, gn2, …, as many as there are nodes.
    pub fn named(mut self, names: &[&str]) -> Self {
        self.nodes = names.iter().map(|&name| name.to_owned()).collect();
        self
    }

    /// Sets a line of slurm.conf.
    pub fn slurm_conf(mut self, key: &str, value: &str) -> Self {
        self.options.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Where Slurm is installed: a directory that debootstrap made. Otherwise [`SLURM_ROOT`], or `/`.
    pub fn slurm_root(mut self, root: impl Into<PathBuf>) -> Self {
        self.slurm_root = root.into();
        self
    }

    /// Puts a file on every machine; a text that begins with `#!` is executable.
    pub fn file(mut self, path: impl Into<PathBuf>, text: &str) -> Self {
        let mode = if text.starts_with("#!") { 0o755 } else { 0o644 };
        self.files.push((path.into(), text.to_owned(), mode));
        self
    }

    /// Lays TOML over the railgate.toml of every node.
    ///
    /// # Errors
    /// It is not TOML.
    pub fn config(mut self, text: &str) -> Result<Self> {
        merge(&mut self.config, toml::from_str(text).context("the test's configuration")?);
        Ok(self)
    }

    /// Lays TOML over the railgate.toml of one machine (`ctl` is the controller).
    ///
    /// # Errors
    /// It is not TOML.
    pub fn config_of(mut self, machine: &str, text: &str) -> Result<Self> {
        let table = toml::from_str(text).context("the test's configuration")?;
        merge(self.node_config.entry(machine.to_owned()).or_default(), table);
        Ok(self)
    }

    /// Every node's machine: a profile, and faults from the beginning (`h100-sxm:gpu-lost@3,ib-port-down`).
    /// `h100-sxm` when nothing is said.
    pub fn hardware(mut self, machine: &str) -> Self {
        machine.clone_into(&mut self.hardware);
        self
    }

    /// One node's machine.
    pub fn hardware_of(mut self, node: &str, machine: &str) -> Self {
        self.hardware_of.insert(node.to_owned(), machine.to_owned());
        self
    }

    /// Where railgate's programs are, when not beside this one: `target/release`.
    pub fn programs(mut self, dir: impl Into<PathBuf>) -> Self {
        self.programs = Some(dir.into());
        self
    }

    /// Machines with their hardware and configuration, on which railgate is still to be installed: neither its files nor
    /// what it wants in slurm.conf and plugstack.conf are there.
    pub fn bare(mut self) -> Self {
        self.installed = false;
        self.conf.keep_plain();
        self
    }

    /// Real control groups that hold jobs to the memory that they asked for; [`super::memory_groups`] says whether this
    /// machine has them.
    pub fn memory_groups(mut self) -> Self {
        self.memory_groups = true;
        self.slurm_conf("TaskPlugin", "task/cgroup")
            .slurm_conf("SelectTypeParameters", "CR_Core_Memory")
            .slurm_conf("DefMemPerNode", "60")
    }

    /// Slurm without railgate.
    pub fn plain(mut self) -> Self {
        self.railgate = false;
        self
    }

    /// Lets the cluster outlive this process.
    pub fn keep(mut self) -> Self {
        self.keep = true;
        self
    }

    /// Starts it, and waits until every node is idle.
    ///
    /// # Errors
    /// This is not root, a program is missing, or a daemon did not come up; the text has its log.
    pub fn start(self) -> Result<Cluster> {
        Cluster::start(self)
    }

    /// Runs a test: starts the cluster, and keeps its logs if the test fails.
    ///
    /// # Errors
    /// The test's own, or the cluster did not start.
    pub fn test(self, test: impl FnOnce(&Cluster) -> Result<()>) -> Result<()> {
        let cluster = self.start()?;
        let result = catch_unwind(AssertUnwindSafe(|| test(&cluster)));
        if !matches!(result, Ok(Ok(()))) {
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
