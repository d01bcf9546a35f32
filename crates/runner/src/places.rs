use std::path::PathBuf;

/// Where railgate keeps things. Fixed but for tests: what root trusts is not configurable.
#[derive(Clone, Debug)]
pub struct Places {
    /// `/etc/railgate`
    pub etc: PathBuf,
    /// `/run/railgate`: gone with the boot.
    pub run: PathBuf,
    /// `/var/lib/railgate`: history of this node, or of the cluster on the controller.
    pub state: PathBuf,
    /// `/usr/share/railgate`
    pub share: PathBuf,
}

impl Default for Places {
    fn default() -> Self {
        Places {
            etc: PathBuf::from("/etc/railgate"),
            run: PathBuf::from("/run/railgate"),
            state: PathBuf::from("/var/lib/railgate"),
            share: PathBuf::from("/usr/share/railgate"),
        }
    }
}

impl Places {
    /// The site's file.
    pub fn config(&self) -> PathBuf {
        self.etc.join("railgate.toml")
    }

    /// Directories of machine profiles, the site's own last: it lies on top.
    pub fn profiles(&self) -> [PathBuf; 2] {
        [self.share.join("profiles"), self.etc.join("profiles")]
    }
}
