//! The NCCL library of a node. Its file holds its version as text, so that nothing is loaded: `strings` finds it the same way.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use railgate_child::program::{Ended, Run, run_program};
use railgate_fsutil::read;
use serde_json::json;

use crate::exit;
use crate::output::say;

const LIBRARY: &str = "libnccl.so.2";
/// Lists the libraries of the loader's cache.
const LDCONFIG: &str = "/sbin/ldconfig";
const LDCONFIG_MS: u64 = 10_000;
/// Longest list that is read, bytes.
const MOST_LISTED: usize = 4 << 20;
/// Folders that the loader searches without a cache.
const FOLDERS: [&str; 4] = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"];
/// NCCL 2.x has this text, followed by its version, in each release (`VERSION_STRING` in its `src/init.cc`).
const MARK: &[u8] = b"NCCL version ";
const LONGEST_VERSION: usize = 40;
/// Longest library, bytes. With kernels for all GPUs it has some 400 MB.
const MOST: u64 = 2 << 30;
const CHUNK: usize = 1 << 20;

/// Prints the library that programs of this job load if they name no other, with its version.
pub(super) fn run() -> anyhow::Result<u8> {
    let path = of_environment(std::env::var_os("LD_LIBRARY_PATH").as_deref().unwrap_or_default())
        .or_else(of_cache)
        .or_else(|| FOLDERS.iter().map(|folder| Path::new(folder).join(LIBRARY)).find(|path| path.exists()))
        .with_context(|| {
            format!("could not tell: no {LIBRARY} in LD_LIBRARY_PATH and the folders of the loader")
        })?;
    let version = version(&path)?;
    say!("{}", json!({ "path": path.display().to_string(), "version": version }))?;
    Ok(exit::OK)
}

/// The library in the first folder of `LD_LIBRARY_PATH` that has it.
fn of_environment(folders: &std::ffi::OsStr) -> Option<PathBuf> {
    // A relative folder depends on where a program starts.
    let absolute = std::env::split_paths(folders).filter(|folder| folder.is_absolute());
    absolute.map(|folder| folder.join(LIBRARY)).find(|path| path.exists())
}

fn of_cache() -> Option<PathBuf> {
    let run = Run {
        path: PathBuf::from(LDCONFIG),
        arguments: vec!["-p".to_owned()],
        environment: BTreeMap::from([("LC_ALL".to_owned(), "C".to_owned())]),
        deadline_ms: LDCONFIG_MS,
        kept_bytes: MOST_LISTED,
    };
    match run_program(&run) {
        Ended::Exited { code: 0, out, .. } => cached(&out),
        _ => None,
    }
}

/// Parses `libnccl.so.2 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libnccl.so.2`.
fn cached(listed: &str) -> Option<PathBuf> {
    listed.lines().find_map(|line| {
        let (name, path) = line.split_once(" => ")?;
        let is_it = name.trim_start().strip_prefix(LIBRARY)?.starts_with(' ');
        is_it.then(|| PathBuf::from(path.trim())).filter(|path| path.is_absolute())
    })
}

fn version(path: &Path) -> anyhow::Result<String> {
    let file = read::open(path)?;
    ensure!(file.metadata()?.is_file(), "{}: not a file", path.display());
    scan(file.take(MOST))
        .with_context(|| path.display().to_string())?
        .with_context(|| format!("could not tell: {} holds no version of NCCL", path.display()))
}

/// Searches a version such as `2.28.9+cuda13.0`.
fn scan(mut from: impl Read) -> std::io::Result<Option<String>> {
    // A match may lie across two chunks.
    const OVERLAP: usize = MARK.len() + LONGEST_VERSION;
    let mut bytes: Vec<u8> = Vec::new();
    loop {
        bytes.drain(..bytes.len().saturating_sub(OVERLAP));
        let is_last = from.by_ref().take(CHUNK as u64).read_to_end(&mut bytes)? < CHUNK;
        let starts = if is_last { bytes.len() } else { bytes.len().saturating_sub(OVERLAP) };
        let mut marks =
            bytes.windows(MARK.len()).take(starts).enumerate().filter(|(_, window)| *window == MARK);
        let found = marks.find_map(|(place, _)| parsed(bytes.get(place + MARK.len()..)?));
        if found.is_some() || is_last {
            return Ok(found);
        }
    }
}

