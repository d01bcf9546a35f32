use railgate_model::{Class, PartName, Reading, Severity};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::settings;

/// The check.
pub(crate) struct GpuRemap;

settings! {
    action = Drain;
    pending: Severity = Severity::Warn, "a remap that waits for a reset";
    max_uncorrectable: u32 = 512, "rows remapped after uncorrectable errors; this many are warn";
}

impl Check for GpuRemap {
    const ABOUT: &'static str = "a row of GPU memory could not be remapped, or its remap waits for a reset";
    const EXPLAIN: &'static str = "
Reads `nvmlDeviceGetRemappedRows` (Ampere and later data-centre GPUs).

Why: `failed` means that the spare rows of a bank are used up, which is NVIDIA's criterion for replacing the card.
`pending` does no harm to running work: the bad page is already offline, and a reset makes the remap effective.

`max_uncorrectable` rows or more mean that the memory keeps failing; by itself that is not a criterion for RMA.

Fix: failed: open an RMA. Pending: reset the GPU when it is idle (`nvidia-smi -r -i N`).

A GPU that does not remap rows is not a fault unless the profile expects it to (then `unknown`; not with MIG on, where the
driver does not report it).
";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::Gpus];
    const SCOPE: Scope = Scope::Gpus;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let wanted = scene.profile().is_some_and(|profile| profile.gpus.row_remap == Some(true));
        for gpu in scene.answering() {
            let part = gpu.index.to_string();
            let what = format!("gpu {part} remapped rows");
            let Some(remap) = out.value(&part, &what, SOURCE, &gpu.row_remap) else {
                if wanted && gpu.row_remap == Reading::Unsupported && gpu.mig.known() != Some(&true) {
                    out.add(
                        Found::unknown(Class::Site, part, "row remapping not supported, the profile has it")
                            .fix("check driver, profile")
                            .row(what, "not supported", "a value", SOURCE),
                    );
                }
                continue;
            };
            let got = format!(
                "{} correctable, {} uncorrectable, pending {}, failed {}",
                remap.correctable, remap.uncorrectable, remap.pending, remap.failed
            );
            if remap.failed {
                out.add(Found::fail(Class::Node, part, "row remap failed").fix("RMA").row(
                    what,
                    got,
                    "failed false",
                    SOURCE,
                ));
            } else if remap.pending {
                out.add(
                    Found::new(set.pending, Class::Node, part, "row remap pending")
                        .fix("reset GPU when idle")
                        .row(what, got, "pending false", SOURCE),
                );
            } else if remap.uncorrectable >= set.max_uncorrectable {
                let text = format!("{} rows remapped", remap.uncorrectable);
                out.add(Found::warn(Class::Node, part, text).fix("watch, then RMA").row(
                    what,
                    got,
                    format!("fewer than {} uncorrectable", set.max_uncorrectable),
                    SOURCE,
                ));
            }
        }
    }
}

const SOURCE: &str = "nvmlDeviceGetRemappedRows";

#[cfg(test)]
mod tests {
    use railgate_model::{Reading, Severity};

    use crate::testing::case;

    #[test]
    fn a_failed_remap_needs_an_rma_and_a_pending_one_a_reset() {
        assert_eq!(
            case("h100-sxm:gpu-remap-failed@3").summary(),
            "unfit: fail gpu-remap@3: row remap failed; RMA"
        );
        let pending = case("h100-sxm:gpu-remap-pending@3");
        assert_eq!(pending.summary(), "degraded: warn gpu-remap@3: row remap pending; reset GPU when idle");
        assert!(pending.settings("[checks.gpu-remap]\npending = \"fail\"").summary().starts_with("unfit"));
    }

    #[test]
    fn many_remapped_rows_warn() {
        let many = case("h100-sxm:gpu-remap-many@3");
        assert_eq!(many.summary(), "degraded: warn gpu-remap@3: 512 rows remapped; watch, then RMA");
        assert_eq!(many.settings("[checks.gpu-remap]\nmax_uncorrectable = 600").summary(), "fit");
    }

    #[test]
    fn unsupported_row_remapping_is_fit() {
        let without = |id: &str| case(id).gpu(3, |gpu| gpu.row_remap = Reading::Unsupported);
        assert_eq!(without("rtx4090").summary(), "fit");
        assert_eq!(without("h100-sxm").of("gpu-remap"), [Severity::Unknown]);
        assert_eq!(without("h100-sxm").gpu(3, |gpu| gpu.mig = Reading::Known(true)).summary(), "fit");
    }

    #[test]
    fn a_remap_on_another_jobs_gpu_is_ignored_and_a_failed_reading_unknown() {
        assert_eq!(case("h100-sxm:gpu-remap-failed@3").holding(&[0]).summary(), "fit");
        let failed = case("h100-sxm").gpu(3, |gpu| gpu.row_remap = Reading::Failed("999".to_owned()));
        assert_eq!(failed.of("gpu-remap"), [Severity::Unknown]);
    }
}
