//! The TCP path between two nodes that have no RDMA devices: bandwidth of each direction with every value compared, and latency.
//!
//! Each end in turn sends blocks of 1 MiB for half a second over the one connection, then 8 bytes at a time that the other end returns. One
//! connection does not fill a fast network: its bandwidth compares with that of other pairs, not with the rate of the port.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::key::{Role, random_number};
use crate::link::{Link, Message};
use crate::outcome::{Outcome, Wrong};

/// Version of the conversation. Other conversations with the same key have other numbers.
pub const VERSION: u32 = 1 << 16 | 1;

/// Bytes of a block.
const BLOCK: usize = 1 << 20;
/// Blocks that are sent first: until then the kernel finds out how much may be in flight.
const FIRST: u64 = 8;
/// How long blocks are sent.
const SENT: Duration = Duration::from_millis(500);
/// Blocks of half a second at 1 Tb/s.
const MOST: u64 = 1 << 16;
/// Round trips.
const PINGS: u16 = 200;
/// More than any path transfers, Gb/s.
const GBPS: f64 = 1e5;
/// More than any message takes, µs.
const MICROSECONDS: f64 = 1e8;

/// One line of the conversation.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Said {
    /// So many blocks follow, which are made of the seed.
    Blocks { seed: u64, blocks: u64 },
    /// Reply to `Blocks`: words that differ, and the offset of the first one, bytes.
    Compared { words: u64, first: Option<u64> },
    /// So many words follow, each of which is to be returned.
    Ping { words: u16 },
    /// What the sender has measured: Gb/s, and one way, µs.
    Measured { gbps: f64, median_us: f64, p99_us: f64 },
    /// The sender gives up.
    Failed { why: String },
}

impl Message for Said {
    fn failed(why: String) -> Self {
        Said::Failed { why }
    }

    fn failure(&self) -> Option<&str> {
        match self {
            Said::Failed { why } => Some(why),
            _ => None,
        }
    }

    fn is_plausible(&self) -> bool {
        match *self {
            Said::Blocks { blocks, .. } => (1..=MOST).contains(&blocks),
            Said::Compared { words, first } => {
                words <= MOST * BLOCK as u64 / 8
                    && first.is_none_or(|first| first < MOST * BLOCK as u64)
                    && (words > 0) == first.is_some()
            }
            Said::Ping { words } => (1..=PINGS).contains(&words),
            Said::Measured { gbps, median_us, p99_us } => {
                (0.0..=GBPS).contains(&gbps)
                    && [median_us, p99_us].iter().all(|time| (0.0..=MICROSECONDS).contains(time))
            }
            Said::Failed { .. } => true,
        }
    }
}

/// Tests the path over a connection with a peer that does the same with the other role. What was measured before an error stays in
/// the outcome.
pub fn test(link: &mut Link, role: Role, outcome: &mut Outcome) -> Result<(), String> {
    let why = match converse(link, role, outcome) {
        Ok(()) => return Ok(()),
        Err(why) => why,
    };
    link.give_up::<Said>(&why);
    Err(match link.last::<Said>() {
        Some(theirs) if theirs != why => format!("{why}; {theirs}"),
        _ => why,
    })
}

fn converse(link: &mut Link, role: Role, outcome: &mut Outcome) -> Result<(), String> {
    match role {
        Role::Connect => {
            drive(link, outcome)?;
            follow(link, outcome)
        }
        Role::Serve => {
            follow(link, outcome)?;
            drive(link, outcome)
        }
    }
}

