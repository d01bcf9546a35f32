//! Reading what `scontrol` and `sinfo` print. Job names, paths and comments stand unquoted in it and may hold
//! anything, also what looks like a field, so a field that stands there twice is nobody's.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::JobRef;

/// Seconds since the Unix epoch.
pub type UnixSeconds = u64;

/// A node as slurmctld sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    /// Its name in Slurm.
    pub name: String,
    /// Base state and flags, upper case: `IDLE`, `DRAIN`, `NOT_RESPONDING`.
    pub flags: Vec<String>,
    /// The partitions it is in.
    pub partitions: Vec<String>,
    /// The reason that stands on it. It may be left from an earlier time; only [`NodeState::held`] tells.
    pub reason: Option<NodeReason>,
}

/// A reason, who set it and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReason {
    /// The text.
    pub text: String,
    /// User name, empty where Slurm gave none.
    pub user: String,
    /// When.
    pub since: Option<UnixSeconds>,
}

impl NodeState {
    /// Whether a state or flag is set.
    pub fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|have| have == flag)
    }

    /// No new job may start on it: drained, draining, down, failing.
    pub fn held(&self) -> bool {
        ["DRAIN", "DRAINED", "DRAINING", "DOWN", "FAIL", "FAILING"].iter().any(|flag| self.has(flag))
    }

    /// It is in a maintenance reservation or about to be rebooted by an admin.
    pub fn serviced(&self) -> Option<&'static str> {
        ["MAINT", "MAINTENANCE", "REBOOT_REQUESTED", "REBOOT_ISSUED", "REBOOT"]
            .into_iter()
            .find(|flag| self.has(flag))
    }

    /// The state as Slurm writes it: `IDLE+DRAIN`.
    pub fn state(&self) -> String {
        self.flags.join("+")
    }
}

/// A job as slurmctld sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobState {
    /// `JobId`.
    pub id: u32,
    /// `HetJobId`: the leader, where the job is one component of several.
    pub het_leader: Option<u32>,
    /// `UserId`'s number; `None` where the job's own text looks like it, too.
    pub uid: Option<u32>,
    /// `JobName`, its owner's text; `None` where it looks like more than a name.
    pub name: Option<String>,
    /// `JobState`: `RUNNING`, `COMPLETING`. Before 23.11 a completing job does not show more.
    pub state: String,
    /// `Reason`: `NonZeroExitCode`, `None`.
    pub reason: String,
    /// `Requeue`: Slurm may start it again.
    pub requeue: bool,
    /// `BatchFlag`.
    pub batch: bool,
    /// `Restarts`.
    pub restarts: u32,
    /// `SubmitTime`, of the last time where it came back.
    pub submitted: Option<UnixSeconds>,
    /// `StartTime`, of the job's next start where it waits.
    pub start: Option<UnixSeconds>,
    /// `EndTime`, the latest possible one where it has not ended.
    pub end: Option<UnixSeconds>,
    /// `LastSchedEval`: after a requeue and until it is looked at again, the start of the run that ended.
    pub last_sched: Option<UnixSeconds>,
    /// `TimeLimit`; `None` without a limit.
    pub time_limit: Option<Duration>,
    /// `PreemptTime` is set.
    pub preempted: bool,
    /// `ReqNodeList`, compressed; empty where none.
    pub required: String,
    /// `ExcNodeList`, compressed; empty where none.
    pub excluded: String,
    /// `NodeList`, compressed: of a completing job those whose epilog has not ended yet.
    pub nodes: String,
    /// `OverSubscribe=NO`: it has its nodes for itself.
    pub exclusive: bool,
    /// It asked for GPUs.
    pub gpus: bool,
    /// `StdOut` is `/dev/null`: no log can be lost.
    pub silent: bool,
}

impl JobState {
    /// Some node's epilog has not ended yet.
    pub fn completing(&self) -> bool {
        self.state.split('+').any(|state| state == "COMPLETING") && !self.nodes.is_empty()
    }
}

/// One line of `sinfo`: a node in one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SinfoLine {
    pub(crate) node: String,
    pub(crate) partition: String,
    pub(crate) state: String,
    pub(crate) since: Option<UnixSeconds>,
    pub(crate) reason: String,
}

