use std::time::Duration;

use railgate_model::ProcessExit;

use super::*;

use GpuActivity::{Idle, Waits, Works};

mod again;
mod gpu_errors;

const START: UnixMillis = 1_700_000_000_000;

/// A job on one node, in samples of 5 s.
struct Run {
    guard: Guard,
    now: UnixMillis,
    gpus: Vec<GpuActivity>,
    ranks: Vec<RankSample>,
    counts: Option<Counts>,
    alone: bool,
    running: bool,
    logged: Option<UnixMillis>,
    gpu_errors: Vec<SampledError>,
    news: Vec<News>,
}

fn asleep() -> RankState {
    RankState {
        state: Some('S'),
        kernel: Some("hrtimer_nanosleep".to_owned()),
        cpu_percent: Some(0.2),
        bytes_s: Some(0.0),
    }
}

fn spins() -> RankState {
    RankState { state: Some('R'), kernel: None, cpu_percent: Some(99.0), bytes_s: Some(0.0) }
}

fn rank_ops(rank: u32, ops: u64, op: &str) -> RankOps {
    RankOps { rank, pid: 100 + rank, ops, op: op.to_owned() }
}

impl Run {
    /// Four ranks that have worked for a minute.
    fn new() -> Self {
        let rank = |rank| RankSample { rank, pid: 100 + rank, ended: None, state: Some(spins()) };
        let mut run = Run {
            guard: Guard::new(GuardConfig::default(), Hangs::default()),
            now: START,
            gpus: vec![Works; 4],
            ranks: (0..4).map(rank).collect(),
            counts: None,
            alone: true,
            running: true,
            logged: None,
            gpu_errors: Vec::new(),
            news: Vec::new(),
        };
        run.pass(60);
        run
    }

    fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds / 5 {
            let start = self.now;
            self.now += 5000;
            let sample = NodeSample {
                start,
                end: self.now,
                running: self.running,
                gpus: &self.gpus,
                ranks: &self.ranks,
                counts: self.counts.as_ref(),
                alone: self.alone,
                logged: self.logged,
                ports_down: &[],
                gpu_errors: &self.gpu_errors,
            };
            self.news.extend(self.guard.add(&sample));
        }
    }

    /// Rank 2 does something else; the others wait for it.
    fn rank_2(state: RankState) -> Self {
        let mut run = Run::new();
        run.gpus = vec![Waits, Waits, Idle, Waits];
        run.ranks[2].state = Some(state);
        run.count(2);
        run
    }

    /// Counts that stand still from now on: this rank is behind by one operation.
    fn count(&mut self, behind: u32) {
        let ops = |rank| if rank == behind { 1180 } else { 1181 };
        let ranks = (0..4).map(|rank| rank_ops(rank, ops(rank), "AllReduce")).collect();
        let op = "AllReduce".to_owned();
        let of = CountsOf { communicator: "c0".to_owned(), size: 4, ranks, op, seq: Some(1181) };
        self.counts = Some(Counts { moved: self.now, communicators: vec![of] });
    }

    /// What the node says to the others of its job.
    fn stands_still(&self) -> Option<NodeWait> {
        let sample = NodeSample {
            start: self.now - 5000,
            end: self.now,
            running: true,
            gpus: &self.gpus,
            ranks: &self.ranks,
            counts: None,
            alone: self.alone,
            logged: None,
            ports_down: &[],
            gpu_errors: &self.gpu_errors,
        };
        self.guard.stands_still(&sample)
    }

    fn named(&self) -> Option<&Hang> {
        self.news.iter().find_map(|news| match news {
            News::Named(hang) => Some(hang),
            News::Over(_) => None,
        })
    }

    /// Seconds from the beginning of the wait, after a minute of work, to its naming.
    fn after_s(&self) -> u64 {
        (self.named().unwrap().named - START) / 1000 - 60
    }

    fn culprits(&self) -> Vec<u32> {
        self.named().unwrap().culprits.iter().map(|one| one.rank).collect()
    }
}

