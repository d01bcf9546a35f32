use std::io::{self, Write};

use serde::Serialize;

/// How a listing is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Table,
    /// For programs: `"schema": 1`, documented, fields are never renamed.
    Json,
}

/// Writes to standard output; a reader that went away (`| head`) is an error that `main` forgives.
pub(crate) fn text(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        out.write_all(b"\n")?;
    }
    out.flush()
}

/// Writes a value as indented JSON.
pub(crate) fn json<T: Serialize>(value: &T) -> io::Result<()> {
    text(&serde_json::to_string_pretty(value)?)
}

/// Whether the error is a reader that went away.
pub(crate) fn broken_pipe(why: &anyhow::Error) -> bool {
    why.downcast_ref::<io::Error>().is_some_and(|why| why.kind() == io::ErrorKind::BrokenPipe)
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
