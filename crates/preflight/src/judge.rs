//! Judges each measurement by the median of its kind.

use serde::{Deserialize, Serialize};

use crate::types::{Outcome, Pair, Place, Round, Settings, Tested};

/// With fewer values of a kind, their median is not used, but that of all kinds.
const FEWEST_OF_A_KIND: usize = 4;

/// Rounds from which medians are made. All nodes take part in them; a third round tests mostly suspects, whose values
/// would lower the median.
const MEDIAN_ROUNDS: usize = 2;

/// The bandwidth that a slow result was compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Usual {
    /// The median of the allocation.
    Median,
    /// [`Settings::expected_gbps`].
    Expected,
}

/// Whether a result is good.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Judgement {
    /// Correct and fast.
    Good,
    /// Correct and fast, with a high latency.
    Late {
        /// Median of the latency, microseconds.
        usual_us: f64,
    },
    /// Correct and slow.
    Slow {
        /// Directions that are slow: from left to right, from right to left.
        directions: [bool; 2],
        /// The bandwidth that it was compared with, Gb/s.
        usual_gbps: f64,
        /// Origin of `usual_gbps`.
        usual: Usual,
    },
    /// Wrong values arrived.
    Corrupt,
    /// No data was transferred.
    Failed,
    /// No data was transferred, because the port of this node is down.
    Down {
        /// Index of the node.
        node: usize,
    },
    /// Not tested, or the figures are not valid.
    Unknown,
}

/// A result with its judgement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// Number of the round, from 1.
    pub round: usize,
    /// The result.
    pub tested: Tested,
    /// Its judgement.
    pub judgement: Judgement,
}

/// Where the two ends of a test are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    OneLeaf,
    AcrossLeafs,
    NotKnown,
}

fn kind(places: &[Place], pair: Pair, rail: usize) -> Kind {
    let leaf = |node: usize| places.get(node).and_then(|place| place.leaf(rail));
    match (leaf(pair.left), leaf(pair.right)) {
        (Some(left), Some(right)) if left == right => Kind::OneLeaf,
        (Some(_), Some(_)) => Kind::AcrossLeafs,
        _ => Kind::NotKnown,
    }
}

/// Returns the upper one of two middle values: in the smallest allocations half of the values can be those of one bad node.
fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

/// Values of one measurement, by kind.
#[derive(Debug, Default)]
struct Values {
    one_leaf: Vec<f64>,
    across_leafs: Vec<f64>,
    all: Vec<f64>,
}

impl Values {
    fn add(&mut self, kind: Kind, value: f64) {
        match kind {
            Kind::OneLeaf => self.one_leaf.push(value),
            Kind::AcrossLeafs => self.across_leafs.push(value),
            Kind::NotKnown => {}
        }
        self.all.push(value);
    }

    fn medians(&self) -> Medians {
        let all = median(&self.all);
        let of_kind = |values: &[f64]| if values.len() < FEWEST_OF_A_KIND { all } else { median(values) };
        Medians { one_leaf: of_kind(&self.one_leaf), across_leafs: of_kind(&self.across_leafs), all }
    }
}

#[derive(Debug)]
struct Medians {
    one_leaf: Option<f64>,
    across_leafs: Option<f64>,
    all: Option<f64>,
}

impl Medians {
    fn of(&self, kind: Kind) -> Option<f64> {
        match kind {
            Kind::OneLeaf => self.one_leaf,
            Kind::AcrossLeafs => self.across_leafs,
            Kind::NotKnown => self.all,
        }
    }
}

/// Returns whether figures can be measurements. Results come from other nodes.
pub(crate) fn valid(gbps: [f64; 2], latency_us: f64) -> bool {
    let valid = |value: f64| value.is_finite() && value >= 0.0;
    gbps.into_iter().all(valid) && valid(latency_us)
}

/// Returns whether a result is about two nodes and a rail of the allocation.
fn belongs(places: &[Place], tested: &Tested) -> bool {
    let has = |node: usize| places.get(node).is_some_and(|place| tested.rail < place.leafs.len());
    tested.pair.left != tested.pair.right && has(tested.pair.left) && has(tested.pair.right)
}

/// Judges all results. Those of nodes or rails that the allocation does not have are left out.
pub(crate) fn judge(places: &[Place], settings: &Settings, rounds: &[Round]) -> Vec<Judged> {
    let mut bandwidth = Values::default();
    let mut latency = Values::default();
    let first = rounds.iter().take(MEDIAN_ROUNDS).flat_map(|round| &round.tested);
    for tested in first.filter(|tested| belongs(places, tested)) {
        let kind = kind(places, tested.pair, tested.rail);
        if let Outcome::Measured { gbps, latency_us } = tested.outcome
            && valid(gbps, latency_us)
        {
            gbps.into_iter().for_each(|value| bandwidth.add(kind, value));
            latency.add(kind, latency_us);
        }
    }
    let (bandwidth, latency) = (bandwidth.medians(), latency.medians());
    let mut judged = Vec::new();
    for (round, results) in rounds.iter().enumerate() {
        for tested in results.tested.iter().filter(|tested| belongs(places, tested)) {
            let kind = kind(places, tested.pair, tested.rail);
            let judgement = judge_one(settings, tested, bandwidth.of(kind), latency.of(kind));
            judged.push(Judged { round: round + 1, tested: tested.clone(), judgement });
        }
    }
    judged
}

fn judge_one(
    settings: &Settings,
    tested: &Tested,
    bandwidth: Option<f64>,
    latency: Option<f64>,
) -> Judgement {
    match &tested.outcome {
        Outcome::Measured { gbps, latency_us } if valid(*gbps, *latency_us) => {
            slow(settings, *gbps, bandwidth)
                .or_else(|| late(settings, *latency_us, latency))
                .unwrap_or(Judgement::Good)
        }
        Outcome::Measured { .. } | Outcome::Unknown { .. } => Judgement::Unknown,
        Outcome::Corrupt { wrong_words: [0, 0], .. } => Judgement::Unknown,
        Outcome::Corrupt { .. } => Judgement::Corrupt,
        Outcome::Failed { down_end: Some(node), .. } if tested.pair.partner(*node).is_some() => {
            Judgement::Down { node: *node }
        }
        Outcome::Failed { .. } => Judgement::Failed,
    }
}

fn slow(settings: &Settings, gbps: [f64; 2], median: Option<f64>) -> Option<Judgement> {
    let below = |usual: f64| gbps.map(|value| value < settings.min_share * usual);
    let usual = [(median, Usual::Median), (settings.expected_gbps, Usual::Expected)];
    let known = usual.into_iter().filter_map(|(gbps, usual)| Some((gbps?, usual)));
    let slow = known.map(|(gbps, usual)| (below(gbps), gbps, usual));
    slow.into_iter()
        .find(|(directions, ..)| directions.contains(&true))
        .map(|(directions, usual_gbps, usual)| Judgement::Slow { directions, usual_gbps, usual })
}

fn late(settings: &Settings, latency_us: f64, median: Option<f64>) -> Option<Judgement> {
    let usual_us = median?;
    (latency_us > settings.max_latency_times * usual_us).then_some(Judgement::Late { usual_us })
}
