//! Resolves the typed job name to a job id: by slurmctld, slurmdbd, then the ends that the controller recorded.

use std::path::PathBuf;

use railgate_slurm::{Client, JobRef, ListedJob, Listing, SlurmError, Tasks, TypedJob};
use railgate_stats::store::recorded_ends;
use railgate_stats::{ReportConfig, SlurmEnd};

/// Of more characters a list of tasks helps nobody.
const MAX_LIST: usize = 60;

/// So many records of a user's newest jobs are looked through for a name.
const NEWEST: usize = 200;
/// So many of an array's tasks, and of what was submitted beside them.
const BESIDE: usize = 5_000;

/// Who is asked which jobs there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sources<'a> {
    pub(super) client: &'a Client,
    pub(super) report: &'a ReportConfig,
    /// In place of `[report] dir`.
    pub(super) dirs: &'a [PathBuf],
    pub(super) cluster: Option<&'a str>,
    /// The caller. Root may see everybody's jobs.
    pub(super) user: u32,
}

/// What was asked for.
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

/// What is to be shown.
#[derive(Debug)]
pub(super) enum Which {
    One(One),
    /// Tasks of an array, in order.
    Tasks(Vec<ListedJob>),
}

#[derive(Debug)]
pub(super) struct One {
    pub(super) job: u32,
    /// How Slurm names it.
    pub(super) name: JobRef,
    /// As a list of jobs shows it.
    pub(super) listed: Option<Box<ListedJob>>,
    /// Why slurmctld or the database did not answer.
    pub(super) silent: Option<String>,
    /// One line for above the report.
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
/// Why Slurm does not tell, in one line.
pub(super) fn find(from: Sources<'_>, asked: &Asked<'_>) -> Result<Which, String> {
    match asked {
        Asked::Typed(TypedJob::Number(job)) => Ok(Which::One(number(from, *job))),
        Asked::Typed(typed @ TypedJob::Task(array, task)) => {
            let wanted = |job: &ListedJob| job.task == Some((*array, *task));
            let known = look(from, Listing::Job(*array), |jobs| jobs.iter().any(wanted));
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
        // One report shows all components, and the leader's has the controller's decision.
        Asked::Typed(TypedJob::Component(leader, offset))
        | Asked::Array(TypedJob::Component(leader, offset)) => component(from.client, *leader, *offset),
        Asked::Name(name) => newest(from, |job| job.name == *name)
            .map_err(|known| format!("Slurm knows no job of yours by the name '{name}'{}", known.doubt())),
        Asked::Last => newest(from, |_| true)
            .map_err(|known| format!("Slurm knows no job of yours{}: give its number", known.doubt())),
    }
}

struct Known {
    jobs: Vec<ListedJob>,
    /// Why slurmctld or the database did not answer.
    problems: Vec<SlurmError>,
}

impl Known {
    /// Adds those that are not known yet.
    fn add(&mut self, jobs: Vec<ListedJob>) {
        let same = |one: &ListedJob, job: &ListedJob| one.job == job.job && one.task == job.task;
        let more: Vec<_> =
            jobs.into_iter().filter(|job| !self.jobs.iter().any(|one| same(one, job))).collect();
        self.jobs.extend(more);
    }

    /// slurmctld gave no answer: what it would know is not known here.
    fn doubt(&self) -> String {
        self.problems.first().map(|why| format!(" ({why})")).unwrap_or_default()
    }
}

/// slurmctld is asked first, and where that is not `enough`, the accounting database, and then what the controller has
/// recorded.
fn look(from: Sources<'_>, which: Listing, enough: impl Fn(&[ListedJob]) -> bool) -> Known {
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
        // Many sites have none. What slurmctld said stands.
        Err(why) => tracing::debug!("{why}"),
    }
    if !enough(&known.jobs) {
        known.add(recorded(from, which));
    }
    known
}

/// What the controller has recorded of jobs that ended: of the caller's own, of everybody's where root asks.
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
            // The number of an array is the number of one of its tasks.
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
        Some(why) => format!("{typed}: Slurm does not answer ({why}): give the job's own number (JobId)"),
        None => format!("{typed}: no record; Slurm has forgotten it, or never had it"),
    }
}

/// A number may be that of an array, whose last member has the same one.
fn number(from: Sources<'_>, job: u32) -> One {
    let known = look(from, Listing::Job(job), |jobs| !jobs.is_empty());
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
    // Members that slurmctld has forgotten are missing among those that it knows.
    let known = look(from, Listing::Job(array), |_| false);
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

/// The user's own job that was submitted last; of an array the member with the highest number.
fn newest(from: Sources<'_>, wanted: impl Fn(&ListedJob) -> bool) -> Result<Which, Known> {
    // What the commands were asked for counts only where the answer says so.
    let own = |job: &&ListedJob| job.uid == Some(from.user) && wanted(job);
    let known = look(from, Listing::User(from.user), |jobs| jobs.iter().any(|job| own(&job)));
    let last = known.jobs.iter().filter(own);
    let last = last.max_by_key(|job| (job.submitted, job.job, std::cmp::Reverse(job.task)));
    last.map(|job| Which::One(One::of(job))).ok_or(known)
}
