//! Whether a wait is a hang, and who is waited for.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use railgate_model::UnixMillis;
use railgate_node_report::phases::GpuActivity;
use railgate_node_report::plain::span;
use railgate_node_report::{Culprit, GpuError, Hang, HangKind, WaitedIn};

use crate::GuardConfig;
use crate::rests::Rests;
use crate::sample::{Counts, CountsOf, NodeSample, RankSample, RankState, SampledError};

/// CPU time above which a rank computes, percent of one core. A rank that sleeps has threads that wake up now and then.
const COMPUTES: f64 = 10.0;
/// CPU time of a rank that waits in a collective, percent of one core: most programs poll the GPU continuously.
const SPINS: f64 = 50.0;
/// Transfers above which a rank reads or saves data, bytes per second.
const TRANSFERS: f64 = 100_000.0;
/// Maximum time between the end of a rank and the beginning of the wait for it, milliseconds. The other ranks first complete the
/// operations that they have enqueued.
const NEEDED: UnixMillis = 120_000;
/// Functions of the kernel in which a server waits for requests, by release. Training programs do not sleep there: Python's queues and
/// data loaders use `poll` and `futex`.
const REQUESTS: [&str; 5] =
    ["ep_poll", "do_epoll_wait", "inet_csk_accept", "inet_csk_wait_for_connect", "unix_accept"];
/// Beginnings of words in names of functions in which a process waits for a file system: `ll_` is of `ll_lookup_it`, not of
/// `poll_schedule_timeout`.
const STORAGE: [&str; 20] = [
    "fuse",
    "request_wait_answer",
    "nfs",
    "rpc_wait",
    "lustre",
    "ll_",
    "cl_",
    "osc_",
    "ptlrpc",
    "gpfs",
    "beegfs",
    "ceph",
    "cifs",
    "io_schedule",
    "folio_wait",
    "wait_on_page",
    "jbd2",
    "balance_dirty_pages",
    "iomap",
    "blk_",
];

/// The hang that this sample shows. `since`: the time of the last progress; `begun`: the GPUs have worked before.
pub(crate) fn judge(
    sample: &NodeSample<'_>,
    since: UnixMillis,
    begun: bool,
    set: &GuardConfig,
    rests: &Rests,
) -> Option<Hang> {
    let case = Case { sample, since, rests };
    case.gone(set.after_exit).or_else(|| {
        if !begun {
            return None;
        }
        case.stopped(set.after_stop).or_else(|| if case.lasts(set.after) { case.stands(set) } else { None })
    })
}

/// A wait that is judged.
struct Case<'a> {
    /// The latest sample of the node.
    sample: &'a NodeSample<'a>,
    /// Since when no rank has made progress.
    since: UnixMillis,
    rests: &'a Rests,
}

