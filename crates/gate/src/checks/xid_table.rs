//! What each Xid means, as data. Codes that are not here are a warning.
//!
//! From NVIDIA's Xid catalogue (Ampere and later); where it and field practice differ the row says so and names
//! another source.

use railgate_node::{Class, Severity};

use crate::agreement::Counterpart::{self, Answer, NvLink, RecoveryAction, RowRemap, UncorrectedEcc};

/// One code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) code: u32,
    /// In a few words.
    pub(crate) name: &'static str,
    pub(crate) class: Class,
    pub(crate) severity: Severity,
    /// What to do.
    pub(crate) fix: &'static str,
    /// A reset or reboot cures it, so that a driver that no longer asks for one has got it.
    pub(crate) curable: bool,
    /// A program can make the driver write it.
    pub(crate) raisable: bool,
    /// The NVML readings that change with such a fault. One of them must agree before the code alone drains a node; empty where
    /// NVML has none.
    pub(crate) counterparts: &'static [Counterpart],
    /// Whose word the row is.
    pub(crate) source: &'static str,
}

const MEMORY: &[Counterpart] = &[UncorrectedEcc, RecoveryAction];
const LINKS: &[Counterpart] = &[NvLink, RecoveryAction];

/// NVIDIA's own.
const CATALOGUE: &str = "NVIDIA Xid catalogue";
/// The catalogue is silent, or says that nothing needs to be done, and sites have learned otherwise.
const PRACTICE: &str = "field practice";

const fn row(code: u32, name: &'static str, class: Class, severity: Severity, fix: &'static str) -> Row {
    let curable = matches!(severity, Severity::Fail) && !matches!(fix.as_bytes(), b"RMA" | b"check power");
    // An unknown or merely noted code may be anybody's: only the rows of `node` say that no program can raise them.
    let raisable = !matches!(severity, Severity::Fail);
    Row {
        code,
        name,
        class,
        severity,
        fix,
        curable,
        raisable,
        counterparts: &[RecoveryAction],
        source: CATALOGUE,
    }
}

const fn node(code: u32, name: &'static str, fix: &'static str) -> Row {
    row(code, name, Class::Node, Severity::Fail, fix)
}

const fn watch(code: u32, name: &'static str, fix: &'static str) -> Row {
    row(code, name, Class::Node, Severity::Warn, fix)
}

const fn user(code: u32, name: &'static str) -> Row {
    row(code, name, Class::User, Severity::Note, "check application")
}

const fn note(code: u32, name: &'static str) -> Row {
    row(code, name, Class::Node, Severity::Note, "none")
}

impl Row {
    const fn by(self, source: &'static str) -> Row {
        Row { source, ..self }
    }

    const fn read_in(self, counterparts: &'static [Counterpart]) -> Row {
        Row { counterparts, ..self }
    }
}

