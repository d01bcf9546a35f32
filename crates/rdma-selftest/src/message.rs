//! Messages between the two ends. Each value of a peer is checked before it is used.

use serde::{Deserialize, Serialize};

use crate::pattern::{BLOCK, BLOCKS};

/// Version of the conversation.
pub(crate) const VERSION: u32 = if cfg!(feature = "small") { 1001 } else { 1 };
/// Size of the memory that is sent from or received in, bytes.
pub(crate) const AREA: u64 = (BLOCK * BLOCKS * 8) as u64;
/// Maximum length of a device's name: `IBV_SYSFS_NAME_MAX`.
const NAME: usize = 64;
/// More than any link transfers, Gb/s.
const GBPS: f64 = 1e5;
/// More than any message takes, µs.
const MICROSECONDS: f64 = 1e8;

/// One line of the conversation.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Message {
    /// What the other end needs to reach this one.
    Place(Place),
    /// The sender can receive.
    Ready,
    /// The sender has written `blocks` blocks of the pattern with this seed into the receiver's memory.
    Written { seed: u64, blocks: u64, gbps: f64 },
    /// Reply to `Written`: words that differ.
    Checked { words: u64, first: Option<u64> },
    /// The receiver shall fill its memory with the pattern; the sender will read it.
    Fill { seed: u64 },
    /// The sender has read the receiver's memory and compared it.
    Read { gbps: f64, words: u64, first: Option<u64> },
    /// The receiver shall return each word that the sender writes.
    Ping,
    /// Result of the round trips, one-way, µs.
    Latency { median: f64, p99: f64 },
    /// The sender gives up.
    Failed { why: String },
}

/// Address of an end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Place {
    /// Name of the device.
    pub(crate) device: String,
    /// Queue pair number and first packet sequence number, 24 bits.
    pub(crate) number: u32,
    pub(crate) psn: u32,
    /// Address of the port on InfiniBand.
    pub(crate) lid: u16,
    /// Address of the port on RoCE, 32 hexadecimal digits.
    pub(crate) gid: Option<String>,
    /// MTU of the port as in `enum ibv_mtu`: 1 is 256 bytes, 5 is 4096.
    pub(crate) mtu: u32,
    /// RDMA reads in flight that the device can serve.
    pub(crate) reads: u8,
    /// Memory that this end sends from, only read by the peer.
    pub(crate) source: Region,
    /// Memory that the peer writes into.
    pub(crate) sink: Region,
    /// Memory for the words of the latency test.
    pub(crate) mailbox: Region,
}

/// Memory that the peer can read or write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Region {
    pub(crate) address: u64,
    pub(crate) key: u32,
    /// Bytes.
    pub(crate) length: u64,
}

impl Place {
    /// Checks the values of a peer.
    pub(crate) fn check(&self) -> Result<(), String> {
        let named = (1..=NAME).contains(&self.device.len())
            && self.device.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte));
        let numbers = self.number < 1 << 24 && self.psn < 1 << 24 && (1..=5).contains(&self.mtu);
        let addressed = match &self.gid {
            Some(gid) => railgate_pair::from_hex::<16>(gid).is_some(),
            None => self.lid != 0,
        };
        let sized = [(self.source, AREA), (self.sink, AREA), (self.mailbox, 8)];
        let reachable = sized.iter().all(|(region, least)| {
            region.length >= *least && region.address.checked_add(region.length).is_some()
        });
        if named && numbers && self.reads > 0 && addressed && reachable {
            Ok(())
        } else {
            Err("the peer sent an address that cannot be one".to_owned())
        }
    }
}

impl railgate_pair::Message for Message {
    fn failed(why: String) -> Self {
        Message::Failed { why }
    }

    fn failure(&self) -> Option<&str> {
        match self {
            Message::Failed { why } => Some(why),
            _ => None,
        }
    }

    fn is_plausible(&self) -> bool {
        let rate = |gbps: f64| (0.0..=GBPS).contains(&gbps);
        let time = |microseconds: f64| (0.0..=MICROSECONDS).contains(&microseconds);
        let wrong = |words: u64, first: Option<u64>| {
            words <= AREA / 8 && first.is_none_or(|first| first < AREA) && (words > 0) == first.is_some()
        };
        match *self {
            Message::Written { blocks, gbps, .. } => (1..=BLOCKS as u64).contains(&blocks) && rate(gbps),
            Message::Checked { words, first } => wrong(words, first),
            Message::Read { gbps, words, first } => rate(gbps) && wrong(words, first),
            Message::Latency { median, p99 } => time(median) && time(p99),
            _ => true,
        }
    }
}

#[cfg(test)]
pub(crate) fn example() -> Place {
    let region = Region { address: 1 << 40, key: 7, length: AREA };
    Place {
        device: "mlx5_0".to_owned(),
        number: 17,
        psn: 3,
        lid: 0,
        gid: Some("fe80".repeat(8)),
        mtu: 5,
        reads: 16,
        source: region,
        sink: region,
        mailbox: Region { length: 128, ..region },
    }
}

#[cfg(test)]
mod tests {
    use railgate_pair::Message as _;

    use super::*;

    #[test]
    fn an_address_that_cannot_be_one_is_refused() {
        let good = example();
        assert_eq!(good.check(), Ok(()));
        assert_eq!(Place { lid: 4, gid: None, ..good.clone() }.check(), Ok(()));
        let short = Region { length: AREA - 1, ..good.sink };
        let high = Region { address: u64::MAX - 5, ..good.sink };
        for wrong in [
            Place { device: String::new(), ..good.clone() },
            Place { device: "a".repeat(65), ..good.clone() },
            Place { device: "mlx5\u{1b}[2J".to_owned(), ..good.clone() },
            Place { number: 1 << 24, ..good.clone() },
            Place { psn: u32::MAX, ..good.clone() },
            Place { lid: 0, gid: None, ..good.clone() },
            Place { gid: Some("fe80".to_owned()), ..good.clone() },
            Place { mtu: 0, ..good.clone() },
            Place { mtu: 6, ..good.clone() },
            Place { reads: 0, ..good.clone() },
            Place { sink: short, ..good.clone() },
            Place { source: high, ..good.clone() },
        ] {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn impossible_numbers_are_refused() {
        for (line, plausible) in [
            (r#"{"written":{"seed":18446744073709551615,"blocks":16,"gbps":390.5}}"#, true),
            (r#"{"written":{"seed":1,"blocks":17,"gbps":1.0}}"#, false),
            (r#"{"written":{"seed":1,"blocks":0,"gbps":1.0}}"#, false),
            (r#"{"written":{"seed":1,"blocks":1,"gbps":-1.0}}"#, false),
            (r#"{"read":{"gbps":1e300,"words":0,"first":null}}"#, false),
            (r#"{"checked":{"words":1,"first":8}}"#, true),
            (r#"{"checked":{"words":1,"first":null}}"#, false),
            (r#"{"checked":{"words":1,"first":16777216}}"#, false),
            (r#"{"checked":{"words":9999999999,"first":0}}"#, false),
            (r#"{"latency":{"median":1.5,"p99":1e9}}"#, false),
        ] {
            assert_eq!(serde_json::from_str::<Message>(line).unwrap().is_plausible(), plausible, "{line}");
        }
        for line in [r#"{"latency":{"median":1e999,"p99":1}}"#, r#"{"ready":null,"x":1}"#, r#""x""#] {
            assert!(serde_json::from_str::<Message>(line).is_err(), "{line}");
        }
    }
}
