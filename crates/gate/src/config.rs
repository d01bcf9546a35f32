use std::collections::BTreeSet;
use std::time::Duration;

use railgate_model::{Action, Phase, SelfTestLength};
use serde::{Deserialize, Serialize};

use crate::{CHECKS, CheckInfo, Checks, Memory, PhasePolicy};

/// Shortest deadline of a check run with a full self-test of the GPUs: that takes at most 90 s, the rest of the run some more.
const FULL_SELF_TEST: Duration = Duration::from_secs(120);

/// Whether the gate acts on verdicts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Judge and log, without any action.
    #[default]
    Report,
    /// Act on the verdict.
    Enforce,
}

/// How the gate treats a check that is new on this node, after an upgrade.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NewChecks {
    /// The check is judged and counted, without consequences.
    #[default]
    Shadow,
    /// The check acts by its default at once.
    Act,
}

/// The table `[gate]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GateConfig {
    /// `report` only judges and logs; `enforce` also acts. The function [`judge()`](crate::judge()) ignores it.
    pub mode: Mode,
    /// Time limit for a whole gate run, from the first probe to the verdict. Must stay below Slurm's own limits.
    #[serde(with = "railgate_model::duration_text")]
    pub deadline: Duration,
    /// How a check that an upgrade brought is treated until the site sets its `action`.
    pub new_checks: NewChecks,
    /// How often a transient finding (for example a slow link or a high temperature) must be seen within its check's
    /// window before it drains. 1 drains at once.
    pub strikes: u32,
    /// Judge GPUs also for jobs without GPUs.
    pub gpus_for_all: bool,
    /// Judge the fabric also for jobs without GPUs.
    pub fabric_for_all: bool,
    /// Actions before a job.
    pub prolog: PhasePolicy,
    /// Actions after a job.
    pub epilog: PhasePolicy,
    /// Actions of the periodic check.
    pub periodic: PhasePolicy,
    /// One table per check: `[gate.checks.<id>]`.
    pub checks: Checks,
    /// Checks with an `action` in the site's configuration. Not a key: the code that reads the file fills it in.
    #[serde(skip)]
    pub chosen: BTreeSet<String>,
}

impl Default for GateConfig {
    fn default() -> Self {
        GateConfig {
            mode: Mode::Report,
            deadline: Duration::from_secs(30),
            new_checks: NewChecks::Shadow,
            strikes: 2,
            gpus_for_all: false,
            fabric_for_all: false,
            prolog: PhasePolicy::default(),
            epilog: PhasePolicy::default(),
            periodic: PhasePolicy::default(),
            checks: Checks::default(),
            chosen: BTreeSet::new(),
        }
    }
}

impl GateConfig {
    /// Returns the policy of a phase.
    pub fn policy(&self, phase: Phase) -> &PhasePolicy {
        match phase {
            Phase::Prolog => &self.prolog,
            Phase::Epilog => &self.epilog,
            Phase::Periodic => &self.periodic,
        }
    }

    /// Returns the strongest action that a finding of this check can have on a node with this gate state.
    pub fn action_of(&self, check: &CheckInfo, memory: &Memory) -> Action {
        let set = check.action(&self.checks);
        let untried = self.new_checks == NewChecks::Shadow
            && !check.always
            && memory.is_new(check.id)
            && !self.chosen.contains(check.id);
        if untried { set.min(Action::Shadow) } else { set }
    }

    /// Returns the phases in which a site check runs. Findings about the directory of site checks itself have an empty
    /// name.
    pub fn site_check_phases(&self, name: &str) -> &[Phase] {
        let set = &self.checks.site;
        if set.action == Action::Off { &[] } else { set.phases_of(name) }
    }

    /// Returns the strongest action that a finding of a site check can have on a node with this gate state. The check
    /// may set the class in its output, so the configured class does not limit the action.
    pub fn action_of_site_check(&self, name: &str, memory: &Memory) -> Action {
        let phases = self.site_check_phases(name);
        let worst = self.checks.site.worst_of(name);
        let allowed = phases.iter().map(|phase| self.policy(*phase).action(worst)).max();
        let Some(allowed) = allowed else { return Action::Off };
        let check = CHECKS.iter().find(|check| check.id == "site");
        check.map_or(Action::Report, |check| self.action_of(check, memory)).min(allowed)
    }

