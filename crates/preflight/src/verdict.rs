//! Results: which ends, nodes and paths are accused, and by which tests.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::accuse::accuse;
use crate::judge::{Judged, Judgement, Usual};
use crate::links::{Links, late_tests};
use crate::types::{End, MAX_ROUNDS, Outcome, Place};

/// The part that a verdict accuses. Nodes are indices into the list of the allocation's nodes, rails count from 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// A rail of a node: its card, cable or port of the leaf switch.
    Rail(End),
    /// A node: at least two and at least half of its rails are bad.
    Node {
        /// The node.
        node: usize,
        /// Its bad rails, in order.
        rails: Vec<usize>,
        /// The number of its rails.
        of: usize,
    },
    /// The switches between two nodes: both ends are good with other partners.
    Path {
        /// A node.
        left: usize,
        /// The other node.
        right: usize,
        /// The rail.
        rail: usize,
    },
    /// The path between two nodes, or an end of it: no other partner shows which.
    RailOrPath {
        /// A node.
        left: usize,
        /// The other node.
        right: usize,
        /// The rail.
        rail: usize,
        /// The nodes whose rail may be the bad one: `left`, `right` or both, the more likely one first.
        suspects: Vec<usize>,
    },
    /// A rail that was bad in every test, with at least three pairs: probably the switches of that rail.
    AllNodes {
        /// The rail.
        rail: usize,
    },
}

/// The kind of fault, the gravest one of the evidence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sign {
    /// The latency is high.
    Late {
        /// The highest latency, microseconds.
        highest_us: f64,
        /// Median, microseconds.
        usual_us: f64,
    },
    /// The bandwidth is low.
    Slow {
        /// The lowest bandwidth of a direction, Gb/s.
        lowest_gbps: f64,
        /// The bandwidth that it was compared with, Gb/s.
        usual_gbps: f64,
        /// Origin of `usual_gbps`.
        usual: Usual,
    },
    /// Tests ended with an error.
    Failed,
    /// The port is down.
    Down,
    /// Wrong values arrived.
    Corrupt {
        /// 8-byte words that arrived different, in both directions of all tests.
        wrong_words: u64,
    },
}

/// A part that is accused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The part.
    pub what: What,
    /// At least two tests show the fault, or its port was down, and no test contradicts it. Otherwise the part deserves another
    /// test rather than a repair.
    pub confirmed: bool,
    /// The kind of fault.
    pub sign: Sign,
    /// All tests of the part that measured something, good ones as well, in the order of the rounds.
    pub evidence: Vec<Judged>,
}

/// The reason of a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoteKind {
    /// Slow once; the same pair was fast in another test.
    SlowOnce,
    /// Slow once, in the last round; both ends were fast with other partners.
    SlowNotRepeated,
    /// The latency was high once.
    LateOnce,
}

/// A result that stands out and accuses no part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Note {
    /// The reason.
    pub kind: NoteKind,
    /// The test.
    pub test: Judged,
}

/// The conclusions from all results of an allocation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Accused parts: nodes, then by rail.
    pub verdicts: Vec<Verdict>,
    /// Results that accuse no part.
    pub notes: Vec<Note>,
    /// Ends without a result that counts, and not accused: nothing is known about them.
    pub unknown: Vec<End>,
}

/// Makes the report from all results.
pub(crate) fn report(places: &[Place], rails: &[Links], judged: &[Judged]) -> Report {
    let mut report = Report::default();
    for (rail, links) in rails.iter().enumerate() {
        let tests: Vec<&Judged> = judged.iter().filter(|one| one.tested.rail == rail).collect();
        let of_rail = OfRail { nodes: places.len(), rail, links, tests };
        of_rail.add(&mut report);
    }
    report.unknown = unknown(places, rails, &report.verdicts);
    report.verdicts = with_nodes(places, std::mem::take(&mut report.verdicts));
    report
}

/// One rail with its tests.
struct OfRail<'a> {
    nodes: usize,
    rail: usize,
    links: &'a Links,
    tests: Vec<&'a Judged>,
}

