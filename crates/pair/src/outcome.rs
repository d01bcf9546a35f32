//! The result of a pair, as it is printed.

use serde::{Deserialize, Serialize};

/// Words that differ from what was sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wrong {
    /// Number of 8-byte words.
    pub words: u64,
    /// Offset of the first one, bytes.
    pub first: Option<u64>,
}

/// What one end measured with its peer. `out` was started by this end and `in` by the peer, except in `wrong_words`. A value that
/// was not measured is null.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Name of this end's device.
    pub device: String,
    /// Name of the peer's device; null if there was no peer with the key.
    pub peer_device: Option<String>,
    pub gbps: Gbps,
    pub latency_us: Latency,
    pub wrong_words: Words,
    /// Offset of the first wrong word in the memory of 16 MiB that it arrived in, bytes; null if there is none.
    pub first_wrong: Words,
    /// Why the test ended early. Values that are not null were measured before.
    pub error: Option<String>,
}

/// Bandwidth, payload only, Gb/s.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Gbps {
    /// This end writes to the peer.
    pub write_out: Option<f64>,
    /// The peer writes to this end.
    pub write_in: Option<f64>,
    /// This end reads the peer's memory: the payload comes from the peer.
    pub read_out: Option<f64>,
    /// The peer reads this end's memory.
    pub read_in: Option<f64>,
}

/// Time of one RDMA write of 8 bytes, one way: half of the round trip, µs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    pub median_out: Option<f64>,
    pub p99_out: Option<f64>,
    pub median_in: Option<f64>,
    pub p99_in: Option<f64>,
}

/// 8-byte words that did not arrive as they were sent, by the way of the data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Words {
    /// Sent by this end: its writes and the peer's reads. They accuse this end or the path.
    pub out: Option<u64>,
    /// Sent by the peer: its writes and this end's reads. They accuse the peer or the path.
    #[serde(rename = "in")]
    pub into: Option<u64>,
}

impl Outcome {
    /// Adds the comparison of data that this end sent.
    pub fn sent(&mut self, wrong: Wrong) {
        add(&mut self.wrong_words.out, &mut self.first_wrong.out, wrong);
    }

    /// Adds the comparison of data that the peer sent.
    pub fn received(&mut self, wrong: Wrong) {
        add(&mut self.wrong_words.into, &mut self.first_wrong.into, wrong);
    }

    /// Whether there is any value.
    pub fn measured(&self) -> bool {
        let Gbps { write_out, write_in, read_out, read_in } = self.gbps;
        [write_out, write_in, read_out, read_in].iter().any(Option::is_some)
    }
}

fn add(words: &mut Option<u64>, first: &mut Option<u64>, wrong: Wrong) {
    *words = Some(words.unwrap_or(0).saturating_add(wrong.words));
    *first = first.or(wrong.first);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_that_is_printed() {
        let mut outcome = Outcome { device: "mlx5_0".to_owned(), ..Outcome::default() };
        assert!(!outcome.measured());
        outcome.gbps.write_out = Some(390.5);
        outcome.sent(Wrong { words: 1, first: Some(8) });
        outcome.sent(Wrong { words: 2, first: Some(0) });
        outcome.received(Wrong::default());
        assert!(outcome.measured());
        assert_eq!(
            serde_json::to_string(&outcome).unwrap(),
            "{\"device\":\"mlx5_0\",\"peer_device\":null,\
             \"gbps\":{\"write_out\":390.5,\"write_in\":null,\"read_out\":null,\"read_in\":null},\
             \"latency_us\":{\"median_out\":null,\"p99_out\":null,\"median_in\":null,\"p99_in\":null},\
             \"wrong_words\":{\"out\":3,\"in\":0},\"first_wrong\":{\"out\":8,\"in\":null},\"error\":null}"
        );
    }
}
