use std::time::Duration;

use railgate_model::JobRequest;

use super::{UnixSeconds, duration, first, only, time};

/// State of a job in slurmctld.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobState {
    /// `JobId`.
    pub id: u32,
    /// `HetJobId`: the leader's id, if the job is a component of a heterogeneous job.
    pub het_leader: Option<u32>,
    /// The uid in `UserId`; `None` if text of the job imitates the field.
    pub uid: Option<u32>,
    /// `JobName`, chosen by the owner; `None` if it contains text that imitates fields.
    pub name: Option<String>,
    /// `JobState`: `RUNNING`, `COMPLETING`. Before 23.11 a completing job shows only the latter.
    pub state: String,
    /// `Reason`: `NonZeroExitCode`, `None`.
    pub reason: String,
    /// `Requeue`: Slurm may start it again.
    pub requeue: bool,
    /// `ExpeditedRequeue`: submitted with `--requeue=expedite` (25.11 and later).
    pub expedited: bool,
    /// `BatchFlag`.
    pub batch: bool,
    /// `Restarts`.
    pub restarts: u32,
    /// `SubmitTime`, of the last submission or requeue.
    pub submitted: Option<UnixSeconds>,
    /// `StartTime`; for a pending job the expected start.
    pub start: Option<UnixSeconds>,
    /// `EndTime`; for a job that has not ended, start plus time limit.
    pub end: Option<UnixSeconds>,
    /// `LastSchedEval`: between a requeue and the next scheduling, the start of the run that ended.
    pub last_sched: Option<UnixSeconds>,
    /// `TimeLimit`; `None` without a limit.
    pub time_limit: Option<Duration>,
    /// Whether `PreemptTime` is set.
    pub preempted: bool,
    /// `ReqNodeList`, compressed; empty if none.
    pub required: String,
    /// `ExcNodeList`, compressed; empty if none.
    pub excluded: String,
    /// `NodeList`, compressed; for a completing job the nodes whose epilog has not ended.
    pub nodes: String,
    /// `BatchHost`: the node of the batch script, until a job that was requeued has left its nodes; empty if none.
    pub batch_host: String,
    /// The job, or another component of it, requested GPUs.
    pub gpus: bool,
    /// `StdOut` is `/dev/null`: there is no log to lose.
    pub silent: bool,
    /// Resources that the job requested.
    pub request: JobRequest,
}

impl JobState {
    /// Whether the epilog of some node has not ended yet.
    pub fn completing(&self) -> bool {
        self.state.split('+').any(|state| state == "COMPLETING") && !self.nodes.is_empty()
    }
}

/// Parses `scontrol -o show job` for one job; for a heterogeneous job, all components.
pub(crate) fn jobs(text: &str) -> Result<Vec<JobState>, String> {
    let mut records: Vec<String> = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        match records.last_mut() {
            // A name or a path may contain a line break.
            Some(last) if !line.starts_with("JobId=") => {
                last.push(' ');
                last.push_str(line);
            }
            _ => records.push(line.to_owned()),
        }
    }
    let mut jobs = records.iter().map(|record| job(record)).collect::<Result<Vec<_>, _>>()?;
    let gpus = jobs.iter().any(|job| job.gpus);
    jobs.iter_mut().for_each(|job| job.gpus = gpus);
    match jobs.split_first() {
        None => Err("no job in the answer".to_owned()),
        // Only a heterogeneous job has more than one record.
        Some((first, rest))
            if rest.iter().any(|job| job.het_leader.is_none() || job.het_leader != first.het_leader) =>
        {
            Err("more than one job in the answer".to_owned())
        }
        Some(_) => Ok(jobs),
    }
}

