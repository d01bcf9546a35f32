use std::fmt::{self, Write as _};
use std::ops::Deref;

use crate::{Only, Printable};

/// Output of several lines. Only this type starts and ends lines, so foreign text in one line cannot forge another. It
/// is the only type that the programs write to a terminal.
///
/// ```
/// use railgate_text::{Lines, put};
/// let mut lines = Lines::new();
/// put!(lines, "{}: fit", "gn1\x1b[2J\nfail  gpu-lost");
/// assert_eq!(&*lines, "gn1?[2J?fail  gpu-lost: fit\n");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines(String);

/// Adds a line: `put!(lines, "{node}: {why}")`.
#[macro_export]
macro_rules! put {
    ($lines:expr, $($words:tt)+) => { $lines.line(::std::format_args!($($words)+)) };
}

impl Lines {
    /// Creates an empty output.
    pub const fn new() -> Self {
        Lines(String::new())
    }

    /// Adds a line, without blanks at its end. [`put!`] is shorter.
    pub fn line(&mut self, words: fmt::Arguments<'_>) {
        let start = self.0.len();
        // Writing to a String cannot fail.
        let _ = write!(self.0, "{}", Printable(words));
        let end = self.0.trim_end_matches(' ').len().max(start);
        self.0.truncate(end);
        self.0.push('\n');
    }

    /// Adds an empty line.
    pub fn blank(&mut self) {
        self.0.push('\n');
    }

    /// Adds all lines of another output.
    pub fn add(&mut self, more: &Lines) {
        self.0.push_str(&more.0);
    }

    /// Creates output from text of the program itself, with its line breaks. Only a literal is accepted.
    pub fn own(text: &'static str) -> Self {
        Lines::kept(text)
    }

    /// Creates output from a whole document with its line breaks and tabs: a script, a page, a file for Slurm. Foreign
    /// text in it can start a line, so use this only for documents that are shown as such, or with all fields
    /// escaped.
    pub fn kept(text: &str) -> Self {
        let mut kept = String::with_capacity(text.len() + 1);
        // Writing to a String cannot fail.
        let _ = Only { to: &mut kept, document: true }.write_str(text);
        if !kept.ends_with('\n') {
            kept.push('\n');
        }
        Lines(kept)
    }

    /// Formats rows with aligned columns, separated by two spaces, after an indent.
    pub fn table<R: AsRef<[C]>, C: AsRef<str>>(rows: &[R], indent: &str) -> Self {
        let columns = rows.iter().map(|row| row.as_ref().len()).max().unwrap_or(0);
        let mut widths = vec![0; columns];
        for row in rows {
            for (width, cell) in widths.iter_mut().zip(row.as_ref()) {
                *width = cell.as_ref().chars().count().max(*width);
            }
        }
        let mut lines = Lines::new();
        for row in rows {
            let mut line = indent.to_owned();
            for (cell, width) in row.as_ref().iter().zip(&widths) {
                let _ = write!(line, "{:<width$}  ", cell.as_ref());
            }
            lines.line(format_args!("{line}"));
        }
        lines
    }
}

impl Deref for Lines {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<[u8]> for Lines {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl From<Lines> for String {
    fn from(lines: Lines) -> String {
        lines.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a", "b"], ["long", "c"]];
        assert_eq!(&*Lines::table(&rows, ""), "a     b\nlong  c\n");
        assert_eq!(&*Lines::table(&rows, "  "), "  a     b\n  long  c\n");
        assert_eq!(&*Lines::table(&[vec!["a", "b"], vec![], vec!["c"]], ""), "a  b\n\nc\n");
    }

    #[test]
    fn a_document_keeps_only_line_breaks_and_tabs() {
        assert_eq!(&*Lines::kept("#!/bin/sh\n\techo \x1b[31m\r"), "#!/bin/sh\n\techo ?[31m?\n");
        assert_eq!(&*Lines::own("a\n"), "a\n");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn foreign_text_never_adds_a_line(a in any::<String>(), b in any::<String>()) {
            let mut lines = Lines::new();
            put!(lines, "{a}: {b}");
            lines.add(&Lines::table(&[[&a, &b], [&b, &a]], "  "));
            prop_assert_eq!(lines.matches('\n').count(), 3);
            prop_assert!(lines.chars().all(|c| c == '\n' || crate::is_printable(c)));
            let kept = Lines::kept(&a);
            prop_assert!(kept.chars().all(|c| "\n\t".contains(c) || crate::is_printable(c)));
        }
    }
}
