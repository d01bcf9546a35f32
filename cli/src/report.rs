use std::path::PathBuf;

use anyhow::Context as _;
use railgate_slurm::{Client, JobRef, hostlist};
use railgate_stats::{SlurmView, html, json, store, text};

use crate::{Site, exit, output};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  railgate report 48213
  railgate report 48213 --format html --out 48213.html
  railgate report 48213 --dir ./collected              parts gathered by hand

A report is readable by the job's owner and root. Exit codes: 0 shown, 2 usage, 3 nothing is known of the job")]
pub(crate) struct Args {
    /// Job id, as squeue shows it (of an array's member: its own number, `scontrol show job`)
    job: u32,
    #[arg(long, value_enum, default_value_t = Show::Text)]
    format: Show,
    /// Where to write it [default: standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Look here instead of `[report] dir`; may be given more than once
    #[arg(long, value_name = "DIR")]
    dir: Vec<PathBuf>,
    /// Which cluster, where the directory holds several
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Show {
    /// For a terminal
    Text,
    /// For programs (docs/report.md)
    Json,
    /// One file, opens offline
    Html,
}

pub(crate) fn run(site: &Site, args: &Args) -> anyhow::Result<u8> {
    let config = site.config()?;
    let env = std::env::vars_os().collect();
    let slurm = slurm_view(&Client::new(&config.slurm, &env), args.job);
    let user = nix::unistd::geteuid();
    // Whoever is not root reads their own reports only, and believes nobody else's.
    let owner = (!user.is_root()).then(|| user.as_raw());
    let expand = |list: &str| hostlist::expand(list).ok();
    let report =
        store::load(&config.report, &args.dir, args.cluster.as_deref(), args.job, owner, slurm, &expand);
    let known = !report.attempts.is_empty();
    let content = match args.format {
        Show::Text => text(&report),
        Show::Json => json(&report),
        Show::Html => html(&report),
    };
    match &args.out {
        Some(path) => std::fs::write(path, content).with_context(|| path.display().to_string())?,
        None => output::text(&content)?,
    }
    Ok(if known { exit::OK } else { exit::UNKNOWN })
}

/// What Slurm still knows of the job; nothing where it does not answer or has forgotten it.
fn slurm_view(client: &Client, job: u32) -> Option<SlurmView> {
    let state = client.job(&JobRef::plain(job)).ok()?.into_iter().next()?;
    let millis = |seconds: Option<u64>| seconds.map(|seconds| seconds.saturating_mul(1000));
    Some(SlurmView {
        state: state.state,
        reason: state.reason,
        exit: None,
        restarts: Some(state.restarts),
        start: millis(state.start),
        end: millis(state.end),
        nodelist: state.nodes,
    })
}
