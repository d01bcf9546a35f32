use std::time::Duration;

use railgate_model::{Class, PartName, Port, PortState, Reading, Severity};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::settings;

/// The check.
pub(crate) struct IbRate;

settings! {
    action = Drain;
    below: Severity = Severity::Fail, "a port runs below the profile's rate";
}

impl Check for IbRate {
    const ABOUT: &'static str = "a compute port runs below its rate";
    const EXPLAIN: &'static str = "
Reads `rate` of the active compute ports in `/sys/class/infiniband` and compares with the profile's `fabric.rate_gbps`. Needs
a profile with `fabric.hcas`: without it railgate does not know which ports are rails. Storage ports are not judged:
`railgate rails` shows which ports it leaves out.

Why: a link that lost lanes or speed stays ACTIVE and slows every collective of the job down to its own speed.

Fix: reseat or replace the cable or transceiver; then take the port down and up again.
";
    const CLASS: Class = Class::Fabric;
    const PARTS: &'static [PartName] = &[PartName::Fabric, PartName::Pci];
    const SCOPE: Scope = Scope::Fabric;
    // One day, since without a periodic check the next check run is that of the next job.
    const TRANSIENT: Option<Duration> = Some(Duration::from_secs(24 * 3600));
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let Some(fabric) = scene.profile().map(|profile| &profile.fabric) else { return };
        let (Some(want), Some(1..)) = (fabric.rate_gbps, fabric.hcas) else { return };
        // Kernels round the rate (56 Gb/s is printed as 54.3 or 56, 14 as 14.0), so a difference of 1 % is no lost lane.
        let full = |port: &Port| port.rate_gbps.known().is_some_and(|rate| *rate >= want * 0.99);
        let active = |port: &Port| port.state == Reading::Known(PortState::Active);
        for judged in scene.judged_ports() {
            let (hca, port) = (judged.hca, judged.port);
            // Only an active port has a rate; `ib-port` reports the others.
            if !active(port) {
                continue;
            }
            let name = judged.name();
            let source = format!("/sys/class/infiniband/{}/ports/{}/rate", hca.name, port.number);
            let what = format!("{name} rate");
            let Some(&rate) = out.value(&name, &what, &source, &port.rate_gbps) else { continue };
            if full(port) {
                continue;
            }
            let text = port.rate_text.known().cloned().unwrap_or_else(|| format!("{rate} Gb/s"));
            let mut found = Found::new(set.below, Class::Fabric, &name, format!("{rate} of {want} Gb/s"))
                .fix("reseat cable")
                .row(what, text, format!("{want} Gb/s"), source);
            if !judged.certain && set.below == Severity::Fail {
                found = found.only_unknown("may not be the job's");
            }
            out.add(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::{LinkLayer, Reading, Severity};

    use crate::testing::case;

    #[test]
    fn a_rate_below_the_profile_fails() {
        let slow = case("h100-sxm:ib-rate-low@2");
        assert_eq!(
            slow.summary(),
            "degraded: warn ib-rate@mlx5_2: 200 of 400 Gb/s, strike 1 of 2; reseat cable"
        );
        let slow = slow.again();
        assert_eq!(slow.summary(), "unfit: fail ib-rate@mlx5_2: 200 of 400 Gb/s; reseat cable");
        assert_eq!(case("h100-sxm:ib-rate-low@2").holding(&[0]).summary(), "fit");
        assert!(slow.settings("[checks.ib-rate]\nbelow = \"warn\"").summary().starts_with("degraded"));
    }

    #[test]
    fn without_a_number_of_hcas_rates_are_not_judged() {
        for hcas in [None, Some(0)] {
            let unknown =
                case("h100-sxm:ib-rate-low@2").with(|case| case.profile.as_mut().unwrap().fabric.hcas = hcas);
            assert_eq!(unknown.summary(), "fit");
        }
    }

    #[test]
    fn the_rate_of_an_inactive_port_is_ignored() {
        assert!(case("h100-sxm:ib-rate-low@2,ib-port-down@2").of("ib-rate").is_empty());
        let failed =
            case("h100-sxm").port("mlx5_2", |port| port.rate_gbps = Reading::Failed("gone".to_owned()));
        assert_eq!(failed.of("ib-rate"), [Severity::Unknown]);
    }
    #[test]
    fn a_slow_storage_port_without_exclusion_is_ignored_while_all_rails_are_up() {
        let forgot = |faults: &str| {
            case(&format!("h100-sxm{faults}"))
                .with(|case| case.profile.as_mut().unwrap().fabric.exclude.clear())
        };
        assert_eq!(forgot("").summary(), "fit");
        assert!(forgot(":ib-rate-low@2").findings().iter().any(|line| line.contains("ib-rate@mlx5_2")));
    }

    #[test]
    fn a_rail_in_another_place_does_not_make_a_storage_port_slow() {
        for fault in ["ib-far@2", "ib-layer@2"] {
            assert!(case(&format!("h800-sxm:{fault}")).of("ib-rate").is_empty(), "{fault}");
        }
    }

    #[test]
    fn only_the_slow_rail_is_named_beside_a_storage_port() {
        // Its 200 Gb/s made the storage port a second slow rail, and an on-call admin reseat its cable.
        let slow = case("h100-sxm:ib-rate-low@2")
            .with(|case| case.profile.as_mut().unwrap().fabric.exclude.clear())
            .port("mlx5_bond_0", |port| {
                port.link_layer = Reading::Known(LinkLayer::InfiniBand);
                port.rate_gbps = Reading::Known(200.0);
            });
        assert_eq!(
            slow.summary(),
            "degraded: warn ib-rate@mlx5_2: 200 of 400 Gb/s, strike 1 of 2; reseat cable"
        );
    }
}
