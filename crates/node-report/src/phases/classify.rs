//! Finds the phases in a run's samples.

use railgate_model::UnixMillis;

use super::{GpuActivity, Phase, PhaseKind};
use crate::tasks::{StepStart, start_at};

/// Activity in percent below which a GPU does no work.
const IDLE: f64 = 2.0;
/// The same in a job whose GPUs never do more. A context without work stays below 0.1 (docs/accuracy.md).
const HARDLY: f64 = 0.3;
/// And only if they do as much for this share of the time: a job whose kernels are too small for that may clear its memory at the end.
const HARDLY_SHARE: f64 = 0.1;
/// A GPU that waits in a collective: kernels all the time (percent), on few SMs, and almost no other activity.
const WAIT_KERNELS: f64 = 90.0;
const WAIT_SMS: f64 = 35.0;
const WAIT_TENSOR: f64 = 1.0;
const WAIT_MEMORY: f64 = 2.0;
/// The job trains from this share of its usual level on.
const TRAINS: f64 = 0.4;
/// Below this share of it, and for [`SLOW_CELLS`] samples, it trains slowly. Samples at the edge of the training with
/// less hold some other phase as well.
const WHOLE: f64 = 0.75;
const SLOW_CELLS: usize = 3;
/// A sample beside two of training has a part of it from this share of the usual level on.
const BESIDE: f64 = 0.2;
/// Share of the time with work that is at the usual level or above it. Less than half: the first sample of a training holds a part of
/// the start-up, and of two samples the second one shows the level.
const USUAL: f64 = 0.4;
/// A sample with less than this share of the level of another one, which has kernels for this much of the time (percent), holds more than
/// the training.
const PART: f64 = 0.6;
const BUSY: f64 = 90.0;
/// Bytes per second written to disks, and copied from the GPUs of a node beyond what goes with their work, from which a pause is a save.
/// An optimizer on the host copies all the time.
const WRITES: f64 = 50e6;
const COPIES: f64 = 200e6;
/// A sample with kernels for this much of the time (percent) is work, however low its level; or for the second one, if its level for that
/// time is below this share of the usual one.
const MANY_KERNELS: f64 = 50.0;
const LIGHT_KERNELS: f64 = 10.0;
const LIGHT_DENSITY: f64 = 0.5;
/// A save copies this many times as much off the GPUs as onto them; parts of a model that are swapped go both ways.
const ONE_WAY: f64 = 4.0;
/// Memory of a GPU that no process has opened, at most: a context alone takes about 500 MiB (docs/accuracy.md).
const NO_CONTEXT_MIB: f64 = 256.0;
/// Maximum number of phases; the shortest are merged with their neighbours.
const MOST: usize = 48;

/// One sample, reduced to what phases depend on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cell {
    pub(crate) start: UnixMillis,
    pub(crate) end: UnixMillis,
    pub(crate) gpus: Vec<CellGpu>,
    /// Bytes per second written to block devices.
    pub(crate) written: f64,
}

/// Activities of one GPU, percent; `None` is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CellGpu {
    /// Time with any kernel: GPM's, else NVML's.
    pub(crate) kernels: Option<f64>,
    pub(crate) sm: Option<f64>,
    pub(crate) tensor: Option<f64>,
    pub(crate) dram: Option<f64>,
    /// Bytes per second sent over PCIe.
    pub(crate) sent: f64,
    /// Bytes per second received over PCIe.
    pub(crate) received: f64,
    /// Memory in use, beyond the driver's own.
    pub(crate) memory_mib: Option<f64>,
    /// Share of the cell, 0 to 1, in which a pause went on that had begun before, if no other one began; 0 if that is not known.
    pub(crate) went_on: f64,
}

impl CellGpu {
    fn is_known(&self) -> bool {
        self.kernels.is_some() || self.sm.is_some()
    }

