use railgate_model::{Class, JobGpus, KnownGpu, PartName, Pci, PciAddress, Severity};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::settings;

/// The check.
pub(crate) struct GpuCount;

settings! {
    action = Drain;
}

impl Check for GpuCount {
    const ABOUT: &'static str = "fewer GPUs than the profile has, or than Slurm gave to the job";
    const EXPLAIN: &'static str = "
Reads `nvmlDeviceGetCount_v2` and compares with the profile's `gpus.count`, with the GPUs that Slurm assigned to the job
(`SLURM_JOB_GPUS`), after a job with the GPUs before it, and with the GPUs of the last clean check run, which also show which
one is missing. If NVML returned nothing, the PCI tree is counted instead; it can only show that one is missing.

Why: a job gets fewer GPUs than it asked for, or a GPU of another job.

Fix: reboot; power-cycle the node or reseat the GPU if it does not come back.

With MIG on, Slurm's indices count slices and do not tell which cards a job has: a missing card is then `unknown`.

On a shared node the count fails only if a missing GPU belongs to the job. If it belongs to another job that is a
warning; if it is not known which GPU is missing, `unknown`. If neither profile nor baseline has a number, a GPU of the last
clean check run that is gone is a warning. To make railgate forget a GPU that was removed on purpose, delete
`/var/lib/railgate/history.json`. More GPUs than the profile has is a `warn` of class `site`: the node has the wrong
profile.
";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::Gpus, PartName::Pci];
    const SCOPE: Scope = Scope::Gpus;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, _: &Settings, out: &mut Report<'_>) {
        if let Some(why) = scene.unclear().filter(|why| *why != JobGpus::SLICES) {
            out.add(
                Found::unknown(Class::Internal, "", format!("the job's GPUs are unknown: {why}"))
                    .fix("report a bug")
                    .row("SLURM_JOB_GPUS", why, "indices or UUIDs", "job environment"),
            );
        }
        let before = scene.before_count();
        let expected = scene.profile().and_then(|profile| profile.gpus.count).or(before);
        let Some(gpus) = scene.now.gpus.data() else {
            if let (Some(expected), Some(pci)) = (expected, scene.now.pci.data()) {
                by_pci(scene, expected, pci, out);
            }
            return;
        };
        let Some(&count) = out.value("", "number of GPUs", SOURCE, &gpus.count) else { return };
        let row = |found: Found, want: u32| {
            found.row("number of GPUs", count.to_string(), want.to_string(), SOURCE)
        };
        if let Some(want) = expected.filter(|want| count > *want) {
            let what = format!("{count} GPUs, the profile has {want}");
            out.add(row(Found::warn(Class::Site, "", what).fix("check profile"), want));
        }
        let short = expected.filter(|want| count < *want);
        if short.is_none() || !scene.whole() {
            for known in scene.missing() {
                let what = format!("the job's GPU {} is missing, {count} present", name(known));
                let found = Found::fail(Class::Node, known.index.to_string(), what).fix("reboot");
                out.add(row(found, short.unwrap_or(count + 1)));
            }
            if !scene.missing().is_empty() {
                return;
            }
        }
        let Some(want) = short else {
            remembered(scene, expected, count, out);
            return;
        };
        let gone = gone(scene);
        let which = gone.first().map_or_else(String::new, |known| format!(", {} missing", name(known)));
        let part = gone.first().map_or_else(String::new, |known| known.index.to_string());
        let what = format!("{count} of {want} GPUs{which}");
        let found = if scene.whole() {
            Found::fail(Class::Node, part, what)
        } else if !gone.is_empty() || scene.unclear().is_none() && placed(scene) {
            Found::new(Severity::Fail, Class::Node, part, what).another_jobs()
        } else {
            Found::unknown(Class::Node, part, format!("{what}, a missing GPU may be another job's"))
        };
        out.add(row(found.fix("reboot"), want));
    }
}

const SOURCE: &str = "nvmlDeviceGetCount_v2";

