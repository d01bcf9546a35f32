use std::collections::BTreeMap;

use railgate_model::xid_catalogue::{FabricLoss, fabric_loss, sxid_name, unstated_severity};
use railgate_model::{Class, KernelLog, PartName, Severity, SxidEvent, SxidSeverity};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::{is_code, keys, settings};
use crate::when::iso;

use crate::agreement::{Counterpart, grade, of_any_gpu};

/// The check.
pub(crate) struct GpuSxid;

settings! {
    action = Drain;
    fatal: Severity = Severity::Warn, "a fatal error that leaves the switch usable";
    codes: BTreeMap<String, Severity> = BTreeMap::new(), limit keys(is_code, not_an_sxid), "severities of single codes: { \"20034\" = \"fail\" }";
}

fn not_an_sxid(code: &str) -> String {
    format!("'{code}' is not an SXid code (want \"20034\" = \"fail\")")
}

impl Check for GpuSxid {
    const ABOUT: &'static str =
        "an NVSwitch reported an error (SXid) since railgate last handled the kernel log";
    const EXPLAIN: &'static str = "
Reads the NVSwitch driver's lines in the kernel log (`nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, …`) since
railgate last handled the log (see `kernel-log`). The register dumps that follow a line are skipped. The names of errors come from the
driver's source (NVIDIA's open kernel modules 515 to 595).

Why: an NVSwitch serves all GPUs of the node; after some errors only a reboot brings its links back.

- Errors after which the fabric is lost until a reboot (12020, 22003, 22011, 23001-23017: always fatal by the Fabric Manager
  User Guide) or until all GPUs and switches are reset (10003, 19084), if the line is marked fatal: `fail` if NVML confirms it
  (a GPU of the node is lost, requests a reset, or has NVLinks down) or when the driver logs it a second time within 24 hours;
  until then `warn`. NVML cannot read the switch itself.
- Other lines marked fatal: the setting `fatal`. If a link is down, `gpu-nvlink` reports it. A link fault (20034) within five
  seconds after a GPU fell off the bus is a consequence of that, and a note.
- Lines without such a mark (`26006, SOE HALTED`; `10004, Thermal Slowdown Engaged`; `10007, IO failure`; `25010, ALI
  Training failure`): `warn`; the end of a thermal event (10005, 28002, 28004) and 10010 are a note. They report the switch's
  controller, temperature, registers and cables; a link or GPU that is lost with it has its own finding.
- Lines marked non-fatal or correctable: a note.

`codes` overrides single codes. A job that holds only some of the node's GPUs gets only a warning: the record does
not identify the GPU that used the link. Machines whose switches are managed elsewhere (NVL72) log no such lines.

Fix: reboot; if the same switch fails again, replace the baseboard (RMA).
";
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

/// A broken link can cause thousands of records.
const MOST_ROWS: usize = 5;

/// A link between switch and GPU failed. The switch logs this when the GPU falls off the bus.
const LINK_FAULT: u32 = 20034;

/// The driver logs several lines for one fault within this time.
const SAME_FAULT_MS: u64 = 5_000;