#[test]
fn a_rank_whose_process_has_ended_is_named_within_a_minute() {
    for exit in [ProcessExit::Code(0), ProcessExit::Code(1), ProcessExit::Signal(9), ProcessExit::Unknown] {
        let mut run = Run::new();
        run.gpus = vec![Waits, Waits, Idle, Waits];
        run.ranks[2].ended = Some((run.now + 1000, exit));
        run.pass(60);
        assert_eq!((run.culprits(), run.after_s()), (vec![2], 25));
        let hang = run.named().unwrap();
        assert_eq!((hang.kind, hang.since, hang.waiting_gpus), (HangKind::Gone, START + 61_000, 3));
        assert_eq!(hang.culprits[0].exit, Some(exit));
        assert_eq!(
            hang.signs[0],
            "3 of 4 GPUs of this node only ran kernels that wait, and none worked, for 24.0 s"
        );
        assert_eq!(hang.signs[1], format!("the process of rank 2 {exit}"));
        assert_eq!(run.news.len(), 1, "it is named once");
    }
}

#[test]
fn ranks_that_end_one_after_the_other_have_finished() {
    let mut run = Run::new();
    run.gpus = vec![Idle; 4];
    for rank in 0..4 {
        run.ranks[rank].ended = Some((run.now, ProcessExit::Code(0)));
        run.pass(30);
    }
    assert_eq!(run.news, []);
    // Rank 0 saves alone, and no other rank waits for it on a GPU.
    let mut run = Run::new();
    run.gpus = vec![Idle; 4];
    (1..4).for_each(|rank| run.ranks[rank].ended = Some((run.now, ProcessExit::Code(0))));
    run.pass(1200);
    assert_eq!(run.news, []);
    // The other ranks continue without it, and evaluate an hour later.
    let mut run = Run::new();
    run.ranks[3].ended = Some((run.now, ProcessExit::Code(0)));
    run.pass(3600);
    run.gpus = vec![Idle, Waits, Waits, Idle];
    run.ranks[0].state = Some(spins());
    run.pass(600);
    assert_eq!(run.news, []);
}

#[test]
fn a_stopped_rank_is_named_unless_the_whole_job_is_suspended() {
    let stopped = RankState { state: Some('T'), ..asleep() };
    let mut run = Run::rank_2(stopped.clone());
    run.counts = None;
    run.pass(120);
    assert_eq!((run.named().unwrap().kind, run.culprits(), run.after_s()), (HangKind::Stopped, vec![2], 45));
    let mut run = Run::rank_2(stopped.clone());
    run.ranks.iter_mut().for_each(|rank| rank.state = Some(stopped.clone()));
    run.pass(3600);
    assert_eq!(run.news, []);
    // Slurm suspended it: nothing is sampled.
    let mut run = Run::rank_2(stopped);
    run.running = false;
    run.pass(3600);
    assert_eq!(run.news, []);
}

#[test]
fn a_rank_that_sleeps_behind_the_others_is_named_after_its_time() {
    let mut run = Run::rank_2(asleep());
    run.pass(600);
    assert_eq!((run.named().unwrap().kind, run.culprits(), run.after_s()), (HangKind::Behind, vec![2], 150));
    let hang = run.named().unwrap();
    assert_eq!(hang.operation.as_ref().unwrap().seq, Some(1181));
    assert_eq!(
        hang.signs[1..],
        [
            "rank 2 enqueued 1180 operations, others 1181 (the last one: AllReduce), and no rank one more for 2 min 30 s",
            "rank 2 sleeps in hrtimer_nanosleep (state S), uses 0.2 % of a core and transfers no data",
        ]
    );
    // Without counts the idle GPU and the sleeping rank are the signs.
    let mut run = Run::rank_2(asleep());
    run.counts = None;
    run.pass(600);
    assert_eq!((run.culprits(), run.after_s()), (vec![2], 150));
    // Two sleep: which one is waited for is not known.
    let mut run = Run::rank_2(asleep());
    run.counts = None;
    run.ranks[3].state = Some(asleep());
    run.pass(600);
    assert_eq!(run.news, []);
}

