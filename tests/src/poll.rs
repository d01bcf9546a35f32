//! Waits for a condition instead of a fixed time.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Factor for all deadlines, which are written for an idle machine. A slow one, or one that runs six clusters, is late without
/// a fault.
const SLOWER: u32 = 3;

/// Calls `ask` until it returns `Some`, at most for `deadline`. `what` names the condition in the error, which also contains the
/// last error of `ask`.
///
/// # Errors
/// The deadline passed. An error of `ask` alone does not end the wait, since the next call may succeed.
pub fn until<T>(deadline: Duration, what: &str, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let (start, deadline) = (Instant::now(), deadline * SLOWER);
    let mut pause = Duration::from_millis(5);
    loop {
        let last = match ask() {
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) => None,
            Err(error) => Some(error),
        };
        if start.elapsed() >= deadline {
            match last {
                Some(error) => {
                    return Err(error.context(format!("waited {} s for {what}", deadline.as_secs())));
                }
                None => bail!("waited {} s for {what}", deadline.as_secs()),
            }
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(150));
    }
}
