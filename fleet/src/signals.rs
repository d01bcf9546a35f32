//! Signals that end the program between two passes.

use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

/// SIGINT, SIGTERM and SIGHUP, which no thread receives otherwise. A pass has deadlines, and is not interrupted.
#[derive(Debug)]
pub(crate) struct Signals(Receiver<Signal>);

impl Signals {
    /// Must be called before other threads start.
    pub(crate) fn catch() -> nix::Result<Self> {
        let mut all = SigSet::empty();
        [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().for_each(|signal| all.add(signal));
        all.thread_block()?;
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            while let Ok(signal) = all.wait() {
                if sender.send(signal).is_err() {
                    break;
                }
            }
        });
        Ok(Signals(receiver))
    }

    /// Waits for a signal, at most this long.
    pub(crate) fn wait(&self, most: Duration) -> Option<Signal> {
        self.0.recv_timeout(most).ok()
    }
}
