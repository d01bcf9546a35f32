//! Input: places, settings, results.

use serde::{Deserialize, Serialize};

/// The largest number of rounds of a plan.
pub const MAX_ROUNDS: usize = 3;

/// How often the slow pairs of a round are measured again if nothing else is asked for: without a fault, 2 in 100 results of busy
/// processors are slow, and 1 in 100,000 is slow three times.
pub const DEFAULT_REPEATS: usize = 2;

/// The largest number of repeats in a round that a caller should allow.
pub const MAX_REPEATS: usize = 5;

/// The rails of a node and their leaf switches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// One element for each rail, in rail order: an id of its leaf switch, `None` if it is not known.
    pub leafs: Vec<Option<u32>>,
}

impl Place {
    /// Returns a node with `rails` rails whose leaf switches are not known.
    pub fn unknown(rails: usize) -> Self {
        Place { leafs: vec![None; rails] }
    }

    /// Returns a node with `rails` rails that are all under the leaf switch `leaf`.
    pub fn under(leaf: u32, rails: usize) -> Self {
        Place { leafs: vec![Some(leaf); rails] }
    }

    /// Returns the leaf switch of a rail.
    pub(crate) fn leaf(&self, rail: usize) -> Option<u32> {
        self.leafs.get(rail).copied().flatten()
    }
}

/// One rail of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct End {
    /// Index into the list of the allocation's nodes.
    pub node: usize,
    /// Number of the rail, from 0.
    pub rail: usize,
}

/// Two nodes that test all their rails with each other in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Pair {
    /// Index into the list of the allocation's nodes.
    pub left: usize,
    /// Index into the list of the allocation's nodes.
    pub right: usize,
}

impl Pair {
    /// Returns the partner of a node of the pair, `None` if the node is not in it.
    pub fn partner(self, node: usize) -> Option<usize> {
        match node {
            node if node == self.left => Some(self.right),
            node if node == self.right => Some(self.left),
            _ => None,
        }
    }

    /// Returns the pair with the smaller index first.
    pub(crate) fn sorted(self) -> (usize, usize) {
        (self.left.min(self.right), self.left.max(self.right))
    }
}

/// The result of a test of one rail between two nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tested {
    /// The nodes. The directions of `outcome` follow this order.
    pub pair: Pair,
    /// Number of the rail, from 0.
    pub rail: usize,
    /// The result.
    pub outcome: Outcome,
}

/// What a test of one rail between two nodes measured. Directions: from left to right, then from right to left.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// All values arrived as they were sent.
    Measured {
        /// Bandwidth of each direction, Gb/s.
        gbps: [f64; 2],
        /// Latency, microseconds.
        latency_us: f64,
    },
    /// Values arrived that were not sent.
    Corrupt {
        /// 8-byte words that arrived different, of each direction.
        wrong_words: [u64; 2],
    },
    /// No data was transferred, or the transfer ended with an error.
    Failed {
        /// The error of the test, text of another program.
        why: String,
        /// The node whose port is known to be down.
        down_end: Option<usize>,
    },
    /// The test was not run, or its result is missing. Counts neither as good nor as bad.
    Unknown {
        /// The reason, text of another program.
        why: String,
    },
}

/// A round: the pairs that were planned, and the results that arrived.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// The pairs, as [`crate::Plan::next`] returned them.
    pub pairs: Vec<Pair>,
    /// The results, in any order. A missing one counts as [`Outcome::Unknown`].
    pub tested: Vec<Tested>,
    /// How many times a pair was measured again: two pairs twice are 4.
    #[serde(default)]
    pub measured_again: usize,
}

/// Limits of good results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// A direction is slow below this share of the usual bandwidth, from 0 to 1.
    pub min_share: f64,
    /// A latency is suspicious above this multiple of the median.
    pub max_latency_times: f64,
    /// Bandwidth that every rail should reach in each direction, Gb/s. Only with it can rails be found that are all equally slow.
    pub expected_gbps: Option<f64>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { min_share: 0.8, max_latency_times: 3.0, expected_gbps: None }
    }
}
