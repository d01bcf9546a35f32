use std::path::PathBuf;

use anyhow::Context as _;
use nix::unistd::{Uid, User};
use railgate_slurm::{Client, JobRef, JobState, hostlist};
use railgate_stats::{ReportAccess, ReportConfig, SlurmView, brief, html, json, redacted, store, text};

use crate::{Site, exit, output, prune};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  railgate report 48213
  railgate report 48213 --brief                        three lines, for a mail
  railgate report 48213 --format html --out 48213.html
  railgate report 48213 --dir ./collected              parts gathered by hand

  railgate report 48213 --format json                  docs/report.md
  railgate report --prune                              old ones go, for a timer (docs/report.md)

A report is readable by the job's owner and root (`[report] access`). Times are UTC. A part that a
node kept to itself is read there, as root: --dir /var/lib/railgate/reports.

Exit codes: 0 shown; 2 wrong use; 3 nothing is known of the job, or it is somebody else's")]
pub(crate) struct Args {
    /// Job id, a number; of an array's member its own one (JobId in `scontrol show job 48213_4`)
    #[arg(value_parser = job_id, required_unless_present = "prune", conflicts_with = "prune")]
    job: Option<u32>,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Show::Text)]
    format: Show,
    /// Three lines: what it was, what became of it, what to do
    #[arg(long, conflicts_with = "format")]
    brief: bool,
    /// One screen without names of nodes and users and without rates, to be shown to others
    #[arg(long, conflicts_with_all = ["format", "brief"])]
    redact: bool,
    /// Where to write it [default: standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Look here instead of `[report] dir`; may be given more than once
    #[arg(long, value_name = "DIR")]
    dir: Vec<PathBuf>,
    /// Which cluster, where the directory holds several
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    #[command(flatten)]
    prune: prune::Prune,
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

fn job_id(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| match text.split_once(['_', '+', '.']) {
        Some(_) => format!("wants a plain number: JobId in `scontrol show job {text}`"),
        None => "not a job id, which is a number".to_owned(),
    })
}

pub(crate) fn run(site: &Site, args: &Args) -> anyhow::Result<u8> {
    let config = site.config()?;
    let Some(job) = args.job else { return prune::run(&config.report, &args.prune, &args.dir) };
    let env = std::env::vars_os().collect();
    let state = slurm_state(&Client::new(&config.slurm, &env), job);
    let owner = state.as_ref().and_then(|state| state.uid);
    let user = nix::unistd::geteuid();
    let own_only = !user.is_root() && config.report.access == ReportAccess::Owner;
    if let Some(owner) = owner.filter(|owner| own_only && *owner != user.as_raw()) {
        eprintln!("railgate: job {} belongs to {}: its report is for them and for root", job, name(owner));
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
    let slurm_knows = slurm.is_some();
    let expand = |list: &str| hostlist::expand(list).ok();
    let report = store::load(&config.report, &args.dir, args.cluster.as_deref(), job, owner, slurm, &expand);
    let known = !report.attempts.is_empty();
    if !known && !slurm_knows && args.format == Show::Text && args.out.is_none() {
        nothing_known(&config.report, job, args, &report.problems);
        return Ok(exit::UNKNOWN);
    }
    let content = match args.format {
        Show::Text if args.brief => brief(&report),
        Show::Text if args.redact => redacted(&report),
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

/// Says where was looked, for whom "nothing" is hard to believe.
fn nothing_known(config: &ReportConfig, job: u32, args: &Args, problems: &[String]) {
    let mut places: Vec<String> = args.dir.iter().map(|dir| dir.display().to_string()).collect();
    if places.is_empty() {
        match &config.dir {
            Some(dir) => places.push(dir.display().to_string()),
            None => eprintln!("railgate: `[report] dir` is not set: every node keeps its parts to itself"),
        }
        places.push(config.local_dir.display().to_string());
    }
    for problem in problems {
        eprintln!("railgate: {problem}");
    }
    eprintln!(
        "railgate: nothing is known of job {}: no part of a report in {}, and Slurm does not answer or has forgotten it",
        job,
        places.join(" or ")
    );
}

/// What Slurm still knows of the job; nothing where it does not answer or has forgotten it.
fn slurm_state(client: &Client, job: u32) -> Option<JobState> {
    client.job(&JobRef::plain(job)).ok()?.into_iter().next()
}

fn slurm_view(state: JobState) -> SlurmView {
    // Of a job that has not begun or not ended, Slurm shows what it expects.
    let begun = !state.state.contains("PENDING") && !state.state.contains("CONFIGURING");
    let ended = begun && !["RUNNING", "SUSPENDED"].iter().any(|live| state.state.contains(live));
    let millis = |seconds: Option<u64>, known: bool| {
        seconds.filter(|_| known).map(|seconds| seconds.saturating_mul(1000))
    };
    SlurmView {
        state: state.state,
        reason: state.reason,
        exit: None,
        restarts: Some(state.restarts),
        start: millis(state.start, begun),
        // One that completes to wait again shows the latest end it could have.
        end: millis(state.end, ended).filter(|end| *end <= railgate_runner::now()),
        nodelist: state.nodes,
    }
}

fn name(uid: u32) -> String {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    user.map_or_else(|| format!("uid {uid}"), |user| user.name)
}