fn job(record: &str) -> Result<JobState, String> {
    let field = |key: &str| only(record, key)?.ok_or_else(|| format!("no {key} in the answer"));
    let number = |key: &str| {
        let value = field(key)?;
        value.parse::<u32>().map_err(|_| format!("{key}='{}' is not a number", crate::env::clean(value)))
    };
    let optional = |key: &str| only(record, key).map(|value| value.unwrap_or("(null)"));
    let list = |key: &str| {
        optional(key).map(|value| if value == "(null)" { String::new() } else { value.to_owned() })
    };
    let head = record.split(" JobName=").next().unwrap_or_default();
    let limit = field("TimeLimit")?;
    Ok(JobState {
        id: number("JobId")?,
        het_leader: first(head, "HetJobId").and_then(|id| id.parse().ok()),
        uid: only(record, "UserId").ok().flatten().and_then(uid),
        name: job_name(record),
        state: field("JobState")?.to_owned(),
        reason: field("Reason")?.to_owned(),
        requeue: number("Requeue")? != 0,
        expedited: only(record, "ExpeditedRequeue")? == Some("Yes"),
        batch: number("BatchFlag")? != 0,
        restarts: number("Restarts")?,
        submitted: time(optional("SubmitTime")?),
        start: time(field("StartTime")?),
        end: time(field("EndTime")?),
        last_sched: time(optional("LastSchedEval")?),
        time_limit: duration(limit),
        preempted: time(optional("PreemptTime")?).is_some(),
        required: list("ReqNodeList")?,
        excluded: list("ExcNodeList")?,
        nodes: list("NodeList")?,
        batch_host: list("BatchHost")?,
        // Which of these fields exist depends on release and configuration. If a user imitates one in the job's name,
        // the only effect is that `requeue.without_gpus` does not apply to the job.
        gpus: record.split(' ').any(|word| {
            word.split_once('=').is_some_and(|(key, value)| {
                (key.starts_with("Tres") || key.ends_with("TRES") || key == "Gres") && value.contains("gpu")
            })
        }),
        silent: record.split(' ').any(|word| word == "StdOut=/dev/null"),
        request: JobRequest {
            log: log(record),
            memory: memory(record),
            time_limit_s: duration(limit).map(|limit| limit.as_secs()),
        },
    })
}

/// The file of the job's standard error: `StdErr`. For a job with one file for both streams, 22.05 shows that file
/// here too, and 26.05 shows only `StdOut`.
fn log(record: &str) -> Option<String> {
    only(record, "StdErr").ok()??;
    only(record, "StdIn").ok()??;
    // A path may contain blanks, so it extends to the next field.
    let (_, rest) = record.split_once(" StdErr=")?;
    let (path, _) = rest.split_once(" StdIn=")?;
    let path = if path.is_empty() { output(record)? } else { path };
    // A path that Slurm has not expanded (for example `%N`) names no file.
    let is_file = path.starts_with('/') && path != "/dev/null" && !path.contains('%');
    (is_file && !path.contains(char::is_control)).then(|| path.to_owned())
}

/// `StdOut`. Only the job's resource requests follow it, from which a path with blanks cannot be separated.
fn output(record: &str) -> Option<&str> {
    const AFTER: [&str; 5] = ["Power=", "Tres", "Mail", "Gres=", "OOMKillStep="];
    let path = only(record, "StdOut").ok()??;
    let (_, rest) = record.split_once(" StdOut=")?;
    let behind = rest.strip_prefix(path)?.trim_start();
    (behind.is_empty() || AFTER.iter().any(|key| behind.starts_with(key))).then_some(path)
}

/// Slurm shows one of two keys; 0 means all memory of the node, or none requested.
fn memory(record: &str) -> Option<String> {
    [("MinMemoryNode", "node"), ("MinMemoryCPU", "CPU")].into_iter().find_map(|(key, of)| {
        let amount = only(record, key).ok()??;
        let is_amount = amount.starts_with(|c: char| c.is_ascii_digit() && c != '0')
            && amount.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.');
        is_amount.then(|| format!("{amount} per {of}"))
    })
}

/// The text between the key `JobName` and the next key, which must occur once; a component has the name of its whole
/// job.
fn job_name(record: &str) -> Option<String> {
    only(record, "UserId").ok()??;
    let (_, rest) = record.split_once(" JobName=")?;
    let (name, _) = rest.split_once(" UserId=")?;
    let name = match only(record, "HetJobIdSet").ok()? {
        Some(set) => name.strip_suffix(&format!(" HetJobIdSet={set}")).unwrap_or(name),
        None => name,
    };
    (name != "(null)").then(|| name.to_owned())
}

/// `ada(1001)`
fn uid(text: &str) -> Option<u32> {
    text.strip_suffix(')')?.rsplit_once('(')?.1.parse().ok()
}