/// A node that is held, as `sinfo` tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldNode {
    /// Its name in Slurm.
    pub name: String,
    /// The partitions it is in.
    pub partitions: Vec<String>,
    /// `drained`, `draining`, `down*`.
    pub state: String,
    /// When the reason was set.
    pub since: Option<UnixSeconds>,
    /// Its reason.
    pub reason: String,
}

pub(crate) fn held_nodes(lines: Vec<SinfoLine>) -> Vec<HeldNode> {
    let mut held: BTreeMap<String, HeldNode> = BTreeMap::new();
    for line in lines.into_iter().filter(|line| is_held(&line.state)) {
        let SinfoLine { node, partition, state, since, reason } = line;
        let name = node.clone();
        let entry =
            held.entry(node).or_insert(HeldNode { name, partitions: Vec::new(), state, since, reason });
        entry.partitions.push(partition);
    }
    held.into_values().collect()
}

/// `%T` of sinfo: a reason on a node in any other state is left from an earlier time.
pub(crate) fn is_held(state: &str) -> bool {
    ["drain", "down", "fail", "maint", "reboot"].iter().any(|held| state.starts_with(held))
}

/// Reads `squeue -o %T|%N`: whether one of the jobs is on a node, in whatever state but the last ones.
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
            line.trim().split_once('|').ok_or_else(|| format!("'{line}' is no state and nodes"))?;
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

/// What `sinfo` is asked for. The reason comes last: it may hold the separator.
pub(crate) const SINFO_FORMAT: &str = "%N|%P|%T|%H|%E";

pub(crate) fn sinfo_line(line: &str) -> Option<SinfoLine> {
    let mut fields = line.splitn(5, '|');
    let mut next = || fields.next().map(str::trim);
    Some(SinfoLine {
        node: next()?.to_owned(),
        // The default partition is marked.
        partition: next()?.trim_end_matches('*').to_owned(),
        state: next()?.to_owned(),
        since: time(next()?),
        reason: next()?.to_owned(),
    })
}

/// Reads `scontrol -o show node`.
pub(crate) fn node(line: &str) -> Result<NodeState, String> {
    // Free text only follows these, so the first one is the real one.
    let field = |key: &str| first(line, key).ok_or_else(|| format!("no {key} in the answer"));
    let state = field("State")?;
    Ok(NodeState {
        name: field("NodeName")?.to_owned(),
        flags: state
            .split('+')
            .map(|flag| {
                flag.trim_matches(|c: char| !c.is_ascii_alphanumeric() && c != '_').to_ascii_uppercase()
            })
            .collect(),
        partitions: first(line, "Partitions")
            .map(|list| list.split(',').map(str::to_owned).collect())
            .unwrap_or_default(),
        reason: line.split_once(" Reason=").map(|(_, rest)| node_reason(rest)),
    })
}

/// `text [user@time]`, and perhaps `Comment=` after it.
fn node_reason(rest: &str) -> NodeReason {
    for (at, _) in rest.match_indices(" [") {
        let Some((inside, _)) = rest[at + 2..].split_once(']') else { break };
        if let Some((user, when)) = inside.rsplit_once('@')
            && let Some(since) = time(when)
        {
            return NodeReason { text: rest[..at].to_owned(), user: user.to_owned(), since: Some(since) };
        }
    }
    NodeReason { text: rest.trim().to_owned(), user: String::new(), since: None }
}

/// Reads `scontrol -o show job` for one job: its components where it is heterogeneous.
pub(crate) fn jobs(text: &str) -> Result<Vec<JobState>, String> {
    let mut records: Vec<String> = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        match records.last_mut() {
            // A name or a path may hold a line break.
            Some(last) if !line.starts_with("JobId=") => {
                last.push(' ');
                last.push_str(line);
            }
            _ => records.push(line.to_owned()),
        }
    }
    let jobs = records.iter().map(|record| job(record)).collect::<Result<Vec<_>, _>>()?;
    match jobs.split_first() {
        None => Err("no job in the answer".to_owned()),
        // More than one record is right for a heterogeneous job only.
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
        value.parse::<u32>().map_err(|_| format!("{key}='{}' is no number", crate::env::clean(value)))
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
        exclusive: optional("OverSubscribe")? == "NO",
        // Which of these are there depends on release and configuration; that a user can add one by the
        // job's name only means that the job is looked at.
        gpus: record.split(' ').any(|word| {
            word.split_once('=').is_some_and(|(key, value)| {
                (key.starts_with("Tres") || key.ends_with("TRES") || key == "Gres") && value.contains("gpu")
            })
        }),
        silent: record.split(' ').any(|word| word == "StdOut=/dev/null"),
    })
}

