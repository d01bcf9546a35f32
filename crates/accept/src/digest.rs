//! Digests of results: a signed report names them, so that a later change of a file is visible.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// Returns the SHA-256 of a file, in hexadecimal digits.
pub fn digest(content: &[u8]) -> String {
    let mut text = String::new();
    for byte in Sha256::digest(content) {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Returns the SHA-256 over a list of files: one line `DIGEST  NAME` for each, sorted by name, as `sha256sum` prints them.
pub fn digest_of_all<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut files: Vec<(&str, &str)> = files.into_iter().collect();
    files.sort_unstable();
    let lines: String = files.iter().map(|(name, digest)| format!("{digest}  {name}\n")).collect();
    digest(lines.as_bytes())
}
