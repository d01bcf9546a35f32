//! Events put in order: the same for late, doubled and shuffled events.

use std::collections::hash_map::{Entry, RandomState};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::BuildHasher as _;

use railgate_model::{Class, Severity, UnixMillis};

use crate::event::{
    Attempt, Card, Cause, Drainer, Event, Grade, NodeFinding, Progress, SharedKind, Source, What,
};
use crate::parallel;

/// All events up to a time.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The time of the judgement.
    pub(crate) now: UnixMillis,
    /// Time of the first event.
    pub(crate) begin: UnixMillis,
    /// Time of the last event.
    last: Option<UnixMillis>,
    pub(crate) nodes: Vec<Node>,
    /// By name. Hashed: the attempts of a large history have millions of names to look up.
    index: HashMap<String, usize>,
    /// Indices of all nodes, sorted by name.
    pub(crate) by_name: Vec<usize>,
    /// By job and attempt.
    pub(crate) attempts: Vec<Attempt>,
    /// When each attempt started and ended. Apart from the attempts, which are large: millions are looked up.
    pub(crate) spans: Vec<Span>,
    /// Indices of the nodes of each attempt.
    pub(crate) members: Vec<Vec<usize>>,
    /// By job and attempt.
    pub(crate) progress: HashMap<(u32, u32), Progress>,
    /// By job and attempt.
    pub(crate) restarts: HashMap<(u32, u32), Vec<UnixMillis>>,
    /// Where each card was seen, one entry for each stay in a node: when it came, and the node.
    stays: HashMap<String, Vec<(UnixMillis, usize)>>,
    forged: usize,
    conflicting: usize,
}

/// What is known of a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    pub(crate) name: String,
    /// First event about the node.
    pub(crate) first: UnixMillis,
    places: BTreeMap<SharedKind, Vec<(UnixMillis, BTreeSet<String>)>>,
    cards: Vec<(UnixMillis, BTreeSet<String>)>,
    pub(crate) observed: Vec<Observed>,
    marks: Vec<Mark>,
    outage: Option<Outage>,
    /// Intervals in which the node took no jobs. The last one may end at [`History::now`].
    pub(crate) out: Vec<(UnixMillis, UnixMillis)>,
    pub(crate) repairs: Vec<(UnixMillis, Option<String>)>,
    /// Times of [`What::LemonResumed`], which are repairs as well.
    pub(crate) lemon_resumed: Vec<UnixMillis>,
    /// Attempts on the node, by start.
    pub(crate) attempts: Vec<usize>,
    pub(crate) tested: Vec<(UnixMillis, bool)>,
}

/// When an attempt ran.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) start: UnixMillis,
    /// `None` while it runs or if its end is not known.
    pub(crate) end: Option<UnixMillis>,
}

/// One observation that something is wrong with a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Observed {
    pub(crate) time: UnixMillis,
    pub(crate) check: String,
    pub(crate) cause: Cause,
    pub(crate) grade: Grade,
    pub(crate) card: Option<String>,
    pub(crate) leaf: Option<String>,
}

/// What took a node out of service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outage {
    /// It was drained.
    Drained {
        /// By whom.
        by: Drainer,
        /// Slurm's reason.
        reason: String,
    },
    /// It did not answer to Slurm.
    Down,
}

#[derive(Clone, Copy, Debug)]
struct Mark {
    time: UnixMillis,
    out: bool,
}

impl History {
    /// Puts events in order. Events after `now` are left out. Of events with the same id, one counts.
    pub fn new(events: impl IntoIterator<Item = Event>, now: UnixMillis) -> History {
        let (ordered, conflicting) = ordered(events, now);
        let is_observed = |event: &&Event| !matches!(event.what, What::Maintained { .. });
        let begin = ordered.iter().find(is_observed).map_or(now, |event| event.time);
        let last = ordered.last().map(|event| event.time);
        let mut history = History { now, begin, last, conflicting, ..History::default() };
        let mut attempts = Attempts::default();
        for event in ordered {
            if event.source == Source::User && event.what.needs_root() {
                history.forged += 1;
                continue;
            }
            match event.what {
                What::JobStarted(attempt) | What::JobEnded(attempt) => attempts.add(attempt),
                What::Restarted { job, attempt } => {
                    history.restarts.entry((job, attempt)).or_default().push(event.time);
                }
                What::Progress(progress) => {
                    history.progress.insert((progress.job, progress.attempt), progress);
                }
                about_node => history.about_node(event.time, about_node),
            }
        }
        history.attempts = attempts.in_order();
        history.link();
        history
    }

