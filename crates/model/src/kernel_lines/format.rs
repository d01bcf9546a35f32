//! Matches records of the kernel log with format strings.
//!
//! A format is the kernel's format string with a typed hole in place of each `%s` or `%d`, for example
//! `nvme {part}: Disabling device after reset failure: {int}`. It has to match the whole record. Text that a user can
//! choose (the name of a process) is in holes that do not influence the result.
//!
//! | hole | accepts |
//! |---|---|
//! | `{int}`, `{hex}` | digits, with a sign; hexadecimal digits |
//! | `{word}` | a name that the kernel chooses: function, driver, array |
//! | `{part}` | a device, for example `md1`, `nvme0n1p1`, `MC0`; no loop device |
//! | `{disk}` | the same, limited to drives and devices built on drives |
//! | `{host}` | a server: name or address |
//! | `{bdf}` | a PCI address with its function |
//! | `{name}` | the name of a process, as `/dev/kmsg` escapes it |
//! | `{pid}` | a process id |
//! | `{text}`, `{rest}` | anything: in the middle, to the end |
//!
//! `{part}`, `{disk}`, `{host}` and `{bdf}` name the part that the record is about. A `|` separates texts that are at
//! different places in the kernel's source; it matches the empty string.

use std::ops::Range;

use crate::PciAddress;

use super::KernelPart;

/// Longest name of a device or server that is accepted.
const NAME_BYTES: usize = 100;

/// `TASK_COMM_LEN` without its NUL, each byte escaped as `\xNN`.
const PROCESS_BYTES: usize = 15 * 4;

/// Prefixes of drives, and of arrays and volumes on drives. Left out: `sr0`, `fd0`, `loop0`, `zram0`, `nbd0`.
const DISKS: &[&str] = &["nvme", "sd", "vd", "xvd", "hd", "md", "dm-", "pmem", "mmcblk", "cciss"];

/// The values of a matching text.
#[derive(Debug)]
pub(super) struct Filled<'a> {
    pub(super) part: KernelPart<'a>,
    /// Positions of process names and ids, in order.
    pub(super) processes: Vec<Range<usize>>,
}

/// Matches `text` with the concatenated formats. Returns the values of the holes, or `None` if it does not match.
pub(super) fn fit<'a>(formats: &[&str], text: &'a str) -> Option<Filled<'a>> {
    let mut found = Filled { part: KernelPart::Node, processes: Vec::new() };
    follows(formats, (text, 0), &mut found).then_some(found)
}

/// Matches `text`, which starts at byte `at` of the record.
fn follows<'a>(formats: &[&str], (text, at): (&'a str, usize), found: &mut Filled<'a>) -> bool {
    let Some((format, behind)) = formats.split_first() else { return text.is_empty() };
    let end = format.find(['{', '|']).unwrap_or(format.len());
    let (literal, rest) = format.split_at(end);
    let Some(text) = text.strip_prefix(literal) else { return false };
    let at = at + literal.len();
    if rest.is_empty() {
        return follows(behind, (text, at), found);
    }
    let (hole, rest) = match rest.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
        Some(split) => split,
        None => ("", rest.get(1..).unwrap_or_default()),
    };
    let mut next = vec![rest];
    next.extend_from_slice(behind);
    match hole {
        "" => follows(&next, (text, at), found),
        "rest" => true,
        "name" => somewhere(&next, (text, at), PROCESS_BYTES, found),
        "text" => somewhere(&next, (text, at), usize::MAX, found),
        _ => filled(hole, text).is_some_and(|(what, rest)| {
            if let Some(what) = what {
                found.part = what;
            }
            let behind = at + (text.len() - rest.len());
            if hole == "pid" {
                found.processes.push(at..behind);
            }
            follows(&next, (rest, behind), found)
        }),
    }
}

/// Matches the formats after a prefix of at most `most` bytes. The prefix must be a process name unless any text is
/// allowed.
fn somewhere<'a>(
    formats: &[&str],
    (text, at): (&'a str, usize),
    most: usize,
    found: &mut Filled<'a>,
) -> bool {
    let literal = formats.first().map_or("", |first| first.split(['{', '|']).next().unwrap_or_default());
    let before = found.processes.len();
    let mut places = text.match_indices(literal).map(|(place, _)| place).take_while(|place| *place <= most);
    places.any(|place| {
        found.processes.truncate(before);
        if most == PROCESS_BYTES {
            found.processes.push(at..at + place);
        }
        text.get(place..).is_some_and(|rest| follows(formats, (rest, at + place), found))
    })
}