/// What stands between the name's key and the next one, which stands there once: for a component that of the set.
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

/// Year and month of `slurm-wlm 22.05.8`, as every program answers to `-V`.
pub(crate) fn release(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split_whitespace().next_back()?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// What Slurm shows of a job that matters to someone who wants to tell its owner something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnersView {
    /// `BatchFlag`: nobody waits for it at a terminal.
    pub batch: Option<bool>,
    /// `Requeue`: it goes elsewhere by itself.
    pub requeue: Option<bool>,
    /// `StdOut`, where that is the name of a file.
    pub output: Option<PathBuf>,
}

/// `scontrol show config`: keys and values; numbered keys also as one list.
pub(crate) fn config(text: &str) -> BTreeMap<String, String> {
    let mut config: BTreeMap<String, String> = BTreeMap::new();
    for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
        let (key, value) = (key.trim(), value.trim());
        config.insert(key.to_owned(), value.to_owned());
        if let Some((name, _)) = key.split_once('[').filter(|(_, number)| number.ends_with(']')) {
            let list = config.entry(name.to_owned()).or_default();
            if !list.is_empty() {
                list.push(',');
            }
            list.push_str(value);
        }
    }
    config
}

/// Reads `scontrol show job`. The number of an array's first member shows all its members.
pub(crate) fn owners_view(text: &str, job: u32) -> OwnersView {
    let head = format!("JobId={job} ");
    let mut lines = text.lines().skip_while(|line| !line.starts_with(&head));
    let own = lines.next().into_iter().chain(lines.take_while(|line| !line.starts_with("JobId=")));
    let mut view = OwnersView::default();
    for line in own.map(str::trim_start) {
        if line.starts_with("Requeue=") {
            view.requeue = first(line, "Requeue").map(|flag| flag == "1");
            view.batch = first(line, "BatchFlag").map(|flag| flag == "1");
        }
        if let Some(path) = line.strip_prefix("StdOut=") {
            // What Slurm has not filled in (%N and the like) is no file yet.
            let file = path.starts_with('/') && !path.contains('%') && path != "/dev/null";
            view.output = file.then(|| PathBuf::from(path));
        }
    }
    view
}

/// A job that must not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusable {
    /// How Slurm's commands must name it.
    pub name: JobRef,
    /// `Requeue`: it may go back to the queue.
    pub requeue: bool,
}

/// Reads `scontrol show job`; `None` for a job that is no batch job.
pub(crate) fn refusable(text: &str, job: u32) -> Option<Refusable> {
    let view = owners_view(text, job);
    let head = format!("JobId={job} ");
    let line = text.lines().find(|line| line.starts_with(&head))?;
    // What users write begins with the job's name.
    let own = line.split(" JobName=").next()?;
    let number = |key| first(own, key).and_then(|value| value.parse().ok());
    let name = match (number("HetJobId"), number("ArrayJobId"), number("ArrayTaskId")) {
        (Some(leader), _, _) => JobRef::plain(leader),
        (None, Some(array), Some(task)) => JobRef::member(array, task),
        (None, None, None) => JobRef::plain(job),
        // A plain id could mean a whole array.
        _ => return None,
    };
    (view.batch? && view.requeue.is_some()).then(|| Refusable { name, requeue: view.requeue == Some(true) })
}

/// `ada(1001)`
fn uid(text: &str) -> Option<u32> {
    text.strip_suffix(')')?.rsplit_once('(')?.1.parse().ok()
}

/// The value of a key that comes first.
fn first<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

/// The value of a key that must not come twice.
fn only<'a>(text: &'a str, key: &str) -> Result<Option<&'a str>, String> {
    let mut values = text.split(' ').filter_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    match (values.next(), values.next()) {
        (_, Some(_)) => Err(format!("{key} stands twice in the answer (a name or path that looks like it?)")),
        (value, None) => Ok(value),
    }
}

