use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use railgate_model::duration_text;

use crate::comm::{Reference, Share};
use crate::diagnosis::Rules;
use crate::usage::peaks::SiteModel;

use crate::metrics::JobLabel;

/// `[report]`: where the reports of jobs go and who may read them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReportConfig {
    /// A directory that every node and the controller share, mode 1777, made by the site. Absent: every
    /// node keeps its own part in `local_dir`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
    /// Where a part goes that `dir` cannot take; root's alone, on each machine.
    pub local_dir: PathBuf,
    /// Who may read a job's report.
    pub access: ReportAccess,
    /// The group of SlurmUser: the controller reads a job's evidence and adds its decision through it. A
    /// group that does not exist leaves the reports to their owner and root alone.
    pub controller_group: String,
    /// Reports whose job ended longer ago are removed, days; 0 keeps them.
    pub retention_days: u32,
    /// The nodes' samples are removed earlier, days; 0 keeps them as long as the report.
    pub retention_sample_days: u32,
    /// At most so many jobs in `local_dir` of a machine, the oldest go first; 0 is no limit.
    pub retention_jobs: u32,
    /// A part that is larger is refused on reading and shortened on writing, MiB.
    pub max_size_mib: u32,
    /// How long writing or reading in `dir` may take.
    #[serde(with = "duration_text")]
    pub deadline: Duration,
    /// While a job runs its nodes say so often what they know, for `railgate report --live`; 0 is never.
    #[serde(with = "duration_text")]
    pub live: Duration,
    /// When a job has ended for good, the controller puts one line of its report into our field of its AdminComment in
    /// the accounting database. Every user who may see the job in sacct sees it.
    pub admin_comment: bool,
    /// The controller records beside the nodes' parts how Slurm ended each job, for the time when slurmctld has forgotten it.
    /// Needs `dir`.
    pub record_ends: bool,
    /// The site's table of cables, as `railgate fabric --table` reads it: reports then name the leafs of ports that waited
    /// or went down. Every user who reads a report must be able to read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cables: Option<PathBuf>,
    /// Thresholds of the diagnosis rules.
    pub rules: Rules,
}

/// Who may read a job's report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReportAccess {
    /// The job's owner and root.
    #[default]
    Owner,
    /// Members of the job's primary group as well.
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

    /// How long it may take to read what the nodes of a job of so many nodes reported: 20 ms more for each node, at most
    /// four times the deadline.
    pub fn time_for(&self, nodes: u32) -> Duration {
        (self.deadline + nodes * Duration::from_millis(20)).min(self.deadline * 4)
    }

    /// The largest part, bytes.
    pub fn max_bytes(&self) -> u64 {
        u64::from(self.max_size_mib) << 20
    }
}

/// `[stats]`: what a node's part of the report holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StatsConfig {
    /// Kernel lines that are no Xid: at most so many, the first ones.
    pub max_kernel_events: usize,
    /// An event so long after the epilog began still belongs to the run (the kernel's clock is not ours).
    #[serde(with = "duration_text")]
    pub event_slack: Duration,
    /// Run the sampler beside each job with GPUs.
    pub sampler: bool,
    /// The sampler's first look at the job's processes, so long after the prolog; each further one at three times
    /// the last one's time, then every hour.
    #[serde(with = "duration_text")]
    pub task_look: Duration,
    /// How often the sampler reads the GPUs, the ports and the job's cgroup.
    #[serde(with = "duration_text")]
    pub sample: Duration,
    /// Which jobs with GPUs get the NCCL profiler plugin.
    pub nccl_profiler: Share,
    /// That plugin, absolute path, as tasks see it.
    pub nccl_profiler_path: String,
    /// The site's own peaks and calibrations, by NVML's name of the model.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub models: BTreeMap<String, SiteModel>,
    /// Bus bandwidths that the site has measured on its own machines, for the report's column "ref".
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub references: Vec<Reference>,
}

