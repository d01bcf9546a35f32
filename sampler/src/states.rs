//! What the programs of the ranks do while others wait for them, probed in a child that the sampler does not wait for.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use railgate_child::{Task, become_user};
use railgate_guard::RankState;
use railgate_model::UnixMillis;
use railgate_probe::{ProcessId, RankReading, last_write, port_state, rank_readings};
use serde::{Deserialize, Serialize};

use crate::run::{Mine, PROC};

const PROBE: &str = "rank-states";
/// A task in a child, as the job's user: a log may lie on a file server that does not answer.
pub(crate) const TASK: Task = Task::new(PROBE, task);
const DEADLINE: Duration = Duration::from_secs(5);
/// Interval of the probes, while ranks wait.
const EVERY: Duration = Duration::from_secs(10);
/// The same of a node whose GPUs are idle: other nodes of the job may wait for it.
const EVERY_IDLE: Duration = Duration::from_secs(30);
/// Two readings that lie further apart do not show what a rank does now.
const OLD: Duration = Duration::from_secs(60);

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    uid: u32,
    gid: u32,
    programs: Vec<ProcessId>,
    logs: Vec<PathBuf>,
    sysfs: PathBuf,
    /// HCA and port of the job's rails.
    ports: Vec<(String, u32)>,
}

/// Result of a probe.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Found {
    readings: Vec<RankReading>,
    logged: Option<UnixMillis>,
    ports_down: Vec<String>,
}

/// The last two readings of each program, and what follows from them.
#[derive(Debug, Default)]
pub(crate) struct States {
    asked: Option<JoinHandle<Result<Found, String>>>,
    next: Option<Instant>,
    before: Option<(Instant, Vec<RankReading>)>,
    known: BTreeMap<ProcessId, RankState>,
    logged: Option<UnixMillis>,
    ports_down: Vec<String>,
    told: bool,
}

impl States {
    /// What the program of a rank does; `None`: not known.
    pub(crate) fn of(&self, id: ProcessId) -> Option<&RankState> {
        self.known.get(&id)
    }

    /// When the job last wrote to its logs; `None`: not known.
    pub(crate) fn logged(&self) -> Option<UnixMillis> {
        self.logged
    }

    /// Ports of the job's rails that are not active, `mlx5_2:1 is DOWN`.
    pub(crate) fn ports_down(&self) -> &[String] {
        &self.ports_down
    }

    /// Discards all readings, when no rank waits.
    pub(crate) fn clear(&mut self) {
        if self.asked.is_none() {
            *self = States { told: self.told, ..States::default() };
        }
    }

    /// Takes the result of a probe, and starts the next one if it is due. `waits`: GPUs wait; otherwise the node is only idle.
    pub(crate) fn step(&mut self, mine: &Mine, programs: Vec<ProcessId>, logs: Vec<PathBuf>, waits: bool) {
        if self.asked.as_ref().is_some_and(JoinHandle::is_finished) {
            match self.asked.take().map(JoinHandle::join) {
                Some(Ok(Ok(found))) => self.take(Instant::now(), found),
                Some(Ok(Err(why))) if !self.told => {
                    self.told = true;
                    tracing::info!(job = mine.job, "sampler: states of the ranks: {why}");
                }
                _ => self.known.clear(),
            }
        }
        let now = Instant::now();
        if self.asked.is_some() || self.next.is_some_and(|next| now < next) {
            return;
        }
        self.next = Some(now + if waits { EVERY } else { EVERY_IDLE });
        let job = &mine.report.job;
        let rails = mine.report.rail_map.iter().flat_map(|map| &map.rails);
        let order = Order {
            uid: job.uid,
            gid: job.gid,
            programs,
            logs,
            sysfs: mine.config.source.sysfs.clone(),
            ports: rails.map(|rail| (rail.hca.clone(), rail.port)).collect(),
        };
        self.asked = std::thread::Builder::new().stack_size(256 << 10).spawn(move || ask(&order)).ok();
    }

