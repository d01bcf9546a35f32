use std::io;
use std::path::Path;
use std::time::SystemTime;

use railgate_fsutil::{read_small, write_whole};
use railgate_model::Fitness;
use serde::{Deserialize, Serialize};

use crate::RunDir;

const NAME: &str = "step-check.json";
/// Its content is not secret: Slurm shows each user why a node is drained.
const MODE: u32 = 0o644;

/// `step-check.json`: root's check of this node after a failed step of `railgate launch`, for the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepCheck {
    /// Version of the file format.
    pub schema: u32,
    /// `RAILGATE_START` of the step.
    pub start: u32,
    /// The verdict; `None`: no task failed here, so that the node was not checked.
    pub fitness: Option<Fitness>,
    /// The deciding finding, for example `gpu-lost@3: 0000:9b:00.0 off bus, Xid 79`; empty if there is none.
    pub why: String,
}

impl StepCheck {
    /// The result after this start.
    pub fn new(start: u32, fitness: Option<Fitness>, why: String) -> Self {
        StepCheck { schema: 1, start, fitness, why }
    }

    /// Writes it, as root, for every user that knows the job's id.
    ///
    /// # Errors
    /// The file system returned an error.
    pub fn write(&self, run: &RunDir) -> io::Result<()> {
        write_whole(&run.file(NAME), &serde_json::to_vec(self)?, MODE)
    }

    /// When the newest one was written; `None` if there is none.
    pub fn written(run: &RunDir) -> Option<SystemTime> {
        std::fs::symlink_metadata(run.file(NAME)).ok()?.modified().ok()
    }

    /// Reads it in a run's directory, as the job.
    ///
    /// # Errors
    /// It does not exist (no step of `railgate launch` has failed here), or cannot be read.
    pub fn read(run: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&read_small(&run.join(NAME))?)?)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::{Root, Run};

    #[test]
    fn the_job_reads_what_root_wrote() {
        let place = tempfile::tempdir().unwrap();
        let job = Root::new(place.path()).job(7);
        let run = job.create(&Run::new(7, 0, 1_800_000_000)).unwrap();
        let current = job.path().join("current");
        assert_eq!(StepCheck::read(&current).unwrap_err().kind(), io::ErrorKind::NotFound);
        run.publish().unwrap();
        let check = StepCheck::new(2, Some(Fitness::Unfit), "gpu-lost@3: off bus".to_owned());
        check.write(&run).unwrap();
        assert_eq!(StepCheck::read(&current).unwrap(), check);
        let mode = std::fs::metadata(run.file(NAME)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
    }
}