#[test]
fn a_rank_that_computes_transfers_or_serves_is_no_hang() {
    let state = |change: fn(&mut RankState)| {
        let mut state = asleep();
        change(&mut state);
        state
    };
    for (what, state) in [
        ("evaluation on the CPU, compilation", state(|one| one.cpu_percent = Some(98.0))),
        ("save or staging", state(|one| one.bytes_s = Some(5e8))),
        (
            "slow save to a file server",
            state(|one| (one.bytes_s, one.kernel) = (Some(3e5), Some("nfs_wait".to_owned()))),
        ),
        ("server without requests", state(|one| one.kernel = Some("ep_poll".to_owned()))),
        ("the same on Linux 6.18", state(|one| one.kernel = Some("do_epoll_wait".to_owned()))),
        ("the same, compiled otherwise", state(|one| one.kernel = Some("do_epoll_wait.isra.0".to_owned()))),
        ("debugger", state(|one| one.state = Some('t'))),
        ("not readable", RankState::default()),
    ] {
        let mut run = Run::rank_2(state);
        run.pass(86_400);
        assert_eq!(run.news, [], "{what}");
    }
    // Evaluation on the GPU of one rank.
    let mut run = Run::rank_2(asleep());
    run.gpus[2] = Works;
    run.pass(86_400);
    assert_eq!(run.news, []);
    // Nothing is known about its process.
    let mut run = Run::rank_2(asleep());
    run.ranks[2].state = None;
    run.pass(86_400);
    assert_eq!(run.news, []);
}

#[test]
fn waiting_before_the_first_work_belongs_to_the_start_up() {
    let mut run = Run::new();
    run.guard = Guard::new(GuardConfig::default(), Hangs::default());
    run.gpus = vec![Waits, Waits, Idle, Waits];
    run.ranks[2].state = Some(asleep());
    run.count(2);
    run.pass(3600);
    assert_eq!(run.news, []);
    // A rank that is gone is proof at any time.
    run.ranks[2].ended = Some((run.guard.waits_since().unwrap() + 1000, ProcessExit::Code(1)));
    run.pass(30);
    assert_eq!(run.named().unwrap().kind, HangKind::Gone);
}

#[test]
fn progress_between_long_waits_ends_them() {
    let mut run = Run::rank_2(asleep());
    // A slow loader: one step in two minutes.
    for _ in 0..100 {
        run.pass(120);
        run.count(2);
    }
    assert_eq!(run.news, []);
    run.pass(160);
    assert!(matches!(run.news[..], [News::Named(_)]));
    // It went on between two samples, while GPUs wait again.
    run.count(2);
    let moved = run.now;
    run.pass(10);
    assert!(matches!(&run.news[..], [_, News::Over(hang)] if hang.over == Some(moved)), "{:?}", run.news);
    run.gpus = vec![Works; 4];
    run.pass(10);
    assert_eq!((run.news.len(), run.guard.waits_since()), (2, None));
    run.gpus = vec![Waits, Waits, Idle, Waits];
    run.count(2);
    run.pass(160);
    assert_eq!(run.guard.hangs().list.len(), 2);
    run.gpus = vec![Works; 4];
    run.pass(10);
    assert!(run.guard.hangs().list.iter().all(|hang| hang.over.is_some()));
}

#[test]
fn a_wait_for_storage_is_named_and_becomes_a_hang_only_later() {
    for kernel in
        ["fuse_dev_do_write", "request_wait_answer", "rpc_wait_bit_killable", "folio_wait_bit_common"]
    {
        let state = RankState { state: Some('D'), kernel: Some(kernel.to_owned()), ..asleep() };
        let mut run = Run::rank_2(state);
        run.pass(590);
        assert_eq!((run.named().unwrap().kind, run.after_s()), (HangKind::Storage, 150), "{kernel}");
        assert!(!run.named().unwrap().kind.is_hang());
        run.pass(60);
        let kinds: Vec<HangKind> = run.guard.hangs().list.iter().map(|hang| hang.kind).collect();
        assert_eq!((kinds, run.news.len()), (vec![HangKind::Blocked], 2));
        assert_eq!(run.guard.hangs().list[0].since, START + 60_000);
    }
    // A rank that waits for memory, in no file system.
    let state = RankState { state: Some('D'), kernel: Some("nvidia_poll".to_owned()), ..asleep() };
    let mut run = Run::rank_2(state);
    run.pass(200);
    assert_eq!((run.named().unwrap().kind, run.after_s()), (HangKind::Blocked, 150));
}

