//! The part of a node in the test of a file system: writes a file, reads it back, and creates and removes small files.

use std::collections::BTreeMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use nix::dir::Dir as Listing;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, PosixFadviseAdvice, posix_fadvise};
use nix::sys::stat::{Mode, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use railgate_accept::{Span, StorageTested};
use railgate_child::program::{Ended, Run, run_program};
use railgate_fsutil::nofollow;

use super::dir::now;
use crate::output::{complain, say};
use crate::{Site, exit};

const MIB: usize = 1 << 20;
const FILE: &str = "checkpoint";
/// Blocks that are made before the clock starts.
const BLOCKS: usize = 8;
/// Part of a block with a header of its own, so that no two parts of a file are equal: a page.
const PAGE: usize = 4096;
/// What fio gets beyond the time of its work, to lay out its files: seconds.
const LAYOUT_S: u64 = 600;
/// Most bytes of fio's output.
const KEPT: usize = 1 << 20;

/// Bytes that were read back are not those that were written.
#[derive(Debug)]
struct Different(u32);

impl std::fmt::Display for Different {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "MiB {} was read back different", self.0)
    }
}

impl std::error::Error for Different {}

pub(crate) fn run(site: &Site, place: &Path, mib: u32, files: u32) -> anyhow::Result<u8> {
    let node = node(site);
    let mut written = StorageTested { node: node.clone(), ..StorageTested::default() };
    let done = within(place, &node, |own| {
        let done = checkpoint(own, mib, seed(&node)?, &mut written)
            .and_then(|()| metadata(own, files, &mut written));
        let _ = unlinkat(own, FILE, UnlinkatFlags::NoRemoveDir);
        done
    });
    if let Err(why) = done {
        let text = Some(format!("{why:#}"));
        if is_fault(&why) { written.failed = text } else { written.error = text }
    }
    say!("{}", serde_json::to_string(&written)?)?;
    Ok(exit::OK)
}

/// Runs fio in a directory of the test, and prints what fio printed.
pub(crate) fn fio(site: &Site, place: &Path, pattern: &str, seconds: u32) -> anyhow::Result<u8> {
    let ended = within(place, &node(site), |own| {
        let ended = run_program(&fio_run(own, pattern, seconds));
        // fio removes its files unless it was killed.
        remove_all(own)?;
        Ok(ended)
    })?;
    let (code, out, err) = match ended {
        Ended::Exited { code, out, err } => (u8::try_from(code).unwrap_or(exit::UNKNOWN), out, err),
        Ended::Killed { signal, out } => (exit::UNKNOWN, out, format!("fio: killed by signal {signal}")),
        Ended::Failed(why) => (exit::UNKNOWN, String::new(), format!("fio: {why}")),
        Ended::Silent { after_ms, out, .. } => {
            (exit::UNKNOWN, out, format!("fio did not end in {:.0} s", after_ms / 1000.0))
        }
    };
    if !err.is_empty() {
        complain!("{}", err.trim_end());
    }
    say!("{}", out.trim_end())?;
    Ok(code)
}

/// fio opens its files by name. The name of the directory is that of the open descriptor of this process, so that no user can put
/// another directory or a link in its place.
fn fio_run(own: &OwnedFd, pattern: &str, seconds: u32) -> Run {
    let directory = format!("/proc/{}/fd/{}", std::process::id(), own.as_raw_fd());
    let arguments = [
        "--name=railgate-accept".to_owned(),
        format!("--directory={directory}"),
        format!("--rw={pattern}"),
        format!("--runtime={seconds}"),
        "--time_based".to_owned(),
        "--bs=4k".to_owned(),
        "--size=256m".to_owned(),
        "--direct=1".to_owned(),
        "--ioengine=psync".to_owned(),
        "--numjobs=4".to_owned(),
        "--group_reporting".to_owned(),
        "--unlink=1".to_owned(),
        "--output-format=json".to_owned(),
    ];
    let text = |name: &str| Some((name.to_owned(), std::env::var(name).ok()?));
    Run {
        path: PathBuf::from("fio"),
        arguments: arguments.to_vec(),
        environment: ["PATH", "LD_LIBRARY_PATH"].into_iter().filter_map(text).collect::<BTreeMap<_, _>>(),
        deadline_ms: (u64::from(seconds) + LAYOUT_S) * 1000,
        kept_bytes: KEPT,
    }
}

fn node(site: &Site) -> String {
    std::env::var("SLURMD_NODENAME").unwrap_or_else(|_| site.node.clone())
}

/// A seed that no other run and no other node has: blocks of an earlier file or of another node are not taken for those of this one.
fn seed(node: &str) -> anyhow::Result<u64> {
    let mut hasher = DefaultHasher::new();
    (node, std::env::var("SLURM_JOB_ID").ok()).hash(&mut hasher);
    hasher.write_u64(railgate_pair::random_number().map_err(anyhow::Error::msg)?);
    Ok(hasher.finish())
}

