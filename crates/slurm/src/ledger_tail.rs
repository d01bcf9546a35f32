//! Reads the lines that were appended to the ledger since the last call.

use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};

use railgate_fsutil::nofollow;
use serde::{Deserialize, Serialize};

use crate::ledger::{Entry, Event, KEEP, Ledger, MAX_LINE, parse};

/// Bytes at the beginning of a file that identify it, since an inode number is used again.
const HEAD: usize = 80;

/// How far the files of a ledger were read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerMarks(Vec<Mark>);

/// How far one file was read. Rotation renames files: the inode remains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    device: u64,
    inode: u64,
    head: Vec<u8>,
    read: u64,
}

/// The lines that were appended.
#[derive(Clone, Debug, Default)]
pub struct Appended {
    /// Entries, oldest first.
    pub entries: Vec<Entry>,
    /// Number of lines that could not be parsed.
    pub unreadable: usize,
    /// Bytes that were read.
    pub bytes: u64,
}

impl Ledger {
    /// Returns the entries that were appended since `marks`, and moves the marks behind them. Default marks are at the beginning. A last
    /// line without its end is left for the next time.
    ///
    /// Rotation at the same time can return entries twice, and loses none.
    ///
    /// # Errors
    /// Errors of the file system; the marks are unchanged then. A missing file has no entries.
    pub fn read_after(&self, marks: &mut LedgerMarks) -> io::Result<Appended> {
        let (mut found, mut now) = (Appended::default(), LedgerMarks::default());
        for path in (1..=KEEP).rev().map(|n| self.old(n)).chain([self.path.clone()]) {
            let mut file = match nofollow::read(&path) {
                Ok(file) => file,
                Err(why) if why.kind() == io::ErrorKind::NotFound => continue,
                Err(why) => return Err(why),
            };
            let meta = file.metadata()?;
            let mut head = vec![0; HEAD];
            let length = file.read_at(&mut head, 0)?;
            head.truncate(length);
            let is_same = |mark: &&Mark| {
                (mark.device, mark.inode) == (meta.dev(), meta.ino())
                    && mark.read <= meta.len()
                    && head.starts_with(&mark.head)
            };
            let from = marks.0.iter().find(is_same).map_or(0, |mark| mark.read);
            let read = if from < meta.len() {
                file.seek(SeekFrom::Start(from))?;
                from + lines(&mut BufReader::new(file), &mut found)?
            } else {
                from
            };
            found.bytes += read - from;
            head.truncate(usize::try_from(read).unwrap_or(HEAD).min(HEAD));
            now.0.push(Mark { device: meta.dev(), inode: meta.ino(), head, read });
        }
        *marks = now;
        Ok(found)
    }
}

/// Parses whole lines. Returns their length, bytes.
fn lines(reader: &mut impl BufRead, found: &mut Appended) -> io::Result<u64> {
    let (mut read, mut line) = (0, Vec::new());
    loop {
        line.clear();
        let mut length = (&mut *reader).take(MAX_LINE as u64).read_until(b'\n', &mut line)? as u64;
        let mut is_whole = line.last() == Some(&b'\n');
        if !is_whole && line.len() == MAX_LINE {
            let (skipped, ended) = skip_line(reader)?;
            length += skipped;
            is_whole = ended;
        }
        if !is_whole {
            return Ok(read);
        }
        read += length;
        match parse(line.strip_suffix(b"\n").unwrap_or(&line)) {
            Some(entry) if entry.event == Event::Dropped => {}
            Some(entry) => found.entries.push(entry),
            None if line == b"\n" => {}
            None => found.unreadable += 1,
        }
    }
}

/// Skips the rest of a line. Returns its length and whether it has an end.
fn skip_line(reader: &mut impl BufRead) -> io::Result<(u64, bool)> {
    let mut skipped = 0;
    loop {
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() {
            return Ok((skipped, false));
        }
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let length = end.map_or(buffer.len(), |end| end + 1);
        skipped += length as u64;
        reader.consume(length);
        if end.is_some() {
            return Ok((skipped, true));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write;

    use super::*;

    fn entry(job: u32) -> Entry {
        let text = format!(r#"{{"schema":1,"time":1,"event":"death","job":{job},"name":"x","attempt":0}}"#);
        serde_json::from_str(&text).unwrap()
    }

    fn jobs(found: &Appended) -> Vec<u32> {
        found.entries.iter().map(|entry| entry.job).collect()
    }

    #[test]
    fn only_new_entries_are_read_also_after_a_rotation() {
        let place = tempfile::tempdir().unwrap();
        let ledger = Ledger::new(place.path());
        let mut marks = LedgerMarks::default();
        assert!(jobs(&ledger.read_after(&mut marks).unwrap()).is_empty());
        (1..=3).for_each(|job| ledger.append(&entry(job)).unwrap());
        assert_eq!(jobs(&ledger.read_after(&mut marks).unwrap()), [1, 2, 3]);
        let again = ledger.read_after(&mut marks).unwrap();
        assert_eq!((jobs(&again), again.bytes), (vec![], 0));
        ledger.append(&entry(4)).unwrap();
        fs::rename(place.path().join("ledger.jsonl"), place.path().join("ledger.1.jsonl")).unwrap();
        ledger.append(&entry(5)).unwrap();
        assert_eq!(jobs(&ledger.read_after(&mut marks).unwrap()), [4, 5]);
        // Marks survive as JSON; marks from the beginning return all entries.
        let kept: LedgerMarks = serde_json::from_str(&serde_json::to_string(&marks).unwrap()).unwrap();
        assert_eq!(kept, marks);
        assert_eq!(jobs(&ledger.read_after(&mut LedgerMarks::default()).unwrap()), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_line_without_its_end_is_read_when_it_is_whole() {
        let place = tempfile::tempdir().unwrap();
        let (ledger, mut marks) = (Ledger::new(place.path()), LedgerMarks::default());
        let path = place.path().join("ledger.jsonl");
        let line = serde_json::to_string(&entry(7)).unwrap();
        fs::write(&path, &line[..20]).unwrap();
        assert!(jobs(&ledger.read_after(&mut marks).unwrap()).is_empty());
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        writeln!(file, "{}", &line[20..]).unwrap();
        write!(file, "\nnonsense\n{}", "x".repeat(2 * MAX_LINE)).unwrap();
        let found = ledger.read_after(&mut marks).unwrap();
        assert_eq!((jobs(&found), found.unreadable), (vec![7], 1));
        // The end of the long line, and one more entry.
        ledger.append(&entry(8)).unwrap();
        let found = ledger.read_after(&mut marks).unwrap();
        assert_eq!((jobs(&found), found.unreadable), (vec![8], 1));
    }

    #[test]
    fn another_file_with_the_same_inode_is_read_from_its_beginning() {
        let place = tempfile::tempdir().unwrap();
        let (ledger, mut marks) = (Ledger::new(place.path()), LedgerMarks::default());
        ledger.append(&entry(1)).unwrap();
        ledger.read_after(&mut marks).unwrap();
        // Written in place, and longer than before.
        let other: String = [22, 33]
            .map(|job| serde_json::to_string(&entry(job)).unwrap() + "\n")
            .concat()
            .replace("\"time\":1", "\"time\":2");
        fs::write(place.path().join("ledger.jsonl"), other).unwrap();
        assert_eq!(jobs(&ledger.read_after(&mut marks).unwrap()), [22, 33]);
    }
}
