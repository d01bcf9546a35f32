use std::path::Path;

use railgate_fsutil::read;
use railgate_model::{BlockedProcess, Processes, Reading};
use railgate_text::printable;

use crate::sysfs;

/// Maximum number of processes that are read. A node with more has other problems.
const MAX_PROCESSES: usize = 65_536;

/// Maximum number of blocked processes that are listed.
const MAX_BLOCKED: usize = 256;

const STAT_BYTES: u64 = 4096;
const STATUS_BYTES: u64 = 16 * 1024;

/// `PF_KTHREAD`: a kernel thread. Some of these are always in uninterruptible sleep.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// Result of reading the process table.
pub(super) struct Seen {
    pub(super) processes: Reading<Processes>,
    /// Process id of the node's slurmd.
    pub(super) slurmd: Option<u32>,
}

/// Reads every process once. A process that ends meanwhile is skipped.
pub(super) fn processes(proc_root: &Path) -> Seen {
    let names = match read::names(proc_root) {
        Ok(names) => names,
        Err(why) => return Seen { processes: Reading::Failed(why.to_string()), slurmd: None },
    };
    let mut found = Processes::default();
    let mut slurmd = None;
    let pids = names.iter().filter_map(|name| name.parse::<u32>().ok());
    for pid in pids.take(MAX_PROCESSES) {
        let dir = proc_root.join(pid.to_string());
        let Some(stat) = read::prefix(&dir.join("stat"), STAT_BYTES).ok().and_then(|text| Stat::parse(&text))
        else {
            continue;
        };
        found.total += 1;
        match stat.state {
            'Z' => found.zombies += 1,
            'D' if stat.flags & KERNEL_THREAD == 0 && found.blocked.len() < MAX_BLOCKED => {
                let status = read::prefix(&dir.join("status"), STATUS_BYTES).unwrap_or_default();
                found.blocked.push(BlockedProcess {
                    pid,
                    started: stat.started,
                    name: stat.name.clone(),
                    switches: switches(&status),
                });
            }
            _ => {}
        }
        // A job can name its process slurmd; the real one belongs to root and has a lower id.
        if stat.name == "slurmd" && slurmd.is_none() && is_roots(&dir) {
            slurmd = Some(pid);
        }
    }
    let processes = if found.total == 0 {
        Reading::Failed(format!("{}: no process", proc_root.display()))
    } else {
        Reading::Known(found)
    };
    Seen { processes, slurmd }
}

/// Reads `Max locked memory` of a process, bytes; `u64::MAX` means unlimited.
pub(super) fn memlock(proc_root: &Path, pid: u32) -> Reading<u64> {
    sysfs::large(&proc_root.join(pid.to_string()).join("limits"), STATUS_BYTES, |text| {
        let line = text.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
        match line.split_whitespace().next()? {
            "unlimited" => Some(u64::MAX),
            bytes => bytes.parse().ok(),
        }
    })
}

fn is_roots(dir: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(dir).is_ok_and(|about| about.uid() == 0)
}

fn switches(status: &str) -> u64 {
    status.lines().filter_map(|line| line.split_once("ctxt_switches:")?.1.trim().parse::<u64>().ok()).sum()
}

/// The used fields of `/proc/<pid>/stat`.
#[derive(Debug, PartialEq)]
struct Stat {
    name: String,
    state: char,
    flags: u64,
    started: u64,
}

impl Stat {
    /// Parses `pid (name) state ppid …`; the name may contain blanks and parentheses.
    fn parse(text: &str) -> Option<Stat> {
        let (head, rest) = text.rsplit_once(')')?;
        let (_, name) = head.split_once('(')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        Some(Stat {
            name: printable(name).into_owned(),
            state: fields.first()?.chars().next()?,
            flags: fields.get(6)?.parse().ok()?,
            started: fields.get(19)?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    fn process(root: &Path, pid: u32, name: &str, state: char, flags: u64) {
        let dir = root.join(pid.to_string());
        fs::create_dir_all(&dir).unwrap();
        let rest = "0 ".repeat(12);
        fs::write(dir.join("stat"), format!("{pid} ({name}) {state} 1 1 1 0 -1 {flags} {rest}{pid}00 0 0\n"))
            .unwrap();
        fs::write(
            dir.join("status"),
            "Name:\tx\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t2\n",
        )
        .unwrap();
        fs::write(
            dir.join("limits"),
            "Limit  Soft Limit\nMax locked memory         65536   unlimited   bytes\n",
        )
        .unwrap();
    }

    #[test]
    fn zombies_and_blocked_processes_are_found() {
        let root = tempfile::tempdir().unwrap();
        process(root.path(), 1, "systemd", 'S', 0);
        process(root.path(), 20, "nv_queue", 'D', KERNEL_THREAD);
        process(root.path(), 300, "python3 (a b)", 'D', 0x400);
        process(root.path(), 301, "defunct", 'Z', 0);
        process(root.path(), 400, "slurmd", 'S', 0);
        fs::create_dir(root.path().join("500")).unwrap();
        let seen = processes(root.path());
        let processes = seen.processes.known().unwrap();
        assert_eq!((processes.total, processes.zombies), (5, 1));
        let blocked =
            BlockedProcess { pid: 300, started: 30_000, name: "python3 (a b)".to_owned(), switches: 9 };
        assert_eq!(processes.blocked, [blocked]);
        if nix::unistd::geteuid().is_root() {
            assert_eq!(seen.slurmd, Some(400));
        }
        assert_eq!(memlock(root.path(), 400), Reading::Known(65_536));
        assert_eq!(memlock(root.path(), 999), Reading::Unsupported);
    }

    #[test]
    fn a_proc_tree_without_processes_is_a_failed_reading() {
        let root = tempfile::tempdir().unwrap();
        assert!(matches!(processes(root.path()).processes, Reading::Failed(_)));
        assert!(matches!(processes(&root.path().join("absent")).processes, Reading::Failed(_)));
    }

    #[test]
    fn the_processes_of_this_machine_are_read() {
        let seen = processes(Path::new("/proc"));
        assert!(seen.processes.known().is_some_and(|processes| processes.total > 1));
        assert!(matches!(memlock(Path::new("/proc"), std::process::id()), Reading::Known(_)));
    }

    proptest! {
        #[test]
        fn any_stat_text_is_parsed_or_rejected(text in "\\PC{0,200}") {
            let _ = Stat::parse(&text);
        }
    }
}
