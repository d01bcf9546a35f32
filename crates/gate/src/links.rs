//! The history of each port: its counters of the last hours, and when its link went down. Ports are identified by the
//! GUID of their device, so a replaced card starts with an empty history.

use std::collections::BTreeMap;
use std::time::Duration;

use railgate_model::{Hca, Port, PortState, Reading, Snapshot};
use serde::{Deserialize, Serialize};

use crate::trend;

/// The history of one port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KnownLink {
    /// Device name and port number, for example `mlx5_2/1`.
    pub port: String,
    /// `node_guid` of the device, if it could be read.
    pub guid: String,
    /// Boot in which the samples were taken.
    pub boot_id: String,
    /// Whether the port was active at the last check run.
    pub active: bool,
    /// Times of check runs that found that the link had gone down since the previous one, in Unix seconds, oldest
    /// first.
    pub downs: Vec<u64>,
    /// Counters, oldest first. The last sample is that of the last check run.
    pub samples: Vec<Sample>,
    /// Counters of `trend.rs` at the start of the current history interval.
    pub stretch: Sample,
    /// Growth per hour of these counters, one entry for each interval, oldest first, across boots.
    pub rates: Vec<Sample>,
}

/// Counters at one point in time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// Unix seconds.
    pub time: u64,
    /// The counters that could be read.
    pub counters: BTreeMap<String, u64>,
}

/// How a counter has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grown {
    /// It grew by this amount in this time.
    By(u64, Duration),
    /// It decreased: it was reset.
    Reset,
    /// There is no earlier value from this boot.
    Unknown,
}

/// The counters that are judged by their growth, in addition to [`PAUSES`].
const WATCHED: [&str; 28] = [
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "implied_nak_seq_err",
    "link_downed",
    "link_error_recovery",
    "local_ack_timeout_err",
    "local_link_integrity_errors",
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "out_of_buffer",
    "out_of_sequence",
    "packet_seq_err",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_xmit_discards",
    "req_cqe_error",
    "resp_cqe_error",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
    "roce_adp_retrans_to",
    "roce_slow_restart",
    "rp_cnp_handled",
    "rp_cnp_ignored",
    "rx_corrected_bits_phy",
    "rx_discards_phy",
    "rx_pcs_symbol_err_phy",
    "symbol_error",
    "tx_pause_storm_error_events",
];

/// Microseconds that each priority of a port was paused (`rx`) or paused others (`tx`).
pub(crate) const PAUSES: [&str; 16] = [
    "rx_prio0_pause_duration",
    "rx_prio1_pause_duration",
    "rx_prio2_pause_duration",
    "rx_prio3_pause_duration",
    "rx_prio4_pause_duration",
    "rx_prio5_pause_duration",
    "rx_prio6_pause_duration",
    "rx_prio7_pause_duration",
    "tx_prio0_pause_duration",
    "tx_prio1_pause_duration",
    "tx_prio2_pause_duration",
    "tx_prio3_pause_duration",
    "tx_prio4_pause_duration",
    "tx_prio5_pause_duration",
    "tx_prio6_pause_duration",
    "tx_prio7_pause_duration",
];

/// Seconds between two samples, except the last one.
const SPACING: u64 = 600;
const MOST_SAMPLES: usize = 8;
/// Seconds for which link downs are kept.
const DOWNS_KEPT: u64 = 7 * 24 * 3600;
const MOST_DOWNS: usize = 64;
const MOST_LINKS: usize = 64;
/// State changes within this many seconds after boot are link training.
const TRAINING: u64 = 300;

/// Whether the growth of a counter is recorded from one check run to the next.
pub(crate) fn watched(counter: &str) -> bool {
    WATCHED.contains(&counter) || PAUSES.contains(&counter)
}

pub(crate) fn port_name(hca: &Hca, port: &Port) -> String {
    format!("{}/{}", hca.name, port.number)
}

impl KnownLink {
    fn is_of(&self, hca: &Hca, port: &Port) -> bool {
        let same_device = match hca.node_guid.known() {
            Some(guid) => *guid == self.guid,
            None => self.guid.is_empty(),
        };
        // Some devices report a GUID of zeros; these are identified by name. A name alone depends on the order in which
        // drivers probe.
        let zero = self.guid.chars().all(|c| matches!(c, '0' | ':'));
        let name = port_name(hca, port);
        same_device && if zero { self.port == name } else { same_number(&self.port, &name) }
    }

