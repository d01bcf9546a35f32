use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tracing::Level;
use tracing_subscriber::fmt::writer::MakeWriterExt;

/// `[log]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// Appended to by prolog, epilog and the periodic check, one line an event. Empty: standard error only,
    /// which slurmd shows just for a program that failed.
    pub file: PathBuf,
    /// The least that is logged.
    pub level: LogLevel,
}

impl Default for LogConfig {
    fn default() -> Self {
        LogConfig { file: PathBuf::from("/var/log/railgate.log"), level: LogLevel::Info }
    }
}

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogLevel {
    /// Our own faults, and nodes that were drained.
    Error,
    /// What an admin should look at.
    Warn,
    /// One line for each thing done.
    Info,
    /// Each part's outcome and time.
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

/// Starts logging to the configured file and to standard error. A file that cannot be opened is said on
/// standard error and otherwise ignored: a full disk must not keep a job from starting.
pub fn start(config: &LogConfig) {
    let builder = || {
        tracing_subscriber::fmt()
            .with_max_level(Level::from(config.level))
            .with_ansi(false)
            .with_target(false)
            .log_internal_errors(false)
    };
    // A second start in one process keeps the first.
    if config.file.as_os_str().is_empty() {
        let _ = builder().with_writer(io::stderr).try_init();
        return;
    }
    let file = File::options()
        .append(true)
        .create(true)
        .mode(0o640)
        .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK)
        .open(&config.file);
    match file {
        Ok(file) => {
            let _ = builder().with_writer(Arc::new(file).and(io::stderr)).try_init();
        }
        Err(why) => {
            let _ = builder().with_writer(io::stderr).try_init();
            tracing::warn!("log file {}: {why}", config.file.display());
        }
    }
}

/// Starts logging to standard error alone: what there is before configuration is known, and for a person.
pub fn start_stderr(level: LogLevel) {
    start(&LogConfig { file: PathBuf::new(), level });
}