    /// Returns the time of the judgement.
    pub fn now(&self) -> UnixMillis {
        self.now
    }

    /// Returns the number of events that only root may write and a user's file contains. They are left out.
    pub fn forged(&self) -> usize {
        self.forged
    }

    /// Returns the number of ids that came with different contents. One of them counts, the same in any order.
    pub fn conflicting(&self) -> usize {
        self.conflicting
    }

    /// Returns the names of all nodes, sorted.
    pub fn node_names(&self) -> impl Iterator<Item = &str> {
        self.by_name.iter().map(|node| self.name(*node))
    }

    /// Returns when a node became known, and when it took no jobs since: from, to. An interval that has not ended ends at
    /// [`History::now`]. `None` without an event about the node.
    pub fn service(&self, node: &str) -> Option<(UnixMillis, &[(UnixMillis, UnixMillis)])> {
        let node = self.nodes.get(self.find(node)?)?;
        Some((node.first, &node.out))
    }

    /// Returns what a node shares with others now: leaf switches, rack, driver and so on. Nothing for an unknown node.
    pub fn shares(&self, node: &str) -> impl Iterator<Item = (SharedKind, &str)> {
        let node = self.find(node).and_then(|index| self.nodes.get(index));
        let places = node.into_iter().flat_map(|node| &node.places);
        places.flat_map(|(kind, known)| {
            let last = known.last().into_iter();
            last.flat_map(|(_, names)| names).map(|name| (*kind, name.as_str()))
        })
    }

    /// Returns what took a node out of service the last time, also if it is in service again. `None` if that never happened.
    pub fn outage(&self, node: &str) -> Option<&Outage> {
        self.nodes.get(self.find(node)?)?.outage.as_ref()
    }

    /// Returns the time of the first event; [`History::now`] without one.
    pub fn begin(&self) -> UnixMillis {
        self.begin
    }

    /// Returns the time of the last event; `None` without one.
    pub fn last(&self) -> Option<UnixMillis> {
        self.last
    }

    /// Returns all attempts by job and attempt.
    pub fn attempts(&self) -> &[Attempt] {
        &self.attempts
    }

    /// Returns an attempt of a job.
    pub fn attempt(&self, job: u32, attempt: u32) -> Option<&Attempt> {
        let of = |known: &Attempt| (known.job, known.attempt);
        let index = self.attempts.binary_search_by_key(&(job, attempt), of).ok()?;
        self.attempts.get(index)
    }

