use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use railgate_fsutil::{read_small, write_whole};
use serde::{Deserialize, Serialize};

use crate::{NoteDir, unmount_user};

/// Readable by root only.
const PRIVATE_FILE: u32 = 0o600;
/// Under construction, accessible to root only.
const PRIVATE_DIR: u32 = 0o700;
/// Other users can reach paths below by name, but cannot list the directory; only the job's own files are open to the
/// job.
const PASSAGE: u32 = 0o711;
/// Files for tasks that an earlier version wrote to the run's directory itself.
const TASKS_READ: [&str; 2] = ["nccl.env", "topology.xml"];

/// `/run/railgate`, or the directory in the configuration, which must belong to root.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

/// `jobs/<jobid>`.
#[derive(Clone, Debug)]
pub struct JobDir(PathBuf);

/// `jobs/<jobid>/<run>`.
#[derive(Clone, Debug)]
pub struct RunDir(PathBuf);

/// Why there is no run directory.
#[derive(Debug, thiserror::Error)]
pub enum NoRun {
    /// The prolog wrote none: railgate was disabled, or was installed after the job started.
    #[error("no run of job {0} on this node")]
    Absent(u32),
    /// It exists and cannot be read.
    #[error("{path}: {source}")]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error of the file system.
        source: io::Error,
    },
}

/// `run.json`: the prolog's data about the run. Prolog, sampler, plugin and epilog all read attempt and start from
/// here, never from their own environment, and so agree on them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Version of the file format.
    pub schema: u32,
    /// Job id.
    pub job: u32,
    /// `SLURM_JOB_RESTART_COUNT` in the prolog.
    pub attempt: u32,
    /// When the prolog began, Unix seconds.
    pub start: u64,
    /// Boot id at the prolog.
    pub boot_id: String,
    /// Last sequence number of the kernel log at the prolog.
    pub kernel_seq: Option<u64>,
    /// `--railgate-profile` after policy, if any.
    pub profile: Option<String>,
    /// `--railgate-gate` after policy: `off`, `quick`, `full`.
    pub gate: String,
    /// `--railgate-requeue` after policy: `auto`, `never` or a number of restarts.
    pub requeue: String,
    /// `--railgate-hang` after policy: `report`, `notify`, `end`, `end,after=600s`; `None`: the site's default.
    #[serde(default)]
    pub hang: Option<String>,
}

impl Run {
    /// A run with default options and without readings.
    pub fn new(job: u32, attempt: u32, start: u64) -> Self {
        Run {
            schema: 1,
            job,
            attempt,
            start,
            boot_id: String::new(),
            kernel_seq: None,
            profile: None,
            gate: "quick".to_owned(),
            requeue: "auto".to_owned(),
            hang: None,
        }
    }
}

impl Root {
    /// Uses the given directory.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Root(path.into())
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Jobs that have a directory here, each with the start of its newest run, Unix seconds; 0 for a job without a
    /// run. Other entries are left out.
    pub fn jobs(&self) -> Vec<(u32, u64)> {
        let entries = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
        let name = |entry: &fs::DirEntry| entry.file_name().into_string().ok();
        let start = |entry: fs::DirEntry| name(&entry)?.split_once('-')?.1.parse::<u64>().ok();
        let job = |entry: fs::DirEntry| {
            let id =
                name(&entry)?.parse().ok().filter(|_| entry.file_type().is_ok_and(|kind| kind.is_dir()))?;
            Some((id, entries(&entry.path()).filter_map(start).max().unwrap_or(0)))
        };
        let mut jobs: Vec<(u32, u64)> = entries(&self.0.join("jobs")).filter_map(job).collect();
        jobs.sort_unstable();
        jobs
    }

    /// Restricts permissions that an earlier version left open: files of all runs that only root reads, and the
    /// listings of the directories.
    ///
    /// # Errors
    /// The first error of the file system; the remaining paths are still restricted. A missing directory is no error.
    pub fn close(&self) -> io::Result<()> {
        let mut done = Ok(());
        let mut set =
            |path: &Path, mode: u32| match fs::set_permissions(path, fs::Permissions::from_mode(mode)) {
                Err(why) if why.kind() != io::ErrorKind::NotFound && done.is_ok() => done = Err(why),
                _ => {}
            };
        let is_dir = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
        let is_open = |entry: &fs::DirEntry| entry.metadata().is_ok_and(|meta| meta.mode() & 0o044 != 0);
        let entries = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
        let jobs = self.0.join("jobs");
        set(&jobs, PASSAGE);
        // Directories of root, in which no other user can rename an entry.
        for job in entries(&jobs).filter(is_dir).filter(is_open) {
            for run in entries(&job.path()).filter(is_dir) {
                for file in entries(&run.path()).filter(is_open) {
                    let is_file = file.file_type().is_ok_and(|kind| kind.is_file());
                    if is_file && !TASKS_READ.iter().any(|name| file.file_name() == *name) {
                        set(&file.path(), PRIVATE_FILE);
                    }
                }
                set(&run.path(), PASSAGE);
            }
            // Last, since an open directory is processed again after an interruption.
            set(&job.path(), PASSAGE);
        }
        done
    }

