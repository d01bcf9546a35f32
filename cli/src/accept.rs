//! `railgate accept`: acceptance of a cluster through Slurm jobs, and its report.

mod dir;
mod driver;
mod job;
mod nccl;
mod report;
mod samples;
mod storage;
mod waive;

use std::path::PathBuf;

use anyhow::Context as _;

use crate::Site;

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Examples, as root on a node from which jobs can be submitted:
  railgate accept plan.toml --dir /shared/accept-1
      start, or continue after any interruption
  railgate accept report /shared/accept-1 --format html > accept.html
  railgate accept waive /shared/accept-1 node.gn3 --by 'A. Smith' \\
      --why 'fan is ordered'
  railgate accept plan.toml --dir /shared/accept-1 --cancel
      cancel its jobs; the same command without --cancel continues

Each job of the plan is one Slurm job, whose result is a file in --dir. The directory lies on storage that \
all nodes share, and only root can write to it. Ctrl-C ends the command and leaves its jobs in the queue.

Exit code: 0 every job of the plan has a result, 2 wrong use or plan, 3 interrupted, or jobs without a result. \
Report: 0 every item passes or is waived, 1 an item failed, 2 wrong use, 3 items are unknown.")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// The plan: docs/accept.md
    plan: Option<PathBuf>,
    /// Directory of this acceptance, which all nodes share
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Cancel the jobs of this acceptance and end
    #[arg(long)]
    cancel: bool,
    /// Inject the faults of the plan: only inside a MAINT reservation
    #[arg(long)]
    inject_faults: bool,
    /// In a job: the unit
    #[arg(long, hide = true, requires_all = ["dir", "attempt"])]
    unit: Option<String>,
    /// In a job: the number of the attempt
    #[arg(long, hide = true)]
    attempt: Option<u32>,
    /// On each node: write, read and remove files here
    #[arg(long, hide = true, requires_all = ["mib", "files"])]
    storage_test: Option<PathBuf>,
    #[arg(long, hide = true)]
    mib: Option<u32>,
    #[arg(long, hide = true)]
    files: Option<u32>,
    /// On one node: run fio here
    #[arg(long, hide = true, requires_all = ["pattern", "seconds"])]
    fio_test: Option<PathBuf>,
    #[arg(long, hide = true, value_parser = ["randread", "randwrite"])]
    pattern: Option<String>,
    #[arg(long, hide = true)]
    seconds: Option<u32>,
    /// On one node: print its NCCL library
    #[arg(long, hide = true)]
    nccl_library: bool,
    /// On one node: print power and temperature of its GPUs so many times
    #[arg(long, hide = true, value_parser = clap::value_parser!(u32).range(1..=100))]
    gpu_samples: Option<u32>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// The report of an acceptance: checklist, figures, heat maps, signatures
    Report(report::Args),
    /// Accept a failed or unknown item of the checklist: it stays in the report, with name, date and reason
    Waive(waive::Args),
}

pub(crate) fn run(site: &Site, args: &Args) -> anyhow::Result<u8> {
    match &args.command {
        Some(Command::Report(args)) => return report::run(args),
        Some(Command::Waive(args)) => return waive::run(args),
        None => {}
    }
    if let (Some(place), Some(mib), Some(files)) = (&args.storage_test, args.mib, args.files) {
        return storage::run(site, place, mib, files);
    }
    if let (Some(place), Some(pattern), Some(seconds)) = (&args.fio_test, &args.pattern, args.seconds) {
        return storage::fio(site, place, pattern, seconds);
    }
    if args.nccl_library {
        return nccl::run();
    }
    if let Some(count) = args.gpu_samples {
        return samples::run(site, count);
    }
    let dir = args.dir.as_deref().context("--dir is missing: a directory that all nodes share")?;
    if let (Some(unit), Some(attempt)) = (&args.unit, args.attempt) {
        return job::run(dir, unit, attempt);
    }
    let plan = args.plan.as_deref().context("the plan is missing: docs/accept.md has an example")?;
    driver::run(site, plan, dir, args.cancel, args.inject_faults)
}