#[test]
fn a_deadlock_of_all_ranks_needs_a_second_sign() {
    let mut run = Run::new();
    run.gpus = vec![Waits; 4];
    run.pass(3600);
    assert_eq!(run.news, []);
    let mut run = Run::new();
    run.gpus = vec![Waits; 4];
    run.count(9);
    run.pass(300);
    assert_eq!((run.named().unwrap().kind, run.culprits(), run.after_s()), (HangKind::AllWait, vec![], 150));
    let mut run = Run::new();
    run.gpus = vec![Waits; 4];
    run.logged = Some(run.now - 20_000);
    run.pass(300);
    assert_eq!(run.named().unwrap().signs[1], "nothing was written to the job's logs for 2 min 50 s");
    // The ranks of this node may wait for another node.
    let mut run = Run::new();
    run.gpus = vec![Waits; 4];
    run.alone = false;
    run.count(9);
    run.pass(3600);
    assert_eq!(run.news, []);
    // One GPU cannot wait for another.
    let mut run = Run::new();
    run.gpus = vec![Waits];
    run.count(9);
    run.pass(3600);
    assert_eq!(run.news, []);
}

#[test]
fn times_of_which_nothing_is_known_end_no_hang_and_begin_none() {
    let mut run = Run::rank_2(asleep());
    run.pass(160);
    run.gpus = vec![GpuActivity::Unknown; 4];
    run.pass(600);
    run.gpus = vec![Idle; 4];
    run.pass(600);
    run.running = false;
    run.pass(600);
    run.running = true;
    run.gpus = vec![Waits, Waits, Idle, Waits];
    run.pass(160);
    assert_eq!((run.news.len(), run.guard.hangs().list.len()), (1, 1));
    // A sampler that replaces a killed one knows the hang that it named.
    let before = run.guard.hangs().clone();
    run.guard = Guard::new(GuardConfig::default(), before);
    run.pass(60);
    run.gpus = vec![Works; 4];
    run.pass(10);
    assert!(matches!(run.news[..], [News::Named(_), News::Over(_)]), "{:?}", run.news);
}

#[test]
fn samples_without_values_of_the_gpus_only_delay_a_hang() {
    let named_after = |without| {
        let mut run = Run::rank_2(asleep());
        let waits = run.gpus.clone();
        for _ in 0..20 {
            run.gpus.clone_from(&waits);
            run.pass(20);
            run.gpus = vec![GpuActivity::Unknown; 4];
            run.pass(without);
        }
        run.named().map(|hang| (hang.named - hang.since) / 1000)
    };
    assert_eq!([named_after(0), named_after(5), named_after(30)], [Some(150), Some(150), Some(150)]);
    assert_eq!(named_after(35), None);
}

#[test]
fn suspicion_comes_before_any_hang() {
    let mut run = Run::rank_2(asleep());
    assert!(!run.guard.is_suspicious(run.now));
    run.pass(10);
    assert!(!run.guard.is_suspicious(run.now));
    run.pass(10);
    assert!(run.guard.is_suspicious(run.now));
    let least = GuardConfig::default();
    assert!(least.after_exit.min(least.after_stop) > Duration::from_secs(15));
}

#[test]
fn limits_of_the_configuration_are_named() {
    assert_eq!(GuardConfig::default().problems(), Vec::<String>::new());
    let short = GuardConfig { after: Duration::from_secs(5), ..GuardConfig::default() };
    assert_eq!(short.problems(), ["guard.after: 5s is not within 1m to 1day"]);
}