    /// `jobs/<jobid>`, which need not exist.
    pub fn job(&self, job: u32) -> JobDir {
        JobDir(self.0.join("jobs").join(job.to_string()))
    }
}

impl JobDir {
    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The run that is current on this node.
    ///
    /// # Errors
    /// [`NoRun::Absent`] if the prolog wrote none, [`NoRun::Unreadable`] if the link cannot be read.
    pub fn current(&self, job: u32) -> Result<RunDir, NoRun> {
        let link = self.0.join("current");
        match fs::read_link(&link) {
            // railgate's link contains a single name; any other target is not followed.
            Ok(name) if name.components().count() == 1 => Ok(RunDir(self.0.join(name))),
            Ok(_) => Err(NoRun::Absent(job)),
            Err(why) if why.kind() == io::ErrorKind::NotFound => Err(NoRun::Absent(job)),
            Err(source) => Err(NoRun::Unreadable { path: link, source }),
        }
    }

    /// Creates the run's directory and writes `run.json`. It becomes `current`, and accessible to the job, only by
    /// [`RunDir::publish`]: until then no user can interfere with root's writes there.
    ///
    /// # Errors
    /// The file system returned an error.
    pub fn create(&self, run: &Run) -> io::Result<RunDir> {
        fs::DirBuilder::new().recursive(true).mode(PASSAGE).create(&self.0)?;
        let dir = self.0.join(format!("{}-{}", run.attempt, run.start));
        match fs::DirBuilder::new().mode(PRIVATE_DIR).create(&dir) {
            Err(why) if why.kind() == io::ErrorKind::AlreadyExists => {
                fs::set_permissions(&dir, fs::Permissions::from_mode(PRIVATE_DIR))?;
            }
            made => made?,
        }
        let dir = RunDir(dir);
        dir.write_json("run.json", run)?;
        Ok(dir)
    }

    /// Removes the job's directory with all its runs and all mounts on their `user/`, including earlier runs whose
    /// epilog did not run.
    ///
    /// # Errors
    /// The first error; a missing directory is no error.
    pub fn remove(&self) -> io::Result<()> {
        for run in fs::read_dir(&self.0).into_iter().flatten() {
            let run = run?;
            if run.file_type()?.is_dir() {
                unmount_user(&RunDir(run.path()))?;
            }
        }
        match fs::remove_dir_all(&self.0) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => Err(why),
            _ => Ok(()),
        }
    }
}

impl RunDir {
    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Path of a file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// `user/`, where the job itself may write.
    pub fn user(&self) -> PathBuf {
        self.file("user")
    }

