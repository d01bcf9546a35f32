use railgate_model::{Class, Gpu, PartName, Phase, Reading, RecoveryAction, Severity};

use crate::gpu_counters::Counter;
use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::{Scene, Whose};
use crate::settings::settings;

use super::gpu_window::Window;

/// The check.
pub(crate) struct GpuEcc;

settings! {
    action = Drain;
    max_uncorrected: u64 = 0, "errors since the driver was loaded (before a job) or during the job (after it); more is fail";
    contained: Severity = Severity::Warn, "uncorrected errors that the driver contained (Xid 94)";
    max_aggregate: u64 = 512, "uncorrected errors over the life of the card; more is warn";
    corrected_per_hour: u64 = 10_000_000, "corrected errors in an hour of a job; more is warn";
}

impl Check for GpuEcc {
    const ABOUT: &'static str = "GPU memory had uncorrected errors, or ECC is off where it should be on";
    const EXPLAIN: &'static str = "
Reads `nvmlDeviceGetTotalEccErrors` (volatile: since the driver was loaded or the GPU reset; aggregate: over its life),
`nvmlDeviceGetEccMode` and `nvmlDeviceGetSramEccErrorStatus`.

- Uncorrected errors before a job: the count. After a job: the increase since the prolog; `unknown` if the count went
  backwards (the GPU was reset meanwhile). If the driver logged that it contained them (Xid 94 since railgate last handled the log, see
  `kernel-log`, and nothing worse: 48, 64, 95, 140, 171, 172), only the application died and the node is fit: severity
  `contained`, also in later check runs of this boot. A driver without field 230 must have logged as many as were counted. If the log cannot be read
  or has lost lines, a driver that has field 230 and asks for no reset is enough.
- The GPU reports that its on-chip memory has had too many errors: `fail`, replace it (RMA).
- More uncorrected errors over its life than `max_aggregate`, or more corrected ones in an hour of a job than
  `corrected_per_hour`: `warn`.

Why: an uncorrected error kills the process that meets it, and the page stays bad until a reset remaps the row.

Fix: reset the GPU when idle (`nvidia-smi -r -i N`), then check `gpu-remap`. ECC off: `nvidia-smi -e 1`, reboot
(class `site`, `warn`, only if the profile expects ECC to be on).
";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::Gpus];
    const SCOPE: Scope = Scope::Gpus;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let wanted = scene.profile().is_some_and(|profile| profile.gpus.ecc == Some(true));
        for gpu in scene.answering() {
            let part = gpu.index.to_string();
            let what = format!("gpu {part} ECC mode");
            let mode = out.value(&part, &what, "nvmlDeviceGetEccMode", &gpu.ecc_enabled).copied();
            let off = mode == Some(false) || gpu.ecc_enabled == Reading::Unsupported;
            if wanted && off {
                let got = gpu.ecc_enabled.to_string();
                out.add(Found::warn(Class::Site, &part, "ECC is off").fix("nvidia-smi -e 1").row(
                    what,
                    got,
                    "true",
                    "nvmlDeviceGetEccMode",
                ));
            } else if wanted && gpu.details.ecc_pending == Reading::Known(false) {
                let text = "ECC will be off after the next reset";
                out.add(Found::note(Class::Site, &part, text).fix("nvidia-smi -e 1").row(
                    format!("gpu {part} pending ECC mode"),
                    "false",
                    "true",
                    "nvmlDeviceGetEccMode",
                ));
            }
            of_a_life(gpu, set, out);
            corrected(scene, gpu, set, out);

            let what = format!("gpu {part} ECC volatile uncorrected");
            let Some(&now) = out.value(&part, &what, SOURCE, &gpu.ecc.volatile_uncorrected) else { continue };
            let before = match scene.phase() {
                Phase::Epilog => {
                    scene.before(gpu).and_then(|old| old.ecc.volatile_uncorrected.known()).copied()
                }
                Phase::Prolog | Phase::Periodic => None,
            };
            let (errors, since) = match before {
                Some(before) if now < before => {
                    out.add(
                        Found::unknown(Class::Node, &part, "ECC counter went backwards during the job")
                            .fix("none")
                            .row(what, now.to_string(), format!("at least {before}"), SOURCE),
                    );
                    continue;
                }
                Some(before) => (now - before, "during the job"),
                None => (now, "since driver load"),
            };
            if errors > set.max_uncorrected {
                // The records may have left the log, so contained errors that an earlier check run of this boot found
                // are counted as well.
                let told = scene.seen.memory.contained(gpu, scene.now);
                // A lower count means that the driver was reloaded.
                let told = if told > now { 0 } else { told };
                let news = now.saturating_sub(told.max(before.unwrap_or(0)));
                let contained = news == 0 || contained(scene, gpu, news);
                let severity = if contained { set.contained } else { Severity::Fail };
                let (kind, fix) = if contained {
                    ("contained", "reset GPU when idle")
                } else {
                    ("uncorrected", "reset GPU")
                };
                out.add(
                    Found::new(severity, Class::Node, &part, format!("{errors} {kind} ECC errors {since}"))
                        .fix(fix)
                        .row(
                            what,
                            format!("{errors} {since}"),
                            format!("at most {}", set.max_uncorrected),
                            SOURCE,
                        ),
                );
            }
        }
    }
}