/// Where packages put it.
const PROFILER: &str = "/usr/lib/railgate/libnccl-profiler-railgate.so";

impl Default for StatsConfig {
    fn default() -> Self {
        StatsConfig {
            max_kernel_events: 200,
            event_slack: Duration::from_secs(2),
            sampler: true,
            task_look: Duration::from_secs(20),
            sample: Duration::from_secs(5),
            nccl_profiler: Share::default(),
            nccl_profiler_path: PROFILER.to_owned(),
            models: BTreeMap::new(),
            references: Vec::new(),
        }
    }
}

impl StatsConfig {
    /// When the processes are looked at next, after a probe `last` after the start.
    pub fn next_look(&self, last: Duration) -> Duration {
        (last * 3).min(last + Duration::from_secs(3600))
    }

    /// How long after NCCL was first seen it counts as set up: less than lies between the first two probes.
    pub fn settled(&self) -> Duration {
        self.task_look * 3 / 2
    }

    /// Values out of range, one line each.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if let Some(wrong) = self.references.iter().find(|one| one.busbw_gb_s <= 0.0 || one.bytes == 0) {
            problems.push(format!("stats.references: {} of {} bytes: not above 0", wrong.op, wrong.bytes));
        }
        if self.max_kernel_events > 10_000 {
            problems.push(format!("stats.max_kernel_events: {} is above 10000", self.max_kernel_events));
        }
        if self.event_slack > Duration::from_secs(60) {
            problems.push(format!(
                "stats.event_slack: {} is above 60s",
                humantime::format_duration(self.event_slack)
            ));
        }
        if !(Duration::from_secs(1)..=Duration::from_secs(600)).contains(&self.task_look) {
            problems.push(format!(
                "stats.task_look: {} is not within 1s to 10m",
                humantime::format_duration(self.task_look)
            ));
        }
        if !(Duration::from_secs(1)..=Duration::from_secs(60)).contains(&self.sample) {
            problems.push(format!(
                "stats.sample: {} is not within 1s to 1m",
                humantime::format_duration(self.sample)
            ));
        }
        problems.extend(self.models.iter().flat_map(|(name, model)| model.problems(name)));
        problems
    }
}

/// `[metrics]`: files for the textfile collector of Prometheus' node_exporter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MetricsConfig {
    /// The collector's directory, made by the site. Absent: no metrics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
    /// What the series of a job tell of it besides its GPUs.
    pub labels: Vec<JobLabel>,
    /// How often a job's file is written.
    #[serde(with = "duration_text")]
    pub interval: Duration,
}

impl Default for MetricsConfig {
    fn default() -> Self {
        MetricsConfig { dir: None, labels: Vec::new(), interval: Duration::from_secs(15) }
    }
}

impl MetricsConfig {
    /// Values out of range, one line each.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if let Some(dir) = &self.dir
            && !dir.is_absolute()
        {
            problems.push(format!("metrics.dir: '{}' is not an absolute path", dir.display()));
        }
        if !(Duration::from_secs(1)..=Duration::from_secs(300)).contains(&self.interval) {
            problems.push(format!(
                "metrics.interval: {} is not within 1s to 5m",
                humantime::format_duration(self.interval)
            ));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_in_range() {
        assert!(ReportConfig::default().problems().is_empty());
        assert!(StatsConfig::default().problems().is_empty());
    }

    #[test]
    fn every_bad_value_is_named() {
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
    fn durations_are_text() {
        let config: ReportConfig = serde_json::from_str(r#"{"deadline": "3s"}"#).unwrap();
        assert_eq!(config.deadline, Duration::from_secs(3));
        assert!(serde_json::from_str::<ReportConfig>(r#"{"deadline": 3}"#).is_err());
        assert!(serde_json::from_str::<ReportConfig>(r#"{"dead_line": "3s"}"#).is_err());
    }
}
