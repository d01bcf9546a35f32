use std::time::Duration;

use railgate_model::{Access, Class, Gpu, PartName, PciAddress, Severity, XidEvent};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::{Scene, Whose};
use crate::settings::settings;
use crate::when::iso;

use super::gpu_recovery_action::{asked, cure};
use crate::agreement::{Counterpart, SIGN_WINDOW, grade, of_gpu, withheld};

/// The check.
pub(crate) struct GpuLost;

settings! {
    action = Drain;
    unreadable: Severity = Severity::Fail, "one GPU cannot be opened while others can; unknown if none can";
}

impl Check for GpuLost {
    const ABOUT: &'static str = "a GPU is off the bus, needs a reset, or cannot be opened";
    const EXPLAIN: &'static str = "
Reads how NVML answers for each GPU (`GPU_IS_LOST`, `GPU_NOT_FOUND` and `RESET_REQUIRED` from any call) and the
kernel log since railgate last handled it (see `kernel-log`; Xid 79, \"GPU has fallen off the bus\"). If both show it, that is one finding.

A line in the kernel log alone drains no node:

- NVML still answers for the GPU: `warn`.
- NVML could not be queried: `fail` when the driver logs it a second time within 24 hours, until then `warn`.
- NVML no longer lists the GPU, or returns an error for it: NVML confirms the fault, `fail`.

Why: a job that gets such a GPU dies at its first CUDA call, or hangs on all its nodes.

Fix: reboot the node; power-cycle it if the GPU does not come back; replace a GPU that falls off the bus again (RMA). If
NVML only asks for a reset, `nvidia-smi -r -i N` on the idle GPU is enough.

On a shared node, a lost GPU of another job is a warning. A GPU that cannot be opened for another reason while other GPUs
answer is `unreadable` (default `\"fail\"`, on the second sighting within an hour). These are `unknown`: no GPU can be opened; access
is denied (no permission, GPU in use, driver not loaded); the log names an address that no GPU of this node has while none
is missing (a container sees the kernel log of the whole host).
";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::Gpus, PartName::KernelLog];
    const SCOPE: Scope = Scope::Gpus;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let gpus = scene.all_gpus();
        let some_answer = gpus.iter().any(|gpu| gpu.access == Access::Ok);
        let mut orphans = orphans(scene);
        let nowhere: Vec<&Gpu> = gpus
            .iter()
            .filter(|gpu| matches!(gpu.access, Access::Lost(_)) && gpu.pci.known().is_none())
            .collect();
        for gpu in gpus {
            let own = Whose::Judged(gpu.index.to_string());
            let mut events = written_of(scene, &own);
            // Exactly one GPU without an address and one Xid 79 without a GPU: they belong together.
            if let ([lost], [_], []) = (nowhere.as_slice(), orphans.as_slice(), events.as_slice())
                && lost.index == gpu.index
            {
                events.extend(orphans.pop().map(|(_, event)| event));
            }
            // For a GPU that does not respond, a reset is suggested only if the driver offers one.
            let cure = asked(scene, gpu).and_then(cure).unwrap_or("reboot");
            let Some(found) = state(gpu, &events, some_answer, set.unreadable, cure) else { continue };
            if scene.judges(gpu) {
                out.add(found);
            } else if matches!(gpu.access, Access::Lost(_)) {
                out.add(found.another_jobs());
            }
        }
        let mut told: Vec<&str> = Vec::new();
        for (whose, event) in &orphans {
            let (Whose::Judged(part) | Whose::Unclear(part)) = whose else { continue };
            if told.contains(&part.as_str()) {
                continue;
            }
            told.push(part);
            let place = event.gpu.map_or_else(|| "a GPU".to_owned(), |at| at.to_string());
            let found = match whose {
                Whose::Judged(_) => grade(
                    Found::fail(Class::Node, part, format!("{place} off bus, Xid 79")),
                    of_gpu(scene, part, &[Counterpart::Answer]),
                    false,
                    written_of(scene, whose).iter().map(|event| event.time).collect(),
                ),
                _ => Found::unknown(
                    Class::Node,
                    part,
                    format!("{place} off bus, Xid 79, may not be the job's"),
                ),
            };
            out.add(event_row(found.fix("reboot"), event));
        }
    }
}

const AN_HOUR: Duration = Duration::from_secs(3600);

