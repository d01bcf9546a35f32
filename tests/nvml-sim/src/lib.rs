//! A libnvidia-ml.so.1 without hardware.
//!
//! The shared library answers the NVML calls that railgate makes from a [`Scenario`] in the file
//! `nvml-scenario.json` that lies in the same folder as the library, and reads it again whenever it has
//! changed. It can hang, be slow, lose a GPU between two calls, and refuse; a copy can be made to lack
//! symbols ([`hide_symbol`]). What programs do on its GPUs they say themselves ([`work`]): activities, clock, power and
//! counters follow from it.

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
