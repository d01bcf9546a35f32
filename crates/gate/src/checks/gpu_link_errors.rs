use railgate_model::{Class, Extra, Gpu, PartName, Phase, Reading};

use crate::gpu_counters::{CRC_PER_HOUR, Counter, Kind, MAX_RECOVERIES, REPLAYS_PER_HOUR};
use crate::plan::Need;
use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::settings;

use super::gpu_window::Window;

/// The check.
pub(crate) struct GpuLinkErrors;

settings! {
    action = Drain;
    max_recoveries: u64 = MAX_RECOVERIES, "recoveries (link trained again) in a job, or in an hour; more is warn";
    replays_per_hour: u64 = REPLAYS_PER_HOUR, "replays of a link; more is warn";
    crc_per_hour: u64 = CRC_PER_HOUR, "checksum errors of a link (100 per second); more is warn";
}

impl Check for GpuLinkErrors {
    const ABOUT: &'static str = "an NVLink of a GPU has errors";
    const EXPLAIN: &'static str = "
Reads the error counters of each NVLink of a GPU (fields 161 to 163 with the link's number: replays, recoveries, checksum
errors; on Blackwell recoveries are field 215; up to Ampere the sums of all links, fields 52, 59 and 38). Judged is the
increase during the job, or without a job since the oldest check run of the last hour. Older counts do not matter: counters
start when the driver is loaded, and some links count errors while they are trained. A counter that went backwards is not
judged. From Hopper on only the periodic check reads them: that takes 20 ms per GPU, and no job should wait for it.

Why: a link carries no data while it is trained again, and may fail for good.

Fix: watch it; if a GPU shows this in job after job, reset all GPUs, then replace it (RMA: GPU, baseboard or NVSwitch).
";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::Gpus];
    // Takes about 20 ms per GPU, so prologs do not read it: the periodic run does, between jobs and hourly during them.
    const NEEDS: &'static [Need<Settings>] =
        &[Need::extra(|_, _, _| Some(Extra::NvLinkErrors)).only(&[Phase::Periodic])];
    const SCOPE: Scope = Scope::Gpus;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        for gpu in scene.answering() {
            let part = gpu.index.to_string();
            let all = readings(gpu);
            // One finding covers all failed readings: each of 18 links has three counters.
            let failed = all.iter().find(|(_, _, count)| matches!(count, Reading::Failed(_)));
            if let Some((_, kind, count)) = failed {
                out.value(&part, &format!("gpu {part} NVLink {}", kind.text()), source(gpu), *count);
            }
            let Some(window) = Window::of(scene, gpu) else { continue };
            for kind in Kind::ALL {
                // One finding per GPU, for its worst link: a failing NVSwitch affects many links.
                let rose = all.iter().filter(|(_, of, _)| *of == kind);
                let rose = rose.filter_map(|(counter, ..)| Some((counter, window.rose(*counter)?)));
                let Some((counter, rose)) = rose.max_by_key(|(_, rose)| *rose) else { continue };
                let allowed = match kind {
                    Kind::Recoveries => set.max_recoveries,
                    Kind::Replays => window.allowed(set.replays_per_hour, HOUR_MS),
                    Kind::Crc => window.allowed(set.crc_per_hour, HOUR_MS),
                };
                if rose <= allowed {
                    continue;
                }
                let kind = kind.text();
                let (text, what) = match counter {
                    Counter::Link(link, _) => (format!("link {link}: {rose} {kind}"), format!("link {link}")),
                    _ => (format!("{rose} NVLink {kind}"), "NVLink".to_owned()),
                };
                out.add(
                    Found::warn(Class::Node, &part, format!("{text} {}", window.text())).fix("watch").row(
                        format!("gpu {part} {what} {kind}"),
                        rose.to_string(),
                        format!("at most {allowed}"),
                        source(gpu),
                    ),
                );
            }
        }
    }
}

const HOUR_MS: u64 = 3_600_000;

fn source(gpu: &Gpu) -> &'static str {
    let sums = gpu.details.nvlink_errors.links.is_empty();
    if sums { "NVML fields 52, 59, 38" } else { "NVML fields 161 to 163" }
}

/// The counters of each link, or the sums over all links if the driver reports only those.
fn readings(gpu: &Gpu) -> Vec<(Counter, Kind, &Reading<u64>)> {
    let errors = &gpu.details.nvlink_errors;
    if errors.links.is_empty() {
        return Kind::ALL.map(|kind| (Counter::Links(kind), kind, kind.of_all(errors))).into();
    }
    let each = errors.links.iter().flat_map(|link| Kind::ALL.map(|kind| (link, kind)));
    each.map(|(link, kind)| (Counter::Link(link.link, kind), kind, kind.of(link))).collect()
}

#[cfg(test)]
mod tests {
    use railgate_model::{Reading, Severity};

    use crate::testing::{case, read};

    #[test]
    fn errors_during_the_job_count() {
        let after = case("h100-sxm:gpu-nvlink-errors@3").after_the_job();
        assert_eq!(
            after.findings(),
            [
                "warn gpu-link-errors@3: link 7: 3 recoveries in 1 min; watch",
                "warn gpu-link-errors@3: link 7: 5000 replays in 1 min; watch"
            ]
        );
        assert_eq!(
            case("h100-sxm:gpu-nvlink-errors@3").summary(),
            "fit",
            "the time of the errors is unknown"
        );
        let sums = case("a100-sxm:gpu-nvlink-errors@3").after_the_job();
        assert!(sums.findings()[0].contains("3 NVLink recoveries in 1 min"), "{:?}", sums.findings());
    }

    #[test]
    fn without_a_job_errors_of_the_last_hour_count() {
        let later =
            case("h100-sxm:gpu-nvlink-errors@3").remembering().with(|case| case.now.taken += 1_200_000);
        assert_eq!(
            later.summary(),
            "degraded: warn gpu-link-errors@3: link 7: 3 recoveries in 20 min; watch"
        );
        assert_eq!(later.with(|case| case.now.boot_id = "another".to_owned()).summary(), "fit");
    }

    #[test]
    fn errors_from_before_the_window_do_not_count() {
        let old = case("h100-sxm:gpu-nvlink-errors@3").after_the_job().with(|case| {
            case.before = Some(case.now.clone());
        });
        assert_eq!(old.summary(), "fit");
        let reloaded = old.with(|case| {
            read(&mut case.now.gpus).gpus[3].details.nvlink_errors.links[7].replays = Reading::Known(0);
        });
        assert_eq!(reloaded.summary(), "fit");
    }

    #[test]
    fn unreadable_counters_make_one_finding_per_gpu() {
        let failed = case("h100-sxm").gpu(3, |gpu| {
            for link in &mut gpu.details.nvlink_errors.links {
                link.replays = Reading::Failed("unknown error (999)".to_owned());
            }
        });
        assert_eq!(failed.of("gpu-link-errors"), [Severity::Unknown]);
    }
}
