//! Small bounded reads below a root: sysfs and procfs attributes.
//!
//! What these files hold fits a page; whoever can put something bigger or a FIFO there gets an error
//! and no hang.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use railgate_text::{clip, printable};

use crate::Reading;

/// Attributes of sysfs are one page at most.
const ATTRIBUTE_BYTES: u64 = 4096;

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
        /// What it said.
        text: String,
        /// What it should have been.
        want: &'static str,
    },
}

impl ReadError {
    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        ReadError::Io { path: path.to_owned(), source }
    }

    pub(crate) fn odd(path: &Path, text: &str, want: &'static str) -> Self {
        ReadError::Odd { path: path.to_owned(), text: clip(text, 80), want }
    }

    /// The attribute is not there: this kernel or driver has none, or the device has just gone.
    pub(crate) fn is_absent(&self) -> bool {
        self.errno().is_some_and(|errno| errno == libc::ENOENT || errno == libc::ENOTDIR)
    }

    pub(crate) fn errno(&self) -> Option<i32> {
        match self {
            ReadError::Io { source, .. } => source.raw_os_error(),
            ReadError::Odd { .. } => None,
        }
    }
}

/// Opens for reading without ever waiting (FIFOs) and without passing the descriptor on.
pub(crate) fn open(path: &Path) -> Result<File, ReadError> {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)
        .map_err(|source| ReadError::io(path, source))
}

/// At most `limit` bytes from the start of a file, as text.
pub(crate) fn prefix(path: &Path, limit: u64) -> Result<String, ReadError> {
    let mut bytes = Vec::new();
    open(path)?.take(limit).read_to_end(&mut bytes).map_err(|source| ReadError::io(path, source))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A whole file of at most `limit` bytes, as text; bigger is an error, never a cut.
pub(crate) fn whole(path: &Path, limit: u64) -> Result<String, ReadError> {
    let text = prefix(path, limit.saturating_add(1))?;
    if u64::try_from(text.len()).is_ok_and(|length| length <= limit) {
        Ok(text)
    } else {
        let too_big = io::Error::new(io::ErrorKind::FileTooLarge, format!("more than {limit} bytes"));
        Err(ReadError::io(path, too_big))
    }
}

/// A whole regular file of at most `limit` bytes: a file that somebody wrote, not one of the kernel's.
pub(crate) fn whole_bytes(path: &Path, limit: u64) -> Result<Vec<u8>, ReadError> {
    let at = |source| ReadError::io(path, source);
    let mut file = open(path)?;
    if !file.metadata().map_err(at)?.is_file() {
        return Err(at(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
    }
    let mut bytes = Vec::new();
    (&mut file).take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(at)?;
    if bytes.len() as u64 > limit {
        let too_big = format!("more than {limit} bytes");
        return Err(at(io::Error::new(io::ErrorKind::FileTooLarge, too_big)));
    }
    Ok(bytes)
}

/// One attribute, trimmed.
pub(crate) fn attribute(path: &Path) -> Result<String, ReadError> {
    Ok(printable(whole(path, ATTRIBUTE_BYTES)?.trim()).into_owned())
}

/// One attribute as a reading. Absent and `EOPNOTSUPP` mean that the machine has no such value;
/// everything else, `EINVAL` included, is a failed read.
pub(crate) fn text(path: &Path) -> Reading<String> {
    parsed(path, "text", |text| Some(text.to_owned()))
}

/// One attribute, understood by `parse`; what it does not understand is a failed read.
pub(crate) fn parsed<T>(
    path: &Path,
    want: &'static str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Reading<T> {
    let outcome =
        attribute(path).and_then(|text| parse(&text).ok_or_else(|| ReadError::odd(path, &text, want)));
    match outcome {
        Ok(value) => Reading::Known(value),
        Err(error) => failure(&error),
    }
}

/// A larger file (`interrupts`, `mountinfo`, `limits`), understood by `parse`; where that finds nothing the machine has
/// no such value.
pub(crate) fn large<T>(path: &Path, limit: u64, parse: impl FnOnce(&str) -> Option<T>) -> Reading<T> {
    match whole(path, limit) {
        Ok(text) => parse(&text).map_or(Reading::Unsupported, Reading::Known),
        Err(error) => failure(&error),
    }
}

/// What a failed read of one attribute means.
pub(crate) fn failure<T>(error: &ReadError) -> Reading<T> {
    if error.is_absent() || error.errno() == Some(libc::EOPNOTSUPP) {
        Reading::Unsupported
    } else {
        Reading::Failed(error.to_string())
    }
}

/// `0x10de` or `10de`.
pub(crate) fn hex(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}

/// `numa_node`; -1 means that the firmware says nothing.
pub(crate) fn numa_node(path: &Path) -> Reading<u32> {
    match parsed(path, "a NUMA node", |text| text.parse::<i64>().ok()) {
        Reading::Known(-1) | Reading::Unsupported => Reading::Unsupported,
        Reading::Known(node) => match u32::try_from(node) {
            Ok(node) => Reading::Known(node),
            Err(_) => Reading::Failed(format!("{}: NUMA node {node}", path.display())),
        },
        Reading::Failed(why) => Reading::Failed(why),
    }
}

/// The names in a directory, in natural order (`mlx5_2` before `mlx5_10`).
pub(crate) fn names(directory: &Path) -> Result<Vec<String>, ReadError> {
    let at = |source| ReadError::io(directory, source);
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(at)? {
        let name: OsString = entry.map_err(at)?.file_name();
        // Kernel names are ASCII; what is not cannot be one of ours.
        if let Ok(name) = name.into_string() {
            names.push(name);
        }
    }
    names.sort_by(|a, b| natural(a).cmp(&natural(b)));
    Ok(names)
}

fn natural(name: &str) -> (&str, u64, &str) {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = name.get(stem.len()..).unwrap_or_default();
    (stem, number.parse().unwrap_or(u64::MAX), number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_count_like_people() {
        let mut names = vec!["mlx5_10", "mlx5_2", "mlx5_bond_0", "mlx5_0", "ports"];
        names.sort_by(|a, b| natural(a).cmp(&natural(b)));
        assert_eq!(names, ["mlx5_0", "mlx5_2", "mlx5_10", "mlx5_bond_0", "ports"]);
    }

    #[test]
    fn absent_is_not_failed() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(text(&dir.path().join("rate")), Reading::Unsupported);
        fs::write(dir.path().join("rate"), "fast\n").unwrap();
        assert_eq!(text(&dir.path().join("rate")), Reading::Known("fast".into()));
        let odd = parsed(&dir.path().join("rate"), "a number", |text| text.parse::<u32>().ok());
        assert!(matches!(odd, Reading::Failed(why) if why.ends_with("rate: 'fast' is not a number")));
        fs::write(dir.path().join("numa_node"), "-1\n").unwrap();
        assert_eq!(numa_node(&dir.path().join("numa_node")), Reading::Unsupported);
    }

    #[test]
    fn a_huge_attribute_and_a_fifo_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("big"), vec![b'7'; 5000]).unwrap();
        assert!(matches!(text(&dir.path().join("big")), Reading::Failed(why) if why.contains("4096 bytes")));
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).unwrap();
        // Nobody writes: an empty answer at once instead of a hang.
        assert_eq!(attribute(&fifo).unwrap(), "");
    }
}
