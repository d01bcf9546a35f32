use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use railgate_model::duration_text;

use crate::{Consent, GateLevel, UserPolicy};

/// `[slurm]`: Slurm's commands, and the options that users may set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SlurmConfig {
    /// Directory of scontrol, sinfo, squeue and scancel.
    pub bin_dir: PathBuf,
    /// slurm.conf, passed on as SLURM_CONF. Absent: the SLURM_CONF of the hook's environment, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conf: Option<PathBuf>,
    /// Deadline of one command. slurmctld itself may take ten seconds to report that it does not answer.
    #[serde(with = "duration_text")]
    pub timeout: Duration,
    /// The gate level of jobs that request none.
    pub default_gate: GateLevel,
    /// Gate levels that users may request.
    pub allow_gate: Vec<GateLevel>,
    /// Whether users may request an environment profile ([rails.profiles], `debug`).
    pub allow_profile: bool,
    /// Whether users may request the NCCL profiler plugin where the site does not enable it by default.
    pub allow_profiler: bool,
    /// Whether users may request that the steps of a job that hangs are ended.
    pub allow_hang_end: bool,
}

impl Default for SlurmConfig {
    fn default() -> Self {
        let users = UserPolicy::default();
        SlurmConfig {
            bin_dir: PathBuf::from("/usr/bin"),
            conf: None,
            timeout: Duration::from_secs(12),
            default_gate: users.default_gate,
            allow_gate: users.allow_gate,
            allow_profile: users.allow_profile,
            allow_profiler: users.allow_profiler,
            allow_hang_end: users.allow_hang_end,
        }
    }
}

impl SlurmConfig {
    /// Problems with values, one line each; empty if all are valid.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (key, path) in [("bin_dir", Some(&self.bin_dir)), ("conf", self.conf.as_ref())] {
            if let Some(path) = path.filter(|path| !path.is_absolute()) {
                problems.push(format!("slurm.{key}: '{}' is not an absolute path", path.display()));
            }
        }
        within(&mut problems, "slurm.timeout", self.timeout, 1, 60);
        // A preflight can keep a script from starting, which its owner has to ask for.
        if self.default_gate == GateLevel::Preflight {
            problems.push(
                "slurm.default_gate: preflight is only for jobs that ask for it (slurm.allow_gate)"
                    .to_owned(),
            );
        }
        problems
    }

    /// The options that users may set.
    pub fn user_policy(&self) -> UserPolicy {
        UserPolicy {
            default_gate: self.default_gate,
            allow_gate: self.allow_gate.clone(),
            allow_profile: self.allow_profile,
            allow_profiler: self.allow_profiler,
            allow_hang_end: self.allow_hang_end,
        }
    }
}

/// `[breaker]`: limits of automatic drains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BreakerConfig {
    /// Most nodes of the cluster that railgate keeps drained at once; 0 drains none.
    pub max_nodes: u32,
    /// And most percent of the cluster's nodes; less than one node counts as one.
    pub max_percent: f64,
    /// Most nodes of any one partition.
    pub partition_max_nodes: u32,
    /// And most percent of a partition's nodes; less than one node counts as one.
    pub partition_max_percent: f64,
    /// What the prolog does with a job on an unfit node that the breaker does not let it drain.
    pub on_breaker: OnBreaker,
}

/// Handling of a job if the breaker forbids the drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnBreaker {
    /// The job runs, and its owner is notified.
    #[default]
    Run,
    /// The job is requeued and held until a user or admin releases it.
    Hold,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        BreakerConfig {
            max_nodes: 10,
            max_percent: 10.0,
            partition_max_nodes: 10,
            partition_max_percent: 25.0,
            on_breaker: OnBreaker::Run,
        }
    }
}

impl BreakerConfig {
    /// Problems with values, one line each; empty if all are valid.
    pub fn problems(&self) -> Vec<String> {
        [("max_percent", self.max_percent), ("partition_max_percent", self.partition_max_percent)]
            .into_iter()
            .filter(|(_, percent)| !(0.0..=100.0).contains(percent))
            .map(|(key, percent)| format!("breaker.{key}: {percent} is not within 0 to 100"))
            .collect()
    }
}

