//! How long nodes could fail, by the size of their jobs, and how often the fleet's nodes did.

use railgate_model::UnixMillis;

use crate::event::Attempt;
use crate::history::{History, Node};
use crate::parallel;
use crate::settings::hours;

/// Smallest number of nodes of each stratum; the first one is a node without a job. Powers of four, so that a stratum has jobs of
/// about one size, and still enough of them.
pub(crate) const STRATA: [usize; 6] = [0, 1, 2, 9, 33, 129];

/// Returns the stratum of a number of nodes.
pub(crate) fn stratum(nodes: usize) -> usize {
    STRATA.iter().rposition(|from| *from <= nodes).unwrap_or(0)
}

/// A stretch of a node's service with jobs of one stratum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) from: UnixMillis,
    pub(crate) to: UnixMillis,
    pub(crate) stratum: usize,
}

/// When an attempt ran, and its stratum. Apart from the attempt, which is large: millions are looked up.
#[derive(Clone, Copy)]
struct Run {
    start: UnixMillis,
    end: UnixMillis,
    stratum: usize,
}

/// The service of all nodes.
#[derive(Clone, Debug)]
pub(crate) struct Exposure {
    by_node: Vec<Vec<Stretch>>,
}

/// Faults per hour of a node, by stratum.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rates {
    per_hour: [f64; STRATA.len()],
}

impl Exposure {
    pub(crate) fn new(history: &History) -> Exposure {
        let now = history.now;
        let run = |(attempt, members): (&Attempt, &Vec<usize>)| Run {
            start: attempt.start,
            end: attempt.end.map_or(now, |(end, _)| end).min(now),
            stratum: stratum(members.len()),
        };
        let runs: Vec<Run> = history.attempts.iter().zip(&history.members).map(run).collect();
        Exposure { by_node: parallel::map(&history.nodes, |node| of_node(node, &runs, now)) }
    }

    /// Hours of a node by stratum between two times.
    pub(crate) fn hours(&self, node: usize, from: UnixMillis, to: UnixMillis) -> [f64; STRATA.len()] {
        let mut sum = [0.0; STRATA.len()];
        let Some(stretches) = self.by_node.get(node) else { return sum };
        for stretch in &stretches[stretches.partition_point(|stretch| stretch.to <= from)..] {
            if stretch.from >= to {
                break;
            }
            sum[stretch.stratum] += hours(stretch.to.min(to).saturating_sub(stretch.from.max(from)));
        }
        sum
    }

    /// Expected faults of a node between two times if it were like the fleet.
    pub(crate) fn expected(&self, rates: &Rates, node: usize, from: UnixMillis, to: UnixMillis) -> f64 {
        rates.expected(&self.hours(node, from, to))
    }

    /// The fleet's rates between two times. `faults`: stratum of each fault in that time.
    ///
    /// A stratum with few hours is drawn towards the rate of all: as if it had seen one more fault at that rate.
    pub(crate) fn rates(&self, faults: &[usize], from: UnixMillis, to: UnixMillis) -> Rates {
        let nodes: Vec<usize> = (0..self.by_node.len()).collect();
        let mut sum = [0.0; STRATA.len()];
        for of_node in parallel::map(&nodes, |node| self.hours(*node, from, to)) {
            for (total, hours) in sum.iter_mut().zip(of_node) {
                *total += hours;
            }
        }
        let mut counts = [0.0; STRATA.len()];
        for stratum in faults {
            counts[*stratum] += 1.0;
        }
        let all_hours: f64 = sum.iter().sum();
        let all_faults: f64 = counts.iter().sum();
        let mut rates = Rates::default();
        if all_hours > 0.0 && all_faults > 0.0 {
            let all = all_faults / all_hours;
            for ((rate, count), hours) in rates.per_hour.iter_mut().zip(counts).zip(sum) {
                *rate = (count + 1.0) / (hours + 1.0 / all);
            }
            // The fleet as a whole expects what it saw.
            let scale = all_faults / rates.expected(&sum);
            for rate in &mut rates.per_hour {
                *rate *= scale;
            }
        }
        rates
    }
}

impl Rates {
    pub(crate) fn expected(&self, hours: &[f64; STRATA.len()]) -> f64 {
        self.per_hour.iter().zip(hours).map(|(rate, hours)| rate * hours).sum()
    }
}

/// The larger job counts where several run on a node. Time out of service is none of these.
fn of_node(known: &Node, runs: &[Run], now: UnixMillis) -> Vec<Stretch> {
    // Time, what changes (the stratum, or nothing for being out of service), and by how much.
    let mut changes: Vec<(UnixMillis, Option<usize>, i32)> = Vec::with_capacity(2 * known.attempts.len() + 1);
    for Run { start, end, stratum } in known.attempts.iter().filter_map(|index| runs.get(*index).copied()) {
        if start < end {
            changes.push((start, Some(stratum), 1));
            changes.push((end, Some(stratum), -1));
        }
    }
    for (from, to) in &known.out {
        changes.push((*from, None, 1));
        changes.push((*to, None, -1));
    }
    changes.push((now, None, 0));
    // Stable for its speed: most of them are in order.
    changes.sort();
    let (mut stretches, mut jobs, mut out): (Vec<Stretch>, _, _) = (Vec::new(), [0; STRATA.len()], 0);
    let mut from = known.first;
    for (time, what, by) in changes {
        let largest = jobs.iter().rposition(|jobs| *jobs > 0);
        // A drained node keeps its jobs until they end, and can fail until then.
        let in_service = out == 0 || largest.is_some();
        if time > from && in_service {
            let stratum = largest.unwrap_or(0);
            match stretches.last_mut() {
                Some(last) if last.to == from && last.stratum == stratum => last.to = time,
                _ => stretches.push(Stretch { from, to: time, stratum }),
            }
        }
        from = from.max(time);
        match what {
            Some(stratum) => jobs[stratum] += by,
            None => out += by,
        }
    }
    stretches
}
