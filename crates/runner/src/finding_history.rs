//! Finding history of this node, with the resulting drains: `/var/lib/railgate/findings.json`.
//!
//! A persisting finding is one episode, however often it is found: from the check run that found it first to the last
//! one before a check of the whole node found it gone. The number of episodes is bounded, so that the file cannot
//! fill the disk; the counts per check outlive the episodes.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use railgate_fsutil::{FileLock, read_small, write_whole};
use railgate_gate::{CHECKS, GateConfig, would_drain};
use railgate_model::{Class, Finding, Phase, Severity};
use railgate_slurm::DrainOutcome;
use serde::{Deserialize, Serialize};

use crate::history::LOCK_WAIT;
use crate::{CheckRun, Places, now};

const MOST_EPISODES: usize = 200;
const MOST_JOBS: usize = 8;
const MOST_GIVEN: usize = 100;

/// One finding over the time for which it persisted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Episode {
    /// The finding as last seen, without its evidence.
    pub finding: Finding,
    /// UUID, serial number or GUID of the part; empty if unknown.
    #[serde(default)]
    pub identity: String,
    /// The boot in which it was last seen.
    #[serde(default)]
    pub boot_id: String,
    /// The phase in which it was last seen.
    pub phase: Phase,
    /// First seen, Unix seconds.
    pub first: u64,
    /// Last seen, Unix seconds.
    pub last: u64,
    /// Number of check runs that found it.
    pub looks: u32,
    /// No check of the whole node has found it gone yet.
    pub open: bool,
    /// Its check is in shadow.
    #[serde(default)]
    pub shadow: bool,
    /// Phase and class of the finding would drain the node.
    #[serde(default)]
    pub would_drain: bool,
    /// When the node was drained because of it, Unix seconds.
    #[serde(default)]
    pub drained: Option<u64>,
    /// Outcome of a drain that was not carried out.
    #[serde(default)]
    pub outcome: String,
    /// Jobs affected, at most the first eight.
    #[serde(default)]
    pub jobs: Vec<u32>,
}

/// How often a check has reported a finding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Episodes.
    pub seen: u64,
    /// Episodes that would have drained the node if the check were in enforce mode.
    pub would_drain: u64,
    /// Episodes that did drain it.
    pub drained: u64,
    /// When the last episode began, Unix seconds.
    pub last: u64,
}

/// Finding history of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FindingHistory {
    /// Version of the file format.
    pub schema: u32,
    /// Start of the counts, Unix seconds.
    pub begun: u64,
    /// Episodes, oldest first.
    pub episodes: Vec<Episode>,
    /// Counts by check id.
    pub counts: BTreeMap<String, Count>,
    /// When an admin resumed the node with `railgate readmit`, oldest first.
    pub given_back: Vec<Given>,
}

/// One `railgate readmit` of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Given {
    /// Unix seconds.
    pub time: u64,
    /// User who requested it.
    pub by: String,
    /// The drain reason at that time.
    pub reason: String,
    /// The admin confirmed a repair that no check can verify (`--repaired`).
    #[serde(default)]
    pub repaired: bool,
}

fn file(places: &Places) -> PathBuf {
    places.state.join("findings.json")
}

impl FindingHistory {
    /// Loads the history; empty if the file is missing. An unreadable file is a fault of railgate: it is logged, and
    /// the history starts empty.
    pub fn load(places: &Places) -> Self {
        let path = file(places);
        match read_small(&path) {
            Ok(content) => serde_json::from_slice(&content).unwrap_or_else(|why| {
                tracing::warn!("{}: {why}; counting from zero", path.display());
                FindingHistory::default()
            }),
            Err(why) if why.kind() == io::ErrorKind::NotFound => FindingHistory::default(),
            Err(why) => {
                tracing::warn!("{}: {why}; counting from zero", path.display());
                FindingHistory::default()
            }
        }
    }

