use std::time::Duration;

use railgate_model::{Class, Gpu, PartName, Severity};

use crate::gpu_counters::Counter;
use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::settings;

use super::gpu_window::Window;

/// The check.
pub(crate) struct GpuPcie;

settings! {
    action = Drain;
    narrow: Severity = Severity::Fail, "a link with fewer lanes than GPU and slot support";
    slow: Severity = Severity::Warn, "a link that stays slow under load";
    replays_per_minute: u64 = 31, "PCIe replays; more is warn";
}

impl Check for GpuPcie {
    const ABOUT: &'static str = "a GPU's PCIe link has fewer lanes, a lower generation, or errors";
    const EXPLAIN: &'static str = "
Reads the link's lanes and generation (`nvmlDeviceGetCurrPcieLinkWidth`, `…Generation`), what GPU and slot support together
(`nvmlDeviceGetMaxPcieLinkWidth`, `…Generation`) and the replay counter.

- Fewer lanes than GPU and slot support: `narrow`, on the second sighting within a day. At most `warn` if this may be power
  saving: the GPU is idle, its generation is lowered too, and no other idle GPU of the node has all its lanes. A note if the
  slot has fewer lanes than the profile's `gpus.pcie_width`, and in a virtual machine, whose ports are emulated.
- A lower generation is judged only under load (an idle GPU slows its link down): `slow`.
- More replays per minute than `replays_per_minute` (PCIe 5 x16 at its specified error rate has 31), during the job, or
  without a job since the oldest check run of the last hour: `warn`.

Why: host transfers and GPUDirect run at half speed, and every rank waits for this one.

Fix: reseat the GPU or riser; if a cold start does not restore the link, replace GPU or board (RMA).
";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::Gpus, PartName::Host];
    const SCOPE: Scope = Scope::Gpus;
    const TRANSIENT: Option<Duration> = Some(Duration::from_secs(24 * 3600));
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        for gpu in scene.answering() {
            width(scene, gpu, set, out);
            generation(scene, gpu, set, out);
            replays(scene, gpu, set, out);
        }
    }
}

const WIDTH: &str = "nvmlDeviceGetCurrPcieLinkWidth";
const GENERATION: &str = "nvmlDeviceGetCurrPcieLinkGeneration";
const MINUTE_MS: u64 = 60_000;
const IDLE: u64 = 1;
/// GPU utilisation in per cent from which a GPU is under load: a kernel ran for half of NVML's last sample period.
const LOADED: u32 = 50;

fn width(scene: &Scene<'_>, gpu: &Gpu, set: &Settings, out: &mut Report<'_>) {
    let part = gpu.index.to_string();
    let what = format!("gpu {part} PCIe lanes");
    let Some(&now) = out.value(&part, &what, WIDTH, &gpu.pcie_width) else { return };
    let able = gpu.details.pcie_max_width.known().copied().filter(|lanes| *lanes > 0);
    let profile = scene.profile().and_then(|profile| profile.gpus.pcie_width);
    let (severity, want) = match (able, profile) {
        (Some(able), _) if now < able && !real(scene) => (Severity::Note, able),
        (Some(able), _) if now < able && saves_power(scene, gpu) => (set.narrow.min(Severity::Warn), able),
        (Some(able), _) if now < able => (set.narrow, able),
        (_, Some(profile)) if now < profile => (Severity::Note, profile),
        _ => return,
    };
    out.add(
        Found::new(severity, Class::Node, part, format!("PCIe x{now} of x{want}"))
            .fix("reseat, then RMA")
            .row(what, now.to_string(), want.to_string(), WIDTH),
    );
}

/// Whether the PCIe ports are physical. A virtual machine's ports are emulated, and their values mean nothing.
fn real(scene: &Scene<'_>) -> bool {
    scene.virtualised() == Some(false)
}

/// Whether this link may have fewer lanes only to save power. An idle link can reduce its width as it reduces its
/// speed. That is ruled out if another GPU of the node is idle with all of its lanes, or if this link kept its speed.
fn saves_power(scene: &Scene<'_>, gpu: &Gpu) -> bool {
    let slow =
        gpu.pcie_gen.known().zip(gpu.details.pcie_max_gen.known()).is_some_and(|(now, able)| now < able);
    let wide = |other: &Gpu| {
        let all = other.pcie_width.known().zip(other.details.pcie_max_width.known());
        idle(other) && all.is_some_and(|(now, able)| now >= able)
    };
    slow && idle(gpu) && !scene.all_gpus().iter().any(|other| other.index != gpu.index && wide(other))
}

fn idle(gpu: &Gpu) -> bool {
    gpu.throttle_reasons.known().is_some_and(|bits| bits & IDLE != 0)
        || gpu.details.utilization.known().is_some_and(|percent| *percent == 0)
}