    /// Whether it only runs kernels that wait, as NCCL's do. Unknown without GPM.
    pub(super) fn waits(&self) -> bool {
        let (Some(kernels), Some(sm), Some(tensor), Some(dram)) =
            (self.kernels, self.sm, self.tensor, self.dram)
        else {
            return false;
        };
        kernels >= WAIT_KERNELS && sm < WAIT_SMS && tensor < WAIT_TENSOR && dram < WAIT_MEMORY
    }

    /// Whether it waited for a part of the time, and then did nothing.
    fn waited(&self) -> bool {
        let (Some(kernels), Some(sm), Some(tensor), Some(dram)) =
            (self.kernels, self.sm, self.tensor, self.dram)
        else {
            return false;
        };
        let part = kernels / 100.0;
        kernels >= IDLE && sm < WAIT_SMS * part && tensor < WAIT_TENSOR * part && dram < WAIT_MEMORY * part
    }

    /// What it does; `others`: the job has another GPU that it can wait for.
    pub(super) fn activity(&self, others: bool) -> GpuActivity {
        match self.is_known() {
            false => GpuActivity::Unknown,
            true if others && self.waits() => GpuActivity::Waits,
            true if self.work() >= IDLE => GpuActivity::Works,
            true => GpuActivity::Idle,
        }
    }

    /// Level of its work, percent.
    fn work(&self) -> f64 {
        let pipes = [self.sm, self.tensor, self.dram];
        pipes.into_iter().flatten().reduce(f64::max).or(self.kernels).unwrap_or(0.0)
    }

    /// Time with any kernel, percent: the level of a job whose kernels are so small that the SMs seem idle.
    fn any_kernel(&self) -> f64 {
        self.kernels.unwrap_or(0.0)
    }
}

/// The phases, and the samples that lie completely in training.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Course {
    pub(crate) list: Vec<Phase>,
    /// Start of each such sample.
    pub(crate) training: Vec<UnixMillis>,
}

/// A cell with what it says about the node's GPUs.
struct Seen<'a> {
    cell: &'a Cell,
    /// Mean over the GPUs of the level of work, percent.
    level: f64,
    /// At least one GPU waits, and none works.
    waits: bool,
    /// At least half of the GPUs wait for another one, which works.
    mixed: bool,
    /// Bytes per second copied from the node's GPUs, and onto them.
    sent: f64,
    received: f64,
    /// Time with any kernel, mean over the GPUs, percent; 100 where it is not known.
    kernels: f64,
    /// Share of the cell, 0 to 1, in which all GPUs went on with a pause that had begun before.
    went_on: f64,
}

impl<'a> Seen<'a> {
    /// `others`: the job has another GPU that this one can wait for. `work`: the level of a GPU.
    fn new(cell: &'a Cell, others: bool, work: fn(&CellGpu) -> f64) -> Option<Self> {
        let known: Vec<&CellGpu> = cell.gpus.iter().filter(|gpu| gpu.is_known()).collect();
        if known.is_empty() {
            return None;
        }
        let levels: Vec<f64> =
            known.iter().filter(|gpu| !(others && gpu.waits())).map(|gpu| work(gpu)).collect();
        let waiting = known.len() - levels.len();
        let working = levels.iter().filter(|level| **level >= IDLE).count();
        let level = levels.iter().sum::<f64>() / count(known.len());
        Some(Seen {
            cell,
            level,
            waits: waiting > 0 && working == 0,
            mixed: working > 0 && 2 * waiting >= known.len(),
            sent: known.iter().map(|gpu| gpu.sent).sum(),
            received: known.iter().map(|gpu| gpu.received).sum(),
            kernels: known.iter().map(|gpu| gpu.kernels.unwrap_or(100.0)).sum::<f64>() / count(known.len()),
            went_on: known.iter().map(|gpu| gpu.went_on).fold(1.0, f64::min),
        })
    }

    fn seconds(&self) -> f64 {
        crate::plain::float(self.cell.end.saturating_sub(self.cell.start)) / 1000.0
    }

    fn phase(&self, kind: PhaseKind) -> Phase {
        Phase { kind, start: self.cell.start, end: self.cell.end, start_number: 0 }
    }

