//! Between our code and Slurm's.

use std::ffi::c_int;
use std::panic::{self, AssertUnwindSafe};

use slurm_spank::LogLevel;

use crate::log::log;

/// Sends the message of a panic to Slurm's log instead of the user's terminal.
fn quiet() {
    panic::set_hook(Box::new(|info| {
        let what = info.to_string().replace('\n', " ");
        log(LogLevel::Error, format_args!("internal error, the job continues without it: {what}"));
    }));
}

/// Runs the work; whatever comes of it, Slurm hears that all is well.
pub(crate) fn guarded(hook: &str, work: impl FnOnce()) -> c_int {
    quiet();
    // What is in the middle of a change at a panic is never looked at again: each call reads its own.
    if let Err(panic) = panic::catch_unwind(AssertUnwindSafe(work)) {
        // Dropping it could panic in its turn.
        std::mem::forget(panic);
        log(LogLevel::Debug, format_args!("{hook} ended early"));
    }
    0
}
