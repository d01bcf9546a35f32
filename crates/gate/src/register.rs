use std::fmt;
use std::time::Duration;

use railgate_model::{Action, Class, Extra, FollowUp, Job, PartName, Phase};
use serde::{Deserialize, Serialize};

use crate::checks::Checks;
use crate::plan::Need;
use crate::report::Report;
use crate::scene::Scene;
use crate::settings::{Row, Table};

/// How much time a check may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Reads existing state; runs in every prolog.
    Quick,
    /// Exercises the hardware; runs only on request.
    Full,
}

/// For which jobs a check runs. Without a job (the periodic check) all of them run.
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

/// One check: the constants are its register entry, `judge` is the check.
pub(crate) trait Check {
    /// One line: what is wrong when it fires.
    const ABOUT: &'static str;
    /// What it reads, why it matters, and how to fix it.
    const EXPLAIN: &'static str;
    /// The usual class of its findings.
    const CLASS: Class;
    /// The parts of a snapshot it reads, wherever it runs.
    const PARTS: &'static [PartName];
    /// What it needs read besides its parts, and when.
    const NEEDS: &'static [Need<Self::Settings>] = &[];
    /// For which jobs.
    const SCOPE: Scope;
    /// In which phases.
    const PHASES: &'static [Phase] = &[Phase::Prolog, Phase::Epilog, Phase::Periodic];
    /// How much time it may cost.
    const LEVEL: Level = Level::Quick;
    /// What it costs beyond reading its parts.
    const COST: &'static str = "none";
    /// Its findings may pass by themselves (a slow link, a hot moment): a `fail` is only a `warn` until it was seen
    /// `[gate] strikes` times within this time. Losses and uncorrected errors have none.
    const TRANSIENT: Option<Duration> = None;
    /// It cannot be switched off.
    const ALWAYS: bool = false;
    /// Its table.
    type Settings: Table;

    /// Adds its findings to the report, including what it could not read ([`Report::value`] does that by itself).
    fn judge(scene: &Scene<'_>, set: &Self::Settings, out: &mut Report<'_>);
}

type ExtrasFn = fn(&Checks, Phase, Option<&Job>) -> Vec<Extra>;
type FollowUpsFn = fn(&Checks, &Scene<'_>) -> Vec<FollowUp>;
type JudgeFn = fn(&Checks, &Scene<'_>, &mut Report<'_>);

/// A row of the register.
#[derive(Clone, Copy, Serialize)]
pub struct CheckInfo {
    /// Kebab-case.
    pub id: &'static str,
    /// One line: what is wrong when it fires.
    pub about: &'static str,
    /// In which phases it runs.
    pub phases: &'static [Phase],
    /// How much time it may cost.
    pub level: Level,
    /// What it costs beyond reading its parts.
    pub cost: &'static str,
    /// The usual class of its findings.
    pub class: Class,
    /// For which jobs it runs.
    pub scope: Scope,
    /// The parts of a snapshot it reads.
    pub parts: &'static [PartName],
    /// How long the first sighting of a finding is remembered, if its findings may pass by themselves.
    #[serde(skip)]
    pub transient: Option<Duration>,
    /// What it reads, why it matters, and how to fix it.
    #[serde(skip)]
    pub explain: &'static str,
    /// It cannot be switched off.
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
    /// What the site set as the strongest action of this check.
    pub fn action(&self, checks: &Checks) -> Action {
        (self.action_of)(checks)
    }

    /// What is out of range in this check's table: `key: why`.
    pub fn problems(&self, checks: &Checks) -> Vec<String> {
        (self.problems_of)(checks)
    }
}

impl fmt::Debug for CheckInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckInfo").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Makes the typed table `[gate.checks]` and the register from one row per check, most telling first:
/// where two findings are equally bad, the one whose check stands higher decides.
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

        /// The register, most telling check first.
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
