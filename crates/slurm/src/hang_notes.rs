//! Hangs of running jobs, in the Slurm `Comment` of the nodes that found them:
//! `railgate: hangs: 48213 hangs 2026-11-23T09:00:00Z, 48217 ended 2026-11-23T09:10:00Z`.
//!
//! A node whose guard is to end a job counts all such jobs in the cluster first. Only root, SlurmUser and operators can write a node's comment, and
//! slurmctld keeps it, so no user can forge or hide an entry. slurmctld has no compare-and-swap: a node writes that it ends the
//! job, then counts, and takes it back if earlier ones have used up the limit. All nodes use the same order (time, then job). The
//! controller's program reads from the same entry that the guard ended the job, and not its owner; so does `railgate launch`.
//! Nothing but time and that retraction removes such an entry, as long as a node has at most [`MOST`] of them: a later hang of the same job does not
//! replace it, and entries of jobs that were not ended make room first.
//!
//! A comment that railgate did not write is never changed; such a node ends no job.

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::Client;
use crate::answer::{UnixSeconds, time};

const NOTE: &str = "railgate: hangs: ";
/// Entries older than this are dropped, seconds. The limit of ended jobs is for this time.
const HOUR: u64 = 3600;
/// Hangs within this time of each other may have a common cause, seconds.
const AT_ONCE: u64 = 600;
/// Most entries of a node. `sinfo` cuts a comment after 512 characters.
const MOST: usize = 12;

/// A job that hangs, or that the guard ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HangNote {
    /// When the hang was named; of an ended job, when the guard ended it.
    pub time: UnixSeconds,
    /// Job id.
    pub job: u32,
    /// What is known.
    pub stage: HangStage,
}

/// Stages of a hang.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HangStage {
    /// Ranks wait for a file system, which may recover.
    Storage,
    /// It hangs.
    Hangs,
    /// The guard ends its steps.
    Ended,
    /// The guard has ended its steps, and `railgate launch` has started it again in the same allocation.
    Restarted,
}

impl HangStage {
    fn word(self) -> &'static str {
        match self {
            HangStage::Storage => "storage",
            HangStage::Hangs => "hangs",
            HangStage::Ended => "ended",
            HangStage::Restarted => "restarted",
        }
    }

    /// Whether the guard has ended the job's steps. Such entries count for the limit.
    pub fn was_ended(self) -> bool {
        matches!(self, HangStage::Ended | HangStage::Restarted)
    }
}

/// How many jobs the guard may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HangLimits {
    /// Most jobs of the cluster that are ended within an hour.
    pub per_hour: u32,
    /// If this many other jobs hang within ten minutes, none is ended.
    pub at_once: u32,
}

impl fmt::Display for HangNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(self.time));
        write!(f, "{} {} {time}", self.job, self.stage.word())
    }
}

impl HangNote {
    /// How long an entry counts, seconds.
    pub const COUNTS_S: u64 = HOUR;

    /// Longest time from the guard's decision to the end of the job, seconds: Slurm waits for its processes to end (`KillWait`), and
    /// scripts clean up. A job that ends later ended for another reason.
    pub const ENDS_WITHIN_S: u64 = 600;

    /// Whether the entry still counts.
    pub fn counts(&self, now: UnixSeconds) -> bool {
        now.saturating_sub(self.time) <= HOUR
    }

    fn parse(text: &str) -> Option<HangNote> {
        let mut words = text.split_whitespace();
        let (job, stage, at) = (words.next()?, words.next()?, words.next()?);
        let all = [HangStage::Storage, HangStage::Hangs, HangStage::Ended, HangStage::Restarted];
        Some(HangNote {
            time: at.strip_suffix('Z').and_then(time)?,
            job: job.parse().ok()?,
            stage: all.into_iter().find(|one| one.word() == stage)?,
        })
    }

    /// The entries of a comment; empty for a comment that is not about hangs.
    pub fn all(comment: &str) -> Vec<HangNote> {
        let list = comment.strip_prefix(NOTE).unwrap_or_default();
        list.split(',').filter_map(HangNote::parse).collect()
    }

