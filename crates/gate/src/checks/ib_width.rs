use railgate_model::{Class, PartName, PortState, Reading};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;

pub(super) use crate::graded::Settings;

/// The check.
pub(crate) struct IbWidth;

impl Check for IbWidth {
    const ABOUT: &'static str = "a compute port runs on fewer lanes than the profile has";
    const EXPLAIN: &'static str = "
Reads the lanes in `ports/*/rate` (`400 Gb/sec (4X NDR)`) of the compute ports that are active, and compares them with the
profile's `[fabric] width`. If the profile has none, only `ib-rate` judges the link.

Why: a link that lost lanes still carries traffic, at a fraction of its speed, and every ring waits for it.

Fix: reseat or replace cable and transceiver; then change the switch's port.
";
    const CLASS: Class = Class::Fabric;
    const PARTS: &'static [PartName] = &[PartName::Fabric, PartName::Pci, PartName::Host];
    const SCOPE: Scope = Scope::Fabric;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let Some(want) = scene.profile().and_then(|profile| profile.fabric.width) else { return };
        for judged in scene.judged_ports() {
            let (part, port) = (judged.name(), judged.port);
            let Some(lanes) = port.lanes().filter(|_| port.state == Reading::Known(PortState::Active)) else {
                continue;
            };
            if lanes < want {
                let source = format!("/sys/class/infiniband/{}/ports/{}/rate", judged.hca.name, port.number);
                let found = Found::new(set.severity, Class::Fabric, part, format!("{lanes} of {want} lanes"));
                let text = port.rate_text.to_string();
                out.add(found.fix("reseat cable").row("rate", text, format!("{want}X"), source));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::{Reading, Severity};

    use crate::testing::case;

    #[test]
    fn fewer_lanes_than_in_the_profile_warn() {
        let lost = case("h100-sxm:ib-lane-lost@2")
            .with(|case| case.profile.as_mut().unwrap().fabric.width = Some(4));
        assert_eq!(lost.of("ib-width"), [Severity::Warn]);
        assert!(lost.findings().iter().any(|line| line.contains("ib-width@mlx5_2: 1 of 4 lanes")));
        let silent = lost.port("mlx5_2", |port| port.rate_text = Reading::Unsupported);
        assert_eq!(silent.of("ib-width"), []);
        assert_eq!(case("h100-sxm:ib-lane-lost@2").of("ib-width"), []);
    }
}
