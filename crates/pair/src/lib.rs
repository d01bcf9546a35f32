//! Two programs of one job on two nodes: they prove to each other that they know the job's key, exchange lines of JSON, and measure the
//! path between them.
//!
//! [`Meeting`] makes the connection. Over it `railgate-rdma-selftest serve` and `connect` test a pair of RDMA devices, and [`tcp`]
//! tests the TCP path of nodes that have none. Both results are an [`Outcome`]. Everything that a peer sends is untrusted until it
//! has proved the key, and bounded in length and time afterwards as well.

mod handshake;
mod key;
mod link;
mod outcome;
pub mod tcp;

pub use handshake::{Limits, Meeting};
pub use key::{KEY_VARIABLE, Key, Role, from_hex, random_number, to_hex};
pub use link::{Link, Message};
pub use outcome::{Gbps, Latency, Outcome, Words, Wrong};

/// The longest error that a peer can report, in characters.
const REASON: usize = 200;

/// ASCII that a terminal prints as it is, of bounded length.
fn printable(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
    text.chars().take(REASON).map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_of_a_peer_is_cut_and_made_printable() {
        assert_eq!(printable("no\u{1b}[2J\u{202e}\n"), "no?[2J??");
        assert_eq!(printable(&"x".repeat(5000)).len(), REASON);
    }
}
