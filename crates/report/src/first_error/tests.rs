use railgate_diagnosis::simulator::slow_clock;
use railgate_node_report::phases::Phases;
use railgate_node_report::testing::{decision, job, lost_gpu, part};
use railgate_node_report::usage::Usage;
use railgate_node_report::{DecisionKind, LogFound, NodeReport, REPORT_SCHEMA};
use railgate_store::{Parts, ReportConfig};

use crate::testing::{slurm, two_nodes};
use crate::{JobReport, brief, html, json, redacted, redacted_html, redacted_json, summary, text};

use super::*;

fn error(rule: &str, text: &str, rank: u32) -> LogError {
    LogError {
        rule: rule.to_owned(),
        text: text.to_owned(),
        rank: Some(rank),
        ranks: 1,
        log: "/home/ann/slurm-48213.out".to_owned(),
        log_line: 4711,
        ..LogError::default()
    }
}

fn log(node: &str, first: LogError, consequences: u64) -> JobLog {
    JobLog {
        schema: REPORT_SCHEMA,
        cluster: "alpha".to_owned(),
        job: 48_213,
        attempt: 0,
        node: node.to_owned(),
        found: LogFound { first: Some(first), consequences, files: 1, ..LogFound::default() },
    }
}

fn bad_sample() -> LogError {
    LogError {
        file: Some("train.py".to_owned()),
        line: Some(88),
        ahead_s: Some(0.84),
        ..error("exception", "ValueError: bad sample in shard 17", 1)
    }
}

/// Two nodes, each with the ranks that its sampler saw.
fn nodes(status: i32) -> Vec<NodeReport> {
    let node = |name: &str, ranks: Vec<u32>| {
        let mut node = part(name, &job(0..8), "", vec![], status);
        node.ranks = ranks;
        node
    };
    vec![node("n1", vec![0]), node("n2", vec![1])]
}

fn merged(nodes: Vec<NodeReport>, logs: Vec<JobLog>, state: &str) -> JobReport {
    let mut left = decision(0, DecisionKind::Left, nodes[0].exit.unwrap().status);
    left.nodes.clear();
    let decisions = vec![left];
    let parts = Parts { nodes, logs, decisions, ..Parts::default() };
    JobReport::merge("alpha", 48_213, parts, slurm(state), &two_nodes, &ReportConfig::default())
}

fn one_line(page: &str) -> String {
    page.split_whitespace().collect::<Vec<_>>().join(" ")
}

const SAID: &str =
    "rank 1 on n2: ValueError: bad sample in shard 17 (train.py:88); other ranks followed 0.8 s later";

#[test]
fn a_message_that_was_cut_ends_with_an_ellipsis() {
    let long = LogError { text: "x".repeat(301), ..bad_sample() };
    let report = merged(nodes(256), vec![log("n1", long, 0)], "FAILED");
    assert!(report.first_error.unwrap().what.contains("xxx… (train.py:88)"));
}

#[test]
fn no_other_rank_follows_the_only_one() {
    let mut alone = nodes(256);
    alone.truncate(1);
    let report = merged(alone, vec![log("n1", error("torchrun-failed", "torchrun: x", 0), 3)], "FAILED");
    assert_eq!(report.first_error.unwrap().what, "rank 0 on n1: torchrun: x");
    let report = merged(nodes(256), vec![log("n1", error("torchrun-failed", "torchrun: x", 0), 3)], "FAILED");
    assert_eq!(report.first_error.unwrap().what, "rank 0 on n1: torchrun: x; other ranks followed");
    // The job ended before the sampler of n1 had seen rank 0.
    let mut late = nodes(256);
    late[0].ranks.clear();
    let report = merged(late, vec![log("n1", LogError { ahead_s: None, ..bad_sample() }, 3)], "FAILED");
    let said = "rank 1 on n2: ValueError: bad sample in shard 17 (train.py:88); other ranks followed";
    assert_eq!(report.first_error.unwrap().what, said);
}

