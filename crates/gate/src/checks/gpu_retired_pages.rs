use railgate_model::{Class, PartName, Severity};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::settings;

/// The check.
pub(crate) struct GpuRetiredPages;

settings! {
    action = Drain;
    max_pages: u32 = 60, "retired pages; this many are fail (a GPU can have 64)";
    pending: Severity = Severity::Warn, "pages that wait for a reset";
}

impl Check for GpuRetiredPages {
    const ABOUT: &'static str = "a GPU before Ampere has retired too many pages, or some wait for a reset";
    const EXPLAIN: &'static str = "
Reads NVML's fields 29 to 31: pages that were retired after corrected and after uncorrected errors, and whether some
wait for a reset. From Ampere on, GPUs remap rows instead (`gpu-remap`) and retire no pages.

Why: the card can hold 64 retired pages; NVIDIA replaces it from 60 on. A pending page is still in use.

Fix: pending: reset the GPU when it is idle (`nvidia-smi -r -i N`). Too many: replace the GPU (RMA).
";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::Gpus];
    const SCOPE: Scope = Scope::Gpus;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        for gpu in scene.answering() {
            let part = gpu.index.to_string();
            let what = format!("gpu {part} retired pages");
            let Some(pages) = out.value(&part, &what, SOURCE, &gpu.details.retired_pages) else { continue };
            let all = pages.single_bit.saturating_add(pages.double_bit);
            let got = format!("{} + {}, pending {}", pages.single_bit, pages.double_bit, pages.pending);
            if all >= set.max_pages {
                out.add(Found::fail(Class::Node, part, format!("{all} retired pages")).fix("RMA").row(
                    what,
                    got,
                    format!("fewer than {}", set.max_pages),
                    SOURCE,
                ));
            } else if pages.pending {
                out.add(
                    Found::new(set.pending, Class::Node, part, "retired pages wait for a reset")
                        .fix("reset GPU when idle")
                        .row(what, got, "none pending", SOURCE),
                );
            }
        }
    }
}

const SOURCE: &str = "NVML fields 29 to 31";

#[cfg(test)]
mod tests {
    use crate::testing::case;

    #[test]
    fn pending_pages_need_a_reset_and_a_full_table_an_rma() {
        let pending = case("generic:gpu-pages-pending@3").summary();
        assert_eq!(
            pending,
            "degraded: warn gpu-retired-pages@3: retired pages wait for a reset; reset GPU when idle"
        );
        let full = case("generic:gpu-pages-full@3");
        assert_eq!(full.summary(), "unfit: fail gpu-retired-pages@3: 62 retired pages; RMA");
        assert_eq!(full.settings("[checks.gpu-retired-pages]\nmax_pages = 63").summary(), "fit");
    }
}
