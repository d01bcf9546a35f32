//! The usual growth per hour of a port's counters, from its own history of several days, across boots. Corrected errors
//! are normal, and their number differs between cables by orders of magnitude, so a port is only compared with itself.

use std::collections::BTreeMap;

use crate::links::{KnownLink, Sample};

/// The counters that are followed: bits repaired by error correction, and symbols that it could not repair.
pub(crate) const FOLLOWED: [&str; 3] = ["rx_corrected_bits_phy", "rx_pcs_symbol_err_phy", "symbol_error"];

/// Length of one history interval in seconds.
const STRETCH: u64 = 6 * 3600;
/// Maximum number of entries: one week.
const MOST: usize = 28;
/// Minimum number of entries: two days. Fewer do not show what is usual.
const FEWEST: usize = 8;

/// Adds the growth of this check run to the history of a port in `next`.
pub(crate) fn follow(
    next: &mut KnownLink,
    old: Option<&KnownLink>,
    same_boot: bool,
    time: u64,
    counters: &BTreeMap<String, u64>,
) {
    let followed = |(name, _): &(&String, &u64)| FOLLOWED.contains(&name.as_str());
    let here: BTreeMap<String, u64> =
        counters.iter().filter(followed).map(|(name, value)| (name.clone(), *value)).collect();
    if let Some(old) = old {
        next.rates.clone_from(&old.rates);
    }
    let stretch = old.filter(|_| same_boot).map(|old| &old.stretch).filter(|stretch| {
        let backwards = |(name, before): (&String, &u64)| here.get(name).is_some_and(|now| now < before);
        let complete = here.keys().all(|name| stretch.counters.contains_key(name));
        stretch.time > 0 && stretch.time <= time && complete && !stretch.counters.iter().any(backwards)
    });
    let Some(stretch) = stretch else {
        next.stretch = Sample { time, counters: here };
        return;
    };
    // A check run that reads fewer counters does not end the interval.
    let elapsed = time - stretch.time;
    let ends = elapsed >= STRETCH && stretch.counters.keys().all(|name| here.contains_key(name));
    if !ends {
        next.stretch.clone_from(stretch);
        return;
    }
    let rate = |(name, now): (&String, &u64)| {
        let more = now.saturating_sub(*stretch.counters.get(name)?);
        let per_hour = u128::from(more) * 3600 / u128::from(elapsed.max(1));
        Some((name.clone(), u64::try_from(per_hour).unwrap_or(u64::MAX)))
    };
    next.rates.push(Sample { time, counters: here.iter().filter_map(rate).collect() });
    let over = next.rates.len().saturating_sub(MOST);
    next.rates.drain(..over);
    next.stretch = Sample { time, counters: here };
}

/// The usual growth of a counter per hour: the median of the history; `None` if there are too few entries.
pub(crate) fn usual(link: &KnownLink, counter: &str) -> Option<u64> {
    let mut rates: Vec<u64> =
        link.rates.iter().filter_map(|rate| rate.counters.get(counter)).copied().collect();
    rates.sort_unstable();
    (rates.len() >= FEWEST).then(|| rates.get(rates.len() / 2).copied())?
}

#[cfg(test)]
mod tests {
    use super::*;

    const BITS: &str = "rx_corrected_bits_phy";

    fn counted(value: u64) -> BTreeMap<String, u64> {
        BTreeMap::from([(BITS.to_owned(), value), ("symbol_error".to_owned(), 0)])
    }

    /// The history after hourly check runs of a port that counts this much between two of them.
    fn followed(hours: &[u64]) -> KnownLink {
        let mut link = KnownLink::default();
        let mut value = 0;
        for (hour, more) in (1..).zip(hours) {
            value += more;
            let mut next = KnownLink::default();
            follow(&mut next, Some(&link), true, 1_000_000 + hour * 3600, &counted(value));
            link = next;
        }
        link
    }

    #[test]
    fn the_usual_rate_is_the_median_of_enough_entries() {
        assert_eq!(usual(&followed(&[100; 40]), BITS), None, "six stretches");
        assert_eq!(usual(&followed(&[100; 60]), BITS), Some(100));
        let mut bursts = vec![100; 60];
        bursts[3..9].fill(1_000_000);
        assert_eq!(usual(&followed(&bursts), BITS), Some(100));
        assert_eq!(followed(&[100; 400]).rates.len(), MOST);
    }

    #[test]
    fn a_reset_or_a_boot_starts_an_interval_and_keeps_the_history() {
        let mut link = followed(&[100; 60]);
        for (same_boot, value) in [(true, 5), (false, 9_000)] {
            let mut next = KnownLink::default();
            let time = link.stretch.time + 7 * 3600;
            follow(&mut next, Some(&link), same_boot, time, &counted(value));
            assert_eq!((next.stretch.time, &next.rates), (time, &link.rates));
            link = next;
        }
    }

    #[test]
    fn a_check_run_that_reads_fewer_counters_does_not_end_the_interval() {
        let link = followed(&[100; 60]);
        let less = BTreeMap::from([("symbol_error".to_owned(), 0)]);
        let mut next = KnownLink::default();
        follow(&mut next, Some(&link), true, link.stretch.time + 7 * 3600, &less);
        assert_eq!((next.stretch, next.rates), (link.stretch.clone(), link.rates.clone()));
        let mut first = KnownLink::default();
        follow(&mut first, None, false, 77, &less);
        let mut second = KnownLink::default();
        follow(&mut second, Some(&first), true, 99, &counted(1));
        assert_eq!(second.stretch.time, 99, "now there is more to follow");
    }
}
