use std::io;
use std::path::Path;

use railgate_child::Task;
use railgate_node_report::Application;
use railgate_node_report::application::{APP_DIR, MOST_BYTES, read as read_rank};
use railgate_rundir::{RunDir, UserDir};

use crate::user_file::{ask, asked};

const READ: &str = "read-application";

/// Runs in a child, as everything that reads files of a job's owner.
pub(crate) const TASK: Task = Task::new(READ, task);

/// Most ranks that are read: far more than a node has GPUs.
const MOST_FILES: usize = 512;
const MOST_PROBLEMS: usize = 20;

/// Progress that a job's ranks have reported on this node; `None` if none did. `run`: [`crate::Places::run`].
/// Unreadable files are listed in `problems`.
pub fn application(run: &Path, job: u32, uid: u32) -> Option<Application> {
    ask(READ, run, job, uid).unwrap_or_else(|why| {
        tracing::warn!(job, "the program's reports are unknown: {why}");
        Some(Application { problems: vec![format!("could not be read: {why}")], ..Application::default() })
    })
}

fn task(input: &[u8]) -> Result<Vec<u8>, String> {
    let (dir, uid) = asked(input)?;
    let told = read(&dir, uid).map_err(|why| format!("{}: {why}", dir.user().display()))?;
    serde_json::to_vec(&told).map_err(|why| why.to_string())
}

fn read(dir: &RunDir, uid: u32) -> io::Result<Option<Application>> {
    let below = UserDir::open(dir, uid).and_then(|user| user.below(APP_DIR));
    let app = match below {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let (names, more) = app.names(MOST_FILES)?;
    let mut told = Application::default();
    let mut problems = Vec::new();
    for name in &names {
        let shown = railgate_text::clip(&name.to_string_lossy(), 40);
        match app.read(name, MOST_BYTES).map_err(|why| why.to_string()).and_then(|b| read_rank(&shown, &b)) {
            Ok(rank) => told.ranks.push(rank),
            Err(why) => problems.push(format!("{shown}: {why}")),
        }
    }
    if more {
        problems.push(format!("more than {MOST_FILES} files: the rest is not read"));
    }
    if problems.len() > MOST_PROBLEMS {
        let more = problems.len() - MOST_PROBLEMS;
        problems.truncate(MOST_PROBLEMS);
        problems.push(format!("and {more} more"));
    }
    told.problems = problems;
    told.ranks.sort_by_key(|rank| (rank.rank.is_none(), rank.rank, rank.started));
    Ok(Some(told).filter(|told| !told.ranks.is_empty() || !told.problems.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Mounted<'a>(&'a RunDir);

    impl Drop for Mounted<'_> {
        fn drop(&mut self) {
            let _ = railgate_rundir::unmount_user(self.0);
        }
    }

    #[test]
    fn only_regular_files_of_the_owner_are_read() {
        let place = tempfile::tempdir().unwrap();
        let run = railgate_rundir::Root::new(place.path())
            .job(7)
            .create(&railgate_rundir::Run::new(7, 0, 1_800_000_000))
            .unwrap();
        let uid = nix::unistd::geteuid().as_raw();
        assert_eq!(read(&run, uid).unwrap(), None);
        let Ok(_) = railgate_rundir::mount_user(&run, uid, 0, 1 << 20, 64) else { return };
        let _gone = Mounted(&run);
        assert_eq!(read(&run, uid).unwrap(), None);
        let app = run.user().join(APP_DIR);
        std::fs::create_dir(&app).unwrap();
        std::fs::write(app.join("sh"), "railgate-app 1 rank=1 t=1800000000\nstep n=1 t=1800000001\n")
            .unwrap();
        std::fs::write(app.join("no"), "?").unwrap();
        std::os::unix::fs::symlink("/etc/shadow", app.join("link")).unwrap();
        let told = read(&run, uid).unwrap().unwrap();
        assert_eq!((told.ranks.len(), told.ranks[0].rank, told.ranks[0].steps), (1, Some(1), 1));
        assert_eq!(told.problems.len(), 2, "{:?}", told.problems);
        assert!(told.problems[0].starts_with("link: not a regular file"), "{:?}", told.problems);
        railgate_rundir::unmount_user(&run).unwrap();
        // A link in place of the directory.
        let _ = railgate_rundir::mount_user(&run, uid, 0, 1 << 20, 64);
        std::os::unix::fs::symlink("/etc", run.user().join(APP_DIR)).unwrap();
        assert!(read(&run, uid).is_err());
    }
}
