//! What a port usually counts in an hour: its own history of some days, over boots. Corrected errors are normal, and
//! how many of them are differs from cable to cable by orders of magnitude; what tells is a port against itself.

use std::collections::BTreeMap;

use crate::links::{KnownLink, Sample};

/// The counters that are followed: bits that the error correction has repaired, and what it could not.
pub(crate) const FOLLOWED: [&str; 3] = ["rx_corrected_bits_phy", "rx_pcs_symbol_err_phy", "symbol_error"];

/// One entry of the history stands for so many seconds.
const STRETCH: u64 = 6 * 3600;
/// A week of them.
const MOST: usize = 28;
/// Two days: fewer say nothing of what is usual.
const FEWEST: usize = 8;

/// Writes down in `next` what this check run adds to the history of a port.
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
    // Some check runs read less than others: such a one ends nothing.
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

/// How much of it the port usually counts in an hour: the median of what is known; `None` where that is too little.
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

    /// A check run every hour, of a port that counts so many between two of them.
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
    fn the_median_of_enough() {
        assert_eq!(usual(&followed(&[100; 40]), BITS), None, "six stretches");
        assert_eq!(usual(&followed(&[100; 60]), BITS), Some(100));
        let mut bursts = vec![100; 60];
        bursts[3..9].fill(1_000_000);
        assert_eq!(usual(&followed(&bursts), BITS), Some(100));
        assert_eq!(followed(&[100; 400]).rates.len(), MOST);
    }

    #[test]
    fn a_reset_and_a_boot_begin_a_stretch_and_keep_the_history() {
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
    fn a_look_that_reads_less_ends_nothing() {
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
