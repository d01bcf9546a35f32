//! The first error that the program wrote, for the line about its end.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;

use railgate_joblog::{Log as JobLog, first_error};

use super::start::Ended;

/// Most bytes that are read, from the end.
const MOST: u64 = 4 << 20;

/// The file that launch's own output goes to, which is also that of srun, and its length when the program began.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    from: u64,
}

impl Log {
    /// `None` if standard error is no regular file.
    pub(crate) fn of_own_output() -> Option<Self> {
        let path = std::fs::read_link("/proc/self/fd/2").ok()?;
        let found = std::fs::metadata(&path).ok().filter(std::fs::Metadata::is_file)?;
        Some(Log { path, from: found.len() })
    }

    fn read(&self) -> Option<(Vec<u8>, bool)> {
        let mut file = File::open(&self.path).ok()?;
        let length = file.metadata().ok()?.len();
        let from = self.from.min(length).max(length.saturating_sub(MOST));
        file.seek(SeekFrom::Start(from)).ok()?;
        let mut bytes = Vec::new();
        file.take(MOST).read_to_end(&mut bytes).ok()?;
        Some((bytes, from > self.from))
    }
}

/// `rank 1: ValueError: bad batch (train.py:88)`; `None` if there is none, or it cannot be read.
pub(crate) fn of(ended: &Ended) -> Option<String> {
    let (bytes, cut) = ended.log.as_ref()?.read()?;
    let first = first_error(&[JobLog { bytes: &bytes, rank: None, cut }], u32::MAX).first?;
    // srun's line has only the exit code of the task, which launch prints as well.
    if first.rule.id == "srun-task" {
        return None;
    }
    let rank = first.rank.map(|rank| format!("rank {rank}: ")).unwrap_or_default();
    let place = first.place.map(|place| format!(" ({}:{})", place.file, place.line)).unwrap_or_default();
    Some(format!("first error: {rank}{}{place}", first.text))
}