/// `[requeue]`: whether and how often a job that failed because of a node is requeued.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RequeueConfig {
    /// For jobs without an option of their own: `auto`, `never` or a number of restarts.
    pub default: Consent,
    /// Most restarts within `window` after failures of a running job.
    pub max_restarts: u32,
    /// The sliding window of `max_restarts`.
    #[serde(with = "duration_text")]
    pub window: Duration,
    /// A run of at least this length restores the full budget.
    #[serde(with = "duration_text")]
    pub refill: Duration,
    /// Number of moves by the gate after which `move_backoff` no longer grows. Moves never hold a job.
    pub max_moves: u32,
    /// Delay of a job after its second move by the gate; it doubles with each further move. 0s: no delay.
    #[serde(with = "duration_text")]
    pub move_backoff: Duration,
    /// When a requeued job may start: `slurm` (after requeue_delay or cred_expire, two minutes by default) or `now`,
    /// a few seconds later. With `now`, a shared node on which the job ran before runs no prolog for it: slurmd
    /// removes a job's credentials at most every two seconds, and takes the new run for the old one.
    pub start: StartWhen,
    /// Restart jobs even if their log may be truncated (JobFileAppend=0 and no --open-mode=append).
    pub allow_truncated_log: bool,
    /// For jobs of `sbatch --requeue=expedite` (Slurm 25.11 and later): the epilog of a node that railgate drained for a
    /// fault under the job returns 1, so that Slurm restarts the job first, and the controller cancels one that Slurm
    /// would hold. The nodes and the controller need the same value.
    pub expedite: bool,
    /// How long the controller waits for the epilogs of the nodes.
    #[serde(with = "duration_text")]
    pub wait: Duration,
    /// Most waiting processes; a further one checks once without waiting.
    pub waiters: u32,
    /// Whether a failure found by a site's own check counts as the cause of a job's failure, if the job held the
    /// part.
    pub site_checks: bool,
    /// Whether jobs that requested no GPU may be requeued.
    pub without_gpus: bool,
    /// Evidence may be this much later than the job's end, since the clocks of nodes and controller differ.
    #[serde(with = "duration_text")]
    pub clock_slack: Duration,
}

/// When a requeued job may start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StartWhen {
    /// When Slurm permits it.
    #[default]
    Slurm,
    /// At once.
    Now,
}

impl Default for RequeueConfig {
    fn default() -> Self {
        RequeueConfig {
            default: Consent::Never,
            max_restarts: 3,
            window: Duration::from_secs(24 * 3600),
            refill: Duration::from_secs(3600),
            max_moves: 10,
            move_backoff: Duration::from_secs(30),
            start: StartWhen::Slurm,
            allow_truncated_log: false,
            expedite: false,
            wait: Duration::from_secs(60),
            waiters: 16,
            site_checks: true,
            without_gpus: true,
            clock_slack: Duration::from_secs(5),
        }
    }
}

impl RequeueConfig {
    /// Problems with values, one line each; empty if all are valid.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.max_restarts > 100 {
            problems.push(format!("requeue.max_restarts: {} is above 100", self.max_restarts));
        }
        if !(1..=64).contains(&self.waiters) {
            problems.push(format!("requeue.waiters: {} is not within 1 to 64", self.waiters));
        }
        within(&mut problems, "requeue.window", self.window, 60, 30 * 86400);
        within(&mut problems, "requeue.refill", self.refill, 1, 30 * 86400);
        within(&mut problems, "requeue.move_backoff", self.move_backoff, 0, 3600);
        within(&mut problems, "requeue.wait", self.wait, 1, 300);
        within(&mut problems, "requeue.clock_slack", self.clock_slack, 0, 300);
        problems
    }
}

fn within(problems: &mut Vec<String>, key: &str, value: Duration, low: u64, high: u64) {
    if !(Duration::from_secs(low)..=Duration::from_secs(high)).contains(&value) {
        let show = |secs| humantime::format_duration(Duration::from_secs(secs));
        problems.push(format!(
            "{key}: {} is not within {} to {}",
            humantime::format_duration(value),
            show(low),
            show(high)
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid() {
        assert!(SlurmConfig::default().problems().is_empty());
        assert!(BreakerConfig::default().problems().is_empty());
        assert!(RequeueConfig::default().problems().is_empty());
    }

    #[test]
    fn every_bad_value_is_named() {
        let slurm =
            SlurmConfig { bin_dir: PathBuf::from("bin"), timeout: Duration::ZERO, ..SlurmConfig::default() };
        assert_eq!(slurm.problems().len(), 2);
        let unasked = SlurmConfig { default_gate: GateLevel::Preflight, ..SlurmConfig::default() };
        assert_eq!(
            unasked.problems(),
            ["slurm.default_gate: preflight is only for jobs that ask for it (slurm.allow_gate)"]
        );
        let breaker = BreakerConfig { max_percent: f64::NAN, ..BreakerConfig::default() };
        assert_eq!(breaker.problems(), ["breaker.max_percent: NaN is not within 0 to 100"]);
        let requeue =
            RequeueConfig { waiters: 0, wait: Duration::from_secs(900), ..RequeueConfig::default() };
        assert_eq!(requeue.problems().len(), 2);
        assert_eq!(requeue.problems()[1], "requeue.wait: 15m is not within 1s to 5m");
    }

    #[test]
    fn a_config_survives_a_round_trip() {
        let requeue: RequeueConfig =
            serde_json::from_str(r#"{"default": "auto", "window": "12h", "start": "now"}"#).unwrap();
        assert_eq!((requeue.default, requeue.start), (Consent::Auto, StartWhen::Now));
        assert_eq!(requeue.window, Duration::from_secs(12 * 3600));
        let back: RequeueConfig = serde_json::from_str(&serde_json::to_string(&requeue).unwrap()).unwrap();
        assert_eq!(back, requeue);
        assert!(serde_json::from_str::<RequeueConfig>(r#"{"default": "often"}"#).is_err());
    }
}
