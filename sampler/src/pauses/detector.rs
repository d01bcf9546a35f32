//! Finds pauses in the counts of a node's ranks.
//!
//! NCCL shows when an operation is enqueued, not when it is done. If one rank of a communicator does something else, the
//! others enqueue what follows, and then stand still until that rank goes on: it is the first to enqueue again, and until
//! then its count is the lowest.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use railgate_model::UnixMillis;
use railgate_node_report::comm::{Pause, Pauses};
use railgate_rankfile::OPERATIONS;

/// Interval of the readings. Reading and judging eight files takes 8 µs.
pub(super) const EVERY: Duration = Duration::from_millis(100);
/// A reading that comes later than this leaves unknown what happened before it.
const LATE: Duration = Duration::from_millis(250);
/// Shortest pause.
const SHORTEST: Duration = Duration::from_millis(400);
/// A pause is at least this many times as long as the usual gap between two readings with new operations.
const TIMES: u32 = 2;
/// Number of gaps that the usual one is taken from, and how many are needed: the first steps of a program are slow.
const GAPS: usize = 64;
const ENOUGH: usize = 12;
/// Gaps up to the usual one take this share of the time. So a step that enqueues its operations in less than that has the
/// rest of it as its usual gap, and pauses may take up to half of the time.
const USUAL: f64 = 0.4;
/// A long gap counts as this many usual ones at most, so that a single one does not become the usual one.
const MOST_USUAL: u32 = 32;

/// Operations that a rank has enqueued in a communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) hash: u64,
    pub(super) ranks: u32,
    pub(super) rank: u32,
    pub(super) ops: u64,
    /// The last operation: index into [`OPERATIONS`].
    pub(super) op: u8,
    pub(super) seq: u64,
}

/// Counts of one process at one time.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    /// Number of its file.
    pub(super) file: u64,
    /// Its process id, as the process itself sees it.
    pub(super) pid: u32,
    pub(super) comms: Vec<Count>,
    /// Its counts do not show who waits.
    pub(super) left_out: bool,
}

/// Time of a reading: since some moment, by a clock that cannot be set, and by the calendar.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    pub(super) clock: Duration,
    pub(super) time: UnixMillis,
}

#[derive(Debug)]
struct Process {
    comms: Vec<Known>,
    /// Last reading with new operations, or the end of the last pause of the node.
    since: Duration,
    /// Whether the last reading had new operations.
    moved: bool,
    gaps: VecDeque<Duration>,
}

#[derive(Debug)]
struct Known {
    count: Count,
    /// Fewest operations by which it was behind since the last pause: what it is behind by in normal work.
    least: u64,
    /// When it was first seen to be behind by more than that since its last operation anywhere.
    behind_since: Option<Duration>,
}

/// A process that enqueued operations after a pause.
struct Resumed {
    file: u64,
    gap: Duration,
    /// The gap without the usual one.
    lost: Duration,
    /// Whether the usual one is known well enough for a pause in which no rank is behind.
    settled: bool,
    /// Communicators with new operations.
    new: Vec<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Detector {
    pub(super) found: Pauses,
    /// By the number of the file.
    processes: BTreeMap<u64, Process>,
    clock: Duration,
}

impl Detector {
    /// `before`: what an earlier sampler of the run found.
    pub(super) fn new(before: Pauses) -> Self {
        Detector { found: before, ..Detector::default() }
    }

    /// Adds one reading of all processes. Returns whether anything was found.
    pub(super) fn add(&mut self, at: At, now: &[Counts]) -> bool {
        let late = at.clock.saturating_sub(self.clock) > LATE;
        self.clock = at.clock;
        let mut changed = self.leave_out(now);
        let now: Vec<&Counts> = now.iter().filter(|one| !one.left_out).collect();
        let resumed = if late { Vec::new() } else { self.resumed(at, &now) };
        let mut paused = Vec::new();
        if let Some((pause, who)) = self.pause(at, &resumed) {
            self.found.add(pause);
            changed = true;
            paused = who;
        }
        // After a pause all ranks begin anew: those that waited go on after the one that they waited for, and their wait
        // is the same pause. Only a rank that is still behind has not ended its own.
        let anew: Vec<u64> = match resumed.is_empty() {
            true => Vec::new(),
            false => self.processes.keys().copied().filter(|file| !self.is_paused(*file, &resumed)).collect(),
        };
        self.take(at, &now, late, &anew, &paused);
        changed
    }

