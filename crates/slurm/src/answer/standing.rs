//! Answers about many jobs at once. In `scontrol show job` a job's name can hold a line that looks like the record of
//! another user's job, so only fields that users cannot write are asked for here, or fields between marks that they cannot guess.

use std::collections::BTreeMap;

/// What slurmctld knows of a job, as far as users cannot write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobStanding {
    /// `COMPLETED`, `COMPLETING`: one word.
    pub state: String,
    /// How often it was started again.
    pub restarts: u32,
}

/// squeue pads and cuts each field to its width.
pub(crate) const STANDING_FORMAT: &str = "JobID:12,State:24,RestartCnt:12";
const WIDTHS: [usize; 3] = [12, 24, 12];

/// Reads `squeue -O`, by numbers of jobs.
pub(crate) fn standings(text: &[u8]) -> Result<BTreeMap<u32, JobStanding>, String> {
    const RECORD: usize = WIDTHS[0] + WIDTHS[1] + WIDTHS[2] + 1;
    let bad = |record: &[u8]| {
        let shown = railgate_text::clip(&String::from_utf8_lossy(record), 80);
        format!("'{shown}' is no number, state and restarts of a job")
    };
    text.chunks(RECORD).map(|record| standing(record, RECORD).ok_or_else(|| bad(record))).collect()
}

fn standing(record: &[u8], length: usize) -> Option<(u32, JobStanding)> {
    let line = std::str::from_utf8(record).ok()?.strip_suffix('\n')?;
    if record.len() != length || !line.is_ascii() {
        return None;
    }
    let (id, rest) = line.split_at(WIDTHS[0]);
    let (state, restarts) = rest.split_at(WIDTHS[1]);
    let state = state.trim_end();
    let is_word = !state.is_empty() && state.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
    let restarts = restarts.trim_end().parse().ok()?;
    Some((id.trim_end().parse().ok()?, JobStanding { state: is_word.then(|| state.to_owned())?, restarts }))
}

/// Reads `sacct -p --delimiter=MARK -o JobIDRaw,AdminComment`, by numbers of jobs.
pub(crate) fn accounted(text: &str, mark: &str) -> Result<BTreeMap<u32, String>, String> {
    let mut fields = text.split(mark);
    let mut found = BTreeMap::new();
    while let (Some(id), Some(comment)) = (fields.next(), fields.next()) {
        let number = id.trim_start_matches('\n').parse::<u32>();
        let number = number.map_err(|_| format!("'{}' is no job", railgate_text::clip(id, 40)))?;
        found.insert(number, comment.to_owned());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(id: &str, state: &str, restarts: &str) -> String {
        format!("{id:<12}{state:<24}{restarts:<12}\n")
    }

    #[test]
    fn each_job_has_a_record_of_one_width() {
        let text = line("7", "COMPLETED", "0") + &line("12", "NODE_FAIL", "2");
        let found = standings(text.as_bytes()).unwrap();
        assert_eq!(found[&7], JobStanding { state: "COMPLETED".to_owned(), restarts: 0 });
        assert_eq!(found[&12], JobStanding { state: "NODE_FAIL".to_owned(), restarts: 2 });
        assert_eq!(standings(b"").unwrap().len(), 0);
        for broken in [&text[..40], &text[1..], "\n", &line("7", "RUNNING 8", "0"), &line("7", "", "0")] {
            assert!(standings(broken.as_bytes()).is_err(), "{broken:?}");
        }
    }

    #[test]
    fn a_comment_cannot_speak_for_another_job() {
        let mark = "0123456789abcdef";
        let theirs = "x|\n8|forged|\n8,forged";
        let text = format!("7{mark}{theirs}{mark}\n9{mark}{mark}\n");
        let found = accounted(&text, mark).unwrap();
        assert_eq!(
            found.iter().map(|(id, text)| (*id, text.as_str())).collect::<Vec<_>>(),
            [(7, theirs), (9, "")]
        );
        assert_eq!(accounted("", mark).unwrap().len(), 0);
        assert!(accounted(&format!("7+0{mark}x{mark}\n"), mark).is_err());
    }

    proptest! {
        #[test]
        fn no_answer_makes_it_panic(text in "([0-9]{1,12}| {1,24}|RUNNING|\n|é){0,40}") {
            let _ = (standings(text.as_bytes()), accounted(&text, "7"));
        }
    }
}
