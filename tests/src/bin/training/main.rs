//! Stand-in for torchrun and the training it starts, for machines without GPUs: one process for each GPU of the node plays the
//! figures of `railgate_tests::training`. Of torchrun's options it accepts only `--nproc-per-node`.
#![allow(unsafe_code, reason = "it plays NCCL's part of a C interface")]

#[path = "../../../../nccl-profiler/tests/driver/played.rs"]
#[allow(
    dead_code,
    clippy::unwrap_used,
    reason = "shared with the tests of the plugin, which play more and may panic"
)]
mod played;
mod rank;
mod schedule;

use std::ffi::OsString;
use std::process::{Child, Command, ExitCode};

use anyhow::{Context as _, Result};
use railgate_tests::training::NCCL_RELEASE;

/// Hidden argument that makes the program one rank.
const RANK: &str = "@rank";

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let of_gpu = arguments.first().is_some_and(|word| word == RANK);
    let done = if of_gpu { rank::train().map(|()| true) } else { launch(&arguments) };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("training: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// As torchrun does: starts the ranks of this node, with their settings in the environment.
fn launch(arguments: &[OsString]) -> Result<bool> {
    let word = |word: &OsString| word.to_str()?.strip_prefix("--nproc-per-node=")?.parse().ok();
    let per_node: u32 = arguments.iter().find_map(word).context("--nproc-per-node=GPUS")?;
    let (node, nodes): (u32, u32) = (number("SLURM_NODEID")?, number("SLURM_NNODES")?);
    let start = |local: u32| -> Result<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(RANK).env("RAILGATE_TEST_NCCL", NCCL_RELEASE.to_string());
        for (name, value) in [
            ("RANK", node * per_node + local),
            ("WORLD_SIZE", nodes * per_node),
            ("LOCAL_RANK", local),
            ("LOCAL_WORLD_SIZE", per_node),
        ] {
            command.env(name, value.to_string());
        }
        Ok(command.spawn()?)
    };
    let mut all: Vec<Child> = (0..per_node).map(start).collect::<Result<_>>()?;
    let mut good = true;
    for child in &mut all {
        good &= child.wait()?.success();
    }
    Ok(good)
}

/// Reads a number from the environment.
fn number(name: &str) -> Result<u32> {
    let text = std::env::var(name).with_context(|| name.to_owned())?;
    text.parse().with_context(|| format!("{name}={text}"))
}
