use std::path::PathBuf;

use super::first;
use crate::{JobRef, hostlist};

/// Fields of a job that are needed to notify its owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnersView {
    /// `BatchFlag`: a batch job has no terminal.
    pub batch: Option<bool>,
    /// `Requeue`: Slurm may requeue the job.
    pub requeue: Option<bool>,
    /// `ReqNodeList`: nodes that the job requires by name and waits for.
    pub required: Vec<String>,
    /// `StdOut`, if it is the name of a file.
    pub output: Option<PathBuf>,
}

/// Parses `scontrol show job`. The id of an array's first member shows all members.
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
        if line.starts_with("ReqNodeList=") {
            let list = first(line, "ReqNodeList").unwrap_or_default();
            view.required = hostlist::expand(list).unwrap_or_default();
        }
        if let Some(path) = line.strip_prefix("StdOut=") {
            // A path that Slurm has not expanded (for example `%N`) is no file yet.
            let file = path.starts_with('/') && !path.contains('%') && path != "/dev/null";
            view.output = file.then(|| PathBuf::from(path));
        }
    }
    view
}

/// A job that the prolog refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusable {
    /// Its name in Slurm's commands.
    pub name: JobRef,
    /// `Requeue`: the job may be requeued.
    pub requeue: bool,
}

/// Parses `scontrol show job`; `None` for a job that is not a batch job.
pub(crate) fn refusable(text: &str, job: u32) -> Option<Refusable> {
    let view = owners_view(text, job);
    let head = format!("JobId={job} ");
    let line = text.lines().find(|line| line.starts_with(&head))?;
    // Text of users starts with the job's name.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_of_an_array_is_notified_in_its_own_output_file() {
        // As printed by 22.05.8 for the array's id.
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
    fn the_name_of_a_refused_job_covers_no_other_job() {
        let batch = "   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0\n";
        let named =
            |head: &str| refusable(&format!("{head} JobName=HetJobId=9\n{batch}"), 7).map(|job| job.name);
        assert_eq!(named("JobId=7"), Some(JobRef::plain(7)));
        assert_eq!(named("JobId=7 ArrayJobId=7 ArrayTaskId=2"), Some(JobRef::member(7, 2)));
        assert_eq!(named("JobId=7 HetJobId=6 HetJobOffset=1"), Some(JobRef::plain(6)));
        assert_eq!(named("JobId=7 ArrayJobId=7 ArrayTaskId=2-5"), None);
        assert_eq!(refusable("JobId=7 JobName=x\n   Requeue=1 Restarts=0 BatchFlag=0\n", 7), None);
    }
}
