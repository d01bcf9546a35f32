//! The lines of the kernel log that railgate knows, as format strings of the kernel and its drivers.
//!
//! There is one table: the reader of `/dev/kmsg` keeps the records that match a row (or `LEADERS`), so it cannot drop
//! records of a row. The gate defines what a row means (severity, class, fix).

mod file_systems;
mod format;
mod hosts;
mod nics;
mod processes;
mod storage;

pub use processes::without_processes;

use crate::{KernelLine, PciAddress};

/// The part that a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelPart<'a> {
    /// The whole node.
    Node,
    /// The device at this address.
    Pci(PciAddress),
    /// A drive, array, file system, memory controller or server.
    Name(&'a str),
}

/// A record that matches a row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recognised<'a> {
    /// Id of the row, as in the configuration (`[gate.checks.kmsg] lines`).
    pub id: &'static str,
    /// The part that the record is about.
    pub part: KernelPart<'a>,
}

/// One kind of line, with all known wordings.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Id in the configuration.
    pub id: &'static str,
    /// All known wordings.
    pub formats: &'static [Format],
    /// What the kernel logs about the same part when the problem is over.
    pub over: &'static [Format],
}

const fn row(id: &'static str, formats: &'static [Format]) -> Row {
    Row { id, formats, over: &[] }
}

/// One wording.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// The text that a helper of the kernel prints first, for example `dev_err`, `xfs_alert` or a file's `pr_fmt`.
    pub lead: Lead,
    /// The format string, with typed holes (see `format.rs`).
    pub text: &'static str,
    /// Where the wording comes from.
    pub source: Source,
    /// Only records with a syslog level below this one match: drivers use the same words for harmless states at higher
    /// levels.
    pub below_level: u8,
}

/// The text before the format string of the calling code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lead {
    /// Nothing.
    None,
    /// The text of a helper function or macro.
    Text(Helper),
    /// The name of the running process: `"%s: …", current->comm`. The reader strips it, so later stages do not see it.
    Process,
}

/// The part of a record that a helper prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Helper {
    /// The text, with typed holes.
    pub text: &'static str,
    /// The format string of the helper in the kernel's source.
    pub wording: &'static str,
    /// Source files that define the helper, in all releases.
    pub files: &'static [&'static str],
}

/// The source of a wording.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// The kernel's source: a file, and the oldest and newest release found to have the wording. Searched were Debian's
    /// 5.10, 6.1 and 6.12 and Ubuntu's 5.15.
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
    /// The source is not available; the text states where such a record was reported.
    Reported(&'static str),
}

/// A release of Linux, for example `(5, 10)`.
pub type Release = (u8, u8);

const OLDEST: Release = (5, 10);
/// The newest release that was searched.
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
        // Fast path: most records fail this test, and every record of the log is compared with all formats.
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

    /// The fixed text at the start of a matching record.
    fn head(&self) -> &'static str {
        self.begin().split(['{', '|']).next().unwrap_or_default()
    }
}

const DEVICE: Helper =
    Helper { text: "{word} {bdf}: ", wording: "%s %s: %pV", files: &["drivers/base/core.c"] };

/// Returns all rows. The first row that matches a record counts.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    [hosts::ROWS, nics::ROWS, storage::ROWS, file_systems::ROWS].into_iter().flatten()
}

/// The ids of all rows, each once.
pub fn ids() -> impl Iterator<Item = &'static str> {
    rows().map(|row| row.id)
}

/// Recognises a record by its text, at any level.
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

/// Returns row and part of a record which states that a problem is over.
#[must_use]
pub fn taken_back(text: &str) -> Option<Recognised<'_>> {
    rows().find_map(|row| {
        let part = row.over.iter().find_map(|format| format.fit(text))?;
        Some(Recognised { id: row.id, part })
    })
}

impl KernelLine {
    /// Recognises the record by its text and level.
    #[must_use]
    pub fn recognise(&self) -> Option<Recognised<'_>> {
        recognise_at(self.level, &self.text)
    }
}

/// Records that are kept in addition to the rows: how they start, and which code reads them. "Job reports" shows them
/// to people as kernel messages during a job; they are not judged.
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

/// Returns whether a check or a report reads records with this text.
pub fn is_read(text: &str) -> bool {
    has_leader(text) || recognise(text).is_some() || taken_back(text).is_some()
}

/// Returns whether a record starts like one that is read. If it starts with a process name, that process imitates the
/// kernel or a driver.
pub fn imitates(text: &str) -> bool {
    let formats = rows().flat_map(|row| row.formats.iter().chain(row.over));
    let mut heads = formats.filter(|format| format.lead != Lead::Process).map(Format::head);
    has_leader(text) || heads.any(|head| !head.is_empty() && text.starts_with(head))
}

/// Returns the kernel's part of a record that starts with a process name, if a row knows it.
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
    // For `{1}[Hardware Error]: …`: the kernel numbers the reports of the firmware.
    let numbered = text.strip_prefix('{').and_then(|rest| Some(rest.split_once('}')?.1));
    let text = numbered.unwrap_or(text);
    LEADERS.iter().any(|(leader, _)| text.starts_with(leader)) || is_of_a_device(text)
}

/// Whether a record starts with a driver and the PCI address of its device, as the kernel's `dev_err` prints them:
/// `bnxt_en 0000:1a:00.0 …`. Job reports show these.
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
