//! When a rail carried nothing while the other rails of the node carried traffic.

use railgate_model::{Reading, UnixMillis};
use serde::{Deserialize, Serialize};

/// The other rails carry traffic if their median is at least this, bytes per second: less is what subnet managers and idle connections send.
const OTHERS_CARRY: f64 = 1e6;
/// A port is quiet up to this share of the median of the others.
const QUIET_SHARE: f64 = 0.01;

/// Time in which a port carried next to nothing while the node's other rails carried traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RailQuiet {
    /// Sampled time in which the others carried traffic and this port's was known, seconds.
    pub over_s: f64,
    /// The longest such time; `None`: the port always carried traffic with the others.
    pub longest: Option<QuietTime>,
}

/// A time in which a port carried at most 1 % of the median of the other rails.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct QuietTime {
    /// Beginning.
    pub start: UnixMillis,
    /// When it carried traffic again; `None`: not while the others did.
    pub end: Option<UnixMillis>,
    /// Sampled time in which the others carried traffic, seconds.
    pub seconds: f64,
    /// Median of the others, bytes per second sent and received, mean over that time.
    pub others_bytes_s: f64,
    /// Earlier sampled time in which this port carried traffic with the others, seconds.
    pub before_s: f64,
    /// Bytes per second of this port, sent and received, mean over `before_s`; 0 without any.
    pub before_bytes_s: f64,
}

/// Of a report whose writer did not know the field.
pub(super) fn unknown() -> Reading<RailQuiet> {
    Reading::Failed("not sampled by the release that wrote the report".to_owned())
}

/// Rates of the node's rails over one sample.
#[derive(Clone, Debug)]
pub(super) struct RailSample {
    pub(super) start: UnixMillis,
    pub(super) seconds: f64,
    /// Number of the port in the caller's list, bytes per second sent and received.
    pub(super) rates: Vec<(usize, f64)>,
}

/// Returns when the port was quiet, from samples in time order. `Unsupported` if it was never known while others carried traffic.
///
/// Samples in which the others are idle, or in which the port's rate is not known, neither begin nor end a quiet time.
pub(super) fn quiet(port: usize, samples: &[RailSample]) -> Reading<RailQuiet> {
    let mut found = RailQuiet::default();
    let mut now: Option<QuietTime> = None;
    let (mut before_s, mut before_bytes) = (0.0, 0.0);
    let keep = |found: &mut RailQuiet, one: Option<QuietTime>| {
        if one.is_some_and(|one| found.longest.is_none_or(|longest| one.seconds > longest.seconds)) {
            found.longest = one;
        }
    };
    for sample in samples {
        let Some((_, own)) = sample.rates.iter().find(|(of, _)| *of == port) else { continue };
        let others = sample.rates.iter().filter(|(of, _)| *of != port).map(|(_, rate)| *rate).collect();
        let Some(others) = median(others).filter(|rate| *rate >= OTHERS_CARRY) else { continue };
        found.over_s += sample.seconds;
        if *own > QUIET_SHARE * others {
            let ended = now.take().map(|one| QuietTime { end: Some(sample.start), ..one });
            keep(&mut found, ended);
            before_s += sample.seconds;
            before_bytes += own * sample.seconds;
            continue;
        }
        let one = now.get_or_insert(QuietTime {
            start: sample.start,
            end: None,
            seconds: 0.0,
            others_bytes_s: 0.0,
            before_s,
            before_bytes_s: if before_s > 0.0 { before_bytes / before_s } else { 0.0 },
        });
        let seconds = one.seconds + sample.seconds;
        one.others_bytes_s += (others - one.others_bytes_s) * sample.seconds / seconds.max(f64::MIN_POSITIVE);
        one.seconds = seconds;
    }
    keep(&mut found, now);
    if found.over_s > 0.0 { Reading::Known(found) } else { Reading::Unsupported }
}

/// The lower one of two: half of the rails may be in use.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len().checked_sub(1)? / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sample of five seconds for each row: GB/s of each rail, `None` where it is not known.
    fn samples(rows: &[[Option<f64>; 3]]) -> Vec<RailSample> {
        let sample = |(at, row): (u64, &[Option<f64>; 3])| RailSample {
            start: 5_000 * at,
            seconds: 5.0,
            rates: row.iter().enumerate().filter_map(|(of, rate)| Some((of, (*rate)? * 1e9))).collect(),
        };
        (0..).zip(rows).map(sample).collect()
    }

    fn of(port: usize, rows: &[[Option<f64>; 3]]) -> RailQuiet {
        *quiet(port, &samples(rows)).known().unwrap()
    }

    const ALL: [Option<f64>; 3] = [Some(20.0), Some(40.0), Some(20.0)];
    const STOPPED: [Option<f64>; 3] = [Some(20.0), Some(0.0), Some(40.0)];
    const IDLE: [Option<f64>; 3] = [Some(0.0), Some(0.0), Some(0.0)];
    const UNREAD: [Option<f64>; 3] = [Some(20.0), None, Some(20.0)];

    #[test]
    fn a_rail_that_stops_is_quiet_until_the_end() {
        let found = of(1, &[ALL, ALL, STOPPED, IDLE, UNREAD, STOPPED]);
        let longest = QuietTime {
            start: 10_000,
            end: None,
            seconds: 10.0,
            others_bytes_s: 20e9,
            before_s: 10.0,
            before_bytes_s: 40e9,
        };
        assert_eq!(found, RailQuiet { over_s: 20.0, longest: Some(longest) });
        assert_eq!(
            of(0, &[ALL, STOPPED]),
            RailQuiet { over_s: 5.0, longest: None },
            "a partner alone carries"
        );
    }

    #[test]
    fn a_rail_that_returns_was_quiet_until_then() {
        let found = of(1, &[ALL, STOPPED, ALL, STOPPED, STOPPED, ALL]).longest.unwrap();
        assert_eq!((found.start, found.end, found.seconds), (15_000, Some(25_000), 10.0));
        assert_eq!(found.before_s, 10.0);
    }

    #[test]
    fn a_rail_that_never_carried_has_nothing_before() {
        let found = of(1, &[STOPPED, STOPPED]).longest.unwrap();
        assert_eq!((found.before_s, found.before_bytes_s, found.seconds), (0.0, 0.0, 10.0));
    }

    #[test]
    fn idle_and_unread_rails_are_no_finding() {
        assert_eq!(quiet(1, &samples(&[IDLE, IDLE])), Reading::Unsupported);
        assert_eq!(quiet(1, &samples(&[UNREAD])), Reading::Unsupported);
        assert_eq!(quiet(0, &samples(&[[Some(1.0), None, None]])), Reading::Unsupported, "no other rail");
        assert_eq!(of(1, &[ALL, IDLE, ALL]).longest, None);
    }
}