    /// The index of a node.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.index.get(name).copied()
    }

    pub(crate) fn name(&self, node: usize) -> &str {
        self.nodes.get(node).map_or("", |node| node.name.as_str())
    }

    /// When a card that was seen in a node left it for the last time: it was no longer there, or it was in another node. `None` if it is there
    /// or never was.
    pub(crate) fn left(&self, node: usize, card: &str) -> Option<UnixMillis> {
        let stays = self.stays.get(card)?;
        let last = stays.iter().rposition(|(_, of)| *of == node)?;
        let elsewhere = stays.get(last + 1).map(|(time, _)| *time);
        let gone = self.nodes.get(node).and_then(|node| node.left(card));
        gone.into_iter().chain(elsewhere).min()
    }

    fn node(&mut self, name: &str, time: UnixMillis) -> &mut Node {
        let index = self.index_of(name, time);
        let node = &mut self.nodes[index];
        node.first = node.first.min(time);
        node
    }

    /// The index of a node. A new one gets the next index, and was known first at this time.
    fn index_of(&mut self, name: &str, time: UnixMillis) -> usize {
        if let Some(index) = self.find(name) {
            return index;
        }
        let index = self.nodes.len();
        self.index.insert(name.to_owned(), index);
        self.nodes.push(Node { name: name.to_owned(), first: time, ..Node::default() });
        index
    }

    fn about_node(&mut self, time: UnixMillis, what: What) {
        match what {
            What::Placed { node, shares } => {
                let node = self.node(&node, time);
                let mut named: BTreeMap<SharedKind, BTreeSet<String>> = BTreeMap::new();
                for shared in shares {
                    named.entry(shared.kind).or_default().insert(shared.name);
                }
                for (kind, names) in named {
                    node.places.entry(kind).or_default().push((time, names));
                }
            }
            What::Cards { node, cards } => {
                let cards: BTreeSet<String> = cards.into_iter().map(|card: Card| card.uuid).collect();
                let index = self.index_of(&node, time);
                for card in &cards {
                    let stays = self.stays.entry(card.clone()).or_default();
                    if stays.last().is_none_or(|(_, node)| *node != index) {
                        stays.push((time, index));
                    }
                }
                self.node(&node, time).cards.push((time, cards));
            }
            What::Finding(finding) => {
                let counts = counts(&finding);
                let node = self.node(&finding.node, time);
                if counts {
                    node.observed.push(Observed {
                        time,
                        check: finding.check,
                        cause: finding.cause,
                        grade: finding.grade,
                        card: finding.card,
                        leaf: finding.leaf,
                    });
                }
            }
            What::Down { node } => {
                let node = self.node(&node, time);
                node.observed.push(Observed::down(time, "down"));
                node.marks.push(Mark { time, out: true });
                node.outage = Some(Outage::Down);
            }
            What::Rebooted { node, expected } => {
                let node = self.node(&node, time);
                if expected == Some(false) {
                    node.observed.push(Observed::down(time, "reboot"));
                }
            }
            What::Drained { node, by, reason } => {
                let node = self.node(&node, time);
                node.marks.push(Mark { time, out: true });
                node.outage = Some(Outage::Drained { by, reason });
            }
            What::Resumed { node } => self.node(&node, time).marks.push(Mark { time, out: false }),
            What::LemonResumed { node } => {
                let node = self.node(&node, time);
                node.repairs.push((time, None));
                node.lemon_resumed.push(time);
            }
            // An admin may enter work of a time of which the history knows nothing: the node was not observed then.
            What::Maintained { node, repair, card, .. } => {
                let index = self.index_of(&node, self.now);
                if repair {
                    self.nodes[index].repairs.push((time, card));
                }
            }
            What::SelfTested { node, passed, .. } => {
                let node = self.node(&node, time);
                // The figures of one test have the same time.
                match (passed, node.tested.last_mut()) {
                    (Some(passed), Some((last, all))) if *last == time => *all &= passed,
                    (Some(passed), _) => node.tested.push((time, passed)),
                    (None, _) => {}
                }
            }
            What::JobStarted(_) | What::JobEnded(_) | What::Restarted { .. } | What::Progress(_) => {}
        }
    }

    /// Indices of the nodes of an attempt, sorted, each once; `None` if there was no event about one of them.
    fn members_of(&self, attempt: &Attempt) -> Option<Vec<usize>> {
        let mut members = Vec::with_capacity(attempt.nodes.len());
        for name in attempt.nodes.iter() {
            members.push(self.find(name)?);
        }
        members.sort_unstable();
        members.dedup();
        Some(members)
    }

    /// As [`History::members_of`]; nodes without an event become known by the attempt.
    fn all_members_of(&mut self, attempt: &Attempt) -> Vec<usize> {
        for name in attempt.nodes.iter() {
            self.index_of(name, attempt.start);
        }
        self.members_of(attempt).unwrap_or_default()
    }

    /// Links attempts and nodes, and derives when nodes took no jobs.
    fn link(&mut self) {
        let attempts = std::mem::take(&mut self.attempts);
        let members = parallel::map(&attempts, |attempt| self.members_of(attempt));
        let members = attempts.iter().zip(members);
        self.members = members
            .map(|(attempt, members)| members.unwrap_or_else(|| self.all_members_of(attempt)))
            .collect();
        let mut counts = vec![0; self.nodes.len()];
        for node in self.members.iter().flatten() {
            counts[*node] += 1;
        }
        for (node, count) in self.nodes.iter_mut().zip(counts) {
            node.attempts.reserve_exact(count);
        }
        let span = |attempt: &Attempt| Span { start: attempt.start, end: attempt.end.map(|(end, _)| end) };
        let spans: Vec<Span> = attempts.iter().map(span).collect();
        let mut by_start: Vec<usize> = (0..attempts.len()).collect();
        by_start.sort_by_key(|index| spans[*index].start);
        for index in by_start {
            for node in &self.members[index] {
                let node = &mut self.nodes[*node];
                node.first = node.first.min(spans[index].start);
                node.attempts.push(index);
            }
        }
        let now = self.now;
        for node in &mut self.nodes {
            node.marks.sort_by_key(|mark| (mark.time, mark.out));
            let of_node = &node.attempts;
            let next_start = |time: UnixMillis| {
                let next = of_node.partition_point(|index| spans[*index].start <= time);
                of_node.get(next).map(|index| spans[*index].start)
            };
            node.out = out_of_service(&node.marks, next_start, now);
        }
        (self.attempts, self.spans) = (attempts, spans);
        self.by_name = (0..self.nodes.len()).collect();
        self.by_name.sort_by(|one, other| self.nodes[*one].name.cmp(&self.nodes[*other].name));
    }
}

