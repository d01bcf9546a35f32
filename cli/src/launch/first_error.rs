//! The first error that the program wrote, for the line about its end.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;

use railgate_joblog::{Kind, Log as JobLog, first_error};

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
    said(&JobLog { bytes: &bytes, rank: None, cut }, ended.ranks)
}

fn said(log: &JobLog<'_>, ranks: u32) -> Option<String> {
    let first = first_error(std::slice::from_ref(log), ranks).first?;
    // srun's line has only the exit code of the task, which launch prints as well. A rank that waited for a collective names itself, and no
    // line of the program.
    let waited = first.rule.kind == Kind::Consequence && first.place.is_none();
    if first.rule.id == "srun-task" || waited {
        return None;
    }
    let rank = first.rank.map(|rank| format!("rank {rank}: ")).unwrap_or_default();
    let place = first.place.map(|place| format!(" ({}:{})", place.file, place.line)).unwrap_or_default();
    Some(format!("first error: {rank}{}{place}", first.text))
}

#[cfg(test)]
mod tests {
    use super::{JobLog, said};

    fn of(log: &str) -> Option<String> {
        said(&JobLog { bytes: log.as_bytes(), rank: None, cut: false }, 8)
    }

    #[test]
    fn a_rank_that_waited_is_not_the_first_error() {
        let timeout = "[rank1]:[E1123 16:42:10.4 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: \
                       WorkNCCL(SeqNum=1580) ran for 600060 milliseconds before timing out.\n";
        assert_eq!(of(timeout), None);
        let error = "[rank0]: Traceback (most recent call last):\n[rank0]:   File \"train.py\", line 88, in main\n[rank0]: KeyError: 'x'\n";
        assert_eq!(
            of(&format!("{timeout}{error}")).as_deref(),
            Some("first error: rank 0: KeyError: 'x' (train.py:88)")
        );
    }

    #[test]
    fn an_error_long_before_the_end_is_not_the_first() {
        let error = |text: &str| {
            format!("Traceback (most recent call last):\n  File \"train.py\", line 88, in main\n{text}\n")
        };
        let steps: String = (1..500).map(|step| format!("step {step} loss 2.1\n")).collect();
        let log = format!("{}{steps}{}", error("TimeoutError: no answer"), error("KeyError: 'x'"));
        assert_eq!(of(&log).as_deref(), Some("first error: KeyError: 'x' (train.py:88)"));
    }
}
