use std::io;
use std::path::{Path, PathBuf};

use railgate_text::clip;

/// A file below one of the roots that could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The kernel's own error.
    #[error("{path}: {source}", path = .path.display())]
    Io {
        /// What was read.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// It could be read, and is not what it should be.
    #[error("{path}: '{text}' is not {want}", path = .path.display())]
    Odd {
        /// What was read.
        path: PathBuf,
        /// The text that was read.
        text: String,
        /// What it should have been.
        want: &'static str,
    },
}

impl ReadError {
    pub fn io(path: &Path, source: io::Error) -> Self {
        ReadError::Io { path: path.to_owned(), source }
    }

    pub fn odd(path: &Path, text: &str, want: &'static str) -> Self {
        ReadError::Odd { path: path.to_owned(), text: clip(text, 80), want }
    }

    /// The attribute is not there: this kernel or driver has none, or the device has just gone.
    pub fn is_absent(&self) -> bool {
        self.errno().is_some_and(|errno| errno == libc::ENOENT || errno == libc::ENOTDIR)
    }

    pub fn errno(&self) -> Option<i32> {
        match self {
            ReadError::Io { source, .. } => source.raw_os_error(),
            ReadError::Odd { .. } => None,
        }
    }
}