/// Attempts, each once.
#[derive(Default)]
struct Attempts {
    /// In the order in which they became known.
    all: Vec<Attempt>,
    /// Indices by job and attempt. Apart from the attempts, which are large.
    index: HashMap<(u32, u32), usize>,
}

impl Attempts {
    /// An end replaces a start and not the reverse; of two ends the later event counts.
    fn add(&mut self, attempt: Attempt) {
        let attempt = Attempt { end: attempt.end.filter(|(end, _)| *end >= attempt.start), ..attempt };
        match self.index.entry((attempt.job, attempt.attempt)) {
            Entry::Vacant(new) => {
                new.insert(self.all.len());
                self.all.push(attempt);
            }
            Entry::Occupied(known) => {
                let known = &mut self.all[*known.get()];
                if known.end.is_none() || attempt.end.is_some() {
                    *known = attempt;
                }
            }
        }
    }

    /// All, by job and attempt.
    fn in_order(mut self) -> Vec<Attempt> {
        self.all.sort_by_key(|attempt| (attempt.job, attempt.attempt));
        self.all
    }
}

/// Sorted by time, each id once: of different events with one id that which supersedes the others.
fn ordered(events: impl IntoIterator<Item = Event>, now: UnixMillis) -> (Vec<Event>, usize) {
    let mut events: Vec<Event> = events.into_iter().filter(|event| event.time <= now).collect();
    let mut keep = vec![true; events.len()];
    let conflicting = {
        // Most ids are there once, by their hashes.
        let seed = RandomState::new();
        let hashes = parallel::map(&events, |event| seed.hash_one(&event.id));
        let mut sorted = hashes.clone();
        sorted.sort_unstable();
        let is_pair = |pair: &&[u64]| pair[0] == pair[1];
        let again: HashSet<u64> = sorted.windows(2).filter(is_pair).map(|pair| pair[0]).collect();
        // The event of each id that counts so far.
        let mut of_id: HashMap<&str, usize> = HashMap::new();
        let mut conflicting: HashSet<&str> = HashSet::new();
        for (index, event) in events.iter().enumerate().filter(|(index, _)| again.contains(&hashes[*index])) {
            match of_id.entry(&event.id) {
                Entry::Vacant(new) => drop(new.insert(index)),
                Entry::Occupied(mut known) => {
                    let before = *known.get();
                    let mut loser = index;
                    if events[before] != *event {
                        conflicting.insert(&event.id);
                        if event.supersedes(&events[before]) {
                            loser = known.insert(index);
                        }
                    }
                    keep[loser] = false;
                }
            }
        }
        conflicting.len()
    };
    let mut keep = keep.into_iter();
    events.retain(|_| keep.next().unwrap_or(true));
    events.sort_by(|one, other| (one.time, &one.id).cmp(&(other.time, &other.id)));
    (events, conflicting)
}

/// What a peer claims, what proves nothing and what is no fault of a node does not count.
fn counts(finding: &NodeFinding) -> bool {
    finding.severity == Severity::Fail
        && matches!(finding.class, Class::Node | Class::Fabric)
        && finding.grade >= Grade::Sign
        && finding.accuser.as_ref().is_none_or(|accuser| *accuser == finding.node)
}