impl OfRail<'_> {
    fn add(&self, report: &mut Report) {
        let measured = |_: &Judged| true;
        if self.links.all_bad() {
            let what = What::AllNodes { rail: self.rail };
            report.verdicts.extend(self.verdict(what, true, measured));
            return;
        }
        let accused = accuse(self.links);
        for named in &accused.named {
            let end = End { node: named.node, rail: self.rail };
            let of_end = |one: &Judged| one.tested.pair.partner(end.node).is_some();
            report.verdicts.extend(self.verdict(What::Rail(end), named.confirmed, of_end));
        }
        for (left, right) in &accused.left {
            self.add_pair(*left, *right, report);
        }
        let named: BTreeSet<usize> = accused.named.iter().map(|named| named.node).collect();
        let late = self.late(&named);
        report.notes.extend(self.notes(&late));
        report.verdicts.extend(late);
    }

    /// Makes a verdict with the tests that `about` chooses. `None` without such tests.
    fn verdict(&self, what: What, confirmed: bool, about: impl Fn(&Judged) -> bool) -> Option<Verdict> {
        let measured = |one: &&&Judged| one.judgement != Judgement::Unknown;
        let tests = self.tests.iter().filter(measured).filter(|one| about(one));
        let evidence: Vec<Judged> = tests.map(|one| (*one).clone()).collect();
        Some(Verdict { what, confirmed, sign: sign(&evidence)?, evidence })
    }

    /// A bad pair that no named end explains.
    fn add_pair(&self, left: usize, right: usize, report: &mut Report) {
        let counts = self.links.counts(left, right);
        let of_pair = |one: &Judged| one.tested.pair.sorted() == (left, right);
        let twice = counts.bad() >= 2 && counts.good == 0;
        let mut suspects: Vec<usize> =
            [left, right].into_iter().filter(|node| self.links.good(*node) == 0).collect();
        let senders = self.senders(left, right);
        // Both ends were correct with other partners, but wrong values can be rare: a path needs a second test.
        if suspects.is_empty() && counts.corrupt > 0 && !twice {
            suspects.clone_from(&senders);
        }
        // The receiver alone cannot be the reason of a wrong value, as long as the sender may be.
        if suspects.iter().any(|node| senders.contains(node)) {
            suspects.retain(|node| senders.contains(node));
        }
        if suspects.is_empty() {
            let mut bad = self.tests.iter().filter(|one| of_pair(one) && is_slow(one));
            match bad.next() {
                Some(test) if bad.next().is_none() && counts.bad() == 1 && test.round == MAX_ROUNDS => {
                    report.notes.push(Note { kind: NoteKind::SlowNotRepeated, test: (*test).clone() });
                }
                _ => {
                    let what = What::Path { left, right, rail: self.rail };
                    report.verdicts.extend(self.verdict(what, twice, of_pair));
                }
            }
        } else {
            let what = What::RailOrPath { left, right, rail: self.rail, suspects };
            report.verdicts.extend(self.verdict(what, twice, of_pair));
        }
    }

    /// Returns the nodes of a pair that sent values that arrived wrong.
    fn senders(&self, left: usize, right: usize) -> Vec<usize> {
        let sent = |node: usize, other: usize| {
            self.links.of(node).iter().any(|neighbour| neighbour.node == other && neighbour.sent_wrong)
        };
        [(left, right), (right, left)]
            .into_iter()
            .filter(|(from, to)| sent(*from, *to))
            .map(|(from, _)| from)
            .collect()
    }

    /// Names the ends whose latency was high in every test, where their partners had a lower one with others.
    fn late(&self, named: &BTreeSet<usize>) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        let late = |node: usize| self.links.late(node).is_some_and(|tests| tests >= late_tests(self.nodes));
        for node in self.links.nodes().filter(|node| late(*node) && !named.contains(node)) {
            let others = self.links.of(node);
            let of_end = |one: &Judged| one.tested.pair.partner(node).is_some();
            match others {
                [only] if self.nodes == 2 && node < only.node => {
                    let (left, right) = (node, only.node);
                    let what = What::RailOrPath { left, right, rail: self.rail, suspects: vec![left, right] };
                    verdicts.extend(self.verdict(what, true, of_end));
                }
                _ if others.iter().filter(|other| self.links.late(other.node).is_none()).count() >= 2 => {
                    let what = What::Rail(End { node, rail: self.rail });
                    verdicts.extend(self.verdict(what, true, of_end));
                }
                _ => {}
            }
        }
        verdicts
    }

    /// Slow tests that were not repeated, and high latencies that `late` does not explain.
    fn notes(&self, late: &[Verdict]) -> Vec<Note> {
        let mut notes = Vec::new();
        for test in &self.tests {
            let (left, right) = test.tested.pair.sorted();
            let counts = self.links.counts(left, right);
            let explained = late.iter().any(|verdict| verdict.evidence.contains(test));
            let kind = match test.judgement {
                Judgement::Slow { .. } if counts.good >= counts.bad() => NoteKind::SlowOnce,
                Judgement::Late { .. } if !explained => NoteKind::LateOnce,
                _ => continue,
            };
            notes.push(Note { kind, test: (*test).clone() });
        }
        notes
    }
}

fn is_slow(judged: &Judged) -> bool {
    matches!(judged.judgement, Judgement::Slow { .. })
}

fn gravity(sign: &Sign) -> u8 {
    match sign {
        Sign::Late { .. } => 0,
        Sign::Slow { .. } => 1,
        Sign::Failed => 2,
        Sign::Down => 3,
        Sign::Corrupt { .. } => 4,
    }
}

