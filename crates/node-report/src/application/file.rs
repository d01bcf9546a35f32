//! The 12 KiB file that `contrib/python/railgate.py` maps, little-endian. A user may write anything into it:
//! every value is bounded or refused.

use railgate_model::UnixMillis;
use serde::Deserialize;

use super::{AppEvent, AppEventKind, Course, Model, RankApplication, StepTimes, lines};

/// Directory of rank files below a run's `user/`.
pub const APP_DIR: &str = "app";
/// Largest accepted file of a rank, bytes.
pub const MOST_BYTES: u64 = 1 << 20;

const MAGIC: &[u8] = b"RGAPPL\r\n";
const SIZE: usize = 12_288;
const CLASSES: usize = 384;
const SLOTS: usize = 240;
const KEPT_EVENTS: u64 = 64;
/// Upper bounds: 100 years for durations, 10^18 for counts.
const MOST_SECONDS: f64 = 3.2e9;
const MOST_COUNT: f64 = 1e18;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Who {
    rank: Option<u32>,
    local_rank: Option<u32>,
    world: Option<u32>,
    start: u32,
}

/// Parses a rank's report: the Python helper's file, or lines of text.
///
/// # Errors
/// Why `bytes` are neither format.
pub fn read(name: &str, bytes: &[u8]) -> Result<RankApplication, String> {
    if bytes.starts_with(lines::HEAD) {
        return lines::read(name, bytes);
    }
    if !bytes.starts_with(MAGIC) {
        return Err("neither railgate.py's counters nor lines of railgate-app".to_owned());
    }
    let file = File(bytes.get(..SIZE).ok_or("shorter than 12,288 bytes")?);
    if file.u32(8) != 1 {
        return Err(format!("version {} is not known", file.u32(8)));
    }
    rank(name, &file).ok_or_else(|| "impossible figures".to_owned())
}

struct File<'a>(&'a [u8]);

impl File<'_> {
    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0.get(at..at + N).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.array(at))
    }

    fn count(&self, word: usize) -> Option<u64> {
        u64::try_from(i64::from_le_bytes(self.array(word * 8))).ok()
    }

    fn real(&self, word: usize) -> f64 {
        f64::from_le_bytes(self.array(word * 8))
    }

    fn amount(&self, word: usize) -> Option<f64> {
        Some(self.real(word)).filter(|value| (0.0..=MOST_COUNT).contains(value))
    }

    fn seconds(&self, word: usize) -> Option<f64> {
        Some(self.real(word)).filter(|value| (0.0..=MOST_SECONDS).contains(value))
    }

    fn time(&self, word: usize) -> Option<UnixMillis> {
        millis(self.real(word))
    }

    fn json<T: for<'a> Deserialize<'a> + Default>(&self, at: usize) -> Option<T> {
        let length = usize::try_from(self.u32(at)).ok().filter(|length| (1..=2000).contains(length))?;
        serde_json::from_slice(self.0.get(at + 4..at + 4 + length)?).ok()
    }
}

/// Converts Unix seconds; `None` if out of range.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded before")]
pub(super) fn millis(seconds: f64) -> Option<UnixMillis> {
    (seconds > 0.0 && seconds <= MOST_SECONDS).then(|| (seconds * 1000.0).round() as u64)
}

