use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tracing::Level;
use tracing_subscriber::fmt::writer::{MakeWriter, MakeWriterExt};

/// Longest log line, characters: a line that contains user text must not fill the disk.
const MOST_CHARS: usize = 8192;

/// `[log]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// The log file of prolog, epilog and the periodic check, one line per event. Empty: standard error only, which
    /// slurmd logs only for a program that failed.
    pub file: PathBuf,
    /// The lowest level that is logged.
    pub level: LogLevel,
}

impl Default for LogConfig {
    fn default() -> Self {
        LogConfig { file: PathBuf::from("/var/log/railgate.log"), level: LogLevel::Info }
    }
}

/// Log level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogLevel {
    /// Faults of railgate, and nodes that were drained.
    Error,
    /// Conditions that an admin should check.
    Warn,
    /// One line per action.
    Info,
    /// Also each part's outcome and duration.
    Debug,
}

impl From<LogLevel> for Level {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Error => Level::ERROR,
            LogLevel::Warn => Level::WARN,
            LogLevel::Info => Level::INFO,
            LogLevel::Debug => Level::DEBUG,
        }
    }
}

/// Writes each event as one line. Messages contain names and paths that users chose: a line break in one would forge
/// a log line, and an escape sequence would control the reader's terminal.
#[derive(Clone, Debug)]
struct OneLine<W>(W);

impl<'a, W: MakeWriter<'a>> MakeWriter<'a> for OneLine<W> {
    type Writer = OneLine<W::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        OneLine(self.0.make_writer())
    }
}

impl<W: Write> Write for OneLine<W> {
    /// `tracing` writes a whole event at once, with the line break last.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event.strip_suffix(b"\n").unwrap_or(event));
        let mut line: String = text.chars().take(MOST_CHARS).map(railgate_text::shown).collect();
        line.push('\n');
        self.0.write_all(line.as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Writes a line to standard error before logging has started.
#[expect(clippy::disallowed_methods, reason = "the only place that prints")]
pub(crate) fn complain(words: std::fmt::Arguments<'_>) {
    let _ = OneLine(io::stderr()).write_all(format!("railgate: {words}\n").as_bytes());
}

/// Starts logging to the configured file and to standard error. If the file cannot be opened, a message goes to
/// standard error and the program continues: a full disk must not keep a job from starting.
#[expect(clippy::disallowed_methods, reason = "the only place that prints: every line passes OneLine")]
pub fn start(config: &LogConfig) {
    let builder = || {
        tracing_subscriber::fmt()
            .with_max_level(Level::from(config.level))
            .with_ansi(false)
            .with_target(false)
            .log_internal_errors(false)
    };
    // A second call in one process has no effect.
    if config.file.as_os_str().is_empty() {
        let _ = builder().with_writer(OneLine(io::stderr)).try_init();
        return;
    }
    let file = railgate_fsutil::nofollow::append(&config.file, 0o640);
    match file {
        Ok(file) => {
            let _ = builder().with_writer(OneLine(Arc::new(file).and(io::stderr))).try_init();
        }
        Err(why) => {
            let _ = builder().with_writer(OneLine(io::stderr)).try_init();
            tracing::warn!("log file {}: {why}", config.file.display());
        }
    }
}

/// Starts logging to standard error alone: before the configuration is known, and for interactive commands.
pub fn start_stderr(level: LogLevel) {
    start(&LogConfig { file: PathBuf::new(), level });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_in_names_do_not_break_the_line() {
        let mut written = Vec::new();
        let event = "WARN x/a\n2026-01-01 ERROR forged\r\x1b[2J\u{202e}: refused\n";
        assert_eq!(OneLine(&mut written).write(event.as_bytes()).unwrap(), event.len());
        let line = String::from_utf8(written).unwrap();
        assert_eq!(line, "WARN x/a?2026-01-01 ERROR forged??[2J?: refused\n");
        let mut written = Vec::new();
        OneLine(&mut written).write_all(&[b'x'; 100_000]).unwrap();
        assert_eq!(written.len(), MOST_CHARS + 1);
    }
}
