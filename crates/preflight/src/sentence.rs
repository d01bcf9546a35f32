//! Sentences about verdicts and notes, with the names of the nodes.

use railgate_text::shorten;

use crate::judge::{Judged, Judgement, Usual};
use crate::types::Outcome;
use crate::verdict::{Note, NoteKind, Sign, Verdict, What};

/// Characters of a name or an error that a sentence shows.
const LONGEST_TEXT: usize = 120;
/// Figures that a sentence shows; the rest is counted.
const MOST_FIGURES: usize = 4;

/// Names of nodes, by index.
struct Names<'a, S>(&'a [S]);

impl<S: AsRef<str>> Names<'_, S> {
    fn of(&self, node: usize) -> String {
        self.0.get(node).map_or_else(|| format!("node {node}"), |name| shorten(name.as_ref(), LONGEST_TEXT))
    }
}

impl What {
    /// Returns the part in words, for example `rail 3 of gn7`.
    ///
    /// `names` are the nodes of the allocation in the order of their indices.
    pub fn words<S: AsRef<str>>(&self, names: &[S]) -> String {
        let names = Names(names);
        match self {
            What::Rail(end) => format!("rail {} of {}", end.rail, names.of(end.node)),
            What::Node { node, rails, of } => format!("{}, {} of {of} rails", names.of(*node), rails.len()),
            What::Path { left, right, rail } => {
                format!("path between {} and {} on rail {rail}", names.of(*left), names.of(*right))
            }
            What::RailOrPath { left, right, rail, suspects } => {
                let suspects = suspects.iter().map(|node| names.of(*node)).collect::<Vec<_>>().join(" or ");
                let (left, right) = (names.of(*left), names.of(*right));
                format!("rail {rail} of {suspects}, or the path between {left} and {right}")
            }
            What::AllNodes { rail } => format!("rail {rail} of all nodes"),
        }
    }
}

impl Verdict {
    /// Returns the verdict as a sentence without a full stop, for example `rail 3 of gn7: 141 Gb/s to gn2 and 139 Gb/s to gn9,
    /// where the median is 389 Gb/s`.
    ///
    /// `names` are the nodes of the allocation in the order of their indices.
    pub fn sentence<S: AsRef<str>>(&self, names: &[S]) -> String {
        let subject = match &self.what {
            What::Rail(end) => Some(end.node),
            What::Node { node, .. } => Some(*node),
            _ => None,
        };
        let figures = Figures { names: Names(names), subject };
        let mut text = format!("{}: {}", self.what.words(names), figures.of(self));
        if !self.confirmed {
            text.push_str("; not confirmed");
            let good = self.evidence.iter().filter(|one| one.judgement == Judgement::Good);
            let partners: Vec<String> = good.map(|one| figures.partner(one)).collect();
            if !partners.is_empty() {
                text.push_str(&format!(", good with {}", list(partners)));
            }
        }
        text
    }
}

impl Note {
    /// Returns the note as a sentence without a full stop.
    ///
    /// `names` are the nodes of the allocation in the order of their indices.
    pub fn sentence<S: AsRef<str>>(&self, names: &[S]) -> String {
        let figures = Figures { names: Names(names), subject: None };
        let figure = list(figures.figure(&self.test));
        let (rail, round) = (self.test.tested.rail, self.test.round);
        let why = match self.kind {
            NoteKind::SlowOnce => "another test of the pair was good",
            NoteKind::SlowNotRepeated => "both were good with others, and no round was left to test it again",
            NoteKind::LateOnce => "not repeated with other partners",
        };
        let usual = usual(&self.test).unwrap_or_default();
        format!("rail {rail}, round {round}: {figure}{usual}; {why}")
    }
}

/// Returns `a, b and c`.
fn list(mut words: Vec<String>) -> String {
    let more = words.len().saturating_sub(MOST_FIGURES);
    words.truncate(MOST_FIGURES);
    if more > 0 {
        words.push(format!("{more} more"));
    }
    let last = words.pop().unwrap_or_default();
    if words.is_empty() { last } else { format!("{} and {last}", words.join(", ")) }
}

/// Returns the comparison of a slow or late test, beginning with a comma.
fn usual(judged: &Judged) -> Option<String> {
    match &judged.judgement {
        Judgement::Slow { usual_gbps, usual: Usual::Median, .. } => {
            Some(format!(", where the median is {}", rate(*usual_gbps)))
        }
        Judgement::Slow { usual_gbps, usual: Usual::Expected, .. } => {
            Some(format!(", where {} are expected", rate(*usual_gbps)))
        }
        Judgement::Late { usual_us } => Some(format!(", where the median is {usual_us:.1} µs")),
        _ => None,
    }
}

/// Figures of tests, as the accused node sent or received them if there is one.
struct Figures<'a, S> {
    names: Names<'a, S>,
    subject: Option<usize>,
}