    /// Returns every setting that is out of range, each as `key: problem`.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.deadline < Duration::from_secs(1) || self.deadline > Duration::from_secs(600) {
            problems.push(format!(
                "gate.deadline: {} is not between 1s and 10m",
                humantime::format_duration(self.deadline)
            ));
        }
        if !(1..=10).contains(&self.strikes) {
            problems.push(format!("gate.strikes: {} is not within 1 to 10", self.strikes));
        }
        for phase in [Phase::Prolog, Phase::Epilog, Phase::Periodic] {
            problems.extend(self.policy(phase).problems(&format!("gate.{phase}")));
        }
        for check in CHECKS {
            let key = format!("gate.checks.{}", check.id);
            let action = check.action(&self.checks);
            if check.always && action < Action::Report {
                let name = if action == Action::Off { "off" } else { "shadow" };
                problems
                    .push(format!("{key}.action: cannot be '{name}' (take parts out of 'required' instead)"));
            }
            problems.extend(check.problems(&self.checks).into_iter().map(|why| format!("{key}.{why}")));
        }
        if self.checks.gpu_self_test.length == SelfTestLength::Full && self.deadline < FULL_SELF_TEST {
            problems.push(format!(
                "gate.checks.gpu-self-test.length: 'full' needs a gate.deadline of at least {}, not {}",
                humantime::format_duration(FULL_SELF_TEST),
                humantime::format_duration(self.deadline)
            ));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(toml: &str) -> String {
        toml::from_str::<GateConfig>(toml).unwrap_err().to_string()
    }

    #[test]
    fn the_default_configuration_only_reports_and_has_no_problem() {
        let config: GateConfig = toml::from_str("").unwrap();
        assert_eq!(config, GateConfig::default());
        assert_eq!(config.mode, Mode::Report);
        assert_eq!(config.deadline, Duration::from_secs(30));
        assert_eq!(config.problems(), Vec::<String>::new());
    }

    #[test]
    fn the_configuration_survives_a_round_trip_through_toml() {
        let config = GateConfig::default();
        let text = toml::to_string(&config).unwrap();
        assert!(text.contains("deadline = \"30s\""), "{text}");
        assert_eq!(toml::from_str::<GateConfig>(&text).unwrap(), config);
    }

    #[test]
    fn an_unknown_key_is_refused_with_a_list_of_the_known_ones() {
        let check = refused("[checks.gpu-ec]\naction = \"off\"");
        assert!(check.contains("unknown field `gpu-ec`") && check.contains("`gpu-ecc`"), "{check}");
        let key = refused("[checks.gpu-ecc]\nmax = 3");
        assert!(key.contains("unknown field `max`") && key.contains("`max_uncorrected`"), "{key}");
        let action = refused("[checks.gpu-ecc]\naction = \"kill\"");
        assert!(action.contains("`kill`") && action.contains("`drain`"), "{action}");
        let part = refused("[prolog]\nrequired = [\"gpu\"]");
        assert!(part.contains("`gpu`") && part.contains("`gpus`"), "{part}");
        assert!(refused("deadline = \"soon\"").contains("'soon' is not a duration"));
    }

    #[test]
    fn a_full_self_test_needs_a_long_deadline() {
        let problems = |deadline: &str| {
            let table = format!("deadline = \"{deadline}\"\n[checks.gpu-self-test]\nlength = \"full\"");
            toml::from_str::<GateConfig>(&table).unwrap().problems()
        };
        assert_eq!(
            problems("30s"),
            ["gate.checks.gpu-self-test.length: 'full' needs a gate.deadline of at least 2m, not 30s"]
        );
        assert_eq!(problems("2m"), Vec::<String>::new());
    }

    #[test]
    fn all_problems_are_returned_at_once() {
        let config: GateConfig = toml::from_str(
            "deadline = \"1h\"
            [prolog]
            unknown = \"drain\"
            fail = \"off\"
            [checks.part-silent]
            action = \"off\"
            [checks.ib-port]
            boot_grace = \"2h\"",
        )
        .unwrap();
        assert_eq!(
            config.problems(),
            [
                "gate.deadline: 1h is not between 1s and 10m",
                "gate.prolog.unknown: 'drain' is not possible (a finding that is only unknown never drains)",
                "gate.prolog.fail: 'off' would hide findings (set it for a check instead)",
                "gate.checks.ib-port.boot_grace: 2h is more than 1h",
                "gate.checks.part-silent.action: cannot be 'off' (take parts out of 'required' instead)",
            ]
        );
    }
}
