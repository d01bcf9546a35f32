//! The project's own commands.

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(code) = railgate_tests::cluster::dispatch() {
        return code;
    }
    eprintln!("not yet");
    ExitCode::FAILURE
}
