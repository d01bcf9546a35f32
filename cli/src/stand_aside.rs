//! `railgate yield`: the sampler does not read the job's GPUs while a program runs.

use std::os::unix::net::UnixStream;
use std::process::Command;

use anyhow::{Context as _, bail};
use railgate_rundir::Root;
use railgate_runner::YIELD_SOCKET;

use crate::{Site, exit, output};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples, inside a job:
  railgate yield -- nsys profile -o out python3 train.py
  railgate yield -- ncu --set full ./step

The report shows for how long sampling was paused. railgate's counters do not normally disturb Nsight; use this \
to rule them out. The exit code is the program's.")]
pub(crate) struct Args {
    /// The job [default: the current one, from SLURM_JOB_ID]
    #[arg(long, value_name = "JOBID")]
    job: Option<u32>,
    /// Program to run, and its arguments
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    program: Vec<String>,
}

pub(crate) fn run(site: &Site, args: &Args) -> anyhow::Result<u8> {
    let job = match (args.job, std::env::var("SLURM_JOB_ID")) {
        (Some(job), _) => job,
        (None, Ok(text)) => text.parse().with_context(|| format!("SLURM_JOB_ID = '{text}'"))?,
        (None, Err(_)) => bail!("not inside a job: SLURM_JOB_ID is not set, and --job is not given"),
    };
    let Some((program, arguments)) = args.program.split_first() else { bail!("no program") };
    // Held until the program has ended. Without a sampler there is nothing to pause.
    let held = Root::new(&site.places.run)
        .job(job)
        .current(job)
        .map_err(anyhow::Error::new)
        .and_then(|run| Ok(UnixStream::connect(run.file(YIELD_SOCKET))?));
    let held = match held {
        Ok(held) => Some(held),
        Err(why) => {
            output::failure(&why.context(format!("no sampler of job {job} answers here")));
            None
        }
    };
    let status =
        Command::new(program).args(arguments).status().with_context(|| format!("cannot start {program}"))?;
    drop(held);
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.unwrap_or(exit::USAGE))
}
