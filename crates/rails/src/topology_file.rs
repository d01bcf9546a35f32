//! Where a topology file that railgate did not write is: the site's own, or the one that a hypervisor's daemon leaves
//! where NCCL reads by default.

use std::path::{Path, PathBuf};

use crate::config::RailsConfig;

/// NCCL reads it where `NCCL_TOPO_FILE` is not set.
const WHERE_NCCL_LOOKS: &str = "/var/run/nvidia-topologyd/virtualTopology.xml";

impl RailsConfig {
    /// The topology file that tasks get here, as far as it is not made for the job: `[rails] set.NCCL_TOPO_FILE`,
    /// else the one that NCCL finds by itself.
    pub fn topology_file_of_others(&self) -> PathBuf {
        self.site_topology_file().unwrap_or(Path::new(WHERE_NCCL_LOOKS)).to_owned()
    }

    /// The site's own topology file: `[rails] set.NCCL_TOPO_FILE`, where railgate sets the environment.
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
    fn the_sites_own_file_is_the_one_that_tasks_get() {
        let own = config("/etc/nccl/topo.xml");
        assert_eq!(own.topology_file_of_others(), Path::new("/etc/nccl/topo.xml"));
        assert_eq!(RailsConfig::default().topology_file_of_others(), Path::new(WHERE_NCCL_LOOKS));
        let off = RailsConfig { environment: false, ..own };
        assert_eq!(off.topology_file_of_others(), Path::new(WHERE_NCCL_LOOKS));
    }
}