impl Case<'_> {
    fn lasts(&self, time: Duration) -> bool {
        Duration::from_millis(self.sample.end.saturating_sub(self.since)) >= time
    }

    fn gone(&self, after: Duration) -> Option<Hang> {
        let gone: Vec<&RankSample> = self.sample.ranks.iter().filter(|one| one.ended.is_some()).collect();
        // Ranks that end one after the other have finished.
        if gone.is_empty() || gone.len() == self.sample.ranks.len() {
            return None;
        }
        let last = gone.iter().filter_map(|one| Some(one.ended?.0)).max()?;
        let case = Case { since: self.since.max(last), ..*self };
        // Ranks that worked for longer than that do not need the rank that ended, nor do those that wait for one that saves or computes.
        let other_reason = || saves_on_any(self.sample) || computes_on_cpu(self.sample, self.since);
        if !case.lasts(after) || self.since > last.saturating_add(NEEDED) || other_reason() {
            return None;
        }
        let signs = gone.iter().filter_map(|one| {
            let (_, exit) = one.ended?;
            Some(format!("the process of rank {} {exit}", one.rank))
        });
        Some(Hang { since: gone_first(&gone)?, ..case.hang(HangKind::Gone, &gone, signs.collect()) })
    }

    fn stopped(&self, after: Duration) -> Option<Hang> {
        let is_stopped = |one: &&RankSample| one.state.as_ref().is_some_and(|state| state.state == Some('T'));
        let stopped: Vec<&RankSample> = running(self.sample).filter(is_stopped).collect();
        // If all are, the job is suspended.
        if stopped.is_empty() || stopped.len() == running(self.sample).count() || !self.lasts(after) {
            return None;
        }
        let signs =
            stopped.iter().map(|one| format!("the program of rank {} is stopped (state T)", one.rank));
        Some(self.hang(HangKind::Stopped, &stopped, signs.collect()))
    }

    /// No rank makes progress, although all processes run.
    fn stands(&self, set: &GuardConfig) -> Option<Hang> {
        let found = self.stands_by_ranks(set);
        match found {
            None => self.gpu_error(),
            Some(Hang { kind: HangKind::AllWait, .. }) => self.gpu_error().or(found),
            Some(_) => found,
        }
    }

    /// A GPU of the job reported an error, and no rank saves or computes.
    fn gpu_error(&self) -> Option<Hang> {
        let other_reason = || saves_on_any(self.sample) || computes_on_cpu(self.sample, self.since);
        if errors_of(self.sample, self.since).next().is_none() || other_reason() {
            return None;
        }
        let named = |rank: &&RankSample| {
            errors_of(self.sample, self.since).any(|(_, error)| error.rank == Some(rank.rank))
        };
        let culprits: Vec<&RankSample> = running(self.sample).filter(named).collect();
        Some(self.hang(HangKind::GpuError, &culprits, Vec::new()))
    }

    /// The ranks show who is waited for, or that all wait.
    fn stands_by_ranks(&self, set: &GuardConfig) -> Option<Hang> {
        let Some((behind, signs)) = self.behind().or_else(|| self.sleeps_alone()) else {
            return self.different().or_else(|| self.all_wait(set));
        };
        let states: Vec<&RankState> = behind.iter().map(|one| one.state.as_ref()).collect::<Option<_>>()?;
        if states.iter().any(|state| !is_at_rest(state)) {
            return self.own_gpu(&behind, signs, set).filter(|_| states.iter().all(|state| polls(state)));
        }
        // A rank that saved or computed a moment ago may do so again: its rest counts, and not the wait of the others.
        let rest = behind.iter().map(|one| self.rests.since(one)).collect::<Option<Vec<_>>>()?;
        let case = Case { since: rest.into_iter().fold(self.since, UnixMillis::max), ..*self };
        if !case.lasts(set.after) {
            return None;
        }
        case.resting(&behind, &states, signs, set)
    }

    /// These ranks have been at rest for [`GuardConfig::after`].
    fn resting(
        &self,
        behind: &[&RankSample],
        states: &[&RankState],
        signs: Vec<String>,
        set: &GuardConfig,
    ) -> Option<Hang> {
        // With a blocking synchronization a rank sleeps while its GPU waits.
        if let Some(sign) = self.others_behind(behind).filter(|_| self.all_gpus_wait()) {
            return Some(self.hang(HangKind::Order, &[], signs.into_iter().chain([sign]).collect()));
        }
        let signs = |more: Vec<String>| signs.iter().cloned().chain(more).collect();
        let sleep = behind.iter().zip(states).map(|(one, state)| sleep(one.rank, state)).collect();
        if states.iter().any(|state| waits_for_storage(state)) {
            // Storage recovers, so it is called a hang only much later.
            let kind = if self.lasts(set.after_storage) { HangKind::Blocked } else { HangKind::Storage };
            return Some(self.hang(kind, behind, signs(sleep)));
        }
        let blocked = states.iter().any(|state| state.state == Some('D'));
        let kind = if blocked { HangKind::Blocked } else { HangKind::Behind };
        Some(self.hang(kind, behind, signs(sleep)))
    }

    /// Ranks of this node with fewer operations than others, and what shows it.
    fn behind(&self) -> Option<(Vec<&RankSample>, Vec<String>)> {
        let counts = self.sample.counts?;
        let of = behind_in(counts)?;
        let behind = stragglers(self.sample, of);
        let fewest = of.ranks.iter().map(|one| one.ops).min()?;
        let most = of.ranks.iter().map(|one| one.ops).max()?;
        if behind.is_empty() {
            return None;
        }
        let sign = format!(
            "{} enqueued {fewest} operations, others {most} (the last one: {}), and no rank one more for {}",
            ranks(&behind),
            of.op,
            self.span(counts.moved),
        );
        Some((behind, vec![sign]))
    }

    /// Without counts: the one rank that sleeps while all others poll their GPU, if one GPU is idle.
    fn sleeps_alone(&self) -> Option<(Vec<&RankSample>, Vec<String>)> {
        if self.sample.counts.is_some() || !self.sample.gpus.contains(&GpuActivity::Idle) {
            return None;
        }
        let cpu = |one: &&RankSample| one.state.as_ref().and_then(|state| state.cpu_percent);
        let all: Vec<&RankSample> = running(self.sample).collect();
        let known: Vec<f64> = all.iter().map(cpu).collect::<Option<_>>()?;
        let sleeping: Vec<&RankSample> =
            all.iter().zip(&known).filter(|(_, cpu)| **cpu < COMPUTES).map(|(one, _)| *one).collect();
        let spinning = known.iter().filter(|cpu| **cpu >= SPINS).count();
        let one = sleeping.len() == 1 && spinning + 1 == all.len() && all.len() > 1;
        one.then(|| (sleeping, vec!["one GPU is idle while the others wait".to_owned()]))
    }

    /// All ranks of the job are on this node, and all of their GPUs wait.
    fn all_gpus_wait(&self) -> bool {
        let gpus = self.sample.gpus;
        self.sample.alone && gpus.len() > 1 && gpus.iter().all(|gpu| *gpu == GpuActivity::Waits)
    }

    /// The sign that nothing was written to the job's logs for [`GuardConfig::after`]; `None`: something was, or it is not known.
    fn silent(&self, set: &GuardConfig) -> Option<String> {
        let logged = self.sample.logged.filter(|logged| self.is_long(*logged, set))?;
        Some(format!("nothing was written to the job's logs for {}", self.span(logged)))
    }

    fn is_long(&self, since: UnixMillis, set: &GuardConfig) -> bool {
        Duration::from_millis(self.sample.end.saturating_sub(since)) >= set.after
    }

    /// Ranks are behind and poll the GPU, as the others do. If their own GPU waits as well, they wait for another operation or
    /// for a kernel that does not end. A rank that computes on the CPU looks the same, so the logs have to be silent.
    fn own_gpu(&self, behind: &[&RankSample], mut signs: Vec<String>, set: &GuardConfig) -> Option<Hang> {
        let silent = self.silent(set).filter(|_| self.all_gpus_wait())?;
        let kind = match self.others_behind(behind) {
            Some(sign) => {
                signs.push(sign);
                HangKind::Order
            }
            None => HangKind::OwnGpu,
        };
        signs.push(silent);
        let culprits = if kind == HangKind::Order { &[] } else { behind };
        Some(self.hang(kind, culprits, signs))
    }

    /// Other ranks are behind these in another communicator.
    fn others_behind(&self, behind: &[&RankSample]) -> Option<String> {
        let counts = self.sample.counts?;
        let is_behind = |pid: u32| behind.iter().any(|one| one.pid == pid);
        let others = |of: &&CountsOf| {
            let pids = of.behind();
            !pids.is_empty()
                && pids.iter().all(|pid| !is_behind(*pid))
                && of.ranks.iter().any(|one| is_behind(one.pid))
        };
        let of = counts.communicators.iter().find(others)?;
        Some(format!(
            "in another communicator {} behind (the last operation there: {})",
            are(&stragglers(self.sample, of)),
            of.op
        ))
    }

    /// All ranks of a communicator have enqueued the same number of operations, and the last ones differ.
    fn different(&self) -> Option<Hang> {
        let counts = self.sample.counts.filter(|_| self.all_gpus_wait())?;
        let of = counts.communicators.iter().find(|of| of.differs())?;
        let mut by_op: BTreeMap<&str, Vec<&RankSample>> = BTreeMap::new();
        for one in &of.ranks {
            by_op.entry(&one.op).or_default().extend(running(self.sample).filter(|rank| rank.pid == one.pid));
        }
        let number = of.ranks.first()?.ops;
        let each = by_op.iter().map(|(op, of)| format!("operation {number} of {} is {op}", ranks(of)));
        let signs: Vec<String> = each.collect();
        // Ranks whose last operation differs from that of most ranks.
        let most = by_op.values().max_by_key(|of| of.len())?;
        let apart = by_op.values().filter(|of| *of != most).flatten().copied();
        let culprits: Vec<&RankSample> = apart.filter(|_| most.len() * 2 > of.ranks.len()).collect();
        Some(self.hang(HangKind::Order, &culprits, signs))
    }

    /// All ranks of the job are on this node, all of their GPUs wait, and none is behind.
    fn all_wait(&self, set: &GuardConfig) -> Option<Hang> {
        if !self.all_gpus_wait() {
            return None;
        }
        let counted = self.sample.counts.map(|counts| counts.moved).filter(|moved| self.is_long(*moved, set));
        let mut signs = Vec::new();
        if let Some(moved) = counted {
            signs.push(format!("no rank has enqueued an operation for {}", self.span(moved)));
        }
        signs.extend(self.silent(set));
        // A second sign beside the GPUs.
        if signs.is_empty() && self.sample.ports_down.is_empty() {
            return None;
        }
        Some(self.hang(HangKind::AllWait, &[], signs))
    }

    fn span(&self, since: UnixMillis) -> String {
        span(Duration::from_millis(self.sample.end.saturating_sub(since)).as_secs_f64())
    }

    fn hang(&self, kind: HangKind, culprits: &[&RankSample], more: Vec<String>) -> Hang {
        let waiting = waiting_gpus(self.sample);
        let mut signs = vec![format!(
            "{waiting} of {} GPUs of this node only ran kernels that wait, and none worked, for {}",
            self.sample.gpus.len(),
            self.span(self.since),
        )];
        signs.extend(more);
        signs.extend(self.sample.ports_down.iter().map(|port| format!("port {port}")));
        let gpu_errors: Vec<GpuError> = errors_of(self.sample, self.since).map(|(_, error)| error).collect();
        signs.extend(gpu_errors.iter().map(GpuError::sentence));
        Hang {
            kind,
            since: self.since,
            named: self.sample.end,
            over: None,
            culprits: culprits.iter().map(|one| culprit(one)).collect(),
            waiting_gpus: u32::try_from(waiting).unwrap_or(u32::MAX),
            operation: self.sample.counts.filter(|_| kind != HangKind::Order).and_then(waited_in),
            signs,
            ports_down: self.sample.ports_down.to_vec(),
            gpu_errors,
            act: None,
        }
    }
}

