use std::time::Duration;

use railgate_node::{Action, Class, PartName, PhysState, PortState, Reading, Severity};
use serde::{Deserialize, Serialize};

use crate::register::{Check, Scope, Table};
use crate::report::{Found, Report};
use crate::scene::Scene;

/// The check.
pub(crate) struct IbPort;

/// `[gate.checks.ib-port]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The strongest thing that may follow: `off`, `report`, `notify`, `drain`.
    pub action: Action,
    /// Links may take this long after boot to come up; until then a port that is down is `unknown`.
    #[serde(with = "crate::duration")]
    pub boot_grace: Duration,
    /// How bad a link is that is up and waits for the subnet manager (Init, Armed).
    pub initialising: Severity,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { action: Action::Drain, boot_grace: Duration::from_secs(300), initialising: Severity::Warn }
    }
}

impl Table for Settings {
    fn action(&self) -> Action {
        self.action
    }

    fn problems(&self) -> Vec<String> {
        if self.boot_grace > Duration::from_secs(3600) {
            return vec![format!(
                "boot_grace: {} is more than 1h",
                humantime::format_duration(self.boot_grace)
            )];
        }
        Vec::new()
    }
}

impl Check for IbPort {
    const ABOUT: &'static str = "a compute port of the fabric is not active";
    const EXPLAIN: &'static str = "
Reads `state` and `phys_state` of the compute ports in `/sys/class/infiniband`: those of the profile's
`fabric.link_layer` whose device is not in `fabric.exclude`. Without a profile, or where the machine has more such ports
than `fabric.hcas`, only a port that was active before the job and is not any more counts.

Why: NCCL hangs or fails on it, or runs the whole job through fewer rails.

Fix: Polling: the other end is silent: cable, optic, switch port. Disabled: somebody switched it off
(`ibportstate … enable`). Init or Armed: the link is up and no subnet manager has set it up: look at the subnet manager,
not at the node (`initialising`, default `\"warn\"`).

A port that is down is this node's own end of a link, so it may drain. Several nodes of one leaf are one incident:
the breaker bounds the drains. Within `boot_grace` after boot it is `unknown`. On a shared node only the ports nearest
to the job's GPUs are judged.

```toml
[gate.checks.ib-port]
action = \"drain\"         # off, report, notify, drain
boot_grace = \"5m\"
initialising = \"warn\"    # note, unknown, warn, fail
```";
    const CLASS: Class = Class::Fabric;
    const PARTS: &'static [PartName] = &[PartName::Fabric, PartName::Pci, PartName::Host];
    const SCOPE: Scope = Scope::Fabric;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let young = within_grace(scene, set.boot_grace);
        for judged in scene.judged_ports() {
            let (hca, port) = (judged.hca, judged.port);
            let name = judged.name();
            let source = format!("/sys/class/infiniband/{}/ports/{}/state", hca.name, port.number);
            let Some(state) = out.value(&name, &format!("{name} state"), &source, &port.state) else {
                continue;
            };
            let phys = match &port.phys_state {
                Reading::Known(phys) => Some(phys),
                // A port that is active needs no second witness.
                Reading::Failed(_) if *state != PortState::Active => {
                    out.value(&name, &format!("{name} phys_state"), &source, &port.phys_state)
                }
                Reading::Unsupported | Reading::Failed(_) => None,
            };
            let Some((severity, what, fix)) = judgement(state, phys, set) else { continue };
            if *state != PortState::Active && !judged.expected() {
                continue;
            }
            let got = format!("{}, {}", state_text(state), phys.map_or("unknown", phys_text));
            let mut found = Found::new(severity, Class::Fabric, &name, what).fix(fix);
            if severity == Severity::Fail {
                if young {
                    found = found.only_unknown("booted just now");
                } else if !judged.certain {
                    found = found.only_unknown("unclear whose");
                }
            }
            out.add(found.row(format!("{name} state"), got, "ACTIVE, LinkUp", source));
        }
    }
}

fn judgement(
    state: &PortState,
    phys: Option<&PhysState>,
    set: &Settings,
) -> Option<(Severity, String, &'static str)> {
    let fail = |what: String, fix| Some((Severity::Fail, what, fix));
    match (state, phys) {
        (PortState::Active, None | Some(PhysState::LinkUp)) => None,
        (PortState::Active, Some(phys)) => {
            Some((Severity::Warn, format!("active, but {}", phys_text(phys)), "check cable"))
        }
        (PortState::Init | PortState::Armed, _) => Some((
            set.initialising,
            format!("{}, not set up by the subnet manager", state_text(state)),
            "check subnet manager",
        )),
        (PortState::Down, Some(PhysState::Disabled)) => fail("down, disabled".to_owned(), "enable port"),
        (PortState::Down, Some(phys)) => fail(format!("down, {}", phys_text(phys)), "check cable"),
        (PortState::Down, None) => fail("down".to_owned(), "check cable"),
        (PortState::Other(text), _) => Some((Severity::Warn, format!("state {text}"), "check port")),
    }
}

fn within_grace(scene: &Scene<'_>, grace: Duration) -> bool {
    let booted = scene.now.host.data().and_then(|host| host.boot_time.known());
    booted.is_some_and(|booted| {
        let age = (scene.now.taken / 1000).saturating_sub(*booted);
        age < grace.as_secs()
    })
}

fn state_text(state: &PortState) -> &str {
    match state {
        PortState::Down => "DOWN",
        PortState::Init => "INIT",
        PortState::Armed => "ARMED",
        PortState::Active => "ACTIVE",
        PortState::Other(text) => text,
    }
}

fn phys_text(phys: &PhysState) -> &str {
    match phys {
        PhysState::LinkUp => "LinkUp",
        PhysState::Polling => "Polling",
        PhysState::Disabled => "Disabled",
        PhysState::Other(text) => text,
    }
}
