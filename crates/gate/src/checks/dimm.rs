use railgate_model::{Class, Host, MemoryController, PartName, Reading, Severity};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::settings;

/// The check.
pub(crate) struct DimmErrors;

settings! {
    action = Drain;
    severity: Severity = Severity::Warn, "uncorrected errors and machine checks";
    corrected_per_day: u64 = 1_000, "corrected errors of one controller in a day; more is warn";
}

const EDAC: &str = "/sys/devices/system/edac/mc";
const DAY_MS: u64 = 24 * 3600 * 1000;

impl Check for DimmErrors {
    const ABOUT: &'static str = "the machine's memory has errors, or a processor reported a machine check";
    const EXPLAIN: &'static str = "
Reads the error counts of the memory controllers and their modules (EDAC) and the machine check exceptions
(`/proc/interrupts`): after a job the increase during it, otherwise the count since boot. A count that went backwards is
not judged.

Why: an uncorrected error has killed a process or the machine; many corrected errors often come before one.

- Uncorrected errors and machine checks: `severity`.
- More corrected errors than `corrected_per_day` (for each day since boot, or for one day and the job): `warn`.

Fix: replace the memory module that the finding names.
";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::Host];
    const SCOPE: Scope = Scope::Always;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let Some(host) = scene.now.host.data() else { return };
        let window = Window::of(scene, host);
        for controller in out.value("", "memory errors", EDAC, &host.system.memory).into_iter().flatten() {
            judge(controller, &window, set, out);
        }
        let checks = "/proc/interrupts";
        if let Some(now) = out.value("mce", "machine checks", checks, &host.system.machine_checks)
            && let Some(new) = window.growth(*now, |system| system.machine_checks.known().copied())
            && new > 0
        {
            let what = format!("{new} machine checks {}", window.since());
            out.add(Found::new(set.severity, Class::Node, "mce", what).fix("see BMC log").row(
                "machine check exceptions",
                new.to_string(),
                "0",
                checks,
            ));
        }
    }
}

fn judge(controller: &MemoryController, window: &Window<'_>, set: &Settings, out: &mut Report<'_>) {
    let name = &controller.name;
    let of = |system: &railgate_model::System, get: fn(&MemoryController) -> &Reading<u64>| {
        let all = system.memory.known()?;
        get(all.iter().find(|old| old.name == *name)?).known().copied()
    };
    let source = format!("{EDAC}/{name}");
    if let Some(now) = out.value(name, "uncorrected errors", &source, &controller.uncorrected)
        && let Some(new) = window.growth(*now, |system| of(system, |mc| &mc.uncorrected))
        && new > 0
    {
        let worst =
            controller.dimms.iter().filter(|dimm| dimm.uncorrected.known().is_some_and(|count| *count > 0));
        let dimm = worst.max_by_key(|dimm| dimm.uncorrected.known().copied()).map(|dimm| dimm.label.as_str());
        let what = format!("{new} uncorrected errors {}{}", window.since(), named(dimm));
        out.add(Found::new(set.severity, Class::Node, name, what).fix("replace DIMM").row(
            format!("{name} uncorrected"),
            new.to_string(),
            "0",
            format!("{source}/ue_count"),
        ));
    }
    let limit = set.corrected_per_day.saturating_mul(window.days());
    if let Some(now) = out.value(name, "corrected errors", &source, &controller.corrected)
        && let Some(new) = window.growth(*now, |system| of(system, |mc| &mc.corrected))
        && new > limit
    {
        let worst = controller.dimms.iter().max_by_key(|dimm| dimm.corrected.known().copied().unwrap_or(0));
        let what = format!(
            "{new} corrected errors {}{}",
            window.since(),
            named(worst.map(|dimm| dimm.label.as_str()))
        );
        out.add(
            Found::new(set.severity.min(Severity::Warn), Class::Node, name, what).fix("replace DIMM").row(
                format!("{name} corrected"),
                new.to_string(),
                format!("{limit} at most"),
                format!("{source}/ce_count"),
            ),
        );
    }
}