    /// Whether the guard may end this job now, by the entries of all nodes.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn may_end(&self, all: &[HangNote], limits: HangLimits) -> Result<(), String> {
        let others = |notes: &mut dyn Iterator<Item = &HangNote>| {
            notes.map(|one| one.job).filter(|job| *job != self.job).collect::<BTreeSet<u32>>().len()
        };
        let own = all.iter().filter(|one| one.job == self.job && !one.stage.was_ended());
        let own = own.min().unwrap_or(self);
        // Named at nearly the same time, however long ago that is: jobs that hang together are left alone together.
        let near = |one: &&HangNote| !one.stage.was_ended() && one.time.abs_diff(own.time) <= AT_ONCE;
        let at_once = others(&mut all.iter().filter(near));
        if at_once >= limits.at_once.try_into().unwrap_or(usize::MAX) {
            return Err(format!(
                "{} at the same time, which suggests a common cause (guard.max_at_once = {})",
                counted(at_once, "other job hangs", "other jobs hang"),
                limits.at_once
            ));
        }
        // One storage system serves many jobs, which reach it at different times.
        let waits = |one: &&HangNote| one.stage == HangStage::Storage && one.counts(self.time);
        let storage = others(&mut all.iter().filter(waits));
        if own.stage == HangStage::Storage && storage > 0 {
            let others = counted(storage, "other job does", "other jobs do");
            return Err(format!("it waits for storage, as {others}"));
        }
        let before = |one: &&HangNote| {
            one.stage.was_ended() && one.counts(self.time) && (one.time, one.job) < (self.time, self.job)
        };
        let ended = others(&mut all.iter().filter(before));
        if ended >= limits.per_hour.try_into().unwrap_or(usize::MAX) {
            return Err(format!(
                "{} within an hour (guard.max_per_hour = {})",
                counted(ended, "job that hung was ended", "jobs that hung were ended"),
                limits.per_hour
            ));
        }
        Ok(())
    }
}

/// A change to the entries of a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum HangChange {
    /// The job hangs.
    Hangs(HangNote),
    /// The guard ends the job's steps: the hang, and this.
    Ends(HangNote, HangNote),
    /// The guard has not ended the steps after all: this entry is removed.
    NotEnded(HangNote),
    /// The job's ranks work.
    Over {
        /// Job id.
        job: u32,
    },
    /// The job was started again after its steps were ended.
    Restarted {
        /// Job id.
        job: u32,
    },
    /// Only entries that no longer count are removed.
    Age,
}

impl HangChange {
    fn make(&self, all: &mut Vec<HangNote>) {
        let forget = |all: &mut Vec<HangNote>, job| all.retain(|one| one.job != job || one.stage.was_ended());
        match self {
            HangChange::Hangs(hang) => {
                forget(all, hang.job);
                all.push(*hang);
            }
            HangChange::Ends(hang, end) => {
                forget(all, hang.job);
                all.extend([*hang, *end]);
            }
            HangChange::NotEnded(end) => all.retain(|one| one != end),
            HangChange::Over { job } => forget(all, *job),
            HangChange::Restarted { job } => {
                forget(all, *job);
                for one in all.iter_mut().filter(|one| one.job == *job) {
                    one.stage = HangStage::Restarted;
                }
            }
            HangChange::Age => {}
        }
    }
}