    /// Whether any episode is still open.
    pub fn open(&self) -> bool {
        self.episodes.iter().any(|episode| episode.open)
    }

    /// Changes the history under a lock. Returns whether an episode is still open.
    pub(crate) fn change(places: &Places, change: impl FnOnce(&mut FindingHistory)) -> bool {
        let path = file(places);
        let changed = std::fs::create_dir_all(&places.state).and_then(|()| {
            let _held = FileLock::take(&path.with_extension("lock"), LOCK_WAIT)?;
            let mut past = FindingHistory::load(places);
            if past.begun == 0 {
                past.begun = now() / 1000;
            }
            past.schema = 1;
            change(&mut past);
            write_whole(&path, &serde_json::to_vec(&past)?, 0o644)?;
            Ok(past.open())
        });
        changed.unwrap_or_else(|why| {
            tracing::warn!("{}: {why}; findings are not counted", path.display());
            false
        })
    }

    /// Adds a check run. `whole`: it judged the whole node, so every finding that it did not report has ended.
    pub(crate) fn note(&mut self, gate: &GateConfig, check_run: &CheckRun, job: Option<u32>, whole: bool) {
        let time = check_run.snapshot.taken / 1000;
        let phase = check_run.verdict.phase;
        let open = |finding: &Finding| finding.severity > Severity::Note && finding.class != Class::Internal;
        let found: Vec<(&Finding, bool)> = check_run
            .verdict
            .findings
            .iter()
            .map(|finding| (finding, false))
            .chain(check_run.verdict.shadow.iter().map(|finding| (finding, true)))
            .filter(|(finding, _)| open(finding))
            .collect();
        if whole {
            // When a site's own check runs is unknown here: an episode ends only in the phase that found it.
            let ran = |episode: &&mut Episode| {
                let known = CHECKS.iter().find(|check| check.id == episode.finding.check);
                known.map_or(episode.phase == phase, |check| check.phases.contains(&phase))
            };
            for episode in self.episodes.iter_mut().filter(ran) {
                let still = found.iter().any(|(finding, _)| same(finding, &episode.finding));
                episode.open &= still;
            }
        }
        for (finding, shadow) in found {
            let drains = would_drain(gate, phase, finding);
            let count = self.counts.entry(finding.check.clone()).or_default();
            let known =
                self.episodes.iter_mut().find(|episode| episode.open && same(finding, &episode.finding));
            let bare = Finding { evidence: Vec::new(), ..finding.clone() };
            let identity = check_run.snapshot.identity(&finding.part);
            let boot_id = check_run.snapshot.boot_id.clone();
            let episode = match known {
                Some(episode) => {
                    // The identity of a part that is gone cannot be read.
                    if !identity.is_empty() {
                        episode.identity = identity;
                    }
                    episode.looks = episode.looks.saturating_add(1);
                    (episode.finding, episode.boot_id, episode.phase) = (bare, boot_id, phase);
                    (episode.last, episode.shadow) = (episode.last.max(time), shadow);
                    episode
                }
                None => {
                    count.seen += 1;
                    count.last = time;
                    self.episodes.push(Episode {
                        finding: bare,
                        identity,
                        boot_id,
                        phase,
                        first: time,
                        last: time,
                        looks: 1,
                        open: true,
                        shadow,
                        would_drain: false,
                        drained: None,
                        outcome: String::new(),
                        jobs: Vec::new(),
                    });
                    let Some(episode) = self.episodes.last_mut() else { continue };
                    episode
                }
            };
            if drains && !episode.would_drain {
                episode.would_drain = true;
                count.would_drain += 1;
            }
            if let Some(job) = job
                && !episode.jobs.contains(&job)
                && episode.jobs.len() < MOST_JOBS
            {
                episode.jobs.push(job);
            }
        }
        self.prune();
    }

