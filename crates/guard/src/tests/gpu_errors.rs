//! Errors that the driver reports of the job's GPUs.

use railgate_node_report::GpuError;

use super::*;
use GpuActivity::Unknown;

/// Xid 79 of the GPU of rank 2, so many seconds after the wait began.
fn xid_79(run: &Run, after_s: i64) -> SampledError {
    let time = run.now.saturating_add_signed(after_s * 1000);
    SampledError { place: 2, pid: Some(102), error: GpuError::new(2, 79, "", time).unwrap() }
}

/// GPU 2 has fallen off the bus, and the process of its rank polls.
fn gpu_2_is_lost() -> Run {
    let mut run = Run::new();
    run.gpus = vec![Waits, Waits, Unknown, Waits];
    run.gpu_errors = vec![xid_79(&run, -3)];
    run
}

#[test]
fn a_wait_after_an_error_of_a_gpu_is_a_hang_and_its_rank_is_named() {
    let mut run = gpu_2_is_lost();
    run.pass(145);
    assert_eq!(run.named(), None);
    run.pass(10);
    let hang = run.named().unwrap();
    assert_eq!(
        hang.sentence(),
        "GPU 2 of rank 2 reported Xid 79 (fallen off the bus) at 22:14:17, and 3 GPUs wait"
    );
    assert_eq!((hang.kind, run.culprits()), (HangKind::GpuError, vec![2]));
    assert_eq!(
        hang.signs.last().unwrap(),
        "GPU 2 of rank 2 reported Xid 79 (fallen off the bus) at 22:14:17"
    );
}

#[test]
fn an_error_beside_a_rank_that_computes_or_saves_or_long_before_the_wait_is_no_hang() {
    let mut computes = gpu_2_is_lost();
    // Another rank evaluates: its GPU is idle.
    computes.gpus[1] = Idle;
    computes.pass(900);
    assert_eq!(computes.named(), None);
    let mut saves = gpu_2_is_lost();
    saves.ranks[1].state = Some(RankState { bytes_s: Some(4e8), ..asleep() });
    saves.pass(900);
    assert_eq!(saves.named(), None);
    let mut long_before = gpu_2_is_lost();
    long_before.gpu_errors = vec![xid_79(&long_before, -121)];
    long_before.pass(900);
    assert_eq!(long_before.named(), None);
    let mut no_error = gpu_2_is_lost();
    no_error.gpu_errors.clear();
    no_error.pass(900);
    assert_eq!(no_error.named(), None);
}

#[test]
fn an_error_is_a_sign_also_where_the_ranks_show_who_is_waited_for() {
    let mut run = Run::rank_2(asleep());
    run.gpu_errors = vec![xid_79(&run, 1)];
    run.pass(155);
    let hang = run.named().unwrap();
    assert_eq!((hang.kind, run.culprits()), (HangKind::Behind, vec![2]));
    assert!(hang.signs.last().unwrap().starts_with("GPU 2 of rank 2 reported Xid 79"), "{:?}", hang.signs);
    assert!(hang.advice().starts_with("likely the GPU's hardware or the driver"), "{}", hang.advice());
}

#[test]
fn a_hang_after_an_error_is_over_when_another_rank_computes() {
    let mut run = gpu_2_is_lost();
    run.pass(155);
    assert!(run.guard.open().is_some());
    run.gpus[1] = Idle;
    run.pass(5);
    assert_eq!(run.guard.open(), None);
}

#[test]
fn a_node_with_a_lost_gpu_stands_still_and_is_named_among_others() {
    let mut run = gpu_2_is_lost();
    run.alone = false;
    run.pass(155);
    let lost = run.stands_still().unwrap();
    assert_eq!((lost.waiting_gpus, lost.gpu_errors[0].rank), (3, Some(2)));
    let waits = NodeWait { gpu_errors: Vec::new(), waiting_gpus: 4, ..lost.clone() };
    let standing = [("gn1".to_owned(), waits.clone()), ("gn2".to_owned(), lost.clone())];
    let hang = judge_nodes(&standing, 2, run.now, &GuardConfig::default()).unwrap();
    assert_eq!(
        hang.sentence(),
        "GPU 2 of rank 2 on gn2 reported Xid 79 (fallen off the bus) at 22:14:17, and 7 GPUs wait"
    );
    let culprits: Vec<_> = hang.culprits.iter().map(|one| (one.rank, one.node.as_deref())).collect();
    assert_eq!((hang.kind, culprits), (HangKind::GpuError, vec![(2, Some("gn2"))]));
    let unexplained = NodeWait { gpu_errors: Vec::new(), ..lost };
    let standing = [("gn1".to_owned(), waits), ("gn2".to_owned(), unexplained)];
    assert_eq!(judge_nodes(&standing, 2, run.now, &GuardConfig::default()), None);
}
