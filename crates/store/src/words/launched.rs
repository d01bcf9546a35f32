//! Restarts by `railgate launch` inside an attempt, from the report of the node of the batch script.

use railgate_text::clip;
use serde::{Deserialize, Serialize};

use super::super::bounded::{Few, Short};

/// Maximum number of starts of an attempt that are read.
pub(super) const MOST_STARTS: usize = 64;
/// Maximum number of reasons, and their length, characters.
const MOST_REASONS: usize = 4;
const REASON: usize = 120;

/// Restarts of the program inside an attempt, as `railgate launch` reports them: self-reported by the job's owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Restarts {
    /// Number of starts after the first.
    pub count: usize,
    /// Why the first of them were made.
    pub reasons: Vec<String>,
}

impl Restarts {
    /// Whether it is within the limits of a reply.
    pub(super) fn is_bounded(&self) -> bool {
        let short =
            |text: &String| text.chars().count() <= REASON && text.chars().all(railgate_text::is_printable);
        self.count < MOST_STARTS && self.reasons.len() <= MOST_REASONS && self.reasons.iter().all(short)
    }
}

#[derive(Deserialize)]
pub(super) struct PartLaunched {
    #[serde(default)]
    starts: Few<PartStart, MOST_STARTS>,
}

#[derive(Deserialize)]
struct PartStart {
    #[serde(default)]
    why: Option<Short>,
}

impl PartLaunched {
    /// The starts after the first, each with the reason for which the start before it ended.
    pub(super) fn restarts(&self) -> Restarts {
        let why = |start: &PartStart| clip(start.why.as_ref().map_or("", |why| &why.0), REASON);
        let count = self.starts.0.len().saturating_sub(1);
        Restarts { count, reasons: self.starts.0.iter().take(count.min(MOST_REASONS)).map(why).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restarts(starts: &str) -> Restarts {
        let part: PartLaunched = serde_json::from_str(&format!(r#"{{"starts":[{starts}]}}"#)).unwrap();
        let restarts = part.restarts();
        assert!(restarts.is_bounded());
        restarts
    }

    #[test]
    fn every_start_after_the_first_has_the_reason_of_the_end_before() {
        assert_eq!(restarts(""), Restarts::default());
        assert_eq!(restarts(r#"{"why":"done"}"#), Restarts::default());
        let one = restarts(r#"{"why":"n2 is left out"},{"why":null}"#);
        assert_eq!((one.count, one.reasons), (1, vec!["n2 is left out".to_owned()]));
        assert_eq!(serde_json::from_str::<PartLaunched>("{}").unwrap().restarts(), Restarts::default());
        let long = format!(r#"{{"why":"\u001b[2J{}"}}"#, "x".repeat(9000));
        let many = restarts(&vec![long; 900].join(","));
        assert_eq!((many.count, many.reasons.len()), (MOST_STARTS - 1, MOST_REASONS));
        assert!(!Restarts { count: 1, reasons: vec!["\u{1b}".to_owned()] }.is_bounded());
    }
}
