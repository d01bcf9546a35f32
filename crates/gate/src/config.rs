use std::time::Duration;

use railgate_node::{Action, Phase};
use serde::{Deserialize, Serialize};

use crate::{CHECKS, Checks, PhasePolicy};

/// Whether verdicts have consequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Judge, log, change nothing.
    #[default]
    Report,
    /// Do what the verdict says.
    Enforce,
}

/// `[gate]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GateConfig {
    /// `report` judges, logs and changes nothing; `enforce` acts. [`judge`](crate::judge) does not look at it.
    pub mode: Mode,
    /// All of the gate, from the first probe to the verdict. Must stay below Slurm's own limits.
    #[serde(with = "crate::duration")]
    pub deadline: Duration,
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
}

impl Default for GateConfig {
    fn default() -> Self {
        GateConfig {
            mode: Mode::Report,
            deadline: Duration::from_secs(30),
            gpus_for_all: false,
            fabric_for_all: false,
            prolog: PhasePolicy::default(),
            epilog: PhasePolicy::default(),
            periodic: PhasePolicy::default(),
            checks: Checks::default(),
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

    /// Everything that is out of range, each with its key.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.deadline < Duration::from_secs(1) || self.deadline > Duration::from_secs(600) {
            problems.push(format!(
                "gate.deadline: {} is not between 1s and 10m",
                humantime::format_duration(self.deadline)
            ));
        }
        for phase in [Phase::Prolog, Phase::Epilog, Phase::Periodic] {
            problems.extend(self.policy(phase).problems(&format!("gate.{phase}")));
        }
        for check in CHECKS {
            let key = format!("gate.checks.{}", check.id);
            if check.always && check.action(&self.checks) == Action::Off {
                problems
                    .push(format!("{key}.action: cannot be 'off' (take parts out of 'required' instead)"));
            }
            problems.extend(check.problems(&self.checks).into_iter().map(|why| format!("{key}.{why}")));
        }
        problems
    }
}
