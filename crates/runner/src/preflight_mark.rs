//! What `railgate preflight` accuses this node of, as the job's own tasks wrote it. It decides only about their own job.

use std::path::Path;

use railgate_child::Task;
use railgate_rundir::{BadUserFile, PREFLIGHT_MARK, RunDir};
use railgate_text::clip;

use crate::user_file::{ask, asked, read_if_present};

const READ: &str = "read-preflight-mark";

/// Runs in a child, as everything that reads files of a job's owner.
pub(crate) const TASK: Task = Task::new(READ, task);

/// Largest file that is read, bytes.
const MOST_BYTES: u64 = 4096;
/// Longest text, characters.
const LONGEST: usize = 160;

/// What the preflight of the job accuses this node of, one line of printable text; `None`: nothing, or it is unknown.
/// `run`: [`crate::Places::run`].
pub fn preflight_mark(run: &Path, job: u32, uid: u32) -> Option<String> {
    ask(READ, run, job, uid).unwrap_or_else(|why| {
        tracing::warn!(job, "unknown whether the job's preflight named this node: {why}");
        None
    })
}

fn task(input: &[u8]) -> Result<Vec<u8>, String> {
    let (dir, uid) = asked(input)?;
    let mark = read(&dir, uid).map_err(|why| format!("{}: {why}", dir.user().display()))?;
    serde_json::to_vec(&mark).map_err(|why| why.to_string())
}

fn read(dir: &RunDir, uid: u32) -> Result<Option<String>, BadUserFile> {
    let Some(bytes) = read_if_present(dir, uid, PREFLIGHT_MARK, MOST_BYTES)? else { return Ok(None) };
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().next().unwrap_or_default().trim();
    Ok((!line.is_empty()).then(|| clip(line, LONGEST)))
}

#[cfg(test)]
mod tests {
    use railgate_rundir::Root;

    use super::*;

    struct Mounted<'a>(&'a RunDir);

    impl Drop for Mounted<'_> {
        fn drop(&mut self) {
            let _ = railgate_rundir::unmount_user(self.0);
        }
    }

    #[test]
    fn a_mark_is_one_printable_line_of_a_regular_file_of_the_owner() {
        let place = tempfile::tempdir().unwrap();
        let run =
            Root::new(place.path()).job(7).create(&railgate_rundir::Run::new(7, 0, 1_800_000_000)).unwrap();
        let uid = nix::unistd::geteuid().as_raw();
        assert_eq!(read(&run, uid).unwrap(), None);
        let Ok(_) = railgate_rundir::mount_user(&run, uid, 0, 1 << 20, 64) else { return };
        let _gone = Mounted(&run);
        assert_eq!(read(&run, uid).unwrap(), None);
        let mark = run.user().join(PREFLIGHT_MARK);
        std::fs::write(&mark, "rail 3: 96 Gb/s\u{1b}[2J\nmore\n").unwrap();
        let read_text = read(&run, uid).unwrap().unwrap();
        assert!(read_text.starts_with("rail 3: 96 Gb/s") && !read_text.contains('\u{1b}'), "{read_text}");
        assert!(!read_text.contains("more"), "{read_text}");
        std::fs::write(&mark, "x".repeat(4097)).unwrap();
        assert!(matches!(read(&run, uid), Err(BadUserFile::Size(_))));
        std::fs::write(&mark, "x".repeat(4000)).unwrap();
        assert!(read(&run, uid).unwrap().unwrap().chars().count() <= LONGEST);
        std::fs::remove_file(&mark).unwrap();
        // The second one is a file that could be read under its own name.
        let own = run.user().join("own");
        std::fs::write(&own, "rail 3: 96 Gb/s\n").unwrap();
        std::os::unix::fs::chown(&own, Some(uid), None).unwrap();
        for target in ["/etc/shadow", "own"] {
            std::os::unix::fs::symlink(target, &mark).unwrap();
            assert!(matches!(read(&run, uid), Err(BadUserFile::Kind)), "{target}");
            std::fs::remove_file(&mark).unwrap();
        }
    }
}
