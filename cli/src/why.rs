use std::path::PathBuf;

use railgate_report::{answer, answer_html};
use railgate_slurm::TypedJob;
use railgate_text::Lines;

use crate::{Site, exit, output, report};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  railgate why 48213    a running job that does not advance, or an ended one
  railgate why          your last job
  railgate why 48213_4  a task of an array
  railgate why 48213 --dir ./collected
      from node reports collected by hand
  railgate why 48213 --format html --out why.html

The line ANSWER comes first, then its evidence, then what happened on all nodes, in order of time. A running job is \
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
    /// How to print it
    #[arg(long, value_enum, default_value_t = Show::Text)]
    format: Show,
    /// Where to write it [default: standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Show {
    /// For a terminal
    Text,
    /// One file, opens offline
    Html,
}

pub(crate) fn run(site: &Site, args: &Args) -> anyhow::Result<u8> {
    let config = site.config()?;
    match report::of_typed(&config, args.job.as_ref(), &args.dir, args.cluster.as_deref()) {
        Ok(report) => {
            let now = railgate_runner::now();
            let content = match args.format {
                Show::Text => answer(&report, now),
                Show::Html => Lines::kept(&answer_html(&report, now)),
            };
            output::to(args.out.as_deref(), &content)?;
            Ok(exit::OK)
        }
        Err(code) => Ok(code),
    }
}