/// Each kind of work that only looks like a hang, for 24 hours of a simulated clock.
#[test]
fn a_day_of_work_that_waits_has_no_hang() {
    const DAY: u64 = 86_400;
    let state = |state, kernel: &str, cpu, bytes| RankState {
        state: Some(state),
        kernel: Some(kernel.to_owned()),
        cpu_percent: Some(cpu),
        bytes_s: Some(bytes),
    };
    let all = |run: &mut Run, to: GpuActivity, state: &RankState| {
        run.gpus = vec![to; 4];
        run.ranks.iter_mut().for_each(|rank| rank.state = Some(state.clone()));
    };
    let train = |run: &mut Run, seconds| {
        all(run, Works, &spins());
        run.counts = None;
        run.pass(seconds);
    };
    // Work of this length, then a wait of this length in which rank 2 does this on its GPU and elsewhere.
    let alternate = |work, wait, gpu, state: RankState| {
        let mut run = Run::new();
        for _ in 0..DAY / (work + wait) {
            train(&mut run, work);
            run.gpus = vec![Waits, Waits, gpu, Waits];
            run.ranks[2].state = Some(state.clone());
            run.count(2);
            run.pass(wait);
        }
        run
    };
    let computes = state('R', "", 99.0, 0.0);
    for (what, run) in [
        ("evaluation on one GPU", alternate(3000, 600, Works, computes.clone())),
        ("evaluation on the CPU of one rank", alternate(3000, 600, Idle, computes.clone())),
        ("save by one rank", alternate(6000, 1200, Idle, state('D', "rpc_wait_bit_killable", 3.0, 4e8))),
        ("compilation on one rank", alternate(7200, 1800, Idle, computes.clone())),
        ("one request in 10 min", alternate(5, 595, Idle, state('S', "ep_poll", 0.3, 50.0))),
        ("staging on one rank", alternate(3000, 600, Idle, state('S', "poll_schedule_timeout", 2.0, 9e6))),
    ] {
        assert_eq!(run.news, [], "{what}");
    }
    // An idle notebook, and a compilation on all ranks.
    for state in [state('S', "ep_poll", 0.1, 0.0), computes] {
        let mut run = Run::new();
        all(&mut run, Idle, &state);
        run.pass(DAY);
        assert_eq!(run.news, []);
    }
    // Suspended in the middle of a collective and resumed, every half hour.
    let mut run = Run::new();
    for _ in 0..48 {
        train(&mut run, 900);
        run.gpus = vec![Waits, Waits, Idle, Waits];
        run.pass(10);
        run.running = false;
        all(&mut run, Idle, &state('T', "do_signal_stop", 0.0, 0.0));
        run.pass(880);
        run.running = true;
        run.gpus = vec![Waits, Waits, Idle, Waits];
        run.pass(10);
    }
    assert_eq!(run.news, []);
    // The storage of the site stands for five minutes, every hour: all ranks wait for it, or three wait in a collective.
    for gpus in [vec![Idle; 4], vec![Waits, Waits, Idle, Waits]] {
        let mut run = Run::new();
        for _ in 0..24 {
            train(&mut run, 3300);
            run.gpus.clone_from(&gpus);
            let stalled = state('D', "nfs_wait_bit_killable", 0.0, 0.0);
            run.ranks.iter_mut().for_each(|rank| rank.state = Some(stalled.clone()));
            run.count(2);
            run.pass(300);
        }
        let named = run.guard.hangs();
        assert!(named.list.iter().all(|hang| hang.kind == HangKind::Storage), "{named:?}");
        assert_eq!(named.is_empty(), gpus[0] == Idle);
    }
}

#[test]
fn steps_are_ended_after_the_chosen_time_and_not_before_the_hang_is_known_elsewhere() {
    let mut run = Run::rank_2(asleep());
    run.pass(200);
    let hang = run.named().unwrap().clone();
    let after = |seconds: u64| hang.since + seconds * 1000;
    let config = |seconds| GuardConfig { end_after: Duration::from_secs(seconds), ..GuardConfig::default() };
    assert!(!config(300).ends(&hang, false, after(299)) && config(300).ends(&hang, false, after(300)));
    // Named after 150 s.
    assert!(!config(30).ends(&hang, false, after(159)) && config(30).ends(&hang, false, after(160)));
    let storage = Hang { kind: HangKind::Storage, ..hang.clone() };
    assert!(!config(300).ends(&storage, false, after(4000)), "storage may recover");
    assert!(config(300).ends(&storage, true, after(300)), "the owner named a time");
}

