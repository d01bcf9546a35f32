use std::time::Duration;

use humantime::format_duration;
use railgate_model::{UnixMillis, duration_text};
use railgate_node_report::Hang;
use serde::{Deserialize, Serialize};

use crate::is_wait_for_storage;

/// `[guard]`: finds jobs that hang while they run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GuardConfig {
    /// What follows a hang.
    pub mode: GuardMode,
    /// How long others wait after the end of a rank's process before it is called a hang.
    #[serde(with = "duration_text")]
    pub after_exit: Duration,
    /// The same of a rank that is stopped (SIGSTOP).
    #[serde(with = "duration_text")]
    pub after_stop: Duration,
    /// How long no rank makes progress, without such a proof.
    #[serde(with = "duration_text")]
    pub after: Duration,
    /// How long a rank waits for a file system.
    #[serde(with = "duration_text")]
    pub after_storage: Duration,
    /// How long a job hangs before its steps are ended, if they are to be.
    #[serde(with = "duration_text")]
    pub end_after: Duration,
    /// Most jobs of the cluster whose steps are ended within an hour, because they hung.
    pub max_per_hour: u32,
    /// If this many other jobs of the cluster hang within ten minutes, none is ended.
    pub max_at_once: u32,
}

/// What follows a hang.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GuardMode {
    /// Hangs are not looked for.
    Off,
    /// The report names it.
    #[default]
    Report,
    /// A line in the job's own output names it as well.
    Notify,
    /// The same, and the job's steps are ended.
    End,
}

impl Default for GuardConfig {
    fn default() -> Self {
        GuardConfig {
            mode: GuardMode::default(),
            after_exit: Duration::from_secs(20),
            after_stop: Duration::from_secs(45),
            after: Duration::from_secs(150),
            after_storage: Duration::from_secs(600),
            end_after: Duration::from_secs(300),
            max_per_hour: 10,
            max_at_once: 3,
        }
    }
}

/// Least time from the naming of a hang to the end of the steps: stacks are taken, and other nodes announce their hangs.
const SETTLE: Duration = Duration::from_secs(10);

impl GuardConfig {
    /// Whether the steps of a job with this hang are to be ended now. `storage`: also if it waits for storage, because its
    /// owner named a time.
    pub fn ends(&self, hang: &Hang, storage: bool, now: UnixMillis) -> bool {
        let lasts = |since: UnixMillis| Duration::from_millis(now.saturating_sub(since));
        (!is_wait_for_storage(hang) || storage)
            && lasts(hang.named) >= SETTLE
            && lasts(hang.since) >= self.end_after
    }

    /// Duration of a wait after which a node takes the stacks of its ranks, although it has named none of them: before the steps may be
    /// ended because of a rank of another node.
    pub fn stacks_after(&self) -> Duration {
        match self.mode {
            GuardMode::End => self.after.min(self.end_after / 2),
            GuardMode::Off | GuardMode::Report | GuardMode::Notify => self.after,
        }
    }

    /// Values out of range, one line each.
    pub fn problems(&self) -> Vec<String> {
        let limits = [
            ("after_exit", self.after_exit, 10, 86_400),
            ("after_stop", self.after_stop, 20, 86_400),
            ("after", self.after, 60, 86_400),
            ("after_storage", self.after_storage, 60, 86_400),
            ("end_after", self.end_after, 30, 86_400),
        ];
        let wrong = limits.into_iter().filter_map(|(key, is, least, most)| {
            let (least, most) = (Duration::from_secs(least), Duration::from_secs(most));
            (!(least..=most).contains(&is)).then(|| {
                let [is, least, most] = [is, least, most].map(format_duration);
                format!("guard.{key}: {is} is not within {least} to {most}")
            })
        });
        wrong.collect()
    }
}