/// Fills one hole with as much text as it accepts. Returns the part that it names, and the remaining text.
fn filled<'a>(hole: &str, text: &'a str) -> Option<(Option<KernelPart<'a>>, &'a str)> {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    let device = |byte: u8| word(byte) || byte == b'!';
    match hole {
        "int" | "pid" => {
            let (_, rest) = run(text.strip_prefix('-').unwrap_or(text), |byte| byte.is_ascii_digit())?;
            Some((None, rest))
        }
        "hex" => run(text, |byte| byte.is_ascii_hexdigit()).map(|(_, rest)| (None, rest)),
        "word" => run(text, word).map(|(_, rest)| (None, rest)),
        "part" => {
            let (name, rest) = run(text, device)?;
            (!name.starts_with("loop")).then_some((Some(KernelPart::Name(name)), rest))
        }
        "disk" => {
            let (name, rest) = run(text, device)?;
            let disk = DISKS.iter().any(|disk| name.starts_with(disk));
            disk.then_some((Some(KernelPart::Name(name)), rest))
        }
        "host" => {
            let (name, rest) = run(text, |byte| word(byte) || matches!(byte, b':' | b'[' | b']' | b'%'))?;
            Some((Some(KernelPart::Name(name)), rest))
        }
        "bdf" => {
            let (run, _) = run(text, |byte| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.'))?;
            let place = run.trim_end_matches(':');
            let address: PciAddress = place.contains('.').then(|| place.parse().ok()).flatten()?;
            Some((Some(KernelPart::Pci(address)), text.get(place.len()..)?))
        }
        _ => None,
    }
}

fn run(text: &str, accepts: impl Fn(u8) -> bool) -> Option<(&str, &str)> {
    let end = text.bytes().position(|byte| !accepts(byte)).unwrap_or(text.len());
    (1..=NAME_BYTES).contains(&end).then(|| text.split_at(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part<'a>(format: &str, text: &'a str) -> Option<KernelPart<'a>> {
        fit(&[format], text).map(|found| found.part)
    }

    #[test]
    fn a_format_matches_only_the_whole_record() {
        let format = "nvme {part}: Disabling device after reset failure: {int}";
        let nvme4 = Some(KernelPart::Name("nvme4"));
        assert_eq!(part(format, "nvme nvme4: Disabling device after reset failure: -19"), nvme4);
        for other in [
            "x nvme nvme4: Disabling device after reset failure: -19",
            "nvme nvme4: Disabling device after reset failure: -19 x",
            "nvme nvme4: Disabling device after reset failure: x",
            "nvme : Disabling device after reset failure: -19",
            "nvme nvme 4: Disabling device after reset failure: -19",
            "nvme nvme4: Disabling device after reset failure: ",
            "",
        ] {
            assert_eq!(part(format, other), None, "{other}");
        }
    }

    #[test]
    fn a_hole_accepts_only_its_type() {
        let at = KernelPart::Pci("0000:5e:00.0".parse().unwrap());
        assert_eq!(part("{word} {bdf}: {rest}", "mlx5_core 0000:5e:00.0: x"), Some(at));
        assert_eq!(part("{word} {bdf}: {rest}", "mlx5_core 0000:5e:00: x"), None, "no function");
        assert_eq!(part("{word} {bdf}: {rest}", "a b 0000:5e:00.0: x"), None);
        assert_eq!(part("dev {disk}, {rest}", "dev dm-0, x"), Some(KernelPart::Name("dm-0")));
        for no_disk in ["dev sr0, x", "dev loop0, x", "dev fd0, x", "dev ?, x", "dev nbd0, x"] {
            assert_eq!(part("dev {disk}, {rest}", no_disk), None, "{no_disk}");
        }
        assert_eq!(part("({part}): {rest}", "(loop0): x"), None);
        assert_eq!(
            part("server {host} OK", "server fe80::1%eth0 OK"),
            Some(KernelPart::Name("fe80::1%eth0"))
        );
        assert_eq!(part("0x{hex}: end", "0x1f: end"), Some(KernelPart::Node));
        assert_eq!(part("a {unknown}", "a b"), None);
    }

    #[test]
    fn a_process_name_has_a_bounded_length_and_does_not_influence_the_match() {
        let format = "task {name}:{int} blocked";
        assert_eq!(part(format, "task a:1 blocked:2 blocked"), Some(KernelPart::Node));
        let escaped = format!("task {}:7 blocked", "\\x0a".repeat(15));
        assert_eq!(part(format, &escaped), Some(KernelPart::Node));
        let long = format!("task {}:7 blocked", "x".repeat(PROCESS_BYTES + 1));
        assert_eq!(part(format, &long), None);
    }

    #[test]
    fn a_bar_matches_the_empty_string() {
        assert_eq!(part("severity=|Fatal|, type={rest}", "severity=Fatal, type=x"), Some(KernelPart::Node));
        assert_eq!(fit(&["lead ", "{int}|", "s"], "lead 5s").map(|found| found.part), Some(KernelPart::Node));
    }

    /// A flood of long records must take time proportional to its size.
    #[test]
    fn matching_a_long_record_takes_linear_time() {
        let long = format!("XFS (md0): {}", "Log ".repeat(200_000));
        assert_eq!(
            part("XFS ({part}): {text} (0x{hex}) detected at {text}.  Shutting down filesystem.", &long),
            None
        );
    }
}
