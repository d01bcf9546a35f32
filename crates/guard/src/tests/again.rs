//! What was quiet works again: no hang, the end of one, and no job that is ended for it.

use super::*;

fn saves() -> RankState {
    RankState { bytes_s: Some(4e8), kernel: Some("rpc_wait_bit_killable".to_owned()), ..asleep() }
}

fn waits_for_nfs() -> RankState {
    RankState { state: Some('D'), kernel: Some("rpc_wait_bit_killable".to_owned()), ..asleep() }
}

#[test]
fn a_quiet_moment_of_a_rank_that_saves_or_computes_is_no_hang() {
    let computes = RankState { cpu_percent: Some(99.0), ..asleep() };
    for busy in [saves(), computes] {
        for quiet in [asleep(), waits_for_nfs()] {
            let mut run = Run::rank_2(busy.clone());
            for _ in 0..20 {
                run.ranks[2].state = Some(busy.clone());
                run.pass(720);
                run.ranks[2].state = Some(quiet.clone());
                run.pass(140);
            }
            assert_eq!(run.news, []);
            // The rest counts from its beginning.
            let begin = run.now - 140_000;
            run.pass(60);
            let hang = run.named().unwrap();
            assert_eq!((hang.since, hang.named), (begin, begin + 150_000));
        }
    }
}

#[test]
fn a_hang_is_over_when_the_rank_goes_on_while_the_others_still_wait() {
    let mut run = Run::rank_2(waits_for_nfs());
    run.pass(160);
    assert_eq!(run.named().unwrap().kind, HangKind::Storage);
    // The storage answers, and the save takes twenty more minutes.
    run.ranks[2].state = Some(saves());
    run.pass(1200);
    assert!(matches!(&run.news[..], [News::Named(_), News::Over(_)]), "{:?}", run.news);
    assert!(run.guard.open().is_none());
    // A debugger at the rank, or a probe that failed, shows nothing about the hang. It ends no job meanwhile.
    for unclear in [Some(RankState { state: Some('t'), ..asleep() }), None] {
        let mut run = Run::rank_2(asleep());
        run.pass(160);
        assert!(run.guard.is_confirmed(run.now));
        run.ranks[2].state = unclear;
        run.pass(600);
        assert!(run.guard.open().is_some() && !run.guard.is_confirmed(run.now));
        run.ranks[2].state = Some(asleep());
        run.pass(200);
        assert!(run.guard.is_confirmed(run.now));
        assert_eq!(run.news.len(), 1);
    }
    // The job writes to its logs.
    let mut run = rank_2_waits_for_its_gpu();
    run.pass(200);
    run.logged = Some(run.now);
    run.pass(10);
    assert!(matches!(&run.news[..], [News::Named(_), News::Over(_)]), "{:?}", run.news);
}

#[test]
fn a_rank_that_has_ended_is_no_proof_while_another_one_saves() {
    let mut run = Run::new();
    run.gpus = vec![Idle, Waits, Waits, Idle];
    run.ranks[3].ended = Some((run.now, ProcessExit::Code(0)));
    run.ranks[0].state = Some(saves());
    run.pass(1200);
    assert_eq!(run.news, []);
}

#[test]
fn a_rank_that_has_ended_is_no_proof_while_another_one_computes_on_the_cpu() {
    // Rank 3 uses no GPU.
    for gpus in [vec![Idle, Waits, Waits, Idle], vec![Idle, Waits, Waits]] {
        let mut run = Run::new();
        run.gpus = gpus;
        run.ranks[3].ended = Some((run.now, ProcessExit::Code(0)));
        run.pass(1200);
        assert_eq!(run.news, []);
        // A rank that merely rests on the CPU computes nothing.
        run.ranks[0].state = Some(asleep());
        run.pass(30);
        assert_eq!((run.named().unwrap().kind, run.culprits()), (HangKind::Gone, vec![3]));
        // It computes after all.
        run.ranks[0].state = Some(spins());
        run.pass(10);
        assert!(run.guard.open().is_none());
    }
}

#[test]
fn a_wait_for_storage_ends_a_job_only_if_its_owner_named_a_time_however_long_it_lasts() {
    let mut run = Run::rank_2(waits_for_nfs());
    run.pass(3600);
    let hang = run.guard.open().unwrap();
    assert_eq!(hang.kind, HangKind::Blocked);
    let config = GuardConfig::default();
    assert!(!config.ends(hang, false, run.now) && config.ends(hang, true, run.now));
}