    /// Records the outcome of the drain for the deciding finding.
    pub(crate) fn acted(&mut self, cause: &Finding, outcome: &DrainOutcome) {
        let open = |episode: &&mut Episode| episode.open && same(cause, &episode.finding);
        let Some(episode) = self.episodes.iter_mut().find(open) else { return };
        episode.outcome = outcome.to_string();
        if matches!(outcome, DrainOutcome::Drained { .. }) && episode.drained.is_none() {
            episode.drained = Some(now() / 1000);
            self.counts.entry(cause.check.clone()).or_default().drained += 1;
        }
    }

    pub(crate) fn given_back(&mut self, given: Given) {
        self.given_back.push(given);
        let over = self.given_back.len().saturating_sub(MOST_GIVEN);
        self.given_back.drain(..over);
    }

    /// Removes closed episodes first, oldest first.
    fn prune(&mut self) {
        while self.episodes.len() > MOST_EPISODES {
            let oldest = self.episodes.iter().position(|episode| !episode.open).unwrap_or(0);
            self.episodes.remove(oldest);
        }
    }
}

fn same(a: &Finding, b: &Finding) -> bool {
    (&a.check, &a.part) == (&b.check, &b.part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::simulated_check_run;

    #[test]
    fn a_persisting_finding_counts_once_and_again_when_it_returns() {
        let gate: GateConfig = toml::from_str("[checks.gpu-nvlink]\naction = \"shadow\"").unwrap();
        let (mut past, sick, well) = (FindingHistory::default(), "h100-sxm:gpu-nvlink-down@3", "h100-sxm");
        for (at, node) in [(100, sick), (200, sick), (300, well), (400, sick)] {
            past.note(&gate, &simulated_check_run(node, &gate, at), Some(7), true);
        }
        let nvlink: Vec<_> =
            past.episodes.iter().filter(|episode| episode.finding.check == "gpu-nvlink").collect();
        let seen: Vec<_> = nvlink.iter().map(|one| (one.first, one.last, one.looks, one.open)).collect();
        assert_eq!(seen, [(100, 200, 2, false), (400, 400, 1, true)]);
        assert!(nvlink[0].shadow && nvlink[0].would_drain && nvlink[0].identity.starts_with("GPU-"));
        assert_eq!(past.counts["gpu-nvlink"], Count { seen: 2, would_drain: 2, drained: 0, last: 400 });
        assert_eq!(nvlink[0].jobs, [7]);
    }

    #[test]
    fn a_check_of_some_gpus_closes_no_episode() {
        let gate = GateConfig::default();
        let mut past = FindingHistory::default();
        past.note(&gate, &simulated_check_run("h100-sxm:gpu-lost@3", &gate, 100), None, true);
        past.note(&gate, &simulated_check_run("h100-sxm", &gate, 200), None, false);
        assert!(past.open());
        let cause = simulated_check_run("h100-sxm:gpu-lost@3", &gate, 300).verdict.cause().cloned().unwrap();
        let drained = DrainOutcome::Drained { reason: "railgate: x".to_owned() };
        past.acted(&cause, &drained);
        past.acted(&cause, &drained);
        assert_eq!(past.counts["gpu-lost"].drained, 1);
        past.note(&gate, &simulated_check_run("h100-sxm", &gate, 400), None, true);
        assert!(!past.open());
    }

    #[test]
    fn the_number_of_episodes_is_bounded() {
        let gate = GateConfig::default();
        let mut past = FindingHistory::default();
        for round in 0..300 {
            past.note(&gate, &simulated_check_run("h100-sxm:gpu-lost@3", &gate, 2 * round), None, true);
            past.note(&gate, &simulated_check_run("h100-sxm", &gate, 2 * round + 1), None, true);
        }
        assert_eq!(past.episodes.len(), MOST_EPISODES);
        assert_eq!(past.counts["gpu-lost"].seen, 300);
        assert!(serde_json::to_vec(&past).unwrap().len() < 200_000);
    }
}