/// The version at the beginning of these bytes. NCCL's own messages also begin like that, but no number follows.
fn parsed(bytes: &[u8]) -> Option<String> {
    let plain = |byte: &&u8| byte.is_ascii_alphanumeric() || b".+-_~".contains(byte);
    let text: Vec<u8> = bytes.iter().take(LONGEST_VERSION).take_while(plain).copied().collect();
    let text = String::from_utf8(text).ok()?;
    let is_version = text.starts_with(|c: char| c.is_ascii_digit()) && text.split('.').count() >= 3;
    is_version.then_some(text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_version_is_found_among_other_texts() {
        let of = |bytes: &[u8]| scan(bytes).unwrap();
        let text =
            b"\0NCCL version mismatch\0NCCL version %d\0NCCL version 2.28.9+cuda13.0\0NCCL version 1.0.0\0";
        assert_eq!(of(text).as_deref(), Some("2.28.9+cuda13.0"));
        assert_eq!(of(b"NCCL version 2.21.5").as_deref(), Some("2.21.5"));
        for none in
            [&b""[..], b"NCCL version ", b"NCCL version 2", b"RCCL version 2.22.3", b"nccl version 2.1.1"]
        {
            assert_eq!(of(none), None);
        }
        // At each place around the end of a chunk.
        for place in CHUNK - 60..CHUNK + 60 {
            let bytes =
                [vec![0; place], b"NCCL version 2.30.7+cuda13.1\0".to_vec(), vec![0; 3 * CHUNK]].concat();
            assert_eq!(of(&bytes).as_deref(), Some("2.30.7+cuda13.1"), "{place}");
        }
        let long = [b"NCCL version 2.1.1", [b'1'; 100].as_slice()].concat();
        assert_eq!(of(&long).map(|text| text.len()), Some(LONGEST_VERSION));
    }

    #[test]
    fn the_library_is_that_of_the_environment_then_of_the_cache() {
        let place = tempfile::tempdir().unwrap();
        let (empty, full) = (place.path().join("empty"), place.path().join("full"));
        for folder in [&empty, &full] {
            std::fs::create_dir(folder).unwrap();
        }
        std::fs::write(full.join("libnccl.so.2.28.9"), "NCCL version 2.28.9+cuda13.0\0").unwrap();
        symlink("libnccl.so.2.28.9", full.join(LIBRARY)).unwrap();
        let folders = std::env::join_paths([Path::new("full"), &empty, &full]).unwrap();
        let found = of_environment(&folders).unwrap();
        assert_eq!(found, full.join(LIBRARY));
        assert_eq!(version(&found).unwrap(), "2.28.9+cuda13.0");
        assert_eq!(of_environment("".as_ref()), None);

        let listed = "2 libs found in cache `/etc/ld.so.cache'\n\tlibnccl.so (libc6,x86-64) => /a/libnccl.so\n\
                      \tlibnccl.so.2 (libc6,x86-64) => /opt/a b/libnccl.so.2\n";
        assert_eq!(cached(listed).as_deref(), Some(Path::new("/opt/a b/libnccl.so.2")));
        assert_eq!(cached("\tlibnccl.so.22 (libc6) => /a\n\tlibnccl.so.2 (libc6) => relative\n"), None);
    }

    #[test]
    fn what_is_no_library_has_no_version() {
        let place = tempfile::tempdir().unwrap();
        let fifo = place.path().join(LIBRARY);
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert!(version(&fifo).unwrap_err().to_string().ends_with("not a file"));
        let other = place.path().join("other");
        std::fs::write(&other, "no version").unwrap();
        let why = version(&other).unwrap_err().to_string();
        assert!(why.starts_with("could not tell: ") && why.ends_with("holds no version of NCCL"), "{why}");
    }
}
