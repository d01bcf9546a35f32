mod array;
mod idle;
mod which;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use nix::unistd::{Uid, User};
use railgate_diagnosis::{RULES, Rule};
use railgate_fabric::cable_table;
use railgate_node_report::{DownNode, SlurmView};
use railgate_report::{
    EndKind, JobReport, brief, html, html_with, json, live, redacted, redacted_html, redacted_json, text,
};
use railgate_runner::Config;
use railgate_slurm::{Client, JobRef, JobState, ListedJob, TypedJob, hostlist};
use railgate_store::{ReportAccess, ReportConfig, load_course};
use railgate_text::{Lines, put};

use self::which::{Asked, One, Sources, Which};
use crate::output::complain;
use crate::{Site, exit, fabric, output, prune};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  railgate report 48213
  railgate report                          your last job
  railgate report --name pretrain          your last job of that name
  railgate report 48213_4                  a task of an array
  railgate report 48213_[1-8]
      a line for each of these tasks; all: 48213 --array
  railgate report 48213 --brief            three lines, for a mail
  railgate report 48213 --format html --out 48213.html
  railgate report 48213 --format html --samples gn[1-4] --out 48213.html
      with time lines of their GPUs
  railgate report 48213 --live             while it runs
  railgate report 48213 --dir ./collected  node reports collected by hand

  railgate report 48213 --format json      docs/report.md
  railgate report --rules
      what reports can diagnose (docs/rules.md)
  railgate report --idle
      your jobs that hold idle GPUs; as root, those of all users
  railgate report --idle --since 7days --format json
  railgate report --prune
      removes old ones, for a timer (docs/report.md)

A report is readable by the job's owner and root (`[report] access`). Times are UTC. If a node could not write \
its node report to `[report] dir`, add --dir /var/lib/railgate/reports and run the command as root on that node.

Exit codes: 0 shown; 2 wrong use; 3 the job is unknown, or belongs to another user")]
pub(crate) struct Args {
    /// Job id: 48213, 48213_4 or 48213_[1-4] of an array, 48213+1 of a heterogeneous job; 48213.0, a step, means its job.
    /// Without one, your last job
    #[arg(value_name = "JOB", conflicts_with = "prune")]
    job: Option<TypedJob>,
    /// Your newest job of this name
    #[arg(long, value_name = "NAME", conflicts_with_all = ["job", "prune"])]
    name: Option<String>,
    /// All tasks of the array, one line per task
    #[arg(long, requires = "job", conflicts_with_all = ["format", "brief", "redact", "full", "live", "samples", "prune"])]
    array: bool,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Show::Text)]
    format: Show,
    /// Three lines: the job, its verdict, what to do
    #[arg(long, conflicts_with = "format")]
    brief: bool,
    /// Without names, paths and rates, to show it to others; in every format
    #[arg(long, conflicts_with = "brief")]
    redact: bool,
    /// Everything; by default a job of more than 16 nodes with figures gets one screen
    #[arg(long, conflicts_with_all = ["brief", "redact"])]
    full: bool,
    /// Show a running job from partial reports; refreshes on a terminal until the job ends
    #[arg(long, conflicts_with_all = ["format", "brief", "redact", "out", "prune"])]
    live: bool,
    /// With --format html: time lines of the GPUs of these nodes, for example `gn[1-4]`
    #[arg(long, value_name = "NODES", conflicts_with_all = ["redact", "live", "prune"])]
    samples: Option<String>,
    /// Where to write it [default: standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Read from here instead of `[report] dir`; may be given more than once
    #[arg(long, value_name = "DIR")]
    dir: Vec<PathBuf>,
    /// The cluster, if the directory holds several
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// List the diagnosis rules; `railgate explain RULE` tells more
    #[arg(long, conflicts_with_all = ["job", "name", "brief", "redact", "full", "live", "samples", "out", "prune"])]
    rules: bool,
    #[command(flatten)]
    idle: idle::Idle,
    #[command(flatten)]
    prune: prune::Prune,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Show {
    /// For a terminal
    #[value(alias = "table")]
    Text,
    /// For programs (docs/report.md)
    Json,
    /// One file, opens offline
    Html,
}

/// Most nodes without a report that Slurm is queried about.
const MOST_DOWN: usize = 256;

/// Refresh interval of `--live`: shorter than that of the nodes' partial reports, and cheap.
const AGAIN: Duration = Duration::from_secs(10);