fn named(dimm: Option<&str>) -> String {
    dimm.map_or_else(String::new, |label| format!(", {label}"))
}

/// The period in which errors are counted: the job, or the time since boot.
struct Window<'a> {
    before: Baseline<'a>,
    long_ms: u64,
}

enum Baseline<'a> {
    /// The counters start at zero at boot.
    Boot,
    /// Counts since the snapshot before the job; `None` if that snapshot has no host part.
    Job(Option<&'a Host>),
}

impl<'a> Window<'a> {
    fn of(scene: &Scene<'a>, host: &Host) -> Window<'a> {
        let now = scene.now.taken;
        let same_boot = |before: &&railgate_model::Snapshot| {
            !before.boot_id.is_empty() && before.boot_id == scene.now.boot_id
        };
        let (before, began) = match scene.seen.before.filter(same_boot) {
            Some(before) => (Baseline::Job(before.host.data()), before.taken),
            None => {
                (Baseline::Boot, host.boot_time.known().map_or(now, |seconds| seconds.saturating_mul(1000)))
            }
        };
        Window { before, long_ms: now.saturating_sub(began) }
    }

    /// Growth of a counter within the window; `None` if it decreased or has no earlier value.
    fn growth(&self, now: u64, then: impl FnOnce(&railgate_model::System) -> Option<u64>) -> Option<u64> {
        match self.before {
            Baseline::Boot => Some(now),
            Baseline::Job(before) => now.checked_sub(then(&before?.system)?),
        }
    }

    fn days(&self) -> u64 {
        self.long_ms / DAY_MS + 1
    }

    fn since(&self) -> &'static str {
        match self.before {
            Baseline::Boot => "since boot",
            Baseline::Job(_) => "during the job",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Case, case};

    fn counts(host: &mut Host, corrected: u64, uncorrected: u64) {
        let Reading::Known(controllers) = &mut host.system.memory else { panic!() };
        let controller = &mut controllers[1];
        controller.corrected = Reading::Known(corrected);
        controller.uncorrected = Reading::Known(uncorrected);
        controller.dimms[1].corrected = Reading::Known(corrected);
        controller.dimms[1].uncorrected = Reading::Known(uncorrected);
    }

    fn with(corrected: u64, uncorrected: u64) -> Case {
        case("h100-sxm").host(|host| counts(host, corrected, uncorrected))
    }

    fn after(then: (u64, u64), now: (u64, u64)) -> Case {
        with(now.0, now.1).after_the_job().with(|case| {
            let before = case.before.as_mut().unwrap();
            counts(crate::testing::read(&mut before.host), then.0, then.1);
        })
    }

    #[test]
    fn without_a_job_errors_since_boot_count() {
        assert_eq!(
            with(0, 2).summary(),
            "degraded: warn dimm@mc1: 2 uncorrected errors since boot, CPU_SrcID#0_MC#1_Chan#1_DIMM#0; replace DIMM"
        );
        assert_eq!(with(4_000, 0).summary(), "fit", "three days up");
        assert!(
            with(4_001, 0).summary().starts_with("degraded: warn dimm@mc1: 4001 corrected errors since boot")
        );
    }

    #[test]
    fn after_a_job_only_errors_during_the_job_count() {
        assert_eq!(after((9_000, 2), (9_000, 2)).summary(), "fit");
        assert!(after((9_000, 2), (9_000, 3)).summary().contains("1 uncorrected errors during the job"));
        assert_eq!(after((9_000, 2), (5, 0)).summary(), "fit", "the driver was loaded anew");
    }

    #[test]
    fn machine_checks_warn_and_a_failed_reading_is_unknown() {
        let one = case("h100-sxm").host(|host| host.system.machine_checks = Reading::Known(1));
        assert_eq!(one.summary(), "degraded: warn dimm@mce: 1 machine checks since boot; see BMC log");
        let unread =
            case("h100-sxm").host(|host| host.system.machine_checks = Reading::Failed("EIO".to_owned()));
        assert_eq!(unread.of("dimm"), [Severity::Unknown]);
    }
}
