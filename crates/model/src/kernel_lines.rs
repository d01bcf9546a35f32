//! The lines of the kernel log that railgate knows, as the format strings of the kernel and its drivers.
//!
//! One table: the reader of `/dev/kmsg` keeps what fits a row of it (and what `LEADERS` lists), so a row that the reader drops
//! cannot exist. What a row means (severity, class, fix) is the gate's.

mod file_systems;
mod format;
mod hosts;
mod nics;
mod processes;
mod storage;

pub use processes::without_processes;

use crate::{KernelLine, PciAddress};

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelPart<'a> {
    /// The whole node.
    Node,
    /// The device at this address.
    Pci(PciAddress),
    /// A drive, array, file system, memory controller or server.
    Name(&'a str),
}

/// A record that a row of the table knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recognised<'a> {
    /// The row, as the configuration names it (`[gate.checks.kmsg] lines`).
    pub id: &'static str,
    /// What the record is about.
    pub part: KernelPart<'a>,
}

/// One kind of line, in every wording that is known.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its name in the configuration.
    pub id: &'static str,
    /// Every wording.
    pub formats: &'static [Format],
    /// What the kernel writes of the same part when the trouble is over.
    pub over: &'static [Format],
}

const fn row(id: &'static str, formats: &'static [Format]) -> Row {
    Row { id, formats, over: &[] }
}

/// One wording.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// What a helper of the kernel prints first: `dev_err`, `xfs_alert`, a file's `pr_fmt`.
    pub lead: Lead,
    /// The format string, with typed holes (`format.rs`).
    pub text: &'static str,
    /// Who writes it.
    pub source: Source,
    /// The syslog level from which on a record is no longer meant: a driver prints the same words about harmless states.
    pub below_level: u8,
}

/// What stands before the format string of the place that prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lead {
    /// Nothing.
    None,
    /// A helper's words.
    Text(Helper),
    /// The name of the running process: `"%s: …", current->comm`. The reader takes it away, so nothing further sees it.
    Process,
}

/// A helper's part of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Helper {
    /// The words, with typed holes.
    pub text: &'static str,
    /// Its format string in the kernel's source.
    pub wording: &'static str,
    /// The files that one release or another has it in.
    pub files: &'static [&'static str],
}

/// Where a wording comes from.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// The kernel's source: a file, and the oldest and the newest release in which it was seen to have the wording. Debian's 5.10,
    /// 6.1 and 6.12 and Ubuntu's 5.15 were searched for all.
    Linux {
        /// Path in the source tree.
        file: &'static str,
        /// Oldest release.
        since: Release,
        /// Newest release.
        until: Release,
    },
    /// NVIDIA's driver: a file of github.com/NVIDIA/open-gpu-kernel-modules 595.45.04.
    Nvidia(&'static str),
    /// No source at hand: where such a record was reported.
    Reported(&'static str),
}

/// A release of Linux: `(5, 10)`.
pub type Release = (u8, u8);

const OLDEST: Release = (5, 10);
/// The newest release whose source was searched.
pub const NEWEST: Release = (6, 12);

/// A format string that all releases from 5.10 to 6.12 have.
const fn linux(file: &'static str, text: &'static str) -> Format {
    linux_in(file, OLDEST, NEWEST, text)
}

const fn linux_in(file: &'static str, since: Release, until: Release, text: &'static str) -> Format {
    Format { lead: Lead::None, text, source: Source::Linux { file, since, until }, below_level: u8::MAX }
}

const fn nvidia(file: &'static str, text: &'static str) -> Format {
    Format { lead: Lead::None, text, source: Source::Nvidia(file), below_level: u8::MAX }
}

const fn reported(source: &'static str, text: &'static str) -> Format {
    Format { lead: Lead::None, text, source: Source::Reported(source), below_level: u8::MAX }
}

impl Format {
    const fn after(self, helper: Helper) -> Format {
        Format { lead: Lead::Text(helper), ..self }
    }

    const fn after_a_process_name(self) -> Format {
        Format { lead: Lead::Process, ..self }
    }

    const fn below_level(self, level: u8) -> Format {
        Format { below_level: level, ..self }
    }

    fn fit<'a>(&self, text: &'a str) -> Option<KernelPart<'a>> {
        self.filled(text).map(|found| found.part)
    }

    fn filled<'a>(&self, text: &'a str) -> Option<format::Filled<'a>> {
        // Most records fail here: the whole log is compared with all formats.
        let first = self.begin().bytes().next().filter(|first| !matches!(first, b'{' | b'|'));
        if first.is_some_and(|first| text.bytes().next() != Some(first)) {
            return None;
        }
        match self.lead {
            Lead::None | Lead::Process => format::fit(&[self.text], text),
            Lead::Text(helper) => format::fit(&[helper.text, self.text], text),
        }
    }

    fn begin(&self) -> &'static str {
        match self.lead {
            Lead::Text(helper) => helper.text,
            Lead::None | Lead::Process => self.text,
        }
    }

    /// The fixed words that a record of this format begins with.
    fn head(&self) -> &'static str {
        self.begin().split(['{', '|']).next().unwrap_or_default()
    }
}