#[test]
fn the_first_error_is_in_every_format_of_a_failed_job() {
    let mut bare = nodes(256);
    for node in &mut bare {
        (node.usage, node.application, node.communication) = (None, None, None);
    }
    for nodes in [nodes(256), bare] {
        let report = merged(nodes, vec![log("n1", bad_sample(), 3)], "FAILED");
        assert_eq!(report.first_error.as_ref().map(|first| first.what.as_str()), Some(SAID));
        for page in [text(&report, false).to_string(), brief(&report).to_string()] {
            assert!(one_line(&page).contains(SAID), "{page}");
        }
        assert!(text(&report, false).contains("first error   rank 1 on n2"), "{}", text(&report, false));
        assert!(html(&report).contains(SAID), "{}", html(&report));
        assert_eq!(report.next_steps[0], "read line 4711 of /home/ann/slurm-48213.out");
        let mut raw = Vec::new();
        json(&report, &mut raw).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&raw).unwrap();
        let first = &value["first_error"];
        assert_eq!(
            (&first["rank"], &first["node"], &first["class"]),
            (&1.into(), &"n2".into(), &"application".into())
        );
        assert_eq!(value["attempts"][0]["first_error"], *first);
    }
}

#[test]
fn no_text_of_the_log_is_in_a_redacted_copy_or_in_accounting() {
    let mut first = bad_sample();
    first.from = Some("KeyError: 'bernoulli'".to_owned());
    let report = merged(nodes(256), vec![log("n1", first, 3)], "FAILED");
    for word in ["ValueError", "shard 17", "train.py", "bernoulli", "slurm-48213"] {
        let whole = text(&report, true).to_string() + &html(&report);
        assert!(whole.contains(word), "{word} is not even in the whole one");
        for page in [redacted(&report).to_string(), redacted_json(&report), redacted_html(&report)] {
            assert!(!page.contains(word), "{word}:\n{page}");
        }
        assert!(!summary(&report).unwrap_or_default().contains(word));
    }
}

#[test]
fn a_job_that_succeeded_or_was_refused_has_no_first_error() {
    for (status, state) in [(0, "COMPLETED"), (0, "RUNNING"), (0, "")] {
        let report = merged(nodes(status), vec![log("n1", bad_sample(), 0)], state);
        assert_eq!(report.first_error, None, "{state}");
    }
    // A job that hung after an error was cancelled or ran into its limit.
    for state in ["CANCELLED by 1000", "TIMEOUT"] {
        let report = merged(nodes(0), vec![log("n1", bad_sample(), 0)], state);
        assert!(report.first_error.is_some(), "{state}");
    }
    // One that worked until then had caught the error.
    let ended_after = |last: &[(PhaseKind, u64)], gpu: PhaseKind| {
        let mut nodes = nodes(0);
        let usage = slow_clock().0.remove(0).usage;
        for node in &mut nodes {
            let mut start = node.start;
            let phase = |(kind, seconds): &(PhaseKind, u64)| {
                let phase = Phase { kind: *kind, start, end: start + 1000 * seconds, start_number: 0 };
                start = phase.end;
                phase
            };
            let list =
                [(PhaseKind::StartUp, 20), (PhaseKind::Steady, 600)].iter().chain(last).map(phase).collect();
            let gpus = vec![BTreeMap::from([(PhaseKind::Steady, 600.0)]), BTreeMap::from([(gpu, 600.0)])];
            let phases = Some(Phases { list, gpus, ..Phases::default() });
            node.usage = usage.clone().map(|usage| Usage { phases, ..usage });
        }
        nodes
    };
    for state in ["CANCELLED by 1000", "TIMEOUT"] {
        let named = |nodes| merged(nodes, vec![log("n1", bad_sample(), 0)], state).first_error.is_some();
        assert!(!named(ended_after(&[], PhaseKind::Steady)), "{state}");
        assert!(!named(ended_after(&[(PhaseKind::Tail, 5)], PhaseKind::Steady)), "{state}");
        assert!(named(ended_after(&[(PhaseKind::Tail, 60)], PhaseKind::Steady)), "{state}");
        assert!(named(ended_after(&[(PhaseKind::Stalled, 60)], PhaseKind::Steady)), "{state}");
        // One program of two ended long before.
        assert!(named(ended_after(&[], PhaseKind::Tail)), "{state}");
        assert!(named(ended_after(&[], PhaseKind::Steady).into_iter().take(1).collect()), "{state}");
    }
    // Its logs hold only what follows from an error.
    let only = error("nccl-watchdog", "Watchdog caught collective operation timeout", 1);
    assert_eq!(merged(nodes(256), vec![log("n1", only, 8)], "FAILED").first_error, None);
}

