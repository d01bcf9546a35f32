use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// One thing that is wrong with a configuration file, with the place it is at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    file: PathBuf,
    message: String,
    place: Option<Place>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    line: usize,
    column: usize,
    text: String,
    width: usize,
}

impl Problem {
    pub(super) fn at(
        file: &Path,
        text: &str,
        span: Option<Range<usize>>,
        message: impl Into<String>,
    ) -> Self {
        Problem {
            file: file.to_owned(),
            message: message.into(),
            place: span.map(|span| Place::of(text, span)),
        }
    }

    /// The line, from 1, where the problem has one.
    pub fn line(&self) -> Option<usize> {
        self.place.as_ref().map(|place| place.line)
    }

    /// One line, for a log.
    pub(super) fn line_text(&self) -> String {
        match &self.place {
            Some(place) => {
                format!("{}:{}:{}: {}", self.file.display(), place.line, place.column, self.message)
            }
            None => self.to_string(),
        }
    }

    /// What is wrong, without the place.
    pub fn message(&self) -> &str {
        &self.message
    }
}

/// Line number of a byte offset, from 1.
pub(super) fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count() + 1
}

impl Place {
    fn of(text: &str, span: Range<usize>) -> Self {
        let start = span.start.min(text.len());
        let before = text.get(..start).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let line_text = text.get(line_start..).unwrap_or_default().lines().next().unwrap_or_default();
        let column = before.get(line_start..).unwrap_or_default().chars().count();
        let marked = text.get(start..span.end.min(text.len())).unwrap_or_default();
        let room = line_text.chars().count().saturating_sub(column);
        let width = marked.lines().next().unwrap_or_default().chars().count().clamp(1, room.max(1));
        Place { line: line_of(text, start), column: column + 1, text: line_text.to_owned(), width }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(place) = &self.place else {
            return write!(f, "{}: {}", self.file.display(), self.message);
        };
        writeln!(f, "{}", self.line_text())?;
        let number = place.line.to_string();
        writeln!(f, "  {number} | {}", place.text)?;
        let (gutter, indent) = (" ".repeat(number.len()), " ".repeat(place.column - 1));
        write!(f, "  {gutter} | {indent}{}", "^".repeat(place.width))
    }
}
