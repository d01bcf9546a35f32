use std::collections::BTreeMap;

use railgate_node::{Action, Class, KernelLog, PartName, Severity, SxidEvent};
use serde::{Deserialize, Serialize};

use crate::register::{Check, Scope, Table};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::when::iso;

use super::sxid_table::{LINK_FAULT, always_fatal, name};
use crate::agreement::{Counterpart, grade, of_any_gpu};

/// The check.
pub(crate) struct GpuSxid;

/// `[gate.checks.gpu-sxid]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The strongest thing that may follow: `off`, `shadow`, `report`, `notify`, `drain`.
    pub action: Action,
    /// How bad an error is that calls itself fatal and leaves the switch usable.
    pub fatal: Severity,
    /// The site's own judgement of single codes: `"20034" = "fail"`.
    pub codes: BTreeMap<String, Severity>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { action: Action::Drain, fatal: Severity::Warn, codes: BTreeMap::new() }
    }
}

impl Table for Settings {
    fn action(&self) -> Action {
        self.action
    }

    fn problems(&self) -> Vec<String> {
        let plain = |code: &str| code.parse::<u32>().is_ok_and(|number| number.to_string() == code);
        self.codes
            .keys()
            .filter(|code| !plain(code))
            .map(|code| format!("codes: '{code}' is not an SXid code (want \"20034\" = \"fail\")"))
            .collect()
    }
}

impl Check for GpuSxid {
    const ABOUT: &'static str = "an NVSwitch reported an error (SXid) since the last clean look";
    const EXPLAIN: &'static str = "
Reads the NVSwitch driver's lines in the kernel log (`nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, …`) since
the last clean look of this boot. Register dumps that follow a line are skipped.

Why: an NVSwitch serves all GPUs of the node; after some errors only a reboot brings its links back.

- Codes after which the fabric is lost for good (10003, 12020, 22003, 22011, 23001-23017), where the line says fatal: `fail`
  where NVML agrees (a GPU of the node is lost, asks for a reset, or has NVLinks down), else when the driver writes it a second
  time within 24 hours, until then `warn`. NVML has no reading of a switch itself.
- Other lines that say fatal: `fatal` (a link that is really down is `gpu-nvlink`'s). A link fault (20034) within five
  seconds after a GPU fell off the bus is that GPU's, and a note.
- Lines that say non-fatal: a note.

`codes` overrides single codes. A job that holds a part of the node's GPUs is warned only: nobody knows whose link it was.
Machines whose switches are managed elsewhere (NVL72) have no such lines.

Fix: reboot; the same switch again: RMA of the baseboard.

```toml
[gate.checks.gpu-sxid]
action = \"drain\"    # off, shadow, report, notify, drain
fatal = \"warn\"      # note, unknown, warn, fail
codes = {}          # { \"20034\" = \"fail\" }
```";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::KernelLog];
    const SCOPE: Scope = Scope::Gpus;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let events = scene.now.kernel_log.data().map_or_else(Vec::new, KernelLog::sxids);
        let mut groups: BTreeMap<(u32, String), Vec<SxidEvent>> = BTreeMap::new();
        for event in events {
            let switch = event.switch.map_or_else(String::new, |switch| switch.to_string());
            groups.entry((event.code, switch)).or_default().push(event);
        }
        for ((code, switch), events) in groups {
            out.add(group(scene, set, code, switch, &events));
        }
    }
}

/// A broken link can write thousands of them.
const MOST_ROWS: usize = 5;

/// What one fault makes several drivers say.
const SAME_FAULT_MS: u64 = 5_000;

