use std::fmt;
use std::time::Duration;

use railgate_model::{Action, Class, Extra, FollowUp, Job, PartName, Phase};
use serde::{Deserialize, Serialize};

use crate::checks::Checks;
use crate::plan::Need;
use crate::report::Report;
use crate::scene::Scene;
use crate::settings::{Row, Table};

/// How much a check costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Reads existing state; runs in every prolog.
    Quick,
    /// Exercises the hardware; runs only on request.
    Full,
}

/// The jobs for which a check runs. Without a job (the periodic check) all checks run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// Jobs that hold GPUs, or all with `[gate] gpus_for_all`.
    Gpus,
    /// Jobs that hold GPUs, or all with `[gate] fabric_for_all`.
    Fabric,
    /// Every job.
    Always,
}

/// One check: the constants are its register entry, `judge` implements it.
pub(crate) trait Check {
    /// One line: the fault that the check finds.
    const ABOUT: &'static str;
    /// What the check reads, why it matters, and how to fix the fault.
    const EXPLAIN: &'static str;
    /// The usual class of its findings.
    const CLASS: Class;
    /// The parts of a snapshot that the check always reads.
    const PARTS: &'static [PartName];
    /// Readings besides the parts, and the phases in which they are needed.
    const NEEDS: &'static [Need<Self::Settings>] = &[];
    /// The jobs for which it runs.
    const SCOPE: Scope;
    /// The phases in which it runs.
    const PHASES: &'static [Phase] = &[Phase::Prolog, Phase::Epilog, Phase::Periodic];
    /// How much it costs.
    const LEVEL: Level = Level::Quick;
    /// Its cost beyond reading its parts.
    const COST: &'static str = "none";
    /// Set if the findings can be transient (for example a slow link or a high temperature): a `fail` stays a `warn`
    /// until it was seen `[gate] strikes` times within this time. `None` for losses and uncorrected errors.
    const TRANSIENT: Option<Duration> = None;
    /// The check cannot be switched off.
    const ALWAYS: bool = false;
    /// The settings of the check.
    type Settings: Table;

    /// Adds findings to the report, including readings that failed ([`Report::value`] adds those itself).
    fn judge(scene: &Scene<'_>, set: &Self::Settings, out: &mut Report<'_>);
}

type ExtrasFn = fn(&Checks, Phase, Option<&Job>) -> Vec<Extra>;
type FollowUpsFn = fn(&Checks, &Scene<'_>) -> Vec<FollowUp>;
type JudgeFn = fn(&Checks, &Scene<'_>, &mut Report<'_>);

/// A row of the register.
#[derive(Clone, Copy, Serialize)]
pub struct CheckInfo {
    /// Id in kebab-case, for example `gpu-lost`.
    pub id: &'static str,
    /// One line: the fault that the check finds.
    pub about: &'static str,
    /// The phases in which it runs.
    pub phases: &'static [Phase],
    /// How much it costs.
    pub level: Level,
    /// Its cost beyond reading its parts.
    pub cost: &'static str,
    /// The usual class of its findings.
    pub class: Class,
    /// The jobs for which it runs.
    pub scope: Scope,
    /// The parts of a snapshot it reads.
    pub parts: &'static [PartName],
    /// The time within which a transient finding must be seen again.
    #[serde(skip)]
    pub transient: Option<Duration>,
    /// What the check reads, why it matters, and how to fix the fault.
    #[serde(skip)]
    pub explain: &'static str,
    /// The check cannot be switched off.
    #[serde(skip)]
    pub always: bool,
    #[serde(skip)]
    pub(crate) action_of: fn(&Checks) -> Action,
    #[serde(skip)]
    pub(crate) rows: fn() -> Vec<Row>,
    #[serde(skip)]
    pub(crate) problems_of: fn(&Checks) -> Vec<String>,
    #[serde(skip)]
    pub(crate) extras: ExtrasFn,
    #[serde(skip)]
    pub(crate) follow_ups: FollowUpsFn,
    #[serde(skip)]
    pub(crate) judge: JudgeFn,
}

impl CheckInfo {
    /// Returns the strongest action that the site set for this check.
    pub fn action(&self, checks: &Checks) -> Action {
        (self.action_of)(checks)
    }

    /// Returns the settings of this check that are out of range, each as `key: problem`.
    pub fn problems(&self, checks: &Checks) -> Vec<String> {
        (self.problems_of)(checks)
    }
}

impl fmt::Debug for CheckInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckInfo").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Defines the typed table `[gate.checks]` and the register from one row per check. More specific checks come first: of
/// two equally severe findings, that of the first check decides.
macro_rules! register {
    ($($module:ident::$check:ident = $id:literal,)+) => {
        /// `[gate.checks]`: one table per check. Unknown ids are refused with the known ones.
        #[derive(Clone, Debug, Default, PartialEq, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Checks {
            $(
                #[doc = concat!("`[gate.checks.", $id, "]`")]
                #[serde(rename = $id)]
                pub $module: $module::Settings,
            )+
        }

        /// The register, most specific check first.
        pub static CHECKS: &[$crate::register::CheckInfo] = &[
            $(
                $crate::register::CheckInfo {
                    id: $id,
                    about: <$module::$check as $crate::register::Check>::ABOUT,
                    phases: <$module::$check as $crate::register::Check>::PHASES,
                    level: <$module::$check as $crate::register::Check>::LEVEL,
                    cost: <$module::$check as $crate::register::Check>::COST,
                    class: <$module::$check as $crate::register::Check>::CLASS,
                    scope: <$module::$check as $crate::register::Check>::SCOPE,
                    parts: <$module::$check as $crate::register::Check>::PARTS,
                    explain: <$module::$check as $crate::register::Check>::EXPLAIN,
                    transient: <$module::$check as $crate::register::Check>::TRANSIENT,
                    always: <$module::$check as $crate::register::Check>::ALWAYS,
                    action_of: |checks| $crate::settings::Table::action(&checks.$module),
                    rows: || $crate::settings::Table::rows(&$module::Settings::default()),
                    problems_of: |checks| $crate::settings::Table::problems(&checks.$module),
                    extras: |checks, phase, job| {
                        let needs = <$module::$check as $crate::register::Check>::NEEDS;
                        $crate::plan::extras(needs, &checks.$module, phase, job)
                    },
                    follow_ups: |checks, scene| {
                        let needs = <$module::$check as $crate::register::Check>::NEEDS;
                        $crate::plan::devices(needs, &checks.$module, scene)
                    },
                    judge: |checks, scene, out| {
                        <$module::$check as $crate::register::Check>::judge(scene, &checks.$module, out);
                    },
                },
            )+
        ];
    };
}

pub(crate) use register;
