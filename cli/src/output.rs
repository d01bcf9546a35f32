use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use anyhow::Context as _;
use railgate_runner::ConfigError;
use railgate_stats::json_text;
use serde::Serialize;

/// How a listing is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people
    Table,
    /// For programs: docs/json.md; fields are never renamed
    Json,
}

/// Writes to standard output.
pub(crate) fn text(text: &str) -> anyhow::Result<()> {
    pieces(None, |out| {
        out.write_all(text.as_bytes())?;
        if text.ends_with('\n') { Ok(()) } else { out.write_all(b"\n") }
    })
}

/// Lets something that writes in large pieces do so to a file, or to standard output where there is none. A reader of
/// that who has gone (`| head`) has read what they wanted: no error, and the exit code stays that of what was found.
pub(crate) fn pieces(
    file: Option<&Path>,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> anyhow::Result<()> {
    let through = |out: &mut dyn Write| write(out).and_then(|()| out.flush());
    match file {
        Some(path) => File::create(path)
            .and_then(|mut out| through(&mut out))
            .with_context(|| path.display().to_string()),
        None => match through(&mut io::stdout().lock()) {
            Err(why) if why.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written.context("standard output"),
        },
    }
}

/// Writes a value as indented JSON.
pub(crate) fn json<T: Serialize>(value: &T) -> anyhow::Result<()> {
    text(&json_text(value)?)
}

/// Says on standard error what went wrong: a configuration's problems as `file:line:column: what`, each with its
/// caret, in the file's order; anything else as one line.
pub(crate) fn failure(why: &anyhow::Error) {
    if let Some(ConfigError::Invalid(problems)) = why.downcast_ref::<ConfigError>() {
        let mut problems: Vec<_> = problems.iter().collect();
        problems.sort_by_key(|problem| problem.line());
        for problem in &problems {
            eprintln!("{problem}");
        }
        let count = problems.len();
        eprintln!("railgate: {count} problem{} in the configuration", if count == 1 { "" } else { "s" });
        return;
    }
    eprintln!("railgate: {}", chain(why));
}

/// An error and its causes. Many say their cause themselves; it is not said twice.
fn chain(why: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in why.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Rows with their columns aligned, two spaces between.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max())
        .map(Option::unwrap_or_default)
        .collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:<width$}  "));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let says_it_too = anyhow!(gone()).context(format!("x.json: {}", gone()));
        assert_eq!(chain(&says_it_too), "x.json: entity not found");
        assert_eq!(chain(&anyhow!(gone()).context("x.json")), "x.json: entity not found");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a", "b"], ["long", "c"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(table(&rows), "a     b\nlong  c\n");
    }
}
