use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use railgate_child::Task;
use railgate_node_report::Communication;
use railgate_node_report::comm::gather;
use railgate_rankfile::{BYTES, RankFile};
use railgate_rundir::{Root, RunDir, UserDir};

const READ: &str = "read-ranks";

/// Runs in a child: the job's owner could mount a file system there that never answers.
pub(crate) const TASK: Task = Task::new(READ, task);

const DEADLINE: Duration = Duration::from_secs(10);
/// Where the profiler plugin writes, under the run's `user/`.
const PLACE: &str = "ranks";
/// Most files that are read. A job with more processes on a node would cost minutes of the epilog.
const MOST_FILES: usize = 512;
/// Most lines about unreadable files.
const MOST_UNREAD: usize = 16;

/// Counters of NCCL's profiler plugin for a job's processes on this node; `None` if it ran in none. The job can write
/// there too, so the counters are displayed and decide nothing. `run`: [`crate::Places::run`].
///
/// # Errors
/// The reason why nothing could be read.
pub fn communication(run: &Path, job: u32, uid: u32) -> Result<Option<Communication>, String> {
    let order = serde_json::to_vec(&(run, job, uid)).map_err(|why| why.to_string())?;
    let reply = railgate_child::ask(READ, &order, DEADLINE)?;
    serde_json::from_slice(&reply).map_err(|why| why.to_string())
}

fn task(input: &[u8]) -> Result<Vec<u8>, String> {
    let (root, job, uid): (PathBuf, u32, u32) =
        serde_json::from_slice(input).map_err(|why| why.to_string())?;
    let dir = Root::new(root).job(job).current(job).map_err(|why| why.to_string())?;
    let found = read(&dir, uid).map_err(|why| format!("{}: {why}", dir.user().display()))?;
    serde_json::to_vec(&found).map_err(|why| why.to_string())
}

fn read(dir: &RunDir, uid: u32) -> io::Result<Option<Communication>> {
    let place = match UserDir::open(dir, uid).and_then(|user| user.sub(PLACE)) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let (names, more) = place.names(MOST_FILES)?;
    let (mut files, mut unread) = (Vec::new(), Vec::new());
    for name in names.iter().filter(|name| *name != "mode") {
        let read = place.read(name, BYTES as u64).map_err(|why| why.to_string());
        match read.and_then(|bytes| RankFile::parse(&bytes).map_err(|why| why.to_string())) {
            Ok(file) => files.push(file),
            Err(why) if unread.len() < MOST_UNREAD => {
                let name: String =
                    name.to_string_lossy().chars().filter(char::is_ascii_graphic).take(40).collect();
                unread.push(format!("{name}: {why}"));
            }
            Err(_) => {}
        }
    }
    if more {
        unread.push(format!("files beyond the first {MOST_FILES} were not read"));
    }
    let nothing = files.is_empty() && unread.is_empty();
    Ok((!nothing).then(|| gather(&files, unread)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use railgate_rankfile::{MAGIC, VERSION};
    use railgate_rundir::Run;

    use super::*;

    #[test]
    fn hostile_files_are_reported_and_the_others_read() {
        let place = tempfile::tempdir().unwrap();
        let me = fs::metadata(place.path()).map(|meta| std::os::unix::fs::MetadataExt::uid(&meta)).unwrap();
        let run = Root::new(place.path()).job(7).create(&Run::new(7, 0, 1)).unwrap();
        fs::create_dir(run.user()).unwrap();
        assert_eq!(read(&run, me).unwrap(), None);
        let ranks = run.user().join(PLACE);
        fs::create_dir(&ranks).unwrap();
        assert_eq!(read(&run, me).unwrap(), None);
        let mut good = vec![0_u8; BYTES];
        good[..8].copy_from_slice(&MAGIC.to_le_bytes());
        good[8..16].copy_from_slice(&VERSION.to_le_bytes());
        fs::write(ranks.join("good"), &good).unwrap();
        fs::write(ranks.join("mode"), "full").unwrap();
        fs::write(ranks.join("torn"), &good[..BYTES - 8]).unwrap();
        fs::write(ranks.join("large"), vec![0; BYTES + 1]).unwrap();
        symlink("/etc/passwd", ranks.join("link\n")).unwrap();
        let found = read(&run, me).unwrap().unwrap();
        assert_eq!((found.processes.len(), found.unread.len()), (1, 3), "{:?}", found.unread);
        assert!(found.unread.contains(&"link: not a regular file".to_owned()), "{:?}", found.unread);
        fs::remove_dir_all(&ranks).unwrap();
        symlink("/etc", &ranks).unwrap();
        assert!(read(&run, me).is_err());
    }
}
