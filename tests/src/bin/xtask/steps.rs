//! Steps of a command, with progress output.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

/// Runs a program whose output goes to the terminal directly.
pub(super) fn run(command: &mut Command) -> Result<()> {
    let name = words(command);
    let status = command.status().with_context(|| name.clone())?;
    if !status.success() {
        bail!("`{name}`: {status}");
    }
    Ok(())
}

fn words(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Runs all steps, even after a failure, and lists the failures at the end.
#[derive(Debug, Default)]
pub(super) struct Steps {
    failed: Vec<&'static str>,
    skipped: Vec<String>,
}

impl Steps {
    /// Runs a step and prints its duration.
    pub(super) fn step(&mut self, name: &'static str, work: impl FnOnce() -> Result<()>) {
        println!("\n── {name}");
        let start = Instant::now();
        match work() {
            Ok(()) => println!("── {name}: ok, {:.1} s", start.elapsed().as_secs_f32()),
            Err(error) => {
                println!("── {name}: FAILED after {:.1} s: {error:#}", start.elapsed().as_secs_f32());
                self.failed.push(name);
            }
        }
    }

    /// Prints why a step is skipped.
    pub(super) fn skip(&mut self, name: &str, why: &str) {
        println!("\n── {name}: skipped: {why}");
        self.skipped.push(name.to_owned());
    }

    /// Prints the result of all steps.
    pub(super) fn end(self) -> Result<()> {
        if !self.skipped.is_empty() {
            println!("\nskipped: {}", self.skipped.join(", "));
        }
        if !self.failed.is_empty() {
            bail!("failed: {}", self.failed.join(", "));
        }
        println!("\nall passed");
        Ok(())
    }
}
