//! The part of one node: prints root's check of it after a start.

use std::time::{Duration, Instant};

use railgate_rundir::StepCheck;
use serde::{Deserialize, Serialize};

use crate::output::say;
use crate::{Site, exit};

/// One line of JSON from a node.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Answer {
    /// The node, as Slurm names it.
    pub(crate) node: String,
    /// Root's check after this start.
    pub(crate) check: Option<StepCheck>,
    /// Why there is none.
    pub(crate) why: String,
}

/// The plugin ends the check after 12 s, and the step only then.
const LATEST: Duration = Duration::from_secs(3);
/// The same where srun does not wait for the end of that step.
const CHECKED: Duration = Duration::from_secs(14);
const INTERVAL: Duration = Duration::from_millis(100);

pub(crate) fn run(site: &Site, start: u32, job: u32, checked: bool) -> anyhow::Result<u8> {
    let run = site.places.run.join(format!("jobs/{job}/current"));
    let node = std::env::var("SLURMD_NODENAME").ok().filter(|name| !name.is_empty());
    let (check, why) = check(|| StepCheck::read(&run), start, checked);
    let answer = Answer { node: node.unwrap_or_else(|| site.node.clone()), check, why };
    say!("{}", serde_json::to_string(&answer)?)?;
    Ok(exit::OK)
}

/// Waits for the check of this start. `checked`: ignores the entry that no task failed.
fn check(
    read: impl Fn() -> std::io::Result<StepCheck>,
    start: u32,
    checked: bool,
) -> (Option<StepCheck>, String) {
    let until = Instant::now() + if checked { CHECKED } else { LATEST };
    loop {
        let why = match read() {
            Ok(check) if check.start == start && checked && check.fitness.is_none() => {
                "root has not checked it after the program failed".to_owned()
            }
            Ok(check) if check.start == start => return (Some(check), String::new()),
            Ok(other) => format!("root has checked it after start {}, not after this one", other.start),
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => {
                "root has not checked it after the step: srun could not start the step there, or railgate's SPANK \
                 plugin is not in use"
                    .to_owned()
            }
            Err(why) => format!("root's check: {why}"),
        };
        if Instant::now() >= until {
            return (None, why);
        }
        std::thread::sleep(INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::Fitness;

    use super::*;

    #[test]
    fn only_the_check_of_this_start_counts() {
        let of = |start| Ok(StepCheck::new(start, Some(Fitness::Fit), String::new()));
        assert!(check(|| of(2), 2, false).0.is_some());
        assert!(check(|| of(2), 2, true).0.is_some());
        let (found, why) = check(|| of(1), 2, false);
        assert!(found.is_none() && why.contains("after start 1"), "{why}");
    }
}
