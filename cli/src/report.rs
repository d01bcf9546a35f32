use std::path::PathBuf;

use anyhow::Context as _;
use nix::unistd::{Uid, User};
use railgate_slurm::{Client, JobRef, JobState, hostlist};
use railgate_stats::{ReportAccess, SlurmView, html, json, store, text};

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
    let state = slurm_state(&Client::new(&config.slurm, &env), args.job);
    let owner = state.as_ref().and_then(|state| state.uid);
    let user = nix::unistd::geteuid();
    let own_only = !user.is_root() && config.report.access == ReportAccess::Owner;
    if let Some(owner) = owner.filter(|owner| own_only && *owner != user.as_raw()) {
        eprintln!(
            "railgate: job {} belongs to {}: its report is for them and for root",
            args.job,
            name(owner)
        );
        return Ok(exit::UNKNOWN);
    }
    // What lies at a job's place is believed only if it is the job's owner's. Job numbers begin anew one day, and
    // what root collected by hand may be older than that.
    let owner = match (own_only, args.dir.is_empty()) {
        (true, _) => Some(user.as_raw()),
        (false, true) => owner,
        (false, false) => None,
    };
    let slurm = state.map(slurm_view);
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
fn slurm_state(client: &Client, job: u32) -> Option<JobState> {
    client.job(&JobRef::plain(job)).ok()?.into_iter().next()
}

fn slurm_view(state: JobState) -> SlurmView {
    let millis = |seconds: Option<u64>| seconds.map(|seconds| seconds.saturating_mul(1000));
    SlurmView {
        state: state.state,
        reason: state.reason,
        exit: None,
        restarts: Some(state.restarts),
        start: millis(state.start),
        end: millis(state.end),
        nodelist: state.nodes,
    }
}

fn name(uid: u32) -> String {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    user.map_or_else(|| format!("uid {uid}"), |user| user.name)
}