    /// `with_work`: what is copied while the job trains, bytes per second for each percent of its level.
    fn copies(&self, with_work: f64) -> bool {
        self.sent - with_work * self.level >= COPIES
    }

    /// The phase of a cell in which the job does not train, between two in which it does; `with_work` as in [`Seen::copies`].
    fn pause(&self, with_work: f64) -> PhaseKind {
        match self {
            Seen { mixed: true, .. } => PhaseKind::Evaluating,
            _ if self.cell.written >= WRITES || self.copies(with_work) => PhaseKind::Saving,
            Seen { waits: true, .. } => PhaseKind::Stalled,
            Seen { .. } => PhaseKind::Idle,
        }
    }
}

fn count(of: usize) -> f64 {
    crate::plain::float(u64::try_from(of).unwrap_or(u64::MAX))
}

/// Finds the phases of each start of the step: what is usual in one start says nothing about another one.
pub(crate) fn classify_starts(cells: &[Cell], others: bool, starts: &[StepStart]) -> Course {
    let number = |cell: &Cell| start_at(starts, cell.start.midpoint(cell.end));
    let mut all = Course::default();
    for of_start in cells.chunk_by(|one, next| number(one) == number(next)) {
        let start_number = of_start.first().map_or(0, number);
        let is_one_of_several = programs(of_start, others).nth(1).is_some();
        let mut programs = programs(of_start, others).peekable();
        while let Some(program) = programs.next() {
            let course = classify(program, others);
            let is_last = programs.peek().is_none();
            // A program that never trained, as a check of the GPUs, is a part of the start as well.
            let has_trained = course.list.iter().any(|phase| phase.kind.is_training());
            let between = |kind| match kind {
                PhaseKind::Tail if !is_last => PhaseKind::StartUp,
                PhaseKind::Idle if !is_last && !has_trained => PhaseKind::StartUp,
                kind => kind,
            };
            let numbered = |phase: Phase| Phase { kind: between(phase.kind), start_number, ..phase };
            // What its last sample holds besides the training.
            let rest = course.list.last().zip(program.last());
            let rest = rest.filter(|(phase, cell)| !is_last && phase.end < cell.end);
            let rest = rest.map(|(phase, cell)| Phase {
                kind: PhaseKind::Tail,
                start: phase.end,
                end: cell.end,
                ..*phase
            });
            all.list.extend(course.list.into_iter().chain(rest).map(numbered));
            // Many edges look like pauses.
            let edges = usize::from(is_one_of_several);
            let inner = course.training.get(edges..course.training.len().saturating_sub(edges));
            all.training.extend(inner.unwrap_or_default());
        }
    }
    Course { list: joined(all.list), ..all }
}

/// The samples of each program of a script that runs one after the other: one has ended when no process has a GPU open after it worked.
/// What follows the last work belongs to the last one.
fn programs(cells: &[Cell], others: bool) -> impl Iterator<Item = &[Cell]> {
    let works = move |cell: &Cell| {
        cell.gpus.iter().any(|gpu| matches!(gpu.activity(others), GpuActivity::Works | GpuActivity::Waits))
    };
    let is_closed = |cell: &Cell| {
        let closed = |gpu: &CellGpu| gpu.memory_mib.is_some_and(|mib| mib <= NO_CONTEXT_MIB);
        !cell.gpus.is_empty() && cell.gpus.iter().all(closed)
    };
    let last = cells.iter().rfind(|cell| works(cell) && !is_closed(cell)).map_or(0, |cell| cell.start);
    let mut worked = false;
    cells.chunk_by(move |one, next| {
        worked |= works(one);
        // A program with little memory in use works on.
        let ended = worked && one.start < last && is_closed(one) && !works(next);
        worked &= !ended;
        !ended
    })
}

