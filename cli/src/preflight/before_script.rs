//! The preflight that `--railgate-gate=preflight` asks for: whether the batch script starts.
//!
//! Only a node that is named with certainty keeps the script from starting, since the job can be moved away from it. A path, a part that could not be
//! tested, and errors of railgate let it start, with a line in the job's output.

use std::time::{Duration, Instant};

use super::lines::Order;
use super::results::Results;
use super::steps::Steps;
use super::{Args, START, print, tested};
use crate::output::complain;
use crate::{Site, exit};

/// A node is named. The plugin waits for this code: 1 is also that of a program which the dynamic loader cannot start.
const NAMED: u8 = railgate_rundir::PREFLIGHT_NAMED;
/// Time for all tests. The plugin ends this program after 480 s; 60 s are left for the step that writes the marks, and to print.
const TESTS: Duration = Duration::from_secs(420);

/// Returns [`NAMED`] if the script must not start.
pub(super) fn run(site: &Site, args: &Args) -> anyhow::Result<u8> {
    let (mut results, steps) = match tested(site, args, Some(Instant::now() + TESTS)) {
        Ok(done) => done,
        Err(why) => {
            complain!("preflight: {why:#}; the script starts");
            return Ok(exit::OK);
        }
    };
    let marks = results.marks();
    // The marks come before what is printed: the disk of the job's output may be full.
    let unmarked = mark(&steps, &mut results, &marks);
    if let Err(why) = print(args, &results) {
        complain!("preflight: the results are not printed: {why:#}");
    }
    if marks.is_empty() {
        if let Some(line) = starts(&results) {
            complain!("preflight: {line}");
        }
        return Ok(exit::OK);
    }
    for line in unmarked {
        complain!("preflight: {line}");
    }
    let names: Vec<String> = marks.into_iter().map(|(node, _)| node).collect();
    complain!(
        "preflight: the script is not started on {}. Slurm may requeue the job without it, if --railgate-requeue and \
         --open-mode=append were given and the site allows it; otherwise it ends here with exit code 1 (docs/resume.md).",
        railgate_slurm::hostlist::compress(&names)
    );
    Ok(NAMED)
}

/// Lets each named node keep its mark. Without it, the epilog of the node knows nothing, and the job is not moved away from it. Returns
/// the problems.
fn mark(steps: &Steps, results: &mut Results, marks: &[(String, String)]) -> Vec<String> {
    if marks.is_empty() {
        return Vec::new();
    }
    let before = results.problems.len();
    let failed = steps.run(&Order::Named { nodes: marks.to_vec() }, START, &mut |line| results.hear(line));
    let problems = results.problems.split_off(before);
    let missing = problems.iter().map(|problem| format!("{} is not excluded: {}", problem.node, problem.why));
    failed.into_iter().chain(missing).collect()
}

/// The line about a script that starts although not all is good.
fn starts(results: &Results) -> Option<&'static str> {
    if !results.bad_nodes().is_empty() {
        return Some("a node is named, but not certainly enough to stop the script; the script starts");
    }
    match (results.names_something(), results.is_incomplete()) {
        (true, _) => Some("no single node explains it; the script starts"),
        (false, true) => Some("a part could not be tested; the script starts"),
        (false, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preflight::lines::Line;

    #[test]
    fn a_part_without_a_result_lets_the_script_start() {
        let mut results = Results::new("7".to_owned(), vec!["gn1".to_owned()]);
        assert_eq!(starts(&results), None);
        results.hear(Line::Problem { node: "gn1".to_owned(), why: "no driver".to_owned() });
        assert_eq!(starts(&results), Some("a part could not be tested; the script starts"));
        assert!(results.marks().is_empty());
    }
}