/// Measures from this end.
fn drive(link: &mut Link, outcome: &mut Outcome) -> Result<(), String> {
    let first = send(link, FIRST, outcome)?;
    let mut blocks = FIRST;
    while blocks < MOST && first.mul_f64(as_f64(blocks) / as_f64(FIRST)) < SENT {
        blocks *= 2;
    }
    let seconds = send(link, blocks, outcome)?.as_secs_f64();
    let gbps = as_f64(blocks * BLOCK as u64 * 8) / seconds.max(1e-9) / 1e9;
    outcome.gbps.write_out = Some(gbps);
    link.send(&Said::Ping { words: PINGS })?;
    let mut times = Vec::with_capacity(PINGS.into());
    for number in 0..u64::from(PINGS) {
        let began = Instant::now();
        link.write_all(&number.to_le_bytes())?;
        let mut back = [0; 8];
        link.read_exact(&mut back)?;
        times.push(began.elapsed().as_secs_f64() * 1e6 / 2.0);
        if back != number.to_le_bytes() {
            return Err("the peer returned another number than the one sent".to_owned());
        }
    }
    times.sort_by(f64::total_cmp);
    let at = |percent: usize| times.get(times.len() * percent / 100).copied().unwrap_or(0.0);
    let (median_us, p99_us) = (at(50), at(99));
    (outcome.latency_us.median_out, outcome.latency_us.p99_out) = (Some(median_us), Some(p99_us));
    link.send(&Said::Measured { gbps, median_us, p99_us })
}

/// Sends blocks, and returns the time until the peer has compared the last one.
fn send(link: &mut Link, blocks: u64, outcome: &mut Outcome) -> Result<Duration, String> {
    let seed = random_number()?;
    let mut block = Block::new(seed);
    link.send(&Said::Blocks { seed, blocks })?;
    let began = Instant::now();
    for number in 0..blocks {
        link.write_all(block.numbered(number))?;
    }
    let Said::Compared { words, first } = link.receive()? else {
        return Err(unexpected());
    };
    outcome.sent(Wrong { words, first });
    Ok(began.elapsed())
}

/// Answers while the peer measures.
fn follow(link: &mut Link, outcome: &mut Outcome) -> Result<(), String> {
    let mut got = vec![0; BLOCK];
    loop {
        match link.receive()? {
            Said::Blocks { seed, blocks } => {
                let mut block = Block::new(seed);
                let mut wrong = Wrong::default();
                for number in 0..blocks {
                    link.read_exact(&mut got)?;
                    compare(&got, block.numbered(number), number, &mut wrong);
                }
                outcome.received(wrong);
                link.send(&Said::Compared { words: wrong.words, first: wrong.first })?;
            }
            Said::Ping { words } => {
                for _ in 0..words {
                    let mut word = [0; 8];
                    link.read_exact(&mut word)?;
                    link.write_all(&word)?;
                }
            }
            Said::Measured { gbps, median_us, p99_us } => {
                outcome.gbps.write_in = Some(gbps);
                (outcome.latency_us.median_in, outcome.latency_us.p99_in) = (Some(median_us), Some(p99_us));
                return Ok(());
            }
            _ => return Err(unexpected()),
        }
    }
}

/// The bytes of a block: numbers that follow from the seed, and the block's own number, so that a block in the place of another is
/// found.
struct Block(Vec<u8>);

impl Block {
    fn new(seed: u64) -> Self {
        let mut state = seed;
        // SplitMix64.
        let word = |_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            (mixed ^ mixed >> 31).to_le_bytes()
        };
        Block((0..BLOCK / 8).flat_map(word).collect())
    }

    fn numbered(&mut self, number: u64) -> &[u8] {
        if let Some(first) = self.0.first_chunk_mut() {
            *first = number.to_le_bytes();
        }
        &self.0
    }
}

