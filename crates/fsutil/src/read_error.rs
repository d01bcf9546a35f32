use std::io;
use std::path::{Path, PathBuf};

use railgate_text::clip;

/// A file that could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// An error of the kernel.
    #[error("{path}: {source}", path = .path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The file could be read, but has unexpected contents.
    #[error("{path}: '{text}' is not {want}", path = .path.display())]
    Odd {
        /// Path of the file.
        path: PathBuf,
        /// The text in the file.
        text: String,
        /// The expected contents.
        want: &'static str,
    },
}

impl ReadError {
    /// Creates an error of the kernel.
    pub fn io(path: &Path, source: io::Error) -> Self {
        ReadError::Io { path: path.to_owned(), source }
    }

    /// Creates an error of unexpected contents.
    pub fn odd(path: &Path, text: &str, want: &'static str) -> Self {
        ReadError::Odd { path: path.to_owned(), text: clip(text, 80), want }
    }

    /// Returns whether the file does not exist: this kernel or driver lacks the attribute, or the device has just been
    /// removed.
    pub fn is_absent(&self) -> bool {
        self.errno().is_some_and(|errno| errno == libc::ENOENT || errno == libc::ENOTDIR)
    }

    /// Returns the error number of an error of the kernel.
    pub fn errno(&self) -> Option<i32> {
        match self {
            ReadError::Io { source, .. } => source.raw_os_error(),
            ReadError::Odd { .. } => None,
        }
    }
}
