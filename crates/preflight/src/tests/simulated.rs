//! A simulated fabric with planted faults.

use super::measured::Measured;
use crate::{DEFAULT_REPEATS, End, Outcome, Pair, Place, Plan, Report, Round, Settings, Tested, What};

/// A small deterministic generator (SplitMix64): a failing case can be repeated from its seed.
#[derive(Clone, Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to below 1.
    pub(super) fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(limit).unwrap()).unwrap()
    }

    /// Nearly a normal distribution with mean 0 and standard deviation 1: the sum of twelve equal ones.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.share()).sum::<f64>() - 6.0
    }
}

/// How measurements of healthy rails vary.
#[derive(Clone, Copy, Debug)]
pub(super) struct Noise {
    /// What was measured; the figures below that are not medians are then not used.
    pub(super) measured: Option<Measured>,
    pub(super) one_leaf_gbps: f64,
    pub(super) across_leafs_gbps: f64,
    /// Standard deviation of the bandwidth as a share of it.
    pub(super) deviation: f64,
    /// One of this many directions is slower for a moment.
    pub(super) one_dip_in: usize,
    /// Smallest and largest loss of such a dip, as shares of the bandwidth.
    pub(super) dip: [f64; 2],
    pub(super) latency_us: f64,
    /// Exponent of the tail of the latency (Pareto): with 6, one of 1,000 is above three times the median.
    pub(super) latency_tail: f64,
}

/// Assumed figures of 400 Gb/s rails, until they are measured on the fabric of a site.
pub(super) const ASSUMED: Noise = Noise {
    measured: None,
    one_leaf_gbps: 390.0,
    across_leafs_gbps: 380.0,
    deviation: 0.02,
    one_dip_in: 500,
    dip: [0.05, 0.15],
    latency_us: 3.0,
    latency_tail: 6.0,
};

/// No dips and no tails: for tests about planted faults, so that each verdict has one reason.
pub(super) const QUIET: Noise = Noise { one_dip_in: 0, latency_tail: 60.0, ..ASSUMED };

/// Dips below the limit of slow results, one in 500.
pub(super) const HICCUPS: Noise = Noise { dip: [0.25, 0.7], ..ASSUMED };

/// How a planted fault shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Harm {
    Slow,
    Corrupt,
    Failed,
    Down,
    Late,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Rail(End, Harm),
    Node(usize, Harm),
    Path { left: usize, right: usize, rail: usize, harm: Harm },
}

impl Fault {
    /// Returns whether the fault is on a test, and the node that it accuses.
    fn on(self, pair: Pair, rail: usize) -> Option<(Harm, Option<usize>)> {
        match self {
            Fault::Rail(end, harm) => {
                (end.rail == rail && pair.partner(end.node).is_some()).then_some((harm, Some(end.node)))
            }
            Fault::Node(node, harm) => pair.partner(node).is_some().then_some((harm, Some(node))),
            Fault::Path { left, right, rail: of, harm } => {
                (of == rail && pair.partner(left) == Some(right)).then_some((harm, None))
            }
        }
    }

    /// Returns whether a verdict names this fault.
    pub(super) fn is(self, what: &What) -> bool {
        match (self, what) {
            (Fault::Rail(end, _), What::Rail(named)) => end == *named,
            (Fault::Node(node, _), What::Node { node: named, .. }) => node == *named,
            (Fault::Path { left, right, rail, .. }, What::Path { left: small, right: large, rail: of }) => {
                (left.min(right), left.max(right), rail) == (*small, *large, *of)
            }
            _ => false,
        }
    }
}

/// A fabric, the faults planted in it, and slow moments of single tests: round from 1, pair, rail. Such a moment outlasts all measurements of
/// its round.
#[derive(Clone, Debug)]
pub(super) struct Fabric {
    pub(super) places: Vec<Place>,
    pub(super) noise: Noise,
    pub(super) settings: Settings,
    pub(super) faults: Vec<Fault>,
    pub(super) moments: Vec<(usize, Pair, usize)>,
    /// How often the slow pairs of a round are measured again.
    pub(super) repeats: usize,
    /// Shares of the bandwidth that a slow part sends and receives; `None`: 30 to 70 % of both.
    pub(super) slow: Option<[f64; 2]>,
    /// Of this many measurements of a part that corrupts, one has wrong values.
    pub(super) one_corrupt_in: usize,
    pub(super) random: Random,
}

/// Result of all rounds.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) rounds: Vec<Round>,
    pub(super) report: Report,
}

/// Nodes with 8 rails, 16 nodes to a leaf as long as there are at least two leafs, otherwise half of the nodes each.
pub(super) fn places(nodes: usize) -> Vec<Place> {
    let size = (nodes / 2).clamp(1, 16);
    (0..nodes).map(|node| Place::under(u32::try_from(node / size).unwrap(), 8)).collect()
}

impl Fabric {
    pub(super) fn new(nodes: usize, noise: Noise, seed: u64) -> Self {
        let random = Random(seed);
        let settings = Settings::default();
        Fabric {
            places: places(nodes),
            noise,
            settings,
            faults: Vec::new(),
            moments: Vec::new(),
            repeats: DEFAULT_REPEATS,
            slow: None,
            one_corrupt_in: 1,
            random,
        }
    }