/// Whether a rank that has not ended reads or saves data.
fn saves_on_any(sample: &NodeSample<'_>) -> bool {
    running(sample).any(|one| one.state.as_ref().is_some_and(transfers))
}

/// Whether a rank that has not ended may compute on the CPU while its GPU is idle, for example in an evaluation: then the others wait
/// for it. Which GPU a rank uses is not known, so the GPUs that wait and the ranks at rest are counted.
fn computes_on_cpu(sample: &NodeSample<'_>, since: UnixMillis) -> bool {
    let resting = running(sample).filter(|one| one.state.as_ref().is_some_and(rests)).count();
    waiting_gpus(sample) + failed_gpus(sample, since) + resting < running(sample).count()
}

/// The errors of the job's GPUs from [`NEEDED`] before the beginning of a wait on, each with the place of its GPU.
pub(crate) fn errors_of(
    sample: &NodeSample<'_>,
    since: UnixMillis,
) -> impl Iterator<Item = (usize, GpuError)> {
    let recent = move |one: &&SampledError| one.error.time >= since.saturating_sub(NEEDED);
    sample.gpu_errors.iter().filter(recent).map(|one| {
        let ranks = one.pid.and_then(|pid| sample.ranks.iter().find(|rank| rank.pid == pid));
        (one.place, GpuError { rank: ranks.map(|rank| rank.rank), ..one.error.clone() })
    })
}

