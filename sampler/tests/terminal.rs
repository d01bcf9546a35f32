//! Hostile variables, arguments and answers of Slurm: each log event is one printable line.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]
#![expect(clippy::disallowed_macros, reason = "a skipped test prints the reason")]

#[path = "../../cli/tests/terminal/hooks.rs"]
mod hooks;
#[path = "../../cli/tests/terminal/stage.rs"]
#[allow(dead_code, reason = "railgate's own tests use more of it")]
mod stage;

#[test]
fn sampler_logs_no_hostile_text_raw() {
    let shown = hooks::run(env!("CARGO_BIN_EXE_railgate-sampler"), &["7", "0"]);
    assert!(shown >= 1, "only {shown} runs show the hostile text");
}