    /// Drops processes whose counts do not show who waits, with all that was found in their communicators.
    fn leave_out(&mut self, now: &[Counts]) -> bool {
        let mut changed = false;
        let out: Vec<&Counts> = now.iter().filter(|one| one.left_out).collect();
        for one in &out {
            self.processes.remove(&one.file);
            for count in &one.comms {
                let before = self.found.sums.len();
                self.found.forget(&hash_text(count.hash));
                changed |= self.found.sums.len() < before;
            }
        }
        let many = u32::try_from(out.len()).unwrap_or(u32::MAX);
        changed |= many > self.found.left_out;
        self.found.left_out = self.found.left_out.max(many);
        changed
    }

    fn resumed(&self, at: At, now: &[&Counts]) -> Vec<Resumed> {
        let of = |one: &&Counts| {
            let process = self.processes.get(&one.file)?;
            let gap = at.clock.saturating_sub(process.since);
            let new = process.new_in(one);
            if gap < SHORTEST || new.is_empty() {
                return None;
            }
            let usual = process.usual()?;
            let long = gap >= usual * TIMES;
            let (lost, settled) = (gap.saturating_sub(usual), process.gaps.len() == GAPS);
            long.then_some(Resumed { file: one.file, gap, lost, settled, new })
        };
        now.iter().filter_map(of).collect()
    }

    /// Processes of a communicator, in the reading before.
    fn members(&self, hash: u64) -> impl Iterator<Item = (&Process, &Known)> {
        self.processes
            .values()
            .filter_map(move |one| Some((one, one.comms.iter().find(|known| known.count.hash == hash)?)))
    }

    /// Whether a process waits for another one, which is behind it in one of its communicators.
    fn waits(&self, process: &Process) -> bool {
        let waits_in = |own: &Known| {
            let mut others = self.members(own.count.hash);
            others.any(|(_, other)| other.count.ops < own.count.ops && other.behind_since.is_some())
        };
        process.comms.iter().any(waits_in)
    }

    /// Whether others wait for a process, which does not go on yet.
    fn is_paused(&self, file: u64, resumed: &[Resumed]) -> bool {
        let Some(process) = self.processes.get(&file) else { return false };
        !resumed.iter().any(|one| one.file == file)
            && process.comms.iter().any(|own| own.behind_since.is_some())
            && !self.waits(process)
    }

    /// The pause that these processes ended, from the counts of the reading before, and the files of the
    /// ranks that were behind.
    fn pause(&self, at: At, resumed: &[Resumed]) -> Option<(Pause, Vec<u64>)> {
        if self.processes.keys().any(|file| self.is_paused(*file, resumed)) {
            return None;
        }
        let known = |one: &Resumed| self.processes.get(&one.file).map_or(&[][..], |process| &process.comms);
        let root = |one: &&Resumed| self.processes.get(&one.file).is_some_and(|process| !self.waits(process));
        // It is the last one, and who has more operations stood still.
        let is_last = |one: &Known| {
            let own = one.count.ops;
            self.members(one.count.hash)
                .all(|(process, known)| known.count.ops == own || known.count.ops > own && !process.moved)
        };
        let behind: Vec<(&Resumed, &Known, Duration)> = resumed
            .iter()
            .filter(root)
            .flat_map(|one| known(one).iter().map(move |known| (one, known)))
            .filter(|(_, known)| is_last(known))
            .filter_map(|(one, known)| Some((one, known, at.clock.saturating_sub(known.behind_since?))))
            .collect();
        // Without a rank behind, it matters only to other nodes of the same communicator.
        let elsewhere = |count: &Count| self.members(count.hash).count() < count.ranks as usize;
        let whole = resumed
            .iter()
            .filter(|one| one.settled)
            .flat_map(|one| known(one).iter().map(move |known| (one, &known.count)));
        let whole = whole.filter(|(one, count)| one.new.contains(&count.hash) && elsewhere(count));
        let hash = match behind.iter().max_by_key(|(_, known, _)| known.count.ranks) {
            Some((_, known, _)) => known.count.hash,
            None => whole.max_by_key(|(_, count)| count.ranks)?.1.hash,
        };
        let mut last: Vec<_> = behind.iter().filter(|(_, known, _)| known.count.hash == hash).collect();
        last.sort_by_key(|(_, known, _)| known.count.rank);
        // Until the first other rank went ahead, none waited.
        let longest = last.iter().map(|(one, _, waited)| (one.gap, *waited)).max();
        let (gap, lost) = longest.or_else(|| resumed.iter().map(|one| (one.gap, one.lost)).max())?;
        let counts = || self.members(hash).map(|(_, known)| &known.count);
        let fewest = counts().map(|count| count.ops).min()?;
        let ahead = counts().max_by_key(|count| count.ops)?;
        let millis = u64::try_from(gap.as_millis()).unwrap_or(u64::MAX);
        let pause = Pause {
            start: at.time.saturating_sub(millis),
            seconds: seconds(gap),
            lost_s: seconds(lost),
            communicator: hash_text(hash),
            behind: last.iter().map(|(_, known, _)| known.count.rank).collect(),
            fewest,
            most: ahead.ops,
            ahead: ahead.rank,
            op: OPERATIONS.get(usize::from(ahead.op)).copied().unwrap_or_default().to_owned(),
            seq: (ahead.seq > 0).then_some(ahead.seq),
        };
        Some((pause, last.iter().map(|(one, ..)| one.file).collect()))
    }

