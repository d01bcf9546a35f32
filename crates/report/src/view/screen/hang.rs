//! Hangs that the guard found while the job ran.

use railgate_model::UnixMillis;
use railgate_node_report::plain::{clock, float, plain, span};
use railgate_node_report::stacks::{gpu_text, text};
use railgate_node_report::{Hang, HangKind, NodeReport};
use railgate_text::shorten;

use super::why::number;
use super::{Row, Span};
use crate::{Attempt, EndKind};

/// Maximum number of hangs shown.
const MOST: usize = 3;

/// Rows of the hangs of all attempts, and of the stacks that were taken then:
/// `gn4, 19:44:34 to the end: rank 2 is stopped (SIGSTOP), and 3 GPUs wait; named after 45.0 s`. Of a running job:
/// `gn4, since 19:44:34: …`.
pub(super) fn rows(attempts: &[Attempt]) -> Vec<Row> {
    let of = |attempt: &Attempt| match attempts.len() {
        0 | 1 => String::new(),
        _ => format!("{}: ", number(attempt)),
    };
    let mut all: Vec<(&Attempt, &NodeReport, &Hang)> = Vec::new();
    for (attempt, node) in attempts.iter().flat_map(|one| one.nodes.iter().map(move |node| (one, node))) {
        let hangs = node.hangs.iter().flat_map(|hangs| &hangs.list);
        all.extend(hangs.map(|hang| (attempt, node, hang)));
    }
    all.sort_by_key(|(.., hang)| hang.since);
    let more = all.len().saturating_sub(MOST);
    let shown = all.iter().take(MOST);
    let mut rows: Vec<Row> = shown
        .map(|(attempt, node, hang)| {
            row(&of(attempt), &node.node, hang, attempt.ended.kind == EndKind::Running)
        })
        .collect();
    if more > 0 {
        rows.push(Row::open_to_all("HANG", format!("and {more} more")));
    }
    let evidence = |attempt: &Attempt| {
        let of = of(attempt);
        hang_evidence(attempt).into_iter().map(move |(name, text)| Row::private(name, format!("{of}{text}")))
    };
    let with = attempts.iter().filter(|attempt| !attempt.stacks.is_empty());
    rows.extend(with.take(MOST).flat_map(evidence));
    rows
}

/// What the ranks of an attempt did while it hung: name and text of each row. Names in it are the job owner's business.
pub(in crate::view) fn hang_evidence(attempt: &Attempt) -> Vec<(&'static str, String)> {
    let groups = [("STACKS", &attempt.stacks), ("RECORDED", &attempt.recorded)];
    let groups = groups.into_iter().filter(|(_, groups)| !groups.is_empty());
    let groups = groups.map(|(name, groups)| (name, plain(&text(groups))));
    let gpus = (!attempt.hang_gpus.is_empty()).then(|| ("GPUS", plain(&gpu_text(&attempt.hang_gpus))));
    groups.chain(attempt.ras.iter().map(|sentence| ("RAS", plain(sentence)))).chain(gpus).collect()
}

fn row(of: &str, node: &str, hang: &Hang, runs: bool) -> Row {
    let at = |time: UnixMillis| clock(time).get(..8).unwrap_or_default().to_owned();
    let seconds = |from: UnixMillis, to: UnixMillis| span(float(to.saturating_sub(from)) / 1000.0);
    let since = at(hang.since);
    let (time, lasted) = match hang.over {
        Some(over) => (format!("{since} to {}", at(over)), format!(" for {}", seconds(hang.since, over))),
        None if runs => (format!("since {since}"), String::new()),
        None => (format!("{since} to the end"), String::new()),
    };
    let storage = match hang.kind {
        HangKind::Storage => " (not called a hang yet: storage may recover)",
        _ => "",
    };
    let act = hang.act.as_ref().map(|act| format!("; {}", plain(&act.sentence()))).unwrap_or_default();
    let text = format!(
        "{}{lasted}{storage}; named after {}{act}",
        plain(&hang.sentence()),
        seconds(hang.since, hang.named)
    );
    let when = format!("{of}{}, {time}: ", shorten(node, 24));
    Row { name: "HANG", spans: vec![Span::Private(when), Span::Open(text)] }
}

#[cfg(test)]
mod tests {
    use railgate_node_report::Hangs;

    use super::*;

    #[test]
    fn a_hang_names_its_node_time_rank_and_how_soon_it_was_named() {
        let mut attempt = crate::testing::story().attempts.remove(0);
        let hang = |since, kind, over| Hang { kind, over, ..railgate_node_report::testing::hang(since) };
        let node = attempt.nodes.first_mut().unwrap();
        let start = 1_700_000_000_000;
        let list = vec![
            hang(start, HangKind::Storage, Some(start + 200_000)),
            hang(start + 400_000, HangKind::Stopped, None),
        ];
        node.hangs = Some(Hangs { list, more: 0 });
        node.node = "gn4".to_owned();
        let texts = |attempt: &Attempt| {
            rows(std::slice::from_ref(attempt)).iter().map(Row::text).collect::<Vec<String>>()
        };
        assert_eq!(
            texts(&attempt),
            [
                "gn4, 22:13:20 to 22:16:40: rank 2 is waiting for storage, and 3 GPUs wait for 3 min 20 s (not called a hang yet: \
                 storage may recover); named after 45.0 s",
                "gn4, 22:20:00 to the end: rank 2 is stopped (SIGSTOP), and 3 GPUs wait; named after 45.0 s",
            ]
        );
        attempt.ended.kind = EndKind::Running;
        assert_eq!(
            texts(&attempt)[1],
            "gn4, since 22:20:00: rank 2 is stopped (SIGSTOP), and 3 GPUs wait; named after 45.0 s"
        );
        let group = |ranks: &[u32], what: &str| railgate_node_report::stacks::Group {
            what: what.to_owned(),
            ranks: ranks.to_vec(),
            nodes: vec!["gn4".to_owned()],
            library: None,
        };
        attempt.stacks =
            vec![group(&[0, 1, 3], "in all_reduce (train.py:88)"), group(&[2], "stopped (state T)")];
        let stacks = rows(std::slice::from_ref(&attempt)).pop().unwrap();
        assert_eq!(stacks.text(), "3 ranks in all_reduce (train.py:88); rank 2 on gn4 stopped (state T)");
        assert_eq!((stacks.name, stacks.open().as_str()), ("STACKS", ""));
        attempt.recorded = vec![group(&[2], "in send number 4 of group 0 (train.py:90), not completed")];
        attempt.ras = vec!["rank 2 of 4 has called AllReduce 664 times, the others 665".to_owned()];
        let rows_with_all = rows(std::slice::from_ref(&attempt));
        let names: Vec<(&str, String)> =
            rows_with_all[3..].iter().map(|row| (row.name, row.text())).collect();
        let recorded = "rank 2 on gn4 in send number 4 of group 0 (train.py:90), not completed".to_owned();
        assert_eq!(names, [("RECORDED", recorded), ("RAS", attempt.ras[0].clone())]);
        assert!(rows_with_all[3..].iter().all(|row| row.open().is_empty()), "only for the owner");
        let all = rows(std::slice::from_ref(&attempt));
        assert!(!all[1].open().contains("gn4") && all[1].open().contains("rank 2 is stopped"));
        let second = crate::testing::story().attempts.remove(1);
        let both = rows(&[attempt, second]);
        assert!(both[0].text().starts_with("attempt 0: gn4, 22:13:20 to "), "{}", both[0].text());
        assert!(both[2].text().starts_with("attempt 0: 3 ranks in all_reduce"), "{}", both[2].text());
    }
}
