use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{SFlag, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use railgate_node::UnixMillis;
use serde::{Deserialize, Serialize};

use super::Swept;
use super::dirs::{below, names, top};

const MOST_CLUSTERS: usize = 64;
const MOST_JOBS: usize = 200_000;
const MOST_PROBLEMS: usize = 10;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SweepOrder {
    pub(super) dir: PathBuf,
    pub(super) now: UnixMillis,
    pub(super) days: u32,
    pub(super) jobs: u32,
}

/// In the child: removes the reports of jobs that are too old, or too many, oldest first.
pub(super) fn task(input: &[u8]) -> Result<Vec<u8>, String> {
    let order: SweepOrder = serde_json::from_slice(input).map_err(|why| format!("order: {why}"))?;
    serde_json::to_vec(&sweep(&order)?).map_err(|why| why.to_string())
}

fn text(why: Errno) -> String {
    io::Error::from(why).to_string()
}

/// A job's directory: when it was written to last, seconds.
struct Aged {
    time: i64,
    cluster: usize,
    name: String,
}

fn sweep(order: &SweepOrder) -> Result<Swept, String> {
    let dir = match top(&order.dir) {
        Ok(dir) => dir,
        Err(Errno::ENOENT) => return Ok(Swept::default()),
        Err(why) => return Err(text(why)),
    };
    let mut swept = Swept::default();
    let mut clusters = Vec::new();
    let mut jobs = Vec::new();
    for name in names(&dir, MOST_CLUSTERS).map_err(text)?.0 {
        let Ok(cluster) = below(dir.as_fd(), &name) else { continue };
        jobs.extend(aged(&cluster, clusters.len()));
        clusters.push(cluster);
    }
    jobs.sort_by_key(|job| job.time);

    let too_old = i64::try_from(order.now / 1000)
        .ok()
        .filter(|_| order.days > 0)
        .map(|now| now - i64::from(order.days) * 86_400);
    let too_many = match order.jobs {
        0 => 0,
        most => jobs.len().saturating_sub(usize::try_from(most).unwrap_or(usize::MAX)),
    };
    for (position, job) in jobs.iter().enumerate() {
        if position >= too_many && too_old.is_none_or(|limit| job.time >= limit) {
            swept.kept += 1;
            continue;
        }
        match remove(clusters[job.cluster].as_fd(), &job.name, 2) {
            Ok(()) => swept.removed += 1,
            Err(why) => {
                swept.kept += 1;
                if swept.problems.len() < MOST_PROBLEMS {
                    swept.problems.push(format!("{}: {}", job.name, text(why)));
                }
            }
        }
    }
    Ok(swept)
}

fn aged(cluster: &OwnedFd, index: usize) -> Vec<Aged> {
    let Ok((names, _)) = names(cluster, MOST_JOBS) else { return Vec::new() };
    names
        .into_iter()
        .filter(|name| name.parse::<u32>().is_ok())
        .filter_map(|name| {
            let stat = fstatat(cluster, name.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW).ok()?;
            let is_dir = SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) == SFlag::S_IFDIR;
            // A new attempt makes a new entry, so the directory's own time is that of the last one.
            is_dir.then_some(Aged { time: stat.st_mtime, cluster: index, name })
        })
        .collect()
}

/// Removes a directory whose content is at most `depth` levels deep. A link is removed, not followed;
/// another depth is not ours and stays.
fn remove(parent: BorrowedFd<'_>, name: &str, depth: u32) -> Result<(), Errno> {
    let dir = below(parent, name)?;
    let mut listing =
        nix::dir::Dir::openat(&dir, ".", nix::fcntl::OFlag::O_DIRECTORY, nix::sys::stat::Mode::empty())?;
    let mut entries = Vec::new();
    for entry in listing.iter() {
        let entry = entry?.file_name().to_owned();
        if !matches!(entry.to_bytes(), b"." | b"..") {
            entries.push(entry);
        }
    }
    for entry in entries {
        match unlinkat(&dir, entry.as_c_str(), UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(Errno::EISDIR | Errno::EPERM) if depth > 1 => {
                let name = entry.to_str().map_err(|_| Errno::EILSEQ)?;
                remove(dir.as_fd(), name, depth - 1)?;
            }
            Err(why) => return Err(why),
        }
    }
    unlinkat(parent, name, UnlinkatFlags::RemoveDir)
}
