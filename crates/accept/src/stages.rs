//! The register of stages: which units of work a stage has, what their jobs run, and how their results are judged.

mod collectives;
mod inventory;
mod node;
mod pairs;
mod rest;
mod soak;
mod storage;

pub use node::self_test_kind;
pub use rest::GpuSample;
pub use storage::{Span, StorageTested};

use crate::plan::{Plan, Simple};
use crate::report::Build;
use crate::result::UnitResult;
pub(crate) use soak::is_injected;

/// A stage of an acceptance: the table of this name in the plan.
#[derive(Clone, Copy, Debug)]
pub struct Stage {
    /// Its id.
    pub id: &'static str,
    /// What it does, for people.
    pub about: &'static str,
    /// Its units under a plan.
    pub units: fn(&Plan) -> Vec<Unit>,
    /// Programs that the job of a unit runs on `nodes`, one after the other.
    pub commands: fn(&Plan, &Unit, nodes: &[String]) -> Vec<Command>,
    /// Judges the results of all its units.
    pub(crate) judge: fn(&mut Build<'_>, &[Of<'_>]),
}

/// All stages, in the order in which they run: a cheap one that finds gross faults comes first.
pub const STAGES: &[Stage] =
    &[inventory::STAGE, node::STAGE, pairs::STAGE, storage::STAGE, collectives::STAGE, soak::STAGE];

/// A unit of work: one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// `STAGE.WHAT.rN`, part of file names and names of jobs.
    pub id: String,
    /// The stage.
    pub stage: &'static str,
    /// Number of the repetition, from 1.
    pub repetition: u32,
    /// Nodes that it needs.
    pub nodes: Vec<String>,
    /// Fewest nodes with which it is of use.
    pub fewest: usize,
    /// Time limit of its job, minutes.
    pub limit_min: u32,
}

/// A result with its unit.
pub(crate) struct Of<'a> {
    pub(crate) unit: &'a Unit,
    pub(crate) result: &'a UnitResult,
}

/// A program that a job runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// `railgate` on the first node.
    Railgate,
    /// `railgate-gpu-selftest` on the first node.
    GpuSelfTest,
    /// A program on the first node.
    At(String),
    /// `railgate` on each node at once.
    RailgateOnEach,
    /// `srun` with these options, on all nodes.
    Srun(Vec<String>),
}

/// A command of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Id within the unit.
    pub id: String,
    /// The program.
    pub program: Program,
    /// Its arguments.
    pub args: Vec<String>,
    /// Deadline, seconds.
    pub limit_s: u64,
    /// Whether it is run even if the job has no time left: it undoes what another command did.
    pub always: bool,
}

impl Command {
    fn new(id: &str, program: Program, args: &[&str], limit_s: u64) -> Self {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        Command { id: id.to_owned(), program, args, limit_s, always: false }
    }
}

/// Units of a stage that has one job for each node.
fn of_each_node(stage: &'static str, plan: &Plan, table: Option<Simple>, limit_min: u32) -> Vec<Unit> {
    let Some(table) = table else { return Vec::new() };
    let limit_min = table.limit_min.map_or(limit_min, |limit| limit.0);
    let unit = |repetition: u32, node: &String| Unit {
        id: format!("{stage}.{node}.r{repetition}"),
        stage,
        repetition,
        nodes: vec![node.clone()],
        fewest: 1,
        limit_min,
    };
    (1..=table.repetitions.0)
        .flat_map(|repetition| plan.nodes.iter().map(move |node| unit(repetition, node)))
        .collect()
}