#[test]
fn a_node_of_several_says_that_it_stands_still_if_its_gpus_wait_or_all_its_ranks_rest() {
    let stands = |gpus: Vec<GpuActivity>, state: RankState, alone: bool, seconds: u64| {
        let mut run = Run::new();
        (run.gpus, run.alone) = (gpus, alone);
        run.ranks.iter_mut().for_each(|rank| rank.state = Some(state.clone()));
        run.pass(seconds);
        run.stands_still().map(|wait| (wait.waiting_gpus, wait.at_rest.len()))
    };
    let all = |gpu| vec![gpu; 4];
    assert_eq!(stands(all(Waits), spins(), false, 150), Some((4, 0)));
    assert_eq!(stands(all(Waits), spins(), false, 140), None, "not long enough");
    assert_eq!(stands(all(Waits), spins(), true, 900), None, "no other node");
    assert_eq!(stands(all(Idle), asleep(), false, 150), Some((0, 4)));
    assert_eq!(stands(all(Idle), spins(), false, 900), None, "its ranks compute");
    let serves = RankState { kernel: Some("ep_poll".to_owned()), ..asleep() };
    assert_eq!(stands(all(Idle), serves, false, 900), None, "its ranks wait for requests");
    assert_eq!(stands(all(Works), asleep(), false, 900), None);
}

/// All four GPUs wait, and rank 2 polls its own one although it is behind.
fn rank_2_waits_for_its_gpu() -> Run {
    let mut run = Run::new();
    run.gpus = vec![Waits; 4];
    run.count(2);
    run.logged = Some(run.now);
    run
}

#[test]
fn a_rank_whose_own_kernel_does_not_end_is_named_if_the_logs_are_silent() {
    let mut run = rank_2_waits_for_its_gpu();
    run.pass(200);
    let hang = run.named().unwrap();
    assert_eq!((hang.kind, run.culprits(), run.after_s()), (HangKind::OwnGpu, vec![2], 150));
    assert_eq!(
        hang.sentence(),
        "rank 2 is waiting for a kernel of its own GPU that does not end, and 4 GPUs wait in AllReduce number 1182"
    );
    assert_eq!(hang.signs.last().unwrap(), "nothing was written to the job's logs for 2 min 30 s");
    // An evaluation on small kernels: it writes its progress, transfers data, or its logs are not known.
    let not_a_hang: [fn(&mut Run); 3] = [
        |run| run.logged = None,
        |run| run.ranks[2].state = Some(RankState { bytes_s: Some(5e6), ..spins() }),
        |run| run.alone = false,
    ];
    for change in not_a_hang {
        let mut run = rank_2_waits_for_its_gpu();
        change(&mut run);
        run.pass(600);
        assert_eq!(run.news, []);
    }
    let mut run = rank_2_waits_for_its_gpu();
    for _ in 0..10 {
        run.logged = Some(run.now);
        run.pass(60);
    }
    assert_eq!(run.news, []);
}

#[test]
fn ranks_that_wait_for_each_other_in_two_communicators_are_no_single_culprit() {
    let mut run = rank_2_waits_for_its_gpu();
    let counts = run.counts.as_mut().unwrap();
    let ops = |rank| if rank == 2 { 7 } else { 6 };
    let ranks = (0..4).map(|rank| rank_ops(rank, ops(rank), "Broadcast")).collect();
    let op = "Broadcast".to_owned();
    counts.communicators.push(CountsOf { communicator: "c1".to_owned(), size: 4, ranks, op, seq: None });
    run.pass(200);
    let hang = run.named().unwrap();
    assert_eq!((hang.kind, hang.culprits.len(), run.after_s()), (HangKind::Order, 0, 150));
    assert_eq!(
        hang.signs[1..3],
        [
            "rank 2 enqueued 1180 operations, others 1181 (the last one: AllReduce), and no rank one more for 2 min 30 s",
            "in another communicator ranks 0, 1, 3 are behind (the last operation there: Broadcast)",
        ]
    );
}

