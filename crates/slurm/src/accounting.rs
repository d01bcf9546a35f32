//! AdminComment of jobs that have ended: slurmctld no longer changes it, the accounting database does.

use crate::admin_comment::with_field;
use crate::client::MAX_ADMIN_COMMENT;
use crate::{Client, JobRef, SlurmError};

/// Longest command in one batch, bytes: a sacctmgr that is built without readline cuts its input lines at 4095 and
/// runs the rest of a longer one as another command.
const MAX_COMMAND: usize = 3500;

/// Most lines of a batch that are written by one process each: those that are too long for the batch, and those that
/// it did not take.
const ALONE: usize = 100;

/// Outcome for one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// Written.
    Written,
    /// The field had this text already.
    Same,
    /// The database does not have the job yet.
    Absent,
    /// The rest of the comment could not be kept byte for byte, so nothing was written.
    Kept,
    /// sacctmgr received it, but the database does not have it.
    NotTaken,
}

/// A line for the AdminComment of a job that has ended.
#[derive(Clone, Debug)]
pub struct Line {
    /// The job's number.
    pub job: u32,
    /// How Slurm's commands name it.
    pub name: JobRef,
    /// Text for our field.
    pub text: String,
}

/// Sets our field in the AdminComment of jobs that have ended, in the accounting database; everything else in it
/// stays. The outcomes are in the order of `lines`. Any number of lines takes one query before, one query after and
/// one process that writes, except for comments that are too long for it.
///
/// # Errors
/// [`SlurmError`]: the site has no accounting, or the database does not answer.
pub fn note_in_accounting(client: &Client, lines: &[Line]) -> Result<Vec<Noted>, SlurmError> {
    let names: Vec<&JobRef> = lines.iter().map(|line| &line.name).collect();
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let before = client.accounted_comments(&names)?;
    let mut keeps_capitals = None;
    let mut noted = Vec::new();
    let mut wanted: Vec<(usize, String)> = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let Some(comment) = before.get(&line.job) else {
            noted.push(Noted::Absent);
            continue;
        };
        let mut change = changed(comment, &line.text);
        if change.as_ref().is_some_and(|change| change != comment && has_capitals(change)) {
            let keeps = match keeps_capitals {
                Some(keeps) => keeps,
                None => *keeps_capitals.insert(client.accounting_keeps_capitals()?),
            };
            if !keeps {
                let of_others = changed(comment, "").filter(|text| !has_capitals(text));
                change = change.filter(|_| of_others.is_some()).map(|text| text.to_ascii_lowercase());
            }
        }
        noted.push(match change {
            None => Noted::Kept,
            Some(change) if change == *comment => Noted::Same,
            Some(change) => {
                wanted.push((index, change));
                Noted::NotTaken
            }
        });
    }
    write(client, lines, &wanted, &mut noted)?;
    Ok(noted)
}

/// Writes the changes, then reads back which of them the database has.
fn write(
    client: &Client,
    lines: &[Line],
    wanted: &[(usize, String)],
    noted: &mut [Noted],
) -> Result<(), SlurmError> {
    let read_back = |noted: &mut [Noted]| -> Result<Vec<(usize, String)>, SlurmError> {
        let names: Vec<&JobRef> = wanted.iter().map(|(index, _)| &lines[*index].name).collect();
        let after = client.accounted_comments(&names)?;
        let mut left = Vec::new();
        for (index, change) in wanted {
            if after.get(&lines[*index].job) == Some(change) {
                noted[*index] = Noted::Written;
            } else {
                left.push((*index, change.clone()));
            }
        }
        Ok(left)
    };
    let command = |(index, change): &(usize, String)| {
        // The command needs no quoting: `changed` refuses comments with a quote, backslash or line break.
        let command = format!("modify job where jobid={} set AdminComment=\"{change}\"", lines[*index].name);
        (command.len() <= MAX_COMMAND).then_some(command)
    };
    let commands: Vec<String> = wanted.iter().filter_map(command).collect();
    if !commands.is_empty() {
        match client.set_accounted_comments(&commands) {
            Err(why) if why.no_answer() => return Err(why),
            // Not fatal: the comments that the database returns below decide.
            Err(why) => tracing::debug!("sacctmgr: {why}"),
            Ok(()) => {}
        }
    }
    if wanted.is_empty() {
        return Ok(());
    }
    let left = if commands.is_empty() { wanted.to_vec() } else { read_back(noted)? };
    if left.is_empty() {
        return Ok(());
    }
    let mut last = Ok(());
    for (index, change) in left.iter().take(ALONE) {
        last = client.set_accounted_comment(&lines[*index].name, change);
        if last.as_ref().is_err_and(SlurmError::no_answer) {
            break;
        }
    }
    read_back(noted)?;
    // If none was taken, the caller needs the reason.
    if noted.iter().all(|noted| *noted == Noted::NotTaken) { last } else { Ok(()) }
}

fn has_capitals(text: &str) -> bool {
    text.contains(|c: char| c.is_ascii_uppercase())
}

/// Returns the new comment; `None` if sacctmgr would change the text of others: it turns quotes into backticks and
/// cuts at a line break.
fn changed(comment: &str, text: &str) -> Option<String> {
    let passes = |c: char| (c.is_ascii_graphic() || c == ' ') && !matches!(c, '"' | '\'' | '\\');
    // sacct ends its output with a line feed, so a trailing blank cannot be distinguished from none.
    let kept = comment.len() <= MAX_ADMIN_COMMENT && comment.chars().all(passes);
    let plain: String = text.chars().map(|c| if passes(c) { c } else { '?' }).collect();
    if kept { with_field(comment, &plain) } else { None }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_comment_that_sacctmgr_would_change_is_left_alone() {
        let ours = "completed, MFU 41.0 %";
        assert_eq!(changed("", ours).unwrap(), "railgate: completed, MFU 41.0 %;");
        assert_eq!(
            changed("JS1:H4sIAAAA+/= railgate: attempt 0 died;", ours).unwrap(),
            "JS1:H4sIAAAA+/= railgate: completed, MFU 41.0 %;"
        );
        for theirs in ["{\"a\": 1}", "it's", "a\\b", "two\nlines", "é"] {
            assert_eq!(changed(theirs, ours), None, "{theirs}");
        }
        assert_eq!(changed("", "rank's \"loss\"; é").unwrap(), "railgate: rank?s ?loss?, ?;");
    }

    proptest! {
        #[test]
        fn text_of_others_is_kept_byte_for_byte(
            before in "(JS1:[A-Za-z0-9+/=]{0,40}|[a-z ]{0,9}|x;y|)",
            after in "( [a-z=,:]{0,12}|)",
            old in "(railgate: [a-z ,]{0,20};|)",
            text in ".{0,60}",
        ) {
            let comment = match (before.is_empty() || before.ends_with(' '), old.is_empty()) {
                (false, false) => format!("{before} {old}{after}"),
                _ => format!("{before}{old}{after}"),
            };
            let once = changed(&comment, &text).unwrap();
            prop_assert!(once.starts_with(&before), "{once:?}");
            if !old.is_empty() {
                prop_assert!(once.ends_with(&after), "{once:?}");
            }
            prop_assert_eq!(once.matches("railgate:").count(), 1 + text.matches("railgate:").count());
            prop_assert_eq!(changed(&once, &text).unwrap(), once.clone());
        }
    }
}
