use railgate_model::{Class, Gpu, PartName, Severity};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::settings;

/// The check.
pub(crate) struct GpuTemperature;

settings! {
    action = Drain;
    severity: Severity = Severity::Warn, "a temperature above the GPU's limit";
    margin_c: u8 = 0, "degrees below the limit; closer is a finding";
}

impl Check for GpuTemperature {
    const ABOUT: &'static str = "a GPU or its memory is hotter than its limit";
    const EXPLAIN: &'static str = "
Reads the degrees that are left before the GPU slows itself down (`nvmlDeviceGetMarginTemperature`; on older cards
`nvmlDeviceGetTemperature` against the slowdown threshold), and the memory's temperature (field 82) against its
maximum. The limits are read from the GPU; none is configured.

Why: beyond its limit the GPU slows down, and soon switches itself off.

Fix: check fans, air flow, heat sink, and the temperature of the room.
";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::Gpus];
    const SCOPE: Scope = Scope::Gpus;
    const TRANSIENT: Option<std::time::Duration> = Some(std::time::Duration::from_secs(3600));
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        for gpu in scene.answering() {
            core(gpu, set, out);
            memory(gpu, set, out);
        }
    }
}

const MARGIN: &str = "nvmlDeviceGetMarginTemperature";
const THRESHOLD: &str = "nvmlDeviceGetTemperatureThreshold";

fn core(gpu: &Gpu, set: &Settings, out: &mut Report<'_>) {
    let part = gpu.index.to_string();
    let what = format!("gpu {part} temperature");
    let margin = out.value(&part, &what, MARGIN, &gpu.details.margin_c).map(|margin| i64::from(*margin));
    let (left, source) = match margin {
        Some(margin) => (margin, MARGIN),
        None => {
            let now = out.value(&part, &what, "nvmlDeviceGetTemperature", &gpu.temperature_c);
            let limit =
                out.value(&part, &what, THRESHOLD, &gpu.details.slowdown_c).filter(|limit| **limit > 0);
            let (Some(now), Some(limit)) = (now, limit) else { return };
            (i64::from(*limit) - i64::from(*now), THRESHOLD)
        }
    };
    // At the limit itself the GPU does not throttle yet.
    if left < i64::from(set.margin_c) {
        let now = gpu.temperature_c.known().map_or_else(String::new, |now| format!("{now} C, "));
        let text = format!("{now}{left} C to its limit");
        out.add(Found::new(set.severity, Class::Node, part, text).fix("check cooling").row(
            what,
            format!("{left} C left"),
            format!("at least {}", set.margin_c),
            source,
        ));
    }
}

fn memory(gpu: &Gpu, set: &Settings, out: &mut Report<'_>) {
    let part = gpu.index.to_string();
    let what = format!("gpu {part} memory temperature");
    let now = out.value(&part, &what, "NVML field 82", &gpu.details.memory_c).copied();
    let limit = out.value(&part, &what, THRESHOLD, &gpu.details.memory_max_c).copied();
    if let (Some(now), Some(limit)) = (now, limit.filter(|limit| *limit > 0))
        && now > limit
    {
        let text = format!("memory {now} C, its limit is {limit}");
        out.add(Found::new(set.severity, Class::Node, part, text).fix("check cooling").row(
            what,
            format!("{now} C"),
            format!("at most {limit}"),
            "NVML field 82",
        ));
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::Reading;

    use crate::testing::case;

    #[test]
    fn temperatures_beyond_the_cards_limits_warn() {
        let hot = case("h100-sxm:gpu-hot@3");
        assert_eq!(hot.summary(), "degraded: warn gpu-temperature@3: 89 C, -2 C to its limit; check cooling");
        let memory = case("h100-sxm:gpu-memory-hot@3");
        assert_eq!(
            memory.summary(),
            "degraded: warn gpu-temperature@3: memory 99 C, its limit is 95; check cooling"
        );
    }

    #[test]
    fn without_a_margin_the_slowdown_threshold_is_used_if_present() {
        let card = |degrees, limit| {
            case("generic").gpu(3, |gpu| {
                gpu.details.margin_c = Reading::Unsupported;
                gpu.details.slowdown_c = limit;
                gpu.temperature_c = Reading::Known(degrees);
            })
        };
        assert_eq!(card(91, Reading::Known(91)).summary(), "fit");
        assert!(card(92, Reading::Known(91)).summary().contains("92 C, -1 C to its limit"));
        assert_eq!(card(120, Reading::Unsupported).summary(), "fit");
        assert_eq!(card(40, Reading::Known(0)).summary(), "fit");
    }
}
