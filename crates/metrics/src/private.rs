use std::path::Path;

use super::JobLabel;

/// File beside the locks of jobs with slurmctld's `PrivateData`, written by the periodic check.
pub const PRIVATE_DATA: &str = "private-data";

/// The configured labels that may be shown. With `PrivateData=jobs` users must not see the owners of jobs; if
/// the setting is not known, everything is treated as private. `dir` belongs to root.
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
    fn private_data_of_slurm_removes_labels() {
        use JobLabel::{Job, Partition, User};
        let place = tempfile::tempdir().unwrap();
        let all = [Job, User, Partition];
        assert_eq!(shown(&all, place.path()), [Partition], "PrivateData is unknown");
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
