//! What railgate's tests and its demo share: a real Slurm cluster on one machine, and simulated hardware
//! for its nodes. `README.md` beside this package says how to write a test with it.

pub mod accounting;
pub mod cluster;
pub mod hardware;
pub mod poll;
pub mod training;

/// Says in one line why a test does not apply here, also where the test harness keeps to itself what tests that pass have printed.
///
/// # Errors
/// Standard error is closed.
pub fn skipped(why: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    Ok(writeln!(std::io::stderr(), "skipped: {why}")?)
}
