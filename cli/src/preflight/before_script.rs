//! The preflight that `--railgate-gate=preflight` asks for: whether the batch script starts.
//!
//! Only a node that is named keeps the script from starting, since the job can be moved away from it. A path, a part that could not be
//! tested, and errors of railgate let it start, with a line in the job's output.

use super::lines::Order;
use super::results::Results;
use super::{Args, START, print, tested};
use crate::output::complain;
use crate::{Site, exit};

/// Returns [`exit::UNFIT`] if the script must not start.
pub(super) fn run(site: &Site, args: &Args) -> anyhow::Result<u8> {
    let (mut results, steps) = match tested(site, args) {
        Ok(done) => done,
        Err(why) => {
            complain!("preflight: {why:#}; the script starts");
            return Ok(exit::OK);
        }
    };
    print(args, &results)?;
    let marks = results.marks();
    if marks.is_empty() {
        if let Some(line) = starts(&results) {
            complain!("preflight: {line}");
        }
        return Ok(exit::OK);
    }
    let before = results.problems.len();
    // Without its mark, the epilog of the node knows nothing about it, and the job is not moved away from it.
    if let Err(why) = steps.run(&Order::Named { nodes: marks.clone() }, START, &mut |line| results.hear(line))
    {
        complain!("preflight: {why:#}");
    }
    for problem in results.problems.iter().skip(before) {
        complain!("preflight: {} is not excluded: {}", problem.node, problem.why);
    }
    let names: Vec<String> = marks.into_iter().map(|(node, _)| node).collect();
    complain!(
        "preflight: the script is not started on {}. With --railgate-requeue=auto the job is requeued and moved within its budget; \
         otherwise it ends here.",
        railgate_slurm::hostlist::compress(&names)
    );
    Ok(exit::UNFIT)
}

/// The line about a script that starts although not all is good.
fn starts(results: &Results) -> Option<&'static str> {
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
