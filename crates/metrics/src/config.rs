use std::path::PathBuf;
use std::time::Duration;

use railgate_model::duration_text;
use serde::{Deserialize, Serialize};

use crate::JobLabel;

/// `[metrics]`: files for the textfile collector of Prometheus' node_exporter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MetricsConfig {
    /// Directory of the textfile collector, created by the site. Absent: no metrics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
    /// Labels that describe the job on its series, besides its GPUs.
    pub labels: Vec<JobLabel>,
    /// Interval at which a job's file is written.
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
