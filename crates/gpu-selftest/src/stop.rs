//! The end of the tests before all are done: a signal, or the time of a burn. And what the exit code depends on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use nix::sys::signal::{SigSet, Signal};

use crate::cuda;

/// Asked between two tests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop {
    /// The first signal, and when it arrived.
    signal: Arc<OnceLock<(Signal, Instant)>>,
    any_wrong: Arc<AtomicBool>,
    until: Option<Instant>,
}

impl Stop {
    /// Takes SIGINT and SIGTERM from now on. The first is stored, and the second ends the program at once. To be called before any
    /// thread is started, which then leaves both to the thread that waits for them.
    pub(crate) fn on_signals() -> Result<Self, String> {
        let stop = Stop::default();
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGINT);
        signals.add(Signal::SIGTERM);
        signals.thread_block().map_err(|why| format!("signals: {why}"))?;
        let stored = stop.clone();
        std::thread::spawn(move || {
            while let Ok(signal) = signals.wait() {
                if stored.signal.set((signal, Instant::now())).is_err() {
                    cuda::exit(stored.exit_code());
                }
            }
        });
        Ok(stop)
    }

    /// The same with the end of a burn.
    pub(crate) fn at(self, until: Option<Instant>) -> Self {
        Stop { until, ..self }
    }

    /// Whether no further test is to begin.
    pub(crate) fn is_due(&self) -> bool {
        self.signal.get().is_some() || self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// The signal that ends the program, and when it arrived.
    pub(crate) fn signal(&self) -> Option<(Signal, Instant)> {
        self.signal.get().copied()
    }

    /// Notes that a value was wrong.
    pub(crate) fn found_wrong(&self) {
        self.any_wrong.store(true, Ordering::Relaxed);
    }

    /// 1 after a wrong value, otherwise as a shell reports a program that the signal ended.
    pub(crate) fn exit_code(&self) -> i32 {
        match self.signal() {
            _ if self.any_wrong.load(Ordering::Relaxed) => 1,
            Some((signal, _)) => 128 + signal as i32,
            None => 0,
        }
    }
}