/// By code.
pub(crate) static XIDS: &[Row] = &[
    user(8, "GPU stopped processing"),
    user(11, "invalid push buffer"),
    user(13, "graphics engine exception"),
    note(14, "channel error"),
    user(25, "invalid push buffer stream"),
    user(31, "GPU memory page fault"),
    user(32, "corrupted push buffer"),
    note(37, "driver firmware error"),
    note(38, "driver firmware error"),
    user(39, "copy engine exception"),
    user(40, "copy engine exception"),
    user(41, "copy engine exception"),
    user(43, "channel reset, application fault"),
    note(44, "graphics engine fault"),
    user(45, "channels removed, follows another error"),
    node(46, "GPU stopped processing", "reset GPU"),
    node(48, "double-bit ECC error", "reset GPU").read_in(MEMORY),
    node(54, "auxiliary power not connected", "check power").read_in(&[]),
    node(62, "micro-controller halt", "reset GPU"),
    watch(63, "row remap recorded", "reset GPU when idle").by(PRACTICE),
    // The catalogue says reset; where the remap failed for good, gpu-remap says RMA.
    node(64, "row remap failed to record", "reset GPU").read_in(&[RowRemap, RecoveryAction]),
    note(66, "illegal access by driver"),
    note(67, "illegal access by driver"),
    user(68, "video decoder exception"),
    user(69, "graphics engine class error"),
    user(70, "copy engine exception"),
    user(71, "copy engine exception"),
    user(72, "copy engine exception"),
    // The catalogue has a workflow of its own; a link that is really down is gpu-nvlink's, which tells more.
    node(74, "NVLink error", "reset GPUs").read_in(LINKS),
    user(75, "copy engine exception"),
    user(76, "copy engine exception"),
    user(77, "copy engine exception"),
    node(79, "fallen off the bus", "reboot").read_in(&[Answer]),
    user(80, "corrupted data sent to GPU"),
    user(82, "video encoder exception"),
    user(83, "video encoder exception"),
    user(84, "video encoder exception"),
    user(85, "copy engine exception"),
    user(86, "video engine exception"),
    user(88, "video engine exception"),
    user(89, "video engine exception"),
    watch(92, "high single-bit ECC rate", "watch").by(PRACTICE),
    note(93, "inforom wear"),
    // Only the application that met it dies; NVIDIA says restart it, DCGM says fail.
    watch(94, "contained ECC error", "watch").read_in(MEMORY),
    node(95, "uncontained ECC error", "reset GPU").read_in(MEMORY),
    user(96, "video engine exception"),
    user(97, "video engine exception"),
    user(98, "video engine exception"),
    user(99, "video engine exception"),
    user(100, "video engine exception"),
    user(101, "video engine exception"),
    user(102, "video engine exception"),
    user(103, "video engine exception"),
    user(104, "video engine exception"),
    user(105, "video engine exception"),
    note(106, "SMBPBI test message"),
    note(107, "SMBPBI test message"),
    // The catalogue resets, others do nothing: a kernel that does not yield is enough for it, and a driver that wants a
    // reset (R570 and later) says so.
    watch(109, "context switch timeout", "watch, reset GPU").by(PRACTICE),
    node(110, "security fault", "reset GPU"),
    node(119, "GSP RPC timeout", "reset GPU"),
    node(120, "GSP error", "reset GPU"),
    watch(121, "chip-to-chip link error", "watch").by(PRACTICE),
    user(126, "copy engine exception"),
    user(127, "copy engine exception"),
    user(128, "copy engine exception"),
    user(129, "copy engine exception"),
    user(130, "copy engine exception"),
    user(131, "copy engine exception"),
    user(132, "copy engine exception"),
    user(133, "copy engine exception"),
    user(134, "copy engine exception"),
    user(135, "copy engine exception"),
    node(136, "NVLink training failed", "reset GPUs").read_in(LINKS),
    // A bad access by the application or a fault of the peer: the peer's own Xid decides.
    watch(137, "NVLink privilege error", "see the peer GPU").by(PRACTICE),
    user(139, "copy engine exception"),
    node(140, "unrecovered ECC error", "reset GPU").read_in(MEMORY),
    note(141, "reserved"),
    node(143, "GPU initialisation error", "reset GPU"),
    // NVLink 5: whether it is fatal stands in the line's own words, which `nvlink5` reads.
    watch(144, "NVLink SAW error", "watch").read_in(LINKS),
    watch(145, "NVLink RLW error", "watch").read_in(LINKS),
    watch(146, "NVLink TLW error", "watch").read_in(LINKS),
    watch(147, "NVLink TREX error", "watch").read_in(LINKS),
    watch(148, "NVLink NVLPW error", "watch").read_in(LINKS),
    watch(149, "NVLink NETIR error", "watch").read_in(LINKS),
    watch(150, "NVLink MSE error", "watch").read_in(LINKS),
    node(151, "key rotation error", "reboot"),
    note(152, "reserved"),
    note(153, "reserved"),
    // Says only what field 230 says now; counts where gpu-recovery-action is off.
    watch(154, "recovery action changed", "see nvidia-smi -q"),
    node(155, "NVLink software error", "reset GPUs").read_in(LINKS),
    node(156, "resource retirement", "reset GPU").read_in(&[RowRemap, RecoveryAction]),
    node(157, "resource retirement failed", "RMA").read_in(&[RowRemap, RecoveryAction]),
    node(158, "fatal timeout", "reset GPU"),
    note(160, "channel retirement"),
    note(161, "channel retirement"),
    note(162, "power smoothing"),
    note(163, "power smoothing"),
    note(164, "power smoothing"),
    note(165, "power smoothing"),
    node(167, "PCIe fatal timeout", "reboot"),
    node(168, "protected memory reduced", "reboot"),
    node(169, "firmware fault", "reset GPU"),
    node(171, "uncorrectable DRAM error", "reset GPU").read_in(MEMORY),
    node(172, "uncorrectable SRAM error", "reset GPU").read_in(MEMORY),
    node(173, "chip-to-chip link fatal error", "reboot"),
];

/// The row of a code.
pub(crate) fn lookup(code: u32) -> Option<&'static Row> {
    XIDS.binary_search_by_key(&code, |row| row.code).ok().map(|at| &XIDS[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_sorted_and_findable() {
        assert!(XIDS.windows(2).all(|pair| pair[0].code < pair[1].code));
        assert!(XIDS.iter().all(|row| lookup(row.code).is_some_and(|found| found.code == row.code)));
        assert!(lookup(1000).is_none());
        assert!(XIDS.iter().all(|row| !row.source.is_empty()));
    }

    #[test]
    fn what_an_application_can_cause_never_fails() {
        for code in [13, 31, 43, 45, 68, 69] {
            let row = lookup(code).unwrap();
            assert_eq!((row.class, row.severity), (Class::User, Severity::Note), "{code}");
        }
        assert!(XIDS.iter().all(|row| row.class != Class::User || row.severity == Severity::Note));
    }

    #[test]
    fn what_a_program_can_raise_is_marked() {
        for code in [8, 13, 31, 43, 45, 69, 109, 137] {
            assert!(lookup(code).unwrap().raisable, "{code}");
        }
        assert!(XIDS.iter().filter(|row| row.severity == Severity::Fail).all(|row| !row.raisable));
        // Auxiliary power has no reading in NVML; every other failure has one.
        let without: Vec<u32> =
            XIDS.iter().filter(|row| row.counterparts.is_empty()).map(|row| row.code).collect();
        assert_eq!(without, [54]);
    }

    #[test]
    fn no_reset_cures_what_is_for_rma() {
        assert!(!lookup(157).unwrap().curable);
        assert!(lookup(95).unwrap().curable);
        assert!(!lookup(63).unwrap().curable);
    }
}