/// How many GPUs of the node do not wait because they have reported an error.
pub(crate) fn failed_gpus(sample: &NodeSample<'_>, since: UnixMillis) -> usize {
    let places: BTreeSet<usize> = errors_of(sample, since).map(|(place, _)| place).collect();
    let waits = |place: &&usize| sample.gpus.get(**place) == Some(&GpuActivity::Waits);
    places.len() - places.iter().filter(waits).count()
}

fn running<'a>(sample: &'a NodeSample<'_>) -> impl Iterator<Item = &'a RankSample> {
    sample.ranks.iter().filter(|one| one.ended.is_none())
}

/// How many GPUs of the node wait.
pub(crate) fn waiting_gpus(sample: &NodeSample<'_>) -> usize {
    sample.gpus.iter().filter(|gpu| **gpu == GpuActivity::Waits).count()
}

fn gone_first(gone: &[&RankSample]) -> Option<UnixMillis> {
    gone.iter().filter_map(|one| Some(one.ended?.0)).min()
}

/// The operation that was enqueued last in the communicator in which ranks are behind; else in the largest one.
fn waited_in(counts: &Counts) -> Option<WaitedIn> {
    let largest = || counts.communicators.iter().max_by_key(|one| (one.size, one.seq));
    let of = behind_in(counts).or_else(largest)?;
    Some(WaitedIn { communicator: of.communicator.clone(), op: of.op.clone(), seq: of.seq })
}

