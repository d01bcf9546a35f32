//! Writes to Slurm's log and to the user's terminal. Messages contain options, names and values of users, so each is
//! made one printable line.

use std::io::Write as _;

use railgate_text::{Lines, Printable, put};
use slurm_spank::LogLevel;

/// Logs to slurmd's log, slurmstepd's log, or the terminal of srun, sbatch and salloc, after `railgate: `.
#[expect(clippy::disallowed_methods, reason = "the only place that prints")]
pub(crate) fn log(level: LogLevel, words: std::fmt::Arguments<'_>) {
    slurm_spank::spank_log(level, &format!("railgate: {}", Printable(words)));
}

/// Writes notices to standard error, which is the task's own by now: the job's output file.
#[expect(clippy::disallowed_methods, reason = "the only place that prints")]
pub(crate) fn tell(notices: &[String]) {
    let mut text = Lines::new();
    for notice in notices.iter().take(16) {
        put!(text, "{notice}");
    }
    let _ = std::io::stderr().write_all(text.as_ref());
}