fn group(scene: &Scene<'_>, set: &Settings, code: u32, switch: String, events: &[SxidEvent]) -> Found {
    let worst = events.iter().map(|event| event.severity).max().unwrap_or_default();
    let follows = code == LINK_FAULT && events.iter().all(|event| follows_a_lost_gpu(scene, event));
    let loss = fabric_loss(code);
    let severity = match (set.codes.get(&code.to_string()), worst) {
        (Some(severity), _) => *severity,
        (None, _) if follows => Severity::Note,
        (None, SxidSeverity::Correctable | SxidSeverity::NonFatal) => Severity::Note,
        (None, SxidSeverity::Unstated) => unstated_severity(code),
        (None, SxidSeverity::Fatal) if loss == FabricLoss::OneLink => set.fatal,
        (None, SxidSeverity::Fatal) => Severity::Fail,
    };
    let name = sxid_name(code, worst).map_or_else(String::new, |name| format!(" ({name})"));
    let times = if events.len() > 1 { format!(" x{}", events.len()) } else { String::new() };
    let after = if follows { ", after a lost GPU" } else { "" };
    let fix = match (severity, loss) {
        (Severity::Fail, FabricLoss::UntilReset) => "reset all GPUs",
        (Severity::Fail, _) => "reboot",
        _ => "watch",
    };
    let found = Found::new(severity, Class::Node, switch, format!("SXid {code}{name}{times}{after}"));
    // A switch serves all GPUs, but only some of its errors affect every job.
    let found = if scene.whole() || severity < Severity::Warn { found } else { found.shared() };
    let found = events.iter().take(MOST_ROWS).fold(found.fix(fix), |found, event| {
        found.row(
            "kernel log",
            &event.text,
            "no such event since railgate last handled the log",
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
    use railgate_model::{Fitness, Severity};

    use crate::testing::case;

    #[test]
    fn a_fatal_error_fails() {
        let agrees = |case: crate::testing::Case| {
            case.gpu(2, |gpu| gpu.nvlinks[4].up = railgate_model::Reading::Known(false))
        };
        let fatal = agrees(case("h100-sxm:nvswitch-fatal"));
        assert_eq!(fatal.summary(), "unfit: fail gpu-sxid@0000:05:00.0: SXid 22003 (Minion halt); reboot");
        assert_eq!(fatal.of("gpu-sxid").len(), 1, "the dump that follows is no event");
        let part = fatal.holding(&[0, 1]);
        assert!(part.summary().starts_with("degraded: warn gpu-sxid@0000:05:00.0"), "{}", part.summary());
    }

    #[test]
    fn without_nvml_an_sxid_fails_at_the_second_record() {
        let once = || case("h100-sxm:nvswitch-fatal");
        let says = "degraded: warn gpu-sxid@0000:05:00.0: SXid 22003 (Minion halt), strike 1 of 2; reboot";
        assert_eq!(once().summary(), says);
        assert_eq!(once().again().again().summary(), says, "one record is one sight");
        let line = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 22003, Fatal, Link 30 Minion Halt";
        assert_eq!(once().again().kernel(line).fitness(), Fitness::Unfit);
    }

    #[test]
    fn non_fatal_errors_warn_or_are_notes() {
        let link = case("h100-sxm:nvswitch-link");
        assert_eq!(link.summary(), "degraded: warn gpu-sxid@0000:05:00.0: SXid 20034 (link fault); watch");
        let soft = case("h100-sxm:nvswitch-nonfatal");
        assert_eq!((soft.summary(), soft.of("gpu-sxid")), ("fit".to_owned(), vec![Severity::Note]));
        let strict = link.settings("[checks.gpu-sxid.codes]\n20034 = \"fail\"");
        assert!(strict.summary().contains("strike 1 of 2"), "{}", strict.summary());
        let config: crate::GateConfig = toml::from_str("[checks.gpu-sxid.codes]\n020034 = \"note\"").unwrap();
        assert_eq!(config.problems().len(), 1);
    }

    #[test]
    fn a_line_without_a_severity_warns() {
        let switch = |what: &str| {
            case("h100-sxm").kernel(&format!("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): {what}"))
        };
        for (what, name) in [
            ("26006, SOE HALTED", "SXid 26006 (SOE halt)"),
            ("26007, SOE EXTERR", "SXid 26007 (SOE EXTERR)"),
            ("26008, SOE Watchdog error", "SXid 26008 (SOE watchdog)"),
            ("10006, TSENSE OVERT Threshold reached. Shutting Down", "SXid 10006 (thermal shutdown)"),
            ("10004, Thermal Slowdown Engaged | Links Thermal Mode ON", "SXid 10004 (thermal slowdown)"),
            ("10007, IO failure", "SXid 10007 (I/O failure)"),
            ("25010, ALI Training failure. Info 0x1000000000", "SXid 25010 (link training failed)"),
            ("28003, OSFP Thermal Overt Activated", "SXid 28003 (cable cage too hot)"),
            ("31999, a code of a newer driver", "SXid 31999"),
        ] {
            let says = switch(what).summary();
            assert_eq!(says, format!("degraded: warn gpu-sxid@0000:05:00.0: {name}; watch"), "{what}");
            let again =
                switch(what).again().kernel(&format!("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): {what}"));
            assert_eq!(again.fitness(), Fitness::Degraded, "never a drain: {what}");
        }
        for what in [
            "10005, Thermal slowdown Disengaged",
            "28004, OSFP Thermal Overt Deactivated",
            "19055, Correctable, Link 07 RX HDR ECC LIMIT Error (First)",
            "22013, Non-fatal, Link 12 Minion Link DLREQ interrupt",
        ] {
            assert_eq!(switch(what).of("gpu-sxid"), [Severity::Note], "{what}");
            assert_eq!(switch(what).fitness(), Fitness::Fit, "{what}");
        }
        let dump = switch("26006, SOE HALT data[0] = 0x              10");
        assert_eq!((dump.findings(), dump.fitness()), (vec![], Fitness::Fit));
    }

    #[test]
    fn an_error_of_the_whole_fabric_fails() {
        let down = |case: crate::testing::Case| {
            case.gpu(2, |gpu| gpu.nvlinks[4].up = railgate_model::Reading::Known(false))
        };
        let line =
            "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 10003, Fatal, unhandled interrupt in service(2310)";
        let found = down(case("h100-sxm").kernel(line)).findings();
        let want = "fail gpu-sxid@0000:05:00.0: SXid 10003 (unhandled interrupt); reset all GPUs";
        assert!(found.contains(&want.to_owned()), "{found:?}");
        let soft = line.replace("Fatal", "Non-fatal");
        assert_eq!(case("h100-sxm").kernel(&soft).of("gpu-sxid"), [Severity::Note]);
    }

    #[test]
    fn link_errors_of_a_lost_gpu_do_not_fail() {
        let lost = case("h100-sxm:gpu-lost@3,nvswitch-link");
        assert_eq!(lost.of("gpu-sxid"), [Severity::Note]);
        assert!(lost.summary().starts_with("unfit: fail gpu-lost@3"));
    }
}