fn generation(scene: &Scene<'_>, gpu: &Gpu, set: &Settings, out: &mut Report<'_>) {
    let part = gpu.index.to_string();
    let what = format!("gpu {part} PCIe generation");
    let Some(&now) = out.value(&part, &what, GENERATION, &gpu.pcie_gen) else { return };
    let reasons = [&gpu.throttle_reasons, &gpu.details.throttle_reasons_later];
    let busy = reasons.iter().all(|reasons| reasons.known().is_some_and(|bits| bits & IDLE == 0))
        && gpu.details.utilization.known().is_some_and(|percent| *percent >= LOADED);
    let Some(&able) = gpu.details.pcie_max_gen.known() else { return };
    if busy && now < able {
        let severity = if real(scene) { set.slow } else { Severity::Note };
        out.add(
            Found::new(severity, Class::Node, part, format!("PCIe gen {now} of {able} under load"))
                .fix("reseat, then RMA")
                .row(what, now.to_string(), able.to_string(), GENERATION),
        );
    }
}

fn replays(scene: &Scene<'_>, gpu: &Gpu, set: &Settings, out: &mut Report<'_>) {
    let Some(window) = Window::of(scene, gpu) else { return };
    let Some(rose) = window.rose(Counter::PcieReplays) else { return };
    let allowed = window.allowed(set.replays_per_minute, MINUTE_MS);
    if rose > allowed {
        let text = format!("{rose} PCIe replays {}", window.text());
        out.add(Found::warn(Class::Node, gpu.index.to_string(), text).fix("reseat, then RMA").row(
            format!("gpu {} PCIe replays", gpu.index),
            rose.to_string(),
            format!("at most {allowed}"),
            "nvmlDeviceGetPcieReplayCounter",
        ));
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::{Fitness, Reading, Severity};

    use crate::testing::case;

    #[test]
    fn missing_lanes_fail_at_the_second_check_run() {
        let narrow = case("h100-sxm:gpu-pcie-narrow@3");
        assert_eq!(
            narrow.summary(),
            "degraded: warn gpu-pcie@3: PCIe x8 of x16, strike 1 of 2; reseat, then RMA"
        );
        assert_eq!(narrow.again().summary(), "unfit: fail gpu-pcie@3: PCIe x8 of x16; reseat, then RMA");
    }

    #[test]
    fn an_idle_link_may_have_fewer_lanes_to_save_power() {
        let bend = |case: crate::testing::Case, index: u32, lanes: u32, generation: u32| {
            case.gpu(index, |gpu| {
                gpu.pcie_width = Reading::Known(lanes);
                gpu.pcie_gen = Reading::Known(generation);
                gpu.details.pcie_max_width = Reading::Known(16);
                gpu.details.pcie_max_gen = Reading::Known(4);
                gpu.throttle_reasons = Reading::Known(1);
                gpu.details.throttle_reasons_later = Reading::Known(1);
            })
        };
        let all = |lanes: u32| (0..8).fold(case("a100-sxm"), |case, index| bend(case, index, lanes, 1));
        assert_eq!(all(8).again().fitness(), Fitness::Degraded, "all of them sleep");
        assert_eq!(
            bend(all(16), 3, 8, 1).again().fitness(),
            Fitness::Unfit,
            "the others sleep with all lanes"
        );
        assert_eq!(bend(all(8), 3, 8, 4).again().fitness(), Fitness::Unfit, "it is awake");
    }

    #[test]
    fn a_narrow_slot_and_an_emulated_port_are_notes() {
        let slot =
            case("rtx4090:gpu-pcie-narrow@3").gpu(3, |gpu| gpu.details.pcie_max_width = Reading::Known(8));
        assert_eq!((slot.summary(), slot.of("gpu-pcie")), ("fit".to_owned(), vec![Severity::Note]));
        let virtual_machine =
            case("h200-sxm:gpu-pcie-narrow@3").host(|host| host.virtualised = Reading::Known(true));
        assert_eq!(virtual_machine.summary(), "fit");
    }

    #[test]
    fn a_lower_generation_warns_only_under_load() {
        let slow = case("h100-sxm:gpu-pcie-slow@3");
        assert_eq!(slow.summary(), "degraded: warn gpu-pcie@3: PCIe gen 1 of 5 under load; reseat, then RMA");
        assert_eq!(case("h100-sxm").gpu(3, |gpu| gpu.pcie_gen = Reading::Known(1)).summary(), "fit");
    }

    #[test]
    fn replays_count_only_within_a_window() {
        assert_eq!(case("h100-sxm:gpu-pcie-replays@3").summary(), "fit");
        let after = case("h100-sxm:gpu-pcie-replays@3").after_the_job();
        assert!(after.summary().starts_with("degraded: warn gpu-pcie@3: 100000 PCIe replays in 1 min"));
        let week = after.with(|case| case.now.taken += 7 * 86_400_000);
        assert_eq!(week.summary(), "fit");
        let later = case("h100-sxm:gpu-pcie-replays@3").remembering().with(|case| case.now.taken += 600_000);
        assert!(later.summary().starts_with("degraded: warn gpu-pcie@3: 100000 PCIe replays in 10 min"));
        assert_eq!(
            later.with(|case| case.now.taken += 3_600_000).summary(),
            "fit",
            "no check run within the hour"
        );
    }
}
