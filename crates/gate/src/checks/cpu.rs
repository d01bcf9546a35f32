use railgate_model::{Class, PartName};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;

pub(super) use crate::graded::Settings;

/// The check.
pub(crate) struct Processors;

impl Check for Processors {
    const ABOUT: &'static str = "processors are offline or use another frequency governor than the profile";
    const EXPLAIN: &'static str = "
Reads `/sys/devices/system/cpu/online` and every policy's `scaling_governor`, and compares them with the profile
(`[host] cpus`, `governor`). A value that the profile does not have is not judged: many sites switch threads off on purpose.

Why: a job that is bound to an offline processor fails at launch; with `powersave` on one node all others wait for it.

Fix: `chcpu -e`, BIOS settings; `cpupower frequency-set -g performance`.
";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::Host];
    const SCOPE: Scope = Scope::Always;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let (Some(host), Some(profile)) = (scene.now.host.data(), scene.profile()) else { return };
        let online = "/sys/devices/system/cpu/online";
        if let Some(want) = profile.host.cpus
            && let Some(got) = out.value("", "processors", online, &host.system.cpus)
            && *got < want
        {
            out.add(
                Found::new(set.severity, Class::Node, "", format!("{got} of {want} processors"))
                    .fix("check BIOS")
                    .row("processors online", got.to_string(), want.to_string(), online),
            );
        }
        let cpufreq = "/sys/devices/system/cpu/cpufreq";
        if let Some(want) = &profile.host.governor
            && let Some(governors) = out.value("", "governors", cpufreq, &host.system.governors)
        {
            let others: u32 =
                governors.iter().filter(|(name, _)| *name != want).map(|(_, count)| count).sum();
            let got: Vec<String> = governors.iter().map(|(name, count)| format!("{name} {count}")).collect();
            if others > 0 {
                out.add(
                    Found::new(set.severity, Class::Site, "governor", format!("{others} not {want}"))
                        .fix("set governor")
                        .row("scaling_governor", got.join(", "), want, cpufreq),
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use railgate_model::{HostProfile, Reading};

    use super::*;
    use crate::testing::{Case, case};

    fn wanting(cpus: u32, governor: &str) -> Case {
        case("h100-sxm").with(|case| {
            case.profile.as_mut().unwrap().host = HostProfile {
                cpus: Some(cpus),
                governor: Some(governor.to_owned()),
                ..HostProfile::default()
            };
        })
    }

    #[test]
    fn missing_processors_and_a_wrong_governor_warn() {
        assert_eq!(wanting(192, "performance").summary(), "fit");
        assert_eq!(
            wanting(256, "performance").summary(),
            "degraded: warn cpu: 192 of 256 processors; check BIOS"
        );
        assert_eq!(wanting(96, "performance").summary(), "fit", "more is no fault");
        let mixed = wanting(192, "performance").host(|host| {
            let counts = BTreeMap::from([("performance".to_owned(), 190), ("powersave".to_owned(), 2)]);
            host.system.governors = Reading::Known(counts);
        });
        assert_eq!(mixed.summary(), "degraded: warn cpu@governor: 2 not performance; set governor");
        assert_eq!(mixed.judge().findings[0].class, Class::Site);
        let virtual_machine =
            wanting(192, "performance").host(|host| host.system.governors = Reading::Unsupported);
        assert_eq!(virtual_machine.summary(), "fit");
    }
}