/// The fault of a GPU that NVML lists, if it has one.
fn state(
    gpu: &Gpu,
    events: &[&XidEvent],
    some_answer: bool,
    unreadable: Severity,
    cure: &str,
) -> Option<Found> {
    let event = events.first().copied();
    let index = gpu.index.to_string();
    let place = gpu.pci.known().map_or_else(|| format!("GPU {index}"), PciAddress::to_string);
    let xid = if event.is_some() { ", Xid 79" } else { "" };
    let found = match (&gpu.access, event) {
        (Access::Ok, None) => return None,
        (Access::Ok, Some(_)) => {
            Found::warn(Class::Node, index, format!("{place} fell off bus{xid}, answers again")).fix("reboot")
        }
        (Access::Lost(why), _) => {
            access_row(Found::fail(Class::Node, index, format!("{place} off bus{xid}")).fix(cure), gpu, why)
        }
        (Access::ResetRequired(why), _) => {
            let fix = if event.is_some() { "reboot" } else { "reset GPU" };
            access_row(
                Found::fail(Class::Node, index, format!("{place} needs a reset{xid}")).fix(fix),
                gpu,
                why,
            )
        }
        (Access::Failed(why), Some(_)) => {
            let found = Found::fail(Class::Node, index, format!("{place} off bus{xid}")).fix("reboot");
            // Access to a healthy GPU can be denied as well.
            let written = events.iter().map(|event| event.time).collect();
            let found = if withheld(why) { found.sign(SIGN_WINDOW, written) } else { found };
            access_row(found, gpu, why)
        }
        (Access::Failed(why), None) if withheld(why) => {
            let what = format!("{place}, access denied: {why}");
            access_row(Found::unknown(Class::Site, index, what).fix("check permissions"), gpu, why)
        }
        (Access::Failed(why), None) if some_answer => {
            let what = format!("{place} cannot be opened: {why}");
            let found = Found::new(unreadable, Class::Node, index, what).fix("reboot");
            // A GPU reset in progress causes the same error.
            access_row(found.may_pass(AN_HOUR), gpu, why)
        }
        (Access::Failed(why), None) => {
            let what = format!("{place} cannot be opened, nor can any other GPU: {why}");
            access_row(Found::unknown(Class::Site, index, what).fix("check driver"), gpu, why)
        }
    };
    Some(event.into_iter().fold(found, event_row))
}

/// Xid 79 events of GPUs that NVML does not list, was not queried for, or that cannot be identified.
fn orphans<'s>(scene: &'s Scene<'_>) -> Vec<(Whose, &'s XidEvent)> {
    let listed: Vec<String> = scene.all_gpus().iter().map(|gpu| gpu.index.to_string()).collect();
    off_bus(scene)
        .filter(|(whose, _)| match whose {
            Whose::Judged(part) => !listed.contains(part),
            Whose::Unclear(_) => true,
            Whose::Other => false,
        })
        .collect()
}

/// All Xid 79 events of one GPU.
fn written_of<'s>(scene: &'s Scene<'_>, whose: &Whose) -> Vec<&'s XidEvent> {
    off_bus(scene).filter(|(its, _)| its == whose).map(|(_, event)| event).collect()
}

fn off_bus<'s>(scene: &'s Scene<'_>) -> impl Iterator<Item = (Whose, &'s XidEvent)> {
    scene.xids.iter().filter(|event| event.code == 79).map(|event| (scene.whose(event.gpu), event))
}

fn access_row(found: Found, gpu: &Gpu, why: &str) -> Found {
    found.row(format!("gpu {} access", gpu.index), why, "an answer", "NVML")
}

fn event_row(found: Found, event: &XidEvent) -> Found {
    found.row(
        "kernel log",
        &event.text,
        "no Xid 79 since railgate last handled the log",
        format!("kmsg seq {} at {}", event.seq, iso(event.time)),
    )
}

#[cfg(test)]
mod tests {
    use railgate_model::{Access, Fitness, Part, Reading, RecoveryAction, Severity};

    use crate::testing::case;

    #[test]
    fn one_finding_if_nvml_and_the_kernel_report_the_same_gpu() {
        let case = case("h100-sxm:gpu-lost@3");
        assert_eq!(case.summary(), "unfit: fail gpu-lost@3: 0000:61:00.0 off bus, Xid 79; reboot");
        assert_eq!(case.findings().len(), 1);
        assert_eq!(case.judge().findings[0].evidence.len(), 2);
    }

    #[test]
    fn nvml_alone_fails_and_no_answer_from_nvml_confirms_the_driver() {
        let silent_kernel = case("h100-sxm:gpu-lost@3,kmsg-unreadable");
        assert!(silent_kernel.summary().ends_with("gpu-lost@3: 0000:61:00.0 off bus; reboot"));
        let no_nvml = case("h100-sxm:gpu-xid-79@3,nvml-silent").remembering();
        assert!(no_nvml.summary().starts_with("unfit: fail gpu-lost@3: 0000:61:00.0 off bus, Xid 79"));
    }

    #[test]
    fn an_xid_79_alone_does_not_drain() {
        let answers = case("h100-sxm:gpu-xid-79@3");
        let says = "degraded: warn gpu-lost@3: 0000:61:00.0 fell off bus, Xid 79, answers again; reboot";
        assert_eq!(answers.summary(), says);
        assert_eq!(answers.again().summary(), says);
        // The library is missing, so NVML was not queried.
        let unasked = || {
            case("h100-sxm:gpu-xid-79@3").remembering().with(|case| {
                case.now.gpus = Part::Failed { why: "libnvidia-ml.so.1: not found".to_owned(), took_ms: 1.0 };
            })
        };
        assert_eq!(unasked().of("gpu-lost"), [Severity::Warn]);
        assert_eq!(unasked().again().again().of("gpu-lost"), [Severity::Warn], "one record is one sight");
        let twice = unasked().again().xid(3, 79, "GPU has fallen off the bus.");
        assert_eq!(twice.of("gpu-lost"), [Severity::Fail]);
    }

