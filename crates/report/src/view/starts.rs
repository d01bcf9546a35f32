//! The starts of `railgate launch` inside one attempt. Self-reported by launch, which runs as the job's user.

use std::fmt;

use railgate_model::Allocation;
use railgate_node_report::plain::{clock, float, plain, span};
use railgate_node_report::{LaunchStart, Launched, NodeReport};

use super::Sentence;
use crate::{Attempt, EndKind, JobReport, MOST_STARTS};

/// Most lines on the first screen.
const MOST_ROWS: usize = 4;

/// The newest starts of all attempts for the first screen; empty if the program was started once in each attempt.
pub(super) fn rows(report: &JobReport) -> Vec<String> {
    let many = report.attempts.len() > 1;
    let mut rows: Vec<String> = Vec::new();
    for attempt in &report.attempts {
        let Some(launched) = attempt.launched() else { continue };
        let of = if many { format!("attempt {}: ", attempt.attempt) } else { String::new() };
        let mut told: Vec<String> = Vec::new();
        if launched.starts.len() > 1 {
            told.extend(lines(attempt, launched).chain([sum(attempt, launched)]));
        }
        told.extend(unused(attempt));
        rows.extend(told.iter().map(|line| plain(&format!("{of}{line}"))));
    }
    let older = rows.len().saturating_sub(MOST_ROWS);
    if older > 0 {
        rows.drain(..older);
        rows.insert(0, format!("{older} earlier lines are under the attempts"));
    }
    rows
}

/// Each start with its end and the reason, and the time between them; empty without launch, and if the only start ran on all nodes.
pub(super) fn starts(attempt: &Attempt) -> Vec<Sentence> {
    let Some(launched) = attempt.launched() else {
        return Vec::new();
    };
    let all = &launched.starts;
    let is_plain = |start: &LaunchStart| start.spares.is_empty() && start.left_out.is_empty();
    if all.len() < 2 && all.iter().all(is_plain) {
        return Vec::new();
    }
    let older = all.len().saturating_sub(MOST_STARTS);
    let mut told: Vec<String> = Vec::new();
    if older > 0 {
        told.push(format!("{older} earlier ones are not listed"));
    }
    told.extend(lines(attempt, launched).skip(older));
    told.push(sum(attempt, launched));
    told.extend(unused(attempt));
    told.into_iter().map(Sentence::from).collect()
}

fn lines<'a>(attempt: &'a Attempt, launched: &'a Launched) -> impl Iterator<Item = String> + 'a {
    let runs = attempt.ended.kind == EndKind::Running;
    let costs = costs(attempt, launched);
    launched.starts.iter().zip(costs).map(move |(start, cost)| line(start, cost.as_ref(), runs))
}

fn line(start: &LaunchStart, cost: Option<&Cost>, runs: bool) -> String {
    let spares = if start.spares.is_empty() { String::new() } else { format!(", spare {}", start.spares) };
    let order = if start.order.is_empty() {
        String::new()
    } else {
        format!(" (ranks in the order {})", start.order.join(","))
    };
    let length = match start.ended {
        Some(end) => format!("{}, ", span(float(end.saturating_sub(start.began)) / 1000.0)),
        None => String::new(),
    };
    let end = match (start.code, &start.why) {
        (None, _) if runs => "no end so far".to_owned(),
        (None, _) => "no end is recorded".to_owned(),
        (Some(code), None) => format!("exit code {code}"),
        (Some(code), Some(why)) => format!("exit code {code}: {why}"),
    };
    // The bounds of a program that does not report are those of all starts together.
    let cost = cost.filter(|cost| cost.is_exact).map(|cost| format!("{cost}, ")).unwrap_or_default();
    format!(
        "start {} at {} on {}{order}{spares}: {length}{cost}{end}",
        start.number,
        clock(start.began),
        start.nodes
    )
}

