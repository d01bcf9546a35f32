//! What earlier check runs knew of each port: its counters within the last hours and when its link went down. Links are
//! known by the device's GUID, so that a card that was replaced begins anew.

use std::collections::BTreeMap;
use std::time::Duration;

use railgate_model::{Hca, Port, PortState, Reading, Snapshot};
use serde::{Deserialize, Serialize};

use crate::trend;

/// A port as check runs have seen it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KnownLink {
    /// Name and number: `mlx5_2/1`.
    pub port: String,
    /// `node_guid`, where it was read.
    pub guid: String,
    /// The boot of the samples.
    pub boot_id: String,
    /// The port was active at the last check run.
    pub active: bool,
    /// When check runs found that the link had gone down since the one before, Unix seconds, oldest first.
    pub downs: Vec<u64>,
    /// Counters, oldest first; the last one is the last check run's.
    pub samples: Vec<Sample>,
    /// What is counted in hours, as it stood when the current stretch of them began.
    pub stretch: Sample,
    /// What the port counted in an hour, one entry for each stretch, oldest first. Of any boot.
    pub rates: Vec<Sample>,
}

/// Counters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// Unix seconds.
    pub time: u64,
    /// Those that could be read.
    pub counters: BTreeMap<String, u64>,
}

/// What a counter did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grown {
    /// By so much since then.
    By(u64, Duration),
    /// It went backwards: it was reset.
    Reset,
    /// Unknown: there is no earlier value of this boot.
    Unknown,
}

/// The counters whose growth is judged; [`PAUSES`] come to these.
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

/// How long each priority of a port was paused (`rx`) and paused others (`tx`), microseconds.
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

/// Samples lie so far apart, but for the last one.
const SPACING: u64 = 600;
const MOST_SAMPLES: usize = 8;
/// Downs are forgotten after this.
const DOWNS_KEPT: u64 = 7 * 24 * 3600;
const MOST_DOWNS: usize = 64;
const MOST_LINKS: usize = 64;
/// What a link does so soon after boot is training.
const TRAINING: u64 = 300;

/// Whether the growth of a counter is remembered from check run to check run.
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
        // Devices that say zero are told apart by their names; names alone move with the order of probing.
        let zero = self.guid.chars().all(|c| matches!(c, '0' | ':'));
        let name = port_name(hca, port);
        same_device && if zero { self.port == name } else { same_number(&self.port, &name) }
    }

    /// How a counter has grown since the oldest sample within `window`.
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

/// The memory of a port.
pub(crate) fn known<'a>(links: &'a [KnownLink], hca: &Hca, port: &Port) -> Option<&'a KnownLink> {
    links.iter().find(|link| link.is_of(hca, port))
}

/// What the next check run should know; a check run that did not read the fabric changes nothing.
pub(crate) fn after(links: &[KnownLink], now: &Snapshot) -> Vec<KnownLink> {
    let Some(fabric) = now.fabric.data() else { return links.to_vec() };
    let time = now.taken / 1000;
    let booted = now.host.data().and_then(|host| host.boot_time.known().copied());
    let training = booted.is_some_and(|booted| time.saturating_sub(booted) < TRAINING);
    let ports = || fabric.hcas.iter().flat_map(|hca| hca.ports.iter().map(move |port| (hca, port)));
    let mut next: Vec<KnownLink> =
        ports().map(|(hca, port)| link_after(links, now, hca, port, training)).collect();
    // A device that has gone for a moment keeps its past.
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
    // Nothing is known of a state that could not be read: the one before stands.
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
        // Where the device counts, a transition that it did not count is none.
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

/// The samples after one more check run, of those of the same boot: none where a counter went backwards, and no more than
/// are needed to reach back an hour.
pub(crate) fn sampled(old: &[Sample], time: u64, counters: BTreeMap<String, u64>) -> Vec<Sample> {
    let mut next = Vec::new();
    let backwards = |last: &Sample| {
        last.counters.iter().any(|(name, before)| counters.get(name).is_some_and(|after| after < before))
    };
    if old.last().is_some_and(|last| last.time < time && !backwards(last)) {
        next.extend_from_slice(old);
        // The last check run's own values give way unless they are to be kept.
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
    use crate::testing::{look, read};

    /// Looks at a port so many seconds apart, with these values of `link_downed`.
    fn looks(step: u64, values: &[u64]) -> Vec<KnownLink> {
        let mut now = look("h100-sxm").now;
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
    fn a_link_that_goes_down_is_remembered_once_per_look() {
        let links = looks(60, &[0, 1, 1, 4, 4]);
        assert_eq!(links[2].downs.len(), 2);
        assert!(links[1].downs.is_empty());
        assert_eq!(links.len(), 9);
    }

    #[test]
    fn samples_are_few_and_reach_back_an_hour() {
        let links = looks(60, &[0; 200]);
        let times: Vec<u64> = links[2].samples.iter().map(|sample| sample.time).collect();
        assert_eq!(times.len(), MOST_SAMPLES);
        assert!(times[MOST_SAMPLES - 1] - times[0] >= 3600, "{times:?}");
    }

    #[test]
    fn a_reset_begins_anew_and_says_nothing() {
        let links = looks(60, &[5, 6, 0, 0]);
        assert_eq!(links[2].downs.len(), 1);
        assert_eq!(links[2].samples.len(), 2);
        let mut now = look("h100-sxm").now;
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
    fn another_boot_and_another_card() {
        let links = looks(60, &[0, 1]);
        let mut now = look("h100-sxm").now;
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
    fn where_the_device_does_not_count_the_states_tell() {
        let mut now = look("h100-sxm").now;
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