    pub(super) fn with(mut self, faults: &[Fault]) -> Self {
        self.faults.extend(faults);
        self
    }

    pub(super) fn repeats(mut self, repeats: usize) -> Self {
        self.repeats = repeats;
        self
    }

    pub(super) fn plan(&self) -> Plan {
        Plan::new(self.places.clone(), self.settings.clone())
    }

    /// Runs all rounds that the plan asks for.
    pub(super) fn run(&mut self) -> Run {
        let plan = self.plan();
        let mut rounds: Vec<Round> = Vec::new();
        while let Some(pairs) = plan.next(&rounds) {
            assert!(rounds.len() < 3, "a fourth round");
            let round = rounds.len() + 1;
            let tested = self.tests(round, &pairs);
            rounds.push(Round { pairs, tested, measured_again: 0 });
            for _ in 0..self.repeats {
                let again = plan.again(&rounds);
                if again.is_empty() {
                    break;
                }
                let tested = self.tests(round, &again);
                rounds.last_mut().unwrap().measure_again(&again, tested);
            }
        }
        let report = plan.report(&rounds);
        Run { rounds, report }
    }

    fn tests(&mut self, round: usize, pairs: &[Pair]) -> Vec<Tested> {
        let tests = pairs.iter().flat_map(|pair| (0..8).map(move |rail| (*pair, rail)));
        tests.map(|(pair, rail)| self.test(round, pair, rail)).collect()
    }

    fn test(&mut self, round: usize, pair: Pair, rail: usize) -> Tested {
        let leaf = |node: usize| self.places[node].leafs[rail];
        let usual = match leaf(pair.left) == leaf(pair.right) {
            true => self.noise.one_leaf_gbps,
            false => self.noise.across_leafs_gbps,
        };
        let mut gbps = [self.direction(usual), self.direction(usual)];
        let tail = match self.noise.measured {
            Some(measured) => measured.latency(self.random.share()),
            None => (1.0 - self.random.share()).powf(-1.0 / self.noise.latency_tail),
        };
        let mut latency_us = self.noise.latency_us * tail;
        if self.moments.contains(&(round, pair, rail)) {
            gbps[0] *= 0.5;
        }
        let mut outcome = None;
        for (harm, node) in self.faults.clone().into_iter().filter_map(|fault| fault.on(pair, rail)) {
            let share = 0.3 + 0.4 * self.random.share();
            let [sent, received] = self.slow.unwrap_or([share; 2]);
            match harm {
                Harm::Slow if node == Some(pair.right) => gbps = [gbps[0] * received, gbps[1] * sent],
                Harm::Slow => gbps = [gbps[0] * sent, gbps[1] * received],
                Harm::Late => latency_us *= 10.0,
                Harm::Corrupt if self.random.below(self.one_corrupt_in) > 0 => {}
                Harm::Corrupt => {
                    let left = node.is_none_or(|node| node == pair.left);
                    let right = node.is_some_and(|node| node == pair.right);
                    let wrong_words = [u64::from(left) * 7, u64::from(right) * 7];
                    outcome = Some(Outcome::Corrupt { wrong_words });
                }
                Harm::Failed => outcome = Some(Outcome::Failed { why: "timeout".to_owned(), down_end: None }),
                Harm::Down => outcome = Some(Outcome::Failed { why: "port down".to_owned(), down_end: node }),
            }
        }
        Tested { pair, rail, outcome: outcome.unwrap_or(Outcome::Measured { gbps, latency_us }) }
    }

    fn direction(&mut self, usual: f64) -> f64 {
        if let Some(measured) = self.noise.measured {
            return usual * measured.bandwidth(self.random.share());
        }
        let value = usual * (1.0 + self.noise.deviation * self.random.normal());
        let dips = self.noise.one_dip_in > 0 && self.random.below(self.noise.one_dip_in) == 0;
        let [least, most] = self.noise.dip;
        if dips { value * (1.0 - least - (most - least) * self.random.share()) } else { value }
    }
}

/// Returns the parts that a report accuses.
pub(super) fn named(report: &Report) -> Vec<&What> {
    report.verdicts.iter().map(|verdict| &verdict.what).collect()
}

/// Asserts that a report names exactly these faults, each confirmed.
#[track_caller]
pub(super) fn assert_named(run: &Run, faults: &[Fault], case: &str) {
    assert_only(run, faults, case);
    let confirmed = run.report.verdicts.iter().all(|verdict| verdict.confirmed);
    assert!(confirmed, "{case}: not confirmed: {:#?}", run.report.verdicts);
}

/// Asserts that a report names exactly these faults.
#[track_caller]
pub(super) fn assert_only(run: &Run, faults: &[Fault], case: &str) {
    let named = named(&run.report);
    for fault in faults {
        assert!(named.iter().any(|what| fault.is(what)), "{case}: {fault:?} is not among {named:?}");
    }
    assert_eq!(named.len(), faults.len(), "{case}: {faults:?}: {named:?}");
}