pub(crate) fn run(site: &Site, args: &Args) -> anyhow::Result<u8> {
    // The list must also be printed if the configuration is invalid.
    if args.rules {
        return list(args.format);
    }
    let config = site.config()?;
    if args.prune.prune {
        return prune::run(&config.report, &args.prune, &args.dir);
    }
    if args.idle.idle {
        return idle::run(&config.report, args);
    }
    let env = std::env::vars_os().collect();
    let client = Client::new(&config.slurm, &env);
    let asked = match (&args.job, &args.name) {
        (Some(job), _) if args.array => Asked::Array(job),
        (Some(job), _) => Asked::Typed(job),
        (None, Some(name)) => Asked::Name(name),
        (None, None) => Asked::Last,
    };
    if let Some(list @ TypedJob::Tasks(..)) = &args.job {
        let one_only = args.format != Show::Text
            || args.brief
            || args.redact
            || args.full
            || args.live
            || args.samples.is_some();
        anyhow::ensure!(!one_only, "{list} names several jobs: only --out and --dir can be used with them");
    }
    let from = Sources {
        client: &client,
        report: &config.report,
        dirs: &args.dir,
        cluster: args.cluster.as_deref(),
        user: nix::unistd::geteuid().as_raw(),
    };
    match which::find(from, &asked) {
        Ok(Which::One(one)) => show(&config.report, &client, &one, args),
        Ok(Which::Tasks(tasks)) => overview(&config.report, tasks, args),
        Err(why) => {
            complain!("{why}");
            Ok(exit::UNKNOWN)
        }
    }
}

/// The report of a job as it was typed, without one of the caller's last job; an exit code if there is none to show.
pub(crate) fn of_typed(
    config: &Config,
    job: Option<&TypedJob>,
    dirs: &[PathBuf],
    cluster: Option<&str>,
) -> Result<JobReport, u8> {
    let env = std::env::vars_os().collect();
    let client = Client::new(&config.slurm, &env);
    let user = nix::unistd::geteuid().as_raw();
    let from = Sources { client: &client, report: &config.report, dirs, cluster, user };
    let one = match which::find(from, &job.map_or(Asked::Last, Asked::Typed)) {
        Ok(Which::One(one)) => one,
        Ok(Which::Tasks(_)) => {
            complain!("this names several jobs: name one of them");
            return Err(exit::USAGE);
        }
        Err(why) => {
            complain!("{why}");
            return Err(exit::UNKNOWN);
        }
    };
    let Some((report, slurm_knows)) = read(&config.report, &client, &one, dirs, cluster) else {
        return Err(exit::UNKNOWN);
    };
    if report.attempts.is_empty() && !slurm_knows {
        nothing_known(&config.report, &one, dirs, &report.problems);
        return Err(exit::UNKNOWN);
    }
    Ok(report)
}

/// Prints the register of the diagnosis rules.
fn list(format: Show) -> anyhow::Result<u8> {
    anyhow::ensure!(format != Show::Html, "the list of rules is text or json; docs/rules.md is its page");
    if format == Show::Json {
        output::json(&serde_json::json!({ "schema": 1, "rules": RULES }))?;
        return Ok(exit::OK);
    }
    let head = ["RULE", "CLASS", "REPORTS THAT"].map(str::to_owned).to_vec();
    let row = |rule: &Rule| vec![rule.id.to_owned(), rule.class.as_str().to_owned(), rule.about.to_owned()];
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(RULES.iter().map(row)).collect();
    output::text(&output::table(&rows))?;
    Ok(exit::OK)
}

/// Prints the report of one job.
fn show(config: &ReportConfig, client: &Client, one: &One, args: &Args) -> anyhow::Result<u8> {
    let terminal = output::is_terminal();
    let above = args.format == Show::Text && args.out.is_none();
    // `--brief` prints exactly three lines.
    let note_above = above && !args.brief && !args.redact;
    if let Some(note) = one.note.as_ref().filter(|_| !note_above) {
        complain!("{note}");
    }
    loop {
        let Some((report, slurm_knows)) = read(config, client, one, &args.dir, args.cluster.as_deref())
        else {
            return Ok(exit::UNKNOWN);
        };
        let known = !report.attempts.is_empty();
        if !known && !slurm_knows && above {
            nothing_known(config, one, &args.dir, &report.problems);
            return Ok(exit::UNKNOWN);
        }
        if args.format == Show::Json && !args.redact {
            output::pieces(args.out.as_deref(), |out| json(&report, out))?;
            return Ok(if known { exit::OK } else { exit::UNKNOWN });
        }
        let content = match args.format {
            Show::Text if args.live => live(&report, railgate_runner::now()),
            Show::Text if args.brief => brief(&report),
            Show::Text if args.redact => redacted(&report),
            Show::Text => text(&report, args.full),
            Show::Json => Lines::kept(&redacted_json(&report)),
            Show::Html if args.redact => Lines::kept(&redacted_html(&report)),
            Show::Html => Lines::kept(&page(config, &report, args)?),
        };
        let again = args.live && terminal && report.ended.kind == EndKind::Running;
        let content = match one.note.as_ref().filter(|_| note_above) {
            Some(note) => {
                let mut noted = Lines::new();
                put!(noted, "{note}");
                noted.add(&content);
                noted
            }
            None => content,
        };
        match &args.out {
            None if args.live && terminal => output::screen(&content)?,
            file => output::to(file.as_deref(), &content)?,
        }
        if !again {
            return Ok(if known { exit::OK } else { exit::UNKNOWN });
        }
        std::thread::sleep(AGAIN);
    }
}

