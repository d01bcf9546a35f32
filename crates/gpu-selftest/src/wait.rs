//! Waits for the threads of the GPUs, each of which may hang in the driver.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use railgate_model::{GpuSelfTested, ValueCheck};

use crate::stop::Stop;

/// Time for the tests that run when a signal arrives.
const GRACE: Duration = Duration::from_secs(5);
/// Pause between two checks for a signal while the driver is loaded.
const BETWEEN: Duration = Duration::from_millis(200);

/// What a thread reports.
pub(crate) enum Event {
    Line(usize, usize, Box<GpuSelfTested>),
    Ended(usize, usize),
}

/// How long a GPU may take.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// All tests of all GPUs end by then.
    Until(Instant, u64),
    /// Each GPU has a result in so many seconds.
    Silence(u64),
}

impl Patience {
    /// When a GPU that was last heard at this time is given up.
    fn end(self, heard: Instant) -> Instant {
        match self {
            Patience::Until(until, _) => until,
            Patience::Silence(seconds) => heard + Duration::from_secs(seconds),
        }
    }

    fn why(self) -> String {
        match self {
            Patience::Until(_, seconds) => format!("no answer within {seconds} s"),
            Patience::Silence(seconds) => format!("no answer for {seconds} s"),
        }
    }
}

/// Where lines go, and what happens meanwhile.
pub(crate) trait Sink {
    fn line(&mut self, line: GpuSelfTested) -> Result<(), String>;
    /// Called at least once a second.
    fn time_passes(&mut self) {}
}

/// Waits for tests.
pub(crate) struct Wait {
    patience: Patience,
    events: Receiver<Event>,
    sender: Sender<Event>,
    /// Number of the call of [`Wait::all`]: a thread that was given up may still report to an earlier one.
    phase: usize,
    stop: Stop,
}

impl Wait {
    pub(crate) fn new(patience: Patience, stop: Stop) -> Self {
        let (sender, events) = mpsc::channel();
        Wait { patience, events, sender, phase: 0, stop }
    }

    /// Whether a GPU that does not answer leaves time for the others.
    pub(crate) fn is_per_gpu(&self) -> bool {
        matches!(self.patience, Patience::Silence(_))
    }

    /// Why a GPU has no result.
    pub(crate) fn why(&self) -> String {
        self.stop.signal().map_or_else(|| self.patience.why(), |(signal, _)| format!("ended by {signal}"))
    }

    /// Runs something that may hang; `None` if it has no answer in time, or a signal arrives before.
    pub(crate) fn for_one<T: Send + 'static>(&self, run: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (sender, answer) = mpsc::channel();
        std::thread::spawn(move || drop(sender.send(run())));
        let end = self.patience.end(Instant::now());
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match answer.recv_timeout(left.min(BETWEEN)) {
                Ok(answer) => return Some(answer),
                Err(RecvTimeoutError::Timeout) if !left.is_zero() && self.stop.signal().is_none() => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    /// Runs tests at the same time, and returns the numbers of those that did not end in time. A thread in a driver that hangs is not
    /// joined: it ends with the process.
    pub(crate) fn all<T>(
        &mut self,
        tests: impl IntoIterator<Item = (usize, T)>,
        sink: &mut dyn Sink,
    ) -> Result<BTreeSet<usize>, String>
    where
        T: FnOnce(&dyn Fn(GpuSelfTested)) + Send + 'static,
    {
        self.phase += 1;
        let phase = self.phase;
        let mut heard = BTreeMap::new();
        for (number, test) in tests {
            heard.insert(number, Instant::now());
            let sender = self.sender.clone();
            std::thread::spawn(move || {
                test(&|line| drop(sender.send(Event::Line(phase, number, Box::new(line)))));
                drop(sender.send(Event::Ended(phase, number)));
            });
        }
        let mut given_up = BTreeSet::new();
        while !heard.is_empty() {
            match self.events.recv_timeout(self.pause(&heard)) {
                Ok(Event::Line(of, number, line)) if of == phase && heard.contains_key(&number) => {
                    heard.insert(number, Instant::now());
                    if matches!(line.values, ValueCheck::Wrong { .. }) {
                        self.stop.found_wrong();
                    }
                    sink.line(*line)?;
                }
                Ok(Event::Ended(of, number)) if of == phase => drop(heard.remove(&number)),
                // Of a GPU that was given up.
                Ok(Event::Line(..) | Event::Ended(..)) => {}
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            sink.time_passes();
            let now = Instant::now();
            let is_over = |last: Instant| {
                now >= self.patience.end(last)
                    || self.stop.signal().is_some_and(|(_, since)| now >= since + GRACE)
            };
            given_up.extend(heard.iter().filter(|(_, last)| is_over(**last)).map(|(number, _)| *number));
            heard.retain(|number, _| !given_up.contains(number));
        }
        Ok(given_up)
    }

    fn pause(&self, heard: &BTreeMap<usize, Instant>) -> Duration {
        let now = Instant::now();
        let ends = heard.values().map(|last| self.patience.end(*last).saturating_duration_since(now));
        let grace = self.stop.signal().map(|(_, since)| (since + GRACE).saturating_duration_since(now));
        ends.chain(grace).fold(Duration::from_secs(1), Duration::min)
    }
}
