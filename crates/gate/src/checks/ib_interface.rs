use railgate_model::{Class, PartName};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;

pub(super) use crate::graded::Settings;

/// The check.
pub(crate) struct IbInterface;

impl Check for IbInterface {
    const ABOUT: &'static str = "the network interface of a compute port is down";
    const EXPLAIN: &'static str = "
Reads `/sys/class/net/*/operstate` of the interfaces of the compute devices (IPoIB, or the Ethernet interface of RoCE) if
the profile has `[fabric] interfaces_up = true`.

Why: NCCL finds its peers, and NFS over RDMA its server, through the addresses of these interfaces. The port itself can look
fine meanwhile.

Fix: `ip link set DEV up`; check the service that configures the interfaces at boot.
";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::Fabric, PartName::Pci, PartName::Host];
    const SCOPE: Scope = Scope::Fabric;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        if scene.profile().and_then(|profile| profile.fabric.interfaces_up) != Some(true) {
            return;
        }
        for hca in scene.judged_hcas() {
            if hca.details.interfaces.is_empty() {
                let found = Found::new(set.severity, Class::Node, &hca.name, "no network interface");
                out.add(found.fix("load ib_ipoib").row(
                    "interfaces",
                    "none",
                    "one",
                    "/sys/class/infiniband/*/device/net",
                ));
            }
            for interface in &hca.details.interfaces {
                let source = format!("/sys/class/net/{}/operstate", interface.name);
                let Some(state) = out.value(&hca.name, "interface", &source, &interface.state) else {
                    continue;
                };
                // A driver that does not track the state reports `unknown`.
                if !matches!(state.as_str(), "up" | "unknown") {
                    let what = format!("{} is {state}", interface.name);
                    let mut found =
                        Found::new(set.severity, Class::Node, &hca.name, what).fix("set interface up");
                    if scene.just_booted() {
                        found = found.only_unknown("node just booted");
                    }
                    out.add(found.row("operstate", state, "up", source));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::case;

    #[test]
    fn interfaces_are_judged_only_if_the_profile_asks_for_them() {
        let down = case("h100-sxm:ib-interface-down@2");
        assert_eq!(down.summary(), "fit");
        let wanted = down.with(|case| case.profile.as_mut().unwrap().fabric.interfaces_up = Some(true));
        assert_eq!(wanted.summary(), "degraded: warn ib-interface@mlx5_2: ibp79s0 is down; set interface up");
    }
}
