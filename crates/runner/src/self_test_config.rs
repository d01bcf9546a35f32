use std::path::PathBuf;
use std::time::Duration;

use railgate_model::duration_text;
use serde::{Deserialize, Serialize};

/// `[selftest]`: how many nodes of a job load their GPUs at once, so that the power of a room does not step, and the program that tests NCCL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SelfTestConfig {
    /// Most nodes of a job that test their GPUs at the same time.
    pub max_nodes_at_once: usize,
    /// Time over which these nodes start, one after the other.
    #[serde(with = "duration_text")]
    pub ramp: Duration,
    /// Each node waits for a random time up to this as well.
    #[serde(with = "duration_text")]
    pub jitter: Duration,
    /// `all_reduce_perf` of nccl-tests, which a preflight runs as the job's user; empty: the one in the job's `PATH`.
    pub all_reduce_perf: PathBuf,
}

impl Default for SelfTestConfig {
    fn default() -> Self {
        SelfTestConfig {
            max_nodes_at_once: 4096,
            ramp: Duration::ZERO,
            jitter: Duration::ZERO,
            all_reduce_perf: PathBuf::new(),
        }
    }
}

/// Longest ramp, and longest jitter.
const MOST: Duration = Duration::from_secs(60);
/// Longest ramp and jitter together with which all parts of a preflight fit into the 420 s that it has before a batch script: 90 s for one
/// group of GPUs, 30 s to find the devices, 80 s for each of three rounds.
const MOST_TOGETHER: Duration = Duration::from_secs(60);

impl SelfTestConfig {
    /// Values out of range, one line each.
    pub fn problems(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        if !(1..=4096).contains(&self.max_nodes_at_once) {
            wrong.push(format!(
                "selftest.max_nodes_at_once: {} is not within 1 to 4096",
                self.max_nodes_at_once
            ));
        }
        for (key, is) in [("ramp", self.ramp), ("jitter", self.jitter)] {
            if is > MOST {
                wrong.push(format!("selftest.{key}: {} s is above {} s", is.as_secs(), MOST.as_secs()));
            }
        }
        let program = &self.all_reduce_perf;
        if !program.as_os_str().is_empty() && !program.is_absolute() {
            wrong.push(format!("selftest.all_reduce_perf: '{}' is not an absolute path", program.display()));
        }
        wrong
    }

    /// What an admin should know about valid values.
    pub fn warning(&self) -> Option<String> {
        let together = self.ramp.saturating_add(self.jitter);
        (together > MOST_TOGETHER).then(|| {
            format!(
                "selftest.ramp and selftest.jitter: {} s together; above {} s a preflight before a batch script may leave out its last \
                 parts",
                together.as_secs(),
                MOST_TOGETHER.as_secs()
            )
        })
    }

    /// How long a node waits before its test. `place`: its index among the `of` nodes that test at the same time; `random`: any number.
    pub fn wait(&self, place: usize, of: usize, random: u64) -> Duration {
        let share = |most: Duration, part: f64| most.mul_f64(part.clamp(0.0, 1.0));
        let jitter = share(self.jitter, (random >> 11) as f64 / (1_u64 << 53) as f64);
        share(self.ramp, place as f64 / of.max(1) as f64) + jitter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_start_over_the_ramp_and_jitter() {
        let config = SelfTestConfig {
            ramp: Duration::from_secs(10),
            jitter: Duration::from_secs(2),
            ..SelfTestConfig::default()
        };
        assert_eq!(config.wait(0, 4, 0), Duration::ZERO);
        assert_eq!(config.wait(2, 4, 0), Duration::from_secs(5));
        let last = config.wait(3, 4, u64::MAX);
        assert!((Duration::from_millis(9400)..=Duration::from_millis(9500)).contains(&last), "{last:?}");
        assert_eq!(SelfTestConfig::default().wait(3, 4, u64::MAX), Duration::ZERO);
    }

    #[test]
    fn values_have_limits() {
        assert!(SelfTestConfig::default().problems().is_empty());
        let together = |ramp, jitter| SelfTestConfig {
            ramp: Duration::from_secs(ramp),
            jitter: Duration::from_secs(jitter),
            ..SelfTestConfig::default()
        };
        assert_eq!(together(40, 20).warning(), None);
        assert!(together(40, 21).problems().is_empty());
        assert!(together(40, 21).warning().unwrap().contains("61 s together; above 60 s"));
        let wrong = SelfTestConfig {
            max_nodes_at_once: 0,
            ramp: Duration::from_secs(61),
            jitter: Duration::from_secs(61),
            all_reduce_perf: PathBuf::from("all_reduce_perf"),
        };
        let problems = wrong.problems();
        assert_eq!(problems.len(), 4, "{problems:?}");
        assert_eq!(problems[1], "selftest.ramp: 61 s is above 60 s");
    }
}