    /// Keeps the reading. `anew`: processes whose next pause begins now at the earliest. `paused`: those that ended one.
    fn take(&mut self, at: At, now: &[&Counts], late: bool, anew: &[u64], paused: &[u64]) {
        self.processes.retain(|file, _| now.iter().any(|one| one.file == *file));
        for one in now {
            let process = self.processes.entry(one.file).or_insert_with(|| Process::new(at.clock));
            let moved = !process.new_in(one).is_empty();
            if moved && !late && !paused.contains(&one.file) {
                process.gap(at.clock.saturating_sub(process.since));
            }
            process.moved = moved || late;
            let anew = anew.contains(&one.file);
            if moved || late || anew {
                process.since = at.clock;
            }
            process.comms = one
                .comms
                .iter()
                .map(|count| {
                    let known = process.comms.iter().find(|known| known.count.hash == count.hash);
                    Known {
                        count: count.clone(),
                        least: known.filter(|_| !anew).map_or(u64::MAX, |known| known.least),
                        behind_since: known.filter(|_| !moved && !anew).and_then(|known| known.behind_since),
                    }
                })
                .collect();
        }
        let mut most: BTreeMap<u64, u64> = BTreeMap::new();
        for known in self.processes.values().flat_map(|process| &process.comms) {
            let most = most.entry(known.count.hash).or_default();
            *most = (*most).max(known.count.ops);
        }
        for known in self.processes.values_mut().flat_map(|process| &mut process.comms) {
            let most = most.get(&known.count.hash).copied().unwrap_or(0);
            let lacks = most.saturating_sub(known.count.ops);
            known.least = known.least.min(lacks);
            if lacks > known.least {
                known.behind_since.get_or_insert(at.clock);
            }
        }
    }
}

impl Process {
    fn new(clock: Duration) -> Self {
        Process { comms: Vec::new(), since: clock, moved: true, gaps: VecDeque::new() }
    }

    fn before(&self, count: &Count) -> Option<u64> {
        self.comms.iter().find(|known| known.count.hash == count.hash).map(|known| known.count.ops)
    }

    /// Communicators with new operations.
    fn new_in(&self, now: &Counts) -> Vec<u64> {
        let is_new = |count: &&Count| self.before(count).is_none_or(|before| before < count.ops);
        now.comms.iter().filter(is_new).map(|count| count.hash).collect()
    }

    /// The usual gap; `None` as long as too few are known.
    fn usual(&self) -> Option<Duration> {
        if self.gaps.len() < ENOUGH {
            return None;
        }
        let mut gaps: Vec<Duration> = self.gaps.iter().copied().collect();
        gaps.sort_unstable();
        let share = gaps.iter().sum::<Duration>().mul_f64(USUAL);
        let mut time = Duration::ZERO;
        gaps.into_iter().find(|gap| {
            time += *gap;
            time >= share
        })
    }

    fn gap(&mut self, gap: Duration) {
        let usual = if gap < SHORTEST { None } else { self.usual() };
        self.gaps.push_back(usual.map_or(gap, |usual| gap.min(usual * MOST_USUAL)));
        if self.gaps.len() > GAPS {
            self.gaps.pop_front();
        }
    }
}

pub(super) fn hash_text(hash: u64) -> String {
    format!("{hash:016x}")
}

/// To a millisecond, so that reports stay short.
fn seconds(time: Duration) -> f64 {
    f64::from(u32::try_from(time.as_millis()).unwrap_or(u32::MAX)) / 1000.0
}
