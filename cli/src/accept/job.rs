//! The job of a unit: runs its programs and writes its result.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nix::sys::stat::Mode;
use railgate_accept::{Command, Output, Program, STAGES, UnitResult};
use railgate_child::program::{Ended, Run, run_program};
use railgate_fsutil::{Put, nofollow, put_at};
use railgate_slurm::hostlist;

use super::dir::{Dir, now};
use crate::exit;
use crate::node_step::NOT_INHERITED;
use crate::output::say;
use crate::preflight::node::GPU_PROGRAM;

/// Most bytes of a program's output that a result holds.
const KEPT: usize = 32 << 20;
/// Most bytes of standard error.
const KEPT_ERRORS: usize = 4096;

pub(crate) fn run(dir: &Path, unit: &str, attempt: u32) -> anyhow::Result<u8> {
    let dir = Dir::open(dir)?;
    let run = dir.run()?;
    // The driver may have counted this job as lost, and submitted the unit again.
    if !run.state.is_open(unit, attempt) {
        say!("attempt {attempt} of {unit} is not expected any more: nothing is run")?;
        return Ok(exit::OK);
    }
    let units = run.plan.units();
    let unit = units
        .iter()
        .find(|known| known.id == unit)
        .with_context(|| format!("the plan has no unit {unit}"))?;
    let stage = STAGES.iter().find(|stage| stage.id == unit.stage).context("no such stage")?;
    let variable =
        |name: &str| std::env::var(name).with_context(|| format!("not inside a job: {name} is not set"));
    let job = variable("SLURM_JOB_ID")?;
    let nodes = hostlist::expand(&variable("SLURM_JOB_NODELIST")?).context("SLURM_JOB_NODELIST")?;
    let began = now();
    let program = std::env::current_exe().context("path of this program")?;
    let commands = (stage.commands)(&run.plan, unit, &nodes);
    // Older versions of Slurm do not set it.
    let end = std::env::var("SLURM_JOB_END_TIME").ok().and_then(|text| text.parse().ok());
    let end = end.unwrap_or(began / 1000 + u64::from(unit.limit_min) * 60);
    let reserve = reserve(unit.limit_min);
    let outputs = commands
        .iter()
        .map(|command| match time_left(command, end, now() / 1000, reserve) {
            Some(limit_s) => output(command, limit_s, &program, nodes.len()),
            None => Output {
                command: command.id.clone(),
                stderr: "not run: the time limit of the job is reached".to_owned(),
                ..Output::default()
            },
        })
        .collect();
    let result = UnitResult {
        schema: 1,
        run: run.state.run.clone(),
        unit: unit.id.clone(),
        attempt,
        job: job.clone(),
        nodes,
        began,
        ended: now(),
        railgate: env!("CARGO_PKG_VERSION").to_owned(),
        outputs,
    };
    let results = nofollow::dir_at(nofollow::place(dir.path())?, "results")?;
    let mode = Mode::S_IRUSR | Mode::S_IWUSR;
    // The name has the job: a unit that was run twice has two files.
    let name = format!("{}.a{attempt}.j{job}.json", unit.id);
    put_at(results.as_fd(), &name, &serde_json::to_vec(&result)?, Put { mode, sync: true, replace: false })
        .with_context(|| format!("results/{name}"))?;
    say!("{name}: written")?;
    Ok(exit::OK)
}

/// Time that stays for the result: the job must not be killed before it is written. Seconds.
fn reserve(limit_min: u32) -> u64 {
    (u64::from(limit_min) * 15).min(60)
}

/// Deadline of a command in a job that ends at `end`, seconds since 1970; `None`: it is not run.
fn time_left(command: &Command, end: u64, now: u64, reserve: u64) -> Option<u64> {
    let left = end.saturating_sub(now).saturating_sub(reserve);
    // What a fault changed is undone at any time.
    let least = if command.always { 30 } else { 0 };
    Some(command.limit_s.min(left.max(least))).filter(|seconds| *seconds > 0)
}

/// Runs a command until its deadline.
fn output(command: &Command, limit_s: u64, railgate: &Path, nodes: usize) -> Output {
    let text =
        |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
    let mut environment: BTreeMap<String, String> = std::env::vars_os().filter_map(text).collect();
    let own = railgate.display().to_string();
    let (path, arguments) = match &command.program {
        Program::Railgate => (railgate.to_owned(), command.args.clone()),
        Program::GpuSelfTest => (PathBuf::from(GPU_PROGRAM), command.args.clone()),
        Program::At(path) => (PathBuf::from(path), command.args.clone()),
        Program::RailgateOnEach => {
            let each =
                [format!("--nodes={nodes}"), format!("--ntasks={nodes}"), "--ntasks-per-node=1".to_owned()];
            srun(&mut environment, &each, [vec![own], command.args.clone()].concat())
        }
        Program::Srun(options) => {
            let nodes = [format!("--nodes={nodes}")];
            srun(&mut environment, &[&nodes, options.as_slice()].concat(), command.args.clone())
        }
    };
    let line = [vec![path.display().to_string()], arguments.clone()].concat().join(" ");
    let run =
        Run { path, arguments, environment, deadline_ms: limit_s.saturating_mul(1000), kept_bytes: KEPT };
    let (exit, stdout, stderr) = match run_program(&run) {
        Ended::Exited { code, out, err } => (Some(code), out, err),
        Ended::Killed { signal, out } => (None, out, format!("killed by signal {signal}")),
        Ended::Failed(why) => (None, String::new(), why),
        Ended::Silent { after_ms, out, .. } => {
            (None, out, format!("did not end in {:.0} s", after_ms / 1000.0))
        }
    };
    let from = stderr.len().saturating_sub(KEPT_ERRORS);
    let from = (from..stderr.len()).find(|at| stderr.is_char_boundary(*at)).unwrap_or(0);
    let stderr = stderr.get(from..).unwrap_or_default().to_owned();
    Output { command: command.id.clone(), line, exit, stdout, stderr }
}

fn srun(
    environment: &mut BTreeMap<String, String>,
    options: &[String],
    program: Vec<String>,
) -> (PathBuf, Vec<String>) {
    for name in NOT_INHERITED {
        environment.remove(name);
    }
    let fixed = ["--overlap", "--kill-on-bad-exit=0", "--input=none"].map(str::to_owned);
    (PathBuf::from("srun"), [fixed.to_vec(), options.to_vec(), program].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_end_before_their_job() {
        let mut command = Command {
            id: "a".to_owned(),
            program: Program::Railgate,
            args: Vec::new(),
            limit_s: 300,
            always: false,
        };
        assert_eq!(time_left(&command, 5000, 1000, 60), Some(300));
        assert_eq!(time_left(&command, 1100, 1000, 60), Some(40));
        for end in [0, 1000, 1060] {
            assert_eq!(time_left(&command, end, 1000, 60), None, "{end}");
        }
        command.always = true;
        assert_eq!(time_left(&command, 1060, 1000, 60), Some(30));
        assert_eq!((reserve(1), reserve(60)), (15, 60));
    }
}