    /// The change of a counter since the oldest sample within `window`.
    pub(crate) fn grown(&self, counter: &str, value: u64, now: &Snapshot, window: Duration) -> Grown {
        let time = now.taken / 1000;
        if self.boot_id.is_empty() || self.boot_id != now.boot_id {
            return Grown::Unknown;
        }
        let within = |sample: &&Sample| {
            let ago = time.checked_sub(sample.time);
            ago.is_some_and(|ago| ago > 0 && ago <= window.as_secs())
        };
        let Some((sample, old)) = self
            .samples
            .iter()
            .filter(within)
            .find_map(|sample| sample.counters.get(counter).map(|old| (sample, *old)))
        else {
            return Grown::Unknown;
        };
        match value.checked_sub(old) {
            Some(more) => Grown::By(more, Duration::from_secs(time - sample.time)),
            None => Grown::Reset,
        }
    }
}

fn same_number(a: &str, b: &str) -> bool {
    a.rsplit('/').next() == b.rsplit('/').next()
}

/// Finds the history of a port.
pub(crate) fn known<'a>(links: &'a [KnownLink], hca: &Hca, port: &Port) -> Option<&'a KnownLink> {
    links.iter().find(|link| link.is_of(hca, port))
}

/// The history for the next check run. A check run that did not read the fabric leaves it unchanged.
pub(crate) fn after(links: &[KnownLink], now: &Snapshot) -> Vec<KnownLink> {
    let Some(fabric) = now.fabric.data() else { return links.to_vec() };
    let time = now.taken / 1000;
    let booted = now.host.data().and_then(|host| host.boot_time.known().copied());
    let training = booted.is_some_and(|booted| time.saturating_sub(booted) < TRAINING);
    let ports = || fabric.hcas.iter().flat_map(|hca| hca.ports.iter().map(move |port| (hca, port)));
    let mut next: Vec<KnownLink> =
        ports().map(|(hca, port)| link_after(links, now, hca, port, training)).collect();
    // A device that is missing for now keeps its history.
    let gone = links.iter().filter(|link| !ports().any(|(hca, port)| link.is_of(hca, port)));
    let fresh = |link: &&KnownLink| {
        let last = link.samples.last().map_or(0, |sample| sample.time);
        last.saturating_add(DOWNS_KEPT) >= time
    };
    next.extend(gone.filter(fresh).cloned());
    next.truncate(MOST_LINKS);
    next
}

fn link_after(links: &[KnownLink], now: &Snapshot, hca: &Hca, port: &Port, training: bool) -> KnownLink {
    let time = now.taken / 1000;
    let old = known(links, hca, port);
    let same_boot = old.is_some_and(|old| !now.boot_id.is_empty() && old.boot_id == now.boot_id);
    // If the state could not be read, the previous one is kept.
    let active = match &port.state {
        Reading::Known(state) => *state == PortState::Active,
        Reading::Unsupported | Reading::Failed(_) => old.is_some_and(|old| old.active),
    };
    let counters: BTreeMap<String, u64> = port
        .counters
        .iter()
        .filter(|(name, _)| watched(name))
        .filter_map(|(name, value)| value.known().map(|value| (name.clone(), *value)))
        .collect();
    let mut next = KnownLink {
        port: port_name(hca, port),
        guid: hca.node_guid.known().cloned().unwrap_or_default(),
        boot_id: now.boot_id.clone(),
        active,
        downs: old.map(|old| old.downs.clone()).unwrap_or_default(),
        ..KnownLink::default()
    };
    if let Some(old) = old.filter(|_| same_boot) {
        let last = old.samples.last();
        let count = |sample: &Sample| sample.counters.get("link_downed").copied();
        // If the device counts link downs, only those that it counted are real.
        let went_down = match (last.and_then(count), counters.get("link_downed").copied()) {
            (Some(before), Some(after)) => after > before,
            _ => old.active && !active,
        };
        if went_down && !training {
            next.downs.push(time);
        }
    }
    let same = old.filter(|_| same_boot);
    trend::follow(&mut next, old, same_boot, time, &counters);
    next.samples = sampled(same.map_or(&[], |old| &old.samples), time, counters);
    next.downs.retain(|down| *down <= time && down.saturating_add(DOWNS_KEPT) >= time);
    let over = next.downs.len().saturating_sub(MOST_DOWNS);
    next.downs.drain(..over);
    next
}

