//! Nodes whose clocks differ from those of the job's other nodes.
//!
//! The nodes of an attempt share two moments: Slurm starts all prologs when it has allocated the nodes, and all epilogs when the job
//! has ended. A prolog or an epilog can be late; a clock moves both by the same time.

use std::collections::BTreeMap;

use railgate_model::UnixMillis;
use railgate_node_report::NodeReport;

/// Prologs of one job start within this time, milliseconds.
const NORMAL: i64 = 3_000;
/// Greatest difference between the two moments, milliseconds.
const AGREE: i64 = 2_000;
/// With fewer nodes it is not known whose clock is wrong.
const FEWEST: usize = 3;

/// By node, how far its clock is ahead of those of the others, milliseconds; negative: behind. Nodes whose clocks agree, or of which that is
/// not known, are left out.
pub(crate) fn clock_errors(nodes: &[NodeReport]) -> BTreeMap<&str, i64> {
    let starts = median(nodes.iter().map(|node| node.start));
    let ends = median(nodes.iter().filter_map(|node| node.end));
    let error = |node: &NodeReport| {
        let start = difference(node.start, starts?);
        let end = node.end.zip(ends).map(|(end, ends)| difference(end, ends));
        match end {
            Some(end) if start.abs() > NORMAL && (start - end).abs() <= AGREE => Some((start + end) / 2),
            // No prolog starts before Slurm has allocated the nodes.
            None if start < -NORMAL => Some(start),
            _ => None,
        }
    };
    nodes.iter().filter_map(|node| Some((node.node.as_str(), error(node)?))).collect()
}

/// A time of a node, by the clocks of the others.
pub(crate) fn corrected(time: UnixMillis, error: i64) -> UnixMillis {
    time.saturating_add_signed(error.saturating_neg())
}

fn median(times: impl Iterator<Item = UnixMillis>) -> Option<UnixMillis> {
    let mut times: Vec<UnixMillis> = times.collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied().filter(|_| times.len() >= FEWEST)
}

fn difference(time: UnixMillis, of: UnixMillis) -> i64 {
    let size = i64::try_from(time.abs_diff(of)).unwrap_or(i64::MAX);
    if time < of { -size } else { size }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: UnixMillis = 1_700_000_000_000;
    const END: UnixMillis = START + 3_600_000;

    fn attempt(nodes: Vec<NodeReport>) -> crate::Attempt {
        let mut attempt = crate::testing::story().attempts.remove(0);
        attempt.nodes = nodes;
        attempt.start = attempt.nodes.iter().map(|node| node.start).min();
        attempt.end = attempt.nodes.iter().filter_map(|node| node.end).max();
        attempt
    }

    #[test]
    fn the_timeline_has_the_times_of_the_other_clocks() {
        let mut nodes = nodes(&[(0, Some(0)), (41_000, Some(41_000)), (0, Some(0))]);
        let hang = railgate_node_report::testing::hang(END - 60_000 + 41_000);
        nodes.get_mut(1).unwrap().hangs = Some(railgate_node_report::Hangs { list: vec![hang], more: 0 });
        let events = crate::timeline::timeline(&[attempt(nodes)]);
        let of_node: Vec<(UnixMillis, &str)> = events
            .iter()
            .filter(|event| event.node == "gn1")
            .map(|event| (event.time, event.what.as_str()))
            .collect();
        assert!(of_node.iter().any(|(time, what)| *time == START
            && *what == "the clock is 41.0 s ahead of those of the job's other nodes; times of this node are corrected here"));
        assert!(
            of_node.iter().any(|(time, what)| *time == END - 60_000 && what.starts_with("the job hangs: ")),
            "{of_node:?}"
        );
        let end = events.iter().find(|event| event.what.starts_with("the job ended")).unwrap();
        assert_eq!((end.time, end.node.as_str()), (END, "all nodes"));
    }

    /// Reports whose prologs and epilogs begin so many milliseconds after those of the first one.
    fn nodes(of: &[(i64, Option<i64>)]) -> Vec<NodeReport> {
        let first = crate::testing::story().attempts.remove(0).nodes.remove(0);
        let node = |(at, (start, end)): (usize, &(i64, Option<i64>))| {
            let mut node = first.clone();
            node.node = format!("gn{at}");
            node.start = START.saturating_add_signed(*start);
            node.end = end.map(|end| END.saturating_add_signed(end));
            node
        };
        of.iter().enumerate().map(node).collect()
    }

    fn errors(of: &[(i64, Option<i64>)]) -> Vec<(String, i64)> {
        clock_errors(&nodes(of)).into_iter().map(|(node, error)| (node.to_owned(), error)).collect()
    }

    #[test]
    fn a_clock_is_wrong_if_both_moments_are_off_by_the_same_time() {
        let ahead = [(0, Some(0)), (41_000, Some(41_400)), (900, Some(1_200)), (300, Some(200))];
        assert_eq!(errors(&ahead), [("gn1".to_owned(), 40_150)]);
        let behind = [(0, Some(0)), (-120_000, Some(-119_000)), (0, Some(0))];
        assert_eq!(errors(&behind), [("gn1".to_owned(), -119_500)]);
        assert_eq!(corrected(START + 50_000, 40_600), START + 9_400);
        assert_eq!(corrected(START, -119_500), START + 119_500);
    }

    #[test]
    fn a_late_prolog_or_epilog_is_no_wrong_clock() {
        assert_eq!(errors(&[(0, Some(0)), (41_000, Some(0)), (0, Some(0))]), []);
        assert_eq!(errors(&[(0, Some(0)), (0, Some(60_000)), (0, Some(0))]), []);
        assert_eq!(errors(&[(0, None), (41_000, None), (0, None)]), [], "the job runs: it may be late");
        assert_eq!(errors(&[(0, None), (-41_000, None), (0, None)]), [("gn1".to_owned(), -41_000)]);
        assert_eq!(errors(&[(0, Some(0)), (41_000, Some(41_000))]), [], "of two clocks either may be wrong");
    }
}
