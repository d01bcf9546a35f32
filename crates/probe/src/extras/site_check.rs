//! Site checks: executables in `/etc/railgate/checks.d/`, each run in a child of its own.
//!
//! They run as root, so each must be a regular file, not a link, that only root can change ([`trusted`]).

mod output;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use railgate_child::Task;
use railgate_child::program::{Ended, KEPT_BYTES, Run, run_program};
use railgate_fsutil::{read, trusted};
use railgate_model::{Part, SiteCheck, SiteOutcome, SiteRequest};

use super::{Ask, Put};
use crate::answer::{millis, whole_millis};
use crate::calls::{Place, with_json};

const NAME: &str = "node-site-check";

pub(super) const TASK: Task = Task::new(NAME, |input| with_json(input, |input: Run| Ok(run(&input))));

/// More checks than this are assumed to be a mistake.
const MAX_CHECKS: usize = 64;

pub(super) fn begin(request: &SiteRequest, ask: &mut Ask<'_>) -> Put {
    let mut checks: Vec<(SiteCheck, Option<Place>)> = Vec::new();
    for check in site_checks(&request.directory) {
        let Some(deadline) = request.deadline_of(&check.name) else { continue };
        let place = (check.outcome == SiteOutcome::Said(Vec::new())).then(|| {
            let input =
                program(request, &check, deadline.min(ask.calls.program_deadline()), &ask.request.node);
            ask.calls.add(NAME, &input)
        });
        checks.push((check, place));
    }
    Box::new(move |snapshot, answers| {
        for (mut check, place) in checks {
            if let Some((place, took)) = place.and_then(|place| Some((place, answers.took(place)?))) {
                check.took_ms = millis(took);
                check.outcome = outcome(answers.part(Some(place)));
            }
            snapshot.extras.site_checks.push(check);
        }
    })
}

fn program(request: &SiteRequest, check: &SiteCheck, deadline: Duration, node: &str) -> Run {
    let mut environment = BTreeMap::new();
    let mut set = |name: &str, value: &str| environment.insert(name.to_owned(), value.to_owned());
    set("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    set("LC_ALL", "C");
    set("RAILGATE_NODE", node);
    set("RAILGATE_PHASE", request.phase.as_str());
    if let Some(job) = request.job {
        set("RAILGATE_JOB_ID", &job.to_string());
    }
    Run {
        path: check.path.clone(),
        arguments: Vec::new(),
        environment,
        deadline_ms: whole_millis(deadline),
        kept_bytes: KEPT_BYTES,
    }
}

fn outcome(part: Part<SiteOutcome>) -> SiteOutcome {
    match part {
        Part::Read { data, .. } => data,
        Part::Skipped => SiteOutcome::NotRun("not requested".to_owned()),
        Part::Failed { why, .. } => SiteOutcome::Failed(why),
        Part::Silent { after_ms } => SiteOutcome::Silent { stuck: false, after_ms },
        Part::Stuck { after_ms } => SiteOutcome::Silent { stuck: true, after_ms },
    }
}

/// Returns the files in the directory, by name; those that are not to be run have the reason. Empty if there is no
/// directory.
pub fn site_checks(directory: &Path) -> Vec<SiteCheck> {
    let whole = |outcome| vec![found(String::new(), directory.to_owned(), Some(outcome))];
    match trusted(directory) {
        Err(why) if why.is_absent() => return Vec::new(),
        Err(why) => return whole(SiteOutcome::Refused(why.to_string())),
        Ok(_) => {}
    }
    let names = match read::names(directory) {
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
            None => (String::new(), Some(SiteOutcome::NotRun("its name is not a valid id".to_owned()))),
        };
        if !name.is_empty() && checks.iter().any(|other| other.name == name) {
            outcome = Some(SiteOutcome::NotRun(format!("another check has the name {name}")));
        }
        checks.push(found(name, path, outcome));
    }
    checks
}

/// Runs a site check and returns its outcome.
fn run(input: &Run) -> SiteOutcome {
    match run_program(input) {
        Ended::Exited { code, out, err } => output::outcome_of(code, &out, &err),
        Ended::Killed { signal, .. } => SiteOutcome::Failed(format!("killed by signal {signal}")),
        Ended::Failed(why) => SiteOutcome::Failed(why),
        Ended::Silent { stuck, after_ms, .. } => SiteOutcome::Silent { stuck, after_ms },
    }
}

/// An entry that has not been run. A file that can be run has an empty outcome.
fn found(name: String, path: PathBuf, outcome: Option<SiteOutcome>) -> SiteCheck {
    SiteCheck { name, path, outcome: outcome.unwrap_or(SiteOutcome::Said(Vec::new())), took_ms: 0.0 }
}

/// Backup files of editors and packages, and files that an admin has disabled.
fn is_left_aside(file: &str) -> bool {
    const ENDS: [&str; 9] =
        ["~", ".bak", ".disabled", ".dpkg-dist", ".dpkg-new", ".dpkg-old", ".rpmnew", ".rpmorig", ".rpmsave"];
    file.starts_with('.')
        || file.starts_with('#')
        || file.starts_with("README")
        || ENDS.iter().any(|end| file.ends_with(end))
}

/// The id of a file: `Check_RAID.sh` gives `check-raid`. Lower case, digits and dashes, thirty characters.
fn id_of(file: &str) -> Option<String> {
    let stem = file.split_once('.').map_or(file, |(stem, _)| stem);
    let id = stem.to_ascii_lowercase().replace('_', "-");
    let good = id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && id.starts_with(|c: char| c.is_ascii_alphanumeric())
        && !id.ends_with('-')
        && id.len() <= 30;
    good.then_some(id)
}

/// Returns the reason why a file must not be run, if there is one.
fn examine(path: &Path) -> Option<SiteOutcome> {
    let about = match fs::symlink_metadata(path) {
        Ok(about) => about,
        Err(why) => return Some(SiteOutcome::Failed(why.to_string())),
    };
    if !about.file_type().is_file() {
        return Some(SiteOutcome::Refused("is not a regular file".to_owned()));
    }
    if let Err(why) = trusted(path) {
        return Some(SiteOutcome::Refused(if why.path == path { why.what } else { why.to_string() }));
    }
    (about.permissions().mode() & 0o100 == 0).then(|| SiteOutcome::NotRun("is not executable".to_owned()))
}

#[cfg(test)]
mod tests;
