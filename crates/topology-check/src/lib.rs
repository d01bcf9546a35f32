//! Determines how NCCL reads a topology file, and whether the file describes this machine. Used by
//! `railgate rails --check`, and by the check `topology-file` of the gate.
//!
//! Pure functions of the bytes of the file, an NCCL release, and a snapshot with its rail map. `railgate-rails` writes
//! such files; this crate reads files from any source.

mod fit;
mod grammar;
mod graph;
mod judge;
mod render;

use std::collections::BTreeSet;

use railgate_model::{RailMap, Snapshot};
use railgate_rails::NcclVersion;
use serde::Serialize;

use fit::Machine;
use grammar::{ERAS, Era, era};
pub use judge::judge_topology_file;
pub use render::TopologyView;

/// The effect of a mistake in a topology file, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// NCCL fails: no communicator starts on the node, or the process dies.
    Refused,
    /// NCCL continues with wrong data.
    Misled,
    /// NCCL ignores this part.
    Ignored,
    /// Worth knowing.
    Note,
}

/// One problem of a topology file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopologyProblem {
    /// Line from 1; 0 for the whole file.
    pub line: usize,
    /// Column from 1, in bytes; 0 for the whole file.
    pub column: usize,
    /// The effect.
    pub effect: Effect,
    /// The problem.
    pub what: String,
    /// What to do; may be empty.
    pub fix: String,
    /// Affected NCCL releases, for people ("2.21 to 2.26"). Empty: all that were checked.
    pub nccl: Vec<&'static str>,
}

/// The result of checking a topology file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopologyCheck {
    /// NCCL accepts the file: in the given release, or in all of them.
    pub accepted: bool,
    /// In the order of the file, those about the whole file first.
    pub problems: Vec<TopologyProblem>,
    /// Values that could not be compared with the machine, with the reasons. Empty if no machine was given.
    pub unknown: Vec<String>,
}

impl TopologyCheck {
    /// Returns the worst effect; `None` if there is no problem.
    pub fn worst(&self) -> Option<Effect> {
        self.problems.iter().map(|problem| problem.effect).min()
    }
}

/// Checks a topology file as NCCL reads it.
///
/// `version` is the NCCL release; with `None` all releases are checked, and problems of some releases name them. `machine` is the
/// snapshot and rail map of the machine that the file is for; without one, every device of the file counts as present.
pub fn check_topology(
    text: &[u8],
    version: Option<NcclVersion>,
    machine: Option<(&Snapshot, &RailMap)>,
) -> TopologyCheck {
    let machine = machine.map(|(snapshot, map)| Machine::new(snapshot, map));
    let eras: Vec<&Era> = match version {
        Some(version) => vec![era(version)],
        None => ERAS.iter().collect(),
    };
    let mut untold = BTreeSet::new();
    let mut all: Vec<(Found, Vec<&'static str>)> = Vec::new();
    for era in &eras {
        for found in judge(text, era, machine.as_ref(), &mut untold) {
            match all.iter_mut().find(|(known, _)| *known == found) {
                Some((_, names)) if !names.contains(&era.name) => names.push(era.name),
                Some(_) => {}
                None => all.push((found, vec![era.name])),
            }
        }
    }
    let lines = Lines::of(text);
    let mut problems: Vec<(usize, TopologyProblem)> = all
        .into_iter()
        .map(|(Found { effect, at, what, fix }, names)| {
            let (line, column) = lines.place(at);
            let nccl = if names.len() == eras.len() { Vec::new() } else { names };
            (at.map_or(0, |at| at + 1), TopologyProblem { line, column, effect, what, fix, nccl })
        })
        .collect();
    problems.sort_by_key(|(at, _)| *at);
    let problems: Vec<TopologyProblem> = problems.into_iter().map(|(_, problem)| problem).collect();
    TopologyCheck {
        accepted: problems.iter().all(|problem| problem.effect != Effect::Refused),
        problems,
        unknown: machine
            .map(|machine| machine.untold)
            .unwrap_or_default()
            .into_iter()
            .chain(untold)
            .collect(),
    }
}

/// A problem with its place as a byte offset; `None` for the whole file.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    effect: Effect,
    at: Option<usize>,
    what: String,
    fix: String,
}

fn judge(text: &[u8], era: &Era, machine: Option<&Machine<'_>>, untold: &mut BTreeSet<String>) -> Vec<Found> {
    let fix = String::new();
    let tree = match grammar::read(text, era) {
        Ok(tree) => tree,
        Err(stop) => return vec![Found { effect: Effect::Refused, at: Some(stop.at), what: stop.what, fix }],
    };
    let mut found = Vec::new();
    for (effect, remarks) in [(Effect::Ignored, &tree.skipped), (Effect::Note, &tree.odd)] {
        found.extend(remarks.iter().map(|remark| {
            let what = match effect {
                Effect::Ignored => format!("{}: NCCL skips it and all that is in it", remark.what),
                _ => remark.what.clone(),
            };
            Found { effect, at: Some(remark.at), what, fix: String::new() }
        }));
    }
    let devices = machine.map_or_else(|| graph::Devices::assumed(&tree), |machine| machine.devices(&tree));
    graph::judge(&tree, era, &devices, &mut found, untold);
    if let Some(machine) = machine
        && !tree.elements.is_empty()
    {
        machine.compare(&tree, era, &mut found, untold);
    }
    found
}

/// Offsets of the lines of a text.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &[u8]) -> Lines {
        let ends = text.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
        Lines(std::iter::once(0).chain(ends).collect())
    }

    /// Returns line and column, from 1.
    fn place(&self, at: Option<usize>) -> (usize, usize) {
        let Some(at) = at else { return (0, 0) };
        let line = self.0.partition_point(|start| *start <= at);
        (line, at - self.0[line - 1] + 1)
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
