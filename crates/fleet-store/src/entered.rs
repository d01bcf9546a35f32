//! Events that admins enter, in a file beside the history: one event a line, as JSON. The writer of the history takes them in, since only one
//! process may write that.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use railgate_fleet::{Event, Source, What};
use railgate_fsutil::{FileLock, nofollow, read, trusted};

use crate::StoreError;

/// Largest file, bytes: some 240,000 events.
const MAX_FILE: u64 = 64 << 20;
/// How long a command waits for another one that appends.
const WAIT: Duration = Duration::from_secs(5);

/// Events that were entered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entered {
    /// In the order of the file.
    pub events: Vec<Event>,
    /// Lines that are ignored, one text each, with file and line.
    pub problems: Vec<String>,
}

/// The file of events that admins enter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnteredFile(PathBuf);

impl EnteredFile {
    /// The file beside a history.
    pub fn beside(database: &Path) -> EnteredFile {
        EnteredFile(database.with_file_name("entered.jsonl"))
    }

    /// Returns the size of the file in bytes, 0 if there is none. It grows with each event, and nothing else changes it.
    pub fn size(&self) -> u64 {
        std::fs::symlink_metadata(&self.0).map_or(0, |meta| meta.len())
    }

    /// Reads all events; a missing file has none.
    ///
    /// # Errors
    /// Others can change the path, or the file is a link, not a regular file, or larger than 64 MiB.
    pub fn read(&self) -> Result<Entered, StoreError> {
        let real = match trusted(&self.0) {
            Ok(real) => real,
            Err(why) if why.is_absent() => return Ok(Entered::default()),
            Err(why) => return Err(why.into()),
        };
        let text = read::whole_bytes(&real, MAX_FILE)?;
        let mut entered = Entered::default();
        for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
            if line.trim_ascii().is_empty() {
                continue;
            }
            match parse(line) {
                Ok(event) => entered.events.push(event),
                Err(why) => {
                    let path = self.0.display();
                    entered.problems.push(format!("{path}:{}: {why}; the line is ignored", index + 1));
                }
            }
        }
        Ok(entered)
    }

    /// Appends events. They are on the disk when this returns.
    ///
    /// # Errors
    /// As [`EnteredFile::read`], or the file is full or cannot be written. No event was appended then.
    pub fn add(&self, events: &[Event]) -> Result<(), StoreError> {
        let at = |why| StoreError::io(&self.0, why);
        let dir = match self.0.parent() {
            Some(dir) if dir.as_os_str().is_empty() => trusted(Path::new("."))?,
            dir => trusted(dir.unwrap_or(Path::new("/")))?,
        };
        let lock = dir.join("entered.lock");
        let _lock = FileLock::take(&lock, WAIT).map_err(|why| StoreError::io(&lock, why))?;
        let mut text = String::new();
        for event in events {
            text.push_str(&serde_json::to_string(event).map_err(|why| at(why.into()))?);
            text.push('\n');
        }
        let mut file = nofollow::read_append(&self.0, 0o600).map_err(at)?;
        trusted(&self.0)?;
        let length = file.metadata().map_err(at)?.len();
        // A line that a crash has cut must not swallow the next one.
        if length > 0 && !ends_line(&file, length).map_err(at)? {
            text.insert(0, '\n');
        }
        if length + text.len() as u64 > MAX_FILE {
            let full = format!(
                "more than {} MiB; once `railgate fleet export` has its events, move it away",
                MAX_FILE >> 20
            );
            return Err(at(io::Error::new(io::ErrorKind::FileTooLarge, full)));
        }
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
        if written.is_err() {
            // The first error is the one to report.
            let _ = file.set_len(length);
        }
        // The entry of a new file in its directory as well.
        written.and_then(|()| File::open(&dir)?.sync_all()).map_err(at)
    }
}

fn ends_line(file: &File, length: u64) -> io::Result<bool> {
    let mut last = [0];
    file.read_exact_at(&mut last, length - 1)?;
    Ok(last == *b"\n")
}

/// Only work on nodes and their figures are entered: everything else has a source of its own.
fn parse(line: &[u8]) -> Result<Event, String> {
    let event: Event = serde_json::from_slice(line).map_err(|why| why.to_string())?;
    let is_entered = matches!(event.what, What::Maintained { .. } | What::SelfTested { .. });
    if is_entered && event.source == Source::Root {
        Ok(event)
    } else {
        Err("only work on nodes and their figures (`maintained`, `self-tested`, from `root`) can be entered"
            .to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    fn repaired(node: &str) -> Event {
        let what = What::Maintained {
            node: node.to_owned(),
            repair: true,
            card: None,
            by: "alice".to_owned(),
            why: "new fans".to_owned(),
        };
        Event { id: format!("entered/{node}"), time: 1_800_000_000_000, source: Source::Root, what }
    }

    fn place() -> (tempfile::TempDir, EnteredFile) {
        let dir = tempfile::tempdir().unwrap();
        let file = EnteredFile::beside(&dir.path().join("fleet.db"));
        (dir, file)
    }

    #[test]
    fn events_are_appended_and_read_back() {
        let (dir, file) = place();
        assert_eq!((file.read().unwrap(), file.size()), (Entered::default(), 0));
        file.add(&[repaired("gn1"), repaired("gn2")]).unwrap();
        file.add(&[repaired("gn3")]).unwrap();
        assert_eq!(file.read().unwrap().events, ["gn1", "gn2", "gn3"].map(repaired));
        let meta = fs::metadata(dir.path().join("entered.jsonl")).unwrap();
        assert_eq!((meta.mode() & 0o777, meta.len()), (0o600, file.size()));
    }

    #[test]
    fn a_bad_line_is_named_and_the_others_count() {
        let (dir, file) = place();
        let path = dir.path().join("entered.jsonl");
        let down = Event { what: What::Down { node: "gn1".to_owned() }, ..repaired("gn1") };
        let user = Event { source: Source::User, ..repaired("gn1") };
        let bad = [down, user].map(|event| serde_json::to_string(&event).unwrap()).join("\n");
        // The last line was cut by a crash.
        fs::write(&path, format!("{bad}\n\n{{\"id\": ")).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        file.add(&[repaired("gn1")]).unwrap();
        let found = file.read().unwrap();
        assert_eq!((found.events, found.problems.len()), (vec![repaired("gn1")], 3));
        assert!(found.problems[0].contains("entered.jsonl:1: only work on nodes"), "{:?}", found.problems);
        assert!(found.problems[2].contains("entered.jsonl:4: EOF"), "{:?}", found.problems);
    }

    #[test]
    fn a_link_a_full_file_and_a_file_that_others_can_write_are_refused() {
        let (dir, file) = place();
        let path = dir.path().join("entered.jsonl");
        file.add(&[repaired("gn1")]).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
        assert!(matches!(file.read(), Err(StoreError::Untrusted(_))));
        assert!(matches!(file.add(&[repaired("gn2")]), Err(StoreError::Untrusted(_))));
        fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        fs::write(&path, vec![b'\n'; 64 << 20]).unwrap();
        let why = file.add(&[repaired("gn2")]).unwrap_err().to_string();
        assert!(why.contains("more than 64 MiB; once `railgate fleet export` has"), "{why}");
        fs::remove_file(&path).unwrap();
        symlink("/dev/zero", &path).unwrap();
        assert!(file.read().is_err() && file.add(&[repaired("gn2")]).is_err());
    }
}
