//! Waiting for a condition instead of for time to pass.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Deadlines are written for a machine that has nothing else to do. One that is slower, with four clusters on it, gets so many
/// times as long: what comes late there is no fault.
const SLOWER: u32 = 3;

/// Asks until there is an answer; the error names what did not come and what the last question said.
///
/// # Errors
/// The deadline passed. An error of the question itself ends nothing: the next one may do better.
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
