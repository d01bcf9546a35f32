use serde::{Deserialize, Serialize};

use crate::UnixMillis;

/// The files that a job's processes on one node have as standard output or error, and the ranks among them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobOutputs {
    /// In the order in which they were found.
    pub files: Vec<JobOutput>,
    /// Ranks of the job that run here, sorted.
    pub ranks: Vec<u32>,
    /// Slurm's numbers of launchers that run here, other than those of ranks here: a probe before their ranks begin takes such a
    /// number for a rank.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub launchers: Vec<u32>,
    /// Whether there are files beyond the maximum.
    pub more: bool,
}

/// A regular file of the job's user that processes of the job have as standard output or error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobOutput {
    /// Its path when it was found. Another file may have it now: compare device and inode.
    pub path: String,
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Size when it was found, bytes.
    pub size: u64,
    /// When the file was created; `None` if the file system does not record it.
    pub created: Option<UnixMillis>,
    /// The rank that alone has it open; `None` for a file of several ranks.
    pub rank: Option<u32>,
    /// The task of a step (`SLURM_PROCID`) whose processes alone have it open.
    #[serde(default)]
    pub task: Option<u32>,
}

impl JobOutputs {
    /// Adds the result of a later probe. What was found first counts: its size separates earlier attempts.
    /// `most` is the maximum of files.
    pub fn add(&mut self, later: JobOutputs, most: usize) {
        for file in later.files {
            let same = |have: &&mut JobOutput| (have.device, have.inode) == (file.device, file.inode);
            let room = self.files.len() < most;
            match self.files.iter_mut().find(same) {
                // The file of the batch script becomes that of all ranks.
                Some(have) => {
                    have.rank = have.rank.filter(|rank| Some(*rank) == file.rank);
                    have.task = have.task.filter(|task| Some(*task) == file.task);
                }
                None if room => self.files.push(file),
                None => self.more = true,
            }
        }
        self.more |= later.more;
        self.launchers.extend(later.launchers);
        self.ranks.extend(later.ranks);
        self.ranks.retain(|rank| !self.launchers.contains(rank));
        for numbers in [&mut self.launchers, &mut self.ranks] {
            numbers.sort_unstable();
            numbers.dedup();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_probe_of_a_file_counts() {
        let file = |inode: u64, size: u64, rank: Option<u32>| JobOutput {
            path: format!("/home/a/{inode}"),
            device: 1,
            inode,
            size,
            created: None,
            rank,
            task: rank,
        };
        let mut all =
            JobOutputs { files: vec![file(1, 10, Some(3))], ranks: vec![3], ..JobOutputs::default() };
        let later = JobOutputs {
            files: vec![file(1, 900, Some(3)), file(2, 0, Some(4)), file(3, 0, None)],
            ranks: vec![4, 3],
            ..JobOutputs::default()
        };
        all.add(later, 2);
        assert_eq!(
            all,
            JobOutputs {
                files: vec![file(1, 10, Some(3)), file(2, 0, Some(4))],
                ranks: vec![3, 4],
                launchers: Vec::new(),
                more: true,
            }
        );
        all.add(JobOutputs { files: vec![file(1, 950, Some(4))], ..JobOutputs::default() }, 2);
        assert_eq!(all.files[0].rank, None, "two ranks write into it");
    }

    #[test]
    fn a_launcher_is_no_rank_once_its_ranks_are_known() {
        let probe = |launchers: &[u32], ranks: &[u32]| JobOutputs {
            launchers: launchers.to_vec(),
            ranks: ranks.to_vec(),
            ..JobOutputs::default()
        };
        let mut all = probe(&[], &[1]);
        all.add(probe(&[1], &[8, 9]), 2);
        assert_eq!(all.ranks, [8, 9]);
        // Its ranks have ended, and it looks like one again.
        all.add(probe(&[], &[1, 10]), 2);
        assert_eq!(all.ranks, [8, 9, 10]);
    }
}
