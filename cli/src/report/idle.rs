//! `railgate report --idle`: which jobs hold GPUs and do not use them.

use std::time::Duration;

use nix::unistd::geteuid;
use railgate_model::UnixMillis;
use railgate_node_report::plain::stamp;
use railgate_report::{IdleJob, IdleQuery, idle_jobs};
use railgate_runner::now;
use railgate_slurm::hostlist;
use railgate_store::ReportConfig;
use railgate_text::{Lines, put};
use serde::Serialize;

use super::{Args, Show, name};
use crate::output::complain;
use crate::{exit, output};

/// Maximum number of jobs whose reports are read, the last active ones.
const MOST_JOBS: usize = 1000;
/// Time for all of them: a slow file server must not hold the terminal.
const BUDGET: Duration = Duration::from_secs(60);
/// Maximum number of rows of the table; JSON has all.
const MOST_ROWS: usize = 50;
const MOST_PROBLEMS: usize = 10;

#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Idle {
    /// List the jobs that hold idle GPUs, the most GPU-hours first: yours; as root, those of all users
    #[arg(long, conflicts_with_all = ["job", "name", "array", "brief", "redact", "full", "live", "samples", "rules", "prune"])]
    pub(crate) idle: bool,
    /// With --idle: jobs whose nodes have written a report within this time before now (12h, 7days)
    #[arg(long, value_name = "TIME", requires = "idle", default_value = "1day", value_parser = humantime::parse_duration)]
    since: Duration,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    /// Owner of its files.
    user: String,
    #[serde(flatten)]
    held: IdleJob,
}

impl From<IdleJob> for Row {
    fn from(held: IdleJob) -> Self {
        Row { user: held.uid.map_or_else(|| "?".to_owned(), name), held }
    }
}

#[derive(Default, Serialize)]
struct List {
    schema: u32,
    since: UnixMillis,
    jobs: Vec<Row>,
    /// Number of jobs that were not read.
    left_out: usize,
    problems: Vec<String>,
}

pub(super) fn run(config: &ReportConfig, args: &Args) -> anyhow::Result<u8> {
    anyhow::ensure!(args.format != Show::Html, "the list of idle GPUs is text or json");
    let root = geteuid().is_root();
    let now = now();
    let since = now.saturating_sub(u64::try_from(args.idle.since.as_millis()).unwrap_or(u64::MAX));
    let query = IdleQuery {
        given: &args.dir,
        local: root,
        cluster: args.cluster.as_deref(),
        since,
        // Only root sees the jobs of other users, also where Slurm's PrivateData would show them.
        uid: (!root).then(|| geteuid().as_raw()),
        most: MOST_JOBS,
        time: BUDGET,
    };
    anyhow::ensure!(
        !query.dirs(config).is_empty(),
        "[report] dir is not set, and only root reads the parts that nodes keep"
    );
    let found = idle_jobs(config, &query, now, &|nodes| hostlist::expand(nodes).ok());
    let mut list = List {
        schema: 1,
        since,
        jobs: found.jobs.into_iter().map(Row::from).collect(),
        left_out: found.left_out,
        problems: found.problems,
    };
    list.problems.truncate(MOST_PROBLEMS);
    if args.format == Show::Json {
        output::to_json(args.out.as_deref(), &list)?;
    } else {
        list.problems.iter().for_each(|why| complain!("{why}"));
        output::to(args.out.as_deref(), &table(&list))?;
    }
    Ok(if found.readable { exit::OK } else { exit::UNKNOWN })
}

fn table(list: &List) -> Lines {
    let head = [
        "JOB",
        "USER",
        "PARTITION",
        "STATE",
        "GPUS",
        "HELD",
        "SPARE",
        "IDLE",
        "IDLE %",
        "BUSY %",
        "IDLE SINCE",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    let known =
        |value: Option<f64>, digits: usize| value.map_or("?".to_owned(), |value| format!("{value:.digits$}"));
    for Row { user, held: row } in list.jobs.iter().take(MOST_ROWS) {
        rows.push([
            row.job.to_string(),
            user.clone(),
            row.partition.clone(),
            row.state.as_str().to_owned(),
            row.gpus.to_string(),
            format!("{:.1}", row.held_gpu_hours),
            if row.spare_gpu_hours > 0.0 { format!("{:.1}", row.spare_gpu_hours) } else { "-".to_owned() },
            known(row.idle_gpu_hours, 1),
            known(row.idle_percent, 0),
            known(row.busy_percent, 1),
            row.idle_since.map_or("-".to_owned(), stamp),
        ]);
    }
    let mut text = Lines::new();
    if list.jobs.is_empty() {
        put!(text, "no job with GPUs since {}", stamp(list.since));
    } else {
        text.add(&Lines::table(&rows, ""));
        put!(
            text,
            "HELD, SPARE and IDLE in GPU-hours, of jobs whose nodes have written since {}",
            stamp(list.since)
        );
    }
    let more = list.jobs.len().saturating_sub(MOST_ROWS);
    if more > 0 {
        put!(text, "{more} more jobs with fewer idle GPU-hours: --format json");
    }
    if list.left_out > 0 {
        put!(text, "{} jobs were left out (at most {MOST_JOBS} are read): a shorter --since", list.left_out);
    }
    text
}

#[cfg(test)]
mod tests {
    use railgate_report::IdleState;

    use super::*;

    fn row(idle: Option<f64>) -> Row {
        let held = IdleJob {
            cluster: "alpha".to_owned(),
            job: 7,
            uid: Some(0),
            partition: "gpu".to_owned(),
            state: IdleState::Ended,
            start: None,
            gpus: 2,
            held_gpu_hours: 4.0,
            spare_gpu_hours: 0.0,
            sampled_gpu_hours: 4.0,
            idle_gpu_hours: idle,
            idle_percent: idle,
            busy_percent: idle,
            idle_since: None,
            unsampled_nodes: 0,
        };
        Row::from(held)
    }

    #[test]
    fn the_table_is_bounded_and_says_what_is_missing() {
        let list = List { jobs: vec![row(Some(2.0)); 60], left_out: 3, ..List::default() };
        let text = table(&list).to_string();
        assert_eq!(text.lines().count(), 1 + MOST_ROWS + 3);
        assert!(
            text.contains("\n7    root  gpu        ended  2     4.0   -      2.0   2       2.0     -"),
            "{text}"
        );
        assert!(text.contains("\n10 more jobs ") && text.contains("\n3 jobs were left out "), "{text}");
        assert!(table(&List::default()).contains("no job with GPUs since "));
        let list = List { jobs: vec![row(None)], ..List::default() };
        assert!(table(&list).contains(" ?     ?       ?       -"), "{}", table(&list));
        let mut spare = row(Some(2.0));
        spare.held.spare_gpu_hours = 1.5;
        let list = List { jobs: vec![spare], ..List::default() };
        assert!(table(&list).contains(" 4.0   1.5    2.0   2 "), "{}", table(&list));
    }

    #[test]
    fn a_row_of_the_json_is_flat() {
        let json = serde_json::to_value(row(Some(2.0))).unwrap();
        assert_eq!(
            (&json["user"], &json["job"], &json["state"]),
            (&"root".into(), &7.into(), &"ended".into())
        );
        assert!(json.get("uid").is_none() && json.get("held").is_none(), "{json}");
    }
}
