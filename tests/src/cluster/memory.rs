//! Real control groups of memory (version 1): each machine of a cluster has one of this machine's own as its root.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};

/// Where this machine has them, and each machine of a cluster.
pub(super) const PLACE: &str = "/sys/fs/cgroup/memory";

const OURS: &str = "railgate-test-";

/// One group for each machine. Dropping it removes them.
#[derive(Debug)]
pub(super) struct MemoryGroups(PathBuf);

/// This machine lets its root make control groups of memory, version 1.
pub fn memory_groups() -> bool {
    fs::metadata(Path::new(PLACE).join("memory.limit_in_bytes")).is_ok()
        && MemoryGroups::make(&["try"]).is_ok()
}

impl MemoryGroups {
    pub(super) fn make(machines: &[&str]) -> Result<Self> {
        // What a killed test run has left. Groups that are in use stay.
        for left in fs::read_dir(PLACE)?.flatten() {
            let name = left.file_name().to_string_lossy().into_owned();
            let owner = name.strip_prefix(OURS).and_then(|rest| rest.split_once('-'));
            if owner.is_some_and(|(pid, _)| !Path::new("/proc").join(pid).exists()) {
                remove(&left.path());
            }
        }
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let place = Path::new(PLACE).join(format!("{OURS}{}-{number}", std::process::id()));
        let groups = MemoryGroups(place);
        for machine in machines {
            let path = groups.of(machine);
            fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        }
        Ok(groups)
    }

    /// One machine's.
    pub(super) fn of(&self, machine: &str) -> PathBuf {
        self.0.join(machine)
    }
}

impl Drop for MemoryGroups {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

/// The group and those below it: only directories can be removed, and only where no process is left.
fn remove(group: &Path) {
    for below in fs::read_dir(group).into_iter().flatten().flatten() {
        if below.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&below.path());
        }
    }
    let _ = fs::remove_dir(group);
}