/// Finds the phases in the samples of the time in which the job ran, in time order. `others`: the job has more than one
/// GPU, so that one can wait for another.
pub(crate) fn classify(cells: &[Cell], others: bool) -> Course {
    let cells = if others { with_ends_of_waits(cells) } else { cells.to_vec() };
    let see =
        |work| -> Vec<Seen<'_>> { cells.iter().filter_map(|cell| Seen::new(cell, others, work)).collect() };
    let by_work = see(CellGpu::work);
    let hardly = |seen: &[Seen<'_>]| {
        let of = |least| seen.iter().filter(|one| one.level >= least).map(Seen::seconds).sum::<f64>();
        usual_level(seen, HARDLY).filter(|_| of(HARDLY) >= HARDLY_SHARE * of(f64::NEG_INFINITY))
    };
    let (seen, usual) = match usual_level(&by_work, IDLE).or_else(|| hardly(&by_work)) {
        Some(usual) => (by_work, usual),
        None => {
            let by_kernels = see(CellGpu::any_kernel);
            let Some(usual) = usual_level(&by_kernels, IDLE) else { return without_training(&by_work) };
            (by_kernels, usual)
        }
    };
    // Blips of the start-up do not lower the level of the training.
    let usual = usual_level(&seen, TRAINS * usual).unwrap_or(usual);
    let trains = |one: &Seen<'_>| one.level >= TRAINS * usual && !one.mixed;
    let stands = |one: &Seen<'_>| one.waits || one.mixed;
    let in_a_row = |at: &usize| seen.get(*at).is_some_and(trains) && seen.get(at + 1).is_none_or(trains);
    // A job that trained for one sample has no two in a row.
    let first = (0..seen.len()).find(in_a_row).or_else(|| seen.iter().position(trains));
    let last = seen.iter().rposition(trains);
    let (Some(first), Some(last)) = (first, last) else { return without_training(&seen) };
    let copied = seen.iter().filter(|one| trains(one)).map(|one| (one.sent / one.level, one.seconds()));
    let with_work = upper(copied, 0.5).unwrap_or(0.0);
    let waits_to_the_end = |one: &Seen<'_>| one.waits && !one.copies(with_work);
    let density = |one: &Seen<'_>| one.level / one.kernels.max(1.0);
    let usual_density =
        upper(seen.iter().filter(|one| trains(one)).map(|one| (density(one), one.seconds())), 0.5);
    // A sample beside a wait holds a part of it.
    let is_beside_a_wait = |at: usize| seen.iter().skip(at.saturating_sub(1)).take(at.min(1) + 2).any(stands);
    // Text is generated with many small kernels: the level is low, and the GPU is not idle.
    let works_lightly = |at: usize, one: &Seen<'_>| {
        let is_dense = || usual_density.is_none_or(|usual| density(one) >= LIGHT_DENSITY * usual);
        let has_kernels = one.kernels >= MANY_KERNELS || one.kernels >= LIGHT_KERNELS && !is_dense();
        has_kernels && !is_beside_a_wait(at)
    };
    let mut kinds: Vec<PhaseKind> = seen
        .iter()
        .enumerate()
        .map(|(at, one)| match at {
            at if at < first => PhaseKind::StartUp,
            // The sample after the last whole one may hold its end and the beginning of the wait.
            at if at == last + 1 && seen.get(at + 1).is_some_and(waits_to_the_end) => PhaseKind::Stalled,
            // One rank evaluates, or saves, when the job is ended.
            at if at > last && one.mixed => PhaseKind::Evaluating,
            // Writes alone may be a core dump, or files that are packed.
            at if at > last && one.copies(with_work) => PhaseKind::Saving,
            at if at > last && one.waits => PhaseKind::Stalled,
            at if at > last && works_lightly(at, one) => PhaseKind::Slow,
            at if at > last => PhaseKind::Tail,
            _ if trains(one) => PhaseKind::Steady,
            _ if works_lightly(at, one) => PhaseKind::Slow,
            _ => one.pause(with_work),
        })
        .collect();
    judge_copies(kinds.get_mut(..last).unwrap_or_default(), &seen);
    let whole: Vec<bool> = seen.iter().map(|one| one.level >= WHOLE * usual).collect();
    slow_down(&mut kinds, &whole);
    let mut list: Vec<Phase> = seen.iter().zip(&kinds).map(|(one, kind)| one.phase(*kind)).collect();
    // Three seconds of training that lie in two samples look like ten seconds of GPUs that are half idle. A part of it in a third
    // sample shows that these are whole.
    let is_whole = |at: usize| whole.get(at) == Some(&true);
    let mut beside =
        [first.checked_sub(1), Some(last + 1)].into_iter().flatten().filter_map(|at| seen.get(at));
    let only_two = last == first + 1 && is_whole(first) && is_whole(last);
    let unproven = only_two && beside.all(|one| one.level < BESIDE * usual);
    // The first and the last sample of the training hold a part of another phase. How much follows from their level, and for the first
    // one from the pause with which it begins, since the first steps may do more than the later ones.
    for (at, back) in [(first, true), (last, false)] {
        let (Some(one), Some(phase)) = (seen.get(at), list.get_mut(at)) else { continue };
        let of_level = match (unproven, is_whole(at)) {
            (true, _) => one.kernels / 100.0,
            (false, true) => 1.0,
            (false, false) => one.level / usual,
        };
        let share = if back { of_level.min(1.0 - one.went_on) } else { of_level };
        if share >= 1.0 || first == last {
            continue;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a sample has few milliseconds"
        )]
        let outside = (1000.0 * one.seconds() * (1.0 - share).clamp(0.0, 1.0)) as u64;
        let neighbour = if back { at.checked_sub(1) } else { Some(at + 1) };
        if back {
            phase.start += outside;
        } else {
            phase.end -= outside;
        }
        let (start, end) = (phase.start, phase.end);
        if let Some(next) = neighbour.and_then(|place| list.get_mut(place)) {
            if back {
                next.end = next.end.max(start);
            } else {
                next.start = next.start.min(end);
            }
        }
    }
    let is_edge = |at: usize| (at == first || at == last) && !is_whole(at);
    let training = (0..seen.len())
        .filter(|&at| kinds.get(at).is_some_and(|kind| kind.is_training()) && !is_edge(at))
        .filter_map(|at| Some(seen.get(at)?.cell.start))
        .collect();
    Course { list: joined(list), training }
}

