//! The report as JSON (schema 1, `docs/report.md`).

use std::io::{self, Write};

use crate::JobReport;
use crate::text::MOST_NODES;

/// Levels that are indented: report, attempts, attempt, nodes. Below them each node is one line, since a job
/// can have many.
const INDENTED: usize = 4;

/// Writes a report as JSON in pieces, because the text of a large job needs more memory than its report.
///
/// # Errors
/// An error of `out`.
pub fn json(report: &JobReport, out: &mut dyn Write) -> io::Result<()> {
    let nodes = report.attempts.iter().map(|attempt| attempt.nodes.len()).max();
    let most = if nodes > Some(MOST_NODES) { INDENTED } else { usize::MAX };
    railgate_text::write_json(report, most, out)
}

#[cfg(test)]
mod tests {
    use railgate_node_report::testing::{job, part};

    use super::*;
    use crate::testing::{merged, story};

    #[test]
    fn report_is_written_in_pieces() {
        /// Bytes accepted until an error, and the largest single write.
        struct Pipe(usize, usize);
        impl Write for Pipe {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let taken = bytes.len().min(self.0);
                (self.0, self.1) = (self.0 - taken, self.1.max(bytes.len()));
                Ok(taken)
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (report, mut whole) = (story(), Vec::new());
        json(&report, &mut whole).unwrap();
        assert_eq!(whole, format!("{}\n", serde_json::to_string_pretty(&report).unwrap()).into_bytes());
        let mut pipe = Pipe(whole.len(), 0);
        json(&report, &mut pipe).unwrap();
        assert!(pipe.0 == 0 && pipe.1 < whole.len() / 2, "{} of {} at once", pipe.1, whole.len());
        assert_eq!(json(&report, &mut Pipe(100, 0)).unwrap_err().kind(), io::ErrorKind::WriteZero);
    }

    #[test]
    fn terminal_control_characters_are_escaped_and_the_value_is_unchanged() {
        let hostile = "a\u{1b}[2J\u{7f}\u{9b}31m\u{85}\u{61c}\u{200b}\u{200f}\u{202e}gnp\u{2028}\u{2029}\u{2060}\u{2067}\
                       \u{feff}\u{fffb}\u{e0041}\u{ad} é 漢 🚀 \" \\";
        let report = JobReport { user: hostile.to_owned(), ..story() };
        let mut written = Vec::new();
        json(&report, &mut written).unwrap();
        let text = String::from_utf8(written).unwrap();
        let acts = |c: char| {
            c != '\n' && (c.is_control() || "\u{202e}\u{200b}\u{2028}\u{feff}\u{e0041}".contains(c))
        };
        assert!(!text.chars().any(acts), "{text:?}");
        assert!(
            text.contains(
                r"a\u001b[2J\u007f\u009b31m\u0085\u061c\u200b\u200f\u202egnp\u2028\u2029\u2060\u2067"
            ),
            "{text}"
        );
        assert!(text.contains(r#"\ufeff\ufffb\udb40\udc41\u00ad é 漢 🚀 \" \\"#), "{text}");
        assert_eq!(serde_json::from_str::<JobReport>(&text).unwrap().user, hostile);
    }

    #[test]
    fn each_node_is_one_line() {
        let nodes: Vec<_> = (0..40).map(|n| part(&format!("n{n:03}"), &job(0..8), "", vec![], 0)).collect();
        let (report, mut whole) = (merged(nodes, vec![], None), Vec::new());
        json(&report, &mut whole).unwrap();
        assert!(serde_json::from_slice::<JobReport>(&whole).is_ok_and(|read| read == report));
        let text = String::from_utf8(whole).unwrap();
        let named = |line: &&str| line.contains("\"node\":\"n0");
        assert_eq!(text.lines().filter(named).count(), 40);
        assert!(text.lines().any(|line| line == "  \"attempts\": ["), "{text}");
        let node = text.lines().find(named).unwrap().trim().trim_end_matches(',');
        assert_eq!(
            serde_json::from_str::<railgate_node_report::NodeReport>(node).unwrap(),
            report.attempts[0].nodes[0]
        );
    }
}
