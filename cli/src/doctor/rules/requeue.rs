//! What slurm.conf says about requeued jobs.

use railgate_slurm::Consent;

use super::super::facts::Facts;
use super::{Found, Level, conf};

/// The release that has `sbatch --requeue=expedite` and `requeue_delay`.
const EXPEDITES: (u32, u32) = (25, 11);

pub(super) fn job_log(facts: &Facts, found: &mut Found) {
    let (Some(conf), Ok(config)) = (conf(facts), &facts.config) else { return };
    if conf.get("JobFileAppend") == Some("0") && !config.requeue.allow_truncated_log {
        // Individual jobs may still set --open-mode=append.
        let level = if config.requeue.default == Consent::Never { Level::Note } else { Level::Wrong };
        found.add(level, "slurm.conf: JobFileAppend=0", "JobFileAppend=1, or #SBATCH --open-mode=append");
    }
}

pub(super) fn delay(facts: &Facts, found: &mut Found) {
    const LONG: u64 = 60;
    /// Slurm's default, seconds.
    const DEFAULT: u64 = 120;
    let Some(conf) = conf(facts) else { return };
    let value = |key: &str, word: &str| -> Option<u64> {
        conf.get(key)?.split(',').find_map(|part| part.strip_prefix(word)?.strip_prefix('=')?.parse().ok())
    };
    let new = conf.release().is_some_and(|release| release >= EXPEDITES);
    let (delay, put) = if new {
        (value("SchedulerParameters", "requeue_delay"), "SchedulerParameters=…,requeue_delay=10")
    } else {
        (value("AuthInfo", "cred_expire"), "AuthInfo=cred_expire=60")
    };
    let delay = delay.unwrap_or(DEFAULT);
    if delay > LONG {
        found.add(Level::Note, format!("slurm.conf: a requeued job waits {delay} s"), put);
    }
}

pub(super) fn expedited(facts: &Facts, found: &mut Found) {
    let (Some(conf), Ok(config)) = (conf(facts), &facts.config) else { return };
    if !config.requeue.expedite {
        return;
    }
    match conf.release() {
        Some(release) if release < EXPEDITES => {
            let what =
                format!("[requeue] expedite needs Slurm 25.11, this is {}.{:02}", release.0, release.1);
            found.wrong(what, "expedite = false");
        }
        Some(_) if !conf.lists("SlurmctldParameters", "enable_expedited_requeue") => found.wrong(
            "slurm.conf: SlurmctldParameters lacks enable_expedited_requeue",
            "SlurmctldParameters=…,enable_expedited_requeue",
        ),
        _ => {}
    }
}
