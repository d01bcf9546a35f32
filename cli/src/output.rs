//! The only place that writes to the terminal. Output contains foreign text (names, paths, arguments, files, Slurm's
//! output), so it must be [`Lines`], JSON, or a single escaped line: `clippy.toml` forbids `println!` and similar
//! macros elsewhere.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal as _, Write};
use std::path::Path;

use anyhow::Context as _;
use railgate_runner::ConfigError;
use railgate_text::{Lines, json_text, printable, put};
use serde::Serialize;

/// Output format of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people
    Table,
    /// For programs: docs/json.md; fields are never renamed
    Json,
}

/// Prints one line on standard output: `say!("{node}: ok")?`.
macro_rules! say {
    ($($words:tt)+) => { $crate::output::line(::std::format_args!($($words)+)) };
}

/// Prints one line on standard error, after `railgate: `.
macro_rules! complain {
    ($($words:tt)+) => { $crate::output::complaint(::std::format_args!($($words)+)) };
}

pub(crate) use {complain, say};

/// Parses the command line. clap's error and help pages quote the arguments, so they are made from printable ones.
pub(crate) fn parse<P: clap::Parser>() -> P {
    let args: Vec<OsString> = std::env::args_os().collect();
    P::try_parse_from(&args).unwrap_or_else(|wrong| {
        let shown = args.iter().map(|arg| printable(&arg.to_string_lossy()).into_owned());
        match P::try_parse_from(shown) {
            Err(wrong) => wrong.exit(),
            // Only the unprintable character was wrong.
            Ok(_) => {
                P::command().error(wrong.kind(), "an argument has a character that is not printable").exit()
            }
        }
    })
}

/// Writes to standard output. A reader that closes it early (`| head`) is no error: the exit code remains that of the
/// result.
pub(crate) fn text(text: &Lines) -> anyhow::Result<()> {
    pieces(None, |out| out.write_all(text.as_ref()))
}

/// As [`text`], or to a file.
pub(crate) fn to(file: Option<&Path>, content: &Lines) -> anyhow::Result<()> {
    pieces(file, |out| out.write_all(content.as_ref()))
}

/// As [`text`], in place of the terminal's content: cursor home, then clear below the new text, which avoids flicker.
pub(crate) fn screen(text: &Lines) -> anyhow::Result<()> {
    pieces(None, |out| {
        out.write_all(b"\x1b[H\x1b[J")?;
        out.write_all(text.as_ref())
    })
}

/// Lets a JSON writer ([`railgate_text::write_json`]) write incrementally to a file, or to standard output without
/// one.
#[expect(clippy::disallowed_methods, reason = "the only place that prints")]
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

/// Whether standard output is a terminal.
#[expect(clippy::disallowed_methods, reason = "the only place that prints")]
pub(crate) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Writes a value as indented JSON.
pub(crate) fn json<T: Serialize>(value: &T) -> anyhow::Result<()> {
    to_json(None, value)
}

/// As [`json`], or to a file.
pub(crate) fn to_json<T: Serialize>(file: Option<&Path>, value: &T) -> anyhow::Result<()> {
    let mut content = json_text(value)?;
    content.push('\n');
    pieces(file, |out| out.write_all(content.as_bytes()))
}

/// See [`say!`].
pub(crate) fn line(words: std::fmt::Arguments<'_>) -> anyhow::Result<()> {
    let mut one = Lines::new();
    one.line(words);
    text(&one)
}

/// See [`complain!`].
pub(crate) fn complaint(words: std::fmt::Arguments<'_>) {
    let mut one = Lines::new();
    put!(one, "railgate: {words}");
    errors(&one);
}

/// Writes to standard error; ignores a failure, since there is no other place to report it.
#[expect(clippy::disallowed_methods, reason = "the only place that prints")]
pub(crate) fn errors(text: &Lines) {
    let _ = io::stderr().lock().write_all(text.as_ref());
}

/// Reports an error on standard error: the problems of a configuration as `file:line:column: message`, each with a
/// caret, in file order; any other error as one line.
pub(crate) fn failure(why: &anyhow::Error) {
    if let Some(ConfigError::Invalid(problems)) = why.downcast_ref::<ConfigError>() {
        let mut problems: Vec<_> = problems.iter().collect();
        problems.sort_by_key(|problem| problem.line());
        for problem in &problems {
            errors(&problem.text());
        }
        let count = problems.len();
        complain!("{count} problem{} in the configuration", if count == 1 { "" } else { "s" });
        return;
    }
    complain!("{}", chain(why));
}

/// Joins an error and its causes. Many errors already contain their cause, which is not repeated.
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

/// Aligns the columns of rows, separated by two spaces.
pub(crate) fn table(rows: &[Vec<String>]) -> Lines {
    Lines::table(rows, "")
}

/// `1 node`, `3 nodes`.
pub(crate) fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn a_cause_is_printed_once() {
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let says_it_too = anyhow!(gone()).context(format!("x.json: {}", gone()));
        assert_eq!(chain(&says_it_too), "x.json: entity not found");
        assert_eq!(chain(&anyhow!(gone()).context("x.json")), "x.json: entity not found");
    }
}