const SOURCE: &str = "nvmlDeviceGetTotalEccErrors";
const HOUR_MS: u64 = 3_600_000;
const CONTAINED: u32 = 94;
/// Xids that report an error which the driver could not contain.
const WORSE: [u32; 6] = [48, 64, 95, 140, 171, 172];

/// Whether the driver reported each of these errors as contained: only the affected application had to be terminated.
fn contained(scene: &Scene<'_>, gpu: &Gpu, errors: u64) -> bool {
    let own = Whose::Judged(gpu.index.to_string());
    let of = |code: u32| {
        scene.xids.iter().filter(|event| event.code == code && scene.whose(event.gpu) == own).count()
    };
    let reported = u64::try_from(of(CONTAINED)).unwrap_or(u64::MAX);
    let unheard = scene.now.kernel_log.data().is_none_or(|log| log.overrun);
    if reported == 0 && !unheard || WORSE.iter().any(|code| of(*code) > 0) {
        return false;
    }
    match gpu.recovery_action {
        Reading::Known(asked) => asked == RecoveryAction::None,
        Reading::Unsupported | Reading::Failed(_) => errors <= reported,
    }
}

fn of_a_life(gpu: &Gpu, set: &Settings, out: &mut Report<'_>) {
    const SRAM: &str = "nvmlDeviceGetSramEccErrorStatus";
    let part = gpu.index.to_string();
    let what = format!("gpu {part} on-chip memory errors");
    if let Some(sram) = out.value(&part, &what, SRAM, &gpu.details.sram)
        && sram.over_threshold
    {
        let got = format!("{} uncorrected, over the threshold", sram.aggregate_uncorrected);
        out.add(Found::fail(Class::Node, &part, "SRAM error threshold exceeded").fix("RMA").row(
            what,
            got,
            "below the card's threshold",
            SRAM,
        ));
    }
    let what = format!("gpu {part} ECC aggregate uncorrected");
    if let Some(&life) = out.value(&part, &what, SOURCE, &gpu.ecc.aggregate_uncorrected)
        && life > set.max_aggregate
    {
        let text = format!("{life} uncorrected ECC errors over its life");
        out.add(Found::warn(Class::Node, part, text).fix("watch, then RMA").row(
            what,
            life.to_string(),
            format!("at most {}", set.max_aggregate),
            SOURCE,
        ));
    }
}

