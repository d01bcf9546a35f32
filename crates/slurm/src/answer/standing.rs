//! Queries about many jobs at once. In `scontrol show job` a job's name can contain a line that imitates the record
//! of another user's job. So these queries only ask for fields that users cannot write, or separate fields with marks
//! that users cannot guess.

use std::collections::BTreeMap;

use super::{UnixSeconds, columns, time};

/// State of a job in slurmctld, from fields that users cannot write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobStanding {
    /// `COMPLETED`, `COMPLETING`: one word.
    pub state: String,
    /// How often it was restarted.
    pub restarts: u32,
    /// Time of submission or, after a requeue, of the last one.
    pub submitted: Option<UnixSeconds>,
    /// Start time; for a pending job the expected start.
    pub start: Option<UnixSeconds>,
    /// End time; for a job that has not ended, start plus time limit.
    pub end: Option<UnixSeconds>,
}

pub(crate) const STANDING_FORMAT: &str =
    "JobID:12,State:24,RestartCnt:12,SubmitTime:20,StartTime:20,EndTime:20";
const WIDTHS: [usize; 6] = [12, 24, 12, 20, 20, 20];

/// Parses `squeue -O`; the keys are job ids.
pub(crate) fn standings(text: &[u8]) -> Result<BTreeMap<u32, JobStanding>, String> {
    let record: usize = WIDTHS.iter().sum::<usize>() + 1;
    let bad = |record: &[u8]| {
        let shown = railgate_text::clip(&String::from_utf8_lossy(record), 80);
        format!("'{shown}' is not an id, state, restarts and times of a job")
    };
    text.chunks(record).map(|line| standing(line, record).ok_or_else(|| bad(line))).collect()
}

fn standing(record: &[u8], length: usize) -> Option<(u32, JobStanding)> {
    let line = std::str::from_utf8(record).ok()?.strip_suffix('\n')?;
    if record.len() != length || !line.is_ascii() {
        return None;
    }
    let ([id, state, restarts, submitted, start, end], _) = columns(line, WIDTHS);
    let is_word = !state.is_empty() && state.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
    let standing = JobStanding {
        state: is_word.then(|| state.to_owned())?,
        restarts: restarts.parse().ok()?,
        submitted: time(submitted),
        start: time(start),
        end: time(end),
    };
    Some((id.parse().ok()?, standing))
}

/// Parses `sacct -p --delimiter=MARK -o JobIDRaw,AdminComment`; the keys are job ids.
pub(crate) fn accounted(text: &str, mark: &str) -> Result<BTreeMap<u32, String>, String> {
    let mut fields = text.split(mark);
    let mut found = BTreeMap::new();
    while let (Some(id), Some(comment)) = (fields.next(), fields.next()) {
        let number = id.trim_start_matches('\n').parse::<u32>();
        let number = number.map_err(|_| format!("'{}' is not a job", railgate_text::clip(id, 40)))?;
        found.insert(number, comment.to_owned());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(id: &str, state: &str, restarts: &str) -> String {
        let [submitted, start, end] = ["2026-11-21T00:59:59", "2026-11-21T01:00:00", "N/A"];
        format!("{id:<12}{state:<24}{restarts:<12}{submitted:<20}{start:<20}{end:<20}\n")
    }

    #[test]
    fn records_of_fixed_width_are_parsed() {
        let text = line("7", "COMPLETED", "0") + &line("12", "NODE_FAIL", "2");
        let found = standings(text.as_bytes()).unwrap();
        let times = (found[&7].submitted, found[&7].start, found[&7].end);
        assert_eq!((found[&7].state.as_str(), found[&7].restarts), ("COMPLETED", 0));
        assert_eq!(times, (Some(1_795_222_799), Some(1_795_222_800), None));
        assert_eq!((found[&12].state.as_str(), found[&12].restarts), ("NODE_FAIL", 2));
        assert_eq!(standings(b"").unwrap().len(), 0);
        for broken in [&text[..40], &text[1..], "\n", &line("7", "RUNNING 8", "0"), &line("7", "", "0")] {
            assert!(standings(broken.as_bytes()).is_err(), "{broken:?}");
        }
    }

    #[test]
    fn a_comment_cannot_forge_a_record_of_another_job() {
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
        fn arbitrary_text_does_not_panic(text in "([0-9]{1,12}| {1,24}|RUNNING|\n|é){0,40}") {
            let _ = (standings(text.as_bytes()), accounted(&text, "7"));
        }
    }
}
