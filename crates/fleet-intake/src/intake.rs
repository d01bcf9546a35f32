use std::collections::BTreeMap;

use railgate_fleet::{Event, Shared};
use railgate_model::UnixMillis;
use railgate_slurm::{Appended, LedgerMarks, NodeState};
use railgate_store::{ScanMarks, Scanned};
use serde::{Deserialize, Serialize};

use crate::attempts::Ran;
use crate::nodes::Nodes;
use crate::site::Placed;
use crate::{attempts, ledger, nodes, site};

/// Most jobs whose run times are kept, the last ones: a decision follows its line of the ledger within seconds, but the report directory
/// may be away for days.
const MOST_RAN: usize = 20_000;

/// How far each source was read. Kept in the history itself: after a backup is restored, what came later is read again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Intake {
    /// The ledger.
    pub ledger: LedgerMarks,
    /// The report directory.
    pub reports: ScanMarks,
    /// When slurmctld was asked last, also without an answer.
    pub asked: UnixMillis,
    /// When old events were deleted last.
    pub swept: UnixMillis,
    nodes: Nodes,
    placed: Placed,
    ran: Ran,
    /// When the line of each job was written.
    ran_at: BTreeMap<u32, UnixMillis>,
}

impl Intake {
    /// Takes over new lines of the ledger.
    pub fn ledger(&mut self, appended: &Appended) -> Vec<Event> {
        for entry in &appended.entries {
            let Some(ran_s) = entry.ran_s else { continue };
            let of_job = self.ran.entry(entry.job).or_default();
            of_job.retain(|(attempt, _)| *attempt != entry.attempt);
            of_job.push((entry.attempt, ran_s));
            self.ran_at.insert(entry.job, entry.time);
        }
        let surplus = self.ran_at.len().saturating_sub(MOST_RAN);
        if surplus > 0 {
            let mut by_time: Vec<(UnixMillis, u32)> =
                self.ran_at.iter().map(|(job, at)| (*at, *job)).collect();
            by_time.sort_unstable();
            for (_, job) in by_time.into_iter().take(surplus) {
                self.ran.remove(&job);
                self.ran_at.remove(&job);
            }
        }
        appended.entries.iter().flat_map(ledger::events).collect()
    }

    /// Takes over attempts of the report directory. Read the ledger after the scan and before this: the line of a decision is
    /// written first.
    ///
    /// `trusted`: the users whose files count: root and SlurmUser.
    pub fn attempts(&self, scanned: &Scanned, trusted: &[u32]) -> Vec<Event> {
        scanned.attempts.iter().flat_map(|attempt| attempts::events(attempt, trusted, &self.ran)).collect()
    }

    /// Takes over that a node was drained as a lemon just now. Returns the event.
    pub fn lemon_drained(&mut self, node: &str, reason: &str, now: UnixMillis) -> Event {
        nodes::lemon_drained(&mut self.nodes, node, reason, now)
    }

    /// Takes over the states of Slurm's nodes. `from`: the beginning of the history.
    pub fn nodes(&mut self, states: &[NodeState], now: UnixMillis, from: UnixMillis) -> Vec<Event> {
        nodes::observe(&mut self.nodes, states, now, from)
    }

    /// Takes over the site's table: what each node shares. `from`: the beginning of the history.
    pub fn site(
        &mut self,
        table: &BTreeMap<String, Vec<Shared>>,
        now: UnixMillis,
        from: UnixMillis,
    ) -> Vec<Event> {
        site::observe(&mut self.placed, table, now, from)
    }
}
