//! What Slurm's log and the user's terminal get: options, names and values of users stand in it, so each message is one
//! printable line.

use std::io::Write as _;

use railgate_text::{Lines, Printable, put};
use slurm_spank::LogLevel;

/// For slurmd's log, slurmstepd's or the terminal of srun, sbatch and salloc, after `railgate: `.
#[expect(clippy::disallowed_methods, reason = "the one place")]
pub(crate) fn log(level: LogLevel, words: std::fmt::Arguments<'_>) {
    slurm_spank::spank_log(level, &format!("railgate: {}", Printable(words)));
}

/// Standard error is the task's own by now: the job's output file.
#[expect(clippy::disallowed_methods, reason = "the one place")]
pub(crate) fn tell(notices: &[String]) {
    let mut text = Lines::new();
    for notice in notices.iter().take(16) {
        put!(text, "{notice}");
    }
    let _ = std::io::stderr().write_all(text.as_ref());
}