#[test]
fn the_operation_is_that_of_the_communicator_in_which_ranks_are_behind() {
    let mut run = Run::rank_2(asleep());
    let counts = run.counts.as_mut().unwrap();
    let ranks = (0..4).map(|rank| rank_ops(rank, 7, "Broadcast")).collect();
    let op = "Broadcast".to_owned();
    counts.communicators.push(CountsOf { communicator: "c1".to_owned(), size: 4, ranks, op, seq: Some(7) });
    run.pass(200);
    let operation = run.named().unwrap().operation.clone().unwrap();
    assert_eq!(
        (operation.communicator.as_str(), operation.op.as_str(), operation.seq),
        ("c0", "AllReduce", Some(1181))
    );
}

#[test]
fn ranks_that_sleep_while_their_gpus_wait_are_judged_by_both_communicators() {
    let mut run = rank_2_waits_for_its_gpu();
    let counts = run.counts.as_mut().unwrap();
    let ranks = (0..4).map(|rank| rank_ops(rank, if rank == 2 { 7 } else { 6 }, "AllReduce")).collect();
    let op = "AllReduce".to_owned();
    counts.communicators.push(CountsOf { communicator: "c1".to_owned(), size: 4, ranks, op, seq: None });
    run.ranks.iter_mut().for_each(|rank| rank.state = Some(asleep()));
    run.logged = None;
    run.pass(200);
    assert_eq!((run.named().unwrap().kind, run.culprits()), (HangKind::Order, vec![]));
}

#[test]
fn a_rank_in_another_operation_than_the_others_is_named() {
    let mut run = rank_2_waits_for_its_gpu();
    let op = |rank| if rank == 2 { "Broadcast" } else { "AllReduce" };
    run.counts.as_mut().unwrap().communicators[0].ranks =
        (0..4).map(|rank| rank_ops(rank, 1181, op(rank))).collect();
    run.pass(200);
    let hang = run.named().unwrap();
    assert_eq!((hang.kind, run.culprits()), (HangKind::Order, vec![2]));
    assert_eq!(hang.sentence(), "rank 2 is in another operation than the other ranks, and 4 GPUs wait");
    assert_eq!(
        hang.signs[1..],
        ["operation 1181 of ranks 0, 1, 3 is AllReduce", "operation 1181 of rank 2 is Broadcast"]
    );
    // With two halves, neither is the culprit.
    let mut run = rank_2_waits_for_its_gpu();
    let op = |rank| if rank % 2 == 0 { "Broadcast" } else { "AllReduce" };
    run.counts.as_mut().unwrap().communicators[0].ranks =
        (0..4).map(|rank| rank_ops(rank, 1181, op(rank))).collect();
    run.pass(200);
    assert_eq!((run.named().unwrap().kind, run.culprits()), (HangKind::Order, vec![]));
}

#[test]
fn a_loader_in_poll_or_a_driver_in_ioctl_does_not_wait_for_storage() {
    for kernel in
        ["poll_schedule_timeout.constprop.0", "nvidia_ioctl_wait", "futex_wait_queue", "do_poll", "pipe_read"]
    {
        assert!(!judge::is_of_storage(kernel), "{kernel}");
    }
    for kernel in [
        "request_wait_answer",
        "fuse_lock_inode",
        "nfs_wait_bit_killable",
        "nfs4_run_open_task",
        "rpc_wait_bit_killable",
        "ll_lookup_it",
        "cl_sync_io_wait",
        "ptlrpc_set_wait",
        "folio_wait_bit_common",
        "__wait_on_page_bit",
        "jbd2_log_wait_commit",
    ] {
        assert!(judge::is_of_storage(kernel), "{kernel}");
    }
}
