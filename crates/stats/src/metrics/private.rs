use std::path::Path;

use super::JobLabel;

/// Beside the locks of jobs: `PrivateData` as slurmctld last said it, written by the periodic check.
pub const PRIVATE_DATA: &str = "private-data";

/// Which of the labels that the site wants may be shown: with `PrivateData=jobs` users must not see whose jobs run, and
/// where it cannot be told what Slurm keeps private, it keeps all of it. `dir` is root's.
pub fn shown(wanted: &[JobLabel], dir: &Path) -> Vec<JobLabel> {
    let said = std::fs::read_to_string(dir.join(PRIVATE_DATA)).ok();
    let private = |what: &str| {
        said.as_ref().is_none_or(|said| said.split(',').any(|word| word.trim().eq_ignore_ascii_case(what)))
    };
    let may = |label: &&JobLabel| match label {
        JobLabel::Job => !private("jobs"),
        JobLabel::User => !private("jobs") && !private("users"),
        JobLabel::Partition => true,
    };
    wanted.iter().filter(may).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_slurm_keeps_private_is_no_label() {
        use JobLabel::{Job, Partition, User};
        let place = tempfile::tempdir().unwrap();
        let all = [Job, User, Partition];
        assert_eq!(shown(&all, place.path()), [Partition], "nobody has said");
        for (said, left) in [
            ("none", &[Job, User, Partition][..]),
            ("accounts,usage", &[Job, User, Partition]),
            ("cloud,users", &[Job, Partition]),
            ("accounts,Jobs", &[Partition]),
        ] {
            std::fs::write(place.path().join(PRIVATE_DATA), said).unwrap();
            assert_eq!(shown(&all, place.path()), left, "{said}");
        }
    }
}
