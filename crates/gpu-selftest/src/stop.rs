//! The end of the tests before all are done: a signal, or the time of a burn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use nix::sys::signal::{SigSet, Signal};

use crate::cuda;

/// Asked between two tests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop {
    signalled: Arc<AtomicBool>,
    until: Option<Instant>,
}

impl Stop {
    /// Takes SIGINT and SIGTERM from now on, and tells `first` about the first. The second ends the program at once. To be called before
    /// any thread is started, which then leaves both to the thread that waits for them.
    pub(crate) fn on_signals(
        until: Option<Instant>,
        first: impl FnOnce(Signal) + Send + 'static,
    ) -> Result<Self, String> {
        let stop = Stop { signalled: Arc::default(), until };
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGINT);
        signals.add(Signal::SIGTERM);
        signals.thread_block().map_err(|why| format!("signals: {why}"))?;
        let signalled = stop.signalled.clone();
        std::thread::spawn(move || {
            let mut first = Some(first);
            while let Ok(signal) = signals.wait() {
                signalled.store(true, Ordering::Relaxed);
                match first.take() {
                    Some(first) => first(signal),
                    None => cuda::exit(exit_code(signal)),
                }
            }
        });
        Ok(stop)
    }

    /// Whether no further test is to begin.
    pub(crate) fn is_due(&self) -> bool {
        self.signalled.load(Ordering::Relaxed) || self.until.is_some_and(|until| Instant::now() >= until)
    }
}

/// As a shell reports a program that the signal ended.
pub(crate) fn exit_code(signal: Signal) -> i32 {
    128 + signal as i32
}
