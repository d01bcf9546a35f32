//! The counts of NCCL's profiler plugin, while the job runs.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use railgate_rankfile::{BYTES, Comm, Limit, Mode, RankFile};
use railgate_rundir::{RunDir, UserDir};

use super::detector::{Count, Counts};

/// Where the plugin writes, under the run's `user/`.
const PLACE: &str = "ranks";
/// Maximum number of names that are listed, and of files that are read: the latest ones. More ranks have no GPU each.
const MOST_NAMES: usize = 512;
const MOST_FILES: usize = 64;
/// Maximum number of communicators of a process. The job can write more, and reading them would cost it nothing.
const MOST_COMMS: usize = 32;

/// Rank files of a run. The job can change, truncate and replace them at any time, so they are read with `pread` and never
/// mapped, and a file that is not valid is left out until the next search.
#[derive(Debug)]
pub(super) struct Files {
    dir: RunDir,
    uid: u32,
    open: BTreeMap<OsString, Open>,
    next: u64,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Open {
    file: File,
    number: u64,
    /// Bytes that contain the communicators, and room for a few new ones.
    bytes: usize,
    left_out: bool,
}

impl Files {
    pub(super) fn new(dir: RunDir, uid: u32) -> Self {
        Files { dir, uid, open: BTreeMap::new(), next: 0, buffer: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Looks for new files, and reads what changes rarely of all files.
    pub(super) fn search(&mut self) -> io::Result<()> {
        let place = match UserDir::open(&self.dir, self.uid).and_then(|user| user.sub(PLACE)) {
            Ok(place) => place,
            Err(why) => {
                self.open.clear();
                return if why.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(why) };
            }
        };
        let (mut names, _) = place.names(MOST_NAMES)?;
        names.retain(|name| name != "mode");
        names.sort_by_key(|name| std::cmp::Reverse(created(name)));
        names.truncate(MOST_FILES);
        self.open.retain(|name, _| names.contains(name));
        for name in names {
            let mut one = match self.open.remove(&name) {
                Some(one) => one,
                None => match place.file(&name, BYTES as u64) {
                    Ok(file) => Open { file, number: self.next, bytes: 0, left_out: false },
                    Err(_) => continue,
                },
            };
            if one.examine(&mut self.buffer) {
                self.next += u64::from(one.number == self.next);
                self.open.insert(name, one);
            }
        }
        Ok(())
    }

    /// Reads the counts of all processes that count.
    pub(super) fn read(&mut self) -> Vec<Counts> {
        let mut found = Vec::new();
        let buffer = &mut self.buffer;
        self.open.retain(|_, one| match one.read(one.bytes, RankFile::without_cells, buffer) {
            Some(file) => {
                let left_out = one.left_out || hides_waits(&file);
                let pid = u32::try_from(file.pid).unwrap_or(0);
                let counts = Counts { file: one.number, pid, comms: counts(&file.comms), left_out };
                found.extend((file.mode != Some(Mode::Off)).then_some(counts));
                true
            }
            None => false,
        });
        found
    }
}

impl Open {
    /// Reads the whole file. Returns whether it is valid.
    fn examine(&mut self, buffer: &mut Vec<u8>) -> bool {
        /// Communicators that may be created until the next search.
        const MORE: usize = 8;
        let whole = self.file.metadata().is_ok_and(|meta| meta.len() == BYTES as u64);
        let Some(file) = self.read(BYTES, RankFile::parse, buffer).filter(|_| whole) else { return false };
        let used = file.comms.iter().map(|comm| usize::from(comm.index) + 1).max().unwrap_or(0);
        self.bytes = RankFile::bytes_with_comms(used + MORE);
        // What a process did once changes its later counts as well.
        self.left_out |= hides_waits(&file);
        true
    }

    fn read<E>(
        &self,
        bytes: usize,
        parse: fn(&[u8]) -> Result<RankFile, E>,
        buffer: &mut Vec<u8>,
    ) -> Option<RankFile> {
        buffer.resize(bytes, 0);
        self.file.read_exact_at(buffer, 0).ok()?;
        parse(buffer).ok()
    }
}

/// When a file was created, from its name, `<pid>.<nanoseconds in hexadecimal>`. The job may have chosen it.
fn created(name: &OsStr) -> u64 {
    let time = name.to_str().and_then(|name| u64::from_str_radix(name.split_once('.')?.1, 16).ok());
    time.unwrap_or(0)
}

/// Whether ranks may work although their counts stand still (replays of CUDA graphs are not counted), or their counts
/// differ although none waits (messages).
fn hides_waits(file: &RankFile) -> bool {
    let graphs = file.captured > 0 || matches!(file.limit, Limit::Captures | Limit::HiddenCaptures);
    graphs || file.comms_lost > 0 || file.has_messages()
}

fn counts(comms: &[Comm]) -> Vec<Count> {
    let used = comms.iter().filter(|comm| !comm.destroyed && comm.ranks > 1 && comm.ops > 0);
    let count = |comm: &Comm| Count {
        hash: comm.hash,
        ranks: comm.ranks,
        rank: comm.rank,
        ops: comm.ops,
        op: comm.last.map_or(0, |last| last.key.op),
        seq: comm.last.map_or(0, |last| last.seq),
    };
    used.map(count).take(MOST_COMMS).collect()
}
