//! Since when each rank has been at rest: one quiet reading of ten seconds is not enough to call a wait a hang.

use std::collections::BTreeMap;

use railgate_model::UnixMillis;

use crate::judge::rests;
use crate::sample::{NodeSample, RankSample};

/// Processes are looked at only when their GPUs have waited or been idle for some time. If the first reading comes within this time and
/// shows a rank at rest, it has been so since the wait began, milliseconds.
const FIRST_READING: UnixMillis = 120_000;

/// Ranks by process id.
#[derive(Debug, Default)]
pub(crate) struct Rests {
    /// Since when; `None`: the last reading showed that it computes, transfers data or waits for requests.
    since: BTreeMap<u32, Option<UnixMillis>>,
}

impl Rests {
    /// Adds the readings of a sample. `begin`: when GPUs began to wait or to be idle. A rank without a reading stays as it was.
    pub(crate) fn add(&mut self, sample: &NodeSample<'_>, begin: UnixMillis) {
        self.since.retain(|pid, _| sample.ranks.iter().any(|one| one.pid == *pid));
        for one in sample.ranks {
            let Some(state) = &one.state else { continue };
            let known = self.since.get(&one.pid).copied();
            let first = || match sample.end.saturating_sub(begin) <= FIRST_READING {
                true => begin,
                false => sample.start,
            };
            let since = match known {
                _ if !rests(state) => None,
                None => Some(first()),
                Some(since) => since.or(Some(sample.start)),
            };
            self.since.insert(one.pid, since);
        }
    }

    /// Forgets all readings, when GPUs work.
    pub(crate) fn clear(&mut self) {
        self.since.clear();
    }

    /// Since when a rank has been at rest, by its readings, or has ended; `None`: it is not, or it is not known.
    pub(crate) fn since(&self, rank: &RankSample) -> Option<UnixMillis> {
        rank.ended.map(|(time, _)| time).or_else(|| self.since.get(&rank.pid).copied().flatten())
    }
}