/// Without a count in the profile, a GPU that was present at the last clean check run, possibly several boots ago, is
/// only a warning: it may have been removed on purpose.
fn remembered(scene: &Scene<'_>, expected: Option<u32>, count: u32, out: &mut Report<'_>) {
    let gone = gone(scene);
    let (None, Some(first)) = (expected, gone.first()) else { return };
    let then = scene.inventory().len();
    let what = format!("{count} GPUs, {then} at the last clean check run, {} missing", name(first));
    out.add(Found::warn(Class::Node, first.index.to_string(), what).fix("reboot").row(
        "number of GPUs",
        count.to_string(),
        then.to_string(),
        SOURCE,
    ));
}

/// GPUs of the last clean check run that NVML no longer lists.
fn gone(scene: &Scene<'_>) -> Vec<KnownGpu> {
    let here = |known: &KnownGpu| {
        scene.all_gpus().iter().any(|gpu| match (&known.uuid, gpu.uuid.known()) {
            (Some(then), Some(now)) => then == now,
            _ => known.pci.is_some() && gpu.pci.known() == known.pci.as_ref(),
        })
    };
    scene.inventory().into_iter().filter(|known| !here(known)).collect()
}

/// Whether Slurm's indices can be resolved: earlier check runs recorded which GPU had which index.
fn placed(scene: &Scene<'_>) -> bool {
    !scene.inventory().is_empty()
}

fn by_pci(scene: &Scene<'_>, expected: u32, pci: &Pci, out: &mut Report<'_>) {
    let present: Vec<PciAddress> =
        pci.devices.iter().filter(|device| device.is_nvidia_gpu()).map(|device| device.address).collect();
    if present.is_empty() || u32::try_from(present.len()).unwrap_or(u32::MAX) >= expected {
        return;
    }
    let what = format!("{} of {expected} GPUs in the PCI tree", present.len());
    let found = if scene.whole() {
        Found::fail(Class::Node, "", what)
    } else {
        Found::unknown(Class::Node, "", format!("{what}, a missing GPU may be another job's"))
    };
    out.add(found.fix("reboot").row(
        "NVIDIA GPUs in the PCI tree",
        present.len().to_string(),
        expected.to_string(),
        "/sys/bus/pci/devices",
    ));
}

fn name(known: &KnownGpu) -> String {
    known.pci.map_or_else(|| known.index.to_string(), |pci| pci.to_string())
}

#[cfg(test)]
mod tests {
    use railgate_model::{Allocation, Fitness, GpuId, Phase, Reading, Severity};

    use crate::testing::{Case, case, read};

    #[test]
    fn a_missing_gpu_fails_a_job_on_the_whole_node() {
        let case = case("h100-sxm:gpu-missing@3");
        assert_eq!(case.summary(), "unfit: fail gpu-count: 7 of 8 GPUs; reboot");
        assert_eq!(
            case.remembering().summary(),
            "unfit: fail gpu-count@3: 7 of 8 GPUs, 0000:61:00.0 missing; reboot"
        );
    }

    #[test]
    fn after_a_boot_slurms_numbers_are_those_of_the_gpus_that_came_back() {
        let shared = |gpus: &[u32]| {
            case("h100-sxm:gpu-missing@1")
                .remembering()
                .with(|case| case.profile.as_mut().unwrap().gpus.count = None)
                .holding(gpus)
        };
        assert_eq!(shared(&[1]).of("gpu-count"), [Severity::Fail], "slurmd counted GPU 1");
        let booted = |gpus: &[u32]| shared(gpus).with(|case| case.now.boot_id = "the next".to_owned());
        assert_eq!(booted(&[1]).of("gpu-count"), [Severity::Warn], "slurmd counted seven GPUs");
        assert_eq!(booted(&[1]).fitness(), Fitness::Degraded);
        let xid = |case: Case| case.xid(2, 119, "pid=1, name=x").of("gpu-xid");
        assert_eq!(xid(shared(&[2])), [Severity::Warn]);
        assert_eq!(xid(booted(&[1])), [Severity::Warn], "Slurm's GPU 1 is the former GPU 2");
        assert_eq!(xid(booted(&[2])), [], "another job's");
    }