/// Returns the sign of one test, `None` for a good one.
fn sign_of(judged: &Judged) -> Option<Sign> {
    match (&judged.judgement, &judged.tested.outcome) {
        (Judgement::Late { usual_us }, Outcome::Measured { latency_us, .. }) => {
            Some(Sign::Late { highest_us: *latency_us, usual_us: *usual_us })
        }
        (Judgement::Slow { directions, usual_gbps, usual }, Outcome::Measured { gbps, .. }) => {
            let slow = gbps.iter().zip(directions).filter(|(_, slow)| **slow).map(|(value, _)| *value);
            let (usual_gbps, usual) = (*usual_gbps, *usual);
            Some(Sign::Slow { lowest_gbps: slow.fold(f64::INFINITY, f64::min), usual_gbps, usual })
        }
        (Judgement::Corrupt, Outcome::Corrupt { wrong_words: [there, back], .. }) => {
            Some(Sign::Corrupt { wrong_words: there.saturating_add(*back) })
        }
        (Judgement::Failed, _) => Some(Sign::Failed),
        (Judgement::Down { .. }, _) => Some(Sign::Down),
        _ => None,
    }
}

/// Returns the gravest sign, with the worst figure.
fn sign(evidence: &[Judged]) -> Option<Sign> {
    evidence.iter().filter_map(sign_of).reduce(worse)
}

fn worse(one: Sign, other: Sign) -> Sign {
    match (one, other) {
        (Sign::Corrupt { wrong_words: one }, Sign::Corrupt { wrong_words: other }) => {
            Sign::Corrupt { wrong_words: one.saturating_add(other) }
        }
        (one @ Sign::Slow { lowest_gbps: a, .. }, other @ Sign::Slow { lowest_gbps: b, .. }) => {
            if b < a {
                other
            } else {
                one
            }
        }
        (one @ Sign::Late { highest_us: a, .. }, other @ Sign::Late { highest_us: b, .. }) => {
            if b > a {
                other
            } else {
                one
            }
        }
        (one, other) => {
            if gravity(&other) > gravity(&one) {
                other
            } else {
                one
            }
        }
    }
}

/// Returns the ends that no good test and no verdict is about.
fn unknown(places: &[Place], rails: &[Links], verdicts: &[Verdict]) -> Vec<End> {
    let mut accused = BTreeSet::new();
    for verdict in verdicts {
        match verdict.what {
            What::Rail(end) => accused.extend([end]),
            What::RailOrPath { left, right, rail, .. } => {
                accused.extend([left, right].map(|node| End { node, rail }));
            }
            What::AllNodes { rail } => accused.extend((0..places.len()).map(|node| End { node, rail })),
            What::Node { .. } | What::Path { .. } => {}
        }
    }
    let of_node = |(node, place): (usize, &Place)| (0..place.leafs.len()).map(move |rail| End { node, rail });
    let good = |end: &End| rails.get(end.rail).is_some_and(|links| links.good(end.node) > 0);
    let ends = places.iter().enumerate().flat_map(of_node);
    ends.filter(|end| !good(end) && !accused.contains(end)).collect()
}

/// Replaces the verdicts about rails of a node by one about the node, where these are at least two and at least half of its
/// rails.
fn with_nodes(places: &[Place], verdicts: Vec<Verdict>) -> Vec<Verdict> {
    let mut of_node: BTreeMap<usize, Vec<Verdict>> = BTreeMap::new();
    let mut others = Vec::new();
    for verdict in verdicts {
        match verdict.what {
            What::Rail(end) => of_node.entry(end.node).or_default().push(verdict),
            _ => others.push(verdict),
        }
    }
    let mut all = Vec::new();
    for (node, mut rails) in of_node {
        let count = places.get(node).map_or(0, |place| place.leafs.len());
        if rails.len() >= 2 && rails.len() * 2 >= count {
            // A bad node explains what could be its rail or a path.
            let suspect = |verdict: &mut Verdict| match &verdict.what {
                What::RailOrPath { suspects, .. } => suspects.contains(&node),
                _ => false,
            };
            rails.extend(others.extract_if(.., suspect));
            all.extend(whole_node(node, rails, count));
        } else {
            others.extend(rails);
        }
    }
    others.sort_by_key(|verdict| order(&verdict.what));
    all.extend(others);
    all
}

fn whole_node(node: usize, rails: Vec<Verdict>, count: usize) -> Option<Verdict> {
    let confirmed = rails.iter().filter(|verdict| verdict.confirmed).count();
    let confirmed = confirmed >= 2 && confirmed * 2 >= count;
    let number = |verdict: &Verdict| match verdict.what {
        What::Rail(End { rail, .. }) | What::RailOrPath { rail, .. } => Some(rail),
        _ => None,
    };
    let mut numbers: Vec<usize> = rails.iter().filter_map(number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let sign = rails.iter().map(|verdict| verdict.sign.clone()).reduce(worse)?;
    let evidence = rails.into_iter().flat_map(|verdict| verdict.evidence).collect();
    Some(Verdict { what: What::Node { node, rails: numbers, of: count }, confirmed, sign, evidence })
}

fn order(what: &What) -> (usize, usize, usize) {
    match what {
        What::Node { node, .. } => (0, *node, 0),
        What::AllNodes { rail } => (*rail, 0, 0),
        What::Rail(end) => (end.rail, 1, end.node),
        What::RailOrPath { left, rail, .. } => (*rail, 2, *left),
        What::Path { left, rail, .. } => (*rail, 3, *left),
    }
}
