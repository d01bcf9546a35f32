//! Paths of topology files that railgate did not write: that of the site, or the one that a hypervisor's daemon leaves
//! at NCCL's default path.

use std::path::{Path, PathBuf};

use crate::config::RailsConfig;

/// NCCL's default path if `NCCL_TOPO_FILE` is not set.
const WHERE_NCCL_LOOKS: &str = "/var/run/nvidia-topologyd/virtualTopology.xml";

impl RailsConfig {
    /// Returns the topology file that tasks use here unless one is written for the job: `[rails] set.NCCL_TOPO_FILE`,
    /// otherwise NCCL's default path.
    pub fn topology_file_of_others(&self) -> PathBuf {
        self.site_topology_file().unwrap_or(Path::new(WHERE_NCCL_LOOKS)).to_owned()
    }

    /// Returns the site's topology file, `[rails] set.NCCL_TOPO_FILE`, if railgate sets the environment.
    pub fn site_topology_file(&self) -> Option<&Path> {
        self.set.get("NCCL_TOPO_FILE").filter(|_| self.environment).map(Path::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(path: &str) -> RailsConfig {
        RailsConfig {
            set: [("NCCL_TOPO_FILE".to_owned(), path.to_owned())].into_iter().collect(),
            ..RailsConfig::default()
        }
    }

    #[test]
    fn the_sites_file_takes_precedence_over_the_default_path() {
        let own = config("/etc/nccl/topo.xml");
        assert_eq!(own.topology_file_of_others(), Path::new("/etc/nccl/topo.xml"));
        assert_eq!(RailsConfig::default().topology_file_of_others(), Path::new(WHERE_NCCL_LOOKS));
        let off = RailsConfig { environment: false, ..own };
        assert_eq!(off.topology_file_of_others(), Path::new(WHERE_NCCL_LOOKS));
    }
}
