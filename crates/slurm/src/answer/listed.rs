use super::{UnixSeconds, time};
use crate::typed::Tasks;

/// A record of more tasks than this is not expanded.
const MAX_LISTED: usize = 20_000;

/// A job in a list of squeue or sacct.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedJob {
    /// Job id. Pending tasks of an array share the id of their array.
    pub job: u32,
    /// Array id and task index, for a member of an array.
    pub task: Option<(u32, u32)>,
    /// Uid of the owner.
    pub uid: Option<u32>,
    /// `COMPLETED`, `CANCELLED by 1000`
    pub state: String,
    /// Exit code and signal; `None` from squeue.
    pub exit: Option<(i32, i32)>,
    /// Exit code and signal; `None` from squeue, which has no short format letter for it.
    pub submitted: Option<UnixSeconds>,
    /// Time of submission or, after a requeue, of the last one.
    pub start: Option<UnixSeconds>,
    /// End time; for a job that has not ended, start plus time limit.
    pub end: Option<UnixSeconds>,
    /// Node list, compressed.
    pub nodes: String,
    /// Its name.
    pub name: String,
}

const FIELDS: usize = 10;

/// squeue's output format. `mark` separates the fields, since a name may contain any text that its owner could guess.
/// squeue has no letter for the exit code.
pub(crate) fn squeue_format(mark: &str) -> String {
    ["%A", "%i", "%U", "%T", "", "%V", "%S", "%e", "%N", "%j"].map(|field| format!("{field}{mark}")).concat()
}

/// The corresponding format of sacct.
pub(crate) const SACCT_FORMAT: &str = "JobIDRaw,JobID,UID,State,ExitCode,Submit,Start,End,NodeList,JobName";

/// Parses the output of either command. A record of several tasks becomes one job per task.
pub(crate) fn listed(text: &str, mark: &str) -> Result<Vec<ListedJob>, String> {
    let fields: Vec<&str> = text.split(mark).collect();
    let mut found = Vec::new();
    for record in fields.chunks_exact(FIELDS) {
        let [id, shown, uid, state, exit, submitted, start, end, nodes, name] = record else { continue };
        let id = id.trim();
        let job = id.parse().map_err(|_| format!("'{}' is not a job", railgate_text::clip(id, 40)))?;
        let one = ListedJob {
            job,
            task: None,
            uid: uid.parse().ok(),
            state: (*state).to_owned(),
            exit: exit
                .split_once(':')
                .and_then(|(code, signal)| Some((code.parse().ok()?, signal.parse().ok()?))),
            submitted: time(submitted),
            start: time(start),
            end: time(end),
            nodes: if nodes.contains("assigned") || nodes.contains('(') {
                String::new()
            } else {
                (*nodes).to_owned()
            },
            name: (*name).to_owned(),
        };
        match tasks(shown) {
            Some((array, tasks)) => {
                let room = MAX_LISTED.saturating_sub(found.len());
                let each = tasks.each().take(room);
                found.extend(each.map(|task| ListedJob { task: Some((array, task)), ..one.clone() }));
            }
            None => found.push(one),
        }
    }
    Ok(found)
}

/// Parses `1042_3` and `1042_[3-9%2]`; `None` for a job that is no member of an array, and for a list that Slurm has
/// truncated.
fn tasks(shown: &str) -> Option<(u32, Tasks)> {
    let (array, tasks) = shown.split_once('_')?;
    let tasks = tasks.strip_prefix('[').and_then(|list| list.strip_suffix(']')).unwrap_or(tasks);
    Some((array.parse().ok()?, tasks.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MARK: &str = "0123456789abcdef";

    fn record(fields: [&str; FIELDS]) -> String {
        fields.map(|field| format!("{field}{MARK}")).concat() + "\n"
    }

    #[test]
    fn members_of_an_array_are_listed_one_by_one() {
        let ended = ["1043", "1042_1", "1001", "FAILED", "1:0", "2026-11-21T01:55:23", "2026-11-21T01:55:52"];
        let first =
            record([&ended[..], &["2026-11-21T01:55:53", "gn[1-2]", "my run"]].concat().try_into().unwrap());
        let waiting = record([
            "1042",
            "1042_[3-9:3%2]",
            "1001",
            "PENDING",
            "0:0",
            "2026-11-21T01:55:23",
            "Unknown",
            "Unknown",
            "None assigned",
            "my run",
        ]);
        let found = listed(&(first + &waiting), MARK).unwrap();
        let shape: Vec<_> = found.iter().map(|job| (job.job, job.task, job.state.as_str())).collect();
        assert_eq!(
            shape,
            [
                (1043, Some((1042, 1)), "FAILED"),
                (1042, Some((1042, 3)), "PENDING"),
                (1042, Some((1042, 6)), "PENDING"),
                (1042, Some((1042, 9)), "PENDING"),
            ]
        );
        assert_eq!(
            (found[0].uid, found[0].exit, found[0].nodes.as_str()),
            (Some(1001), Some((1, 0)), "gn[1-2]")
        );
        assert_eq!(found[0].end.unwrap() - found[0].start.unwrap(), 1);
        assert_eq!((found[1].start, found[1].nodes.as_str()), (None, ""));
    }

    #[test]
    fn a_job_name_cannot_forge_a_record_of_another_job() {
        let name = "x\n9|9|0|RUNNING||||||y";
        let text = record(["7", "7", "1001", "RUNNING", "", "N/A", "N/A", "N/A", "", name])
            + &record(["8", "8+0", "1001", "PENDING", "", "N/A", "N/A", "N/A", "", "z"]);
        let found = listed(&text, MARK).unwrap();
        let shape: Vec<_> = found.iter().map(|job| (job.job, job.task, job.name.as_str())).collect();
        assert_eq!(shape, [(7, None, name), (8, None, "z")]);
        assert_eq!(listed("", MARK), Ok(Vec::new()));
        assert!(listed(&record(["x", "", "", "", "", "", "", "", "", ""]), MARK).is_err());
        let huge = record(["7", "7_[0-4294967295]", "1", "PENDING", "", "", "", "", "", ""]);
        assert_eq!(listed(&huge, MARK).unwrap().len(), MAX_LISTED);
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in "([0-9]{1,12}|_|\\[|7|:|\n|é|-){0,40}") {
            let _ = listed(&text, "7");
        }
    }
}
