use std::time::Duration;

use railgate_model::{Class, Gpu, GpuFabric, PartName, Reading, Severity};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::settings;

/// The check.
pub(crate) struct GpuFabricState;

settings! {
    action = Drain;
    severity: Severity = Severity::Fail, "a GPU that is not registered with its fabric";
    unhealthy: Severity = Severity::Warn, "the GPU is registered, but the fabric reports a fault";
}

impl Check for GpuFabricState {
    const ABOUT: &'static str =
        "a GPU is not registered with its NVLink fabric, or the fabric reports a fault";
    const EXPLAIN: &'static str = "
Reads `nvmlDeviceGetGpuFabricInfoV` on machines with NVSwitches: whether the registration is complete and how it ended, the
fabric's own health, and the clique and fabric that each GPU belongs to. Judged only if NVLinks of the GPU are up, and not
with MIG on.

Why: without a complete registration every CUDA program ends at once (\"system not yet initialized\"). GPUs of different
cliques cannot reach one another.

- Registration not complete, or ended with an error: `severity`, on the second sighting within an hour; at most `warn` if no
  profile lists NVLinks for the machine.
- The fabric reports degraded bandwidth, a lost route, a wrong configuration, bad health or limits: `unhealthy`.
- GPUs of one node in several cliques: `warn`, class `site`.
- All of these are a note within `boot_grace` of `ib-port` after boot, while the fabric manager still starts.

Fix: `systemctl status nvidia-fabricmanager` (its version must be the driver's); reset all GPUs, or reboot.
";
    const CLASS: Class = Class::Node;
    const TRANSIENT: Option<Duration> = Some(Duration::from_secs(3600));
    const PARTS: &'static [PartName] = &[PartName::Gpus];
    const SCOPE: Scope = Scope::Gpus;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        // The fabric manager is still setting up the fabric, so an incomplete state is only a note.
        let most = if scene.just_booted() { Severity::Note } else { Severity::Fail };
        let mut first: Option<(&Gpu, &GpuFabric)> = None;
        for gpu in scene.answering().filter(|gpu| linked(gpu)) {
            let part = gpu.index.to_string();
            let what = format!("gpu {part} fabric");
            let Some(fabric) = out.value(&part, &what, SOURCE, &gpu.details.fabric) else { continue };
            if let Some(found) = registration(scene, gpu, fabric, set.severity.min(most)) {
                out.add(found);
                continue;
            }
            if let Some(trouble) = trouble(fabric).filter(|_| fabric.state == COMPLETED) {
                let severity = set.unhealthy.min(most);
                let found = Found::new(severity, Class::Node, &part, format!("NVLink fabric: {trouble}"));
                let got = format!("health {}, mask {:#x}", fabric.health, fabric.health_mask);
                out.add(found.fix("see fabric manager").row(what, got, "healthy", SOURCE));
            } else if fabric.state == COMPLETED {
                let (other, expected) = *first.get_or_insert((gpu, fabric));
                if (expected.clique, &expected.cluster) != (fabric.clique, &fabric.cluster) {
                    let text =
                        format!("clique {}, GPU {} is in {}", fabric.clique, other.index, expected.clique);
                    let (got, want) = (place(fabric), place(expected));
                    out.add(
                        Found::new(Severity::Warn.min(most), Class::Site, part, text)
                            .fix("see fabric manager")
                            .row(what, got, want, SOURCE),
                    );
                }
            }
        }
    }
}

const SOURCE: &str = "nvmlDeviceGetGpuFabricInfoV";
const COMPLETED: u32 = 3;

/// A GPU without links to a switch has nothing to register, for example a single GPU passed through to a virtual
/// machine, or two cards with an NVLink bridge.
fn linked(gpu: &Gpu) -> bool {
    gpu.mig.known() != Some(&true) && gpu.nvlinks.iter().any(|link| link.up == Reading::Known(true))
}

fn registration(scene: &Scene<'_>, gpu: &Gpu, fabric: &GpuFabric, severity: Severity) -> Option<Found> {
    let text = match (fabric.state, fabric.status) {
        (COMPLETED, 0) => return None,
        (COMPLETED, status) => format!("NVLink fabric registration failed ({status})"),
        (1, _) => "NVLink fabric registration not started".to_owned(),
        (2, _) => "NVLink fabric registration not finished".to_owned(),
        // The state is not supported, or newer than railgate.
        _ => return None,
    };
    // Cards with an NVLink bridge have links and no fabric; only the profile tells the two cases apart.
    let known = scene.profile().and_then(|profile| profile.gpus.nvlinks_up).is_some_and(|links| links > 0);
    let severity = if known { severity } else { severity.min(Severity::Warn) };
    let got = format!("state {}, status {}", fabric.state, fabric.status);
    let found = Found::new(severity, Class::Node, gpu.index.to_string(), text).fix("check fabric manager");
    Some(found.row(format!("gpu {} fabric", gpu.index), got, "state 3, status 0", SOURCE))
}

/// What the health mask and summary complain of. Each fact has two bits: 0 not reported, 1 yes, 2 no. The last four
/// bits are the kind of misconfiguration: 0 not reported, 1 none.
fn trouble(fabric: &GpuFabric) -> Option<&'static str> {
    let yes = |shift: u32| fabric.health_mask >> shift & 3 == 1;
    let configured = fabric.health_mask >> 8 & 0xf;
    match fabric {
        _ if yes(0) => Some("degraded bandwidth"),
        _ if yes(2) => Some("a route is being recovered"),
        _ if yes(4) => Some("a route is unhealthy"),
        _ if yes(6) => Some("access timeouts"),
        _ if configured == 4 => Some("no partition"),
        _ if configured == 5 => Some("too few NVLinks"),
        _ if configured > 1 => Some("configured wrongly"),
        GpuFabric { health: 2, .. } => Some("unhealthy"),
        GpuFabric { health: 3, .. } => Some("limited capacity"),
        _ => None,
    }
}

