use std::time::Duration;

use railgate_model::{Class, PartName, Reading};

use crate::growth::{self, Limits, limits};
use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;

/// The check.
pub(crate) struct IbErrors;

limits! {
    note: [("port_rcv_remote_physical_errors", 20)],
    warn: [("symbol_error", 60), ("link_error_recovery", 2), ("local_link_integrity_errors", 5), ("excessive_buffer_overrun_errors", 2), ("port_rcv_errors", 20)],
    fail: [("symbol_error", 1440)],
}

impl Check for IbErrors {
    const ABOUT: &'static str = "a compute port counts errors of its link";
    const EXPLAIN: &'static str = "
Reads the error counters in `ports/*/counters` of the compute ports. They count errors at this node's end of the link: its
transceiver, its cable, its port.

Why: a dirty or failing link makes every collective wait for its retransmissions long before it goes down.

Judged is the increase, never the lifetime count: since the job began if there is a baseline of the same boot, otherwise since
the oldest check run within `window`. Less than an hour counts as a whole hour: the limit must really have been exceeded. A
counter that went backwards is `unknown`; after a boot, counting starts again. `port_rcv_remote_physical_errors` belongs to the
far end and is only a note.

Fix: clean or replace transceiver and cable; check `optic` and the switch's side of the link.

By default only `symbol_error` can fail (1440 per hour is a bit error rate of 1e-12 at 400 Gb/s), and only if a second
check run within a day sees it too.
";
    const CLASS: Class = Class::Fabric;
    const PARTS: &'static [PartName] = &[PartName::Fabric, PartName::Pci, PartName::Host];
    const SCOPE: Scope = Scope::Fabric;
    const TRANSIENT: Option<Duration> = Some(Duration::from_secs(24 * 3600));
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        growth::judge(scene, &set.limits(), "clean or swap cable", out);
        for judged in scene.judged_ports() {
            let failed = |value: &Reading<u64>| match value {
                Reading::Failed(why) => Some(why.clone()),
                Reading::Known(_) | Reading::Unsupported => None,
            };
            if let Some(why) = judged.port.counters.values().find_map(failed) {
                let at = format!("/sys/class/infiniband/{}/ports", judged.hca.name);
                let what = format!("counters unreadable: {why}");
                out.add(Found::unknown(Class::Fabric, judged.name(), what).fix("check driver").row(
                    "counters",
                    format!("unknown ({why})"),
                    "values",
                    at,
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::{Fitness, Phase, Reading, Severity};

    use crate::Memory;
    use crate::testing::{Case, case, read};

    fn during_a_job(fault: &str) -> Case {
        case(&format!("h100-sxm:{fault}")).after_the_job()
    }

    #[test]
    fn growth_above_the_rate_during_the_job_warns_and_then_fails() {
        let bad = during_a_job("ib-symbol-errors@2").with(|case| case.now.taken += 3_600_000);
        assert_eq!(
            bad.summary(),
            "degraded: warn ib-errors@mlx5_2: symbol_error +50000 in 1 h 0 min, strike 1 of 2; clean or swap cable"
        );
        assert_eq!(bad.again().fitness(), Fitness::Unfit);
        let few = during_a_job("ib-receive-errors@2").with(|case| case.now.taken += 30 * 3_600_000);
        assert_eq!(few.summary(), "fit", "400 in 30 h are 13 per hour");
        assert_eq!(during_a_job("ib-receive-errors@2").of("ib-errors"), [Severity::Warn]);
        assert_eq!(during_a_job("ib-receive-errors@2").holding(&[0]).summary(), "fit", "another job's");
    }

    #[test]
    fn without_a_number_of_hcas_a_port_that_trained_down_is_still_judged() {
        let slow = during_a_job("ib-rate-low@2,ib-symbol-errors@2").with(|case| {
            case.profile.as_mut().unwrap().fabric.hcas = None;
            for snapshot in std::iter::once(&mut case.now).chain(&mut case.before) {
                for hca in &mut read(&mut snapshot.fabric).hcas {
                    // The second ports of the cards, without errors: more ports than GPUs.
                    let second = railgate_model::Port {
                        number: 2,
                        counters: Default::default(),
                        ..hca.ports[0].clone()
                    };
                    hca.ports.push(second);
                }
            }
        });
        assert_eq!(slow.of("ib-errors"), during_a_job("ib-symbol-errors@2").of("ib-errors"));
    }

    #[test]
    fn errors_from_before_the_job_do_not_count() {
        assert_eq!(case("h100-sxm:ib-symbol-errors@2").summary(), "fit");
        let before = case("h100-sxm:ib-symbol-errors@2").now;
        let old = during_a_job("ib-symbol-errors@2").with(|case| case.before = Some(before));
        assert_eq!(old.summary(), "fit");
        let boot = during_a_job("ib-symbol-errors@2").with(|case| case.now.boot_id = "another".to_owned());
        assert_eq!(boot.of("ib-errors"), []);
    }

    #[test]
    fn without_a_job_growth_since_recent_check_runs_counts() {
        let healthy = case("h100-sxm").now;
        let later = case("h100-sxm:ib-symbol-errors@2").phase(Phase::Periodic).with(|case| {
            case.job = None;
            case.memory = Memory::default().after(&healthy, true);
            case.now.taken += 300_000;
        });
        assert_eq!(later.of("ib-errors"), [Severity::Warn]);
        let much_later = later.with(|case| case.now.taken += 7_200_000);
        assert_eq!(much_later.of("ib-errors"), [], "no check run within the window");
    }

    #[test]
    fn a_reset_or_unreadable_counter_is_unknown() {
        let reset = during_a_job("ib-receive-errors@2").with(|case| {
            let healthy = case.before.take().unwrap();
            case.before = Some(std::mem::replace(&mut case.now, healthy));
        });
        assert_eq!(reset.of("ib-errors"), [Severity::Unknown]);
        let unreadable = during_a_job("ib-counters-unreadable@2");
        assert_eq!(unreadable.of("ib-errors"), [Severity::Unknown]);
        let absent = case("h100-sxm").after_the_job().with(|case| {
            read(&mut case.now.fabric).hcas[2].ports[0].counters.values_mut().for_each(|value| {
                *value = Reading::Unsupported;
            });
        });
        assert_eq!(absent.summary(), "fit");
    }

    #[test]
    fn settings_out_of_range() {
        let table = "[checks.ib-errors]\nwindow = \"1d\"\nwarn = { symbol_errors = 3 }";
        let config: crate::GateConfig = toml::from_str(table).unwrap();
        assert_eq!(
            config.problems(),
            [
                "gate.checks.ib-errors.window: 1day is not between 1m and 2h",
                "gate.checks.ib-errors.warn: 'symbol_errors' is not a counter that is watched"
            ]
        );
    }
}