/// A pause in which as much is copied onto the GPUs as off them is no save.
fn judge_copies(kinds: &mut [PhaseKind], seen: &[Seen<'_>]) {
    let is_saved = |kind: &PhaseKind, one: &Seen<'_>| *kind == PhaseKind::Saving && one.cell.written < WRITES;
    let mut at = 0;
    while at < kinds.len() {
        let rest = || kinds.iter().zip(seen).skip(at);
        let is_pause = |kind: &PhaseKind| matches!(kind, PhaseKind::Idle | PhaseKind::Saving);
        let length = rest().take_while(|(kind, _)| is_pause(kind)).count();
        let bytes = |of: fn(&Seen<'_>) -> f64| -> f64 {
            rest().take(length).map(|(_, one)| of(one) * one.seconds()).sum()
        };
        if bytes(|one| one.sent) < ONE_WAY * bytes(|one| one.received) {
            let pause = kinds.iter_mut().zip(seen).skip(at).take(length);
            pause.filter(|(kind, one)| is_saved(kind, one)).for_each(|(kind, _)| *kind = PhaseKind::Idle);
        }
        at += length.max(1);
    }
}

/// A GPU whose wait ended within a sample did no work in it, although its kernels did not run all the time.
fn with_ends_of_waits(cells: &[Cell]) -> Vec<Cell> {
    let mut marked = cells.to_vec();
    for (before, cell) in cells.iter().zip(marked.iter_mut().skip(1)) {
        for (before, gpu) in before.gpus.iter().zip(&mut cell.gpus) {
            if before.waits() && gpu.waited() {
                gpu.kernels = Some(100.0);
            }
        }
    }
    marked
}

/// The usual level of the cells in which GPUs work at `least` or more; `None` if there are none.
fn usual_level(seen: &[Seen<'_>], least: f64) -> Option<f64> {
    let works: Vec<&Seen<'_>> = seen.iter().filter(|one| one.level >= least && !one.mixed).collect();
    // If GPUs never rest in the middle one of three, the other two hold parts of other phases.
    match works[..] {
        [first, middle, last]
            if middle.kernels >= BUSY && first.level.max(last.level) < PART * middle.level =>
        {
            Some(middle.level)
        }
        _ => upper(works.iter().map(|one| (one.level, one.seconds())), USUAL),
    }
}

/// Of values with the seconds that each was seen: the largest that is reached in this share of the time or more.
fn upper(values: impl Iterator<Item = (f64, f64)>, share: f64) -> Option<f64> {
    let mut values: Vec<(f64, f64)> = values.collect();
    values.sort_by(|a, b| b.0.total_cmp(&a.0));
    let wanted: f64 = share * values.iter().map(|(_, seconds)| seconds).sum::<f64>();
    let mut passed = 0.0;
    values.into_iter().find_map(|(value, seconds)| {
        passed += seconds;
        (passed >= wanted).then_some(value)
    })
}

/// A run in which no GPU ever worked: idle, or a first collective that never ended.
fn without_training(seen: &[Seen<'_>]) -> Course {
    // GPUs are idle for a moment after their processes were ended.
    let end = seen.iter().rposition(|one| one.waits).map_or(0, |at| at + 1);
    let stalled = seen.iter().take(end).rposition(|one| !one.waits).map_or(0, |at| at + 1);
    let stalls = end - stalled > seen.len() - end;
    let kind = |at: usize| match stalls {
        true if at >= end => PhaseKind::Tail,
        true if at >= stalled => PhaseKind::Stalled,
        true => PhaseKind::StartUp,
        false => PhaseKind::Idle,
    };
    let list = seen.iter().enumerate().map(|(at, one)| one.phase(kind(at))).collect();
    Course { list: joined(list), training: Vec::new() }
}

/// Marks stretches of steady cells below the usual level.
fn slow_down(kinds: &mut [PhaseKind], whole: &[bool]) {
    let is_slow = |at: usize, kinds: &[PhaseKind]| {
        kinds.get(at) == Some(&PhaseKind::Steady) && whole.get(at) == Some(&false)
    };
    let mut at = 0;
    while at < kinds.len() {
        let length = (at..kinds.len()).take_while(|&next| is_slow(next, kinds)).count();
        if length >= SLOW_CELLS {
            kinds.iter_mut().skip(at).take(length).for_each(|kind| *kind = PhaseKind::Slow);
        }
        at += length.max(1);
    }
}

/// Joins neighbours of one kind, and beyond [`MOST`] phases the shortest with its longer neighbour.
fn joined(list: Vec<Phase>) -> Vec<Phase> {
    let mut out = alike(list);
    while out.len() > MOST {
        let inner = out.iter().enumerate().skip(1).take(out.len() - 2);
        let Some(at) = inner.min_by_key(|(_, phase)| phase.end - phase.start).map(|(at, _)| at) else {
            break;
        };
        let length = |place: usize| out.get(place).map_or(0, |phase| phase.end - phase.start);
        let into = if length(at - 1) >= length(at + 1) { at - 1 } else { at + 1 };
        let gone = out.remove(at);
        let into = if into > at { into - 1 } else { into };
        if let Some(phase) = out.get_mut(into) {
            (phase.start, phase.end) = (phase.start.min(gone.start), phase.end.max(gone.end));
        }
        out = alike(out);
    }
    out
}

fn alike(list: Vec<Phase>) -> Vec<Phase> {
    /// Samples follow one another within this time, milliseconds; a longer gap separates phases.
    const GAP_MS: u64 = 1500;
    let mut out: Vec<Phase> = Vec::new();
    for phase in list {
        match out.last_mut() {
            Some(last)
                if (last.kind, last.start_number) == (phase.kind, phase.start_number)
                    && phase.start <= last.end.saturating_add(GAP_MS) =>
            {
                last.end = last.end.max(phase.end);
            }
            _ => out.push(phase),
        }
    }
    out
}

#[cfg(test)]
mod tests;
