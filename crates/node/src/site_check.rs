//! The site's own checks: executables in `/etc/railgate/checks.d/`, each run in a child of its own.
//!
//! Root runs them, so each must be a file that root alone can change ([`trusted`]), and no link.

mod program;
mod says;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Class, Phase, Severity, trusted};

pub(crate) use program::{Ended, Run, run, run_program};

/// A directory with more is a mistake.
const MAX_CHECKS: usize = 64;

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
    /// Somebody besides root could have changed it: not run, and why.
    Refused(String),
    /// No check: not executable, or its name is no id.
    NotRun(String),
    /// It could not be started, was killed by a signal, or said what nobody understands.
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
    /// How bad it says that it is.
    pub severity: Severity,
    /// Whose it says that it is; `None` where it does not say.
    pub class: Option<Class>,
    /// Which part: `md0`; empty for the whole node.
    pub part: String,
    /// One line.
    pub what: String,
    /// What to do; empty where it does not say.
    pub fix: String,
    /// Why we believe it: `exit code 2`, or its own words.
    pub proof: String,
}

/// Which of the site's checks to run, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteRequest {
    /// `/etc/railgate/checks.d`
    pub directory: PathBuf,
    /// When the gate looks; the checks find it in `RAILGATE_PHASE`.
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
    pub(crate) fn deadline_of(&self, name: &str) -> Option<Duration> {
        self.named.get(name).copied().unwrap_or(self.deadline)
    }
}

/// What lies in the directory, by name: each with why it is not to be run, if it is not. Empty where there is no
/// directory.
pub fn site_checks(directory: &Path) -> Vec<SiteCheck> {
    let whole = |outcome| vec![found(String::new(), directory.to_owned(), Some(outcome))];
    match trusted(directory) {
        Err(why) if why.is_absent() => return Vec::new(),
        Err(why) => return whole(SiteOutcome::Refused(why.to_string())),
        Ok(_) => {}
    }
    let names = match crate::sysfs::names(directory) {
        Ok(names) => names,
        Err(why) => return whole(SiteOutcome::Failed(why.to_string())),
    };
    let files: Vec<String> = names.into_iter().filter(|name| !is_left_aside(name)).collect();
    if files.len() > MAX_CHECKS {
        return whole(SiteOutcome::Failed(format!("{} files (at most {MAX_CHECKS})", files.len())));
    }
    let mut checks: Vec<SiteCheck> = Vec::new();
    for file in files {
        let path = directory.join(&file);
        let (name, mut outcome) = match id_of(&file) {
            Some(name) => (name, examine(&path)),
            None => (String::new(), Some(SiteOutcome::NotRun("its name is no id".to_owned()))),
        };
        if !name.is_empty() && checks.iter().any(|other| other.name == name) {
            outcome = Some(SiteOutcome::NotRun(format!("a second one with the name {name}")));
        }
        checks.push(found(name, path, outcome));
    }
    checks
}

/// Not yet run: what is to be run carries an empty answer.
fn found(name: String, path: PathBuf, outcome: Option<SiteOutcome>) -> SiteCheck {
    SiteCheck { name, path, outcome: outcome.unwrap_or(SiteOutcome::Said(Vec::new())), took_ms: 0.0 }
}

/// What editors and packages leave behind, and what an admin has put aside.
fn is_left_aside(file: &str) -> bool {
    const ENDS: [&str; 9] =
        ["~", ".bak", ".disabled", ".dpkg-dist", ".dpkg-new", ".dpkg-old", ".rpmnew", ".rpmorig", ".rpmsave"];
    file.starts_with('.')
        || file.starts_with('#')
        || file.starts_with("README")
        || ENDS.iter().any(|end| file.ends_with(end))
}

/// `Check_RAID.sh` is `check-raid`: lower case, digits and dashes, thirty characters.
fn id_of(file: &str) -> Option<String> {
    let stem = file.split_once('.').map_or(file, |(stem, _)| stem);
    let id = stem.to_ascii_lowercase().replace('_', "-");
    let good = id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && id.starts_with(|c: char| c.is_ascii_alphanumeric())
        && !id.ends_with('-')
        && id.len() <= 30;
    good.then_some(id)
}

/// Why a file is not to be run.
fn examine(path: &Path) -> Option<SiteOutcome> {
    let about = match fs::symlink_metadata(path) {
        Ok(about) => about,
        Err(why) => return Some(SiteOutcome::Failed(why.to_string())),
    };
    if !about.file_type().is_file() {
        return Some(SiteOutcome::Refused("is no regular file".to_owned()));
    }
    if let Err(why) = trusted(path) {
        return Some(SiteOutcome::Refused(if why.path == path { why.what } else { why.to_string() }));
    }
    (about.permissions().mode() & 0o100 == 0).then(|| SiteOutcome::NotRun("is not executable".to_owned()))
}

#[cfg(test)]
mod tests;
