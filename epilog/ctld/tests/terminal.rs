//! Hostile variables, arguments and Slurm output: each log event must be one line that a terminal can display.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]
#![expect(clippy::disallowed_macros, reason = "a skipped test prints the reason")]

#[path = "../../../cli/tests/terminal/hooks.rs"]
mod hooks;
#[path = "../../../cli/tests/terminal/stage.rs"]
#[allow(dead_code, reason = "railgate's own tests use more of it")]
mod stage;

#[test]
fn epilog_ctld_logs_no_hostile_text_unescaped() {
    let shown = hooks::run(env!("CARGO_BIN_EXE_railgate-epilog-ctld"), &[]);
    assert!(shown >= 3, "only {shown} runs show the hostile text");
}
