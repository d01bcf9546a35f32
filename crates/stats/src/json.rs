//! The report for programs: JSON, schema 1, which `docs/report.md` describes.

use std::io::{self, BufWriter, Write};

use serde::Serialize as _;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter, Serializer};

use crate::JobReport;
use crate::text::MOST_NODES;

/// Bytes that go out at once.
const PIECE: usize = 64 << 10;
/// Of a job of many nodes each node is one line: the report, its attempts, an attempt and its nodes are indented.
const INDENTED: usize = 4;

/// Writes it piece by piece: the text of a large job is larger than its report in memory.
///
/// # Errors
/// `out` takes no more.
pub fn json(report: &JobReport, out: &mut dyn Write) -> io::Result<()> {
    let nodes = report.attempts.iter().map(|attempt| attempt.nodes.len()).max();
    let most = if nodes > Some(MOST_NODES) { INDENTED } else { usize::MAX };
    // Here and not further out: a million little words should not each be a call through `dyn`.
    let mut out = BufWriter::with_capacity(PIECE, out);
    report.serialize(&mut Serializer::with_formatter(&mut out, Shallow::new(most)))?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Indents what lies no deeper than this.
struct Shallow {
    most: usize,
    depth: usize,
    pretty: PrettyFormatter<'static>,
}

impl Shallow {
    fn new(most: usize) -> Self {
        Shallow { most, depth: 0, pretty: PrettyFormatter::new() }
    }

    fn is_indented(&self) -> bool {
        self.depth <= self.most
    }
}

impl Formatter for Shallow {
    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.depth += 1;
        if self.is_indented() { self.pretty.begin_array(out) } else { CompactFormatter.begin_array(out) }
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if self.is_indented() {
            self.pretty.begin_array_value(out, first)
        } else {
            CompactFormatter.begin_array_value(out, first)
        }
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        if self.is_indented() {
            self.pretty.end_array_value(out)
        } else {
            CompactFormatter.end_array_value(out)
        }
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        let written =
            if self.is_indented() { self.pretty.end_array(out) } else { CompactFormatter.end_array(out) };
        self.depth -= 1;
        written
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.depth += 1;
        if self.is_indented() { self.pretty.begin_object(out) } else { CompactFormatter.begin_object(out) }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if self.is_indented() {
            self.pretty.begin_object_key(out, first)
        } else {
            CompactFormatter.begin_object_key(out, first)
        }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        if self.is_indented() {
            self.pretty.begin_object_value(out)
        } else {
            CompactFormatter.begin_object_value(out)
        }
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        if self.is_indented() {
            self.pretty.end_object_value(out)
        } else {
            CompactFormatter.end_object_value(out)
        }
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        let written =
            if self.is_indented() { self.pretty.end_object(out) } else { CompactFormatter.end_object(out) };
        self.depth -= 1;
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{job, merged, part, story};

    #[test]
    fn it_goes_out_piece_by_piece() {
        /// How much it takes, and the most that came at once.
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
    fn of_many_nodes_each_is_one_line() {
        let nodes: Vec<_> = (0..40).map(|n| part(&format!("n{n:03}"), &job(0..8), "", vec![], 0)).collect();
        let (report, mut whole) = (merged(nodes, vec![], None), Vec::new());
        json(&report, &mut whole).unwrap();
        assert!(serde_json::from_slice::<JobReport>(&whole).is_ok_and(|read| read == report));
        let text = String::from_utf8(whole).unwrap();
        let named = |line: &&str| line.contains("\"node\":\"n0");
        assert_eq!(text.lines().filter(named).count(), 40);
        assert!(text.lines().any(|line| line == "  \"attempts\": ["), "{text}");
        let node = text.lines().find(named).unwrap().trim().trim_end_matches(',');
        assert_eq!(serde_json::from_str::<crate::NodeReport>(node).unwrap(), report.attempts[0].nodes[0]);
    }
}
