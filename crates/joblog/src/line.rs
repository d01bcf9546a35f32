//! Lines of a log: bounded, printable, and with the label of the rank that wrote them.

use std::sync::LazyLock;

use regex::Regex;

use crate::traceback;

/// The most characters of a line that are read. Messages of PyTorch and NCCL are shorter; a dumped tensor is not.
const LONGEST: usize = 2_000;

/// A moment as logs write it: seconds since the start of the year, in the zone of the log. Formats without a year (glog) and
/// without a zone are comparable with it in one log, and between nodes with one zone.
pub(crate) type Moment = f64;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Line {
    /// Without colour, label and moment.
    pub(crate) text: String,
    /// What a launcher put in front of the line: `[rank1]`, `3`. Lines with one label come from one process.
    pub(crate) label: Option<String>,
    /// The rank in the job, where the label is one.
    pub(crate) rank: Option<u32>,
    pub(crate) when: Option<Moment>,
}

/// What a launcher puts in front of all lines: a program prints a number or a name with a colon, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Numbered {
    /// `srun --label`: the rank.
    Yes,
    /// pdsh, the launcher of DeepSpeed: the host.
    Host,
    No,
}

impl Numbered {
    /// Three of four lines of a labelled log have a label, without those of srun and slurmstepd: the others are the
    /// script's own.
    pub(crate) fn of(log: &[u8]) -> Numbered {
        let of_tasks = |line: &&[u8]| {
            !line.is_empty() && !line.starts_with(b"srun: ") && !line.starts_with(b"slurmstepd: ")
        };
        let lines = log.split(|&byte| byte == b'\n').filter(of_tasks).take(2_000);
        let (mut all, mut numbered, mut hosts) = (0_usize, 0_usize, 0_usize);
        for line in lines {
            all += 1;
            numbered += usize::from(number(line).is_some());
            hosts += usize::from(host(line).is_some());
        }
        match all {
            0 => Numbered::No,
            all if numbered * 4 >= all * 3 => Numbered::Yes,
            all if hosts * 4 >= all * 3 => Numbered::Host,
            _ => Numbered::No,
        }
    }
}

/// The number in front of a line: ` 3: text`.
fn number(line: &[u8]) -> Option<(u32, usize)> {
    let blanks = line.iter().take_while(|&&byte| byte == b' ').count();
    let digits = line.get(blanks..)?.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if !(1..=6).contains(&digits) {
        return None;
    }
    let end = blanks + digits;
    let colon = line.get(end..end + 1)? == b":" && matches!(line.get(end + 1), None | Some(b' '));
    let number = std::str::from_utf8(line.get(blanks..end)?).ok()?.parse().ok()?;
    colon.then_some((number, (end + 2).min(line.len())))
}

/// The host in front of a line: `gn4: text`, `10.0.0.4: text`. Names of hosts have digits, those of exceptions do not.
fn host(line: &[u8]) -> Option<usize> {
    const LONGEST: usize = 64;
    let end = line.iter().take(LONGEST).position(|&byte| byte == b':')?;
    let name = line.get(..end)?;
    let is_name = name.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'));
    let has_digit = name.iter().any(u8::is_ascii_digit) && !name.iter().all(u8::is_ascii_digit);
    (is_name && has_digit && line.get(end + 1) == Some(&b' ')).then_some(end)
}

/// Labels of PyTorch (`[rank1]:`), torchrun (`[trainer1]:`, a local rank), Open MPI (`[1,3]<stderr>:`), and of the processes of vLLM
/// (`(Worker_TP1 pid=2001)`) and Ray (`(RayTrainWorker pid=1942, ip=10.3.0.14)`).
static LABEL: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let ranks = r"\[(?:rank(?P<rank>\d{1,6})|\d+,(?P<mpi>\d{1,6})|(?P<local>[A-Za-z_]+\d{1,4}))\](?:<std(?:out|err)>)?:";
    let processes = r"\([A-Za-z_][\w.]*(?: rank=\d+)? pid=\d+(?:, ip=[\d.]+)?\)";
    Regex::new(&format!(r"^(?:{ranks}|(?P<process>{processes})) ?")).ok()
});
/// `ERROR 10-15 08:32:29 [core.py:708]` of vLLM in front of each line of a traceback, behind the process.
static VLLM: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"^(?:ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[\S+:\d+\] ?").ok());
/// `2026-11-23 16:42:10.123`, also with `T` or `_` between, and in brackets.
static ISO: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(
        r"\d{4}-(?P<month>\d\d)-(?P<day>\d\d)[ T_](?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?P<f>[.,]\d{1,9})?",
    )
    .ok()
});
/// `E1123 16:42:10.123456` of glog; c10 writes the month without a leading zero.
static GLOG: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r"(?:^|\[)[EWIF](?P<month>\d{1,2}?)(?P<day>\d\d) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?P<f>\.\d{1,9})?").ok()
});