#[test]
fn among_nodes_a_cause_comes_before_an_end_and_an_earlier_one_before_a_later() {
    let at = |when: f64, exact, error: LogError| LogError { when: Some(when), exact, ..error };
    let first = |logs: Vec<JobLog>| merged(nodes(256), logs, "FAILED").first_error.unwrap();
    let ended = log("n1", at(10.0, true, error("srun-task", "srun: error: n2: task 1: Killed", 1)), 0);
    let full = log("n2", at(12.0, true, error("cuda-oom", "CUDA out of memory.", 1)), 0);
    let found = first(vec![ended, full.clone()]);
    assert_eq!((found.rule.as_str(), found.node.as_deref()), ("cuda-oom", Some("n2")));
    assert!(found.advice.contains("smaller batch"), "{found:?}");

    let late = log("n1", at(13.5, true, error("exception", "KeyError: 'x'", 0)), 0);
    let found = first(vec![late.clone(), full.clone()]);
    assert_eq!((found.rank, found.ahead_s), (Some(1), Some(1.5)));
    assert!(found.what.ends_with("; other ranks followed 1.5 s later"), "{}", found.what);
    // Where one of the times is only that of a line before, their order is used, and not their distance.
    let before = log("n2", at(12.0, false, error("cuda-oom", "CUDA out of memory.", 1)), 0);
    let found = first(vec![late.clone(), before]);
    assert_eq!((found.rank, found.ahead_s), (Some(1), None));
    assert!(found.what.ends_with("; other ranks followed"), "{}", found.what);
    // Without times the first node's log counts, and another attempt's never.
    let untimed = log("n2", error("cuda-oom", "CUDA out of memory.", 1), 0);
    let other = JobLog { attempt: 3, ..full };
    assert_eq!(first(vec![late, untimed, other]).rank, Some(0));
}

#[test]
fn a_text_that_points_at_hardware_is_compared_with_the_gate() {
    let ecc = || vec![log("n1", error("cuda-ecc", "CUDA error: uncorrectable ECC error encountered", 1), 0)];
    let report = merged(nodes(256), ecc(), "FAILED");
    let said =
        "the gate found no such fault on the job's nodes; the text alone is no evidence against a node";
    assert_eq!(report.first_error.as_ref().unwrap().gate.as_deref(), Some(said));
    assert!(report.ended.kind == EndKind::Application, "a text changes no verdict: {:?}", report.ended);
    assert!(one_line(&text(&report, false)).contains(&format!("its text points at hardware; {said}")));
    assert!(html(&report).contains("points at hardware"));

    let mut broken = nodes(256);
    let with = part("n2", &job(0..8), "gpu-lost@3", vec![lost_gpu()], 256);
    broken[1] = NodeReport { ranks: broken[1].ranks.clone(), ..with };
    let gate = merged(broken.clone(), ecc(), "FAILED").first_error.unwrap().gate.unwrap();
    assert!(gate.starts_with("confirmed on n2: gpu-lost@3"), "{gate}");
    // A lost GPU does not confirm a broken link.
    let link = "NET/IB : Got completion from peer 10.0.0.7<54862> with status=12";
    let gate = merged(broken, vec![log("n1", error("nccl-ib-completion", link, 1), 0)], "FAILED");
    assert!(gate.first_error.unwrap().gate.unwrap().starts_with("the gate found no such fault"));

    let mut unread = nodes(256);
    unread[0].epilog = None;
    let gate = merged(unread, ecc(), "FAILED").first_error.unwrap().gate.unwrap();
    assert!(gate.contains("but not all was checked (n1: not checked after the run)"), "{gate}");
}

