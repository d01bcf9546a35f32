//! Thirty-seven kinds of hangs of a job on four nodes with eight ranks each, on a simulated clock: who is named, as what, and how soon.

use std::collections::BTreeSet;
use std::time::Duration;

use railgate_guard::{
    Counts, CountsOf, Guard, GuardConfig, News, NodeSample, RankOps, RankSample, RankState, SampledError,
    judge_nodes,
};
use railgate_model::{ProcessExit, UnixMillis};
use railgate_node_report::phases::GpuActivity::{self, Idle, Unknown, Waits, Works};
use railgate_node_report::{GpuError, Hang, HangKind, Hangs, NodeWait};

const START: UnixMillis = 1_700_000_000_000;
const FAULT: UnixMillis = START + 60_000;
const SAMPLE: UnixMillis = 5_000;
const NODES: u32 = 4;
const EACH: u32 = 8;

/// What the ranks do for which the others wait.
#[derive(Clone, Copy)]
enum Does {
    /// Their processes end.
    Ends(ProcessExit),
    /// State and function of the kernel, percent of a core, bytes per second.
    Is(char, &'static str, f64, f64),
    /// They wait in a kernel, as all do.
    Waits,
    /// Their GPUs run a kernel that computes for ever.
    Computes,
    /// Their GPUs run a kernel of one thread block that does not end.
    OneBlock,
    /// Their GPUs report an Xid and cannot be read, and they poll. The driver names the process or not.
    Fails(u32, bool),
}

/// What is to be reported.
#[derive(Clone, Copy)]
enum Want {
    /// This, with these ranks, within this time in seconds.
    Named(HangKind, u64),
    /// This without a rank.
    NoRank(HangKind, u64),
    /// Nothing: it could as well be work.
    Nothing,
}

use Does::{Computes, Ends, Fails, Is, OneBlock};
use HangKind::{AllWait, Behind, Blocked, Gone, OwnGpu, Stopped, Storage};
use Want::{Named, NoRank, Nothing};

struct Kind {
    name: &'static str,
    ranks: &'static [u32],
    does: Does,
    /// NCCL's profiler plugin counts operations.
    counted: bool,
    want: Want,
}

const NODE_2: &[u32] = &[16, 17, 18, 19, 20, 21, 22, 23];
const ALL: &[u32] = &[];

const fn kind(name: &'static str, ranks: &'static [u32], does: Does, counted: bool, want: Want) -> Kind {
    Kind { name, ranks, does, counted, want }
}

const SLEEP: Does = Is('S', "hrtimer_nanosleep", 0.1, 0.0);
const LOCK: Does = Is('S', "futex_wait_queue", 0.2, 0.0);
const LOADER: Does = Is('S', "pipe_read", 0.1, 0.0);
const FUSE: Does = Is('D', "request_wait_answer", 0.0, 0.0);
const NFS: Does = Is('D', "rpc_wait_bit_killable", 0.0, 0.0);
const DRIVER: Does = Is('D', "nvidia_ioctl", 0.0, 0.0);

const KINDS: [Kind; 37] = [
    kind("exit 0", &[5], Ends(ProcessExit::Code(0)), true, Named(Gone, 60)),
    kind("exit 0, no profiler", &[5], Ends(ProcessExit::Code(0)), false, Named(Gone, 60)),
    kind("exception", &[9], Ends(ProcessExit::Code(1)), true, Named(Gone, 60)),
    kind("segmentation fault", &[31], Ends(ProcessExit::Signal(11)), false, Named(Gone, 60)),
    kind("killed for its memory", &[0], Ends(ProcessExit::Signal(9)), true, Named(Gone, 60)),
    kind("end of unknown status", &[12], Ends(ProcessExit::Unknown), false, Named(Gone, 60)),
    kind("two ranks of a node end", &[8, 9], Ends(ProcessExit::Code(1)), true, Named(Gone, 60)),
    kind("SIGSTOP", &[3], Is('T', "do_signal_stop", 0.0, 0.0), true, Named(Stopped, 60)),
    kind("SIGSTOP, no profiler", &[3], Is('T', "do_signal_stop", 0.0, 0.0), false, Named(Stopped, 60)),
    kind("SIGSTOP of a whole node", NODE_2, Is('T', "do_signal_stop", 0.0, 0.0), true, Named(Stopped, 180)),
    kind("sleep in Python", &[6], SLEEP, true, Named(Behind, 180)),
    kind("sleep in Python, no profiler", &[6], SLEEP, false, Named(Behind, 180)),
    kind("sleep of the first rank", &[0], SLEEP, true, Named(Behind, 180)),
    kind("sleep of three ranks", &[10, 11, 12], SLEEP, true, Named(Behind, 180)),
    kind("sleep of a whole node", NODE_2, SLEEP, true, Named(Behind, 180)),
    kind("sleep of a whole node, no profiler", NODE_2, SLEEP, false, Named(Behind, 180)),
    kind("deadlock of threads", &[27], LOCK, true, Named(Behind, 180)),
    kind("deadlock of threads, no profiler", &[27], LOCK, false, Named(Behind, 180)),
    kind("stuck loader worker", &[14], LOADER, true, Named(Behind, 180)),
    kind("stuck loaders of a whole node", NODE_2, LOADER, true, Named(Behind, 180)),
    kind("dead FUSE", &[1], FUSE, true, Named(Storage, 180)),
    kind("dead NFS, no profiler", &[1], NFS, false, Named(Storage, 180)),
    kind("dead NFS on a whole node", NODE_2, NFS, true, Named(Storage, 180)),
    kind(
        "checkpoint that never returns",
        &[0],
        Is('D', "folio_wait_bit_common", 0.0, 0.0),
        true,
        Named(Storage, 180),
    ),
    kind("stuck in the driver", &[20], DRIVER, true, Named(Blocked, 180)),
    kind("stuck in the driver, no profiler", &[20], DRIVER, false, Named(Blocked, 180)),
    kind("collectives in another order", ALL, Does::Waits, true, NoRank(AllWait, 260)),
    kind("collectives of another size", ALL, Does::Waits, false, NoRank(AllWait, 260)),
    kind("a small GPU kernel that never ends", &[4], OneBlock, true, Named(OwnGpu, 180)),
    kind("a GPU off the bus", &[11], Fails(79, true), true, Named(HangKind::GpuError, 180)),
    kind(
        "a GPU off the bus, no process named",
        &[11],
        Fails(79, false),
        true,
        NoRank(HangKind::GpuError, 180),
    ),
    kind(
        "a page fault of a kernel, no profiler",
        &[11],
        Fails(31, true),
        false,
        Named(HangKind::GpuError, 180),
    ),
    kind("an Xid that ends no work", &[11], Fails(63, true), true, Nothing),
    kind("a large GPU kernel that never ends", &[4], Computes, true, Nothing),
    kind("an endless loop on the CPU", &[4], Is('R', "", 100.0, 0.0), true, Nothing),
    kind("a rank that swaps", &[4], Is('D', "io_schedule", 2.0, 40e6), true, Nothing),
    kind("a rank under a debugger", &[4], Is('t', "ptrace_stop", 0.0, 0.0), true, Nothing),
];

/// Samples of one node.
struct Node {
    guard: Guard,
    first: u32,
    standing: Option<NodeWait>,
}

impl Node {
    fn sample(&mut self, kind: &Kind, now: UnixMillis) -> Option<News> {
        let faulty = |rank: u32| kind.ranks.contains(&rank);
        let ranks = self.first..self.first + EACH;
        let hangs = now >= FAULT;
        let spins = RankState { state: Some('R'), kernel: None, cpu_percent: Some(99.0), bytes_s: Some(0.0) };
        let sample = |rank: u32| {
            let mut one = RankSample { rank, pid: 100 + rank, ended: None, state: Some(spins.clone()) };
            match kind.does {
                Ends(exit) if hangs && faulty(rank) => (one.ended, one.state) = (Some((FAULT, exit)), None),
                Is(state, kernel, cpu, bytes) if hangs && faulty(rank) => {
                    let kernel = Some(kernel.to_owned()).filter(|kernel| !kernel.is_empty());
                    one.state = Some(RankState {
                        state: Some(state),
                        kernel,
                        cpu_percent: Some(cpu),
                        bytes_s: Some(bytes),
                    });
                }
                _ => {}
            }
            one
        };
        let gpu = |rank: u32| match kind.does {
            _ if !hangs => Works,
            Computes if faulty(rank) => Works,
            Fails(..) if faulty(rank) => Unknown,
            Ends(_) | Is(..) if faulty(rank) => Idle,
            _ => Waits,
        };
        let (ranks, gpus): (Vec<RankSample>, Vec<GpuActivity>) =
            ranks.map(|rank| (sample(rank), gpu(rank))).unzip();
        let moved = if hangs { FAULT } else { now };
        let of = |one: &RankSample| RankOps {
            rank: one.rank,
            pid: one.pid,
            ops: if hangs && faulty(one.rank) { 1180 } else { 1181 },
            op: "AllReduce".to_owned(),
        };
        let counts = Counts {
            moved,
            communicators: vec![CountsOf {
                communicator: "c0".to_owned(),
                size: NODES * EACH,
                ranks: ranks.iter().map(of).collect(),
                op: "AllReduce".to_owned(),
                seq: Some(1181),
            }],
        };
        let errors: Vec<SampledError> = match kind.does {
            Fails(code, names) if hangs => {
                let gpu_error = |(place, one): (usize, &RankSample)| {
                    let error = GpuError::new(u32::try_from(place).ok()?, code, "", FAULT)?;
                    Some(SampledError { place, pid: names.then_some(one.pid), error })
                };
                ranks.iter().enumerate().filter(|(_, one)| faulty(one.rank)).filter_map(gpu_error).collect()
            }
            _ => Vec::new(),
        };
        let sample = NodeSample {
            start: now,
            end: now + SAMPLE,
            running: true,
            gpus: &gpus,
            ranks: &ranks,
            counts: kind.counted.then_some(&counts),
            alone: false,
            logged: Some(moved),
            ports_down: &[],
            gpu_errors: &errors,
        };
        let news = self.guard.add(&sample);
        self.standing = self.guard.stands_still(&sample);
        news
    }
}

/// The first hang that a node names, and after how many seconds.
fn named(kind: &Kind) -> Option<(Hang, u64)> {
    let config = GuardConfig::default();
    let node =
        |at| Node { guard: Guard::new(config.clone(), Hangs::default()), first: at * EACH, standing: None };
    let mut nodes: Vec<Node> = (0..NODES).map(node).collect();
    let mut late_samples = 0;
    for sample in 0..120 {
        let now = START + sample * SAMPLE;
        let after = (now + SAMPLE).saturating_sub(FAULT) / 1000;
        let all: Vec<News> = nodes.iter_mut().filter_map(|node| node.sample(kind, now)).collect();
        if let Some(News::Named(hang)) = all.into_iter().next() {
            return Some((hang, after));
        }
        // Once the first node has stood still for `after`, it reads what the others have written 20 s later, then every 30 s, as the
        // sampler does.
        let own = nodes.first().and_then(|first| first.standing.as_ref());
        let late = own.is_some_and(|wait| Duration::from_millis(wait.as_of - wait.since) >= config.after);
        late_samples = if late { late_samples + 1 } else { 0 };
        if late_samples > 4 && (late_samples - 5) % 6 == 0 {
            let standing: Vec<(String, NodeWait)> = (0..)
                .zip(&nodes)
                .filter_map(|(at, node): (u32, &Node)| Some((format!("n{at}"), node.standing.clone()?)))
                .collect();
            if let Some(hang) = judge_nodes(&standing, nodes.len(), now + SAMPLE, &config) {
                return Some((hang, after));
            }
        }
    }
    None
}

#[test]
fn each_kind_is_named_with_its_ranks_or_not_at_all() {
    let mut wrong = Vec::new();
    for kind in &KINDS {
        let found = named(kind);
        let told = found.as_ref().map(|(hang, after)| format!("{} after {after} s", hang.sentence()));
        let ranks = |hang: &Hang| hang.culprits.iter().map(|one| one.rank).collect::<BTreeSet<u32>>();
        let wanted: BTreeSet<u32> = kind.ranks.iter().copied().collect();
        let right = match (kind.want, &found) {
            (Nothing, None) => true,
            (Named(what, within), Some((hang, after))) => {
                hang.kind == what && ranks(hang) == wanted && *after <= within
            }
            (NoRank(what, within), Some((hang, after))) => {
                hang.kind == what && hang.culprits.is_empty() && *after <= within
            }
            _ => false,
        };
        println!("{:<38} {}", kind.name, told.as_deref().unwrap_or("-"));
        if !right {
            wrong.push((kind.name, told));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
