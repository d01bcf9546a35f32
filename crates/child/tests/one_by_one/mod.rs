//! Runs the tests of a program without the standard harness. Tests of other crates that start themselves as children use this
//! file as well.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// Runs named tests, one at a time, since they change state of the whole process (signals, environment, descriptors). The command
/// line is that of the standard harness; the exit code is 0 if all tests pass.
pub(crate) fn run(tests: &[(&str, fn())]) -> ExitCode {
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    let trial = |(name, test): &(&str, fn())| {
        let test = *test;
        Trial::test(*name, move || {
            test();
            Ok(())
        })
    };
    libtest_mimic::run(&arguments, tests.iter().map(trial).collect()).exit_code()
}