/// Intervals between marks, which are sorted by time. A job that starts replaces a resume event that was lost, since Slurm starts jobs only on
/// nodes in service. `next_start`: the first start of a job after a time.
fn out_of_service(
    marks: &[Mark],
    next_start: impl Fn(UnixMillis) -> Option<UnixMillis>,
    now: UnixMillis,
) -> Vec<(UnixMillis, UnixMillis)> {
    let mut out: Vec<(UnixMillis, UnixMillis)> = Vec::new();
    let mut marks = marks.iter();
    while let Some(mark) = marks.next() {
        let is_in_service = out.last().is_none_or(|(_, to)| *to <= mark.time);
        if mark.out && is_in_service {
            let resumed = marks.clone().find(|next| !next.out).map(|next| next.time);
            let Some(to) = resumed.into_iter().chain(next_start(mark.time)).min() else {
                out.push((mark.time, now));
                break;
            };
            out.push((mark.time, to));
        }
    }
    out
}

impl Observed {
    fn down(time: UnixMillis, check: &str) -> Observed {
        Observed {
            time,
            check: check.to_owned(),
            cause: Cause::Down,
            grade: Grade::Sign,
            card: None,
            leaf: None,
        }
    }
}

impl Node {
    /// What the node shares with others: of each kind what was last known, or what became known first. From when, and to
    /// when where that has an end.
    pub(crate) fn shared_when(
        &self,
    ) -> impl Iterator<Item = ((SharedKind, &str), UnixMillis, Option<UnixMillis>)> {
        self.places.iter().flat_map(|(kind, known)| {
            known.iter().enumerate().flat_map(move |(index, (since, names))| {
                let from = if index == 0 { 0 } else { *since };
                let to = known.get(index + 1).map(|(next, _)| *next);
                names.iter().map(move |name| ((*kind, name.as_str()), from, to))
            })
        })
    }

    /// The cards that were last seen in the node; `None` if they were never read.
    pub(crate) fn cards(&self) -> Option<&BTreeSet<String>> {
        self.cards.last().map(|(_, cards)| cards)
    }

    /// When a card came into the node for the last time, if it is there.
    pub(crate) fn since(&self, card: &str) -> Option<UnixMillis> {
        let mut since = None;
        for (time, cards) in &self.cards {
            match (cards.contains(card), since) {
                (true, None) => since = Some(*time),
                (false, Some(_)) => since = None,
                _ => {}
            }
        }
        since
    }

    /// When a card was no longer among the node's cards; `None` if it is or never was.
    fn left(&self, card: &str) -> Option<UnixMillis> {
        let last = self.cards.iter().rposition(|(_, cards)| cards.contains(card))?;
        self.cards.get(last + 1).map(|(time, _)| *time)
    }

    pub(crate) fn is_out(&self, time: UnixMillis) -> bool {
        self.out.iter().any(|(from, to)| (*from..=*to).contains(&time))
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_start_of_a_job_ends_an_outage_like_a_resume_event(
            marks in vec((0_u64..12, any::<bool>()), 0..8),
            mut starts in vec(0_u64..14, 0..6),
        ) {
            let mut marks: Vec<Mark> = marks.into_iter().map(|(time, out)| Mark { time, out }).collect();
            marks.sort_by_key(|mark| (mark.time, mark.out));
            starts.sort_unstable();
            let next_start = |time| starts.iter().copied().find(|start| *start > time);
            let found = out_of_service(&marks, next_start, 12);
            // Each start as an event of its own; at the same time an outage comes last.
            let mut all = marks.clone();
            all.extend(starts.iter().map(|start| Mark { time: *start, out: false }));
            all.sort_by_key(|mark| (mark.time, mark.out));
            let (mut expected, mut since) = (Vec::new(), None);
            for mark in all {
                match since {
                    None if mark.out => since = Some(mark.time),
                    Some(from) if !mark.out => {
                        expected.push((from, mark.time));
                        since = None;
                    }
                    _ => {}
                }
            }
            expected.extend(since.map(|from| (from, 12)));
            prop_assert_eq!(found, expected);
        }
    }
}
