//! Whether NVML confirms a fault that the kernel log reports.
//!
//! A record of the kernel log is one source. NVML is the other, and no program can change what it reads. Both together prove a
//! fault; a record alone is a sign.

use std::time::Duration;

use railgate_model::{Access, Evidence, Gpu, Part, Phase, Reading, RecoveryAction, Severity, UnixMillis};

use crate::report::Found;
use crate::scene::Scene;

/// A sign drains when the driver writes of the same part again within this.
pub(crate) const SIGN_WINDOW: Duration = Duration::from_secs(24 * 3600);

/// An NVML reading that changes where a GPU has such a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counterpart {
    /// Whether the GPU answers at all.
    Answer,
    /// Field 230: the driver asks for a reset or a reboot (R570 and later).
    RecoveryAction,
    /// Uncorrected ECC errors, beyond those known from before.
    UncorrectedEcc,
    /// A row remap that is pending or failed.
    RowRemap,
    /// An NVLink that is down, if the profile has the number that is up.
    NvLink,
}

/// NVML's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Nvml {
    /// It reads the same fault.
    Confirms(Evidence),
    /// It can read such a fault, and reads none.
    Denies,
    /// It has no such reading, or could not be asked.
    Silent,
}

/// Asks about one GPU, by its part in findings: the index, or an address that NVML does not list.
pub(crate) fn of_gpu(scene: &Scene<'_>, part: &str, counterparts: &[Counterpart]) -> Nvml {
    let row = |got: &str| evidence(format!("gpu {part}"), got, "an answer", "NVML");
    let gpus = match &scene.now.gpus {
        Part::Read { data, .. } => &data.gpus,
        // The driver reports a fault, and NVML gives no answer: two signs of one thing.
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

/// Asks about what serves all GPUs. NVML has no reading of an NVSwitch, so it cannot deny.
pub(crate) fn of_any_gpu(scene: &Scene<'_>, counterparts: &[Counterpart]) -> Nvml {
    let judged = scene.all_gpus().iter().filter(|gpu| scene.judges(gpu));
    judged
        .map(|gpu| of_gpu(scene, &gpu.index.to_string(), counterparts))
        .find(|answer| matches!(answer, Nvml::Confirms(_)))
        .unwrap_or(Nvml::Silent)
}

/// Grades a `fail` that rests on records of the kernel log. `raisable`: a program can make the driver write them.
///
/// | NVML | a program can raise it | no program can |
/// |---|---|---|
/// | confirms | `fail` | `fail` |
/// | has no such reading | `warn` | a sign: `warn`, and `fail` when it is written again |
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

/// NVML's own number says that something keeps us from the GPU: a device cgroup, an administrator at work on it, another
/// virtual machine, a driver that is being exchanged. That is no fault of the GPU.
pub(crate) fn withheld(why: &str) -> bool {
    // No permission, driver not loaded, blocked by the operating system, versions differ, in use.
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
                // Fewer than known: the driver was loaded again since.
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