fn rank(name: &str, file: &File<'_>) -> Option<RankApplication> {
    let who: Who = file.json(4096).unwrap_or_default();
    let told = file.count(33)?;
    let told = |bit: u64, word: usize| if told & bit == 0 { None } else { file.amount(word) };
    let count = file.count(12)?;
    let (total, min, max) = (file.seconds(11)?, file.real(13), file.seconds(14)?);
    let step_s = (count > 0 && min <= max && min >= 0.0).then(|| {
        let classes: Vec<u64> = (0..CLASSES).map(|class| u64::from(file.u32(512 + 4 * class))).collect();
        times(&classes, count, total, min, max)
    });
    let events = file.count(35)?;
    Some(RankApplication {
        file: name.to_owned(),
        rank: who.rank,
        local_rank: who.local_rank,
        world: who.world,
        start_number: bounded_start(who.start),
        model: file.json::<Model>(6144).map(bounded),
        starts: u32::try_from(file.count(29)?).ok()?,
        started: file.time(30)?,
        first_step: file.time(31),
        last_step: file.time(9),
        last_seen: file.time(10)?,
        steps: file.count(8)?,
        step_s,
        tokens: told(1, 15),
        samples: told(2, 16),
        timed_tokens: told(1, 17),
        timed_samples: told(2, 18),
        first_number: file.count(32),
        last_number: file.count(19),
        redone: file.count(20)?,
        redone_s: file.seconds(21)?,
        checkpoints: file.count(24)?,
        checkpoint_s: file.seconds(25)?,
        checkpoint_number: file.count(26).filter(|_| file.count(24) > Some(0)),
        in_checkpoint: file.count(27) == Some(1),
        input_s: told(4, 22).filter(|seconds| *seconds <= MOST_SECONDS),
        start_up_s: file.seconds(23)?,
        events: (0..events.min(KEPT_EVENTS)).filter_map(|slot| event(file, events, slot)).collect(),
        more_events: events.saturating_sub(KEPT_EVENTS),
        course: course(file),
    })
}

/// A number that no launcher reaches is invalid.
pub(super) fn bounded_start(number: u32) -> u32 {
    if number < railgate_rankfile::MOST_STARTS { number } else { 0 }
}

fn bounded(mut model: Model) -> Model {
    let cut = |text: &str, most: usize| railgate_text::clip(text, most);
    model.name = cut(&model.name, 100);
    model.dtype = cut(&model.dtype, 16);
    model
}

/// The first 32 events are stored in order, the last 32 in a ring buffer.
fn event(file: &File<'_>, events: u64, nth: u64) -> Option<AppEvent> {
    let number = if nth < 32 || events <= KEPT_EVENTS { nth } else { events - KEPT_EVENTS + nth };
    let slot = if number < 32 { number } else { 32 + number % 32 };
    let word = (2048 + 32 * usize::try_from(slot).ok()?) / 8;
    let what = match file.u32(8 * (word + 2)) {
        1 => AppEventKind::Nan,
        2 => AppEventKind::Spike,
        3 => AppEventKind::Start,
        4 => AppEventKind::End,
        _ => return None,
    };
    let kept = file.u32(8 * (word + 2) + 4) & 1 == 1;
    let loss = kept.then(|| file.real(word + 3)).filter(|loss| loss.is_finite());
    Some(AppEvent { time: file.time(word)?, step: file.count(word + 1)?, what, loss })
}

fn course(file: &File<'_>) -> Option<Course> {
    let span_s = file.seconds(1025).filter(|span| *span >= 1.0)?;
    let mut step_s: Vec<Option<f32>> = (0..SLOTS)
        .map(|slot| {
            let count = file.u32(8208 + 8 * slot);
            let sum = f32::from_le_bytes(file.array(8212 + 8 * slot));
            #[expect(clippy::cast_precision_loss, reason = "for a plot")]
            let mean = sum / count as f32;
            (count > 0 && mean.is_finite() && mean >= 0.0).then_some(mean)
        })
        .collect();
    let last = step_s.iter().rposition(Option::is_some)?;
    step_s.truncate(last + 1);
    // Longer runs are folded into fewer intervals, because reports of a thousand nodes are merged in memory.
    let fold = step_s.len().div_ceil(48).max(1);
    let step_s = step_s
        .chunks(fold)
        .map(|spans| {
            let known: Vec<f32> = spans.iter().flatten().copied().collect();
            #[expect(clippy::cast_precision_loss, reason = "at most 240")]
            let count = known.len() as f32;
            (count > 0.0).then(|| known.iter().sum::<f32>() / count)
        })
        .collect();
    let fold = f64::from(u32::try_from(fold).ok()?);
    Some(Course { start: file.time(1024)?, span_s: span_s * fold, step_s })
}

