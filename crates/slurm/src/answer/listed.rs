use super::{UnixSeconds, time};
use crate::typed::Tasks;

/// More tasks than this are not listed one by one.
const MAX_LISTED: usize = 20_000;

/// A job in a list of squeue or sacct.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedJob {
    /// Its number. Tasks that have not started share that of their array.
    pub job: u32,
    /// The array and the task, where it is a member of one.
    pub task: Option<(u32, u32)>,
    /// Whose it is.
    pub uid: Option<u32>,
    /// `COMPLETED`, `CANCELLED by 1000`
    pub state: String,
    /// Exit code and signal; `None` from squeue.
    pub exit: Option<(i32, i32)>,
    /// When it was submitted; where it came back, of the last time.
    pub submitted: Option<UnixSeconds>,
    /// Its start, or the expected one where it waits.
    pub start: Option<UnixSeconds>,
    /// Its end, or the latest possible one where it has not ended.
    pub end: Option<UnixSeconds>,
    /// Its nodes, compressed.
    pub nodes: String,
    /// Its name.
    pub name: String,
}

const FIELDS: usize = 10;

/// What squeue is asked for; `mark` parts the fields, since a name may hold any text that could be guessed. squeue does not
/// have the exit code under a letter.
pub(crate) fn squeue_format(mark: &str) -> String {
    ["%A", "%i", "%U", "%T", "", "%V", "%S", "%e", "%N", "%j"].map(|field| format!("{field}{mark}")).concat()
}

/// The same of sacct.
pub(crate) const SACCT_FORMAT: &str = "JobIDRaw,JobID,UID,State,ExitCode,Submit,Start,End,NodeList,JobName";

/// Reads either answer. A line that stands for several tasks becomes one job for each of them.
pub(crate) fn listed(text: &str, mark: &str) -> Result<Vec<ListedJob>, String> {
    let fields: Vec<&str> = text.split(mark).collect();
    let mut found = Vec::new();
    for record in fields.chunks_exact(FIELDS) {
        let [id, shown, uid, state, exit, submitted, start, end, nodes, name] = record else { continue };
        let id = id.trim();
        let job = id.parse().map_err(|_| format!("'{}' is no job", railgate_text::clip(id, 40)))?;
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

/// `1042_3`, `1042_[3-9%2]`; `None` for what is no member of an array, and for a list that Slurm has cut.
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
    fn a_name_cannot_speak_for_another_job() {
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
        fn no_answer_makes_it_panic(text in "([0-9]{1,12}|_|\\[|7|:|\n|é|-){0,40}") {
            let _ = listed(&text, "7");
        }
    }
}
