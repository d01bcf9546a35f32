use std::path::PathBuf;

/// Directories of railgate. Fixed except in tests: paths that root trusts are not configurable.
#[derive(Clone, Debug)]
pub struct Places {
    /// `/etc/railgate`
    pub etc: PathBuf,
    /// `/run/railgate`: removed at boot.
    pub run: PathBuf,
    /// `/var/lib/railgate`: history of this node or, on the controller, of the cluster.
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
    /// The site's configuration file.
    pub fn config(&self) -> PathBuf {
        self.etc.join("railgate.toml")
    }

    /// Directories of machine profiles; the site's own comes last and takes precedence.
    pub fn profiles(&self) -> [PathBuf; 2] {
        [self.share.join("profiles"), self.etc.join("profiles")]
    }
}
