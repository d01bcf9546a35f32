//! Whether NVML confirms a fault that the kernel log reports.
//!
//! The kernel log is one source. NVML is a second one, and no user program can change its readings. The two together
//! prove a fault; a log record alone is only a sign of one.

use std::time::Duration;

use railgate_model::{Access, Evidence, Gpu, Part, Phase, Reading, RecoveryAction, Severity, UnixMillis};

use crate::report::Found;
use crate::scene::Scene;

/// A sign becomes a fault, and can drain, when the driver logs about the same part again within this time.
pub(crate) const SIGN_WINDOW: Duration = Duration::from_secs(24 * 3600);

/// An NVML reading that changes when a GPU has the fault in question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counterpart {
    /// Whether NVML gets an answer from the GPU.
    Answer,
    /// Field 230: the driver asks for a reset or a reboot (R570 and later).
    RecoveryAction,
    /// Uncorrected ECC errors, without those that were known before.
    UncorrectedEcc,
    /// A row remap that is pending or has failed.
    RowRemap,
    /// An NVLink that is down, if the profile gives the number of links that must be up.
    NvLink,
}

/// What NVML reports about a fault that is in the kernel log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Nvml {
    /// A reading shows the same fault.
    Confirms(Evidence),
    /// NVML has a reading for such faults, and it shows none.
    Denies,
    /// NVML has no such reading, or could not be queried.
    Silent,
}

/// Compares with the NVML readings of one GPU. `part` is the part of a finding: the GPU's index, or the PCI address of
/// a GPU that NVML does not list.
pub(crate) fn of_gpu(scene: &Scene<'_>, part: &str, counterparts: &[Counterpart]) -> Nvml {
    let row = |got: &str| evidence(format!("gpu {part}"), got, "an answer", "NVML");
    let gpus = match &scene.now.gpus {
        Part::Read { data, .. } => &data.gpus,
        // The driver reports a fault and NVML does not answer: two signs of the same fault.
        Part::Silent { .. } | Part::Stuck { .. } => return Nvml::Confirms(row("NVML gives no answer")),
        Part::Skipped | Part::Failed { .. } => return Nvml::Silent,
    };
    let Some(gpu) = gpus.iter().find(|gpu| gpu.index.to_string() == part) else {
        return if part.is_empty() { Nvml::Silent } else { Nvml::Confirms(row("not listed by NVML")) };
    };
    match &gpu.access {
        Access::Lost(why) | Access::ResetRequired(why) => return Nvml::Confirms(row(why)),
        Access::Failed(why) if withheld(why) => return Nvml::Silent,
        Access::Failed(why) => return Nvml::Confirms(row(why)),
        Access::Ok => {}
    }
    let answers: Vec<Nvml> = counterparts.iter().map(|counterpart| counterpart.of(scene, gpu)).collect();
    let confirmed = answers.iter().find(|answer| matches!(answer, Nvml::Confirms(_)));
    match confirmed {
        Some(answer) => answer.clone(),
        None if answers.contains(&Nvml::Denies) => Nvml::Denies,
        None => Nvml::Silent,
    }
}

/// Compares with the NVML readings of all GPUs, for parts that serve all of them. NVML has no reading of an NVSwitch,
/// so it cannot deny a fault of one.
pub(crate) fn of_any_gpu(scene: &Scene<'_>, counterparts: &[Counterpart]) -> Nvml {
    let judged = scene.all_gpus().iter().filter(|gpu| scene.judges(gpu));
    judged
        .map(|gpu| of_gpu(scene, &gpu.index.to_string(), counterparts))
        .find(|answer| matches!(answer, Nvml::Confirms(_)))
        .unwrap_or(Nvml::Silent)
}

