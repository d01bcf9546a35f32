use railgate_model::{Class, PartName, Severity};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::settings;

/// The check.
pub(crate) struct GpuIdentity;

settings! {
    action = Drain;
    foreign: Severity = Severity::Warn, "a GPU of another model than the profile's; class site";
    short: Severity = Severity::Warn, "a GPU with less memory than the profile's";
}

impl Check for GpuIdentity {
    const ABOUT: &'static str = "a GPU is of another model, or has less memory, than in the profile";
    const EXPLAIN: &'static str = "
Reads `nvmlDeviceGetName` and `nvmlDeviceGetMemoryInfo_v2` and compares them with the profile's `gpus.names` and
`gpus.memory_gib`. Up to 10 % less memory is tolerated, because ECC takes a sixteenth of graphics memory.

Why: Slurm assigns GPUs by gres.conf, and a job that needs 80 GB does not fit into 40 GB.

Fix: if the name differs, correct the profile or gres.conf. If memory is missing after an error
(Xid 168), replace the GPU (RMA).
";
    const CLASS: Class = Class::Site;
    const PARTS: &'static [PartName] = &[PartName::Gpus];
    const SCOPE: Scope = Scope::Gpus;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let Some(facts) = scene.profile().map(|profile| &profile.gpus) else { return };
        for gpu in scene.answering() {
            let part = gpu.index.to_string();
            let what = format!("gpu {part} name");
            if let Some(name) = out.value(&part, &what, "nvmlDeviceGetName", &gpu.name)
                && !facts.names.is_empty()
                && !facts.names.iter().any(|known| known.eq_ignore_ascii_case(name.trim()))
            {
                out.add(
                    Found::new(set.foreign, Class::Site, &part, format!("{name} is not in the profile"))
                        .fix("check profile, gres.conf")
                        .row(what, name, facts.names.join(", "), "nvmlDeviceGetName"),
                );
                continue;
            }
            let what = format!("gpu {part} memory");
            let memory = out.value(&part, &what, MEMORY, &gpu.memory).map(|memory| memory.total_mib);
            if let (Some(total), Some(want)) = (memory, facts.memory_gib.map(|gib| u64::from(gib) * 1024))
                && total < want - want / 10
            {
                let text = format!("{} of {} GiB of memory", total / 1024, want / 1024);
                out.add(Found::new(set.short, Class::Node, part, text).fix("reset GPU, then RMA").row(
                    what,
                    format!("{total} MiB"),
                    format!("{want} MiB"),
                    MEMORY,
                ));
            }
        }
    }
}

const MEMORY: &str = "nvmlDeviceGetMemoryInfo_v2";

#[cfg(test)]
mod tests {
    use railgate_model::MemoryUse;
    use railgate_model::Reading;

    use crate::testing::case;

    #[test]
    fn a_model_or_memory_size_that_differs_from_the_profile_warns() {
        assert_eq!(
            case("h100-sxm:gpu-foreign@3").summary(),
            "degraded: warn gpu-identity@3: NVIDIA T400 4GB is not in the profile; check profile, gres.conf"
        );
        assert_eq!(case("generic:gpu-foreign@3").summary(), "fit");
        let short = case("h100-sxm:gpu-memory-short@3").summary();
        assert!(short.starts_with("degraded: warn gpu-identity@3: 39 of 79 GiB of memory"), "{short}");
        let ecc = case("rtx3090").gpu(3, |gpu| {
            gpu.memory = Reading::Known(MemoryUse { total_mib: 24_576 * 15 / 16, used_mib: 0 });
        });
        assert_eq!(ecc.summary(), "fit");
        let absurd = case("h100-sxm").gpu(3, |gpu| {
            gpu.memory = Reading::Known(MemoryUse { total_mib: u64::MAX / 5, used_mib: 0 });
        });
        assert_eq!(absurd.findings(), [] as [&str; 0]);
    }
}