/// The communicator in which ranks are behind others: the largest, and of several the one in which the fewest are.
fn behind_in(counts: &Counts) -> Option<&CountsOf> {
    let with = counts.communicators.iter().filter(|one| !one.behind().is_empty());
    with.max_by_key(|one| (one.size, Reverse(one.behind().len())))
}

/// Returns the stragglers of this node: its running ranks that have enqueued fewer operations in the communicator than other ranks.
fn stragglers<'a>(sample: &'a NodeSample<'_>, communicator: &CountsOf) -> Vec<&'a RankSample> {
    let pids = communicator.behind();
    running(sample).filter(|one| pids.contains(&one.pid)).collect()
}

/// Returns the stragglers of this node if all of them poll their GPUs, and otherwise none.
pub(crate) fn polling_stragglers<'a>(sample: &'a NodeSample<'_>) -> Vec<&'a RankSample> {
    let Some(of) = sample.counts.and_then(behind_in) else { return Vec::new() };
    let all = stragglers(sample, of);
    if all.iter().all(|one| one.state.as_ref().is_some_and(polls)) { all } else { Vec::new() }
}

/// Whether a program uses the CPU and transfers no data, as one that waits for its GPU does.
fn polls(state: &RankState) -> bool {
    state.cpu_percent.is_some_and(|cpu| cpu >= COMPUTES) && !transfers(state)
}

/// Whether a program reads or saves data.
fn transfers(state: &RankState) -> bool {
    state.bytes_s.is_some_and(|bytes| bytes >= TRANSFERS)
}

/// Whether a program neither computes, nor transfers data, nor waits for requests; unknown counts as not at rest.
fn is_at_rest(state: &RankState) -> bool {
    // A compiler may add a suffix: `ep_poll.isra.0`.
    let name = state.kernel.as_deref().and_then(|kernel| kernel.split('.').next());
    let waits_for_requests = name.is_some_and(|name| REQUESTS.contains(&name));
    let computes = state.cpu_percent.is_none_or(|cpu| cpu >= COMPUTES);
    !(waits_for_requests || computes || transfers(state) || is_held(state))
}

