//! Derives severity, class and fix from the catalogue's action by one rule, and lists the departures from it.

use super::facts::{Bucket, Facts};
use super::{Class, Owner, Severity};

/// Severity, class and fix of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// Severity of the record alone. `fail` drains only if a second source confirms it.
    pub severity: Severity,
    /// Class of the finding.
    pub class: Class,
    /// What to do, in a few words.
    pub fix: &'static str,
}

impl Judgement {
    /// Returns whether a reset or a reboot fixes it. If the driver no longer asks for one, it has been done.
    pub fn curable(&self) -> bool {
        self.severity == Severity::Fail && (self.fix.starts_with("reset") || self.fix == "reboot")
    }
}

/// Codes that railgate judges differently from the rule.
#[derive(Clone, Copy, Debug)]
pub struct Departure {
    /// The codes.
    pub codes: &'static [u32],
    /// Severity by the rule.
    pub rule: Severity,
    /// railgate's judgement.
    pub judgement: Judgement,
    /// The reason, in one sentence.
    pub reason: &'static str,
    /// The source of the reason.
    pub source: &'static str,
}

const fn node(severity: Severity, fix: &'static str) -> Judgement {
    Judgement { severity, class: Class::Node, fix }
}

const USER: Judgement = Judgement { severity: Severity::Note, class: Class::User, fix: "check application" };

/// The rule: derives the judgement from the catalogue's immediate action.
pub fn judge(action: Option<Bucket>, owner: Owner) -> Judgement {
    match action {
        Some(Bucket::RestartApp | Bucket::WorkflowXid45 | Bucket::Xid154Eval) => USER,
        Some(Bucket::Ignore) if owner == Owner::Application => USER,
        Some(Bucket::Ignore | Bucket::IgnoreSympathetic | Bucket::Informational) => {
            node(Severity::Note, "none")
        }
        Some(Bucket::ResetGpu | Bucket::WorkflowXid48 | Bucket::CheckUvm) => {
            node(Severity::Fail, "reset GPU")
        }
        // GPUs that are connected by an NVSwitch of this generation are reset together.
        Some(Bucket::WorkflowNvlinkErr) => node(Severity::Fail, "reset GPUs"),
        Some(Bucket::RestartBm | Bucket::RestartVm) => node(Severity::Fail, "reboot"),
        Some(Bucket::CheckMechanicals) => node(Severity::Fail, "check power and seating"),
        Some(Bucket::Xid154) => node(Severity::Warn, "see nvidia-smi -q"),
        Some(Bucket::UpdateSwfw) => node(Severity::Warn, "update driver and firmware"),
        Some(Bucket::WorkflowNvlink5Err) => node(Severity::Warn, "watch"),
        // CONTACT_SUPPORT, and actions that the catalogue lists for later investigation only.
        Some(_) => node(Severity::Warn, "contact support"),
        None => node(Severity::Warn, "look up the code"),
    }
}

/// All departures from the rule, with their reasons.
pub const DEPARTURES: &[Departure] = &[
    Departure {
        codes: &[47, 65, 73, 142],
        rule: Severity::Warn,
        judgement: USER,
        reason: "video encoder errors are like video decoder errors, which are RESTART_APP in the catalogue",
        source: "nverror.h of NVIDIA's open kernel modules 595.45.04 (ROBUST_CHANNEL_NVENC0_ERROR and later)",
    },
    Departure {
        codes: &[63],
        rule: Severity::Note,
        judgement: node(Severity::Warn, "reset GPU when idle"),
        reason: "a recorded remap takes effect only when the GPU is reset",
        source: "NVIDIA GPU Memory Error Management, Row Remapping",
    },
    Departure {
        codes: &[92],
        rule: Severity::Note,
        judgement: node(Severity::Warn, "watch"),
        reason: "many corrected errors often come before uncorrected ones",
        source: "the catalogue's investigatory action, CONTACT_SUPPORT",
    },
    Departure {
        codes: &[94],
        rule: Severity::Note,
        judgement: node(Severity::Warn, "watch"),
        reason: "only the affected application has to restart, but the cause is the GPU's memory",
        source: "NVIDIA GPU Memory Error Management, Error Containment",
    },
    Departure {
        codes: &[121],
        rule: Severity::Note,
        judgement: node(Severity::Warn, "reset GPU when idle"),
        reason: "a reset at the next service window trains the link again",
        source: "the catalogue's trigger conditions of Xid 121",
    },
    Departure {
        codes: &[162, 163, 164, 165],
        rule: Severity::Warn,
        judgement: node(Severity::Note, "none"),
        reason: "a change of power smoothing does not end a job",
        source: "the catalogue's trigger conditions of Xid 163",
    },
    Departure {
        codes: &[167],
        rule: Severity::Warn,
        judgement: node(Severity::Fail, "reboot"),
        reason: "a GPU that PCIe no longer reaches is judged like one off the bus (Xid 79)",
        source: "nverror.h of NVIDIA's open kernel modules 595.45.04 (PCIE_FATAL_TIMEOUT)",
    },
    Departure {
        codes: &[168],
        rule: Severity::Warn,
        judgement: node(Severity::Fail, "reboot"),
        reason: "only a restart of the driver moves the protected region",
        source: "the catalogue's trigger conditions of Xid 168",
    },
    Departure {
        codes: &[169],
        rule: Severity::Warn,
        judgement: node(Severity::Fail, "reset GPU"),
        reason: "the catalogue describes the halt like Xid 62, which is RESET_GPU",
        source: "the catalogue's row of Xid 62",
    },
    Departure {
        codes: &[171, 172],
        rule: Severity::Warn,
        judgement: node(Severity::Fail, "reset GPU"),
        reason: "the catalogue calls them details of Xid 48, which resets the GPU",
        source: "the catalogue's row of Xid 48",
    },
    Departure {
        codes: &[173],
        rule: Severity::Warn,
        judgement: node(Severity::Fail, "reboot"),
        reason: "newer than the catalogue; the driver reports a fatal failure of the link between CPU and GPU",
        source: "nverror.h of NVIDIA's open kernel modules 595.45.04 (C2C_FATAL_LINK_FAILURE)",
    },
    Departure {
        codes: &[174],
        rule: Severity::Warn,
        judgement: node(Severity::Note, "none"),
        reason: "newer than the catalogue; the driver reports that a process was ended silently, which is not a fault",
        source: "nverror.h of NVIDIA's open kernel modules 595.45.04 (ROBUST_CHANNEL_RESETCHANNEL_KILL_PROCESS_SILENT)",
    },
];

/// Codes of the driver that the catalogue lacks: `nverror.h` of NVIDIA's open kernel modules 595.45.04.
pub(super) const NEWER: &[Facts] = &[
    newer(173, "C2C_FATAL_LINK_FAILURE"),
    newer(174, "ROBUST_CHANNEL_RESETCHANNEL_KILL_PROCESS_SILENT"),
    newer(175, "MEMORY_SUBSYSTEM_ERROR"),
    newer(176, "PCIE_CORRECTABLE_ERROR_FAULT"),
];

const fn newer(code: u32, mnemonic: &'static str) -> Facts {
    Facts { code, mnemonic, families: &[], immediate: None, investigatory: None, sets_154: None }
}

/// Codes that a user program can raise although the rule gives `fail`.
pub(super) const RAISABLE: &[u32] = &[
    // A kernel that does not yield can raise 109.
    109, // So may be an access to an address that the CPU does not answer for.
    159,
];