fn counted(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// The comment with this change, without old entries. `None`: it is not railgate's, and stays.
fn changed(comment: &str, change: &HangChange, now: UnixSeconds) -> Option<String> {
    if !comment.is_empty() && !comment.starts_with(NOTE) {
        return None;
    }
    let mut all = HangNote::all(comment);
    all.retain(|one| one.counts(now));
    change.make(&mut all);
    while all.len() > MOST {
        let oldest = all.iter().position(|one| !one.stage.was_ended()).unwrap_or(0);
        all.remove(oldest);
    }
    let list: Vec<String> = all.iter().map(HangNote::to_string).collect();
    Some(if list.is_empty() { String::new() } else { format!("{NOTE}{}", list.join(", ")) })
}

impl Client {
    /// Changes the entries in a node's comment, and drops those older than an hour.
    ///
    /// # Errors
    /// In words: slurmctld does not answer, or the node has a comment that is not about hangs.
    pub fn note_hang(&self, node: &str, change: &HangChange, now: UnixSeconds) -> Result<(), String> {
        let comment = self.node(node).map_err(|why| why.to_string())?.comment;
        let text = changed(&comment, change, now).ok_or_else(|| {
            format!("the Slurm comment of {node} is in use: '{}'", railgate_text::clip(&comment, 60))
        })?;
        if text == comment {
            return Ok(());
        }
        self.set_comment(node, &text).map_err(|why| why.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixSeconds = 1_795_222_799;

    fn note(job: u32, stage: HangStage, ago: u64) -> HangNote {
        HangNote { time: NOW - ago, job, stage }
    }

    const LIMITS: HangLimits = HangLimits { per_hour: 3, at_once: 2 };

    #[test]
    fn entries_survive_a_round_trip_and_foreign_comments_stay() {
        let first = changed("", &HangChange::Hangs(note(7, HangStage::Hangs, 0)), NOW).unwrap();
        assert_eq!(first, "railgate: hangs: 7 hangs 2026-11-21T00:59:59Z");
        let mine = note(9, HangStage::Ended, 0);
        let second = changed(&first, &HangChange::Ends(note(9, HangStage::Storage, 0), mine), NOW).unwrap();
        assert_eq!(HangNote::all(&second).iter().map(|one| one.job).collect::<Vec<_>>(), [7, 9, 9]);
        let without = changed(&second, &HangChange::NotEnded(mine), NOW).unwrap();
        assert_eq!(changed(&without, &HangChange::Over { job: 9 }, NOW).unwrap(), first);
        assert_eq!(changed(&second, &HangChange::Age, NOW + 3601).unwrap(), "");
        for foreign in ["rack 7", "railgate: unfit, not drained (breaker): x", "railgate: hangs"] {
            assert_eq!(changed(foreign, &HangChange::Over { job: 7 }, NOW), None, "{foreign}");
        }
        let broken = "railgate: hangs: 7 hangs, 8 ended 2026-11-21T00:59:59Z, x ended 2026-11-21T00:59:59Z, 9 runs -, ";
        assert_eq!(HangNote::all(broken), [note(8, HangStage::Ended, 0)]);
        let many = (1..=20).fold(String::new(), |text, job| {
            changed(&text, &HangChange::Hangs(note(job, HangStage::Hangs, 0)), NOW).unwrap()
        });
        assert!(HangNote::all(&many).len() == MOST && many.len() < 512, "{many}");
    }

    #[test]
    fn the_entry_of_a_job_that_was_ended_stays_whatever_the_job_does_next() {
        let (hang, end) = (note(7, HangStage::Hangs, 60), note(7, HangStage::Ended, 30));
        let ended = changed("", &HangChange::Ends(hang, end), NOW).unwrap();
        for change in [HangChange::Over { job: 7 }, HangChange::Hangs(note(7, HangStage::Hangs, 0))] {
            let notes = HangNote::all(&changed(&ended, &change, NOW).unwrap());
            assert!(notes.contains(&end) && !notes.contains(&hang), "{change:?}: {notes:?}");
        }
        let restarted = changed(&ended, &HangChange::Restarted { job: 7 }, NOW).unwrap();
        assert_eq!(HangNote::all(&restarted), [note(7, HangStage::Restarted, 30)]);
        // It counts for the limit as before.
        let used = [note(8, HangStage::Restarted, 700), note(9, HangStage::Ended, 700)];
        assert!(note(10, HangStage::Ended, 0).may_end(&used, HangLimits { per_hour: 2, ..LIMITS }).is_err());
    }

    #[test]
    fn a_job_that_hangs_alone_may_be_ended() {
        let mine = note(7, HangStage::Ended, 0);
        assert_eq!(mine.may_end(&[mine], LIMITS), Ok(()));
        // Two nodes of one job name the same hang.
        assert_eq!(mine.may_end(&[mine, note(7, HangStage::Hangs, 5), mine], LIMITS), Ok(()));
        assert_eq!(mine.may_end(&[mine, note(8, HangStage::Hangs, 5)], LIMITS), Ok(()));
        assert_eq!(
            mine.may_end(&[mine, note(8, HangStage::Hangs, 700), note(9, HangStage::Ended, 700)], LIMITS),
            Ok(())
        );
        assert!(mine.may_end(&[mine], HangLimits { per_hour: 0, ..LIMITS }).is_err());
    }

    #[test]
    fn of_jobs_that_hang_together_none_is_ended() {
        let hang: Vec<HangNote> = (1..=50).map(|job| note(job, HangStage::Hangs, u64::from(job))).collect();
        for job in 1..=50 {
            let mine = note(job, HangStage::Ended, 0);
            let why = mine.may_end(&hang, LIMITS).unwrap_err();
            assert!(why.starts_with("49 other jobs hang at the same time"), "{why}");
        }
    }

    #[test]
    fn of_two_jobs_that_wait_for_storage_none_is_ended() {
        let all = [note(7, HangStage::Storage, 60), note(8, HangStage::Storage, 90)];
        let mine = note(7, HangStage::Ended, 0);
        assert!(mine.may_end(&all, LIMITS).unwrap_err().contains("waits for storage"));
        assert_eq!(mine.may_end(&all[..1], LIMITS), Ok(()));
        assert_eq!(mine.may_end(&all[1..], LIMITS), Ok(()), "its own hang has another cause");
    }

    #[test]
    fn at_most_the_limit_is_ended_in_an_hour_whoever_counts_first() {
        // All write before any counts.
        let all: Vec<HangNote> =
            (1..=9).map(|job| note(job, HangStage::Ended, 2000 - 700 * u64::from(job % 3))).collect();
        let limits = HangLimits { per_hour: 4, at_once: 100 };
        let ended: Vec<u32> =
            all.iter().filter(|one| one.may_end(&all, limits).is_ok()).map(|one| one.job).collect();
        assert_eq!(ended.len(), 4, "{ended:?}");
        let limits_of_nine = HangLimits { per_hour: 9, at_once: 100 };
        assert!(note(10, HangStage::Ended, 0).may_end(&all, limits_of_nine).is_err());
        let old: Vec<HangNote> = (1..=9).map(|job| note(job, HangStage::Ended, 3700)).collect();
        assert_eq!(note(10, HangStage::Ended, 0).may_end(&old, limits), Ok(()));
    }
}
