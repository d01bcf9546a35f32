use railgate_model::UnixMillis;
use railgate_text::Lines;

use super::{Text, story};
use crate::JobReport;
use crate::view::answer as content;

/// Why a job stands or ended: the answer first, then what shows it, then what happened on all nodes in order of time.
pub fn answer(report: &JobReport, now: UnixMillis) -> Lines {
    let answer = content::answer(report, now);
    let mut out = Text::default();
    out.line(&answer.job);
    for (name, text) in &answer.rows {
        out.screen(name, text);
    }
    out.section("what happened", "(all nodes, times in UTC)");
    story(&mut out, report);
    out.0
}

#[cfg(test)]
mod tests {
    use railgate_node_report::stacks::Group;
    use railgate_node_report::testing::{hang, job, part};
    use railgate_node_report::{Culprit, Hang, HangKind, Hangs};

    use super::*;
    use crate::testing::{merged, slurm};

    #[test]
    fn the_first_line_is_the_answer() {
        let said = |state: &str, kind, over: Option<u64>| {
            let mut node = part("gn4", &job(0..8), "", vec![], 0);
            let start = node.start;
            if state == "RUNNING" {
                (node.end, node.exit, node.as_of) = (None, None, Some(start + 100_000));
            }
            let hang = Hang {
                kind,
                over: over.map(|after| start + after),
                culprits: vec![Culprit { rank: 3, ..Culprit::default() }],
                waiting_gpus: 7,
                signs: vec!["the program of rank 3 is stopped (state T)".to_owned()],
                ..hang(start + 10_000)
            };
            node.hangs = Some(Hangs { list: vec![hang], more: 0 });
            let report = merged(vec![node], vec![], slurm(state));
            answer(&report, start + 120_000).to_string()
        };
        let text = said("RUNNING", HangKind::Stopped, None);
        let head: Vec<&str> = text.lines().take(4).collect();
        assert!(head[0].ends_with(": running"), "{text}");
        assert!(
            head[1].starts_with("ANSWER   it has been hung since ")
                && text.contains("(1 min 50 s): rank 3 is stopped"),
            "{text}"
        );
        assert!(text.contains("SIGN     the program of rank 3 is stopped (state T)"), "{text}");
        assert!(text.contains("DO       find out who stopped the process"), "{text}");
        assert!(
            text.contains("* ") && text.contains("gn4            the job hangs: rank 3 is stopped"),
            "{text}"
        );
        let text = said("RUNNING", HangKind::Storage, None);
        assert!(text.contains("ANSWER   it has been waiting for storage since "), "{text}");
        // It continued.
        let text = said("RUNNING", HangKind::Stopped, Some(60_000));
        assert!(text.contains("ANSWER   it runs, and no hang is known"), "{text}");
        assert!(text.contains("DO       look at PHASES in `railgate report"), "{text}");
        assert!(text.contains("the ranks continue"), "{text}");
        let text = said("CANCELLED", HangKind::Stopped, None);
        assert!(text.contains("ANSWER   ") && text.contains("SIGN     the program of rank 3"), "{text}");
    }

    #[test]
    fn stacks_without_a_hang_are_of_a_wait_that_may_be_over() {
        let mut node = part("gn4", &job(0..8), "", vec![], 0);
        (node.end, node.exit, node.as_of) = (None, None, Some(node.start + 100_000));
        let now = node.start + 120_000;
        let mut report = merged(vec![node], vec![], slurm("RUNNING"));
        let waited = "; its ranks waited when STACKS was taken, and may have continued since";
        assert!(!answer(&report, now).to_string().contains("waited"));
        report.attempts[0].stacks = vec![Group {
            what: "in all_reduce (train.py:88)".to_owned(),
            ranks: (0..8).collect(),
            nodes: vec!["gn4".to_owned()],
            library: None,
        }];
        let text = answer(&report, now).to_string();
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("ANSWER it runs, and no hang is known; ") && words.contains(waited), "{text}");
        assert!(words.contains("STACKS 8 ranks in all_reduce (train.py:88)"), "{text}");
    }
}