/// Sets the severity of a `fail` that rests on kernel log records. `raisable` is true if a user program can make the
/// driver write them.
///
/// | NVML | raisable | not raisable |
/// |---|---|---|
/// | confirms | `fail` | `fail` |
/// | has no such reading | `warn` | a sign: `warn`, and `fail` at the next record |
/// | denies | `warn` | `warn` |
pub(crate) fn grade(found: Found, nvml: Nvml, raisable: bool, written: Vec<UnixMillis>) -> Found {
    if found.severity() != Severity::Fail {
        return found;
    }
    match nvml {
        Nvml::Confirms(row) => found.row(row.what, row.got, row.want, row.source),
        Nvml::Denies => found.only_warn("NVML reports no fault"),
        Nvml::Silent if raisable => found.only_warn("a program can raise it, NVML does not confirm"),
        Nvml::Silent => found.sign(SIGN_WINDOW, written),
    }
}

/// NVML's error code shows that access to the GPU is blocked: by a device cgroup, by maintenance, because another
/// virtual machine has the GPU, or because the driver is being replaced. None of these is a fault of the GPU.
pub(crate) fn withheld(why: &str) -> bool {
    // NO_PERMISSION, DRIVER_NOT_LOADED, OPERATING_SYSTEM, LIB_RM_VERSION_MISMATCH, IN_USE.
    [4, 9, 17, 18, 19].iter().any(|code| why.ends_with(&format!("({code})")))
}

impl Counterpart {
    fn of(self, scene: &Scene<'_>, gpu: &Gpu) -> Nvml {
        let name = |what: &str| format!("gpu {} {what}", gpu.index);
        match self {
            Counterpart::Answer => Nvml::Denies,
            Counterpart::RecoveryAction => match &gpu.recovery_action {
                Reading::Known(RecoveryAction::None) => Nvml::Denies,
                Reading::Known(action) => Nvml::Confirms(evidence(
                    name("recovery action"),
                    &action.to_string(),
                    &RecoveryAction::None.to_string(),
                    "NVML field 230",
                )),
                Reading::Unsupported | Reading::Failed(_) => Nvml::Silent,
            },
            Counterpart::UncorrectedEcc => {
                let Reading::Known(now) = gpu.ecc.volatile_uncorrected else { return Nvml::Silent };
                let before = match scene.phase() {
                    Phase::Epilog => scene.before(gpu).and_then(|old| old.ecc.volatile_uncorrected.known()),
                    Phase::Prolog | Phase::Periodic => None,
                };
                let known = before.copied().unwrap_or_else(|| scene.seen.memory.contained(gpu, scene.now));
                // A lower count means that the driver was reloaded.
                let known = if known > now { 0 } else { known };
                if now == known {
                    return Nvml::Denies;
                }
                Nvml::Confirms(evidence(
                    name("ECC volatile uncorrected"),
                    &now.to_string(),
                    &known.to_string(),
                    "nvmlDeviceGetTotalEccErrors",
                ))
            }
            Counterpart::RowRemap => match gpu.row_remap {
                Reading::Known(remap) if remap.pending || remap.failed => Nvml::Confirms(evidence(
                    name("row remap"),
                    if remap.failed { "failed" } else { "pending" },
                    "neither pending nor failed",
                    "nvmlDeviceGetRemappedRows",
                )),
                Reading::Known(_) => Nvml::Denies,
                Reading::Unsupported | Reading::Failed(_) => Nvml::Silent,
            },
            Counterpart::NvLink => {
                let Some(wanted) = scene.profile().and_then(|profile| profile.gpus.nvlinks_up) else {
                    return Nvml::Silent;
                };
                let up = gpu.nvlinks.iter().filter(|link| link.up == Reading::Known(true)).count();
                let down = gpu.nvlinks.iter().any(|link| link.up == Reading::Known(false));
                match up >= wanted as usize {
                    true => Nvml::Denies,
                    false if down => Nvml::Confirms(evidence(
                        name("NVLinks up"),
                        &up.to_string(),
                        &wanted.to_string(),
                        "nvmlDeviceGetNvLinkState",
                    )),
                    false => Nvml::Silent,
                }
            }
        }
    }
}

fn evidence(what: String, got: &str, want: &str, source: &str) -> Evidence {
    Evidence { what, got: got.to_owned(), want: want.to_owned(), source: source.to_owned() }
}
