//! The version of the installed fabric manager, which only the program itself reports.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use railgate_child::Task;
use railgate_child::program::{Ended, KEPT_BYTES, Run, run_program};
use railgate_fsutil::trusted;
use railgate_model::Reading;
use serde::{Deserialize, Serialize};

use super::{Ask, Put};
use crate::answer::whole_millis;
use crate::calls::with_json;

const NAME: &str = "node-fabric-manager";

pub(super) const TASK: Task =
    Task::new(NAME, |input| with_json(input, |input: Input| Ok(version(&input.program, input.deadline_ms))));

#[derive(Serialize, Deserialize)]
struct Input {
    program: PathBuf,
    deadline_ms: u64,
}

pub(super) fn begin(program: &Path, ask: &mut Ask<'_>) -> Put {
    let deadline_ms = whole_millis(ask.calls.program_deadline());
    let place = ask.calls.add(NAME, &Input { program: program.to_owned(), deadline_ms });
    Box::new(move |snapshot, answers| snapshot.extras.fabric_manager = Some(answers.reading(place)))
}

/// Runs `program --version` and returns the version; unsupported if there is no such program.
fn version(program: &Path, deadline_ms: u64) -> Reading<String> {
    if !program.exists() {
        return Reading::Unsupported;
    }
    let at = |why: String| Reading::Failed(format!("{}: {why}", program.display()));
    if let Err(why) = trusted(program) {
        return Reading::Failed(why.to_string());
    }
    let input = Run {
        path: program.to_owned(),
        arguments: vec!["--version".to_owned()],
        environment: BTreeMap::from([("LC_ALL".to_owned(), "C".to_owned())]),
        deadline_ms,
        kept_bytes: KEPT_BYTES,
    };
    match run_program(&input) {
        Ended::Exited { out, err, code } => match said(&out).or_else(|| said(&err)) {
            Some(version) => Reading::Known(version),
            None => at(format!("exit code {code}, and no version")),
        },
        Ended::Killed { signal, .. } => at(format!("killed by signal {signal}")),
        Ended::Failed(why) => at(why),
        Ended::Silent { after_ms, .. } => at(format!("no answer in {after_ms:.0} ms")),
    }
}

/// Parses `Fabric Manager version is : 580.159.04`.
fn said(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("version is")?;
    let version = rest.trim_start_matches([' ', '\t', ':']).split_whitespace().next()?;
    let plain = version.starts_with(|c: char| c.is_ascii_digit())
        && version.len() <= 32
        && version.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.');
    plain.then(|| version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_parsed() {
        assert_eq!(said("\n\tFabric Manager version is : 580.159.04\n"), Some("580.159.04".to_owned()));
        assert_eq!(said("Fabric Manager version is: 535.54.03"), Some("535.54.03".to_owned()));
        for other in ["", "version is", "version is : unknown", "version is : 1\u{1b}[2J", "580.159.04"] {
            assert_eq!(said(other), None, "{other}");
        }
        assert_eq!(version(Path::new("/no/such/program"), 1), Reading::Unsupported);
    }
}