fn group(scene: &Scene<'_>, set: &Settings, code: u32, switch: String, events: &[SxidEvent]) -> Found {
    let fatal = events.iter().any(|event| event.fatal);
    let follows = code == LINK_FAULT && events.iter().all(|event| follows_a_lost_gpu(scene, event));
    let severity = match set.codes.get(&code.to_string()) {
        Some(severity) => *severity,
        None if follows || !fatal => Severity::Note,
        None if always_fatal(code) => Severity::Fail,
        None => set.fatal,
    };
    let name = name(code).map_or_else(String::new, |name| format!(" ({name})"));
    let times = if events.len() > 1 { format!(" x{}", events.len()) } else { String::new() };
    let after = if follows { ", after a lost GPU" } else { "" };
    let fix = if severity == Severity::Fail { "reboot" } else { "watch" };
    let found = Found::new(severity, Class::Node, switch, format!("SXid {code}{name}{times}{after}"));
    // A switch serves all GPUs, and only some of its errors are everybody's.
    let found = if scene.whole() || severity < Severity::Warn { found } else { found.shared() };
    let found = events.iter().take(MOST_ROWS).fold(found.fix(fix), |found, event| {
        found.row(
            "kernel log",
            &event.text,
            "no such event since the last clean look",
            format!("kmsg seq {} at {}", event.seq, iso(event.time)),
        )
    });
    let nvml = of_any_gpu(scene, &[Counterpart::NvLink, Counterpart::RecoveryAction]);
    grade(found, nvml, false, events.iter().map(|event| event.time).collect())
}

fn follows_a_lost_gpu(scene: &Scene<'_>, event: &SxidEvent) -> bool {
    let lost = |time: u64| event.time.checked_sub(time).is_some_and(|after| after <= SAME_FAULT_MS);
    scene.xids.iter().any(|xid| xid.code == 79 && lost(xid.time))
}

#[cfg(test)]
mod tests {
    use railgate_node::{Fitness, Severity};

    use crate::testing::look;

    #[test]
    fn what_ends_the_fabric_fails() {
        let agrees = |look: crate::testing::Look| {
            look.gpu(2, |gpu| gpu.nvlinks[4].up = railgate_node::Reading::Known(false))
        };
        let fatal = agrees(look("h100-sxm:nvswitch-fatal"));
        assert_eq!(
            fatal.says(),
            "unfit: fail gpu-sxid@0000:05:00.0: SXid 22003 (switch needs recovery); reboot"
        );
        assert_eq!(fatal.of("gpu-sxid").len(), 1, "the dump that follows is no event");
        let part = fatal.holding(&[0, 1]);
        assert!(part.says().starts_with("degraded: warn gpu-sxid@0000:05:00.0"), "{}", part.says());
    }

    #[test]
    fn the_log_alone_drains_at_the_second_record() {
        let once = || look("h100-sxm:nvswitch-fatal");
        let says =
            "degraded: warn gpu-sxid@0000:05:00.0: SXid 22003 (switch needs recovery), strike 1 of 2; reboot";
        assert_eq!(once().says(), says);
        assert_eq!(once().again().again().says(), says, "one record is one sight");
        let line = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 22003, Fatal, Link 30 Minion Halt";
        assert_eq!(once().again().kernel(line).fitness(), Fitness::Unfit);
    }

    #[test]
    fn other_errors_warn_or_are_noted() {
        let link = look("h100-sxm:nvswitch-link");
        assert_eq!(link.says(), "degraded: warn gpu-sxid@0000:05:00.0: SXid 20034 (link fault); watch");
        let soft = look("h100-sxm:nvswitch-nonfatal");
        assert_eq!((soft.says(), soft.of("gpu-sxid")), ("fit".to_owned(), vec![Severity::Note]));
        let strict = link.settings("[checks.gpu-sxid.codes]\n20034 = \"fail\"");
        assert!(strict.says().contains("strike 1 of 2"), "{}", strict.says());
        let config: crate::GateConfig = toml::from_str("[checks.gpu-sxid.codes]\n020034 = \"note\"").unwrap();
        assert_eq!(config.problems().len(), 1);
    }

    #[test]
    fn a_lost_gpu_takes_its_links_with_it() {
        let lost = look("h100-sxm:gpu-lost@3,nvswitch-link");
        assert_eq!(lost.of("gpu-sxid"), [Severity::Note]);
        assert!(lost.says().starts_with("unfit: fail gpu-lost@3"));
    }
}
