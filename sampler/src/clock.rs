use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use railgate_model::UnixMillis;

/// The calendar, which is read once and may be changed by an admin afterwards, and the monotonic clock that
/// times everything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// Calendar time of the node.
    pub(crate) calendar: fn() -> UnixMillis,
    /// Seconds since boot: cannot be set, and continues while the machine sleeps.
    pub(crate) boot_s: fn() -> f64,
}

impl Default for Clock {
    fn default() -> Self {
        let boot_s =
            || clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0.0, |time| Duration::from(time).as_secs_f64());
        Clock { calendar: railgate_runner::now, boot_s }
    }
}