fn corrected(scene: &Scene<'_>, gpu: &Gpu, set: &Settings, out: &mut Report<'_>) {
    let Some(window) = Window::of(scene, gpu) else { return };
    let Some(rose) = window.rose(Counter::Corrected) else { return };
    let allowed = window.allowed(set.corrected_per_hour, HOUR_MS);
    if rose > allowed {
        let text = format!("{rose} corrected ECC errors {}", window.text());
        out.add(Found::warn(Class::Node, gpu.index.to_string(), text).fix("watch").row(
            format!("gpu {} ECC volatile corrected", gpu.index),
            rose.to_string(),
            format!("at most {allowed}"),
            SOURCE,
        ));
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::{Phase, Reading, RecoveryAction, Severity};

    use crate::testing::{Case, case, read};

    fn errors(case: Case, now: u64) -> Case {
        case.gpu(1, |gpu| gpu.ecc.volatile_uncorrected = Reading::Known(now))
    }

    fn before(case: Case, then: u64) -> Case {
        case.after_the_job().with(|case| {
            let before = read(&mut case.before.as_mut().unwrap().gpus);
            before.gpus[1].ecc.volatile_uncorrected = Reading::Known(then);
        })
    }

    #[test]
    fn before_a_job_the_total_counts_and_after_it_the_growth() {
        assert_eq!(errors(case("h100-sxm"), 4).of("gpu-ecc"), [Severity::Fail]);
        assert_eq!(errors(case("h100-sxm").phase(Phase::Periodic), 4).of("gpu-ecc"), [Severity::Fail]);
        assert_eq!(errors(before(case("h100-sxm"), 4), 4).summary(), "fit");
        let rose = errors(before(case("h100-sxm"), 4), 6);
        assert_eq!(
            rose.summary(),
            "unfit: fail gpu-ecc@1: 2 uncorrected ECC errors during the job; reset GPU"
        );
    }

    #[test]
    fn a_counter_that_went_backwards_is_unknown() {
        let case = errors(before(case("h100-sxm"), 4), 1);
        assert_eq!(
            case.summary(),
            "degraded: unknown gpu-ecc@1: ECC counter went backwards during the job; none"
        );
    }

    #[test]
    fn a_baseline_of_another_boot_is_ignored() {
        let rebooted =
            errors(before(case("h100-sxm"), 4), 1).with(|case| case.now.boot_id = "another".to_owned());
        assert_eq!(rebooted.of("gpu-ecc"), [Severity::Fail], "the count itself, since this boot");
    }

    #[test]
    fn the_site_sets_the_threshold() {
        let tolerant = |toml| errors(case("h100-sxm").settings(toml), 4).of("gpu-ecc");
        assert!(tolerant("[checks.gpu-ecc]\nmax_uncorrected = 4").is_empty());
        assert_eq!(tolerant("[checks.gpu-ecc]\nmax_uncorrected = 3"), [Severity::Fail]);
    }

    #[test]
    fn missing_ecc_warns_only_if_the_profile_has_ecc() {
        let without = |id: &str| {
            case(id).gpu(1, |gpu| {
                gpu.ecc_enabled = Reading::Unsupported;
                gpu.ecc.volatile_uncorrected = Reading::Unsupported;
            })
        };
        assert!(without("generic").of("gpu-ecc").is_empty());
        assert_eq!(without("h100-sxm").of("gpu-ecc"), [Severity::Warn]);
        let off = case("h100-sxm").gpu(1, |gpu| gpu.ecc_enabled = Reading::Known(false));
        assert_eq!(off.summary(), "degraded: warn gpu-ecc@1: ECC is off; nvidia-smi -e 1");
    }

    #[test]
    fn contained_errors_leave_the_node_fit() {
        let one = || case("h100-sxm:gpu-ecc-contained@3");
        assert_eq!(
            one().findings(),
            [
                "warn gpu-xid@3: Xid 94 (contained ECC error); watch",
                "warn gpu-ecc@3: 1 contained ECC errors since driver load; reset GPU when idle"
            ]
        );
        assert_eq!(one().after_the_job().of("gpu-ecc"), [Severity::Warn]);
        assert_eq!(one().xid(3, 95, "pid=1, Uncontained").of("gpu-ecc"), [Severity::Fail]);
        assert_eq!(one().settings("[checks.gpu-ecc]\ncontained = \"fail\"").of("gpu-ecc"), [Severity::Fail]);
        // An Xid of another GPU does not explain the error.
        assert_eq!(case("h100-sxm:gpu-ecc-uncorrected@3").xid(4, 94, "x").of("gpu-ecc"), [Severity::Fail]);
    }

    #[test]
    fn contained_errors_stay_contained_after_their_records_left_the_log() {
        let later = |case: &Case, count| {
            let mut memory = case.memory.after(&case.now, false);
            memory.settle(&case.now, &case.judge());
            let mut next = errors_of(crate::testing::case("h100-sxm"), count);
            next.memory = memory;
            next
        };
        let first = case("h100-sxm:gpu-ecc-contained@3");
        let second = later(&first, 1);
        assert_eq!(second.of("gpu-ecc"), [Severity::Warn], "no line reports it any longer");
        assert_eq!(later(&second, 1).of("gpu-ecc"), [Severity::Warn]);
        assert_eq!(later(&first, 2).of("gpu-ecc"), [Severity::Fail], "a new error without a line");
        assert_eq!(later(&first, 2).xid(3, 94, "pid=2, Contained").of("gpu-ecc"), [Severity::Warn]);
        let driver_reloaded = later(&later(&first, 0), 1);
        assert_eq!(driver_reloaded.of("gpu-ecc"), [Severity::Fail]);
        let booted = later(&first, 1).with(|case| case.now.boot_id = "another".to_owned());
        assert_eq!(booted.of("gpu-ecc"), [Severity::Fail]);
        // An error that was never contained is not counted as contained.
        assert_eq!(later(&case("h100-sxm:gpu-ecc-uncorrected@3"), 4).of("gpu-ecc"), [Severity::Fail]);
        let after = later(&first, 1).after_the_job();
        assert_eq!(after.of("gpu-ecc"), [Severity::Warn]);
    }

    #[test]
    fn without_a_log_the_recovery_action_decides() {
        let unheard = || errors_of(case("h100-sxm:kmsg-unreadable"), 1);
        assert_eq!(unheard().of("gpu-ecc"), [Severity::Warn]);
        let asks = unheard().gpu(3, |gpu| gpu.recovery_action = Reading::Known(RecoveryAction::GpuReset));
        assert_eq!(asks.of("gpu-ecc"), [Severity::Fail]);
        let old = unheard().gpu(3, |gpu| gpu.recovery_action = Reading::Unsupported);
        assert_eq!(old.of("gpu-ecc"), [Severity::Fail]);
        let overrun =
            errors_of(case("h100-sxm"), 1).with(|case| read(&mut case.now.kernel_log).overrun = true);
        assert_eq!(overrun.of("gpu-ecc"), [Severity::Warn]);
    }

    #[test]
    fn without_a_recovery_action_each_error_needs_its_own_record() {
        let old = |errors| {
            errors_of(case("h100-sxm:gpu-ecc-contained@3"), errors)
                .gpu(3, |gpu| gpu.recovery_action = Reading::Unsupported)
        };
        assert_eq!(old(1).of("gpu-ecc"), [Severity::Warn]);
        assert_eq!(old(2).of("gpu-ecc"), [Severity::Fail]);
        assert_eq!(old(2).xid(3, 94, "pid=2, Contained").of("gpu-ecc"), [Severity::Warn]);
        let asks = case("h100-sxm:gpu-ecc-contained@3")
            .gpu(3, |gpu| gpu.recovery_action = Reading::Known(RecoveryAction::GpuReset));
        assert_eq!(asks.of("gpu-ecc"), [Severity::Fail]);
    }

    fn errors_of(case: Case, count: u64) -> Case {
        case.gpu(3, |gpu| gpu.ecc.volatile_uncorrected = Reading::Known(count))
    }

    #[test]
    fn errors_over_the_lifetime_of_a_card() {
        assert_eq!(
            case("h100-sxm:gpu-sram-threshold@3").summary(),
            "unfit: fail gpu-ecc@3: SRAM error threshold exceeded; RMA"
        );
        assert_eq!(
            case("h100-sxm:gpu-ecc-aggregate@3").summary(),
            "degraded: warn gpu-ecc@3: 600 uncorrected ECC errors over its life; watch, then RMA"
        );
        let pending = case("h100-sxm:gpu-ecc-mode-pending@3");
        assert_eq!((pending.summary(), pending.of("gpu-ecc")), ("fit".to_owned(), vec![Severity::Note]));
    }

    #[test]
    fn corrected_errors_are_judged_by_rate_after_a_job() {
        assert_eq!(case("h100-sxm:gpu-ecc-corrected@3").summary(), "fit");
        let after = case("h100-sxm:gpu-ecc-corrected@3").after_the_job();
        assert_eq!(
            after.summary(),
            "degraded: warn gpu-ecc@3: 60000000 corrected ECC errors in 1 min; watch"
        );
        assert_eq!(after.with(|case| case.now.taken += 6 * 3_600_000).summary(), "fit");
    }

    #[test]
    fn errors_of_another_jobs_gpu_are_ignored_and_failed_readings_unknown() {
        assert_eq!(errors(case("h100-sxm"), 4).holding(&[0, 2]).summary(), "fit");
        let failed =
            case("h100-sxm").gpu(1, |gpu| gpu.ecc.volatile_uncorrected = Reading::Failed("999".to_owned()));
        assert_eq!(failed.of("gpu-ecc"), [Severity::Unknown]);
    }
}
