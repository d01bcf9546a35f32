//! AdminComment of a job that has ended: slurmctld changes it no more, the accounting database does.

use crate::admin_comment::with_field;
use crate::client::MAX_ADMIN_COMMENT;
use crate::{Client, JobRef, SlurmError};

/// What became of a line for our field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// It stands there.
    Written,
    /// It stood there already.
    Same,
    /// The database has no such job yet.
    Absent,
    /// What others have written there cannot be kept byte for byte, so it is left as it is.
    Kept,
}

/// Sets our field in the AdminComment of a job that has ended, in the accounting database; everything else in it stays.
///
/// # Errors
/// [`SlurmError`]: the site has no accounting, or it does not answer.
pub fn note_in_accounting(client: &Client, job: &JobRef, text: &str) -> Result<Noted, SlurmError> {
    let Some(comment) = client.accounted_comment(job)? else { return Ok(Noted::Absent) };
    let Some(mut wanted) = changed(&comment, text) else { return Ok(Noted::Kept) };
    let has_capitals = |text: &str| text.contains(|c: char| c.is_ascii_uppercase());
    if wanted != comment && has_capitals(&wanted) && !client.accounting_keeps_capitals()? {
        if changed(&comment, "").is_none_or(|of_others| has_capitals(&of_others)) {
            return Ok(Noted::Kept);
        }
        wanted.make_ascii_lowercase();
    }
    if wanted == comment {
        return Ok(Noted::Same);
    }
    client.set_accounted_comment(job, &wanted).map(|()| Noted::Written)
}

/// `None` where sacctmgr would not pass on what others have written: it turns quotes into backticks, and its own
/// words end at a line's end.
fn changed(comment: &str, text: &str) -> Option<String> {
    let passes = |c: char| (c.is_ascii_graphic() || c == ' ') && !matches!(c, '"' | '\'' | '\\');
    // sacct ends what it prints with a line feed; a blank at the end cannot be told from none.
    let kept = comment.len() <= MAX_ADMIN_COMMENT && comment.chars().all(passes);
    let plain: String = text.chars().map(|c| if passes(c) { c } else { '?' }).collect();
    if kept { with_field(comment, &plain) } else { None }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_sacctmgr_would_change_is_left_alone() {
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
        fn other_peoples_bytes_stay(
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
