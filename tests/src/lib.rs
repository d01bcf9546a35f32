//! Code shared by railgate's tests and its demo: a real Slurm cluster on one machine, and simulated hardware for its nodes.
//! `README.md` beside this package shows how to write a test with it.

pub mod accounting;
pub mod cluster;
pub mod hang;
pub mod hardware;
pub mod poll;
pub mod training;

/// Prints in one line why a test does not apply here. It writes to standard error directly, since the test harness captures
/// the output of tests that pass.
///
/// # Errors
/// Standard error is closed.
pub fn skipped(why: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    Ok(writeln!(std::io::stderr(), "skipped: {why}")?)
}
