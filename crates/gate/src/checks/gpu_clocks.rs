use railgate_model::{Class, PartName};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;

pub(super) use crate::graded::Settings;

/// The check.
pub(crate) struct GpuClocks;

impl Check for GpuClocks {
    const ABOUT: &'static str = "a GPU's application clocks are set below their default";
    const EXPLAIN: &'static str = "
Reads `nvmlDeviceGetApplicationsClock` and compares with `nvmlDeviceGetDefaultApplicationsClock` (data-centre cards).

Why: a benchmark's forgotten `nvidia-smi -ac` makes one node slower than its neighbours, for months.

Fix: `nvidia-smi -i N -rac`. Where clocks are set on purpose: switch the check off.
";
    const CLASS: Class = Class::Site;
    const PARTS: &'static [PartName] = &[PartName::Gpus];
    const SCOPE: Scope = Scope::Gpus;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        for gpu in scene.answering() {
            let part = gpu.index.to_string();
            let what = format!("gpu {part} application clock");
            let now = out.value(&part, &what, SOURCE, &gpu.details.app_clock_mhz).copied();
            let normal = out.value(&part, &what, DEFAULT, &gpu.details.app_clock_default_mhz).copied();
            let (Some(now), Some(normal)) = (now, normal) else { continue };
            // A card without application clocks may report 0.
            if now > 0 && now < normal {
                let text = format!("application clock {now} of {normal} MHz");
                out.add(Found::new(set.severity, Class::Site, part, text).fix("nvidia-smi -rac").row(
                    what,
                    format!("{now} MHz"),
                    format!("{normal} MHz"),
                    SOURCE,
                ));
            }
        }
    }
}

const SOURCE: &str = "nvmlDeviceGetApplicationsClock";
const DEFAULT: &str = "nvmlDeviceGetDefaultApplicationsClock";

#[cfg(test)]
mod tests {
    use railgate_model::Reading;

    use crate::testing::case;

    #[test]
    fn application_clocks_below_the_default_warn() {
        assert_eq!(
            case("h100-sxm:gpu-clocks-lowered@3").summary(),
            "degraded: warn gpu-clocks@3: application clock 1095 of 1980 MHz; nvidia-smi -rac"
        );
        let none = case("h100-sxm").gpu(3, |gpu| gpu.details.app_clock_mhz = Reading::Known(0));
        assert_eq!(none.summary(), "fit");
    }
}
