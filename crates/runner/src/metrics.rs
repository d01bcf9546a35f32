//! The node's Prometheus files, written after each check of the whole node and after every drain.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use railgate_metrics::{
    CheckCounts, JobLabel, NODE_FILE, NodeState, OpenFinding, PRIVATE_DATA, RAILS_FILE, RailState,
    TextfileDir, job_file, node_page, rail_page,
};
use railgate_rails::rail_map;
use railgate_slurm::{Client, DrainOutcome, is_ours};

use crate::{CheckRun, Config, FindingHistory, History, Places, act, now};

/// Age after which a job's file is stale, seconds; samplers write it every few minutes.
const STALE: u64 = 600;

/// Longest wait for slurmctld. The query serves the metrics alone and must not delay anything.
const PATIENCE: Duration = Duration::from_secs(5);

/// Source of the node's drain state.
pub(crate) enum Held<'a> {
    /// The outcome of a drain a moment ago.
    Outcome(&'a DrainOutcome),
    /// No drain was attempted: ask slurmctld, until this deadline, if this node has ever been drained.
    Ask(&'a railgate_slurm::Env, Instant),
}

/// Writes the files if the site enabled them. A failure is logged and has no other effect.
pub(crate) fn publish(config: &Config, places: &Places, check_run: &CheckRun, held: &Held<'_>) {
    let Some(path) = &config.metrics.dir else { return };
    let dir = match TextfileDir::open(path) {
        Ok(dir) => dir,
        Err(why) => return tracing::warn!("metrics: {}: {why}", path.display()),
    };
    let past = FindingHistory::load(places);
    let state = NodeState {
        held: is_held(config, &past, check_run, held),
        taken: check_run.snapshot.taken,
        took_ms: check_run.took_ms,
        acting: act::acting(config, places) == railgate_slurm::Acting::Allowed,
        pending: places.state.join("pending-reason.json").exists(),
        open: open_findings(&past),
        checks: counts(&past, &History::load(places)),
        verdict: check_run.verdict.clone(),
        snapshot: check_run.snapshot.clone(),
    };
    let mut written = vec![(NODE_FILE, node_page(&state))];
    if state.snapshot.fabric.data().is_some() {
        let rails = Some(rail_map(&state.snapshot, Some(&check_run.profile)));
        written.push((RAILS_FILE, rail_page(&RailState { snapshot: state.snapshot, rails })));
    }
    for (name, text) in written {
        if let Err(why) = dir.put(name, &text) {
            tracing::warn!("metrics: {}/{name}: {why}", path.display());
        }
    }
    if let Held::Ask(env, until) = held {
        learn_private_data(config, places, env, *until);
    }
    let before = i64::try_from((now() / 1000).saturating_sub(STALE)).unwrap_or(0);
    match dir.remove_stale(before) {
        Ok(0) => {}
        Ok(count) => tracing::info!("metrics: removed {count} stale files"),
        Err(why) => tracing::warn!("metrics: {}: {why}", path.display()),
    }
}

/// Removes a job's file. The sampler removes it itself unless it was killed.
pub fn forget_job(config: &Config, job: u32) {
    let Some(path) = &config.metrics.dir else { return };
    if let Err(why) = TextfileDir::open(path).and_then(|dir| dir.remove(&job_file(job))) {
        tracing::info!(job, "metrics: {}: {why}", path.display());
    }
}

/// Updates Slurm's PrivateData setting, which decides about labels of jobs, at long intervals. The last known value
/// is kept if slurmctld does not answer.
fn learn_private_data(config: &Config, places: &Places, env: &railgate_slurm::Env, until: Instant) {
    const EVERY: Duration = Duration::from_secs(3600);
    if config.metrics.labels.iter().all(|label| *label == JobLabel::Partition) {
        return;
    }
    let dir = places.run.join("metrics");
    let path = dir.join(PRIVATE_DATA);
    let fresh = |time: std::time::SystemTime| time.elapsed().is_ok_and(|age| age < EVERY);
    if std::fs::metadata(&path).and_then(|meta| meta.modified()).is_ok_and(fresh) {
        return;
    }
    let said = Client::new(&config.slurm, env).until(until.min(Instant::now() + PATIENCE)).config();
    let written = said.map_err(|why| why.to_string()).and_then(|said| {
        let private = said.get("PrivateData").ok_or("slurmctld's answer has no PrivateData")?;
        std::fs::create_dir_all(&dir)
            .and_then(|()| railgate_fsutil::write_whole(&path, private.as_bytes(), 0o644))
            .map_err(|why| format!("{}: {why}", path.display()))
    });
    if let Err(why) = written {
        tracing::info!("metrics: no labels of jobs and users: {why}");
    }
}

fn is_held(config: &Config, past: &FindingHistory, check_run: &CheckRun, held: &Held<'_>) -> Option<bool> {
    let (env, until) = match held {
        Held::Outcome(DrainOutcome::Drained { .. } | DrainOutcome::AlreadyOurs { .. }) => return Some(true),
        // Slurm may have carried it out meanwhile.
        Held::Outcome(DrainOutcome::Pending(_)) => return None,
        Held::Outcome(_) => return Some(false),
        Held::Ask(env, until) => (env, *until),
    };
    let given = past.given_back.iter().map(|given| given.time).max().unwrap_or(0);
    if !past.episodes.iter().any(|episode| episode.drained.is_some_and(|time| time >= given)) {
        return Some(false);
    }
    // An admin may have resumed the node by hand.
    let until = until.min(Instant::now() + PATIENCE);
    let node = Client::new(&config.slurm, env).until(until).node(&check_run.snapshot.node).ok()?;
    Some(node.held() && node.reason.as_ref().is_some_and(|reason| is_ours(&reason.text)))
}

fn open_findings(past: &FindingHistory) -> Vec<OpenFinding> {
    let open = past.episodes.iter().filter(|episode| episode.open);
    open.map(|episode| OpenFinding {
        check: episode.finding.check.clone(),
        severity: episode.finding.severity,
        class: episode.finding.class,
        shadow: episode.shadow,
    })
    .collect()
}

fn counts(past: &FindingHistory, history: &History) -> Vec<CheckCounts> {
    let mut checks: BTreeMap<String, CheckCounts> = past
        .counts
        .iter()
        .map(|(check, count)| {
            let row = CheckCounts {
                check: check.clone(),
                seen: count.seen,
                would_drain: count.would_drain,
                drained: count.drained,
                strikes: 0,
            };
            (check.clone(), row)
        })
        .collect();
    for strike in &history.memory.strikes {
        let check = strike.subject.split('@').next().unwrap_or_default().to_owned();
        let row = checks.entry(check.clone()).or_default();
        (row.check, row.strikes) = (check, row.strikes + 1);
    }
    checks.into_values().collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::testing::simulated_check_run;

    #[test]
    fn a_drained_node_is_exported_and_no_file_is_written_unless_configured() {
        let place = tempfile::tempdir().unwrap();
        let places = Places {
            etc: place.path().join("etc"),
            run: place.path().join("run"),
            state: place.path().join("state"),
            share: place.path().join("share"),
        };
        let mut config = Config::default();
        let check_run = simulated_check_run("h100-sxm:gpu-lost@3", &config.gate, 1);
        let gate = config.gate.clone();
        FindingHistory::change(&places, |past| past.note(&gate, &check_run, Some(7), true));
        let outcome = DrainOutcome::Drained { reason: "railgate: gpu-lost@3".to_owned() };
        publish(&config, &places, &check_run, &Held::Outcome(&outcome));

        let prom = place.path().join("prom");
        config.metrics.dir = Some(prom.clone());
        publish(&config, &places, &check_run, &Held::Outcome(&outcome));
        assert!(!prom.exists(), "the site makes it");
        fs::create_dir(&prom).unwrap();
        publish(&config, &places, &check_run, &Held::Outcome(&outcome));
        let text = fs::read_to_string(prom.join(NODE_FILE)).unwrap();
        for line in [
            "railgate_node_held 1",
            "railgate_gate_verdict{verdict=\"unfit\"} 1",
            "railgate_gate_findings{check=\"gpu-lost\",severity=\"fail\",class=\"node\",shadow=\"false\"} 1",
            "railgate_gate_would_drain_total{check=\"gpu-lost\"} 1",
            "railgate_gate_acting 0",
        ] {
            assert!(text.lines().any(|have| have == line), "{line}\n{text}");
        }
        let rails = fs::read_to_string(prom.join(RAILS_FILE)).unwrap();
        assert!(rails.contains("railgate_rail_up{rail=\"7\",hca=\""), "{rails}");
        // Never drained, so slurmctld is not queried.
        let env = railgate_slurm::Env::new();
        let healthy = super::Held::Ask(&env, Instant::now() + PATIENCE);
        publish(&config, &places, &check_run, &healthy);
        let text = fs::read_to_string(prom.join(NODE_FILE)).unwrap();
        assert!(text.contains("railgate_node_held 0\n"), "{text}");
    }
}
