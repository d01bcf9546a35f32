use railgate_model::{Class, PartName, Severity};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::settings;

/// The check.
pub(crate) struct GpuPower;

settings! {
    action = Drain;
    severity: Severity = Severity::Warn, "the limit is too low";
    tolerance_percent: u8 = 2, "percent below the expected limit; more is a finding";
}

impl Check for GpuPower {
    const ABOUT: &'static str = "a GPU's power limit is lower than it should be";
    const EXPLAIN: &'static str = "
Reads `nvmlDeviceGetEnforcedPowerLimit` and compares with the profile's `gpus.power_limit_w`, or if that is not set with the
GPU's default (`nvmlDeviceGetPowerManagementDefaultLimit`).

Why: after a forgotten `nvidia-smi -pl` the whole job runs at the speed of this GPU.

Fix: `nvidia-smi -i N -pl WATTS`. If power is limited on purpose, set `gpus.power_limit_w` in the profile.
";
    const CLASS: Class = Class::Site;
    const PARTS: &'static [PartName] = &[PartName::Gpus];
    const SCOPE: Scope = Scope::Gpus;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        for gpu in scene.answering() {
            let part = gpu.index.to_string();
            let what = format!("gpu {part} power limit");
            let Some(&limit) = out.value(&part, &what, SOURCE, &gpu.power_limit_w) else { continue };
            let profile = scene.profile().and_then(|profile| profile.gpus.power_limit_w);
            let Some(want) = profile.or(gpu.details.power_default_w.known().copied()) else { continue };
            if limit < want * (1.0 - f64::from(set.tolerance_percent) / 100.0) {
                let text = format!("power limit {limit:.0} W of {want:.0}");
                out.add(Found::new(set.severity, Class::Site, part, text).fix("nvidia-smi -pl").row(
                    what,
                    format!("{limit} W"),
                    format!("{want} W"),
                    SOURCE,
                ));
            }
        }
    }
}

const SOURCE: &str = "nvmlDeviceGetEnforcedPowerLimit";

#[cfg(test)]
mod tests {
    use railgate_model::Reading;

    use crate::testing::case;

    #[test]
    fn a_limit_below_the_profile_or_the_cards_default_warns() {
        let low = case("h100-sxm:gpu-power-capped@3");
        assert_eq!(low.summary(), "degraded: warn gpu-power@3: power limit 350 W of 700; nvidia-smi -pl");
        assert!(case("rtx4090:gpu-power-capped@3").summary().contains("power limit 200 W of 400"));
        let site = case("h100-sxm").with(|case| {
            case.profile.as_mut().unwrap().gpus.power_limit_w = Some(500.0);
        });
        assert_eq!(site.summary(), "fit", "more than the site wants is no fault");
        assert_eq!(case("h100-sxm").gpu(3, |gpu| gpu.power_limit_w = Reading::Known(690.0)).summary(), "fit");
    }
}
