//! Checks that compare port counters with limits per hour.

use std::collections::BTreeMap;
use std::time::Duration;

use railgate_model::{Class, Reading, Severity};

use crate::links::{self, Grown};
use crate::report::{Found, Report};
use crate::scene::{JudgedPort, Scene};
use crate::settings::{Limit, keys};

/// The limits of such a check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits<'a> {
    pub(crate) window: Duration,
    pub(crate) note: &'a BTreeMap<String, u64>,
    pub(crate) warn: &'a BTreeMap<String, u64>,
    pub(crate) fail: &'a BTreeMap<String, u64>,
}

/// Defines the settings of such a check, with its defaults.
macro_rules! limits {
    (note: $note:expr, warn: $warn:expr, fail: $fail:expr $(,)?) => {
        $crate::settings::settings! {
            action = Drain;
            #[serde(with = "railgate_model::duration_text")]
            window: ::std::time::Duration = ::std::time::Duration::from_secs(3600), limit $crate::settings::seconds(60..=7200), "period that is judged if there is no baseline from a job";
            note: ::std::collections::BTreeMap<String, u64> = $crate::growth::rows(&$note), limit $crate::growth::watched(), "limits per hour; above is `note`; a table set here replaces the default";
            warn: ::std::collections::BTreeMap<String, u64> = $crate::growth::rows(&$warn), limit $crate::growth::watched(), "limits per hour; above is `warn`; a table set here replaces the default";
            fail: ::std::collections::BTreeMap<String, u64> = $crate::growth::rows(&$fail), limit $crate::growth::watched(), "limits per hour; above is `fail`; a table set here replaces the default";
        }

        impl Settings {
            fn limits(&self) -> Limits<'_> {
                Limits { window: self.window, note: &self.note, warn: &self.warn, fail: &self.fail }
            }
        }
    };
}

pub(crate) use limits;

pub(crate) fn rows(rows: &[(&str, u64)]) -> BTreeMap<String, u64> {
    rows.iter().map(|(name, most)| ((*name).to_owned(), *most)).collect()
}

impl<'a> Limits<'a> {
    fn all(&self) -> impl Iterator<Item = &'a String> + use<'a> {
        self.note.keys().chain(self.warn.keys()).chain(self.fail.keys())
    }
}

/// Accepts only counters that the gate records over time.
pub(crate) fn watched() -> Limit<BTreeMap<String, u64>> {
    keys(links::watched, |name| format!("'{name}' is not a counter that is watched"))
}

/// Judges the ports of this check run by these limits. `fix` is what a technician does about a finding.
pub(crate) fn judge(scene: &Scene<'_>, limits: &Limits<'_>, fix: &'static str, out: &mut Report<'_>) {
    let mut names: Vec<&String> = limits.all().collect();
    names.sort_unstable();
    names.dedup();
    for judged in scene.judged_ports() {
        for counter in &names {
            one(scene, limits, &judged, counter, fix, out);
        }
    }
}

fn one(
    scene: &Scene<'_>,
    limits: &Limits<'_>,
    judged: &JudgedPort<'_>,
    counter: &str,
    fix: &'static str,
    out: &mut Report<'_>,
) {
    let part = judged.name();
    let source = format!("/sys/class/infiniband/{}/ports/{}", judged.hca.name, judged.port.number);
    // A port without this counter is not judged; `ib-errors` reports a counter that cannot be read.
    let Some(Reading::Known(value)) = judged.port.counters.get(counter) else { return };
    let (more, elapsed) = match grown(scene, judged, counter, *value, limits.window) {
        Grown::By(more, elapsed) => (more, elapsed),
        Grown::Reset => {
            let what = format!("{counter} went backwards, increase unknown");
            let row = (value.to_string(), "not less than before");
            out.add(
                Found::unknown(Class::Fabric, part, what)
                    .fix("check again")
                    .row(counter, row.0, row.1, source),
            );
            return;
        }
        Grown::Unknown => return,
    };
    // A window of less than one hour counts as one hour, so that a short burst is not extrapolated.
    let hours = (elapsed.as_secs_f64() / 3600.0).max(1.0);
    let rate = more as f64 / hours;
    let over =
        |limits: &BTreeMap<String, u64>| limits.get(counter).copied().filter(|most| rate > *most as f64);
    let bands = [(Severity::Fail, limits.fail), (Severity::Warn, limits.warn), (Severity::Note, limits.note)];
    let Some((severity, most)) =
        bands.into_iter().find_map(|(severity, limits)| over(limits).map(|most| (severity, most)))
    else {
        return;
    };
    let minutes = elapsed.as_secs() / 60;
    let time = match (minutes / 60, minutes % 60) {
        (0, 0) => format!("{} s", elapsed.as_secs()),
        (0, minutes) => format!("{minutes} min"),
        (hours, minutes) => format!("{hours} h {minutes} min"),
    };
    let mut found = Found::new(severity, Class::Fabric, part, format!("{counter} +{more} in {time}"))
        .fix(fix)
        .row(counter, format!("+{more} in {time}"), format!("at most {most} per hour"), source);
    if severity == Severity::Fail {
        if scene.just_booted() {
            found = found.only_unknown("node just booted");
        } else if !judged.certain {
            found = found.only_unknown("may not be the job's");
        }
    }
    out.add(found);
}

/// The growth of a counter since the job began, or since the oldest check run within the window if there is no
/// baseline.
pub(crate) fn grown(
    scene: &Scene<'_>,
    judged: &JudgedPort<'_>,
    counter: &str,
    value: u64,
    window: Duration,
) -> Grown {
    if let Some((port, elapsed)) = scene.port_before(judged)
        && let Some(Reading::Known(old)) = port.counters.get(counter)
    {
        return value.checked_sub(*old).map_or(Grown::Reset, |more| Grown::By(more, elapsed));
    }
    links::known(&scene.seen.memory.links, judged.hca, judged.port)
        .map_or(Grown::Unknown, |link| link.grown(counter, value, scene.now, window))
}
