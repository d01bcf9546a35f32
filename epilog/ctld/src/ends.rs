//! Notes on first attempts that ended with exit code 0, about which slurmctld is not queried.
//!
//! If a node fails during a first attempt, exit code 0 is all that this program receives. If Slurm requeues the job,
//! the job's next event finds its former nodes here. One short line per job of the cluster, two files, no lock: a
//! lost line only costs a node's name in a report.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use railgate_fsutil::nofollow;
use railgate_model::UnixMillis;
use railgate_slurm::Env;

use crate::call::now;

/// Size at which the file is started again, bytes: several hundred thousand jobs.
const ROTATE_AT: u64 = 8 << 20;
/// Longest node list that is noted.
const MAX_LIST: usize = 16 << 10;

/// How a first attempt ended, from its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// When.
    pub(crate) time: UnixMillis,
    /// Its nodes, unexpanded.
    pub(crate) nodelist: String,
}

fn files(own: &Path) -> [PathBuf; 2] {
    [own.join("ends.1"), own.join("ends")]
}

/// Notes an end. Failures are not logged, since there would be one for each job.
pub(crate) fn note(own: &Path, env: &Env) {
    let text = |name: &str| env.get(OsStr::new(name)).and_then(|value| value.to_str());
    let nodes = ["SLURM_HET_JOB_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];
    let list = nodes.into_iter().find_map(text).filter(|list| {
        !list.is_empty() && list.len() <= MAX_LIST && list.bytes().all(|byte| byte.is_ascii_graphic())
    });
    let job = text("SLURM_JOB_ID").and_then(|id| id.parse::<u32>().ok());
    if let (Some(list), Some(job)) = (list, job) {
        let _ = append(own, &format!("{job} {} {list}\n", now()));
    }
}

fn append(own: &Path, line: &str) -> io::Result<()> {
    let [old, file] = files(own);
    if fs::metadata(&file).is_ok_and(|found| found.len() >= ROTATE_AT) {
        fs::rename(&file, old)?;
    }
    let open = || nofollow::append(&file, 0o644);
    let mut file = match open() {
        Err(why) if why.kind() == io::ErrorKind::NotFound => {
            DirBuilder::new().mode(0o755).recursive(true).create(own)?;
            open()?
        }
        opened => opened?,
    };
    // A single write, so that lines of concurrent calls stay whole.
    file.write_all(line.as_bytes())
}

/// The latest noted end of this job.
pub(crate) fn find(own: &Path, job: u32) -> Option<End> {
    let mut found = None;
    for path in files(own) {
        let Ok(file) = File::open(path) else { continue };
        let mut text = String::new();
        if file.take(2 * ROTATE_AT).read_to_string(&mut text).is_err() {
            continue;
        }
        let mut lines = text.lines().filter_map(|line| {
            let mut words = line.split(' ');
            let own = words.next()?.parse::<u32>().ok()? == job;
            let (time, nodelist) = (words.next()?.parse().ok()?, words.next()?.to_owned());
            own.then_some(End { time, nodelist })
        });
        found = lines.next_back().or(found);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(job: &str, list: &str) -> Env {
        [("SLURM_JOB_ID", job), ("SLURM_JOB_NODELIST", list)]
            .map(|(name, value)| (name.into(), value.into()))
            .into()
    }

    #[test]
    fn the_latest_end_of_a_job_is_found() {
        let place = tempfile::tempdir().unwrap();
        let own = place.path().join("controller");
        assert_eq!(find(&own, 7), None);
        for (job, list) in
            [("7", "n1"), ("77", "n5"), ("7", "n[2-3]"), ("8", "n4"), ("9", "n 4"), ("x", "n1")]
        {
            note(&own, &env(job, list));
        }
        assert_eq!(find(&own, 7).unwrap().nodelist, "n[2-3]");
        assert_eq!(find(&own, 8).unwrap().nodelist, "n4");
        assert_eq!(find(&own, 9), None);
        fs::rename(own.join("ends"), own.join("ends.1")).unwrap();
        assert_eq!(find(&own, 7).unwrap().nodelist, "n[2-3]");
        note(&own, &env("7", "n9"));
        assert_eq!(find(&own, 7).unwrap().nodelist, "n9");
    }
}
