use railgate_node::{Action, Class, PartName, PortState, Reading, Severity};
use serde::{Deserialize, Serialize};

use crate::register::{Check, Scope, Table};
use crate::report::{Found, Report};
use crate::scene::Scene;

/// The check.
pub(crate) struct IbRate;

/// `[gate.checks.ib-rate]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The strongest thing that may follow: `off`, `report`, `notify`, `drain`.
    pub action: Action,
    /// How bad a port is that runs below the profile's rate.
    pub below: Severity,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { action: Action::Drain, below: Severity::Fail }
    }
}

impl Table for Settings {
    fn action(&self) -> Action {
        self.action
    }
}

impl Check for IbRate {
    const ABOUT: &'static str = "a compute port runs below its rate";
    const EXPLAIN: &'static str = "
Reads `rate` of the active compute ports in `/sys/class/infiniband` and compares with the profile's
`fabric.rate_gbps`.

Why: a link that lost lanes or speed stays ACTIVE and slows every collective of the job to its own pace.

Fix: reseat or replace the cable or optic; then bounce the port.

```toml
[gate.checks.ib-rate]
action = \"drain\"   # off, report, notify, drain
below = \"fail\"     # note, unknown, warn, fail
```";
    const CLASS: Class = Class::Fabric;
    const PARTS: &'static [PartName] = &[PartName::Fabric, PartName::Pci];
    const SCOPE: Scope = Scope::Fabric;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let Some(want) = scene.profile().and_then(|profile| profile.fabric.rate_gbps) else { return };
        for judged in scene.judged_ports() {
            let (hca, port) = (judged.hca, judged.port);
            // The rate of a port that is not active means nothing; ib-port has said the rest.
            if port.state != Reading::Known(PortState::Active) {
                continue;
            }
            let name = judged.name();
            let source = format!("/sys/class/infiniband/{}/ports/{}/rate", hca.name, port.number);
            let what = format!("{name} rate");
            let Some(&rate) = out.value(&name, &what, &source, &port.rate_gbps) else { continue };
            // Kernels print 56 as 54.3, 14 as 14.0: a per cent is no lost lane.
            if rate >= want * 0.99 {
                continue;
            }
            let text = port.rate_text.known().cloned().unwrap_or_else(|| format!("{rate} Gb/s"));
            let mut found = Found::new(set.below, Class::Fabric, &name, format!("{rate} of {want} Gb/s"))
                .fix("reseat cable")
                .row(what, text, format!("{want} Gb/s"), source);
            if !judged.certain && set.below == Severity::Fail {
                found = found.only_unknown("unclear whose");
            }
            out.add(found);
        }
    }
}
