//! The result of a pair, as it is printed.

use serde::Serialize;

use crate::pattern::Wrong;

/// What one end measured with its peer. `out` was started by this end and `in` by the peer, except in `wrong_words`. A value that
/// was not measured is null.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Outcome {
    /// Name of this end's device.
    pub(crate) device: String,
    /// Name of the peer's device; null if there was no peer with the key.
    pub(crate) peer_device: Option<String>,
    pub(crate) gbps: Gbps,
    pub(crate) latency_us: Latency,
    pub(crate) wrong_words: Words,
    /// Offset of the first wrong word in the memory of 16 MiB that it arrived in, bytes; null if there is none.
    pub(crate) first_wrong: Words,
    /// Why the test ended early. Values that are not null were measured before.
    pub(crate) error: Option<String>,
}

/// Bandwidth, payload only, Gb/s.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Gbps {
    /// This end writes to the peer.
    pub(crate) write_out: Option<f64>,
    /// The peer writes to this end.
    pub(crate) write_in: Option<f64>,
    /// This end reads the peer's memory: the payload comes from the peer.
    pub(crate) read_out: Option<f64>,
    /// The peer reads this end's memory.
    pub(crate) read_in: Option<f64>,
}

/// Time of one RDMA write of 8 bytes, one way: half of the round trip, µs.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Latency {
    pub(crate) median_out: Option<f64>,
    pub(crate) p99_out: Option<f64>,
    pub(crate) median_in: Option<f64>,
    pub(crate) p99_in: Option<f64>,
}

/// 8-byte words that did not arrive as they were sent, by the way of the data.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Words {
    /// Sent by this end: its writes and the peer's reads. They accuse this end or the path.
    pub(crate) out: Option<u64>,
    /// Sent by the peer: its writes and this end's reads. They accuse the peer or the path.
    #[serde(rename = "in")]
    pub(crate) into: Option<u64>,
}

impl Outcome {
    /// Adds the comparison of data that this end sent.
    pub(crate) fn sent(&mut self, wrong: Wrong) {
        add(&mut self.wrong_words.out, &mut self.first_wrong.out, wrong);
    }

    /// Adds the comparison of data that the peer sent.
    pub(crate) fn received(&mut self, wrong: Wrong) {
        add(&mut self.wrong_words.into, &mut self.first_wrong.into, wrong);
    }

    /// Whether there is any value.
    pub(crate) fn measured(&self) -> bool {
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
