use std::collections::BTreeMap;
use std::time::Duration;

use railgate_model::duration_text;
use serde::{Deserialize, Serialize};

use crate::comm::{Reference, Share};
use crate::usage::peaks::SiteModel;

/// `[stats]`: contents of a node report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StatsConfig {
    /// Maximum of kernel log lines other than Xids; the first ones are kept.
    pub max_kernel_events: usize,
    /// Events up to this long after the start of the epilog belong to the run, because kernel and system clocks
    /// differ.
    #[serde(with = "duration_text")]
    pub event_slack: Duration,
    /// Run the sampler beside each job with GPUs.
    pub sampler: bool,
    /// Time from the prolog to the sampler's first probe of the job's processes. Each further probe follows at
    /// three times the time of the last one, later every hour.
    #[serde(with = "duration_text")]
    pub task_look: Duration,
    /// Interval at which the sampler reads GPUs, ports and the job's cgroup.
    #[serde(with = "duration_text")]
    pub sample: Duration,
    /// Which jobs with GPUs get the NCCL profiler plugin.
    pub nccl_profiler: Share,
    /// Absolute path of that plugin, as tasks see it.
    pub nccl_profiler_path: String,
    /// The site's peaks and calibrations, by NVML's model name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub models: BTreeMap<String, SiteModel>,
    /// Bus bandwidths measured by the site, for the column "ref" of a report.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub references: Vec<Reference>,
}

/// Path in the packages.
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
    /// Time of the next probe of processes, given that of the last one; both since the start.
    pub fn next_look(&self, last: Duration) -> Duration {
        (last * 3).min(last + Duration::from_secs(3600))
    }

    /// How long NCCL must have been in use to count as set up; shorter than the time between the first two
    /// probes.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_in_range() {
        assert!(StatsConfig::default().problems().is_empty());
    }
}
