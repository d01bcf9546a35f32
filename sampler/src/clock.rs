use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use railgate_model::UnixMillis;

/// The calendar, which is read once and may then be set as anybody likes, and the clock that everything is timed by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// Of the node.
    pub(crate) calendar: fn() -> UnixMillis,
    /// Seconds since boot: nobody sets it, and it goes on while the machine sleeps.
    pub(crate) boot_s: fn() -> f64,
}

impl Default for Clock {
    fn default() -> Self {
        let boot_s =
            || clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0.0, |time| Duration::from(time).as_secs_f64());
        Clock { calendar: railgate_runner::now, boot_s }
    }
}
