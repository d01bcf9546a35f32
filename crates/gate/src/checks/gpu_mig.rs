use railgate_model::{Allocation, Class, Gpu, GpuId, PartName};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;

pub(super) use crate::graded::Settings;

/// The check.
pub(crate) struct GpuMig;

impl Check for GpuMig {
    const ABOUT: &'static str = "MIG is on where Slurm assigns whole GPUs, or off where it assigns slices";
    const EXPLAIN: &'static str = "
Reads `nvmlDeviceGetMigMode` and compares with the profile's `gpus.mig`, if set, and with what Slurm assigned to the
job: the UUID of a slice (`MIG-…`) needs MIG on, the UUID of a GPU (`GPU-…`) needs it off.

Why: CUDA does not see a GPU that has MIG on and no slices.

Fix: `nvidia-smi -i N -mig 0` (or 1) and a reset, or correct gres.conf.
";
    const CLASS: Class = Class::Site;
    const PARTS: &'static [PartName] = &[PartName::Gpus];
    const SCOPE: Scope = Scope::Gpus;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let profile = scene.profile().and_then(|profile| profile.gpus.mig);
        for gpu in scene.answering() {
            let part = gpu.index.to_string();
            let what = format!("gpu {part} MIG mode");
            let Some(&on) = out.value(&part, &what, SOURCE, &gpu.mig) else { continue };
            let (wanted, who) = match (given(scene, gpu), profile) {
                (Some(wanted), _) => (wanted, "Slurm"),
                (None, Some(wanted)) => (wanted, "the profile"),
                (None, None) => continue,
            };
            if on != wanted {
                let text = format!("MIG is {}, {who} has it {}", word(on), word(wanted));
                out.add(
                    Found::new(set.severity, Class::Site, part, text).fix("set MIG mode, gres.conf").row(
                        what,
                        word(on),
                        word(wanted),
                        SOURCE,
                    ),
                );
            }
        }
    }
}

const SOURCE: &str = "nvmlDeviceGetMigMode";

fn word(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// Whether MIG is on for this GPU according to the UUIDs of the job's list; `None` if the list has indices.
fn given(scene: &Scene<'_>, gpu: &Gpu) -> Option<bool> {
    let Allocation::Gpus(ids) = &scene.seen.job?.allocation else { return None };
    let uuid = gpu.uuid.known()?;
    ids.iter().find_map(|id| match id {
        GpuId::Uuid(text) if text == uuid => Some(false),
        // Only the UUIDs of old drivers (`MIG-GPU-…/1/0`) contain the UUID of the slice's GPU.
        GpuId::Uuid(text) => text.strip_prefix("MIG-")?.starts_with(uuid.as_str()).then_some(true),
        GpuId::Index(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use railgate_model::{Allocation, GpuId};

    use crate::testing::case;

    #[test]
    fn a_mig_mode_that_differs_from_the_profile_warns() {
        assert_eq!(case("h100-sxm:gpu-mig-on@3").summary(), "fit", "the built-in profiles leave it open");
        let want = |mig| {
            case("h100-sxm:gpu-mig-on@3").with(|case| case.profile.as_mut().unwrap().gpus.mig = Some(mig))
        };
        assert_eq!(
            want(false).summary(),
            "degraded: warn gpu-mig@3: MIG is on, the profile has it off; set MIG mode, gres.conf"
        );
        let of_card_3 = want(true).with(|case| {
            let uuid = case.now.gpus.data().unwrap().gpus[3].uuid.known().unwrap().clone();
            let slice = GpuId::Uuid(format!("MIG-{uuid}/1/0"));
            case.job.as_mut().unwrap().allocation = Allocation::Gpus(vec![slice]);
        });
        assert_eq!(of_card_3.summary(), "fit");
    }

    #[test]
    fn a_mig_mode_that_differs_from_the_allocation_warns() {
        let given = |node: &str, slice: &str| {
            case(node).with(|case| {
                let uuid = case.now.gpus.data().unwrap().gpus[3].uuid.known().unwrap().clone();
                let id = GpuId::Uuid(slice.replace("GPU", &uuid));
                case.job.as_mut().unwrap().allocation = Allocation::Gpus(vec![id]);
            })
        };
        assert!(given("h100-sxm:gpu-mig-on@3", "GPU").summary().contains("MIG is on, Slurm has it off"));
        assert!(given("h100-sxm", "MIG-GPU/1/0").summary().contains("MIG is off, Slurm has it on"));
        assert_eq!(given("h100-sxm", "GPU").summary(), "fit");
        assert_eq!(given("h100-sxm:gpu-mig-on@3", "MIG-GPU/1/0").summary(), "fit");
    }
}