/// The owner need not search the log for the rank that was found.
#[test]
fn a_finding_about_the_rank_that_failed_points_at_the_line() {
    use railgate_node_report::{TaskRank, Tasks};
    let mut nodes = nodes(256);
    for (node, rank) in nodes.iter_mut().zip([0, 1]) {
        let end = node.end.unwrap();
        let ended = Some(end - if rank == 1 { 3_000 } else { 0 });
        let exit = Some(railgate_model::ProcessExit::Code(1));
        let ranks = vec![TaskRank { rank, ended, exit, ..TaskRank::default() }];
        node.tasks = Some(Tasks { ranks, ..Tasks::default() });
        node.application = Some(railgate_node_report::Application::default());
    }
    let steps = |log: Vec<JobLog>| {
        let report = merged(nodes.clone(), log, "FAILED");
        let analysis = report.attempts[0].analysis.clone().unwrap();
        assert_eq!(analysis.diagnoses[0].rule, "killed-rank", "{analysis:?}");
        report.next_steps.join(" | ")
    };
    assert!(steps(vec![]).contains("look in the job's log for the reason that this rank ended"));
    let known = steps(vec![log("n1", bad_sample(), 3)]);
    assert_eq!(known, "read line 4711 of /home/ann/slurm-48213.out");
    // The first error is another rank's.
    let other = steps(vec![log("n1", error("exception", "ValueError: x", 0), 3)]);
    assert!(
        other.ends_with("| look in the job's log for the reason that this rank ended: out of memory, a signal, or an error of the program"),
        "{other}"
    );
}

#[test]
fn what_was_not_read_is_said() {
    let mut cut = log("n1", bad_sample(), 0);
    cut.found.may_lie_before = true;
    let report = merged(nodes(256), vec![cut], "FAILED");
    assert!(one_line(&text(&report, false)).contains("an earlier error may lie before"));
    assert_eq!(report.next_steps[0], "read /home/ann/slurm-48213.out");
    let mut refused = log("n1", bad_sample(), 0);
    refused.found.problems.push("/home/ann/log: refused: a symbolic link".to_owned());
    assert_eq!(
        merged(nodes(256), vec![refused.clone()], "FAILED").problems,
        [""; 0],
        "another log has the error"
    );
    refused.found.first = None;
    let said = "attempt 0 n1: the job's log: /home/ann/log: refused: a symbolic link";
    assert_eq!(merged(nodes(256), vec![refused], "FAILED").problems, [said]);
    let alike = LogError { ranks: 8, ..bad_sample() };
    let report = merged(nodes(256), vec![log("n1", alike, 0)], "FAILED");
    assert!(report.first_error.unwrap().what.starts_with("8 ranks alike, first rank 1 on n2: "));
    // No one tells where the rank ran, or which rank it was.
    let mut unknown = nodes(256);
    unknown.iter_mut().for_each(|node| (node.ranks, node.application) = (Vec::new(), None));
    let report = merged(unknown, vec![log("n1", bad_sample(), 0)], "FAILED");
    assert!(report.first_error.unwrap().what.starts_with("rank 1: ValueError"));
}

#[test]
fn hostile_text_is_made_printable() {
    let evil = "ValueError: \u{1b}[2J\u{202e}\nrank 9: </li><b>";
    let report = merged(nodes(256), vec![log("n1", error("exception", evil, 1), 0)], "FAILED");
    let said = text(&report, true).to_string();
    assert!(!said.contains('\u{1b}') && !said.contains('\u{202e}'), "{said}");
    assert!(!html(&report).contains("<b>"));
}
