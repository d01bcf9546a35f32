use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// `[source]`: where the machine is read from. A test node points it at simulated hardware. The environment cannot
/// override it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SourceConfig {
    /// NVML: a library name for the dynamic loader, or an absolute path.
    pub nvml_library: PathBuf,
    /// Root of the sysfs tree.
    pub sysfs: PathBuf,
    /// Root of the proc tree.
    pub proc: PathBuf,
    /// Kernel log: the device, or a file in its format with one record per line.
    pub kmsg: PathBuf,
    /// This is a test node: act and save state although the roots are not those of the system.
    pub test_node: bool,
}

impl Default for SourceConfig {
    fn default() -> Self {
        SourceConfig {
            nvml_library: PathBuf::from("libnvidia-ml.so.1"),
            sysfs: PathBuf::from("/sys"),
            proc: PathBuf::from("/proc"),
            kmsg: PathBuf::from("/dev/kmsg"),
            test_node: false,
        }
    }
}

impl SourceConfig {
    /// Returns whether all sources are those of the system: the trees, the log, and NVML by name or in a directory
    /// where drivers are installed.
    pub fn is_system(&self) -> bool {
        const DRIVER_PLACES: [&str; 5] = ["/usr", "/lib", "/lib64", "/opt", "/run/nvidia"];
        let system = SourceConfig::default();
        let library = &self.nvml_library;
        let installed = DRIVER_PLACES.iter().any(|place| library.starts_with(place))
            && library.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libnvidia-ml.so"));
        self.sysfs == system.sysfs
            && self.proc == system.proc
            && self.kmsg == system.kmsg
            && (*library == system.nvml_library || installed)
    }

    /// Returns whether the readings describe this node, so that the gate may act on them and save state.
    pub fn speaks_for_the_node(&self) -> bool {
        self.is_system() || self.test_node
    }

    /// Returns the problems of the values, one line each.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (key, path) in [("sysfs", &self.sysfs), ("proc", &self.proc), ("kmsg", &self.kmsg)] {
            if !path.is_absolute() {
                problems.push(format!("source.{key} = '{}': not an absolute path", path.display()));
            }
        }
        if self.nvml_library.as_os_str().is_empty() {
            problems.push("source.nvml_library: empty".to_owned());
        } else if !self.nvml_library.is_absolute() && !is_bare_name(&self.nvml_library) {
            problems.push(format!(
                "source.nvml_library = '{}': neither a library name nor an absolute path",
                self.nvml_library.display()
            ));
        }
        problems
    }
}

/// A name without a slash: the dynamic loader only searches its own directories for it, never the current one.
fn is_bare_name(path: &Path) -> bool {
    path.file_name() == Some(path.as_os_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_source_is_the_system() {
        assert!(SourceConfig::default().is_system());
        assert_eq!(SourceConfig::default().problems(), Vec::<String>::new());
    }

    #[test]
    fn other_roots_are_not_the_system() {
        let tree = SourceConfig { sysfs: "/srv/tree/sys".into(), ..SourceConfig::default() };
        assert!(!tree.is_system());
        let library =
            SourceConfig { nvml_library: "/srv/sim/libnvidia-ml.so.1".into(), ..SourceConfig::default() };
        assert!(!library.is_system());
        let installed = SourceConfig {
            nvml_library: "/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1".into(),
            ..SourceConfig::default()
        };
        assert!(installed.is_system());
    }

    #[test]
    fn relative_paths_are_refused() {
        let source = SourceConfig {
            sysfs: "sys".into(),
            nvml_library: "./libnvidia-ml.so.1".into(),
            ..SourceConfig::default()
        };
        assert_eq!(source.problems().len(), 2, "{:?}", source.problems());
    }
}