/// Prints the tasks of an array, one line each.
fn overview(config: &ReportConfig, tasks: Vec<ListedJob>, args: &Args) -> anyhow::Result<u8> {
    let user = nix::unistd::geteuid();
    let owner = tasks.iter().find_map(|task| task.uid);
    if is_foreign(config, owner) {
        let array = tasks.first().and_then(|task| task.task).map_or(0, |(array, _)| array);
        complain!("{}", foreign(array, owner));
        return Ok(exit::UNKNOWN);
    }
    let owner = if user.is_root() { owner.filter(|_| args.dir.is_empty()) } else { Some(user.as_raw()) };
    let (shown, more) = tasks.split_at(tasks.len().min(array::MOST_TASKS));
    let expand = |list: &str| hostlist::expand(list).ok();
    let rows: Vec<(ListedJob, Option<JobReport>)> = shown
        .iter()
        .map(|task| {
            let report = array::has_begun(task).then(|| {
                let (cluster, slurm) = (args.cluster.as_deref(), Some(array::view(task)));
                railgate_report::load(config, &args.dir, cluster, task.job, owner, slurm, &expand)
            });
            (task.clone(), report)
        })
        .collect();
    output::to(args.out.as_deref(), &array::overview(&rows, more))?;
    Ok(exit::OK)
}

/// Renders the HTML page, with the requested samples.
fn page(config: &ReportConfig, report: &JobReport, args: &Args) -> anyhow::Result<String> {
    let Some(list) = &args.samples else { return Ok(html(report)) };
    let nodes = hostlist::expand(list).map_err(|why| anyhow::anyhow!("--samples {list}: {why}"))?;
    let (mut courses, mut problems) = (Vec::new(), Vec::new());
    for node in nodes {
        let attempt = report.attempts.iter().rev().find(|one| one.nodes.iter().any(|part| part.node == node));
        let read = match attempt {
            Some(attempt) => {
                let job = (report.cluster.as_str(), report.job, attempt.attempt);
                load_course(config, &args.dir, job, report.uid, &node)
            }
            None => Err("no node report of this job".to_owned()),
        };
        match read {
            Ok(course) => courses.push(course),
            Err(why) => problems.push(format!("{node}: {why}")),
        }
    }
    Ok(html_with(report, &courses, &problems))
}

/// Reads the report. The flag tells whether Slurm knows the job; `None`: the job belongs to another user.
fn read(
    config: &ReportConfig,
    client: &Client,
    one: &One,
    dirs: &[PathBuf],
    cluster: Option<&str>,
) -> Option<(JobReport, bool)> {
    let job = one.job;
    let state = slurm_state(client, &one.name);
    let of_list = one.listed.as_ref().and_then(|listed| listed.uid);
    let owner = state.as_ref().and_then(|state| state.uid).or(of_list);
    let user = nix::unistd::geteuid();
    let own_only = !user.is_root() && config.access == ReportAccess::Owner;
    if is_foreign(config, owner) {
        complain!("{}", foreign(job, owner));
        return None;
    }
    // Files in the job's directory are used only if they belong to the job's owner. Job ids are reused some day, and
    // files that root collected by hand may be older than that.
    let owner = match (own_only, dirs.is_empty()) {
        (true, _) => Some(user.as_raw()),
        (false, true) => owner,
        (false, false) => None,
    };
    // slurmdbd may have missed the end and still show the job as running: the recorded end is more accurate.
    let ended = || one.listed.as_deref().map(array::view).filter(SlurmView::has_ended);
    let slurm = state.map(slurm_view).or_else(ended);
    let slurm_knows = slurm.is_some();
    let expand = |list: &str| hostlist::expand(list).ok();
    let load = |slurm| railgate_report::load(config, dirs, cluster, job, owner, slurm, &expand);
    let mut report = load(slurm);
    if let Some(down) = down(client, &report)
        && let Some(view) = report.slurm.take()
    {
        report = load(Some(SlurmView { down, ..view }));
    }
    if let Some(path) = &config.cables
        && let Err(why) = name_leafs(&mut report, path)
    {
        report.problems.push(format!("report.cables: {why:#}: leafs have no names here"));
    }
    Some((report, slurm_knows))
}