/// Spares that no start used.
fn unused(attempt: &Attempt) -> Option<String> {
    const MOST_NAMES: usize = 4;
    let names = attempt.spares.iter().take(MOST_NAMES).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = match attempt.spares.len().saturating_sub(MOST_NAMES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let (were, their) = match attempt.spares.len() {
        0 => return None,
        1 => ("was a spare", "its"),
        _ => ("were spares", "their"),
    };
    Some(format!(
        "{names}{more} {were} in all starts: {their} GPUs are not in MFU, HFU and the shares of time"
    ))
}

/// What a start cost, from the end of the one before it (the first: from the attempt's prolog) to its own end.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cost {
    whole_s: f64,
    /// Time in steps not done before; if the program does not report its steps, the time that it ran, which is more.
    productive_s: f64,
    is_exact: bool,
    /// GPU-hours of all GPUs of the attempt, less those of productive time on the start's nodes. Absent: not known.
    lost_gpu_hours: Option<f64>,
}

impl fmt::Display for Cost {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (most, least) = if self.is_exact { ("", "") } else { ("at most ", "at least ") };
        write!(out, "ETTR {most}{:.1} %", 100.0 * self.productive_s / self.whole_s)?;
        match self.lost_gpu_hours {
            Some(lost) => write!(out, ", {least}{lost:.2} GPU-hours lost"),
            None => Ok(()),
        }
    }
}

/// One for each start; `None`: it has no end, or took no time.
fn costs(attempt: &Attempt, launched: &Launched) -> Vec<Option<Cost>> {
    let (nodes, gpus) = gpus_per_node(attempt);
    let mut before = attempt.start;
    let cost = |start: &LaunchStart| {
        let began = before.map_or(start.began, |before| before.min(start.began));
        let ended = start.ended?;
        before = Some(ended);
        let seconds = |from: u64| float(ended.saturating_sub(from)) / 1000.0;
        let whole_s = Some(seconds(began)).filter(|whole| *whole > 0.0)?;
        let reported = productive(attempt, launched, start.number);
        let productive_s = reported.unwrap_or_else(|| seconds(start.began)).min(whole_s);
        let used = u32::try_from(start.node_count).ok().filter(|count| (1..=nodes).contains(count));
        let lost_gpu_hours = gpus.zip(used).map(|(per_node, used)| {
            per_node * (f64::from(nodes) * whole_s - f64::from(used) * productive_s) / 3600.0
        });
        Some(Cost { whole_s, productive_s, is_exact: reported.is_some(), lost_gpu_hours })
    };
    launched.starts.iter().map(cost).collect()
}

/// Seconds in steps that the program reports for a start.
fn productive(attempt: &Attempt, launched: &Launched, number: u32) -> Option<f64> {
    let goodput = attempt.analysis.as_ref()?.goodput.known()?;
    let work = goodput.starts.iter().find(|work| work.number == number);
    let only = || (launched.starts.len() == 1).then_some(goodput.productive_s);
    work.map(|work| work.productive_s).or_else(only)
}

/// The number of nodes, and of the job's GPUs on each, if they are known and it is the same for all. Those of a node that died are known
/// from its prolog.
fn gpus_per_node(attempt: &Attempt) -> (u32, Option<f64>) {
    let count = |node: &NodeReport| {
        let own = node.gpus.iter().filter(|gpu| gpu.own == Some(true)).count();
        match &node.job.allocation {
            Allocation::Gpus(granted) if own == 0 => granted.len(),
            _ => own,
        }
    };
    let mut counts = attempt.nodes.iter().map(count);
    let first = counts.next().filter(|first| *first > 0 && counts.all(|count| count == *first));
    let all_reported = attempt.nodes.len() >= attempt.node_count;
    let each = first.filter(|_| all_reported).and_then(|count| u32::try_from(count).ok());
    (u32::try_from(attempt.nodes.len()).unwrap_or(u32::MAX), each.map(f64::from))
}

/// All starts together.
fn sum(attempt: &Attempt, launched: &Launched) -> String {
    let between: u64 = launched
        .starts
        .windows(2)
        .filter_map(|two| Some(two.get(1)?.began.saturating_sub(two.first()?.ended?)))
        .sum();
    let restarts = match launched.starts.len().saturating_sub(1) {
        1 => "1 restart".to_owned(),
        more => format!("{more} restarts"),
    };
    let costs: Vec<Cost> = costs(attempt, launched).into_iter().flatten().collect();
    let of = |seconds: fn(&Cost) -> f64| costs.iter().map(seconds).sum::<f64>();
    let total = Cost {
        whole_s: of(|cost| cost.whole_s),
        productive_s: of(|cost| cost.productive_s),
        is_exact: costs.iter().all(|cost| cost.is_exact),
        lost_gpu_hours: costs.iter().map(|cost| cost.lost_gpu_hours).sum(),
    };
    let cost = if costs.is_empty() { String::new() } else { format!(", {total}") };
    let held = match gpus_per_node(attempt) {
        (nodes, Some(gpus)) if !costs.is_empty() => format!(" ({} GPUs)", f64::from(nodes) * gpus),
        _ => String::new(),
    };
    format!(
        "{restarts} inside the allocation, {} between them{cost}{held}; self-reported by railgate launch",
        span(float(between) / 1000.0)
    )
}

