use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use railgate_fsutil::{Untrusted, read, trusted};
use railgate_text::Printable;

/// Longest secret, bytes.
const MAX_SECRET: u64 = 8 << 10;
/// Read access of users that are neither the owner nor in the group, and write access of the group.
const OTHERS: u32 = 0o027;

/// Shorter parts of an address are not secrets: `robot`, `send`.
const SHORT: usize = 6;

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

/// Why a secret cannot be read. The message does not contain it.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// A user other than root can change the file.
    #[error(transparent)]
    Untrusted(#[from] Untrusted),
    /// Others can read it.
    #[error("{}: mode {mode:04o}: others may read it (chmod 0600, or 0640 with a group of its own)", Printable(path.display()))]
    Readable {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It cannot be read.
    #[error("{}: {why}", Printable(path.display()))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Secret {
    /// A secret that is known already.
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// Reads the one line of a file. The file must belong to root or to the calling user, and only they and its group may read it.
    ///
    /// # Errors
    /// Others can change or read the file, it does not exist, or is not one line of at most 8 KiB in ASCII.
    pub fn read(path: &Path) -> Result<Secret, SecretError> {
        let unreadable = |why: String| SecretError::Unreadable { path: path.to_owned(), why };
        let real = trusted(path)?;
        let found = std::fs::metadata(&real).map_err(|why| unreadable(why.to_string()))?;
        let mode = found.mode() & 0o7777;
        if mode & OTHERS != 0 {
            return Err(SecretError::Readable { path: path.to_owned(), mode });
        }
        let bytes = match read::whole_bytes(&real, MAX_SECRET) {
            Ok(bytes) => bytes,
            Err(railgate_fsutil::ReadError::Io { source, .. }) => return Err(unreadable(source.to_string())),
            // Its text can contain bytes of the file.
            Err(railgate_fsutil::ReadError::Odd { .. }) => {
                return Err(unreadable("unexpected content".to_owned()));
            }
        };
        let text = String::from_utf8(bytes).map_err(|_| unreadable("is not text".to_owned()))?;
        let text = text.trim();
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(unreadable("wants one line of ASCII without blanks".to_owned()));
        }
        Ok(Secret(text.to_owned()))
    }

    /// The text, for a request.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Replaces the secret, and long parts of it where it is an address, in a text that is shown.
    pub fn hide(&self, text: &str) -> String {
        let mut parts: Vec<&str> = self.0.split(['/', '?', '&', '=', ':', '@', '#']).collect();
        parts.push(&self.0);
        parts.sort_by_key(|part| std::cmp::Reverse(part.len()));
        let long = parts.iter().filter(|part| part.len() > SHORT || **part == self.0);
        long.fold(text.to_owned(), |text, part| text.replace(*part, "…"))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    #[test]
    fn only_a_file_that_others_cannot_read_is_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        fs::write(&file, "s3cr3t-token\n").unwrap();
        for (mode, accepted) in
            [(0o600, true), (0o400, true), (0o640, true), (0o644, false), (0o604, false), (0o660, false)]
        {
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            let read = Secret::read(&file);
            assert_eq!(read.is_ok(), accepted, "{mode:o}");
            if let Err(why) = read {
                assert!(why.to_string().contains("token: mode"), "{why}");
            }
        }
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        if chown(&file, Some(65_534), None).is_ok() {
            assert!(Secret::read(&file).unwrap_err().to_string().contains("uid 65534"));
        }
    }

    #[test]
    fn other_contents_are_refused_and_never_shown() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        for content in
            [&b""[..], b"\n", b"two words-hidden", b"two\nlines-hidden", b"\xff\xfehidden", &[b'h'; 9000]]
        {
            fs::write(&file, content).unwrap();
            fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
            let why = Secret::read(&file).unwrap_err();
            assert!(!format!("{why} {why:?}").contains("hidden"), "{why}");
        }
    }

    #[test]
    fn a_secret_is_hidden_in_texts() {
        let secret = Secret::new("https://oapi.example.org/robot/send?access_token=abcdef0123456789");
        assert_eq!(format!("{secret:?}"), "Secret(…)");
        for text in [
            "token abcdef0123456789 is invalid",
            "POST https://oapi.example.org/robot/send?access_token=abcdef0123456789",
        ] {
            let shown = secret.hide(text);
            assert!(!shown.contains("abcdef0123456789") && shown.contains('…'), "{shown}");
        }
        assert_eq!(secret.hide("robot send: busy"), "robot send: busy");
    }
}