impl<S: AsRef<str>> Figures<'_, S> {
    fn of(&self, verdict: &Verdict) -> String {
        if let What::Node { .. } = verdict.what {
            return summary(verdict);
        }
        let bad = verdict.evidence.iter().filter(|one| is_of(one, &verdict.sign));
        let figures: Vec<String> = bad.clone().flat_map(|one| self.figure(one)).collect();
        let usual = bad.clone().find_map(usual).unwrap_or_default();
        let prefix = if verdict.sign == Sign::Down { "port down; " } else { "" };
        format!("{prefix}{}{usual}", list(figures))
    }

    /// Returns the partner of the accused node, or both nodes.
    fn partner(&self, judged: &Judged) -> String {
        let pair = judged.tested.pair;
        match self.subject.and_then(|node| pair.partner(node)) {
            Some(partner) => self.names.of(partner),
            None => format!("{} and {}", self.names.of(pair.left), self.names.of(pair.right)),
        }
    }

    /// Returns `to gn2` if the accused node sends, `from gn2` if it receives, otherwise `from gn1 to gn2`.
    fn direction(&self, from: usize, to: usize) -> String {
        match self.subject {
            Some(node) if node == from => format!("to {}", self.names.of(to)),
            Some(node) if node == to => format!("from {}", self.names.of(from)),
            _ => format!("from {} to {}", self.names.of(from), self.names.of(to)),
        }
    }

    /// Returns the figures of a bad test: one for each bad direction, or one for the test.
    fn figure(&self, judged: &Judged) -> Vec<String> {
        let pair = judged.tested.pair;
        let ends = [(pair.left, pair.right), (pair.right, pair.left)];
        let directions = ends.map(|(from, to)| self.direction(from, to));
        match (&judged.judgement, &judged.tested.outcome) {
            (Judgement::Slow { directions: slow, .. }, Outcome::Measured { gbps, .. }) => {
                let each = directions.iter().zip(gbps).zip(slow).filter(|(_, slow)| **slow);
                each.map(|((direction, gbps), _)| format!("{} {direction}", rate(*gbps))).collect()
            }
            (Judgement::Late { .. }, Outcome::Measured { latency_us, .. }) => {
                vec![format!("{latency_us:.1} µs {}", self.between(judged))]
            }
            (Judgement::Corrupt, Outcome::Corrupt { wrong_words }) => {
                let each = directions.iter().zip(wrong_words).filter(|(_, wrong)| **wrong > 0);
                each.map(|(direction, wrong)| format!("{wrong} wrong words {direction}")).collect()
            }
            (Judgement::Failed | Judgement::Down { .. }, Outcome::Failed { why, .. }) => {
                let why = shorten(why.trim(), LONGEST_TEXT);
                let why = if why.is_empty() { why } else { format!(" ({why})") };
                vec![format!("test {} failed{why}", self.between(judged))]
            }
            _ => Vec::new(),
        }
    }

    /// Returns `with gn2`, or `between gn1 and gn2` if no node is accused.
    fn between(&self, judged: &Judged) -> String {
        let word = if self.subject.is_some() { "with" } else { "between" };
        format!("{word} {}", self.partner(judged))
    }
}

/// Returns a bandwidth in words: `389 Gb/s`, `0.19 Gb/s`, `8.3 Mb/s`.
#[must_use]
pub fn rate(gbps: f64) -> String {
    let mbps = 1000.0 * gbps;
    if mbps < 10.0 {
        format!("{mbps:.1} Mb/s")
    } else if mbps < 100.0 {
        format!("{mbps:.0} Mb/s")
    } else if gbps < 10.0 {
        format!("{gbps:.2} Gb/s")
    } else {
        format!("{gbps:.0} Gb/s")
    }
}

/// Returns whether a test shows the sign, so that a sentence has one kind of figures.
fn is_of(judged: &Judged, sign: &Sign) -> bool {
    matches!(
        (&judged.judgement, sign),
        (Judgement::Slow { .. }, Sign::Slow { .. })
            | (Judgement::Late { .. }, Sign::Late { .. })
            | (Judgement::Corrupt, Sign::Corrupt { .. })
            | (Judgement::Failed, Sign::Failed)
            | (Judgement::Down { .. }, Sign::Down)
    )
}

/// Returns the worst figure of a node: it has too many tests for a sentence.
fn summary(verdict: &Verdict) -> String {
    let shows = verdict.evidence.iter().filter(|one| is_of(one, &verdict.sign));
    let usual = shows.clone().find_map(usual).unwrap_or_default();
    match &verdict.sign {
        Sign::Late { highest_us, .. } => format!("latency up to {highest_us:.1} µs{usual}"),
        Sign::Slow { lowest_gbps, .. } => format!("down to {}{usual}", rate(*lowest_gbps)),
        Sign::Failed => format!("{} tests failed", shows.count()),
        Sign::Down => "ports down".to_owned(),
        Sign::Corrupt { wrong_words } => format!("{wrong_words} words arrived wrong"),
    }
}
