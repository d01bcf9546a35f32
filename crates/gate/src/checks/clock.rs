use std::time::Duration;

use railgate_model::{Class, PartName, Severity};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::{Limit, settings};

/// The check.
pub(crate) struct ClockKept;

settings! {
    action = Drain;
    unsynchronised: Severity = Severity::Note, "the clock is not synchronised";
    severity: Severity = Severity::Warn, "the clock is synchronised, and may be off by more than max_error";
    #[serde(with = "railgate_model::duration_text")]
    max_error: Duration = Duration::from_secs(1), limit not_zero(), "a larger possible error of the clock is a finding";
}

fn not_zero() -> Limit<Duration> {
    Limit::one("more than 0s", |error: &Duration| {
        error.is_zero().then(|| "no clock has an error of 0".to_owned())
    })
}

impl Check for ClockKept {
    const ABOUT: &'static str = "the machine's clock is not synchronised, or may be far off";
    const EXPLAIN: &'static str = "
Reads the kernel's clock state (`adjtimex`), which chrony, ntpd, timesyncd and phc2sys maintain: whether it is
synchronised, and its largest possible error. The finding also shows the PTP clocks of the machine.

Why: munge refuses credentials if the clock is minutes off, and the logs of a job's nodes no longer fit together.

A virtual machine that takes its time from its host (some clouds) reads \"not synchronised\" although its clock is right, so
that is only a note by default.

Fix: `chronyc tracking`, `chronyc sources`; start the time service.
";
    const CLASS: Class = Class::Site;
    const PARTS: &'static [PartName] = &[PartName::Host];
    const SCOPE: Scope = Scope::Always;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let Some(host) = scene.now.host.data() else { return };
        let Some(clock) = out.value("", "clock", "adjtimex", &host.system.clock) else { return };
        let ptp = if clock.ptp.is_empty() { "none".to_owned() } else { clock.ptp.join(", ") };
        if !clock.synchronised {
            out.add(
                Found::new(set.unsynchronised, Class::Site, "", "not synchronised")
                    .fix("start chronyd")
                    .row("status", "unsynchronised", "synchronised", "adjtimex")
                    .row("PTP clocks", ptp, "for information", "/sys/class/ptp"),
            );
            return;
        }
        let off = Duration::from_micros(clock.max_error_us);
        if off > set.max_error {
            let shown = |duration| humantime::format_duration(duration).to_string();
            let rounded = Duration::from_millis(u64::try_from(off.as_millis()).unwrap_or(u64::MAX));
            out.add(
                Found::new(set.severity, Class::Site, "", format!("may be off by {}", shown(rounded)))
                    .fix("see chronyc tracking")
                    .row("maximum error", shown(off), format!("{} at most", shown(set.max_error)), "adjtimex")
                    .row("PTP clocks", ptp, "for information", "/sys/class/ptp"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::{Clock, Reading};

    use super::*;
    use crate::testing::{Case, case};

    fn with(synchronised: bool, max_error_us: u64) -> Case {
        case("h100-sxm").host(|host| {
            let clock = Clock { synchronised, error_us: 40, max_error_us, ptp: Vec::new() };
            host.system.clock = Reading::Known(clock);
        })
    }

    #[test]
    fn an_unsynchronised_clock_is_a_note_and_a_large_offset_a_site_problem() {
        let free = with(false, 16_000_000);
        assert_eq!((free.summary().as_str(), free.of("clock")), ("fit", vec![Severity::Note]));
        let strict = with(false, 0).settings("[checks.clock]\nunsynchronised = \"warn\"");
        assert_eq!(strict.summary(), "degraded: warn clock: not synchronised; start chronyd");
        assert_eq!(with(true, 1_000_000).summary(), "fit");
        assert_eq!(
            with(true, 2_345_678).summary(),
            "degraded: warn clock: may be off by 2s 345ms; see chronyc tracking"
        );
    }
}