/// Compares one block with what it must be.
fn compare(got: &[u8], want: &[u8], number: u64, wrong: &mut Wrong) {
    if got == want {
        return;
    }
    for (offset, (got, want)) in (0..).step_by(8).zip(got.chunks(8).zip(want.chunks(8))) {
        if got != want {
            wrong.words += 1;
            wrong.first.get_or_insert(number * BLOCK as u64 + offset);
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "numbers of bytes and blocks are far below 2^53")]
fn as_f64(number: u64) -> f64 {
    number as f64
}

fn unexpected() -> String {
    "the peer sent another message than the one expected".to_owned()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn ends() -> [Link; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        [one, other].map(|stream| Link::new(stream, Instant::now() + Duration::from_secs(20)).unwrap())
    }

    /// Numbers lose their last bit in JSON.
    fn is_same(one: Option<f64>, other: Option<f64>) -> bool {
        one.zip(other).is_some_and(|(one, other)| (one - other).abs() <= 1e-12 * one)
    }

    /// The outcomes of an end that tests and of one that does `play`.
    fn with<T: Send>(role: Role, play: impl FnOnce(Link) -> T + Send) -> (Outcome, Result<(), String>, T) {
        let [mut own, theirs] = ends();
        std::thread::scope(|scope| {
            let peer = scope.spawn(|| play(theirs));
            let mut outcome = Outcome::default();
            let result = test(&mut own, role, &mut outcome);
            drop(own);
            (outcome, result, peer.join().unwrap())
        })
    }

    #[test]
    fn both_ends_measure_both_directions() {
        let (own, result, theirs) = with(Role::Connect, |mut link| {
            let mut outcome = Outcome::default();
            test(&mut link, Role::Serve, &mut outcome).map(|()| outcome)
        });
        let theirs = theirs.unwrap();
        assert_eq!(result, Ok(()));
        for (one, other) in [(&own, &theirs), (&theirs, &own)] {
            assert!(one.gbps.write_out.is_some_and(|rate| rate > 0.0), "{one:?}");
            assert!(is_same(one.gbps.write_out, other.gbps.write_in), "{one:?} {other:?}");
            assert!(
                one.latency_us.median_out <= one.latency_us.p99_out && one.latency_us.median_out > Some(0.0)
            );
            assert!(is_same(one.latency_us.p99_out, other.latency_us.p99_in), "{one:?} {other:?}");
            assert_eq!(
                (one.wrong_words.out, one.wrong_words.into, one.first_wrong.out),
                (Some(0), Some(0), None)
            );
            assert_eq!(one.gbps.read_out, None);
        }
    }

    /// The second block has one wrong bit, and the third is the second again.
    #[test]
    fn wrong_values_are_counted_at_their_place() {
        let (own, _, told) = with(Role::Serve, |mut link| {
            link.send(&Said::Blocks { seed: 7, blocks: 3 }).unwrap();
            let mut block = Block::new(7);
            link.write_all(block.numbered(0)).unwrap();
            let mut second = block.numbered(1).to_vec();
            second[800] ^= 4;
            link.write_all(&second).unwrap();
            link.write_all(&second).unwrap();
            link.receive::<Said>().unwrap()
        });
        assert_eq!(told, Said::Compared { words: 3, first: Some((1 << 20) + 800) });
        assert_eq!((own.wrong_words.into, own.first_wrong.into), (Some(3), Some((1 << 20) + 800)));
        assert_eq!(own.gbps.write_in, None);
    }

    #[test]
    fn impossible_numbers_and_replies_end_the_test() {
        for (said, why) in [
            (Said::Blocks { seed: 1, blocks: MOST + 1 }, "the peer sent an impossible number"),
            (Said::Blocks { seed: 1, blocks: 0 }, "the peer sent an impossible number"),
            (
                Said::Measured { gbps: -1.0, median_us: 1.0, p99_us: 1.0 },
                "the peer sent an impossible number",
            ),
            (Said::Ping { words: u16::MAX }, "the peer sent an impossible number"),
            (Said::Compared { words: 0, first: None }, "the peer sent another message than the one expected"),
            (Said::Failed { why: "no\u{1b}".to_owned() }, "the peer failed: no?"),
        ] {
            let (_, result, ()) = with(Role::Serve, |mut link| {
                link.send(&said).unwrap();
                let _ = link.receive::<Said>();
            });
            let told = result.unwrap_err();
            assert!(told.starts_with(why), "{said:?}: {told}");
        }
        let (outcome, result, ()) = with(Role::Connect, drop);
        assert_eq!(result, Err("the peer closed the connection".to_owned()));
        assert!(!outcome.measured());
    }

    /// A peer that returns other words than it gets.
    #[test]
    fn a_peer_that_does_not_return_the_word_is_found() {
        let (outcome, result, ()) = with(Role::Connect, |mut link| {
            let mut got = vec![0; BLOCK];
            while let Ok(Said::Blocks { blocks, .. }) = link.receive() {
                (0..blocks).for_each(|_| link.read_exact(&mut got).unwrap());
                link.send(&Said::Compared { words: 0, first: None }).unwrap();
            }
            link.write_all(&[9; 8]).unwrap();
            let _ = link.last::<Said>();
        });
        assert!(result.unwrap_err().starts_with("the peer returned another number"));
        assert!(outcome.gbps.write_out.is_some() && outcome.latency_us.median_out.is_none());
    }
}