/// Whether the file system lost data or has no room: that is a failure. Anything else leaves the test without a result.
fn is_fault(why: &anyhow::Error) -> bool {
    let by_number =
        |number: i32| [Errno::EIO, Errno::ENOSPC, Errno::EDQUOT].contains(&Errno::from_raw(number));
    why.chain().any(|cause| {
        cause.is::<Different>()
            || cause.downcast_ref::<Errno>().is_some_and(|errno| by_number(*errno as i32))
            || cause.downcast_ref::<std::io::Error>().is_some_and(|error| {
                error.raw_os_error().is_some_and(by_number)
                    || error.kind() == std::io::ErrorKind::UnexpectedEof
            })
    })
}

/// Works in a directory of its own, which other users can neither enter nor replace by a link, and removes it.
fn within<T>(
    place: &Path,
    node: &str,
    work: impl FnOnce(&OwnedFd) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let job = std::env::var("SLURM_JOB_ID").unwrap_or_default();
    let name = format!(".railgate-accept-{job}-{node}-{}", std::process::id());
    let parent = nofollow::dir_at(AT_FDCWD, place).with_context(|| place.display().to_string())?;
    mkdirat(&parent, name.as_str(), Mode::S_IRWXU)
        .with_context(|| format!("a directory in {}", place.display()))?;
    let own = nofollow::dir_at(&parent, name.as_str())?;
    let found = fstat(&own)?;
    ensure!(
        found.st_uid == nix::unistd::geteuid().as_raw() && found.st_mode & 0o077 == 0,
        "another user replaced the directory of the test"
    );
    let done = work(&own);
    drop(own);
    let removed = unlinkat(&parent, name.as_str(), UnlinkatFlags::RemoveDir);
    let done = done?;
    removed.context("the directory of the test is not removed")?;
    Ok(done)
}

/// Removes the files in a directory, links as such.
fn remove_all(own: &OwnedFd) -> anyhow::Result<()> {
    let mut names = Vec::new();
    for entry in Listing::from_fd(own.try_clone()?)?.iter() {
        names.push(entry?.file_name().to_owned());
    }
    for name in names.iter().filter(|name| ![c".", c".."].contains(&name.as_c_str())) {
        unlinkat(own, name.as_c_str(), UnlinkatFlags::NoRemoveDir)?;
    }
    Ok(())
}

/// The file is read twice: once on the clock, once to compare every byte.
fn checkpoint(own: &OwnedFd, mib: u32, seed: u64, written: &mut StorageTested) -> anyhow::Result<()> {
    let mut blocks: Vec<Vec<u8>> = (0..BLOCKS).map(|number| block(seed, number)).collect();
    let began = now();
    let mut file = nofollow::create_at(own, FILE, Mode::S_IRUSR | Mode::S_IWUSR)?;
    for number in 0..mib {
        file.write_all(stamped(&mut blocks, number, seed)?)?;
    }
    file.sync_all().context("fsync")?;
    written.write = Some(Span { began, ended: now(), count: mib });
    // Ask for the pages to leave memory, so that the file system is read.
    posix_fadvise(file.as_fd(), 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
    drop(file);
    let mut got = vec![0_u8; MIB];
    let began = now();
    let mut file: File = nofollow::file_at(own, FILE)?;
    for _ in 0..mib {
        file.read_exact(&mut got)?;
    }
    let span = Span { began, ended: now(), count: mib };
    compare(own, mib, seed, &mut blocks)?;
    written.read = Some(span);
    Ok(())
}

fn compare(own: &OwnedFd, mib: u32, seed: u64, blocks: &mut [Vec<u8>]) -> anyhow::Result<()> {
    let mut file: File = nofollow::file_at(own, FILE)?;
    let mut got = vec![0_u8; MIB];
    for number in 0..mib {
        file.read_exact(&mut got)?;
        ensure!(got == stamped(blocks, number, seed)?, Different(number));
    }
    Ok(())
}

/// Bytes that do not repeat and cannot be compressed.
fn block(seed: u64, number: usize) -> Vec<u8> {
    let mut block = vec![0_u8; MIB];
    let mut hasher = DefaultHasher::new();
    (seed, number).hash(&mut hasher);
    let mut state = hasher.finish() | 1;
    for word in block.as_chunks_mut::<8>().0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *word = state.to_le_bytes();
    }
    block
}

/// The block of this number: each of its pages begins with the seed and the number, which takes little time.
fn stamped(blocks: &mut [Vec<u8>], number: u32, seed: u64) -> anyhow::Result<&[u8]> {
    let place = usize::try_from(number)? % blocks.len().max(1);
    let block = blocks.get_mut(place).context("no block")?;
    let header = u128::from(seed) << 64 | u128::from(number);
    for page in block.as_chunks_mut::<PAGE>().0 {
        if let Some(start) = page.first_chunk_mut() {
            *start = header.to_le_bytes();
        }
    }
    Ok(block)
}

