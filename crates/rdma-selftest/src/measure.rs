//! Bandwidth and latency of a connection.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::pattern::BLOCKS;
use crate::verbs::{DEPTH, End, Operation};

/// Duration of a bandwidth measurement. Emulated processors stand still at times.
const MEASURED: Duration = Duration::from_millis(if cfg!(feature = "small") { 1500 } else { 300 });
/// Timeout after which a connection without progress counts as failed.
const PATIENCE: Duration = Duration::from_secs(5);
/// Number of round trips. Emulated processors switch between the ends for each of them.
const ROUNDS: u64 = if cfg!(feature = "small") { 50 } else { 1000 };
/// Number of reads of the mailbox between two checks of the completions and of the time.
const SPINS: u32 = 512;
/// Size of a block, bits.
const BITS: f64 = (crate::pattern::BLOCK * 64) as f64;

/// Result of a bandwidth measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stream {
    /// Number of different blocks that were transferred, from the first on.
    pub(crate) blocks: usize,
    /// Payload, Gb/s.
    pub(crate) gbps: f64,
}

/// Result of a latency measurement: half of the round trip, µs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Latency {
    pub(crate) median: f64,
    pub(crate) p99: f64,
}

/// Transfers blocks for [`MEASURED`], at most [`DEPTH`] of them in flight, and waits until the last one is in memory. Ends by
/// `until`.
pub(crate) fn stream(end: &mut End, operation: Operation, until: Instant) -> Result<Stream, String> {
    let mut posted = 0;
    let began = Instant::now();
    let mut moved = began;
    loop {
        let going = began.elapsed() < MEASURED;
        while going && end.in_flight() < DEPTH {
            end.transfer(operation, posted % BLOCKS)?;
            posted += 1;
        }
        if !going && end.in_flight() == 0 {
            break;
        }
        advance(end, &mut moved, until)?;
    }
    // Emulated rails have a few Mb/s.
    let gbps = (posted as f64 * BITS / began.elapsed().as_secs_f64() / 1e3).round() / 1e6;
    if operation == Operation::Write {
        end.flush()?;
        drain(end, until)?;
    }
    Ok(Stream { blocks: posted.min(BLOCKS), gbps })
}

/// Sends one word after the other, each when the last one has come back, and measures the time. The peer runs [`echo`].
pub(crate) fn ping(end: &mut End, until: Instant) -> Result<Latency, String> {
    let mut times = Vec::new();
    for round in 1..=ROUNDS {
        let began = Instant::now();
        end.word(round)?;
        wait(end, round, until)?;
        times.push(began.elapsed().as_secs_f64() * 1e6 / 2.0);
    }
    drain(end, until)?;
    Ok(summary(times))
}

/// Returns each word that the peer sends.
pub(crate) fn echo(end: &mut End, until: Instant) -> Result<(), String> {
    for round in 1..=ROUNDS {
        wait(end, round, until)?;
        end.word(round)?;
    }
    drain(end, until)
}

/// Clears the mailbox before the first round.
pub(crate) fn clear(end: &End) {
    end.received().store(0, Ordering::Release);
}

/// Waits for a word of the peer, and until another one can be sent.
fn wait(end: &mut End, word: u64, until: Instant) -> Result<(), String> {
    let mut moved = Instant::now();
    let mut spins = 0_u32;
    loop {
        if end.received().load(Ordering::Acquire) == word && end.in_flight() < DEPTH {
            return Ok(());
        }
        spins += 1;
        if spins.is_multiple_of(SPINS) || end.in_flight() == DEPTH {
            advance(end, &mut moved, until)?;
        }
        std::hint::spin_loop();
    }
}

/// Waits until all requests are complete.
fn drain(end: &mut End, until: Instant) -> Result<(), String> {
    let mut moved = Instant::now();
    while end.in_flight() > 0 {
        advance(end, &mut moved, until)?;
    }
    Ok(())
}

/// Takes completions. An error if a request failed, if nothing has moved for [`PATIENCE`], or after `until`.
fn advance(end: &mut End, moved: &mut Instant, until: Instant) -> Result<(), String> {
    let now = Instant::now();
    if end.poll()? > 0 {
        *moved = now;
        return Ok(());
    }
    if now.saturating_duration_since(*moved) > PATIENCE {
        return Err(format!("no progress for {} s", PATIENCE.as_secs()));
    }
    if now > until {
        return Err("the time for the whole test is over".to_owned());
    }
    if cfg!(feature = "small") {
        // All ends share the emulated processors, which also are the network.
        std::thread::sleep(Duration::from_micros(500));
    } else {
        std::thread::yield_now();
    }
    Ok(())
}

/// Three decimals: more than either measurement is good for, and both ends print the same number.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

fn summary(mut times: Vec<f64>) -> Latency {
    times.sort_by(f64::total_cmp);
    let at = |percent: usize| rounded(times.get(times.len() * percent / 100).copied().unwrap_or(0.0));
    Latency { median: at(50), p99: at(99) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_99th_percentile() {
        let times = (0..1000).rev().map(f64::from).collect();
        assert_eq!(summary(times), Latency { median: 500.0, p99: 990.0 });
    }
}
