//! Valid names for `--railgate-profile`: the built-in profiles and those of the site's configuration file.
//!
//! Only the nodes know what a name stands for. Login nodes have the same configuration file; if it is missing or
//! unreadable, any name of valid form is passed on, and the prolog reports in the job's output whether it exists.

use std::borrow::Cow;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use railgate_rundir::ProfileName;

const FILE: &str = "/etc/railgate/railgate.toml";

/// Longest configuration file that is read, as in the programs.
const MOST_BYTES: u64 = 1 << 20;

/// Profiles of every site; a test compares them with those of the nodes.
const BUILT_IN: [&str; 3] = ["debug", "latency", "throughput"];

/// Returns the name if it is valid.
///
/// # Errors
/// The name is invalid; the message describes the valid ones.
pub(crate) fn check(text: &str) -> Result<String, Cow<'static, str>> {
    let name = text.parse::<ProfileName>().map_err(|why| why.0)?;
    if BUILT_IN.contains(&name.as_str()) {
        return Ok(name.to_string());
    }
    match of_site(Path::new(FILE)) {
        Some(names) if !names.iter().any(|known| known == name.as_str()) => {
            let mut known: Vec<String> = BUILT_IN.into_iter().map(str::to_owned).chain(names).collect();
            known.sort();
            known.dedup();
            Err(format!("{} ({FILE})", one_of(&known)).into())
        }
        _ => Ok(name.to_string()),
    }
}

/// Formats a list as `a, b or c`.
fn one_of(names: &[String]) -> String {
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

/// All names of profiles in the site's file, for any node; `None` if unknown.
fn of_site(file: &Path) -> Option<Vec<String>> {
    let mut text = String::new();
    let size = File::open(file).ok()?.take(MOST_BYTES).read_to_string(&mut text).ok()?;
    if u64::try_from(size).ok()? == MOST_BYTES {
        return None;
    }
    let site: toml::Table = text.parse().ok()?;
    let nodes = site.get("node").and_then(toml::Value::as_array).into_iter().flatten();
    let tables = std::iter::once(site.get("rails")).chain(nodes.map(|node| node.get("rails")));
    let mut names = Vec::new();
    for rails in tables.flatten() {
        let profiles = rails.get("profiles").and_then(toml::Value::as_table).into_iter().flatten();
        names.extend(profiles.map(|(name, _)| name.clone()));
        let rules = rails.get("rules").and_then(toml::Value::as_array).into_iter().flatten();
        names.extend(rules.filter_map(|rule| Some(rule.get("profile")?.as_str()?.to_owned())));
    }
    Some(names)
}
