use std::time::Duration;

use railgate_model::{Class, FollowUp, PartName, Phase, Reading, Severity};

use crate::growth::grown;
use crate::links::{Grown, PAUSES};
use crate::plan::Need;
use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::{JudgedPort, Scene};
use crate::settings::{at_most, seconds, settings};

/// The check.
pub(crate) struct RocePause;

settings! {
    action = Notify;
    #[serde(with = "railgate_model::duration_text")]
    window: Duration = Duration::from_secs(3600), limit seconds(60..=7200), "how far back a check run reaches";
    paused_percent: u64 = 5, limit at_most(100), "percent of the time that the switch pauses a priority; more is a note";
    pausing_percent: u64 = 5, limit at_most(100), "percent of the time that this node pauses the switch; more is warn";
}

impl Check for RocePause {
    const ABOUT: &'static str = "a compute port was paused by the switch, or pauses the switch (PFC)";
    const EXPLAIN: &'static str = "
Reads the time that each priority of a compute port spent paused (`rx_prio*_pause_duration` of `ethtool -S`) and made the
switch pause (`tx_prio*_pause_duration`), in the last `window`, and the pause storms that the adapter stopped
(`tx_pause_storm_error_events`).

Why: priority flow control keeps a RoCE fabric lossless by making senders wait. A port that is paused for long is in a
congested fabric: the cause is the traffic of several nodes (`note`). A port that pauses the switch cannot receive fast
enough: this node is slow (its PCIe link, its memory, its settings), and all senders through that switch have to wait
(`warn`).

Fix: if paused, check PFC and ECN thresholds, routing, and the receiver that causes it. If pausing, check `gpu-pcie`, PCIe
errors in the kernel log, ATS and relaxed ordering, and the number of receive buffers. A pause storm: the same, at once.
";
    const CLASS: Class = Class::Fabric;
    const PARTS: &'static [PartName] = &[PartName::Fabric, PartName::Pci, PartName::Host];
    const NEEDS: &'static [Need<Settings>] =
        &[Need::follow_up(|_, scene| scene.judged_interfaces().map(FollowUp::Statistics))];
    const SCOPE: Scope = Scope::Fabric;
    const PHASES: &'static [Phase] = &[Phase::Periodic];
    const COST: &'static str = "some milliseconds per interface";
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        for judged in scene.judged_ports() {
            for counter in PAUSES {
                paused(scene, set, &judged, counter, out);
            }
            storms(scene, set, &judged, out);
        }
    }
}

/// No share is calculated over a shorter window.
const SHORTEST: Duration = Duration::from_secs(60);

fn paused(scene: &Scene<'_>, set: &Settings, judged: &JudgedPort<'_>, counter: &str, out: &mut Report<'_>) {
    let Some((micros, elapsed)) = rose(scene, set, judged, counter) else { return };
    if elapsed < SHORTEST {
        return;
    }
    let percent = micros.saturating_mul(100) / u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX).max(1);
    let priority = counter.bytes().find(u8::is_ascii_digit).map_or('?', char::from);
    let (severity, allowed, what, fix) = if counter.starts_with("rx") {
        let what = format!("priority {priority} was paused {percent} % of the time");
        (Severity::Note, set.paused_percent, what, "check fabric")
    } else {
        let what = format!("pauses the switch {percent} % of the time (priority {priority})");
        (Severity::Warn, set.pausing_percent, what, "check PCIe, memory")
    };
    if percent > allowed {
        let seconds = format!("{} s in {} s", micros / 1_000_000, elapsed.as_secs());
        let found = Found::new(severity, Class::Fabric, judged.name(), what).fix(fix);
        out.add(found.row(counter, seconds, format!("at most {allowed} %"), source(judged)));
    }
}

fn storms(scene: &Scene<'_>, set: &Settings, judged: &JudgedPort<'_>, out: &mut Report<'_>) {
    const COUNTER: &str = "tx_pause_storm_error_events";
    let Some((events, _)) = rose(scene, set, judged, COUNTER) else { return };
    if events > 0 {
        let found =
            Found::warn(Class::Fabric, judged.name(), format!("{events} pause storms")).fix("check host");
        out.add(found.row(COUNTER, format!("+{events}"), "0", source(judged)));
    }
}

/// The growth of a counter within the window, and the time in which it grew.
fn rose(
    scene: &Scene<'_>,
    set: &Settings,
    judged: &JudgedPort<'_>,
    counter: &str,
) -> Option<(u64, Duration)> {
    let Some(Reading::Known(value)) = judged.port.counters.get(counter) else { return None };
    match grown(scene, judged, counter, *value, set.window) {
        Grown::By(more, elapsed) => Some((more, elapsed)),
        Grown::Reset | Grown::Unknown => None,
    }
}

fn source(judged: &JudgedPort<'_>) -> String {
    format!("ethtool -S {}", judged.hca.netdevs.first().map_or("", String::as_str))
}

#[cfg(test)]
mod tests {
    use railgate_model::{Phase, Severity};

    use crate::testing::{Case, case};
    use crate::{GateConfig, Memory};

    /// A check run half an hour after one of the healthy node.
    fn later(fault: &str) -> Case {
        let healthy = case("h100-sxm").now;
        case(&format!("h100-sxm:{fault}@2")).phase(Phase::Periodic).with(|case| {
            case.job = None;
            case.memory = Memory::default().after(&healthy, true);
            case.now.taken += 1_800_000;
        })
    }

    #[test]
    fn a_paused_port_is_a_note_and_a_pausing_port_warns() {
        assert_eq!(later("roce-paused").summary(), "fit");
        let findings = later("roce-paused").findings();
        assert_eq!(
            findings,
            ["note roce-pause@mlx5_2: priority 3 was paused 33 % of the time; check fabric"]
        );
        let says =
            "warn roce-pause@mlx5_2: pauses the switch 33 % of the time (priority 3); check PCIe, memory";
        assert_eq!(later("roce-pausing").summary(), format!("degraded: {says}"));
        let storm = "degraded: warn roce-pause@mlx5_2: 3 pause storms; check host";
        assert_eq!(later("roce-pause-storm").summary(), storm);
    }

    #[test]
    fn no_share_is_judged_over_a_short_window_or_after_a_reset() {
        let at_once = later("roce-pausing").with(|case| case.now.taken -= 1_780_000);
        assert_eq!(at_once.of("roce-pause"), []);
        let first = later("roce-pausing").with(|case| case.memory = Memory::default());
        assert_eq!(first.of("roce-pause"), []);
        let reset = later("roce-pausing").with(|case| {
            for link in &mut case.memory.links {
                link.samples[0].counters.insert("tx_prio3_pause_duration".to_owned(), u64::MAX);
            }
        });
        assert_eq!(reset.of("roce-pause"), []);
        let tolerant = later("roce-pausing").settings("[checks.roce-pause]\npausing_percent = 40");
        assert_eq!(tolerant.of("roce-pause"), [Severity::Warn; 0]);
    }

    #[test]
    fn settings_out_of_range() {
        let table = "[checks.roce-pause]\nwindow = \"1s\"\npaused_percent = 101";
        let config: GateConfig = toml::from_str(table).unwrap();
        assert_eq!(config.problems().len(), 2, "{:?}", config.problems());
    }
}
