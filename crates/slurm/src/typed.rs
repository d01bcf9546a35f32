//! Job ids as people type them: `1042`, `1042_2`, `1042_[1-4,8]`, `1042+1`, `1042.0`.

use std::fmt;
use std::str::FromStr;

/// Most ranges in a list of tasks.
const MAX_RANGES: usize = 10_000;

/// A job id as typed, without the step: a step has no report of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TypedJob {
    /// `1042`, which may also be the id of an array.
    Number(u32),
    /// `1042_2`
    Task(u32, u32),
    /// `1042_[1-4]`
    Tasks(u32, Tasks),
    /// `1042+1`: component 1 of the heterogeneous job 1042.
    Component(u32, u32),
}

impl FromStr for TypedJob {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let job = match text.split_once('.') {
            Some((job, step)) if is_step(step) => job,
            Some((_, step)) => return Err(format!("'{step}' is not a step: expected a number or batch")),
            None => text,
        };
        let number = |digits: &str| {
            let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            let number = plain.then(|| digits.parse().ok()).flatten();
            number.ok_or_else(|| "expected a job id: 1042, 1042_2, 1042_[1-4], 1042+1 or 1042.0".to_owned())
        };
        if let Some((array, task)) = job.split_once('_') {
            let list = task.strip_prefix('[').and_then(|list| list.strip_suffix(']'));
            return Ok(match list {
                Some(list) => TypedJob::Tasks(number(array)?, list.parse()?),
                None => TypedJob::Task(number(array)?, number(task)?),
            });
        }
        match job.split_once('+') {
            Some((leader, offset)) => Ok(TypedJob::Component(number(leader)?, number(offset)?)),
            None => number(job).map(TypedJob::Number),
        }
    }
}

fn is_step(text: &str) -> bool {
    let number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    number || matches!(text, "batch" | "extern" | "interactive")
}

impl fmt::Display for TypedJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TypedJob::Number(job) => write!(f, "{job}"),
            TypedJob::Task(array, task) => write!(f, "{array}_{task}"),
            TypedJob::Tasks(array, tasks) => write!(f, "{array}_[{tasks}]"),
            TypedJob::Component(leader, offset) => write!(f, "{leader}+{offset}"),
        }
    }
}

/// Tasks of an array: first, last and step of each range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tasks(Vec<(u32, u32, u32)>);

impl Tasks {
    /// The shortest list of these task indices.
    pub fn of(tasks: &[u32]) -> Self {
        let mut sorted = tasks.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let mut ranges: Vec<(u32, u32, u32)> = Vec::new();
        for task in sorted {
            match ranges.last_mut() {
                Some((_, last, _)) if last.checked_add(1) == Some(task) => *last = task,
                _ => ranges.push((task, task, 1)),
            }
        }
        Tasks(ranges)
    }

    /// Whether a task is in the list.
    pub fn contains(&self, task: u32) -> bool {
        let among = |(first, last, step): &(u32, u32, u32)| {
            (*first..=*last).contains(&task) && (task - first).is_multiple_of(*step)
        };
        self.0.iter().any(among)
    }

    /// The tasks in the order of the list.
    pub fn each(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().flat_map(|(first, last, step)| {
            (*first..=*last).step_by(usize::try_from(*step).unwrap_or(usize::MAX))
        })
    }
}

impl FromStr for Tasks {
    type Err = String;

    /// Parses `1-4,8,10-20:2`; the limit of concurrent tasks after `%` is ignored.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = |range: &str| {
            let range = crate::env::clean(range);
            format!("'{range}' is neither a task nor a range of tasks: expected 1-4,8 or 10-20:2")
        };
        let list = text.split_once('%').map_or(text, |(list, _)| list);
        let range = |range: &str| {
            let number = |digits: &str| {
                let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
                plain.then(|| digits.parse::<u32>().ok()).flatten()
            };
            let (ends, step) = match range.split_once(':') {
                Some((ends, step)) => (ends, number(step).filter(|step| *step > 0)?),
                None => (range, 1),
            };
            let (first, last) = ends.split_once('-').unwrap_or((ends, ends));
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some((first, last, step))
        };
        let ranges = list.split(',').take(MAX_RANGES).map(|one| range(one).ok_or_else(|| bad(one)));
        Ok(Tasks(ranges.collect::<Result<_, _>>()?))
    }
}

impl fmt::Display for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (first, last, step)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match (first == last, step) {
                (true, _) => write!(f, "{comma}{first}")?,
                (false, 1) => write!(f, "{comma}{first}-{last}")?,
                (false, step) => write!(f, "{comma}{first}-{last}:{step}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn typed(text: &str) -> Result<TypedJob, String> {
        text.parse()
    }

    #[test]
    fn every_form_of_job_id_is_parsed() {
        assert_eq!(typed("1042"), Ok(TypedJob::Number(1042)));
        for step in ["1042.0", "1042.17", "1042.batch", "1042.extern"] {
            assert_eq!(typed(step), Ok(TypedJob::Number(1042)), "{step}");
        }
        assert_eq!(typed("1042_2"), Ok(TypedJob::Task(1042, 2)));
        assert_eq!(typed("1042_2.0"), Ok(TypedJob::Task(1042, 2)));
        assert_eq!(typed("1042+1"), Ok(TypedJob::Component(1042, 1)));
        let Ok(TypedJob::Tasks(1042, tasks)) = typed("1042_[1-4,8,10-20:5%2]") else { panic!("no tasks") };
        assert_eq!(tasks.each().collect::<Vec<_>>(), [1, 2, 3, 4, 8, 10, 15, 20]);
        assert!(tasks.contains(8) && tasks.contains(15) && !tasks.contains(16) && !tasks.contains(5));
        assert_eq!(tasks.to_string(), "1-4,8,10-20:5");
        assert_eq!(Tasks::of(&[3, 1, 2, 9]).to_string(), "1-3,9");
    }

    #[test]
    fn invalid_job_ids_are_refused() {
        for text in [
            "",
            "x",
            "-1",
            "+1",
            "1042_",
            "1042_x",
            "1042_[",
            "1042_[]",
            "1042_[4-1]",
            "1042_[1-4:0]",
            "1042+",
            "1042.",
            "1042.x",
            "4294967296",
            "1042_1_2",
            "1042+1_2",
            "1042_[1,,2]",
            "1042_[+1]",
            "_1",
            "1 042",
        ] {
            assert!(typed(text).is_err(), "{text}");
        }
        // Hostile lengths and ranges allocate nothing.
        assert!(typed("1042_[0-4294967295]").is_ok());
    }

    proptest! {
        #[test]
        fn a_printed_job_id_parses_to_the_same(text in "[0-9]{1,4}(_[0-9]{1,3}|_\\[[0-9]{1,2}-[1-9][0-9]{2}(:[1-9])?\\]|\\+[0-9])?") {
            let job = typed(&text).unwrap();
            prop_assert_eq!(typed(&job.to_string()).unwrap(), job);
        }

        #[test]
        fn arbitrary_text_does_not_panic(text in "[0-9_+.,:%x\\[\\]é-]{0,20}") {
            let _ = typed(&text);
        }
    }
}
