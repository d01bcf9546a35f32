//! Real memory control groups (version 1): each machine of a cluster uses one group of the test machine as its root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};

/// Mount point of the memory controller, on the test machine and on each machine of a cluster.
pub(super) const PLACE: &str = "/sys/fs/cgroup/memory";

const OURS: &str = "railgate-test-";

/// One group for each machine, removed when dropped.
#[derive(Debug)]
pub(super) struct MemoryGroups(PathBuf);

/// Whether root may create memory control groups (version 1) on the test machine.
pub fn memory_groups() -> bool {
    fs::metadata(Path::new(PLACE).join("memory.limit_in_bytes")).is_ok()
        && MemoryGroups::make(&["try"]).is_ok()
}

/// Returns the two kernel log lines about a process of `job` that was killed for its memory on `machine`, written as the log
/// of that machine's own kernel would have them.
///
/// # Errors
/// The kernel log cannot be read or has no such lines.
pub fn memory_kill(machine: &str, job: u32) -> Result<[String; 2]> {
    let log = Command::new("dmesg").output().context("dmesg")?;
    let log = String::from_utf8_lossy(&log.stdout).into_owned();
    let lines: Vec<&str> =
        log.lines().map(|line| line.split_once("] ").map_or(line, |(_, text)| text)).collect();
    // The newest match, in case two test runs had a job of this number.
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
    /// Makes one group for each machine.
    pub(super) fn make(machines: &[&str]) -> Result<Self> {
        // Removes what a killed test run left behind. Groups in use cannot be removed.
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

    /// The group of one machine.
    pub(super) fn of(&self, machine: &str) -> PathBuf {
        self.0.join(machine)
    }
}

impl Drop for MemoryGroups {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

/// Removes a group and those below it. The kernel allows it only for groups without processes.
fn remove(group: &Path) {
    for below in fs::read_dir(group).into_iter().flatten().flatten() {
        if below.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&below.path());
        }
    }
    let _ = fs::remove_dir(group);
}
