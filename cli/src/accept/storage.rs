//! The part of a node in the test of a file system: writes a file, reads it back, and creates and removes small files.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use anyhow::{Context as _, ensure};
use nix::fcntl::{AT_FDCWD, PosixFadviseAdvice, posix_fadvise};
use nix::sys::stat::{Mode, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use railgate_fsutil::nofollow;
use serde::Serialize;

use super::dir::now;
use crate::output::say;
use crate::{Site, exit};

const MIB: usize = 1 << 20;
const FILE: &str = "checkpoint";

/// What is printed: times are milliseconds since 1970, counts are MiB or operations.
#[derive(Debug, Default, Serialize)]
struct Written {
    node: String,
    write: Option<Span>,
    read: Option<Span>,
    files: Option<Span>,
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct Span {
    began: u64,
    ended: u64,
    count: u32,
}

pub(crate) fn run(site: &Site, place: &Path, mib: u32, files: u32) -> anyhow::Result<u8> {
    let node = std::env::var("SLURMD_NODENAME").unwrap_or_else(|_| site.node.clone());
    let mut written = Written { node, ..Written::default() };
    if let Err(why) = test(place, mib, files, &mut written) {
        written.error = Some(format!("{why:#}"));
    }
    say!("{}", serde_json::to_string(&written)?)?;
    Ok(exit::OK)
}

/// Works in a directory of its own, which other users can neither enter nor replace by a link.
fn test(place: &Path, mib: u32, files: u32, written: &mut Written) -> anyhow::Result<()> {
    let job = std::env::var("SLURM_JOB_ID").unwrap_or_default();
    let name = format!(".railgate-accept-{job}-{}-{}", written.node, std::process::id());
    let parent = nofollow::dir_at(AT_FDCWD, place).with_context(|| place.display().to_string())?;
    mkdirat(&parent, name.as_str(), Mode::S_IRWXU)
        .with_context(|| format!("a directory in {}", place.display()))?;
    let own = nofollow::dir_at(&parent, name.as_str())?;
    let found = fstat(&own)?;
    ensure!(
        found.st_uid == nix::unistd::geteuid().as_raw(),
        "another user replaced the directory of the test"
    );
    let done = checkpoint(&own, mib, written).and_then(|()| metadata(&own, files, written));
    let _ = unlinkat(&own, FILE, UnlinkatFlags::NoRemoveDir);
    drop(own);
    let removed = unlinkat(&parent, name.as_str(), UnlinkatFlags::RemoveDir);
    done?;
    removed.context("the directory of the test is not removed")
}

fn checkpoint(own: &OwnedFd, mib: u32, written: &mut Written) -> anyhow::Result<()> {
    let mut block = vec![0_u8; MIB];
    let began = now();
    let mut file = nofollow::create_at(own, FILE, Mode::S_IRUSR | Mode::S_IWUSR)?;
    for number in 0..mib {
        fill(&mut block, number);
        file.write_all(&block)?;
    }
    file.sync_all().context("fsync")?;
    written.write = Some(Span { began, ended: now(), count: mib });
    // Ask for the pages to leave memory, so that the file system is read.
    posix_fadvise(file.as_fd(), 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
    drop(file);
    let began = now();
    let mut file: File = nofollow::file_at(own, FILE)?;
    let mut got = vec![0_u8; MIB];
    for number in 0..mib {
        fill(&mut block, number);
        file.read_exact(&mut got)?;
        ensure!(got == block, "MiB {number} was read back different");
    }
    written.read = Some(Span { began, ended: now(), count: mib });
    Ok(())
}

/// Bytes that do not repeat and cannot be compressed, the same for the same number.
fn fill(block: &mut [u8], number: u32) {
    let mut state = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for word in block.as_chunks_mut::<8>().0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *word = state.to_le_bytes();
    }
}

fn metadata(own: &OwnedFd, files: u32, written: &mut Written) -> anyhow::Result<()> {
    let name = |number: u32| format!("file-{number}");
    let began = now();
    let mut made = 0;
    let mut work = || -> anyhow::Result<()> {
        for number in 0..files {
            nofollow::create_at(own, name(number).as_str(), Mode::S_IRUSR | Mode::S_IWUSR)?;
            made = number + 1;
        }
        for number in 0..files {
            fstatat(own, name(number).as_str(), nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW)?;
        }
        Ok(())
    };
    let done = work();
    for number in 0..made {
        unlinkat(own, name(number).as_str(), UnlinkatFlags::NoRemoveDir)?;
    }
    done?;
    // Created, looked up and removed.
    written.files = Some(Span { began, ended: now(), count: files.saturating_mul(3) });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_leaves_nothing_behind_and_follows_no_link() {
        let place = tempfile::tempdir().unwrap();
        let mut written = Written::default();
        test(place.path(), 2, 5, &mut written).unwrap();
        assert_eq!(written.write.as_ref().map(|span| span.count), Some(2));
        assert_eq!(written.files.as_ref().map(|span| span.count), Some(15));
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
        let link = place.path().join("link");
        std::os::unix::fs::symlink("/etc", &link).unwrap();
        let why = format!("{:#}", test(&link, 1, 1, &mut Written::default()).unwrap_err());
        assert!(why.contains("Not a directory"), "{why}");
    }
}