#[cfg(test)]
mod tests {
    use railgate_diagnosis::simulator::healthy;
    use railgate_diagnosis::{Goodput, Outcome, Rules, StartWork, analyse};
    use railgate_model::Reading;
    use railgate_node_report::LeftOut;

    use super::*;
    use crate::testing;

    fn start(number: u32, began: u64, ended: u64) -> LaunchStart {
        LaunchStart {
            number,
            began,
            ended: Some(ended),
            nodes: "n[1-2]".to_owned(),
            node_count: 2,
            code: Some(0),
            ..LaunchStart::default()
        }
    }

    #[test]
    fn each_start_has_a_line_and_the_time_between_them_is_summed() {
        let mut report = testing::story();
        let attempt = report.attempts.last_mut().unwrap();
        assert!(starts(attempt).is_empty());
        let first = LaunchStart {
            code: Some(137),
            spares: "n3".to_owned(),
            cause: Some("node".to_owned()),
            why: Some("n2 is left out: DOWN".to_owned()),
            left_out: vec![LeftOut { node: "n2".to_owned(), why: "DOWN".to_owned() }],
            ..start(0, 1_800_000_000_000, 1_800_000_060_000)
        };
        let second = LaunchStart {
            order: vec!["n1".to_owned(), "n3".to_owned()],
            ..start(1, 1_800_000_064_000, 1_800_000_100_000)
        };
        let launched = Launched { restarts: 3, starts: vec![first, second] };
        attempt.nodes[0].launched = Some(launched);
        let lines = starts(attempt);
        let lines: Vec<&str> = lines.iter().map(Sentence::as_str).collect();
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert_eq!(
            lines[0],
            "start 0 at 08:00:00.000 on n[1-2], spare n3: 1 min 00 s, exit code 137: n2 is left out: DOWN"
        );
        assert!(lines[1].contains(" on n[1-2] (ranks in the order n1,n3): 36.0 s, exit code 0"), "{lines:?}");
        assert_eq!(
            lines[2],
            "1 restart inside the allocation, 4.0 s between them, ETTR at most 96.0 %, at least 0.02 GPU-hours lost (16 GPUs); \
             self-reported by railgate launch"
        );
        let told = crate::timeline::timeline(&report.attempts);
        let told: Vec<&str> = told.iter().map(|event| event.what.as_str()).collect();
        for what in [
            "launch: start 0 on n[1-2]",
            "launch: start 0 ended with exit code 137: n2 is left out: DOWN",
            "launch: start 1 on n[1-2]",
            "launch: start 1 ended with exit code 0",
        ] {
            assert!(told.contains(&what), "{told:#?}");
        }
        let analysis = analyse(&healthy(), None, Outcome::Good, None, &Rules::default()).unwrap();
        let verdict = crate::view::screen::verdict(&report, &analysis);
        assert!(verdict.contains("; 1 start lost to a failed node"), "{verdict}");
        let rows = rows(&report);
        let many = if report.attempts.len() > 1 { "attempt " } else { "start 0" };
        assert!(rows.len() == 3 && rows[0].starts_with(many) && rows[0].contains(lines[0]), "{rows:?}");
    }

