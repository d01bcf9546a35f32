use std::collections::BTreeSet;
use std::time::Duration;

use railgate_model::{Action, Phase};
use serde::{Deserialize, Serialize};

use crate::{CHECKS, CheckInfo, Checks, Memory, PhasePolicy};

/// Whether verdicts have consequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Judge, log, change nothing.
    #[default]
    Report,
    /// Act on the verdict.
    Enforce,
}

/// What becomes of a check that this node has not known before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NewChecks {
    /// It is judged and counted, and nothing follows.
    #[default]
    Shadow,
    /// It acts by its default at once.
    Act,
}

/// `[gate]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GateConfig {
    /// `report` judges, logs and changes nothing; `enforce` acts. [`judge()`](crate::judge()) does not look at it.
    pub mode: Mode,
    /// All of the gate, from the first probe to the verdict. Must stay below Slurm's own limits.
    #[serde(with = "railgate_model::duration_text")]
    pub deadline: Duration,
    /// What becomes of a check that an upgrade brought, until the site sets its `action`.
    pub new_checks: NewChecks,
    /// How often something transient (a slow link, a hot moment) must be seen within its check's window before
    /// it drains; 1 drains at once.
    pub strikes: u32,
    /// Judge GPUs also for jobs that hold none.
    pub gpus_for_all: bool,
    /// Judge the fabric also for jobs that hold no GPU.
    pub fabric_for_all: bool,
    /// What follows before a job.
    pub prolog: PhasePolicy,
    /// What follows after a job.
    pub epilog: PhasePolicy,
    /// What follows beside jobs.
    pub periodic: PhasePolicy,
    /// One table per check: `[gate.checks.<id>]`.
    pub checks: Checks,
    /// Checks whose `action` the site's file sets. Not a key: the code that reads the file fills it.
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
    /// The table of one phase.
    pub fn policy(&self, phase: Phase) -> &PhasePolicy {
        match phase {
            Phase::Prolog => &self.prolog,
            Phase::Epilog => &self.epilog,
            Phase::Periodic => &self.periodic,
        }
    }

    /// The strongest thing that may follow from a check's findings on a node with this memory.
    pub fn action_of(&self, check: &CheckInfo, memory: &Memory) -> Action {
        let set = check.action(&self.checks);
        let untried = self.new_checks == NewChecks::Shadow
            && !check.always
            && memory.is_new(check.id)
            && !self.chosen.contains(check.id);
        if untried { set.min(Action::Shadow) } else { set }
    }

    /// When one of the site's own checks runs; those in whose directory nothing is to be run have an empty name.
    pub fn site_check_phases(&self, name: &str) -> &[Phase] {
        let set = &self.checks.site;
        if set.action == Action::Off { &[] } else { set.phases_of(name) }
    }

    /// The strongest thing that may follow from what one of the site's own checks says, on a node with this memory. Its
    /// own answer may name the class, so the configured one holds nothing back.
    pub fn action_of_site_check(&self, name: &str, memory: &Memory) -> Action {
        let phases = self.site_check_phases(name);
        let worst = self.checks.site.worst_of(name);
        let allowed = phases.iter().map(|phase| self.policy(*phase).action(worst)).max();
        let Some(allowed) = allowed else { return Action::Off };
        let check = CHECKS.iter().find(|check| check.id == "site");
        check.map_or(Action::Report, |check| self.action_of(check, memory)).min(allowed)
    }

    /// Everything that is out of range, each with its key.
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
    fn a_fresh_configuration_changes_nothing_and_has_no_problem() {
        let config: GateConfig = toml::from_str("").unwrap();
        assert_eq!(config, GateConfig::default());
        assert_eq!(config.mode, Mode::Report);
        assert_eq!(config.deadline, Duration::from_secs(30));
        assert_eq!(config.problems(), Vec::<String>::new());
    }

    #[test]
    fn it_can_be_written_and_read_again() {
        let config = GateConfig::default();
        let text = toml::to_string(&config).unwrap();
        assert!(text.contains("deadline = \"30s\""), "{text}");
        assert_eq!(toml::from_str::<GateConfig>(&text).unwrap(), config);
    }

    #[test]
    fn what_is_unknown_is_refused_with_what_is_known() {
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
    fn all_problems_are_told_at_once() {
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
