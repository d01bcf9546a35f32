//! Phases of each GPU by itself: one rank may save while the others wait for it.

use std::collections::BTreeMap;

use super::classify::{Cell, classify_starts};
use super::{Phase, PhaseKind};
use crate::tasks::StepStart;

/// Seconds of each kind that occurs.
type Seconds = BTreeMap<PhaseKind, f64>;

/// Seconds by kind of each of so many GPUs, from its own samples; empty if all agree with those of the node in `list` to within a
/// sample, or if samples have other GPUs. `others` and `starts` as in [`classify_starts`].
pub(crate) fn by_gpu(
    cells: &[Cell],
    gpus: usize,
    others: bool,
    starts: &[StepStart],
    list: &[Phase],
) -> Vec<Seconds> {
    if gpus < 2 || cells.iter().any(|cell| cell.gpus.len() != gpus) {
        return Vec::new();
    }
    let of_gpu = |place: usize| {
        let own: Vec<Cell> = cells.iter().filter_map(|cell| own(cell, place, others)).collect();
        seconds(&classify_starts(&own, others, starts).list)
    };
    let all: Vec<Seconds> = (0..gpus).map(of_gpu).collect();
    let length = |cell: &Cell| crate::plain::float(cell.end.saturating_sub(cell.start)) / 1000.0;
    let sample_s = cells.iter().map(length).fold(0.0, f64::max);
    let node = seconds(list);
    let differs = |own: &Seconds| {
        let of = |all: &Seconds, kind| all.get(&kind).copied().unwrap_or(0.0);
        PhaseKind::ALL.into_iter().any(|kind| (of(own, kind) - of(&node, kind)).abs() >= sample_s)
    };
    if all.iter().any(differs) { all } else { Vec::new() }
}

/// The part of a sample that concerns one GPU. What the node writes is not of a GPU that waits for another one.
fn own(cell: &Cell, place: usize, others: bool) -> Option<Cell> {
    let gpu = *cell.gpus.get(place)?;
    let waits = others && gpu.waits();
    let (written, sent) = if waits { (0.0, 0.0) } else { (cell.written, gpu.sent) };
    let gpus = vec![super::CellGpu { sent, ..gpu }];
    Some(Cell { start: cell.start, end: cell.end, gpus, written })
}

fn seconds(list: &[Phase]) -> Seconds {
    let mut all = Seconds::new();
    for phase in list {
        *all.entry(phase.kind).or_default() += phase.seconds();
    }
    all
}
