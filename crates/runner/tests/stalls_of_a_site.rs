//! What the guards of many jobs do when a switch or a file server stops them all, on a simulated clock.

use std::time::Duration;

use railgate_guard::{Guard, GuardConfig, GuardMode, NodeSample, RankSample, RankState};
use railgate_model::UnixMillis;
use railgate_node_report::Hangs;
use railgate_node_report::phases::GpuActivity;
use railgate_slurm::{HangLimits, HangNote, HangStage};

const START: UnixMillis = 1_700_000_000_000;
const SAMPLE: UnixMillis = 5_000;

/// A job of one node with two ranks. Rank 1 stops at `stops`, and rank 0 waits for it.
struct Job {
    id: u32,
    guard: Guard,
    stops: UnixMillis,
    goes_on: UnixMillis,
    state: RankState,
    /// Its owner named this time (`end,after=TIME`).
    after: Option<Duration>,
    ended: bool,
}

impl Job {
    fn config(&self) -> GuardConfig {
        let config = GuardConfig { mode: GuardMode::End, ..GuardConfig::default() };
        GuardConfig { end_after: self.after.unwrap_or(config.end_after), ..config }
    }

    fn sample(&mut self, now: UnixMillis) {
        let waits = (self.stops..self.goes_on).contains(&now);
        let works = if waits { GpuActivity::Waits } else { GpuActivity::Works };
        let idle = if waits { GpuActivity::Idle } else { GpuActivity::Works };
        let spins = RankState { state: Some('R'), kernel: None, cpu_percent: Some(99.0), bytes_s: Some(0.0) };
        let rank = |rank, state: &RankState| RankSample {
            rank,
            pid: 100 + rank,
            ended: None,
            state: Some(state.clone()),
        };
        let ranks = [rank(0, &spins), rank(1, if waits { &self.state } else { &spins })];
        let gpus = [works, idle];
        let sample = NodeSample {
            start: now,
            end: now + SAMPLE,
            running: true,
            gpus: &gpus,
            ranks: &ranks,
            counts: None,
            alone: true,
            logged: None,
            ports_down: &[],
            gpu_errors: &[],
        };
        let _ = self.guard.add(&sample);
    }

    /// What a node writes into its comment: the hang, from its naming.
    fn note(&self) -> Option<HangNote> {
        let hang = self.guard.open()?;
        let stage = if hang.kind.is_hang() { HangStage::Hangs } else { HangStage::Storage };
        Some(HangNote { time: hang.named / 1000, job: self.id, stage })
    }
}

/// Runs the jobs for this long; returns how many were ended and how many named.
fn run(mut jobs: Vec<Job>, seconds: u64) -> (usize, usize) {
    let limits = HangLimits { per_hour: 10, at_once: 3 };
    let mut ended: Vec<HangNote> = Vec::new();
    let mut named = std::collections::BTreeSet::new();
    for sample in 0..seconds * 1000 / SAMPLE {
        let now = START + sample * SAMPLE;
        jobs.iter_mut().filter(|job| !job.ended).for_each(|job| job.sample(now));
        let mut notes: Vec<HangNote> = jobs.iter().filter(|job| !job.ended).filter_map(Job::note).collect();
        named.extend(notes.iter().map(|note| note.job));
        notes.extend(&ended);
        for job in jobs.iter_mut().filter(|job| !job.ended) {
            let Some(hang) = job.guard.open() else { continue };
            let mine = HangNote { time: now / 1000, job: job.id, stage: HangStage::Ended };
            if job.config().ends(hang, job.after.is_some(), now) && mine.may_end(&notes, limits).is_ok() {
                job.ended = true;
                ended.push(mine);
                notes.push(mine);
            }
        }
    }
    (ended.len(), named.len())
}

/// Jobs that stop one after the other, this many milliseconds apart.
fn jobs(count: u32, apart: UnixMillis, state: &RankState, goes_on: UnixMillis) -> Vec<Job> {
    let job = |id: u32| Job {
        id,
        guard: Guard::new(GuardConfig::default(), Hangs::default()),
        stops: START + 60_000 + u64::from(id) * apart,
        goes_on,
        state: state.clone(),
        after: None,
        ended: false,
    };
    (1..=count).map(job).collect()
}

fn state(letter: char, kernel: &str) -> RankState {
    let kernel = Some(kernel.to_owned());
    RankState { state: Some(letter), kernel, cpu_percent: Some(0.0), bytes_s: Some(0.0) }
}

#[test]
fn a_file_server_that_stalls_for_half_an_hour_ends_no_job() {
    let storage = state('D', "rpc_wait_bit_killable");
    // Each job reaches the file server when it saves next: within 20 minutes.
    for apart in [0, 200, 6_000] {
        let mut stalled = jobs(200, apart, &storage, START + 1_900_000);
        // Some owners want their job to end even then.
        for job in stalled.iter_mut().filter(|job| job.id % 10 == 0) {
            job.after = Some(Duration::from_secs(900));
        }
        let (ended, named) = run(stalled, 3600);
        assert_eq!(ended, 0, "{apart} ms apart");
        assert!(named > 100, "{named} were named");
    }
}

#[test]
fn a_switch_that_stops_all_jobs_ends_none_of_them() {
    for apart in [0, 1_000, 5_000] {
        let stopped = jobs(60, apart, &state('S', "futex_wait_queue"), UnixMillis::MAX);
        assert_eq!(run(stopped, 1200), (0, 60), "{apart} ms apart");
    }
}

#[test]
fn jobs_that_hang_each_for_a_reason_of_its_own_are_ended_up_to_the_limit() {
    // One in 15 minutes: all of them. One in four minutes: never more than three at once.
    assert_eq!(run(jobs(4, 900_000, &state('S', "hrtimer_nanosleep"), UnixMillis::MAX), 6000), (4, 4));
    let (ended, named) = run(jobs(30, 240_000, &state('S', "hrtimer_nanosleep"), UnixMillis::MAX), 9000);
    assert!(ended > 0 && ended <= 30 && named == 30, "{ended} of {named}");
}
