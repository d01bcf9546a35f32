//! Bounded reads that never block.
//!
//! A FIFO or a larger file in place of the expected one gives an error.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::ReadError;

/// Opens a file for reading, without blocking on a FIFO and with close-on-exec.
pub fn open(path: &Path) -> Result<File, ReadError> {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)
        .map_err(|source| ReadError::io(path, source))
}

/// Returns at most `limit` bytes from the start of a file, as text.
pub fn prefix(path: &Path, limit: u64) -> Result<String, ReadError> {
    let mut bytes = Vec::new();
    open(path)?.take(limit).read_to_end(&mut bytes).map_err(|source| ReadError::io(path, source))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns a whole file of at most `limit` bytes, as text. A larger file is an error; it is never truncated.
pub fn whole(path: &Path, limit: u64) -> Result<String, ReadError> {
    let text = prefix(path, limit.saturating_add(1))?;
    if u64::try_from(text.len()).is_ok_and(|length| length <= limit) {
        Ok(text)
    } else {
        let too_big = io::Error::new(io::ErrorKind::FileTooLarge, format!("more than {limit} bytes"));
        Err(ReadError::io(path, too_big))
    }
}

/// Returns a whole regular file of at most `limit` bytes, for files of programs rather than of the kernel.
pub fn whole_bytes(path: &Path, limit: u64) -> Result<Vec<u8>, ReadError> {
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

/// Returns the names in a directory, in natural order (`mlx5_2` before `mlx5_10`).
pub fn names(directory: &Path) -> Result<Vec<String>, ReadError> {
    let at = |source| ReadError::io(directory, source);
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(at)? {
        let name: OsString = entry.map_err(at)?.file_name();
        // Names from the kernel are ASCII, so others can be skipped.
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
    fn names_are_in_natural_order() {
        let mut names = vec!["mlx5_10", "mlx5_2", "mlx5_bond_0", "mlx5_0", "ports"];
        names.sort_by(|a, b| natural(a).cmp(&natural(b)));
        assert_eq!(names, ["mlx5_0", "mlx5_2", "mlx5_10", "mlx5_bond_0", "ports"]);
    }
}
