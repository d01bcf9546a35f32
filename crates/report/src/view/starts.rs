//! The starts of `railgate launch` inside one attempt. Self-reported by launch, which runs as the job's user.

use railgate_node_report::plain::{clock, float, plain, span};
use railgate_node_report::{LaunchStart, Launched};

use super::Sentence;
use crate::{Attempt, JobReport};

/// Most starts that are listed, the newest ones.
const MOST: usize = 20;
/// Most lines on the first screen.
const MOST_ROWS: usize = 4;

/// The newest starts of all attempts for the first screen; empty if the program was started once in each attempt.
pub(super) fn rows(report: &JobReport) -> Vec<String> {
    let many = report.attempts.len() > 1;
    let restarted = report.attempts.iter().filter_map(|attempt| {
        let launched = attempt.nodes.iter().find_map(|node| node.launched.as_ref())?;
        (launched.starts.len() > 1).then_some((attempt, launched))
    });
    let mut rows: Vec<String> = restarted
        .flat_map(|(attempt, launched)| {
            let of = if many { format!("attempt {}: ", attempt.attempt) } else { String::new() };
            let lines = launched.starts.iter().map(line).chain([sum(attempt, launched)]);
            lines.map(move |line| plain(&format!("{of}{line}"))).collect::<Vec<_>>()
        })
        .collect();
    let older = rows.len().saturating_sub(MOST_ROWS);
    if older > 0 {
        rows.drain(..older);
        rows.insert(0, format!("{older} earlier lines are under the attempts"));
    }
    rows
}

/// Each start with its end and the reason, and the time between them; empty without launch, and if the only start ran on all nodes.
pub(super) fn starts(attempt: &Attempt) -> Vec<Sentence> {
    let Some(launched) = attempt.nodes.iter().find_map(|node| node.launched.as_ref()) else {
        return Vec::new();
    };
    let all = &launched.starts;
    let is_plain = |start: &LaunchStart| start.spares.is_empty() && start.left_out.is_empty();
    if all.len() < 2 && all.iter().all(is_plain) {
        return Vec::new();
    }
    let older = all.len().saturating_sub(MOST);
    let mut lines: Vec<String> = Vec::new();
    if older > 0 {
        lines.push(format!("{older} earlier ones are not listed"));
    }
    lines.extend(all.iter().skip(older).map(line));
    lines.push(sum(attempt, launched));
    lines.into_iter().map(Sentence::from).collect()
}

fn line(start: &LaunchStart) -> String {
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
        (None, _) => "no end is recorded".to_owned(),
        (Some(code), None) => format!("exit code {code}"),
        (Some(code), Some(why)) => format!("exit code {code}: {why}"),
    };
    format!(
        "start {} at {} on {}{order}{spares}: {length}{end}",
        start.number,
        clock(start.began),
        start.nodes
    )
}

/// The time in which no program ran, and what it cost.
fn sum(attempt: &Attempt, launched: &Launched) -> String {
    let between: u64 = launched
        .starts
        .windows(2)
        .filter_map(|two| Some(two.get(1)?.began.saturating_sub(two.first()?.ended?)))
        .sum();
    let seconds = float(between) / 1000.0;
    let gpus: usize =
        attempt.nodes.iter().map(|node| node.gpus.iter().filter(|gpu| gpu.own == Some(true)).count()).sum();
    let hours = match gpus {
        0 => String::new(),
        count => {
            format!(
                ", {:.2} GPU-hours of {count} GPUs",
                seconds / 3600.0 * float(u64::try_from(count).unwrap_or(0))
            )
        }
    };
    let restarts = match launched.starts.len().saturating_sub(1) {
        1 => "1 restart".to_owned(),
        more => format!("{more} restarts"),
    };
    format!(
        "{restarts} inside the allocation, {} between them{hours}; self-reported by railgate launch",
        span(seconds)
    )
}

#[cfg(test)]
mod tests {
    use railgate_node_report::LeftOut;

    use super::*;
    use crate::testing;

    fn start(number: u32, began: u64, ended: u64) -> LaunchStart {
        LaunchStart {
            number,
            began,
            ended: Some(ended),
            nodes: "n[1-2]".to_owned(),
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
        assert!(lines[2].starts_with("1 restart inside the allocation, 4.0 s between them"), "{lines:?}");
        let rows = rows(&report);
        let many = if report.attempts.len() > 1 { "attempt " } else { "start 0" };
        assert!(rows.len() == 3 && rows[0].starts_with(many) && rows[0].contains(lines[0]), "{rows:?}");
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
    fn one_start_on_all_nodes_is_not_worth_a_line() {
        let mut report = testing::story();
        let attempt = report.attempts.last_mut().unwrap();
        attempt.nodes[0].launched = Some(Launched { restarts: 3, starts: vec![start(0, 1, 2)] });
        assert!(starts(attempt).is_empty());
    }
}
