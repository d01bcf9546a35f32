use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Class, Phase, Severity};

/// What came of one of the site's own checks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SiteCheck {
    /// The file's name as an id: `raid` for `raid.sh`. Empty where the directory itself is the problem.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// What came of it.
    pub outcome: SiteOutcome,
    /// How long it ran, milliseconds.
    pub took_ms: f64,
}

/// Whether a finding's subject (`site-raid`, `site-raid@md0`) is that of a site's check.
pub fn is_site_check(subject: &str) -> bool {
    let id = subject.split('@').next().unwrap_or_default();
    id == "site" || id.starts_with("site-")
}

/// How a site's check ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SiteOutcome {
    /// It ended, and this is what it found; nothing where all is well.
    Said(Vec<SiteFinding>),
    /// A user other than root could have changed it: not run, and why.
    Refused(String),
    /// No check: not executable, or its name is not a valid id.
    NotRun(String),
    /// It could not be started, was killed by a signal, or printed output that cannot be parsed.
    Failed(String),
    /// No end by its deadline; it and all that it had started was killed.
    Silent {
        /// Something of it outlived SIGKILL: it hangs in the kernel.
        stuck: bool,
        /// The deadline, milliseconds.
        after_ms: f64,
    },
}

/// One thing that a site's check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteFinding {
    /// The severity that it reports.
    pub severity: Severity,
    /// The class that it reports; `None` if it reports none.
    pub class: Option<Class>,
    /// Which part: `md0`; empty for the whole node.
    pub part: String,
    /// One line.
    pub what: String,
    /// The fix; empty if it reports none.
    pub fix: String,
    /// Why we believe it: `exit code 2`, or its own words.
    pub proof: String,
}

/// Which of the site's checks to run, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteRequest {
    /// `/etc/railgate/checks.d`
    pub directory: PathBuf,
    /// When the gate runs; the checks read it from `RAILGATE_PHASE`.
    pub phase: Phase,
    /// The job, in `RAILGATE_JOB_ID`.
    pub job: Option<u32>,
    /// The deadline of those that `named` does not name; `None` does not run them.
    pub deadline: Option<Duration>,
    /// The deadlines of single ones, by name; `None` does not run it.
    pub named: BTreeMap<String, Option<Duration>>,
}

impl SiteRequest {
    /// How long the check may run; `None` where it is not to run.
    pub fn deadline_of(&self, name: &str) -> Option<Duration> {
        self.named.get(name).copied().unwrap_or(self.deadline)
    }
}