    fn take(&mut self, now: Instant, Found { readings, logged, ports_down }: Found) {
        (self.logged, self.ports_down) = (logged, ports_down);
        self.known.clear();
        let before = self.before.replace((now, readings.clone()));
        let Some((then, before)) = before.filter(|(then, _)| now.duration_since(*then) <= OLD) else {
            return;
        };
        let seconds = now.duration_since(then).as_secs_f64();
        for one in readings {
            let Some(earlier) = before.iter().find(|earlier| earlier.id == one.id) else { continue };
            self.known.insert(one.id, state(earlier, one, seconds));
        }
    }
}

fn state(before: &RankReading, now: RankReading, seconds: f64) -> RankState {
    // Percent of a core: ticks are hundredths of a second on every Linux that Slurm runs on.
    let ticks = float(now.cpu_ticks.saturating_sub(before.cpu_ticks));
    let bytes = now.bytes.zip(before.bytes).map(|(now, before)| float(now.saturating_sub(before)) / seconds);
    RankState {
        state: now.state,
        kernel: now.kernel,
        cpu_percent: (seconds > 0.0).then(|| ticks / seconds),
        bytes_s: bytes.filter(|_| seconds > 0.0),
    }
}

#[expect(clippy::cast_precision_loss, reason = "compared with round thresholds")]
fn float(count: u64) -> f64 {
    count as f64
}

fn ask(order: &Order) -> Result<Found, String> {
    let order = serde_json::to_vec(order).map_err(|why| why.to_string())?;
    let found = railgate_child::ask(PROBE, &order, DEADLINE)?;
    serde_json::from_slice(&found).map_err(|why| why.to_string())
}

fn task(input: &[u8]) -> Result<Vec<u8>, String> {
    let order: Order = serde_json::from_slice(input).map_err(|why| why.to_string())?;
    if order.uid != 0 {
        become_user(order.uid, order.gid, &[]).map_err(|why| why.to_string())?;
    }
    let readings = rank_readings(PROC.as_ref(), order.uid, &order.programs)?;
    let down = |(hca, port): &(String, u32)| {
        let state = port_state(&order.sysfs, hca, *port).filter(|state| state != "ACTIVE")?;
        Some(format!("{hca}:{port} is {state}"))
    };
    let ports_down = order.ports.iter().filter_map(down).collect();
    let found = Found { readings, logged: last_write(&order.logs), ports_down };
    serde_json::to_vec(&found).map_err(|why| why.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_come_from_two_readings_of_the_same_process() {
        let reading = |ticks, cpu_ticks, bytes| RankReading {
            id: (7, ticks),
            state: Some('S'),
            kernel: Some("pipe_read".to_owned()),
            cpu_ticks,
            bytes: Some(bytes),
        };
        let mut states = States::default();
        let start = Instant::now();
        let found = |reading, logged| Found { readings: vec![reading], logged, ports_down: Vec::new() };
        states.take(start, found(reading(1, 500, 1000), None));
        assert_eq!(states.of((7, 1)), None, "one reading shows no rate");
        states.take(start + Duration::from_secs(10), found(reading(1, 1000, 2000), Some(5)));
        let state = states.of((7, 1)).unwrap();
        assert_eq!((state.cpu_percent, state.bytes_s, states.logged()), (Some(50.0), Some(100.0), Some(5)));
        assert_eq!(state.kernel.as_deref(), Some("pipe_read"));
        // Another process has the number now; then a reading comes too late.
        states.take(start + Duration::from_secs(20), found(reading(2, 0, 0), None));
        assert_eq!((states.of((7, 1)), states.of((7, 2))), (None, None));
        states.take(start + Duration::from_secs(90), found(reading(2, 0, 0), None));
        assert_eq!(states.of((7, 2)), None);
    }
}
