//! The site's own checks: executables in `/etc/railgate/checks.d/`, each run in a child of its own.
//!
//! Root runs them, so each must be a file that root alone can change ([`trusted`]), and no link.

mod says;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use railgate_child::program::{Ended, Run, run_program};
use railgate_fsutil::{read, trusted};
use railgate_model::{SiteCheck, SiteOutcome};

/// A directory with more is a mistake.
const MAX_CHECKS: usize = 64;

/// What lies in the directory, by name: each with why it is not to be run, if it is not. Empty where there is no
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

/// Runs a site's check.
pub(crate) fn run(input: &Run) -> SiteOutcome {
    match run_program(input) {
        Ended::Exited { code, out, err } => says::outcome_of(code, &out, &err),
        Ended::Failed(why) => SiteOutcome::Failed(why),
        Ended::Silent { stuck, after_ms } => SiteOutcome::Silent { stuck, after_ms },
    }
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
        return Some(SiteOutcome::Refused("is not a regular file".to_owned()));
    }
    if let Err(why) = trusted(path) {
        return Some(SiteOutcome::Refused(if why.path == path { why.what } else { why.to_string() }));
    }
    (about.permissions().mode() & 0o100 == 0).then(|| SiteOutcome::NotRun("is not executable".to_owned()))
}

#[cfg(test)]
mod tests;