/// The samples of this boot after one more check run. They are cleared if a counter went backwards, and thinned out to
/// those needed to reach back one hour.
pub(crate) fn sampled(old: &[Sample], time: u64, counters: BTreeMap<String, u64>) -> Vec<Sample> {
    let mut next = Vec::new();
    let backwards = |last: &Sample| {
        last.counters.iter().any(|(name, before)| counters.get(name).is_some_and(|after| after < before))
    };
    if old.last().is_some_and(|last| last.time < time && !backwards(last)) {
        next.extend_from_slice(old);
        // The previous last sample is replaced unless it is due to be kept.
        if let [.., before, last] = old
            && last.time < before.time.saturating_add(SPACING)
        {
            next.pop();
        }
    }
    next.push(Sample { time, counters });
    let over = next.len().saturating_sub(MOST_SAMPLES);
    next.drain(..over);
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{case, read};

    /// The history after check runs `step` seconds apart with these values of `link_downed`.
    fn looks(step: u64, values: &[u64]) -> Vec<KnownLink> {
        let mut now = case("h100-sxm").now;
        let mut links = Vec::new();
        for value in values {
            now.taken += step * 1000;
            read(&mut now.fabric).hcas[2].ports[0]
                .counters
                .insert("link_downed".to_owned(), Reading::Known(*value));
            links = after(&links, &now);
        }
        links
    }

    #[test]
    fn a_link_down_is_recorded_once_per_check_run() {
        let links = looks(60, &[0, 1, 1, 4, 4]);
        assert_eq!(links[2].downs.len(), 2);
        assert!(links[1].downs.is_empty());
        assert_eq!(links.len(), 9);
    }

    #[test]
    fn few_samples_are_kept_and_reach_back_an_hour() {
        let links = looks(60, &[0; 200]);
        let times: Vec<u64> = links[2].samples.iter().map(|sample| sample.time).collect();
        assert_eq!(times.len(), MOST_SAMPLES);
        assert!(times[MOST_SAMPLES - 1] - times[0] >= 3600, "{times:?}");
    }

    #[test]
    fn a_counter_reset_clears_the_samples_and_is_no_link_down() {
        let links = looks(60, &[5, 6, 0, 0]);
        assert_eq!(links[2].downs.len(), 1);
        assert_eq!(links[2].samples.len(), 2);
        let mut now = case("h100-sxm").now;
        now.taken += 300_000;
        let hour = Duration::from_secs(3600);
        assert_eq!(links[2].grown("link_downed", 3, &now, hour), Grown::By(3, Duration::from_secs(120)));
        let reset = looks(60, &[5, 6]);
        assert_eq!(reset[2].grown("link_downed", 0, &now, hour), Grown::Reset);
        assert_eq!(reset[2].grown("no_such", 0, &now, hour), Grown::Unknown);
        now.boot_id = "another".to_owned();
        assert_eq!(links[2].grown("link_downed", 3, &now, hour), Grown::Unknown);
    }

    #[test]
    fn another_boot_or_another_card_clears_the_samples() {
        let links = looks(60, &[0, 1]);
        let mut now = case("h100-sxm").now;
        now.taken += 600_000;
        now.boot_id = "another".to_owned();
        read(&mut now.fabric).hcas[2].ports[0].state = Reading::Known(PortState::Down);
        let booted = after(&links, &now);
        assert_eq!((booted[2].downs.len(), booted[2].samples.len()), (1, 1), "a boot is no flap");
        read(&mut now.fabric).hcas[2].node_guid = Reading::Known("b83f:d203:0300:0001".to_owned());
        let replaced = after(&links, &now);
        assert!(replaced[2].downs.is_empty());
        assert_eq!(replaced.len(), 10, "the old card is remembered for a week");
    }

    #[test]
    fn without_a_counter_link_downs_follow_from_the_states() {
        let mut now = case("h100-sxm").now;
        let mut links = Vec::new();
        for state in [PortState::Active, PortState::Down, PortState::Down, PortState::Active] {
            now.taken += 60_000;
            let port = &mut read(&mut now.fabric).hcas[2].ports[0];
            port.state = Reading::Known(state);
            port.counters.clear();
            links = after(&links, &now);
        }
        assert_eq!(links[2].downs.len(), 1);
    }
}