    /// Makes this the job's `current` run, and opens it to the job.
    ///
    /// # Errors
    /// The file system returned an error.
    pub fn publish(&self) -> io::Result<()> {
        let (Some(parent), Some(name)) = (self.0.parent(), self.0.file_name()) else {
            return Err(io::Error::other("run directory has no parent"));
        };
        let fresh = parent.join(format!(".current.{}", std::process::id()));
        match fs::remove_file(&fresh) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(why),
            _ => {}
        }
        fs::set_permissions(&self.0, fs::Permissions::from_mode(PASSAGE))?;
        symlink(name, &fresh)?;
        fs::rename(&fresh, parent.join("current"))
    }

    /// Writes a file for root atomically: to a temporary name, then renamed.
    ///
    /// # Errors
    /// The file system returned an error.
    pub fn write(&self, name: &str, content: &[u8]) -> io::Result<()> {
        write_whole(&self.file(name), content, PRIVATE_FILE)
    }

    /// Writes a file for the job's tasks, which open it by its name in the run's directory. The content is in
    /// `user/`, as `.name`, which only the job's user can open. Root does not read it back, as that user can replace
    /// it.
    ///
    /// # Errors
    /// `user/` does not exist, the run is already published, or the file system returned an error.
    pub fn write_for_tasks(&self, name: &str, content: &[u8], uid: u32) -> io::Result<()> {
        if fs::metadata(&self.0)?.mode() & 0o077 != 0 {
            return Err(io::Error::other("the run is the job's already"));
        }
        let hidden = format!(".{name}");
        NoteDir::find(&self.0)?.write_for(&hidden, content, uid)?;
        let link = self.file(name);
        match fs::remove_file(&link) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(why),
            _ => {}
        }
        symlink(Path::new("user").join(hidden), link)
    }

    /// Writes a value as JSON.
    ///
    /// # Errors
    /// The file system returned an error.
    pub fn write_json<T: Serialize>(&self, name: &str, value: &T) -> io::Result<()> {
        self.write(name, &serde_json::to_vec(value)?)
    }

    /// Reads a file that root wrote.
    ///
    /// # Errors
    /// Errors of the file system; a file over 32 MiB is refused.
    pub fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        read_small(&self.file(name))
    }

    /// Reads a JSON value that root wrote.
    ///
    /// # Errors
    /// As [`RunDir::read`]; `InvalidData` if the content is not valid JSON of this type.
    pub fn read_json<T: for<'de> Deserialize<'de>>(&self, name: &str) -> io::Result<T> {
        Ok(serde_json::from_slice(&self.read(name)?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_listed_with_their_newest_run() {
        let place = tempfile::tempdir().unwrap();
        let root = Root::new(place.path());
        assert_eq!(root.jobs(), []);
        for (job, attempt, start) in [(7, 0, 100), (7, 1, 300), (9, 0, 50)] {
            root.job(job).create(&Run { job, start, ..run(attempt) }).unwrap();
        }
        fs::create_dir(place.path().join("jobs/4711")).unwrap();
        fs::create_dir(place.path().join("jobs/not-a-job")).unwrap();
        fs::write(place.path().join("jobs/8"), "").unwrap();
        assert_eq!(root.jobs(), [(7, 300), (9, 50), (4711, 0)]);
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn other_users_reach_paths_by_name_and_read_no_root_file() {
        let place = tempfile::tempdir().unwrap();
        let job = Root::new(place.path()).job(7);
        let dir = job.create(&run(0)).unwrap();
        assert_eq!(mode(dir.path()), 0o700, "no user can interfere while it is made");
        fs::DirBuilder::new().mode(0o700).create(dir.user()).unwrap();
        let uid = nix::unistd::geteuid().as_raw();
        for content in [b"old", b"new"] {
            dir.write_for_tasks("nccl.env", content, uid).unwrap();
        }
        assert_eq!(fs::read(dir.file("nccl.env")).unwrap(), b"new");
        assert_eq!(mode(&dir.user().join(".nccl.env")), 0o400);
        assert!(dir.read("nccl.env").is_err(), "root does not read back what the user can replace");
        dir.publish().unwrap();
        assert!(dir.write_for_tasks("nccl.env", b"late", uid).is_err());
        for path in [place.path().join("jobs"), job.path().to_owned(), dir.path().to_owned()] {
            assert_eq!(mode(&path), 0o711, "{}", path.display());
        }
        assert_eq!(mode(&dir.file("run.json")), 0o600);
        // A second prolog in the same second closes it again.
        assert_eq!(mode(job.create(&run(0)).unwrap().path()), 0o700);
    }

    #[test]
    fn permissions_of_an_earlier_version_are_restricted() {
        let place = tempfile::tempdir().unwrap();
        let root = Root::new(place.path());
        root.close().unwrap();
        let dir = root.job(7).path().join("0-1");
        fs::create_dir_all(dir.join("user")).unwrap();
        let files = ["run.json", "report.json", "task.env", "tasks.json", "nccl.env", "topology.xml"];
        for name in files {
            fs::write(dir.join(name), "").unwrap();
            fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o644)).unwrap();
        }
        fs::set_permissions(dir.join("user"), fs::Permissions::from_mode(0o700)).unwrap();
        for path in [place.path().join("jobs"), root.job(7).path().to_owned(), dir.clone()] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        root.close().unwrap();
        assert_eq!(files.map(|name| mode(&dir.join(name))), [0o600, 0o600, 0o600, 0o600, 0o644, 0o644]);
        for path in [place.path().join("jobs"), root.job(7).path().to_owned(), dir.clone()] {
            assert_eq!(mode(&path), 0o711, "{}", path.display());
        }
        assert_eq!(mode(&dir.join("user")), 0o700);
    }

    fn run(attempt: u32) -> Run {
        Run { boot_id: "b".to_owned(), kernel_seq: Some(3), ..Run::new(7, attempt, 1_800_000_000) }
    }

    #[test]
    fn the_published_run_is_current() {
        let place = tempfile::tempdir().unwrap();
        let root = Root::new(place.path());
        assert!(matches!(root.job(7).current(7), Err(NoRun::Absent(7))));
        for attempt in [0, 1] {
            root.job(7).create(&run(attempt)).unwrap().publish().unwrap();
            let current = root.job(7).current(7).unwrap();
            assert_eq!(current.read_json::<Run>("run.json").unwrap(), run(attempt));
        }
        root.job(7).remove().unwrap();
        assert!(!root.job(7).path().exists());
    }

    #[test]
    fn a_current_link_that_leaves_the_directory_is_no_run() {
        let place = tempfile::tempdir().unwrap();
        let root = Root::new(place.path());
        fs::create_dir_all(root.job(7).path()).unwrap();
        symlink("/etc", root.job(7).path().join("current")).unwrap();
        assert!(matches!(root.job(7).current(7), Err(NoRun::Absent(7))));
    }
}
