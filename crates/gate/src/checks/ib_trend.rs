use std::collections::BTreeMap;
use std::time::Duration;

use railgate_model::{Class, FollowUp, PartName, Phase, Reading};

use crate::growth::{grown, rows};
use crate::links::{self, Grown};
use crate::plan::Need;
use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::{JudgedPort, Scene};
use crate::settings::{keys, settings, within};
use crate::trend;

/// The check.
pub(crate) struct IbTrend;

settings! {
    action = Shadow only "off, shadow, report, notify";
    times: f64 = 10.0, limit within(1.5..=1e6), "more than this many times the port's usual count is a prediction";
    least: BTreeMap<String, u64> = rows(&[("rx_corrected_bits_phy", 100_000_000), ("rx_pcs_symbol_err_phy", 20), ("symbol_error", 20)]), limit keys(is_followed, not_followed), "per hour; fewer are not judged";
}

fn is_followed(name: &str) -> bool {
    trend::FOLLOWED.contains(&name)
}

fn not_followed(name: &str) -> String {
    format!("'{name}' is not a counter that this check follows")
}

impl Check for IbTrend {
    const ABOUT: &'static str = "a compute port corrects far more errors than usual";
    const EXPLAIN: &'static str = "
Reads how many bits the error correction of a compute port has repaired (`rx_corrected_bits_phy` of `ethtool -S`; for an
InfiniBand port from its IPoIB interface) and what it could not repair (`rx_pcs_symbol_err_phy`, `symbol_error`). It compares
the last hour with this port's usual hour over the last week: the median of stretches of six hours, once there are two days of
them.

Why: PAM4 links correct errors all the time, some ports a thousand times more than others. If a port suddenly corrects more
than usual, its connector is getting dirty, its transceiver ages, or its cable was bent. The link still runs at full speed, and
a repair now costs no job.

It warns if the last hour has more than `times` the usual count and more than `least` per hour. This is a prediction: nothing
here drains, regardless of `action`, and the check starts in shadow.

Fix: clean the connector; replace cable or transceiver at the next opportunity; `optic` shows more.
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
            for counter in trend::FOLLOWED {
                one(scene, set, &judged, counter, out);
            }
        }
    }
}

const HOUR: Duration = Duration::from_secs(3600);
/// No rate is calculated over a shorter window.
const SHORTEST: Duration = Duration::from_secs(600);

fn one(scene: &Scene<'_>, set: &Settings, judged: &JudgedPort<'_>, counter: &str, out: &mut Report<'_>) {
    let Some(Reading::Known(value)) = judged.port.counters.get(counter) else { return };
    let known = links::known(&scene.seen.memory.links, judged.hca, judged.port);
    let Some(usual) = known.and_then(|link| trend::usual(link, counter)) else { return };
    // `ib-errors` reports a counter that went backwards.
    let Grown::By(more, elapsed) = grown(scene, judged, counter, *value, HOUR) else { return };
    if elapsed < SHORTEST {
        return;
    }
    let rate = more as f64 * 3600.0 / elapsed.as_secs_f64();
    let least = set.least.get(counter).copied().unwrap_or(0) as f64;
    if rate <= least || rate <= set.times * usual as f64 {
        return;
    }
    let what = match usual {
        0 => format!("{counter} {rate:.0} per hour, usually none"),
        usual => format!("{counter} {:.0} times its usual rate", rate / usual as f64),
    };
    let source = judged.hca.netdevs.first().map_or_else(
        || format!("/sys/class/infiniband/{}/ports/{}", judged.hca.name, judged.port.number),
        |interface| format!("ethtool -S {interface}"),
    );
    let found = Found::warn(Class::Fabric, judged.name(), what).fix("clean or swap transceiver");
    let want = format!("at most {} times {usual} per hour", set.times);
    out.add(found.row(counter, format!("{rate:.0} per hour"), want, source));
}

#[cfg(test)]
mod tests {
    use railgate_model::{Phase, Severity};

    use crate::links::Sample;
    use crate::testing::{Case, case};
    use crate::{GateConfig, Memory};

    /// A periodic check run half an hour after one of the healthy node. Its ports have a history of `stretches`
    /// entries with `usual` bits per hour each.
    fn later(fault: &str, usual: u64, stretches: usize) -> Case {
        let healthy = case("h100-sxm").now;
        let counters = [("rx_corrected_bits_phy".to_owned(), usual)].into();
        case(&format!("h100-sxm:{fault}@2")).phase(Phase::Periodic).with(|case| {
            case.job = None;
            case.memory = Memory::default().after(&healthy, true);
            for link in &mut case.memory.links {
                link.rates = vec![Sample { time: 1, counters: Clone::clone(&counters) }; stretches];
            }
            case.now.taken += 1_800_000;
        })
    }

    fn shadow(case: &Case) -> Vec<String> {
        case.judge().shadow.iter().map(crate::testing::line).collect()
    }

    #[test]
    fn a_rate_far_above_the_ports_own_history_warns() {
        let rising = later("ib-corrected-rising", 40_000_000, 12);
        assert_eq!(rising.summary(), "fit");
        let says = "rx_corrected_bits_phy 100 times its usual rate; clean or swap transceiver";
        assert_eq!(shadow(&rising), [format!("warn ib-trend@mlx5_2: {says}")]);
        for (usual, stretches) in [(400_000_000, 12), (40_000_000, 7)] {
            assert_eq!(shadow(&later("ib-corrected-rising", usual, stretches)), [""; 0], "{usual}");
        }
        assert_eq!(shadow(&later("ib-discards", 40_000_000, 12)), [""; 0]);
    }

    #[test]
    fn it_never_drains_and_needs_a_long_enough_window() {
        let drains = later("ib-corrected-rising", 40_000_000, 12)
            .settings("[checks.ib-trend]\naction = \"drain\"\n[periodic]\nwarn = \"report\"");
        assert_eq!(drains.of("ib-trend"), [Severity::Warn]);
        assert!(drains.summary().starts_with("degraded"));
        let soon = drains.with(|case| case.now.taken -= 1_500_000);
        assert_eq!(soon.of("ib-trend"), []);
    }

    #[test]
    fn settings_out_of_range() {
        let table = "[checks.ib-trend]\ntimes = 1.0\nleast = { symbol_errors = 3 }";
        let config: GateConfig = toml::from_str(table).unwrap();
        assert_eq!(config.problems().len(), 2, "{:?}", config.problems());
    }
}
