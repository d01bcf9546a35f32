//! Restarts by `railgate launch` inside an attempt, from the report of the node of the batch script.

use serde::Deserialize;

use super::super::bounded::{Few, Short};
use super::sentence;

/// Maximum number of starts of an attempt that are read.
pub(super) const MOST_STARTS: usize = 64;

#[derive(Deserialize)]
pub(super) struct PartLaunched {
    starts: Few<PartStart, MOST_STARTS>,
}

#[derive(Deserialize)]
struct PartStart {
    #[serde(default)]
    why: Option<Short>,
}

impl PartLaunched {
    /// Why each start after the first was made: the reason for which the start before it ended.
    pub(super) fn restarts(&self) -> Vec<String> {
        let why = |start: &PartStart| sentence(start.why.as_ref().map_or("", |why| &why.0));
        let before = self.starts.0.len().saturating_sub(1);
        self.starts.0.iter().take(before).map(why).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restarts(starts: &str) -> Vec<String> {
        serde_json::from_str::<PartLaunched>(&format!(r#"{{"starts":[{starts}]}}"#)).unwrap().restarts()
    }

    #[test]
    fn every_start_after_the_first_has_the_reason_of_the_end_before() {
        assert_eq!(restarts(""), [""; 0]);
        assert_eq!(restarts(r#"{"why":"done"}"#), [""; 0]);
        assert_eq!(restarts(r#"{"why":"n2 is left out"},{"why":null}"#), ["n2 is left out"]);
        let long = format!(r#"{{"why":"\u001b[2J{}"}}"#, "x".repeat(9000));
        let many = restarts(&vec![long; 900].join(","));
        assert_eq!(many.len(), MOST_STARTS - 1);
        assert!(many.iter().all(|why| why.chars().count() <= 300 && !why.contains('\u{1b}')));
    }
}
