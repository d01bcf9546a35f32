use std::path::PathBuf;

use railgate_report::answer;
use railgate_slurm::TypedJob;

use crate::{Site, exit, output, report};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  railgate why 48213    a running job that does not advance, or an ended one
  railgate why          your last job
  railgate why 48213_4  a task of an array
  railgate why 48213 --dir ./collected
      from node reports collected by hand

The first line is the answer, then what shows it, then what happened on all nodes, in order of time. A running job is \
known from the partial reports of its nodes, which are up to `[report] live` (2m) old. docs/guard.md describes \
what is called a hang; `railgate report` has everything else.

Exit codes: 0 shown; 2 wrong use; 3 the job is unknown, or belongs to another user")]
pub(crate) struct Args {
    /// Job id: 48213, 48213_4 of an array, 48213+1 of a heterogeneous job. Without one, your last job
    #[arg(value_name = "JOB")]
    job: Option<TypedJob>,
    /// Read from here instead of `[report] dir`; may be given more than once
    #[arg(long, value_name = "DIR")]
    dir: Vec<PathBuf>,
    /// The cluster, if the directory holds several
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
}

pub(crate) fn run(site: &Site, args: &Args) -> anyhow::Result<u8> {
    let config = site.config()?;
    match report::of_typed(&config, args.job.as_ref(), &args.dir, args.cluster.as_deref()) {
        Ok(report) => {
            output::text(&answer(&report, railgate_runner::now()))?;
            Ok(exit::OK)
        }
        Err(code) => Ok(code),
    }
}
