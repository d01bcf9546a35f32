use railgate_model::{Class, FollowUp, Module, Monitor, Part, PartName, Phase};

use crate::plan::Need;
use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::{settings, within};

/// The check.
pub(crate) struct OpticModules;

settings! {
    action = Notify only "off, shadow, report, notify";
    receive_margin_db: f64 = 1.0, limit within(0.0..=10.0), "dB to the module's warning limit of received power; closer is a prediction";
    lane_spread_db: f64 = 3.0, limit within(0.0..=20.0), "dB between the lanes of a port; more is a prediction";
    bias_margin_percent: f64 = 2.0, limit within(0.0..=50.0), "percent to the module's warning limit of bias current; closer is a prediction";
}

impl Check for OpticModules {
    const ABOUT: &'static str =
        "a transceiver of a compute port raised a flag, or a value is at or near its limit";
    const EXPLAIN: &'static str = "
Reads the memory of the transceivers in the compute ports through ethtool's netlink family (SFF-8636 and CMIS): temperature,
received power and bias current of the lanes in use, the flags that the module has raised, and the limits that it carries.
Copper cables have no monitors: that is a note. An InfiniBand port whose driver shows no module is not judged.

Why: transceivers fail slowly. A lane that gets dim, or a laser that needs ever more current, means that the link goes down
within days. Replacing the module before that costs no job.

It warns of: a flag that the module has raised, temperature above the module's warning limit, received power within
`receive_margin_db` of its low warning limit, lanes that differ by more than `lane_spread_db`, and bias current within
`bias_margin_percent` of its high warning limit. All of these are predictions: nothing here drains, regardless of
`action`. Only the periodic check reads modules: each takes some tens of milliseconds. Reading clears the flags that a module has
latched, so only one program should read them.

Fix: clean the connector, check the airflow, replace the transceiver.
";
    const CLASS: Class = Class::Fabric;
    const PARTS: &'static [PartName] = &[PartName::Fabric, PartName::Pci];
    const NEEDS: &'static [Need<Settings>] =
        &[Need::follow_up(|_, scene| scene.judged_interfaces().map(FollowUp::Optics))];
    const SCOPE: Scope = Scope::Fabric;
    const PHASES: &'static [Phase] = &[Phase::Periodic];
    const COST: &'static str = "some tens of milliseconds per module";
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let Some(part) = &scene.now.extras.optics else { return };
        let Part::Read { data, .. } = part else {
            let why = part.missing().unwrap_or_default();
            out.add(
                Found::unknown(Class::Fabric, "", format!("modules unreadable: {why}"))
                    .fix("check driver")
                    .row("modules", why, "their memory", "ethtool -m"),
            );
            return;
        };
        for optic in data {
            let source = format!("ethtool -m {}", optic.interface);
            if let Some(module) = out.value(&optic.device, "module", &source, &optic.module) {
                one(&optic.device, module, &source, set, out);
            }
        }
    }
}

fn one(part: &str, module: &Module, source: &str, set: &Settings, out: &mut Report<'_>) {
    let name = module.name.join(" ");
    if module.copper {
        let found = Found::note(Class::Fabric, part, "copper cable, no monitors");
        out.add(found.row("module", name, "any", source));
        return;
    }
    let mut say = |what: String, fix: &str, got: String, want: String| {
        let found = Found::warn(Class::Fabric, part, what).fix(fix);
        out.add(found.row("module", &name, "any", source).row("value", got, want, source));
    };
    for alarm in &module.alarms {
        say(alarm.clone(), "clean or swap transceiver", alarm.clone(), "no flag".to_owned());
    }
    if let Some((value, limit)) = single(module.temperature_c.as_ref(), |limits| limits.high_warning)
        && value > limit
    {
        let what = format!("{value:.1} C, the module warns at {limit}");
        say(what.clone(), "check airflow", what, format!("below {limit} C"));
    }
    if let Some(receive) = &module.receive_mw {
        // For a module that has already raised a flag, no prediction is made.
        let flagged = !module.alarms.is_empty();
        let powers: Vec<f64> = receive.values.iter().copied().map(dbm).collect();
        let weakest = powers.iter().enumerate().min_by(|(_, a), (_, b)| a.total_cmp(b));
        let limit = receive.limits.map(|limits| dbm(limits.low_warning)).filter(|limit| *limit > -40.0);
        let near = weakest.zip(limit).filter(|((_, power), limit)| **power < limit + set.receive_margin_db);
        if let (Some(((lane, power), limit)), false) = (near, flagged) {
            let what = format!("lane {} receives {power:.1} dBm, the module warns at {limit:.1}", lane + 1);
            let want = format!("{:.1} dBm", limit + set.receive_margin_db);
            say(what.clone(), "clean or swap transceiver", what, want);
        } else if let (Some((_, low)), false) = (weakest, flagged) {
            let high = powers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let spread = high - low;
            if spread > set.lane_spread_db {
                let what = format!("lanes differ by {spread:.1} dB");
                say(
                    what.clone(),
                    "clean or swap transceiver",
                    what,
                    format!("at most {} dB", set.lane_spread_db),
                );
            }
        }
    }
    if let Some(bias) = &module.bias_ma
        && let Some(limits) = bias.limits
    {
        let most = bias.values.iter().copied().fold(0.0, f64::max);
        let limit = limits.high_warning;
        if limit > 0.0 && most > limit * (1.0 - set.bias_margin_percent / 100.0) {
            let what = format!("bias {most:.1} mA, the module warns at {limit}");
            say(what.clone(), "plan a new transceiver", what, format!("below {limit} mA"));
        }
    }
}