    /// Three nodes of eight GPUs, one of them a spare; steps are reported.
    #[test]
    fn each_start_of_a_program_that_reports_has_its_cost() {
        let mut report = testing::story();
        let attempt = report.attempts.last_mut().unwrap();
        let mut spare = attempt.nodes[1].clone();
        spare.node = "n3".to_owned();
        attempt.nodes.push(spare);
        attempt.start = Some(1_800_000_000_000 - 36_000);
        let work = |number, productive_s, redone_s| StartWork { number, productive_s, redone_s };
        let goodput = Goodput {
            fraction: 0.5,
            allocated_s: 400.0,
            productive_s: 200.0,
            start_up_s: 0.0,
            checkpoint_s: 0.0,
            redone_s: 30.0,
            tail_s: 0.0,
            other_s: 170.0,
            gpus: 24,
            starts: vec![work(0, 180.0, 0.0), work(1, 60.0, 30.0)],
        };
        let mut analysis = analyse(&healthy(), None, Outcome::Good, None, &Rules::default()).unwrap();
        analysis.goodput = Reading::Known(goodput);
        attempt.analysis = Some(analysis);
        let ends =
            [start(0, 1_800_000_000_000, 1_800_000_324_000), start(1, 1_800_000_330_000, 1_800_000_444_000)];
        let launched = Launched { restarts: 3, starts: ends.to_vec() };
        attempt.nodes[0].launched = Some(launched);
        let lines = starts(attempt);
        // (24 x 360 s - 16 x 180 s) and (24 x 120 s - 16 x 60 s), in hours.
        for (line, cost) in lines.iter().zip([
            ": 5 min 24 s, ETTR 50.0 %, 1.60 GPU-hours lost, exit code 0",
            ": 1 min 54 s, ETTR 50.0 %, 0.53 GPU-hours lost, exit code 0",
            "6.0 s between them, ETTR 50.0 %, 2.13 GPU-hours lost (24 GPUs); ",
        ]) {
            assert!(line.as_str().contains(cost), "{lines:?}");
        }
        // A node whose GPUs are not known.
        let attempt = report.attempts.last_mut().unwrap();
        attempt.nodes[2].job.allocation = Allocation::NoGpus;
        attempt.nodes[2].gpus.clear();
        let lines = starts(attempt);
        assert!(lines[0].as_str().contains("ETTR 50.0 %, exit code 0"), "{lines:?}");
    }

    #[test]
    fn spares_that_no_start_used_are_named_also_after_one_start() {
        let mut report = testing::story();
        let attempt = report.attempts.last_mut().unwrap();
        let only = LaunchStart { spares: "n2".to_owned(), ..start(0, 1, 2) };
        attempt.nodes[0].launched = Some(Launched { restarts: 3, starts: vec![only] });
        attempt.spares = vec!["n2".to_owned()];
        let what = "n2 was a spare in all starts: its GPUs are not in MFU, HFU and the shares of time";
        assert!(starts(attempt).iter().any(|line| line.as_str() == what));
        let rows = rows(&report);
        assert!(rows.len() == 1 && rows[0].ends_with(what), "{rows:?}");
    }

    #[test]
    fn the_first_screen_has_the_newest_starts() {
        let mut report = testing::story();
        let attempt = report.attempts.last_mut().unwrap();
        let all = (0..9).map(|number| start(number, u64::from(number) * 10, u64::from(number) * 10 + 9));
        attempt.nodes[0].launched = Some(Launched { restarts: 9, starts: all.collect() });
        let rows = rows(&report);
        assert_eq!(rows.len(), MOST_ROWS + 1, "{rows:?}");
        assert_eq!(rows[0], "6 earlier lines are under the attempts");
        assert!(rows[3].contains("start 8 at ") && rows[4].contains("8 restarts inside"), "{rows:?}");
    }

    #[test]
    fn a_start_of_a_running_job_has_no_end_so_far() {
        let mut report = testing::story();
        let attempt = report.attempts.last_mut().unwrap();
        let only = LaunchStart {
            ended: None,
            code: None,
            spares: "n2".to_owned(),
            ..start(0, 1_800_000_000_000, 0)
        };
        attempt.nodes[0].launched = Some(Launched { restarts: 3, starts: vec![only] });
        for (kind, end) in
            [(EndKind::Running, ": no end so far"), (EndKind::Application, ": no end is recorded")]
        {
            attempt.ended.kind = kind;
            let lines = starts(attempt);
            assert!(lines[0].as_str().ends_with(end), "{lines:?}");
        }
    }

    #[test]
    fn one_start_on_all_nodes_is_not_worth_a_line() {
        let mut report = testing::story();
        let attempt = report.attempts.last_mut().unwrap();
        attempt.nodes[0].launched = Some(Launched { restarts: 3, starts: vec![start(0, 1, 2)] });
        assert!(starts(attempt).is_empty());
    }
}
