//! What the guard would have said about the recorded jobs while they ran, sample by sample. The states of their processes were not
//! recorded: that of every rank is taken to be the one that is easiest to mistake for a hang.

use std::collections::BTreeMap;
use std::fs;

use railgate_guard::{Guard, GuardConfig, NodeSample, RankSample, RankState};
use railgate_node_report::phases::gpu_activities;
use railgate_node_report::usage::{State, timeline};
use railgate_node_report::{HangKind, Hangs, TaskRank, programs};

use super::{Recording, recordings};

/// Asleep, without any work.
fn asleep() -> RankState {
    RankState {
        state: Some('S'),
        kernel: Some("hrtimer_nanosleep".to_owned()),
        cpu_percent: Some(0.0),
        bytes_s: Some(0.0),
    }
}

fn rank_sample(rank: u32, of: &[&TaskRank], now: u64) -> RankSample {
    let of = programs(of);
    let ended: Option<Vec<_>> =
        of.iter().map(|one| one.ended.zip(one.exit).filter(|(time, _)| *time <= now)).collect();
    let ended = ended.and_then(|ends| ends.into_iter().max_by_key(|(time, _)| *time));
    RankSample { rank, pid: of.last().map_or(0, |one| one.pid), ended, state: Some(asleep()) }
}

fn named(recording: &Recording) -> Hangs {
    let node = recording.node().unwrap();
    let Some((_, samples)) = fs::read(recording.0.join("samples")).ok().and_then(|file| timeline(&file))
    else {
        return Hangs::default();
    };
    let mut ranks: BTreeMap<u32, Vec<&TaskRank>> = BTreeMap::new();
    for one in node.tasks.iter().flat_map(|tasks| &tasks.ranks) {
        ranks.entry(one.rank).or_default().push(one);
    }
    let mut guard = Guard::new(GuardConfig::default(), Hangs::default());
    for sample in &samples {
        let begun =
            |of: &&Vec<&TaskRank>| of.iter().any(|one| one.began.is_none_or(|began| began <= sample.end()));
        let rank_samples: Vec<RankSample> = ranks
            .iter()
            .filter(|(_, of)| begun(of))
            .map(|(rank, of)| rank_sample(*rank, of, sample.end()))
            .collect();
        guard.add(&NodeSample {
            start: sample.start,
            end: sample.end(),
            running: sample.state == State::Running,
            gpus: &gpu_activities(sample, sample.gpus.len() > 1),
            ranks: &rank_samples,
            counts: None,
            alone: true,
            logged: None,
            ports_down: &[],
            gpu_errors: &[],
        });
    }
    guard.hangs().clone()
}

/// Recordings in which a rank's process ends while the others wait for it to the end. The `memory-rank` of the H100 was recorded before
/// the sampler kept how processes end.
const GONE: [(&str, &str); 3] = [("h100", "leaves-rank"), ("h200", "leaves-rank"), ("h200", "memory-rank")];

#[test]
fn the_guard_names_ranks_that_left_and_no_other_job() {
    let (mut wrong, mut all) = (Vec::new(), 0);
    for (gpu, kind, recording) in recordings() {
        all += 1;
        let hangs = named(&recording);
        for hang in &hangs.list {
            let after = (hang.named - hang.since) / 1000;
            println!("{gpu} {kind}: {:?}, named after {after} s: {}", hang.kind, hang.sentence());
        }
        let kinds: Vec<HangKind> = hangs.list.iter().map(|hang| hang.kind).collect();
        let expected: &[HangKind] =
            if GONE.contains(&(gpu.as_str(), kind.as_str())) { &[HangKind::Gone] } else { &[] };
        if kinds != expected {
            wrong.push(format!("{gpu} {kind}: {kinds:?}"));
        }
    }
    println!("{all} recorded jobs");
    assert_eq!(wrong, Vec::<String>::new());
}