    #[test]
    fn a_missing_gpu_fails_a_check_run_without_a_job() {
        let periodic = |case: Case| case.phase(Phase::Periodic).with(|case| case.job = None);
        assert!(periodic(case("h100-sxm:gpu-missing@3")).summary().starts_with("unfit: fail gpu-count"));
    }

    #[test]
    fn on_a_shared_node_only_a_missing_gpu_of_the_job_fails() {
        let shared = |gpus: &[u32]| case("h100-sxm:gpu-missing@3").remembering().holding(gpus).summary();
        assert_eq!(
            shared(&[0, 1]),
            "degraded: warn gpu-count@3: 7 of 8 GPUs, 0000:61:00.0 missing (not this job's); reboot"
        );
        assert_eq!(
            shared(&[2, 3]),
            "unfit: fail gpu-count@3: the job's GPU 0000:61:00.0 is missing, 7 present; reboot"
        );
        // One GPU is gone, so Slurm's index 7 is NVML's index 6.
        assert!(shared(&[7]).starts_with("degraded: warn gpu-count@3"));
    }

    #[test]
    fn on_a_shared_node_without_gate_state_the_owner_of_a_missing_gpu_is_unknown() {
        let shared = case("h100-sxm:gpu-missing@3").holding(&[0, 1]);
        assert_eq!(shared.of("gpu-count"), [Severity::Unknown]);
        let beyond = case("h100-sxm:gpu-missing@3").holding(&[7]);
        assert_eq!(beyond.of("gpu-count"), [Severity::Fail], "an index that NVML does not have");
    }

    #[test]
    fn the_epilog_uses_the_gpus_that_the_prolog_recorded() {
        let shared = case("h100-sxm:gpu-missing@3").after_the_job().holding(&[3]);
        assert!(shared.summary().starts_with("unfit: fail gpu-count@3: the job's GPU 0000:61:00.0"));
    }

