use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use railgate_text::{Lines, put};

/// One problem in a configuration file, with its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    file: PathBuf,
    message: String,
    place: Option<Place>,
}

/// Rewrites serde's message for users: "a number" instead of a Rust type, and the one similar key instead of all
/// sixty.
fn worded(message: String) -> String {
    if let Some((what, wanted)) = message.rsplit_once(", expected ") {
        let found = what.strip_prefix("invalid type: ").or_else(|| what.strip_prefix("invalid value: "));
        let number = match wanted {
            "f64" | "f32" => Some("a number"),
            "u64" | "u32" | "u16" | "u8" | "usize" => Some("a whole number, 0 or larger"),
            "i64" | "i32" => Some("a whole number"),
            _ => None,
        };
        if let (Some(found), Some(number)) = (found, number) {
            return format!("wants {number}, not {found}");
        }
    }
    let near = message.split_once(", expected ").and_then(|(what, known)| {
        let typed =
            what.strip_prefix("unknown field `").or_else(|| what.strip_prefix("unknown variant `"))?;
        let known = known.split('`').skip(1).step_by(2);
        let nearest = railgate_text::nearest(typed.strip_suffix('`')?, known)?;
        Some(format!("{what}; did you mean `{nearest}`?"))
    });
    near.unwrap_or(message)
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
            message: worded(message.into()),
            place: span.map(|span| Place::of(text, span)),
        }
    }

    /// Adds a hint to the message for an unknown key that exists in another table. `known`: the dotted paths of all
    /// keys; `table`: the prefix of this file's keys.
    pub(super) fn placed(mut self, known: &[String], table: &str) -> Self {
        /// A name that occurs in more tables than this gets no hint.
        const MOST: usize = 3;
        let unknown =
            self.message.strip_prefix("unknown field `").and_then(|rest| rest.split_once("`, expected "));
        let Some((typed, _)) = unknown else { return self };
        let parents = known.iter().filter_map(|path| path.rsplit_once('.').filter(|(_, key)| *key == typed));
        let tables: Vec<String> = parents.map(|(parent, _)| format!("[{table}{parent}]")).collect();
        let hint = match tables.len() {
            0 if railgate_text::nearest(typed, ["node"]).is_some() => "did you mean [[node]]?".to_owned(),
            1..=MOST => format!("it belongs to {}", tables.join(" or ")),
            _ => return self,
        };
        self.message = format!("unknown field `{typed}`; {hint}");
        self
    }

    /// The line number, from 1, if the problem has a position.
    pub fn line(&self) -> Option<usize> {
        self.place.as_ref().map(|place| place.line)
    }

    /// One line, for a log.
    pub(super) fn line_text(&self) -> String {
        let file = self.file.display();
        match &self.place {
            Some(place) => format!("{file}:{}:{}: {}", place.line, place.column, self.message),
            None => format!("{file}: {}", self.message),
        }
    }

    /// `file:line:column: message`, then the line of the file with a caret below the problem.
    pub fn text(&self) -> Lines {
        let mut text = Lines::new();
        put!(text, "{}", self.line_text());
        if let Some(place) = &self.place {
            let number = place.line.to_string();
            let (gutter, indent) = (" ".repeat(number.len()), " ".repeat(place.column - 1));
            // A tab would move the line away from its caret.
            put!(text, "  {number} | {}", place.text.replace('\t', " "));
            put!(text, "  {gutter} | {indent}{}", "^".repeat(place.width));
        }
        text
    }

    /// The message without the position.
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
        f.write_str(self.text().trim_end())
    }
}