fn metadata(own: &OwnedFd, files: u32, written: &mut StorageTested) -> anyhow::Result<()> {
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
    use std::os::unix::fs::symlink;

    use super::*;

    fn test(place: &Path, mib: u32, files: u32, written: &mut StorageTested) -> anyhow::Result<()> {
        within(place, "gn1", |own| {
            let done =
                checkpoint(own, mib, seed("gn1")?, written).and_then(|()| metadata(own, files, written));
            let _ = unlinkat(own, FILE, UnlinkatFlags::NoRemoveDir);
            done
        })
    }

    #[test]
    fn a_test_leaves_nothing_behind_and_follows_no_link() {
        let place = tempfile::tempdir().unwrap();
        let mut written = StorageTested::default();
        test(place.path(), 20, 5, &mut written).unwrap();
        assert_eq!(written.write.as_ref().map(|span| span.count), Some(20));
        assert_eq!(written.files.as_ref().map(|span| span.count), Some(15));
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
        let link = place.path().join("link");
        symlink("/etc", &link).unwrap();
        let why = format!("{:#}", test(&link, 1, 1, &mut StorageTested::default()).unwrap_err());
        assert!(why.contains("Not a directory"), "{why}");
    }

    /// A user plants links with the names of fio's files in the directory of the plan, and replaces the directory of the test.
    #[test]
    fn fio_writes_in_the_open_directory_of_the_test_and_through_no_planted_link() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        std::fs::write(at("victim"), "whole").unwrap();
        std::fs::create_dir(at("scratch")).unwrap();
        for number in 0..4 {
            symlink(at("victim"), at("scratch").join(format!("railgate-accept.{number}.0"))).unwrap();
        }
        let name = within(&at("scratch"), "gn1", |own| {
            let run = fio_run(own, "randwrite", 1);
            let named = run.arguments.iter().find_map(|word| word.strip_prefix("--directory="));
            let named = Path::new(named.unwrap()).to_owned();
            let real = std::fs::read_link(&named).unwrap();
            assert!(real.file_name().unwrap().to_str().unwrap().starts_with(".railgate-accept-"), "{real:?}");
            assert!(run.arguments.contains(&"--direct=1".to_owned()));
            // Even root could be led elsewhere by the name: the descriptor stays where it is.
            std::fs::rename(&real, at("moved")).unwrap();
            symlink(at("scratch"), &real).unwrap();
            std::fs::write(named.join("railgate-accept.0.0"), "data").unwrap();
            symlink(at("victim"), at("moved").join("link")).unwrap();
            assert!(at("moved").join("railgate-accept.0.0").exists());
            remove_all(own)?;
            assert_eq!(std::fs::read_dir(at("moved")).unwrap().count(), 0);
            Ok(real)
        });
        // The link in the place of the directory is not followed, and the caller hears that something is left.
        assert!(format!("{:#}", name.unwrap_err()).contains("is not removed"));
        assert_eq!(std::fs::read_to_string(at("victim")).unwrap(), "whole");
    }

    #[test]
    fn lost_and_changed_bytes_and_a_full_disk_are_faults() {
        let place = tempfile::tempdir().unwrap();
        let own = nofollow::dir_at(AT_FDCWD, place.path()).unwrap();
        let path = place.path().join(FILE);
        let mut blocks: Vec<Vec<u8>> = (0..BLOCKS).map(|number| block(7, number)).collect();
        checkpoint(&own, 10, 7, &mut StorageTested::default()).unwrap();
        compare(&own, 10, 7, &mut blocks).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let fault = |blocks: &mut [Vec<u8>], content: &[u8], seed: u64| {
            std::fs::write(&path, content).unwrap();
            let why = compare(&own, 10, seed, blocks).unwrap_err();
            assert!(is_fault(&why), "{why:#}");
            why.to_string()
        };
        let mut bad = whole.clone();
        bad[9 * MIB + 77_777] ^= 4;
        assert_eq!(fault(&mut blocks, &bad, 7), "MiB 9 was read back different");
        // Block 8 in the place of block 0, which differs in its number alone; and the file of another run.
        let moved = [&whole[8 * MIB..9 * MIB], &whole[MIB..]].concat();
        assert_eq!(fault(&mut blocks, &moved, 7), "MiB 0 was read back different");
        fault(&mut blocks, &whole, 8);
        fault(&mut blocks, &whole[..5 * MIB], 7);
        assert_ne!(seed("gn1").unwrap(), seed("gn1").unwrap());
        let error = |errno: Errno| anyhow::Error::from(std::io::Error::from(errno)).context("fsync");
        assert!(
            is_fault(&error(Errno::EIO))
                && is_fault(&error(Errno::ENOSPC))
                && !is_fault(&error(Errno::EACCES))
        );
        assert!(is_fault(&anyhow::Error::from(Errno::ENOSPC)));
    }
}