/// Reads a line.
///
/// Of a progress bar, which returns the carriage, only the last state is read: what a failing process appends to it.
pub(crate) fn read(bytes: &[u8], numbered: Numbered) -> Line {
    let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
    let mut line = Line { text: String::new(), label: None, rank: None, when: None };
    // A launcher labels lines: its label stands in front of all states of a progress bar.
    let rest = line.labelled(bytes, numbered);
    let mut rest = rest.rsplit(|&byte| byte == b'\r').next().unwrap_or(rest);
    if line.label.is_none() {
        rest = line.labelled(rest, numbered);
    }
    let mut text = plain(rest);
    let from = behind_a_bar(&text);
    text.drain(..from);
    // A launcher's label, and behind it that of the program.
    for is_second in [false, true] {
        line.take_label(&mut text, is_second);
    }
    drain_level(&mut text, false);
    line.when = moment(&text);
    line.text = text;
    line
}

impl Line {
    /// Takes the label in front of a line, if all lines have one. Returns the rest.
    fn labelled<'b>(&mut self, bytes: &'b [u8], numbered: Numbered) -> &'b [u8] {
        let (label, rank, from) = match numbered {
            Numbered::Yes => match number(bytes) {
                Some((rank, from)) => (rank.to_string(), Some(rank), from),
                None => return bytes,
            },
            Numbered::Host => match host(bytes) {
                Some(end) => {
                    let name = String::from_utf8_lossy(bytes.get(..end).unwrap_or_default());
                    (name.into_owned(), None, end + 2)
                }
                None => return bytes,
            },
            Numbered::No => return bytes,
        };
        (self.label, self.rank) = (Some(label), rank);
        bytes.get(from..).unwrap_or_default()
    }

    /// Takes the label in front of a text. Behind another label, `[step12]:` is the program's own word.
    fn take_label(&mut self, text: &mut String, is_second: bool) {
        let label = LABEL.as_ref().filter(|_| text.starts_with(['[', '(']));
        let Some(found) = label.and_then(|label| label.captures(text)) else { return };
        if is_second && found.name("local").is_some() {
            return;
        }
        let number = found.name("rank").or_else(|| found.name("mpi"));
        self.rank = number.and_then(|rank| rank.as_str().parse().ok()).or(self.rank);
        let is_process = found.name("process").is_some();
        let whole = found.get(0).map_or(0..0, |whole| whole.range());
        let name = text.get(whole.clone()).unwrap_or_default().trim_end();
        match &mut self.label {
            None => self.label = Some(name.to_owned()),
            // One rank may have several.
            Some(label) if is_process => label.push_str(name),
            Some(_) => {}
        }
        text.drain(whole);
        drain_level(text, is_process);
    }
}

/// Removes vLLM's level, time and place in front of a line: `always`, or only of a traceback, since the level marks other lines as errors.
fn drain_level(text: &mut String, always: bool) {
    let level = VLLM.as_ref().filter(|_| text.starts_with(['E', 'C'])).and_then(|vllm| vllm.find(text));
    let Some(level) = level.map(|level| level.range()) else { return };
    let rest = text.get(level.end..).unwrap_or_default();
    let is_exception = || {
        let name = rest.split(": ").next().unwrap_or_default();
        name.ends_with("Error") && !name.contains(' ')
    };
    if always || rest.starts_with(' ') || traceback::begins(rest) || is_exception() {
        text.drain(level);
    }
}

/// Where the label of a traceback's header begins, if the header follows the last state of a progress bar; else 0.
/// A line that begins with another label keeps that one.
fn behind_a_bar(text: &str) -> usize {
    let before = || {
        let head = text.strip_suffix(':')?.strip_suffix("]: Traceback (most recent call last)")?;
        let (bar, rank) = head.rsplit_once("[rank")?;
        let is_label =
            !bar.starts_with('[') && !rank.is_empty() && rank.bytes().all(|byte| byte.is_ascii_digit());
        is_label.then_some(bar.len())
    };
    before().unwrap_or(0)
}

