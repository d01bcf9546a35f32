//! Reports of jobs on simulated machines for the tests of this crate.

use railgate_model::Job;
use railgate_node_report::testing::{HOUR, START, decision, job, lost_gpu, part, refused};
use railgate_node_report::{Act, ActKind, Decision, DecisionKind, NodeReport, SlurmView, Window};
use railgate_store::{Parts, ReportConfig};

use crate::{FirstError, JobReport};

mod large;

pub(crate) use large::large;

pub(crate) fn two_nodes(text: &str) -> Option<Vec<String>> {
    (text == "n[1-2]").then(|| vec!["n1".to_owned(), "n2".to_owned()])
}

pub(crate) fn merged(
    nodes: Vec<NodeReport>,
    decisions: Vec<Decision>,
    slurm: Option<SlurmView>,
) -> JobReport {
    let parts = Parts { nodes, decisions, ..Parts::default() };
    JobReport::merge("alpha", 48_213, parts, slurm, &two_nodes, &ReportConfig::default())
}

pub(crate) fn slurm(state: &str) -> Option<SlurmView> {
    Some(SlurmView { state: state.to_owned(), ..SlurmView::default() })
}

/// Shifts the times of a report, for a later attempt.
fn later(mut report: NodeReport, by: u64) -> NodeReport {
    report.start += by;
    report.end = report.end.map(|end| end + by);
    for look in [&mut report.prolog, &mut report.epilog].into_iter().flatten() {
        look.taken += by;
    }
    report.kernel.xids.iter_mut().for_each(|xid| xid.time += by);
    report.evidence.iter_mut().for_each(|item| item.time = item.time.map(|time| time + by));
    report.acts.iter_mut().for_each(|act| act.time += by);
    report.window = report.window.map(|window| Window { start: window.start + by, end: window.end + by });
    report
}

/// A job refused by the gate, then ended by a lost GPU, then completed.
pub(crate) fn story() -> JobReport {
    let mut nodes = vec![refused("n2", &job(0..8))];
    let again = |attempt| Job { restarts: attempt, ..job(0..8) };
    let mut broken = part("n1", &again(1), "gpu-lost@3", vec![lost_gpu()], 256);
    broken.acts.push(Act {
        what: ActKind::Drained,
        time: START + HOUR + 2_000,
        by: "epilog".to_owned(),
        detail: "railgate: gpu-lost@3: off bus; reboot [epilog job=48213]".to_owned(),
    });
    let (second, third) = (150_000, HOUR + 300_000);
    nodes.push(later(broken, second));
    nodes.push(later(part("n2", &again(1), "", vec![], 256), second));
    nodes.push(later(part("n1", &again(2), "", vec![], 0), third));
    nodes.push(later(part("n2", &again(2), "", vec![], 0), third));
    let mut view = slurm("COMPLETED").unwrap();
    view.restarts = Some(2);
    let mut requeued = decision(1, DecisionKind::Requeued, 256);
    requeued.time += second;
    requeued.why = "GPU 3 of n1 was lost before the job's first failure".to_owned();
    merged(nodes, vec![requeued], Some(view))
}

/// A first error with every field set.
pub(crate) fn whole_error() -> FirstError {
    FirstError {
        what: "rank 1 on n2: RuntimeError: CUDA error (train.py:88); other ranks followed 0.8 s later"
            .to_owned(),
        rule: "cuda-ecc".to_owned(),
        class: "node".to_owned(),
        advice: "see the node's findings in this report".to_owned(),
        text: "RuntimeError: CUDA error".to_owned(),
        from: Some("KeyError: 'word'".to_owned()),
        file: Some("train.py".to_owned()),
        line: Some(88),
        rank: Some(1),
        node: Some("n2".to_owned()),
        ranks: 1,
        ahead_s: Some(0.8),
        gate: Some("the gate found no such fault on the job's nodes".to_owned()),
        may_lie_before: true,
        log: "/home/ann/slurm-48213.out".to_owned(),
        log_line: 4711,
    }
}