/// Whether the job belongs to another user, whose reports the caller may not read.
fn is_foreign(config: &ReportConfig, owner: Option<u32>) -> bool {
    let user = nix::unistd::geteuid();
    let own_only = !user.is_root() && config.access == ReportAccess::Owner;
    own_only && owner.is_some_and(|owner| owner != user.as_raw())
}

fn foreign(job: u32, owner: Option<u32>) -> String {
    let owner = owner.map_or_else(|| "another user".to_owned(), name);
    format!("job {job} belongs to {owner}: its report is for them and for root")
}

/// Adds the names of the leaf switches from the site's cable table to the nodes.
fn name_leafs(report: &mut JobReport, table: &Path) -> anyhow::Result<()> {
    let said = || table.display().to_string();
    let cables = cable_table(&fabric::from_file(table)?).with_context(said)?;
    let parts = report.attempts.iter().flat_map(|attempt| &attempt.nodes);
    let nodes: BTreeSet<&str> = parts.map(|part| part.node.as_str()).collect();
    let mut leafs = BTreeMap::<String, BTreeMap<String, String>>::new();
    for cable in cables.into_iter().filter(|cable| nodes.contains(cable.node.as_str())) {
        leafs.entry(cable.node).or_default().insert(format!("{}:{}", cable.hca, cable.port), cable.leaf);
    }
    report.leafs = leafs;
    Ok(())
}

/// Reports that no data was found, and lists the directories that were searched.
fn nothing_known(config: &ReportConfig, one: &One, dirs: &[PathBuf], problems: &[String]) {
    let mut places: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
    if places.is_empty() {
        match &config.dir {
            Some(dir) => places.push(dir.display().to_string()),
            None => complain!("`[report] dir` is not set: every node stores its node reports locally"),
        }
        places.push(config.local_dir.display().to_string());
    }
    for problem in problems {
        complain!("{problem}");
    }
    let job = one.job;
    match &one.silent {
        Some(why) => complain!("job {job}: no record, and Slurm does not answer: {why}"),
        None => complain!("job {job}: no record; Slurm has forgotten it, or never had it"),
    }
    complain!("no node report in {}: a job that never started has none", places.join(" or "));
}

/// Slurm's state of the job; `None` if it does not answer or has purged the job.
fn slurm_state(client: &Client, job: &JobRef) -> Option<JobState> {
    client.job(job).ok()?.into_iter().next()
}

/// Nodes without an epilog's report, in attempts that were requeued without a decision, that Slurm shows as down.
/// Before 24.11 the controller's program receives such a failure only at the job's next end.
fn down(client: &Client, report: &JobReport) -> Option<Vec<DownNode>> {
    let (_, earlier) = report.attempts.split_last()?;
    let open = earlier.iter().filter(|attempt| attempt.decision.is_none());
    let names: BTreeSet<String> =
        open.flat_map(|attempt| attempt.without_epilog().cloned()).take(MOST_DOWN).collect();
    let states = client.nodes(&names.into_iter().collect::<Vec<_>>()).ok()?;
    let down: Vec<DownNode> = states
        .into_iter()
        .filter(|node| node.has("DOWN"))
        .filter_map(|node| {
            let reason = node.reason?;
            Some(DownNode { node: node.name, since: reason.since?.saturating_mul(1000), reason: reason.text })
        })
        .collect();
    (!down.is_empty()).then_some(down)
}

fn slurm_view(state: JobState) -> SlurmView {
    // For a job that has not started or ended, Slurm shows expected times.
    let begun = !state.state.contains("PENDING") && !state.state.contains("CONFIGURING");
    let ended = begun && !["RUNNING", "SUSPENDED"].iter().any(|live| state.state.contains(live));
    SlurmView {
        state: state.state,
        reason: state.reason,
        name: state.name,
        submitted: millis(state.submitted),
        exit: None,
        restarts: Some(state.restarts),
        start: millis(state.start).filter(|_| begun),
        // For a job that is completing in order to be requeued, Slurm shows the latest possible end.
        end: millis(state.end).filter(|end| ended && *end <= railgate_runner::now()),
        may_start: millis(state.start).filter(|_| !begun),
        required: hostlist::expand(&state.required).unwrap_or_default(),
        nodelist: state.nodes,
        request: state.request,
        down: Vec::new(),
    }
}

fn millis(seconds: Option<u64>) -> Option<u64> {
    seconds.map(|seconds| seconds.saturating_mul(1000))
}

fn name(uid: u32) -> String {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    user.map_or_else(|| format!("uid {uid}"), |user| user.name)
}