/// Parses `squeue -o %T|%N`: whether one of the jobs is on `node`, in any state that is not final.
pub(crate) fn runs_on(text: &str, node: &str) -> Result<bool, String> {
    const OVER: [&str; 9] = [
        "PENDING",
        "COMPLETED",
        "CANCELLED",
        "FAILED",
        "TIMEOUT",
        "NODE_FAIL",
        "PREEMPTED",
        "BOOT_FAIL",
        "OUT_OF_MEMORY",
    ];
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let (state, nodes) =
            line.trim().split_once('|').ok_or_else(|| format!("'{line}' is not a state and nodes"))?;
        if OVER.contains(&state) {
            continue;
        }
        let nodes = crate::hostlist::expand(nodes).map_err(|why| why.to_string())?;
        if nodes.iter().any(|name| name == node) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // As printed by 22.05.8.
    const JOB: &str = "JobId=1 JobName=wrap UserId=tuser(1001) GroupId=tuser(1001) MCS_label=N/A Priority=4294901759 \
        Nice=0 Account=(null) QOS=(null) JobState=COMPLETING Reason=NonZeroExitCode Dependency=(null) Requeue=1 \
        Restarts=0 BatchFlag=1 Reboot=0 ExitCode=3:0 RunTime=00:00:01 TimeLimit=1-00:00:00 TimeMin=N/A \
        SubmitTime=2026-11-21T01:55:23 EligibleTime=2026-11-21T01:55:23 StartTime=2026-11-21T01:55:52 \
        EndTime=2026-11-21T01:55:53 Deadline=N/A PreemptEligibleTime=2026-11-21T01:55:52 PreemptTime=None \
        SuspendTime=None LastSchedEval=2026-11-21T01:55:52 Partition=main AllocNode:Sid=localhost:7414 \
        ReqNodeList=(null) ExcNodeList=(null) NodeList=x[1-2] BatchHost=x1 NumNodes=2 TRES=cpu=2,node=2,billing=2 \
        OverSubscribe=OK Features=(null) Command=(null) WorkDir=/tmp StdErr=/tmp/sxout.1 StdIn=/dev/null \
        StdOut=/tmp/sxout.1 Power= TresPerNode=gres:gpu:2";

    #[test]
    fn a_completing_job_is_parsed() {
        let jobs = jobs(JOB).unwrap();
        let job = &jobs[0];
        assert_eq!((job.id, job.state.as_str(), job.reason.as_str()), (1, "COMPLETING", "NonZeroExitCode"));
        assert!(job.requeue && job.batch && job.gpus && !job.preempted && !job.silent && job.completing());
        assert_eq!(job.end.unwrap() - job.start.unwrap(), 1);
        assert_eq!(job.time_limit, Some(Duration::from_secs(86_400)));
        assert_eq!((job.nodes.as_str(), job.excluded.as_str()), ("x[1-2]", ""));
        let last = super::jobs(&JOB.replace(" NodeList=x[1-2]", " NodeList=")).unwrap();
        assert!(!last[0].completing());
    }

    #[test]
    fn requested_resources_are_parsed() {
        let of = |from: &str, to: &str| jobs(&JOB.replace(from, to)).unwrap().remove(0).request;
        let plain = of("", "");
        assert_eq!((plain.log.as_deref(), plain.memory), (Some("/tmp/sxout.1"), None));
        assert_eq!(plain.time_limit_s, Some(86_400));
        assert_eq!(
            of("StdErr=/tmp/sxout.1", "StdErr=/home/ada/my run.err").log.as_deref(),
            Some("/home/ada/my run.err")
        );
        for odd in ["/dev/null", "/home/ada/%N.err", "relative", "/a\u{1b}[2J"] {
            assert_eq!(of("StdErr=/tmp/sxout.1", &format!("StdErr={odd}")).log, None, "{odd}");
        }
        // As printed by 26.05 for one file for both streams.
        let one_file = |path: &str| {
            of(
                "StdErr=/tmp/sxout.1 StdIn=/dev/null StdOut=/tmp/sxout.1",
                &format!("StdErr= StdIn=/dev/null StdOut={path}"),
            )
            .log
        };
        assert_eq!(one_file("/home/ada/log.1").as_deref(), Some("/home/ada/log.1"));
        for odd in ["/home/ada/my run.log", "/dev/null", "/home/ada/%N.log", "", "/a StdOut=/b"] {
            assert_eq!(one_file(odd), None, "{odd}");
        }
        let last = JOB.split(" Power=").next().unwrap().replace("StdErr=/tmp/sxout.1", "StdErr=");
        assert_eq!(jobs(&last).unwrap()[0].request.log.as_deref(), Some("/tmp/sxout.1"));
        // Text of the owner imitates the field, so it is ambiguous which one is Slurm's.
        assert_eq!(of("JobName=wrap", "JobName=x StdErr=/y StdIn=/z").log, None);
        assert_eq!(of("Nice=0", "Nice=0 MinMemoryNode=1000M").memory.as_deref(), Some("1000M per node"));
        assert_eq!(of("Nice=0", "Nice=0 MinMemoryCPU=1.50G").memory.as_deref(), Some("1.50G per CPU"));
        assert_eq!(of("Nice=0", "Nice=0 MinMemoryNode=0").memory, None);
    }

    #[test]
    fn a_job_name_that_imitates_fields_is_an_error() {
        for name in ["x JobState=FAILED", "x\nJobId=99 JobName=y", "x Requeue=1", "x\n NodeList="] {
            let answer = JOB.replace("JobName=wrap", &format!("JobName={name}"));
            assert!(jobs(&answer).is_err(), "{name}");
        }
        let answer = JOB.replace("JobName=wrap", "JobName=x HetJobId=7 y\nz");
        assert_eq!(jobs(&answer).unwrap()[0].het_leader, None);
        assert_eq!(jobs(JOB).unwrap()[0].uid, Some(1001));
        let answer = JOB.replace("JobName=wrap", "JobName=x UserId=ada(0)");
        assert_eq!((jobs(&answer).unwrap()[0].uid, jobs(&answer).unwrap()[0].name.as_deref()), (None, None));
        let answer = JOB.replace("JobName=wrap", "JobName=my run, of today");
        assert_eq!(jobs(&answer).unwrap()[0].name.as_deref(), Some("my run, of today"));
        let answer = JOB.replace("JobName=wrap", "JobName=my run HetJobIdSet=4-5");
        assert_eq!(jobs(&answer).unwrap()[0].name.as_deref(), Some("my run"));
        assert!(jobs(JOB).unwrap()[0].submitted < jobs(JOB).unwrap()[0].start);
    }

    #[test]
    fn all_components_of_a_heterogeneous_job_are_parsed() {
        let component = |id: u32| JOB.replace("JobId=1 ", &format!("JobId={id} HetJobId=4 HetJobOffset=0 "));
        let jobs = super::jobs(&format!("{}\n{}\n", component(4), component(5))).unwrap();
        assert_eq!(
            jobs.iter().map(|job| (job.id, job.het_leader)).collect::<Vec<_>>(),
            [(4, Some(4)), (5, Some(4))]
        );
        assert!(super::jobs(&format!("{JOB}\n{}\n", component(5))).is_err());
        let leader = component(4).replace("gres:gpu:2", "(null)");
        let jobs = super::jobs(&format!("{leader}\n{}\n", component(5))).unwrap();
        assert!(jobs.iter().all(|job| job.gpus), "one of the components asked for GPUs");
    }

    #[test]
    fn runs_on_ignores_other_nodes_and_final_states() {
        for (text, is) in [
            ("", false),
            ("RUNNING|gn[1-3]\n", true),
            ("RUNNING|gn[3-9]\n", false),
            ("COMPLETING|gn2\n", true),
            ("COMPLETED|gn2\n", false),
            ("PENDING|\n", false),
            ("PENDING|\nRUNNING|gn2\n", true),
        ] {
            assert_eq!(runs_on(text, "gn2"), Ok(is), "{text}");
        }
        assert!(runs_on("gn2", "gn2").is_err() && runs_on("RUNNING|gn[", "gn2").is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in "(JobId=|NodeName=|Reason=|State=| |\\[|\\]|@|é|[a-z0-9:\\-T]){0,40}") {
            let _ = jobs(&text);
        }
    }
}