fn place(fabric: &GpuFabric) -> String {
    format!("clique {} of {}", fabric.clique, fabric.cluster)
}

#[cfg(test)]
mod tests {
    use railgate_model::{Gpu, GpuFabric, Reading, Severity};

    use crate::testing::case;

    fn fabric(gpu: &mut Gpu) -> &mut GpuFabric {
        match &mut gpu.details.fabric {
            Reading::Known(fabric) => fabric,
            _ => panic!("no fabric"),
        }
    }

    #[test]
    fn an_unregistered_gpu_fails_at_the_second_check_run() {
        let out = case("h100-sxm:gpu-fabric-not-started@3");
        assert_eq!(out.of("gpu-fabric"), [Severity::Warn]);
        assert_eq!(
            out.again().summary(),
            "unfit: fail gpu-fabric@3: NVLink fabric registration not started; check fabric manager"
        );
        let failed = case("h100-sxm:gpu-fabric-failed@3").again();
        assert!(
            failed.summary().starts_with("unfit: fail gpu-fabric@3: NVLink fabric registration failed (999)")
        );
    }

    #[test]
    fn soon_after_boot_an_unregistered_gpu_is_a_note() {
        let booted = case("h100-sxm:gpu-fabric-not-started@3").again().with(|case| {
            let now = case.now.taken / 1000;
            crate::testing::read(&mut case.now.host).boot_time = Reading::Known(now - 10);
        });
        assert_eq!((booted.summary(), booted.of("gpu-fabric")), ("fit".to_owned(), vec![Severity::Note]));
    }

    #[test]
    fn without_a_profile_an_unregistered_gpu_warns() {
        let unknown = case("h100-sxm:gpu-fabric-not-started@3").with(|case| case.profile = None).again();
        assert_eq!(unknown.of("gpu-fabric"), [Severity::Warn]);
    }

    #[test]
    fn a_gpu_without_links_is_not_judged() {
        let lent = case("h200-sxm:gpu-fabric-not-started@3").gpu(3, |gpu| gpu.nvlinks.clear());
        assert!(lent.of("gpu-fabric").is_empty());
        let mig = case("h200-sxm:gpu-fabric-not-started@3").gpu(3, |gpu| gpu.mig = Reading::Known(true));
        assert!(mig.of("gpu-fabric").is_empty());
        let unsupported = case("h200-sxm").gpu(3, |gpu| fabric(gpu).state = 0);
        assert_eq!(unsupported.summary(), "fit");
    }

    #[test]
    fn the_health_mask_decides() {
        let says = case("h100-sxm:gpu-fabric-unhealthy@3").summary();
        assert_eq!(
            says,
            "degraded: warn gpu-fabric@3: NVLink fabric: degraded bandwidth; see fabric manager"
        );
        let mask = |mask| case("h100-sxm").gpu(3, |gpu| fabric(gpu).health_mask = mask).summary();
        assert!(mask(0x400).contains("no partition"));
        assert!(mask(0x20 | 0x10).starts_with("fit"), "both bits set is no answer");
        assert!(mask(0x10).contains("a route is unhealthy"));
        assert_eq!(mask(0x1aa), "fit", "every fact answered with no");
        let other = case("h100-sxm:gpu-fabric-other-clique@3").summary();
        assert_eq!(other, "degraded: warn gpu-fabric@3: clique 7, GPU 0 is in 0; see fabric manager");
    }
}
