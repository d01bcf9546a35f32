//! Real control groups of memory (version 1): each machine of a cluster has one of this machine's own as its root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
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

/// What this machine's kernel wrote when it killed a process of a job on a machine of a cluster, as that machine's own kernel
/// would write it.
///
/// # Errors
/// The kernel's log cannot be read, or has no such lines.
pub fn memory_kill(machine: &str, job: u32) -> Result<[String; 2]> {
    let log = Command::new("dmesg").output().context("dmesg")?;
    let log = String::from_utf8_lossy(&log.stdout).into_owned();
    let lines: Vec<&str> =
        log.lines().map(|line| line.split_once("] ").map_or(line, |(_, text)| text)).collect();
    // The newest, should two runs have had a job of this number.
    let of_job = format!("/{machine}/slurm_{machine}/");
    let part = format!("/job_{job}");
    let kill = lines.iter().rposition(|line| {
        line.starts_with("oom-kill:") && line.contains(&of_job) && {
            let group =
                line.split("oom_memcg=").nth(1).and_then(|rest| rest.split(',').next()).unwrap_or_default();
            group.contains(&format!("{part}/")) || group.ends_with(&part)
        }
    });
    let kill = kill.with_context(|| format!("the kernel killed no process of job {job} on {machine}"))?;
    let own = lines[kill]
        .split("oom_memcg=")
        .nth(1)
        .and_then(|rest| rest.split("/slurm_").next())
        .unwrap_or_default();
    let killed =
        lines[kill..].iter().find(|line| line.starts_with("Memory cgroup out of memory: Killed process"));
    let killed = killed.context("the kernel named no process")?;
    Ok([lines[kill].replace(own, ""), (*killed).to_owned()])
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