/// Under a debugger, or stopped as all ranks are.
fn is_held(state: &RankState) -> bool {
    matches!(state.state, Some('t' | 'T'))
}

/// Whether a program is at rest, or is stopped. A suspended job is not judged.
pub(crate) fn rests(state: &RankState) -> bool {
    state.state == Some('T') || is_at_rest(state)
}

/// Whether this sample shows that a hang is none, or has ended, although GPUs still wait: a rank that is named computes, transfers data or
/// waits for requests again, or the job has written to its logs. A rank without a reading, or under a debugger, shows nothing.
pub(crate) fn is_refuted(hang: &Hang, sample: &NodeSample<'_>) -> bool {
    let named = || {
        let ranks = running(sample).filter(|one| hang.culprits.iter().any(|of| of.pid == one.pid));
        ranks.filter_map(|one| one.state.as_ref())
    };
    match hang.kind {
        HangKind::Gone | HangKind::GpuError => saves_on_any(sample) || computes_on_cpu(sample, hang.since),
        HangKind::Stopped => named().any(|state| state.state.is_some_and(|state| state != 'T')),
        HangKind::Behind | HangKind::Blocked | HangKind::Storage => {
            named().any(|state| !is_at_rest(state) && !is_held(state))
        }
        HangKind::OwnGpu | HangKind::Order | HangKind::AllWait => {
            sample.logged.is_some_and(|logged| logged > hang.named)
        }
    }
}

/// The ranks of a node that are at rest, are stopped, or have ended.
pub(crate) fn at_rest<'a>(sample: &'a NodeSample<'_>) -> Vec<&'a RankSample> {
    let rests = |one: &&RankSample| one.ended.is_some() || one.state.as_ref().is_some_and(rests);
    sample.ranks.iter().filter(rests).collect()
}

pub(crate) fn culprit(one: &RankSample) -> Culprit {
    let state = one.state.as_ref();
    Culprit {
        rank: one.rank,
        node: None,
        pid: one.pid,
        exit: one.ended.map(|(_, exit)| exit),
        state: state.and_then(|state| state.state),
        kernel: state.and_then(|state| state.kernel.clone()),
    }
}

fn waits_for_storage(state: &RankState) -> bool {
    state.kernel.as_deref().is_some_and(is_of_storage)
}

/// Whether a process waits for a file system in this function of the kernel.
pub(crate) fn is_of_storage(kernel: &str) -> bool {
    let begins = |(at, _): (usize, &str)| at == 0 || kernel.as_bytes().get(at - 1) == Some(&b'_');
    STORAGE.iter().any(|word| kernel.match_indices(word).any(begins))
}

/// `rank 3 sleeps in hrtimer_nanosleep (state S), uses 0.1 % of a core and transfers no data`
fn sleep(rank: u32, state: &RankState) -> String {
    let letter = state.state.map_or(String::new(), |letter| format!(" (state {letter})"));
    let place = state.kernel.as_ref().map_or(String::new(), |kernel| format!(" in {kernel}"));
    let cpu = state.cpu_percent.unwrap_or(0.0);
    let moved = match state.bytes_s {
        Some(_) => " and transfers no data",
        None => "",
    };
    format!("rank {rank} sleeps{place}{letter}, uses {cpu:.1} % of a core{moved}")
}

/// `rank 3`, `ranks 3, 4`
fn ranks(of: &[&RankSample]) -> String {
    let numbers: Vec<String> = of.iter().take(8).map(|one| one.rank.to_string()).collect();
    match of.len() {
        1 => format!("rank {}", numbers.concat()),
        2..=8 => format!("ranks {}", numbers.join(", ")),
        more => format!("ranks {} and {} more", numbers.join(", "), more - 8),
    }
}

/// `rank 3 is`, `ranks 3, 4 are`
fn are(of: &[&RankSample]) -> String {
    format!("{} {}", ranks(of), if of.len() == 1 { "is" } else { "are" })
}