/// `2026-11-21T02:01:38`, in UTC because we ask with TZ=UTC.
pub(crate) fn time(text: &str) -> Option<UnixSeconds> {
    let number = |range: std::ops::Range<usize>| -> Option<i64> {
        let digits = text.get(range)?;
        digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
    };
    let bytes = text.as_bytes();
    let marks = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    if bytes.len() != 19 || marks.iter().any(|&(at, mark)| bytes[at] != mark) {
        return None;
    }
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    // Days since 1970-03-01 in years that begin in March, so that the leap day comes last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    u64::try_from(days * 86_400 + hour * 3600 + minute * 60 + second).ok()
}

/// `1-02:03:04`, `10:00`, `30`; `None` for `UNLIMITED` and everything else.
fn duration(text: &str) -> Option<Duration> {
    let (days, rest) = match text.split_once('-') {
        Some((days, rest)) => (days.parse::<u64>().ok()?, rest),
        None => (0, text),
    };
    let parts: Vec<u64> = rest.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let seconds = match parts.as_slice() {
        [hours, minutes, seconds] => hours * 3600 + minutes * 60 + seconds,
        [minutes, seconds] => minutes * 60 + seconds,
        [minutes] => minutes * 60,
        _ => return None,
    };
    Some(Duration::from_secs(days * 86_400 + seconds))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hooks_of_every_release() {
        let get = |text: &str, key: &str| config(text).get(key).cloned();
        let old = "Prolog                  = /etc/slurm/prolog.d/*\nEpilog                  = (null)\n";
        assert_eq!(get(old, "Prolog").as_deref(), Some("/etc/slurm/prolog.d/*"));
        // As 24.11.5 and 26.05.5 print them.
        let new = "Configuration data as of 2026-11-21T09:54:00\nProlog[0]               = /etc/slurm/prolog.d/*\n\
                   Prolog[1]               = /etc/slurm/last\nAuthInfo                = cred_expire=5\n";
        assert_eq!(get(new, "Prolog").as_deref(), Some("/etc/slurm/prolog.d/*,/etc/slurm/last"));
        assert_eq!(get(new, "Prolog[1]").as_deref(), Some("/etc/slurm/last"));
        assert_eq!((get(new, "AuthInfo").as_deref(), get(new, "Epilog")), (Some("cred_expire=5"), None));
    }

    // As 22.05.8 printed them.
    const NODE: &str = "NodeName=x1 Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=8 CPUTot=8 CPULoad=0.45 \
        AvailableFeatures=(null) ActiveFeatures=(null) Gres=gpu:4 NodeAddr=127.0.0.1 NodeHostName=vm Port=27821 \
        Version=22.05.8 OS=Linux 6.18.44 #1 SMP PREEMPT_DYNAMIC @0  RealMemory=1 AllocMem=0 FreeMem=22562 \
        Sockets=8 Boards=1 State=IDLE+DRAIN ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A \
        Partitions=main,prio  BootTime=2026-11-21T01:36:02 CfgTRES=cpu=8,mem=1M,billing=8 AllocTRES= \
        CapWatts=n/a ExtSensorsTemp=n/s Reason=railgate: a@3: b; c [epilog job=5] [root@2026-11-21T02:01:38] \
        Comment=some c";
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
    fn a_node_with_its_reason() {
        let node = node(NODE).unwrap();
        assert_eq!((node.name.as_str(), node.state().as_str()), ("x1", "IDLE+DRAIN"));
        assert!(node.held() && node.has("DRAIN") && node.serviced().is_none());
        assert_eq!(node.partitions, ["main", "prio"]);
        let reason = node.reason.unwrap();
        assert_eq!(reason.text, "railgate: a@3: b; c [epilog job=5]");
        assert_eq!((reason.user.as_str(), reason.since), ("root", Some(1_795_226_498)));
    }

    #[test]
    fn a_release_is_told_by_its_year_and_month() {
        let answers = ["slurm-wlm 22.05.8", "slurm 23.02.7\n", "slurm 25.05.0-0rc1", "", "slurm", "22.x"];
        let releases = answers.map(release);
        assert_eq!(releases, [Some((22, 5)), Some((23, 2)), Some((25, 5)), None, None, None]);
    }

    #[test]
    fn a_node_that_nobody_holds() {
        let idle = NODE.replace("IDLE+DRAIN", "IDLE*").split(" Reason=").next().unwrap().to_owned();
        let node = node(&idle).unwrap();
        assert!(!node.held() && node.reason.is_none() && node.has("IDLE"));
        let reboot = super::node(&idle.replace("IDLE*", "MIXED+REBOOT_REQUESTED")).unwrap();
        assert_eq!(reboot.serviced(), Some("REBOOT_REQUESTED"));
        assert!(super::node("slurm says hello").is_err());
    }

    #[test]
    fn a_member_of_an_array_is_told_by_its_own_output() {
        // As 22.05.8 printed it for the array's number.
        let text = "JobId=8 ArrayJobId=7 ArrayTaskId=1 JobName=x\n   Requeue=0 Restarts=0 BatchFlag=1 Reboot=0\n   \
                    StdIn=/dev/null\n   StdOut=/home/ada/out 8\n   Power=\n   \n\nJobId=7 ArrayJobId=7 \
                    ArrayTaskId=2 JobName=x\n   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0\n   StdOut=/o.%N\n";
        let view = owners_view(text, 8);
        assert_eq!((view.batch, view.requeue), (Some(true), Some(false)));
        assert_eq!(view.output, Some(PathBuf::from("/home/ada/out 8")));
        let view = owners_view(text, 7);
        assert_eq!((view.batch, view.requeue, view.output), (Some(true), Some(true), None));
        assert_eq!(owners_view(text, 1), OwnersView::default());
    }

    #[test]
    fn a_job_that_must_not_start_is_named_so_that_no_other_is_meant() {
        let batch = "   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0\n";
        let named =
            |head: &str| refusable(&format!("{head} JobName=HetJobId=9\n{batch}"), 7).map(|job| job.name);
        assert_eq!(named("JobId=7"), Some(JobRef::plain(7)));
        assert_eq!(named("JobId=7 ArrayJobId=7 ArrayTaskId=2"), Some(JobRef::member(7, 2)));
        assert_eq!(named("JobId=7 HetJobId=6 HetJobOffset=1"), Some(JobRef::plain(6)));
        assert_eq!(named("JobId=7 ArrayJobId=7 ArrayTaskId=2-5"), None);
        assert_eq!(refusable("JobId=7 JobName=x\n   Requeue=1 Restarts=0 BatchFlag=0\n", 7), None);
    }

    #[test]
    fn a_completing_job() {
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
    fn names_that_look_like_fields_make_a_job_unreadable() {
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
    fn a_heterogeneous_job_has_components() {
        let component = |id: u32| JOB.replace("JobId=1 ", &format!("JobId={id} HetJobId=4 HetJobOffset=0 "));
        let jobs = super::jobs(&format!("{}\n{}\n", component(4), component(5))).unwrap();
        assert_eq!(
            jobs.iter().map(|job| (job.id, job.het_leader)).collect::<Vec<_>>(),
            [(4, Some(4)), (5, Some(4))]
        );
        assert!(super::jobs(&format!("{JOB}\n{}\n", component(5))).is_err());
    }

    #[test]
    fn where_a_job_is() {
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

    #[test]
    fn sinfo_lines() {
        let line = sinfo_line("x1|main*|drained|2026-11-21T02:01:38|railgate: a: b|c [periodic]").unwrap();
        assert_eq!((line.node.as_str(), line.partition.as_str()), ("x1", "main"));
        assert_eq!(line.reason, "railgate: a: b|c [periodic]");
        assert_eq!(sinfo_line("x2|main*|idle|Unknown|none").unwrap().since, None);
        assert_eq!(sinfo_line("garbage"), None);
    }

    #[test]
    fn times() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00", 0),
            ("2000-02-29T00:00:00", 951_782_400),
            ("2026-11-21T02:01:38", 1_795_226_498),
        ] {
            assert_eq!(time(text), Some(seconds), "{text}");
        }
        for text in
            ["Unknown", "None", "", "2026-13-01T00:00:00", "2026-11-21 02:01:38", "2026-11-21T02:01:3x"]
        {
            assert_eq!(time(text), None, "{text}");
        }
        assert_eq!(duration("00:10:00"), Some(Duration::from_secs(600)));
        assert_eq!(duration("2-01:00:00"), Some(Duration::from_secs(2 * 86_400 + 3600)));
        assert_eq!(duration("UNLIMITED"), None);
    }

    proptest! {
        #[test]
        fn no_answer_makes_it_panic(text in "(JobId=|NodeName=|Reason=|State=| |\\[|\\]|@|é|[a-z0-9:\\-T]){0,40}") {
            let _ = (node(&text), jobs(&text), sinfo_line(&text), time(&text), duration(&text));
        }
    }
}
