//! Where the sources are, and whose files count.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use railgate_fleet::{Shared, SharedKind};
use railgate_fsutil::trusted;
use railgate_runner::Config;
use railgate_slurm::{Client, Env, Ledger, hostlist};
use railgate_text::Printable;

/// The sources of one cluster.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) config: Config,
    pub(crate) ledger: Ledger,
    pub(crate) client: Client,
    /// Users whose files count: root, this user, and the owner of the controller's directory, who is SlurmUser.
    pub(crate) trusted: Vec<u32>,
    /// What nodes share, by node.
    pub(crate) shared: BTreeMap<String, Vec<Shared>>,
}

impl Site {
    pub(crate) fn new(config: Config, state: &Path) -> Site {
        let controller = state.join("controller");
        let env: Env = std::env::vars_os().collect();
        let mut users = vec![0, nix::unistd::geteuid().as_raw()];
        // Only root can have made the directory, and chosen its owner.
        if trusted(state).is_ok()
            && let Ok(found) = std::fs::symlink_metadata(&controller)
            && found.is_dir()
        {
            users.push(found.uid());
        }
        users.sort_unstable();
        users.dedup();
        Site {
            ledger: Ledger::new(&controller),
            client: Client::new(&config.slurm, &env),
            trusted: users,
            shared: shared(&config),
            config,
        }
    }

    /// The cluster whose reports are read; `None` if there are no reports yet.
    ///
    /// # Errors
    /// The report directory cannot be listed, or has reports of several clusters.
    pub(crate) fn cluster(&self) -> Result<Option<String>, String> {
        if let Some(cluster) = &self.config.fleet.cluster {
            return Ok(Some(cluster.clone()));
        }
        let Some(dir) = &self.config.report.dir else { return Ok(None) };
        let mut clusters = railgate_store::clusters(dir)?;
        match clusters.len() {
            0 | 1 => Ok(clusters.pop()),
            _ => Err(format!(
                "{}: reports of {} clusters ({}): set `cluster` in [fleet]",
                dir.display(),
                clusters.len(),
                clusters.join(", ")
            )),
        }
    }
}

/// The site's table by node.
fn shared(config: &Config) -> BTreeMap<String, Vec<Shared>> {
    let mut by_node: BTreeMap<String, Vec<Shared>> = BTreeMap::new();
    for (key, table) in config.fleet.shared() {
        let kind = match key {
            "leaf" => SharedKind::Leaf,
            "rack" => SharedKind::Rack,
            "pdu" => SharedKind::Pdu,
            "cooling" => SharedKind::Cooling,
            "file_server" => SharedKind::FileServer,
            _ => SharedKind::Image,
        };
        for (name, nodes) in table {
            // The configuration was checked.
            for node in hostlist::expand(nodes).unwrap_or_default() {
                by_node.entry(node).or_default().push(Shared { kind, name: name.clone() });
            }
        }
    }
    by_node
}

/// Makes the directory of the history if only that is missing: 0700, of this user.
pub(crate) fn make_directory(database: &Path) -> anyhow::Result<()> {
    let Some(dir) = database.parent().filter(|dir| !dir.exists()) else { return Ok(()) };
    let shown = || PathBuf::from(dir);
    DirBuilder::new().mode(0o700).create(dir).with_context(|| Printable(shown().display()).to_string())
}
