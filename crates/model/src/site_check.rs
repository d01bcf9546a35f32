use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Class, Phase, Severity};

/// The result of one site check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SiteCheck {
    /// Id from the file name, for example `raid` for `raid.sh`. Empty if the directory itself is the problem.
    pub name: String,
    /// Path of the file.
    pub path: PathBuf,
    /// Outcome.
    pub outcome: SiteOutcome,
    /// Duration, milliseconds.
    pub took_ms: f64,
}

/// Returns whether the subject of a finding (`site-raid`, `site-raid@md0`) is that of a site check.
pub fn is_site_check(subject: &str) -> bool {
    let id = subject.split('@').next().unwrap_or_default();
    id == "site" || id.starts_with("site-")
}

/// How a site check ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SiteOutcome {
    /// It ended with these findings; none if it passed.
    Said(Vec<SiteFinding>),
    /// Not run, because a user other than root could have changed it; the text gives the reason.
    Refused(String),
    /// Not a check: the file is not executable, or its name is not a valid id.
    NotRun(String),
    /// It could not be started, was killed by a signal, or its output cannot be parsed.
    Failed(String),
    /// It exceeded its deadline; it was killed with all processes that it had started.
    Silent {
        /// One of these processes outlived SIGKILL: it hangs in the kernel.
        stuck: bool,
        /// The deadline, milliseconds.
        after_ms: f64,
    },
}

/// One finding of a site check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteFinding {
    /// The severity that it reports.
    pub severity: Severity,
    /// The class that it reports; `None` if it reports none.
    pub class: Option<Class>,
    /// The part, for example `md0`; empty for the whole node.
    pub part: String,
    /// The fault, in one line.
    pub what: String,
    /// The fix; empty if it reports none.
    pub fix: String,
    /// The evidence: `exit code 2`, or text that the check printed.
    pub proof: String,
}

/// A request to run site checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteRequest {
    /// Directory, normally `/etc/railgate/checks.d`.
    pub directory: PathBuf,
    /// The phase, passed to checks as `RAILGATE_PHASE`.
    pub phase: Phase,
    /// The job, passed to checks as `RAILGATE_JOB_ID`.
    pub job: Option<u32>,
    /// Deadline of checks that `named` does not list; `None` if these are not run.
    pub deadline: Option<Duration>,
    /// Deadlines of single checks, by name; `None` if the check is not run.
    pub named: BTreeMap<String, Option<Duration>>,
}

impl SiteRequest {
    /// Returns the deadline of a check; `None` if it is not run.
    pub fn deadline_of(&self, name: &str) -> Option<Duration> {
        self.named.get(name).copied().unwrap_or(self.deadline)
    }
}
