use super::sxid_names::NAMES;
use crate::{Severity, SxidSeverity};

/// The extent of the fabric failure after an error that the driver calls fatal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FabricLoss {
    /// The whole fabric, until the node is rebooted.
    UntilReboot,
    /// The whole fabric, until all GPUs and switches of the node are reset.
    UntilReset,
    /// One link, until the GPU at its end is reset. Also used for codes that the guide does not list.
    OneLink,
}

/// NVIDIA Fabric Manager User Guide, table 23 (edition of 2025-11-14): errors that are always fatal.
const ALWAYS_FATAL: &[u32] = &[
    12020, 22003, 22011, 23001, 23002, 23003, 23004, 23005, 23006, 23007, 23008, 23009, 23010, 23011, 23012,
    23013, 23014, 23015, 23016, 23017,
];

/// The same guide: errors that need a reset of all GPUs and switches.
const WHOLE_FABRIC: &[u32] = &[10003, 19084];

/// railgate's names for codes with names in the driver that are hard to read.
const WORDS: &[(u32, &str)] = &[
    (10001, "register access error"),
    (10002, "register access timeout"),
    (10003, "unhandled interrupt"),
    (10004, "thermal slowdown"),
    (10005, "thermal slowdown ended"),
    (10006, "thermal shutdown"),
    (10007, "I/O failure"),
    (10008, "firmware initialisation failed"),
    (10009, "firmware in recovery mode"),
    (10010, "register access refused (TNVL)"),
    (11001, "ingress: invalid command"),
    (11004, "ingress: access refused (ACL)"),
    (12020, "egress: sequence error"),
    (12028, "egress: privilege error response"),
    (14017, "request timeout"),
    (19084, "link heartbeat timeout"),
    (20001, "link replays"),
    (20009, "link error rate"),
    (20012, "link CRC errors"),
    (20034, "link fault"),
    (20035, "link fault, down"),
    (22003, "Minion halt"),
    (22004, "Minion boot error"),
    (22010, "Minion watchdog"),
    (22011, "Minion EXTERR"),
    (22012, "Minion: fatal link interrupt"),
    (22013, "Minion: link interrupt"),
    (24007, "source tracking timeout"),
    (25010, "link training failed"),
    (26001, "SOE reset failed"),
    (26002, "SOE boot failed"),
    (26003, "SOE command queue"),
    (26004, "SOE timeout"),
    (26005, "SOE shutdown"),
    (26006, "SOE halt"),
    (26007, "SOE EXTERR"),
    (26008, "SOE watchdog"),
    (27001, "cable controller reset failed"),
    (27002, "cable controller start failed"),
    (27003, "cable controller timeout"),
    (27004, "cable controller shutdown failed"),
    (27005, "cable module error"),
    (27006, "cable module boot failed"),
    (27007, "cable module recovery failed"),
];

/// Drivers before 550 used these numbers for port errors. The records of those have a severity; these have none.
const CAGES: &[(u32, &str)] = &[
    (28001, "cable cage hot"),
    (28002, "cable cage hot, ended"),
    (28003, "cable cage too hot"),
    (28004, "cable cage too hot, ended"),
    (28005, "cable cage: thermal shutdown"),
];

/// Returns the name of an SXid: a few words, or the driver's own name. `None` for a code that the driver's header
/// lacks, or that its releases use for different errors.
pub fn sxid_name(code: u32, severity: SxidSeverity) -> Option<&'static str> {
    let find = |names: &'static [(u32, &'static str)]| {
        let at = names.binary_search_by_key(&code, |(known, _)| *known).ok()?;
        names.get(at).map(|(_, name)| *name)
    };
    let cage = || if severity == SxidSeverity::Unstated { find(CAGES) } else { None };
    find(WORDS).or_else(cage).or_else(|| find(NAMES))
}

/// Returns the extent of the fabric failure after a fatal SXid of this code.
pub fn fabric_loss(code: u32) -> FabricLoss {
    if ALWAYS_FATAL.binary_search(&code).is_ok() {
        FabricLoss::UntilReboot
    } else if WHOLE_FABRIC.contains(&code) {
        FabricLoss::UntilReset
    } else {
        FabricLoss::OneLink
    }
}

/// Returns the severity of an SXid with none of "Fatal", "Non-fatal" and "Correctable". Such records are
/// about the switch's own controller (SOE), its temperature, its registers and its cables; links that fail as a
/// consequence have records of their own.
pub fn unstated_severity(code: u32) -> Severity {
    match code {
        // The end of a thermal event, or a register write that a locked switch refused.
        10005 | 10010 | 28002 | 28004 => Severity::Note,
        _ => Severity::Warn,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_sorted_and_found() {
        for table in [WORDS, CAGES, NAMES] {
            assert!(table.windows(2).all(|pair| pair[0].0 < pair[1].0));
        }
        assert!(ALWAYS_FATAL.is_sorted());
        let name = |code| sxid_name(code, SxidSeverity::Fatal);
        assert_eq!((name(22003), name(22011)), (Some("Minion halt"), Some("Minion EXTERR")));
        assert_eq!(name(15006), Some("NPORT_ROUTE_TRANSDONERESVERR"));
        assert_eq!((name(99999), name(28001)), (None, None), "28001 has two meanings");
        assert_eq!(sxid_name(28001, SxidSeverity::Unstated), Some("cable cage hot"));
        assert!(WORDS.iter().all(|(code, _)| NAMES.iter().any(|(known, _)| known == code)));
    }

    #[test]
    fn the_extent_of_each_fatal_error() {
        assert_eq!(fabric_loss(23017), FabricLoss::UntilReboot);
        assert_eq!(fabric_loss(10003), FabricLoss::UntilReset);
        assert_eq!(fabric_loss(20034), FabricLoss::OneLink);
    }
}