    #[test]
    fn the_fix_is_a_reset_only_if_the_driver_offers_one() {
        let offered = case("h100-sxm:gpu-lost@3")
            .gpu(3, |gpu| gpu.recovery_action = Reading::Known(RecoveryAction::GpuReset));
        assert!(offered.summary().ends_with("; reset GPU"));
    }

    #[test]
    fn one_address_without_a_gpu_matches_one_gpu_without_an_address() {
        let placeless =
            case("h100-sxm:gpu-lost@3").gpu(3, |gpu| gpu.pci = Reading::Failed("gone".to_owned()));
        assert_eq!(placeless.findings(), ["fail gpu-lost@3: GPU 3 off bus, Xid 79; reboot"]);
    }

    #[test]
    fn a_lost_gpu_of_another_job_warns() {
        let other = case("h100-sxm:gpu-lost@3").holding(&[0, 1]);
        assert_eq!(
            other.summary(),
            "degraded: warn gpu-lost@3: 0000:61:00.0 off bus (not this job's); reboot"
        );
        let own = case("h100-sxm:gpu-lost@3").holding(&[2, 3]);
        assert_eq!(own.fitness(), Fitness::Unfit);
    }

    #[test]
    fn an_xid_79_of_another_jobs_gpu_is_ignored() {
        assert_eq!(case("h100-sxm:gpu-xid-79@3").holding(&[0, 1]).summary(), "fit");
    }

    #[test]
    fn one_unreadable_gpu_is_a_gpu_fault_and_all_unreadable_a_driver_fault() {
        assert_eq!(case("h100-sxm:gpu-unreadable@3").of("gpu-lost"), [Severity::Warn], "may be a reset");
        assert_eq!(case("h100-sxm:gpu-unreadable@3").again().of("gpu-lost"), [Severity::Fail]);
        let all = case("h100-sxm").with(|case| {
            let Part::Read { data, .. } = &mut case.now.gpus else { panic!() };
            for gpu in &mut data.gpus {
                gpu.access = Access::Failed("no permission (4)".to_owned());
            }
        });
        assert_eq!(all.of("gpu-lost"), [Severity::Unknown; 8]);
        assert_eq!(all.fitness(), Fitness::Degraded);
        let tolerant = case("h100-sxm:gpu-unreadable@3").settings("[checks.gpu-lost]\nunreadable = \"warn\"");
        assert_eq!(tolerant.fitness(), Fitness::Degraded);
    }

    #[test]
    fn a_gpu_to_which_access_is_blocked_does_not_fail() {
        for why in ["no permission (4)", "in use (19)", "blocked by the operating system (17)"] {
            let why = format!("nvmlDeviceGetHandleByIndex_v2: {why}");
            let withheld = case("h100-sxm").gpu(3, |gpu| gpu.access = Access::Failed(why.clone())).again();
            assert_eq!(withheld.of("gpu-lost"), [Severity::Unknown], "{why}");
            assert_eq!(withheld.fitness(), Fitness::Degraded);
        }
    }

    #[test]
    fn in_a_container_a_lost_gpu_of_the_host_is_unknown() {
        let others = "NVRM: Xid (PCI:0000:aa:00): 79, pid=1, GPU has fallen off the bus.";
        let lent = case("h100-sxm").with(|case| case.profile.as_mut().unwrap().gpus.count = None);
        assert_eq!(lent.kernel(others).of("gpu-lost"), [Severity::Unknown], "none of its GPUs is missing");
        let all_there = case("h100-sxm").kernel(others);
        assert_eq!(all_there.of("gpu-lost"), [Severity::Unknown]);
        let one_missing = case("h100-sxm:gpu-missing@3").kernel(others);
        assert_eq!(one_missing.of("gpu-lost"), [Severity::Fail]);
    }

    #[test]
    fn an_unknown_address_on_a_shared_node_does_not_fail() {
        let line = "NVRM: Xid (PCI:0000:aa:00): 79, pid=1, GPU has fallen off the bus.";
        let shared = case("h100-sxm").holding(&[0]).kernel(line);
        assert_eq!(shared.summary(), "fit", "every GPU of the job has an address, and this is none of them");
        let unread = shared.gpu(0, |gpu| gpu.pci = Reading::Failed("gone".to_owned()));
        assert_eq!(unread.of("gpu-lost"), [Severity::Unknown]);
        assert_eq!(case("h100-sxm").kernel(line).of("gpu-lost"), [Severity::Unknown]);
    }
}
