//! Keeps panics from reaching Slurm.

use std::ffi::c_int;
use std::panic::{self, AssertUnwindSafe};

use slurm_spank::LogLevel;

use crate::log::log;

/// Sends a panic's message to Slurm's log instead of the user's terminal.
fn quiet() {
    panic::set_hook(Box::new(|info| {
        let what = info.to_string().replace('\n', " ");
        log(LogLevel::Error, format_args!("internal error, the job continues without it: {what}"));
    }));
}

/// Runs the work and returns success to Slurm, regardless of the result.
pub(crate) fn guarded(hook: &str, work: impl FnOnce()) -> c_int {
    quiet();
    // State that a panic leaves half-changed is never used again: each call reads its own.
    if let Err(panic) = panic::catch_unwind(AssertUnwindSafe(work)) {
        // Dropping the payload could panic in turn.
        std::mem::forget(panic);
        log(LogLevel::Debug, format_args!("{hook} panicked"));
    }
    0
}
