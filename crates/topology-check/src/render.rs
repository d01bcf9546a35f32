use std::fmt;

use railgate_rails::NcclVersion;
use railgate_text::{Lines, put};
use serde::Serialize;

use super::{Effect, TopologyCheck, TopologyProblem};

/// The JSON output of `railgate rails --check`.
#[derive(Clone, Debug, Serialize)]
pub struct TopologyView<'a> {
    /// Schema version of this object.
    pub schema: u32,
    /// Path of the file.
    pub file: &'a str,
    /// The machine with which it was compared.
    pub node: &'a str,
    /// NCCL release; null for all.
    pub nccl: Option<NcclVersion>,
    /// NCCL accepts the file, and it agrees with this machine, as far as that could be determined.
    pub right: bool,
    /// The result of the check.
    #[serde(flatten)]
    pub check: &'a TopologyCheck,
}

impl<'a> TopologyView<'a> {
    /// Combines file, machine and result.
    pub fn new(file: &'a str, node: &'a str, nccl: Option<NcclVersion>, check: &'a TopologyCheck) -> Self {
        TopologyView { schema: 1, file, node, nccl, right: check.right(), check }
    }
}

impl TopologyCheck {
    /// Returns whether NCCL accepts the file and it agrees with the machine, as far as that could be determined.
    pub fn right(&self) -> bool {
        self.worst().is_none_or(|worst| worst == Effect::Note)
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Effect::Refused => "refused",
            Effect::Misled => "misled",
            Effect::Ignored => "ignored",
            Effect::Note => "note",
        })
    }
}

impl TopologyProblem {
    /// Returns line and column, for example `3:17`; empty for the whole file.
    pub fn place(&self) -> String {
        if self.line == 0 { String::new() } else { format!("{}:{}", self.line, self.column) }
    }
}

impl TopologyView<'_> {
    /// Renders one line per problem, `file:line:column: effect: what; fix` as compilers do, then a summary.
    pub fn text(&self) -> Lines {
        let mut text = Lines::new();
        for problem in &self.check.problems {
            let place = problem.place();
            let colon = if place.is_empty() { "" } else { ":" };
            let fix = if problem.fix.is_empty() { String::new() } else { format!("; {}", problem.fix) };
            let nccl = if problem.nccl.is_empty() {
                String::new()
            } else {
                format!(" [NCCL {}]", problem.nccl.join(", "))
            };
            put!(text, "{}:{place}{colon} {}: {}{fix}{nccl}", self.file, problem.effect, problem.what);
        }
        for unknown in &self.check.unknown {
            put!(text, "{}: not compared: {unknown}", self.node);
        }
        let nccl = self.nccl.map_or_else(|| "NCCL".to_owned(), |version| format!("NCCL {version}"));
        let some = self.check.problems.iter().any(|p| p.effect == Effect::Refused && !p.nccl.is_empty());
        let whole = self.check.problems.iter().any(|p| p.effect == Effect::Refused && p.nccl.is_empty());
        match () {
            () if whole => put!(text, "{nccl} refuses this file: jobs with it fail at start"),
            () if some => {
                put!(text, "some releases of NCCL refuse this file: jobs with it fail at start there")
            }
            () if !self.right => put!(text, "{nccl} accepts this file, but it does not match {}", self.node),
            () if !self.check.unknown.is_empty() => {
                put!(text, "{nccl} accepts this file; whether it matches {} is not known", self.node);
            }
            () => put!(text, "{nccl} accepts this file, and it matches {}", self.node),
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use crate::check_topology;

    use super::*;

    fn said(text: &str, nccl: Option<NcclVersion>) -> String {
        let check = check_topology(text.as_bytes(), nccl, None);
        TopologyView::new("t.xml", "gn1", nccl, &check).text().into()
    }

    #[test]
    fn each_problem_has_a_line_and_a_summary_follows() {
        let now = Some(NcclVersion::new(2, 28, 9));
        assert_eq!(
            said("<system version=\"1\">\n\t</system>", now),
            "t.xml:2:1: refused: a tab where '<' should be\nNCCL 2.28.9 refuses this file: jobs with it fail at start\n"
        );
        let quotes = said("<system version='1'/>", None);
        assert!(
            quotes.contains("[NCCL before 2.21, 2.21 to 2.26]\nsome releases of NCCL refuse"),
            "{quotes}"
        );
        assert_eq!(said("<system version='1'/>", now), "NCCL 2.28.9 accepts this file, and it matches gn1\n");
        assert!(said("", now).starts_with("t.xml: ignored: no <system>"));
        assert!(!said("<system version=\"1\"><\x1b[2J/></system>", now).contains('\x1b'));
    }

    #[test]
    fn the_json_is_an_object_with_a_schema() {
        let check = check_topology(b"<system/>", None, None);
        let view = serde_json::to_value(TopologyView::new("t.xml", "gn1", None, &check)).unwrap();
        assert_eq!(
            (&view["schema"], &view["accepted"], &view["nccl"]),
            (&1.into(), &false.into(), &serde_json::Value::Null)
        );
        assert_eq!(view["problems"][0]["effect"], "refused");
        assert_eq!(view["problems"][0]["column"], 1);
    }
}
