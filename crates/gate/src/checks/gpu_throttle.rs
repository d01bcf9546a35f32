use std::time::Duration;

use railgate_model::{Class, Gpu, PartName, Severity};

use crate::gpu_counters::Counter;
use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::settings;

use super::gpu_window::Window;

/// The check.
pub(crate) struct GpuThrottle;

settings! {
    action = Drain;
    severity: Severity = Severity::Warn, "a slowdown by the hardware";
    max_percent: u64 = 5, "percent of the time; more is warn";
}

impl Check for GpuThrottle {
    const ABOUT: &'static str = "the hardware slows a GPU down: too hot, or the power brake is on";
    const EXPLAIN: &'static str = "
Reads `nvmlDeviceGetCurrentClocksThrottleReasons` twice per check run, at its beginning and its end; only a reason that is
set both times counts: hardware slowdown (0x8), hardware thermal slowdown (0x40), power brake (0x80). It also reads how long
the last two were on (fields 252 and 253, from driver 580.82 on 270 and 271) since the job's prolog, or without a job since
the oldest check run of the last hour; that is `warn` at most. A power cap, an idle GPU and clocks that were set by hand are
no faults.

Why: one GPU at half its clock makes every other rank of the job wait.

Fix: heat: check fans, air flow, heat sink. Power brake: check power supplies and cables.
";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::Gpus];
    const SCOPE: Scope = Scope::Gpus;
    const TRANSIENT: Option<Duration> = Some(Duration::from_secs(3600));
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        for gpu in scene.answering() {
            if !now(gpu, set, out) {
                during(scene, gpu, set, out);
            }
        }
    }
}

const NOW: &str = "nvmlDeviceGetCurrentClocksThrottleReasons";
const SLOWDOWN: u64 = 0x8;
const THERMAL: u64 = 0x40;
const BRAKE: u64 = 0x80;

fn now(gpu: &Gpu, set: &Settings, out: &mut Report<'_>) -> bool {
    let part = gpu.index.to_string();
    let what = format!("gpu {part} clock reasons");
    let first = out.value(&part, &what, NOW, &gpu.throttle_reasons).copied();
    let second = out.value(&part, &what, NOW, &gpu.details.throttle_reasons_later).copied();
    let (Some(first), Some(second)) = (first, second) else { return false };
    let both = first & second;
    let (why, fix) = match both {
        reasons if reasons & THERMAL != 0 => ("thermal slowdown", "check cooling"),
        reasons if reasons & BRAKE != 0 => ("power brake", "check power"),
        reasons if reasons & SLOWDOWN != 0 => ("hardware slowdown", "check cooling, power"),
        _ => return false,
    };
    let found = Found::new(set.severity, Class::Node, part, format!("{why} is on")).fix(fix);
    out.add(found.row(what, format!("{first:#x}, {second:#x}"), "none of 0x8, 0x40, 0x80", NOW));
    true
}

fn during(scene: &Scene<'_>, gpu: &Gpu, set: &Settings, out: &mut Report<'_>) {
    let Some(window) = Window::of(scene, gpu) else { return };
    let reasons = [
        ("thermal slowdown", "check cooling", window.rose(Counter::Thermal)),
        ("power brake", "check power", window.rose(Counter::Brake)),
    ];
    for (why, fix, nanos) in reasons {
        let Some(millis) = nanos.map(|nanos| nanos / 1_000_000) else { continue };
        let percent = millis.saturating_mul(100) / window.millis.max(1);
        if percent > set.max_percent {
            let percent = percent.min(100);
            out.add(
                Found::new(
                    window.at_most(set.severity),
                    Class::Node,
                    gpu.index.to_string(),
                    format!("{why} {percent} % of {}", window.name()),
                )
                .fix(fix)
                .row(
                    format!("gpu {} {why}", gpu.index),
                    format!("{} s {}", millis / 1000, window.text()),
                    format!("at most {} %", set.max_percent),
                    "NVML fields 252, 253 (270, 271)",
                ),
            );
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::{Reading, Severity};

    use crate::testing::case;

    #[test]
    fn a_throttle_reason_counts_if_both_samples_have_it() {
        let hot = case("h100-sxm:gpu-throttle-thermal@3");
        assert_eq!(hot.summary(), "degraded: warn gpu-throttle@3: thermal slowdown is on; check cooling");
        let brake = case("h100-sxm:gpu-throttle-power-brake@3");
        assert_eq!(brake.summary(), "degraded: warn gpu-throttle@3: power brake is on; check power");
        let moment = hot.gpu(3, |gpu| gpu.details.throttle_reasons_later = Reading::Known(1));
        assert_eq!(moment.summary(), "fit");
        for harmless in [0, 1, 2, 4, 0x10, 0x20, 0x100] {
            let case = case("h100-sxm").gpu(3, |gpu| {
                gpu.throttle_reasons = Reading::Known(harmless);
                gpu.details.throttle_reasons_later = Reading::Known(harmless);
            });
            assert_eq!(case.summary(), "fit", "{harmless:#x}");
        }
    }

    #[test]
    fn with_severity_fail_it_fails_at_the_second_check_run() {
        let hot =
            case("h100-sxm:gpu-throttle-thermal@3").settings("[checks.gpu-throttle]\nseverity = \"fail\"");
        assert_eq!(hot.of("gpu-throttle"), [Severity::Warn]);
        assert_eq!(hot.again().of("gpu-throttle"), [Severity::Fail]);
    }

    #[test]
    fn after_a_job_the_throttled_share_of_its_time_counts() {
        let after =
            |ms: u64| case("h100-sxm:gpu-throttled@3").after_the_job().with(|case| case.now.taken += ms);
        let says = after(3_600_000).summary();
        assert_eq!(says, "degraded: warn gpu-throttle@3: thermal slowdown 33 % of the job; check cooling");
        assert_eq!(after(86_400_000).summary(), "fit");
        assert_eq!(case("h100-sxm:gpu-throttled@3").summary(), "fit", "the time is unknown");
        let strict = case("h100-sxm:gpu-throttled@3").settings("[checks.gpu-throttle]\nseverity = \"fail\"");
        let hour = strict.remembering().with(|case| case.now.taken += 3_600_000).again();
        assert_eq!(hour.of("gpu-throttle"), [], "a minute more than an hour");
        let hour = hour.with(|case| case.now.taken -= 60_000);
        assert_eq!(hour.of("gpu-throttle"), [Severity::Warn], "two looks see the same hour");
        let says = "warn gpu-throttle@3: thermal slowdown 33 % of the last 60 min; check cooling";
        assert_eq!(hour.findings(), [says]);
    }
}
