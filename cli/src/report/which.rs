//! Resolves the typed job id or name to a job: by slurmctld, slurmdbd, then the ends that the controller recorded.

use std::path::PathBuf;

use railgate_node_report::SlurmEnd;
use railgate_slurm::{Client, JobRef, ListedJob, Listing, SlurmError, Tasks, TypedJob};
use railgate_store::{ReportConfig, recorded_ends};

/// Longest list of tasks in a message, characters.
const MAX_LIST: usize = 60;

/// Most of a user's newest jobs that are searched for a name.
const NEWEST: usize = 200;
/// Most recorded tasks of an array, together with jobs submitted beside them, that are searched.
const BESIDE: usize = 5_000;

/// Sources of job information.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sources<'a> {
    pub(super) client: &'a Client,
    pub(super) report: &'a ReportConfig,
    /// Replaces `[report] dir`.
    pub(super) dirs: &'a [PathBuf],
    pub(super) cluster: Option<&'a str>,
    /// Uid of the caller. Root may see all users' jobs.
    pub(super) user: u32,
}

/// The requested job.
#[derive(Debug)]
pub(super) enum Asked<'a> {
    Typed(&'a TypedJob),
    /// All tasks of this array.
    Array(&'a TypedJob),
    /// The caller's newest job of this name.
    Name(&'a str),
    /// The caller's newest job.
    Last,
}

/// The jobs to show.
#[derive(Debug)]
pub(super) enum Which {
    One(One),
    /// Tasks of an array, in order.
    Tasks(Vec<ListedJob>),
}

#[derive(Debug)]
pub(super) struct One {
    pub(super) job: u32,
    /// Its name in Slurm's commands.
    pub(super) name: JobRef,
    /// Its entry in a list of jobs.
    pub(super) listed: Option<Box<ListedJob>>,
    /// Why slurmctld or the database did not answer.
    pub(super) silent: Option<String>,
    /// A note to print above the report.
    pub(super) note: Option<String>,
}

impl One {
    fn plain(job: u32) -> Self {
        One { job, name: JobRef::plain(job), listed: None, silent: None, note: None }
    }

    fn of(job: &ListedJob) -> Self {
        let name = match job.task {
            Some((array, task)) => JobRef::member(array, task),
            None => JobRef::plain(job.job),
        };
        One { job: job.job, name, listed: Some(Box::new(job.clone())), silent: None, note: None }
    }
}

/// # Errors
/// Why the job could not be resolved, in one line.
pub(super) fn find(from: Sources<'_>, asked: &Asked<'_>) -> Result<Which, String> {
    match asked {
        Asked::Typed(TypedJob::Number(job)) => Ok(Which::One(number(from, *job))),
        Asked::Typed(typed @ TypedJob::Task(array, task)) => {
            let wanted = |job: &ListedJob| job.task == Some((*array, *task));
            let known = query(from, Listing::Job(*array), |jobs| jobs.iter().any(wanted));
            let found = known.jobs.iter().find(|job| wanted(job));
            found.map(|job| Which::One(One::of(job))).ok_or_else(|| forgotten(&typed.to_string(), &known))
        }
        Asked::Typed(typed @ TypedJob::Tasks(array, tasks)) => {
            of_array(from, *array, Some(tasks), &typed.to_string())
        }
        Asked::Array(TypedJob::Number(array) | TypedJob::Task(array, _)) => {
            of_array(from, *array, None, &array.to_string())
        }
        Asked::Array(TypedJob::Tasks(array, tasks)) => {
            of_array(from, *array, Some(tasks), &array.to_string())
        }
        // One report has all components, and the leader's report has the controller's decision.
        Asked::Typed(TypedJob::Component(leader, offset))
        | Asked::Array(TypedJob::Component(leader, offset)) => component(from.client, *leader, *offset),
        Asked::Name(name) => newest(from, |job| job.name == *name)
            .map_err(|known| format!("Slurm knows no job of yours by the name '{name}'{}", known.doubt())),
        Asked::Last => newest(from, |_| true)
            .map_err(|known| format!("Slurm lists no job of yours{}: give a job id", known.doubt())),
    }
}

struct Known {
    jobs: Vec<ListedJob>,
    /// Errors of slurmctld or the database.
    problems: Vec<SlurmError>,
}

impl Known {
    /// Adds the jobs that are not in the list yet.
    fn add(&mut self, jobs: Vec<ListedJob>) {
        let same = |one: &ListedJob, job: &ListedJob| one.job == job.job && one.task == job.task;
        let more: Vec<_> =
            jobs.into_iter().filter(|job| !self.jobs.iter().any(|one| same(one, job))).collect();
        self.jobs.extend(more);
    }

    /// The caveat for an incomplete list, if slurmctld gave no answer.
    fn doubt(&self) -> String {
        self.problems.first().map(|why| format!(" ({why})")).unwrap_or_default()
    }
}

/// Queries slurmctld; if its answer is not `enough`, also the accounting database, then the controller's records.
fn query(from: Sources<'_>, which: Listing, enough: impl Fn(&[ListedJob]) -> bool) -> Known {
    let mut known = Known { jobs: Vec::new(), problems: Vec::new() };
    match from.client.queued_jobs(which) {
        Ok(jobs) => known.jobs = jobs,
        Err(why) => known.problems.push(why),
    }
    if enough(&known.jobs) {
        return known;
    }
    match from.client.accounted_jobs(which) {
        Ok(jobs) => known.add(jobs),
        // Many sites have no database. slurmctld's answer is kept.
        Err(why) => tracing::debug!("{why}"),
    }
    if !enough(&known.jobs) {
        known.add(recorded(from, which));
    }
    known
}

/// The controller's records of ended jobs: of the caller, or of all users for root.
fn recorded(from: Sources<'_>, which: Listing) -> Vec<ListedJob> {
    let own = Some(from.user);
    let find = |uid: Option<u32>, numbers, most| {
        let found = recorded_ends(from.report, from.dirs, from.cluster, uid, numbers, most);
        let found = found.inspect_err(|why| tracing::debug!("recorded ends: {why}")).unwrap_or_default();
        found.into_iter().map(|end| listed(end, uid)).collect::<Vec<_>>()
    };
    match which {
        Listing::User(uid) => find(Some(uid), None, NEWEST),
        Listing::Job(job) => {
            let uid = own.filter(|uid| *uid != 0);
            let same = find(uid, Some((job, job)), 1);
            // The id of an array is the id of one of its tasks.
            if same.iter().any(|one| one.task.is_none_or(|(array, _)| array != job)) {
                return same;
            }
            let mut tasks = find(uid, Some((job, u32::MAX)), BESIDE);
            tasks.retain(|one| one.task.is_some_and(|(array, _)| array == job));
            tasks
        }
    }
}

fn listed(end: SlurmEnd, uid: Option<u32>) -> ListedJob {
    let seconds = |millis: Option<u64>| millis.map(|millis| millis / 1000);
    ListedJob {
        job: end.job,
        task: end.task,
        uid,
        state: end.slurm.state,
        exit: end.slurm.exit,
        submitted: seconds(end.slurm.submitted),
        start: seconds(end.slurm.start),
        end: seconds(end.slurm.end),
        nodes: end.slurm.nodelist,
        name: end.slurm.name.unwrap_or_default(),
    }
}

fn forgotten(typed: &str, known: &Known) -> String {
    match known.problems.first() {
        Some(why) => format!("{typed}: Slurm does not answer ({why}): give the job id (JobId)"),
        None => format!("{typed}: no record; Slurm has forgotten it, or never had it"),
    }
}

/// Resolves an id, which may be that of an array and of its last member.
fn number(from: Sources<'_>, job: u32) -> One {
    let known = query(from, Listing::Job(job), |jobs| !jobs.is_empty());
    let of_array = known.jobs.iter().filter_map(|one| one.task.filter(|(array, _)| *array == job));
    let tasks: Vec<u32> = of_array.map(|(_, task)| task).collect();
    let same: Vec<&ListedJob> = known.jobs.iter().filter(|one| one.job == job).collect();
    let silent = known.problems.first().map(ToString::to_string);
    let Some(member) = same.first() else { return One { silent, ..One::plain(job) } };
    let one = One::of(member);
    let Some((array, task)) = member.task.filter(|(array, _)| *array == job) else { return one };
    let others: Vec<u32> = tasks.into_iter().filter(|other| *other != task).collect();
    let others = match Tasks::of(&others).to_string() {
        none if none.is_empty() => String::new(),
        list if list.len() <= MAX_LIST => format!("; others: railgate report {array}_[{list}]"),
        _ => format!("; all: railgate report {array} --array"),
    };
    One { note: Some(format!("array {array}: this is task {task}{others}")), ..one }
}

fn of_array(from: Sources<'_>, array: u32, wanted: Option<&Tasks>, typed: &str) -> Result<Which, String> {
    // Tasks that slurmctld has purged are missing in its answer.
    let known = query(from, Listing::Job(array), |_| false);
    let is_wanted = |job: &&ListedJob| {
        job.task.is_some_and(|(of, task)| of == array && wanted.is_none_or(|tasks| tasks.contains(task)))
    };
    let mut jobs: Vec<ListedJob> = known.jobs.iter().filter(is_wanted).cloned().collect();
    jobs.sort_by_key(|job| job.task);
    match (jobs.is_empty(), known.jobs.iter().any(|job| job.job == array && job.task.is_none())) {
        (false, _) => Ok(Which::Tasks(jobs)),
        (true, true) => Err(format!("{array} is not an array: railgate report {array}")),
        (true, false) => Err(forgotten(typed, &known)),
    }
}

fn component(client: &Client, leader: u32, offset: u32) -> Result<Which, String> {
    let components = client.job(&JobRef::plain(leader)).unwrap_or_default();
    match components.first() {
        Some(first) if first.het_leader.is_none() => {
            Err(format!("{leader} is not a heterogeneous job: railgate report {leader}"))
        }
        Some(_) if usize::try_from(offset).is_ok_and(|offset| offset >= components.len()) => {
            Err(format!("job {leader} has no component {leader}+{offset}: it has {}", components.len()))
        }
        _ => Ok(Which::One(One::plain(leader))),
    }
}

/// The caller's job that was submitted last; of an array the task with the highest index.
fn newest(from: Sources<'_>, wanted: impl Fn(&ListedJob) -> bool) -> Result<Which, Known> {
    // Do not rely on the commands' filters: check the owner in the output.
    let own = |job: &&ListedJob| job.uid == Some(from.user) && wanted(job);
    let known = query(from, Listing::User(from.user), |jobs| jobs.iter().any(|job| own(&job)));
    let last = known.jobs.iter().filter(own);
    let last = last.max_by_key(|job| (job.submitted, job.job, std::cmp::Reverse(job.task)));
    last.map(|job| Which::One(One::of(job))).ok_or(known)
}