/// Histogram bucket of a step's duration: buckets are 5 % wide, the first one reaches up to 0.1 ms.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded")]
pub(super) fn class_of(seconds: f64) -> usize {
    let place = (seconds * 1e4).ln() / 1.05_f64.ln();
    if seconds > 1e-4 { (place as usize).min(CLASSES - 1) } else { 0 }
}

pub(super) fn times(classes: &[u64], count: u64, total: f64, min: f64, max: f64) -> StepTimes {
    let all: u64 = classes.iter().sum();
    let percentile = |share: f64| {
        let want = crate::plain::float(all) * share;
        let mut seen = 0.0;
        for (class, number) in (0_i32..).zip(classes) {
            seen += crate::plain::float(*number);
            if *number > 0 && seen >= want {
                // The middle of the bucket, limited to the shortest and longest step.
                return (1e-4 * 1.05_f64.powi(class) * 1.025).clamp(min, max);
            }
        }
        max
    };
    let mean = total / crate::plain::float(count.max(1));
    StepTimes {
        count,
        total,
        mean,
        min,
        max,
        p50: percentile(0.5),
        p90: percentile(0.9),
        p99: percentile(0.99),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Seeds and findings of `fuzz/fuzz_targets/application.rs`: a complete file, or (offset, bytes) pairs for
    /// an empty one.
    #[test]
    fn fuzz_seeds_are_refused_or_bounded() {
        let seeds = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/application");
        let mut understood = 0;
        for seed in std::fs::read_dir(seeds).unwrap() {
            let seed = std::fs::read(seed.unwrap().path()).unwrap();
            let mut bent = vec![0; SIZE];
            bent[..MAGIC.len()].copy_from_slice(MAGIC);
            bent[8] = 1;
            for change in seed.chunks_exact(10) {
                let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % (SIZE - 8);
                bent[at..at + 8].copy_from_slice(&change[2..]);
            }
            for file in [seed.clone(), [b"railgate-app 1\n", &seed[..]].concat(), bent] {
                let Ok(rank) = read("4711", &file) else { continue };
                understood += 1;
                assert!(rank.events.len() <= 64);
                let text = serde_json::to_string(&rank).unwrap();
                assert!(text.len() < 64 << 10 && serde_json::from_str::<RankApplication>(&text).is_ok());
            }
        }
        assert!(understood >= 20, "{understood}");
    }

    #[test]
    fn extreme_values_are_refused_or_bounded() {
        assert!(read("0.0", b"").is_err());
        assert!(read("0.0", b"RGAPPL\r\n").is_err());
        let mut bytes = vec![0; SIZE];
        bytes[..8].copy_from_slice(MAGIC);
        assert!(read("0.0", &bytes).is_err());
        bytes[8] = 1;
        assert_eq!(read("0.0", &bytes).unwrap_err(), "impossible figures");
        bytes[240..248].copy_from_slice(&1.8e9_f64.to_le_bytes());
        bytes[80..88].copy_from_slice(&1.8e9_f64.to_le_bytes());
        let empty = read("0.0", &bytes).unwrap();
        assert_eq!((empty.steps, empty.step_s, empty.tokens), (0, None, None));
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), SIZE..SIZE + 8), good in any::<bool>()) {
            bytes[..8].copy_from_slice(MAGIC);
            bytes[8..12].copy_from_slice(&1_u32.to_le_bytes());
            if good {
                bytes[64..296].fill(0);
                bytes[240..248].copy_from_slice(&1.8e9_f64.to_le_bytes());
                bytes[80..88].copy_from_slice(&1.8e9_f64.to_le_bytes());
            }
            let read = read("0.0", &bytes);
            prop_assert!(!good || read.is_ok());
        }
    }
}
