//! Steps of a command, with progress output.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
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

/// Lines of a failed test's output that the error repeats.
const MOST_LINES: usize = 25;

/// Runs a test program of libtest. Its output goes to the terminal, and the error repeats how each failed test's output begins:
/// the tests' own place in a long log is easily missed.
pub(super) fn run_tests(command: &mut Command) -> Result<()> {
    let name = words(command);
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| name.clone())?;
    let mut failures = Failures::default();
    for line in BufReader::new(child.stdout.take().context("no pipe")?).split(b'\n') {
        let line = line.context("reading the tests' output")?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        failures.add(&line);
    }
    let status = child.wait().with_context(|| name.clone())?;
    if !status.success() {
        bail!("`{name}`: {status}{}", failures.begin);
    }
    Ok(())
}

/// How the outputs of failed tests begin.
#[derive(Debug, Default)]
struct Failures {
    begin: String,
    /// Lines that the present test may still add.
    left: usize,
}

impl Failures {
    fn add(&mut self, line: &str) {
        if line.starts_with("---- ") && line.ends_with(" stdout ----") {
            self.left = MOST_LINES;
        } else if line == "failures:" {
            self.left = 0;
        }
        if self.left > 0 {
            self.left -= 1;
            self.begin.push('\n');
            self.begin.push_str(line);
        }
    }
}

fn words(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Runs all steps, even after a failure, and lists the failures at the end.
#[derive(Debug, Default)]
pub(super) struct Steps {
    failed: Vec<String>,
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
                self.failed.push(format!("{name}: {error:#}"));
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
            bail!("failed:\n{}", self.failed.join("\n"));
        }
        println!("\nall passed");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_test_is_repeated_with_how_its_output_begins() {
        let mut failures = Failures::default();
        let long: Vec<String> = (0..100).map(|line| format!("line {line}")).collect();
        for line in [
            "running 2 tests",
            "test a::b ... FAILED",
            "",
            "failures:",
            "",
            "---- a::b stdout ----",
            "Error: why",
        ] {
            failures.add(line);
        }
        long.iter().for_each(|line| failures.add(line));
        for line in ["failures:", "    a::b", "test result: FAILED"] {
            failures.add(line);
        }
        assert!(
            failures.begin.starts_with("\n---- a::b stdout ----\nError: why\nline 0\n"),
            "{}",
            failures.begin
        );
        assert_eq!(failures.begin.lines().count(), MOST_LINES + 1);
        assert!(failures.begin.ends_with("line 22"), "{}", failures.begin);
    }
}