/// The first moment in a text.
pub(crate) fn moment(text: &str) -> Option<Moment> {
    let head = text.get(..text.len().min(200)).unwrap_or(text);
    // Most lines have no time of day.
    head.match_indices(':').nth(1)?;
    let found = [&ISO, &GLOG].into_iter().find_map(|format| format.as_ref()?.captures(head))?;
    let part = |name| found.name(name)?.as_str().parse::<u32>().ok();
    let fraction = found.name("f").map_or("", |fraction| fraction.as_str().get(1..).unwrap_or_default());
    let fraction = format!("0.{fraction}0").parse::<f64>().unwrap_or(0.0);
    let (month, day) = (part("month")?, part("day")?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let day_of_year = DAYS.get(usize::try_from(month - 1).ok()?)? + day;
    let seconds = ((day_of_year * 24 + part("h")?) * 60 + part("m")?) * 60 + part("s")?;
    Some(f64::from(seconds) + fraction)
}

/// Days of a leap year before each month: one scale for all years.
const DAYS: [u32; 12] = [0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335];

/// Printable text without escape sequences, cut at [`LONGEST`].
fn plain(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().min(LONGEST));
    let bytes = bytes.get(..bytes.len().min(4 * LONGEST)).unwrap_or(bytes);
    let lossy = String::from_utf8_lossy(bytes);
    let mut chars = lossy.chars().peekable();
    let mut length = 0;
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            skip_escape(&mut chars);
            continue;
        }
        if length == LONGEST {
            break;
        }
        text.push(if c == '\t' { ' ' } else { railgate_text::shown(c) });
        length += 1;
    }
    text.truncate(text.trim_end().len());
    text
}

/// Skips what follows an escape character: `[` to a letter (colours), `]` to a bell or a backslash (titles), or one character.
fn skip_escape(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    match chars.next() {
        Some('[') => drop(chars.find(|c| ('\u{40}'..='\u{7e}').contains(c))),
        Some(']') => drop(chars.find(|c| matches!(c, '\u{7}' | '\\'))),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_launchers_name_the_rank() {
        for (line, numbered, rank, text) in [
            ("3: step 1", Numbered::Yes, Some(3), "step 1"),
            ("  3: step 1", Numbered::Yes, Some(3), "step 1"),
            ("3: step 1", Numbered::No, None, "3: step 1"),
            ("[rank12]: ValueError: x", Numbered::No, Some(12), "ValueError: x"),
            ("[1,3]<stderr>: out", Numbered::No, Some(3), "out"),
            ("[trainer1]:out", Numbered::No, None, "out"),
            ("(Worker_TP1 pid=2001) ERROR 10-15 08:32:29 [core.py:708] out", Numbered::No, None, "out"),
            ("(VllmWorker rank=1 pid=2001) out", Numbered::No, None, "out"),
            ("ERROR 10-15 08:32:29 [core.py:708]   File \"a.py\"", Numbered::No, None, "  File \"a.py\""),
            ("ERROR 10-15 08:32:29 [core.py:708] ValueError: x", Numbered::No, None, "ValueError: x"),
            (
                "ERROR 10-15 08:32:29 [a.py:7] no port",
                Numbered::No,
                None,
                "ERROR 10-15 08:32:29 [a.py:7] no port",
            ),
            ("(_Loader.read pid=19, ip=10.3.0.14) out", Numbered::No, None, "out"),
            ("(pid=19) out", Numbered::No, None, "(pid=19) out"),
            ("[default1]:[rank3]: out", Numbered::No, Some(3), "out"),
            ("[rank3]: [step12]: loss 2.1", Numbered::No, Some(3), "[step12]: loss 2.1"),
            ("[INFO]: out", Numbered::No, None, "[INFO]: out"),
        ] {
            let read = read(line.as_bytes(), numbered);
            assert_eq!((read.rank, read.text.as_str()), (rank, text), "{line}");
        }
        let label = |line: &str| read(line.as_bytes(), Numbered::Yes).label;
        assert_ne!(label("3: (Worker_TP0 pid=19) out"), label("3: (Worker_TP1 pid=20) out"));
        assert_eq!(label("3: [rank3]: out"), label("3: out"));
    }

    #[test]
    fn escape_sequences_and_progress_bars_are_removed() {
        let read = |line: &str| read(line.as_bytes(), Numbered::No).text;
        assert_eq!(read("\u{1b}[31mred\u{1b}[0m \u{1b}]0;title\u{7}x"), "red x");
        assert_eq!(read("10%\r20%\r30% killed"), "30% killed");
        assert_eq!(
            read("30%|███| 3/9[rank1]: Traceback (most recent call last):"),
            "Traceback (most recent call last):"
        );
        assert_eq!(read("a\u{202e}b\u{0}c").chars().count(), 5);
    }

    #[test]
    fn moments_of_all_formats_are_on_one_scale() {
        let of = |line: &str| moment(line).unwrap();
        let glog = of("[E1123 16:42:10.500000000 ProcessGroupNCCL.cpp:607]");
        assert!((of("2026-11-23T16:42:10.5 x") - glog).abs() < 1e-6);
        assert!((of("[2026-11-23 16:42:10,500] x") - glog).abs() < 1e-6);
        assert!((of("[E321 02:07:08.408 ") - of("2025-03-21 02:07:08.408")).abs() < 1e-6);
        assert_eq!(moment("step 1 of 2"), None);
    }
}