    #[test]
    fn without_a_profile_the_indices_from_slurm_reveal_a_missing_gpu() {
        let no_profile =
            |gpus: &[u32]| case("h100-sxm:gpu-missing@3").holding(gpus).with(|case| case.profile = None);
        let short = no_profile(&[0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(short.summary(), "unfit: fail gpu-count@7: the job's GPU 7 is missing, 7 present; reboot");
        assert_eq!(no_profile(&[0, 1, 2, 3, 4, 5, 6]).summary(), "fit");
    }

    #[test]
    fn without_a_count_the_last_clean_check_run_warns_and_the_prolog_fails() {
        let periodic = || {
            case("h100-sxm:gpu-missing@3").phase(Phase::Periodic).with(|case| case.job = None).remembering()
        };
        let forget = |case: Case| case.with(|case| case.profile.as_mut().unwrap().gpus.count = None);
        assert_eq!(
            forget(periodic()).summary(),
            "degraded: warn gpu-count@3: 7 GPUs, 8 at the last clean check run, 0000:61:00.0 missing; reboot"
        );
        let after = forget(case("h100-sxm:gpu-missing@3").after_the_job());
        assert!(after.summary().starts_with("unfit: fail gpu-count@3"));
        let rebooted = forget(case("h100-sxm:gpu-missing@3").after_the_job())
            .holding(&[0, 1, 2, 4])
            .with(|case| case.now.boot_id = "another".to_owned());
        assert_eq!(rebooted.of("gpu-count"), [Severity::Warn]);
    }

    #[test]
    fn a_missing_gpu_is_found_by_uuid() {
        let uuid = |index: usize| {
            let case = case("h100-sxm");
            case.now.gpus.data().unwrap().gpus[index].uuid.known().unwrap().clone()
        };
        let by_uuid = |ids: &[String]| {
            case("h100-sxm:gpu-missing@3").remembering().with(|case| {
                let ids = ids.iter().cloned().map(GpuId::Uuid).collect();
                case.job.as_mut().unwrap().allocation = Allocation::Gpus(ids);
            })
        };
        assert_eq!(by_uuid(&[uuid(0)]).of("gpu-count"), [Severity::Warn]);
        assert_eq!(by_uuid(&[uuid(3)]).of("gpu-count"), [Severity::Fail]);
        assert_eq!(by_uuid(&[format!("MIG-{}/1/0", uuid(0))]).of("gpu-count"), [Severity::Warn]);
        let nobody = by_uuid(&["MIG-1c0a".to_owned()]);
        assert!(nobody.findings().iter().any(|line| line.contains("no GPU is known as MIG-1c0a")));
    }

    #[test]
    fn with_mig_an_index_is_that_of_a_slice() {
        let sliced = |node: &str, ids: &[u32]| {
            case(node).holding(ids).with(|case| {
                read(&mut case.now.gpus).gpus.iter_mut().for_each(|gpu| gpu.mig = Reading::Known(true));
            })
        };
        // Index 37 is slice 38 of 56, seven on each of eight cards.
        assert_eq!(sliced("h100-sxm", &[37]).summary(), "fit");
        assert_eq!(sliced("h100-sxm", &[37, 38]).remembering().summary(), "fit");
        assert_eq!(sliced("h100-sxm:gpu-missing@3", &[37]).of("gpu-count"), [Severity::Unknown]);
        assert!(sliced("h100-sxm:gpu-lost@3", &[37]).summary().starts_with("unfit: fail gpu-lost@3"));
    }

    #[test]
    fn with_mig_on_one_card_indices_of_whole_cards_shift() {
        // Slurm numbers whole cards before slices, so its GPU 0 is card 1 here.
        let sliced = case("h100-sxm:gpu-lost@1").holding(&[0]).gpu(0, |gpu| gpu.mig = Reading::Known(true));
        assert!(sliced.summary().starts_with("unfit: fail gpu-lost@1"), "{}", sliced.summary());
    }

    #[test]
    fn more_gpus_than_in_the_profile_warn() {
        let case = case("h100-sxm").with(|case| case.profile.as_mut().unwrap().gpus.count = Some(4));
        assert_eq!(case.summary(), "degraded: warn gpu-count: 8 GPUs, the profile has 4; check profile");
    }

    #[test]
    fn a_gpu_in_the_pci_tree_that_nvml_lacks_is_missing() {
        let counted = case("h100-sxm:gpu-missing@3,nvml-missing");
        assert!(counted.summary().starts_with("unfit: fail gpu-count: 7 of 8 GPUs in the PCI tree"));
        assert!(case("h100-sxm:nvml-missing").summary().starts_with("unknown: unknown part-silent@gpus"));
        let none = case("h100-sxm:nvml-missing").pci(|pci| pci.devices.clear());
        assert!(none.summary().starts_with("unknown"), "an empty tree is a tree that was not read");
    }

    #[test]
    fn a_failed_count_is_unknown() {
        let failed =
            case("h100-sxm").with(|case| read(&mut case.now.gpus).count = Reading::Failed("999".to_owned()));
        assert_eq!(failed.of("gpu-count"), [Severity::Unknown]);
    }

    #[test]
    fn an_unreadable_gpu_list_of_the_job_is_internal_and_all_gpus_are_judged() {
        let unreadable = |node: &str| {
            case(node).with(|case| {
                case.job.as_mut().unwrap().allocation = Allocation::Unreadable("gpu:?".to_owned());
            })
        };
        assert_eq!(unreadable("h100-sxm").fitness(), railgate_model::Fitness::Fit);
        assert!(unreadable("h100-sxm:gpu-lost@3").summary().starts_with("unfit"));
        assert!(unreadable("h100-sxm:gpu-process-leftover@3").of("gpu-processes").is_empty());
    }
}
