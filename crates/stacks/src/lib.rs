//! Takes the stacks of a hung job's ranks on this node, once.
//!
//! For each rank: state, kernel function, and the Python and the native stack of its main thread. Each stack is read by a child
//! of its own that runs as the job's user, with a deadline. A process with damaged or hostile memory or files can only lose its own
//! stack. Its main thread is stopped for at most 150 ms, and only where its native stack cannot be read otherwise. See
//! `docs/decisions/0010-stacks.md`.
//!
//! A program that calls [`collect()`] passes [`TASKS`] to its `dispatch`.

mod access;
mod collect;
mod native;
mod python;
mod ras;
mod recorder;
mod task;

pub use collect::{Order, Target, collect};
pub use railgate_node_report::stacks::{Frame, Group, Groups, RankStack, Stacks, group, text};
pub use ras::{RasOrder, ask_ras};
pub use recorder::{RecorderOrder, read_recorder};
pub use task::TASKS;