const DEVICE: Helper =
    Helper { text: "{word} {bdf}: ", wording: "%s %s: %pV", files: &["drivers/base/core.c"] };

/// All rows. The first that fits counts.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    [hosts::ROWS, nics::ROWS, storage::ROWS, file_systems::ROWS].into_iter().flatten()
}

/// The ids of all rows, each once.
pub fn ids() -> impl Iterator<Item = &'static str> {
    rows().map(|row| row.id)
}

/// The meaning of a record, at any level.
#[must_use]
pub fn recognise(text: &str) -> Option<Recognised<'_>> {
    recognise_at(0, text)
}

fn recognise_at(level: u8, text: &str) -> Option<Recognised<'_>> {
    rows().find_map(|row| {
        let formats = row.formats.iter().filter(|format| level < format.below_level);
        let part = formats.filter_map(|format| format.fit(text)).next()?;
        Some(Recognised { id: row.id, part })
    })
}

/// The row and part about which a record says that the trouble is over.
#[must_use]
pub fn taken_back(text: &str) -> Option<Recognised<'_>> {
    rows().find_map(|row| {
        let part = row.over.iter().find_map(|format| format.fit(text))?;
        Some(Recognised { id: row.id, part })
    })
}

impl KernelLine {
    /// The meaning of the record, by its text and level.
    #[must_use]
    pub fn recognise(&self) -> Option<Recognised<'_>> {
        recognise_at(self.level, &self.text)
    }
}

/// What is kept besides the rows, by how the record begins, and who reads it. "Job reports" show people what the kernel wrote during
/// a job; nothing is judged by that.
const LEADERS: &[(&str, &str)] = &[
    ("NVRM:", "xid.rs: Xids and lost GPUs"),
    ("nvidia-nvswitch", "xid.rs: SXids"),
    ("nvidia", "job reports"),
    ("Out of memory", "job reports: the out-of-memory end of a job"),
    ("Memory cgroup out of memory", "job reports: the out-of-memory end of a job"),
    ("oom-kill:", "job reports: the out-of-memory end of a job"),
    ("mlx4", "job reports"),
    ("mlx5", "job reports"),
    ("infiniband", "job reports"),
    ("pcieport", "job reports"),
    ("AER:", "job reports"),
    ("mce:", "job reports"),
    ("EDAC", "job reports"),
    ("[Hardware Error]", "job reports"),
    ("nfs:", "job reports"),
    ("NFS:", "job reports"),
    ("nfs4", "job reports"),
    ("RPC:", "job reports"),
    ("rpc", "job reports"),
    ("Lustre", "job reports"),
    ("LNet", "job reports"),
    ("nvme", "job reports"),
    ("EXT4-fs", "job reports"),
    ("XFS", "job reports"),
    ("BTRFS", "job reports"),
];

/// Whether a check or a report reads a record with this text.
pub fn is_read(text: &str) -> bool {
    has_leader(text) || recognise(text).is_some() || taken_back(text).is_some()
}

/// Whether a record begins as one that is read: a process with such a name imitates the kernel or a driver.
pub fn imitates(text: &str) -> bool {
    let formats = rows().flat_map(|row| row.formats.iter().chain(row.over));
    let mut heads = formats.filter(|format| format.lead != Lead::Process).map(Format::head);
    has_leader(text) || heads.any(|head| !head.is_empty() && text.starts_with(head))
}

/// The kernel's own words of a record that begins with the name of a process, where a row knows them.
pub fn own_words(text: &str) -> Option<&str> {
    const LONGEST_NAME: usize = 15 * "\\x00".len();
    let formats = rows().flat_map(|row| row.formats).filter(|format| format.lead == Lead::Process);
    formats
        .filter_map(|format| {
            let at = text.find(format.head()).filter(|at| *at <= LONGEST_NAME + ": ".len())?;
            let own = text.get(at..)?;
            (text.get(..at)?.ends_with(": ") && format.fit(own).is_some()).then_some(own)
        })
        .next()
}

fn has_leader(text: &str) -> bool {
    // `{1}[Hardware Error]: …`: the kernel numbers what the firmware reports.
    let numbered = text.strip_prefix('{').and_then(|rest| Some(rest.split_once('}')?.1));
    let text = numbered.unwrap_or(text);
    LEADERS.iter().any(|(leader, _)| text.starts_with(leader)) || is_of_a_device(text)
}

/// `bnxt_en 0000:1a:00.0 …`: a driver and the PCI address of its device, as the kernel's `dev_err` writes. Job reports show these.
fn is_of_a_device(text: &str) -> bool {
    let Some((driver, rest)) = text.split_once(' ') else { return false };
    let place = rest.split([' ', ',']).next().unwrap_or_default().trim_end_matches(':');
    let word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    driver.bytes().all(word) && place.contains('.') && place.parse::<PciAddress>().is_ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn leaders_are_each_listed_once() {
        let leaders: BTreeSet<&str> = LEADERS.iter().map(|(leader, _)| *leader).collect();
        assert_eq!(leaders.len(), LEADERS.len());
        assert!(LEADERS.iter().all(|(_, reader)| !reader.is_empty()));
    }
}
