//! Removes process names and ids from kernel lines, for readers who do not own these processes.

use std::borrow::Cow;

use super::{Format, rows};

/// Replaces a name or number.
const COVER: &str = "…";

/// Prefixes of the kernel's and drivers' texts about a process. The rest of the line has unknown length, since a
/// process name can contain anything.
const BEGINS: &[&str] = &[
    "pid=", "name=", "comm ", "comm:", "pid ", "pid:", "PID", "process ", "Process ", "task ", "uid", "UID",
];

/// The driver's text if no process was running.
const NO_PROCESS: &str = "pid='<unknown>', name=<unknown>, ";

/// Returns the line with `…` in place of process names and ids. A line that matches no row of the table is cut where
/// its text about a process starts.
#[must_use]
pub fn without_processes(text: &str) -> Cow<'_, str> {
    let known = rows().flat_map(|row| row.formats).find_map(|format: &Format| format.filled(text));
    if let Some(found) = known.filter(|found| !found.processes.is_empty()) {
        return replaced(text, &found.processes);
    }
    // Covers all wordings of `mlx5_core …: wait_func:1176:(pid 77): …` and of Lustre's `LustreError: 77:0:(…)`.
    if let Some((head, tail)) = text.split_once(":(pid ")
        && let Some((number, rest)) = tail.split_once(')')
        && number.bytes().all(|byte| byte.is_ascii_digit())
    {
        return Cow::Owned(format!("{head}:(pid {COVER}){}", cut(rest)));
    }
    if (text.starts_with("Lustre") || text.starts_with("LNet"))
        && let Some((head, tail)) = text.split_once(": ")
    {
        let rest = tail.trim_start_matches(|c: char| c.is_ascii_digit());
        if rest.len() < tail.len() && rest.starts_with(':') {
            return Cow::Owned(format!("{head}: {COVER}{}", cut(rest)));
        }
    }
    // `XFS: NAME(77) possible memory allocation deadlock …`: this text is longer than any process name.
    if text.starts_with("XFS: ")
        && let Some(at) = text.find(" possible memory allocation deadlock")
    {
        return Cow::Owned(format!("XFS: {COVER}{}", text.get(at..).unwrap_or_default()));
    }
    cut(text)
}

fn replaced<'a>(text: &'a str, processes: &[std::ops::Range<usize>]) -> Cow<'a, str> {
    let mut whole = Cow::Borrowed(text);
    for place in processes.iter().rev() {
        whole.to_mut().replace_range(place.clone(), COVER);
    }
    whole
}

fn cut(text: &str) -> Cow<'_, str> {
    let mut from = 0;
    loop {
        let rest = text.get(from..).unwrap_or_default();
        let begins = BEGINS.iter().filter_map(|words| Some((word_at(rest, words)?, words.len())));
        let Some((at, length)) = begins.min() else { return Cow::Borrowed(text) };
        let words = rest.get(at..).unwrap_or_default();
        let nameless = words.get(length..).is_some_and(|behind| behind.starts_with(COVER));
        from += at;
        if words.starts_with(NO_PROCESS) {
            from += NO_PROCESS.len();
        } else if nameless {
            from += length;
        } else {
            return Cow::Owned(format!("{}{COVER}", text.get(..from).unwrap_or_default()));
        }
    }
}

/// Position at which `words` occur as separate words.
fn word_at(text: &str, words: &str) -> Option<usize> {
    let inside =
        |at: usize| text.get(..at).is_some_and(|before| before.ends_with(|c: char| c.is_alphanumeric()));
    text.match_indices(words).map(|(at, _)| at).find(|at| !inside(*at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ids_of_processes_are_removed() {
        for (text, want) in [
            (
                "INFO: task eve:1:4711 blocked for more than 120 seconds.",
                "INFO: task …:… blocked for more than 120 seconds.",
            ),
            (
                "watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [eve:4711]",
                "watchdog: BUG: soft lockup - CPU#12 stuck for 22s! […:…]",
            ),
            (
                "mlx5_core 0000:5e:00.0: poll_health:836:(pid 4711): Fatal error 1 detected",
                "mlx5_core 0000:5e:00.0: poll_health:836:(pid …): Fatal error 1 detected",
            ),
            (
                "mlx5_core 0000:5e:00.0: mlx5_cmd_out_err:838:(pid 4711): CREATE_QP(0x500) op_mod(0x0) failed",
                "mlx5_core 0000:5e:00.0: mlx5_cmd_out_err:838:(pid …): CREATE_QP(0x500) op_mod(0x0) failed",
            ),
            (
                "NVRM: Xid (PCI:0000:9b:00): 31, pid=4711, name=eve, Ch 00000018",
                "NVRM: Xid (PCI:0000:9b:00): 31, …",
            ),
            (
                "EXT4-fs error (device md0): ext4_lookup:1858: inode #2: comm eve: iget",
                "EXT4-fs error (device md0): ext4_lookup:1858: inode #2: …",
            ),
            (
                "XFS: eve(4711) possible memory allocation deadlock size 65 in kmem_alloc (mode:0x2)",
                "XFS: … possible memory allocation deadlock size 65 in kmem_alloc (mode:0x2)",
            ),
            (
                "LustreError: 4711:0:(client.c:2305:ptlrpc_expire()) @@@ timed out",
                "LustreError: …:0:(client.c:2305:ptlrpc_expire()) @@@ timed out",
            ),
        ] {
            assert_eq!(without_processes(text), want);
            assert_eq!(without_processes(want), want);
        }
    }

    #[test]
    fn text_without_processes_is_unchanged() {
        for text in [
            "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.",
            "pcieport 0000:15:01.0: AER: Multiple Corrected error received: 0000:15:01.0",
            "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0)",
            "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            "",
        ] {
            assert_eq!(without_processes(text), text);
        }
    }

    #[test]
    fn every_row_with_a_process_hole_is_covered() {
        for format in rows().flat_map(|row| row.formats).filter(|format| format.text.contains("{name}")) {
            assert!(format.text.contains("{pid}"), "{}", format.text);
        }
    }
}
