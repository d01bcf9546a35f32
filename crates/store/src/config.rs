use std::path::PathBuf;
use std::time::Duration;

use railgate_diagnosis::Rules;
use railgate_model::duration_text;
use serde::{Deserialize, Serialize};

/// `[report]`: storage of job reports, and access to them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReportConfig {
    /// Directory shared by every node and the controller, mode 1777, created by the site. Absent: every node
    /// keeps its reports in `local_dir`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
    /// Fallback for reports that could not be written to `dir`; on each machine, accessible to root only.
    pub local_dir: PathBuf,
    /// Users who may read a job's report.
    pub access: ReportAccess,
    /// Group of SlurmUser, which lets the controller read evidence and add its decision. If the group does not
    /// exist, only owner and root have access.
    pub controller_group: String,
    /// Days after the end of a job until its report is removed; 0 keeps reports.
    pub retention_days: u32,
    /// Days until samples of nodes are removed, which is earlier; 0 keeps them as long as the report.
    pub retention_sample_days: u32,
    /// Maximum of jobs in `local_dir` of a machine, the oldest are removed first; 0 is no limit.
    pub retention_jobs: u32,
    /// Maximum size of a node report, MiB: larger ones are truncated on writing and refused on reading.
    pub max_size_mib: u32,
    /// Deadline for writing to and reading from `dir`.
    #[serde(with = "duration_text")]
    pub deadline: Duration,
    /// Interval of partial node reports while a job runs, for `railgate report --live`; 0 disables them.
    #[serde(with = "duration_text")]
    pub live: Duration,
    /// Epilogs find the first error in the job's own logs, which only the job's owner can read in the report.
    pub log: bool,
    /// After the final end of a job, the controller writes a one-line summary into railgate's field of
    /// AdminComment in the accounting database. All users who may list the job with sacct can read it.
    pub admin_comment: bool,
    /// The controller records how Slurm ended each job beside the node reports, because slurmctld forgets it.
    /// Requires `dir`.
    pub record_ends: bool,
    /// The site's cable table, as read by `railgate fabric --table`. Reports then name the leaf switches of
    /// ports that waited or went down. All users who read reports must be able to read the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cables: Option<PathBuf>,
    /// Thresholds of the diagnosis rules.
    pub rules: Rules,
}

/// Users who may read a job's report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReportAccess {
    /// The job's owner and root.
    #[default]
    Owner,
    /// Also members of the job's primary group.
    Account,
}

impl Default for ReportConfig {
    fn default() -> Self {
        ReportConfig {
            dir: None,
            local_dir: PathBuf::from("/var/lib/railgate/reports"),
            access: ReportAccess::Owner,
            controller_group: "slurm".to_owned(),
            retention_days: 90,
            retention_sample_days: 14,
            retention_jobs: 10_000,
            max_size_mib: 8,
            deadline: Duration::from_secs(5),
            live: Duration::from_secs(120),
            log: true,
            admin_comment: false,
            record_ends: true,
            cables: None,
            rules: Rules::DEFAULT,
        }
    }
}

impl ReportConfig {
    /// Values out of range, one line each.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if let Some(dir) = &self.dir
            && !dir.is_absolute()
        {
            problems.push(format!("report.dir: '{}' is not an absolute path", dir.display()));
        }
        let paths = [("local_dir", Some(&self.local_dir)), ("cables", self.cables.as_ref())];
        for (key, path) in paths.into_iter().filter_map(|(key, path)| Some((key, path?))) {
            if !path.is_absolute() {
                problems.push(format!("report.{key}: '{}' is not an absolute path", path.display()));
            }
        }
        if !(1..=64).contains(&self.max_size_mib) {
            problems.push(format!("report.max_size_mib: {} is not within 1 to 64", self.max_size_mib));
        }
        let deadline = self.deadline;
        if !(Duration::from_millis(100)..=Duration::from_secs(60)).contains(&deadline) {
            problems.push(format!(
                "report.deadline: {} is not within 100ms to 60s",
                humantime::format_duration(deadline)
            ));
        }
        if !self.live.is_zero() && !(Duration::from_secs(1)..=Duration::from_secs(3600)).contains(&self.live)
        {
            problems.push(format!(
                "report.live: {} is neither 0s nor within 1s to 1h",
                humantime::format_duration(self.live)
            ));
        }
        problems.extend(self.rules.problems());
        problems
    }

    /// Time limit for reading the reports of a job with this number of nodes: the deadline plus 20 ms for each
    /// node, at most four times the deadline.
    pub fn time_for(&self, nodes: u32) -> Duration {
        (self.deadline + nodes * Duration::from_millis(20)).min(self.deadline * 4)
    }

    /// Maximum size of a node report, bytes.
    pub fn max_bytes(&self) -> u64 {
        u64::from(self.max_size_mib) << 20
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_in_range() {
        assert!(ReportConfig::default().problems().is_empty());
    }

    #[test]
    fn every_value_out_of_range_is_named() {
        let config = ReportConfig {
            dir: Some(PathBuf::from("reports")),
            max_size_mib: 0,
            deadline: Duration::from_secs(3600),
            ..ReportConfig::default()
        };
        let problems = config.problems();
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert!(problems.iter().any(|line| line.starts_with("report.dir: 'reports'")));
    }

    #[test]
    fn durations_are_written_as_text() {
        let config: ReportConfig = serde_json::from_str(r#"{"deadline": "3s"}"#).unwrap();
        assert_eq!(config.deadline, Duration::from_secs(3));
        assert!(serde_json::from_str::<ReportConfig>(r#"{"deadline": 3}"#).is_err());
        assert!(serde_json::from_str::<ReportConfig>(r#"{"dead_line": "3s"}"#).is_err());
    }
}
