//! A libnvidia-ml.so.1 without hardware.
//!
//! The shared library answers the NVML calls that railgate makes from a [`Scenario`], the file `nvml-scenario.json` in the
//! library's folder, which it reads again after each change. It can hang, answer slowly, lose a GPU between two calls, and
//! return errors; [`hide_symbol`] removes symbols from a copy. Programs report their load on the simulated GPUs with
//! [`work`]; activities, clock, power and counters follow from it.

mod answer;
mod details;
mod events;
mod exports;
mod gpm;
mod hide;
mod install;
mod load;
mod scenario;
mod state;

pub use events::EVENTS_FILE;
pub use hide::{HideError, hide_symbol};
pub use install::{built_library, install};
pub use load::{LOADS, Work, work};
pub use scenario::{Behaviour, SCENARIO_FILE, Scenario};