/// A monitored quantity with a single value, and one of its limits.
fn single(monitor: Option<&Monitor>, limit: impl Fn(&railgate_model::Limits) -> f64) -> Option<(f64, f64)> {
    let monitor = monitor?;
    Some((*monitor.values.first()?, limit(monitor.limits.as_ref()?)))
}

/// Converts milliwatts to dBm. Zero counts as 0.1 µW (-40 dBm), the smallest value that a module can report.
fn dbm(milliwatts: f64) -> f64 {
    10.0 * milliwatts.max(0.000_1).log10()
}

#[cfg(test)]
mod tests {
    use railgate_model::{Fitness, Severity};

    use super::*;
    use crate::testing::{Case, case};

    fn periodic(fault: &str) -> Case {
        case(&format!("h100-sxm:{fault}@2")).phase(Phase::Periodic).with(|case| case.job = None)
    }

    #[test]
    fn each_symptom_warns_and_never_drains() {
        for (fault, says) in [
            ("optic-hot", "71.5 C, the module warns at 70; check airflow"),
            ("optic-dark", "receive power low (lane 2); clean or swap transceiver"),
            ("optic-dim", "lane 2 receives -9.2 dBm, the module warns at -10.0; clean or swap transceiver"),
            ("optic-uneven", "lanes differ by 4.3 dB; clean or swap transceiver"),
            ("optic-ageing", "bias 9.4 mA, the module warns at 9.5; plan a new transceiver"),
        ] {
            let case = periodic(fault).settings("[checks.optic]\naction = \"drain\"");
            assert_eq!(case.summary(), format!("degraded: warn optic@mlx5_2: {says}"));
            assert_eq!(case.of("optic"), [Severity::Warn], "{fault}");
        }
    }

    #[test]
    fn a_copper_cable_is_a_note_and_an_unreadable_module_unknown() {
        assert_eq!(periodic("optic-copper").summary(), "fit");
        assert_eq!(periodic("optic-copper").of("optic"), [Severity::Note]);
        assert_eq!(periodic("optic-unreadable").of("optic"), [Severity::Unknown]);
        let silent = periodic("optic-copper")
            .with(|case| case.now.extras.optics = Some(Part::Silent { after_ms: 10_000.0 }));
        assert_eq!((silent.of("optic"), silent.fitness()), (vec![Severity::Unknown], Fitness::Degraded));
        assert_eq!(case("h100-sxm:optic-dark@2").of("optic"), [], "not before a job");
    }

    #[test]
    fn zero_received_power_is_shown_as_minus_40_dbm() {
        let dark = periodic("optic-dim").with(|case| {
            if let Some(Part::Read { data, .. }) = &mut case.now.extras.optics
                && let railgate_model::Reading::Known(module) = &mut data[2].module
                && let Some(receive) = &mut module.receive_mw
            {
                receive.values[1] = 0.0;
            }
        });
        assert!(
            dark.summary().contains("lane 2 receives -40.0 dBm, the module warns at -10.0"),
            "{}",
            dark.summary()
        );
    }

    #[test]
    fn settings_out_of_range() {
        let config: crate::GateConfig =
            toml::from_str("[checks.optic]\nlane_spread_db = nan\nbias_margin_percent = 80.0").unwrap();
        assert_eq!(config.problems().len(), 2, "{:?}", config.problems());
    }
}
