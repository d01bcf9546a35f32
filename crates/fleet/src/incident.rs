//! Faults close in time on what nodes share, or on the nodes of one job or of the jobs of one user, are one incident.
//!
//! A scan statistic, after Kulldorff (1997): the gain of a cluster is the logarithm of the likelihood ratio between "each node that
//! shares this failed with the share that did" and "each failed at the fleet's rate". The cluster with the largest gain
//! is taken first, so that faults belong to what explains them best: to the leaf switch whose nodes all failed, not to the
//! driver version that these nodes share with the rest of the fleet. It must exceed the logarithm of the number of places and
//! times where chance could have made one, divided by [`Settings::false_incidents`].

use std::collections::{BTreeMap, BTreeSet, HashMap};

use railgate_model::UnixMillis;
use serde::{Deserialize, Serialize};

use crate::event::{Cause, Grade, Shared, SharedKind};
use crate::fault::{Fault, has_failed};
use crate::history::{History, Node};
use crate::parallel;
use crate::settings::Settings;

/// A late node belongs to an incident if that is twenty times as likely as that it failed by itself.
const LATE_NODE: f64 = 20.0;

/// A job can kill two nodes: that two nodes of a small job fail by chance within minutes is as rare as three of a leaf switch.
const FEWEST_NODES_OF_JOB: usize = 2;

/// What an incident is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// Something that the nodes share.
    Shared(Shared),
    /// An attempt of a job that took its nodes with it.
    Job {
        /// Job id.
        job: u32,
        /// Attempt.
        attempt: u32,
    },
    /// The jobs of one user.
    User {
        /// The user.
        uid: u32,
    },
}

/// Several faults with one reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Incident {
    /// The reason.
    pub reason: Reason,
    /// The most frequent cause of its faults.
    pub cause: Cause,
    /// The nodes that failed, sorted.
    pub nodes: Vec<String>,
    /// Number of nodes that could have failed: that share it, or that the job had.
    pub of: usize,
    /// First fault.
    pub start: UnixMillis,
    /// Last fault; `None` while further nodes can fail.
    pub end: Option<UnixMillis>,
    /// One line for a person.
    pub what: String,
}

/// Result of the scan.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    pub(crate) incidents: Vec<Incident>,
    /// For each fault its incident.
    pub(crate) of_fault: Vec<Option<usize>>,
    /// Faults of peers of a node that proof names: they count against no node.
    pub(crate) collateral: BTreeSet<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// Its number in [`Fleet`].
    Shared(usize),
    /// Index of the attempt.
    Job(usize),
    /// The jobs of a user that run at the time.
    User(u32),
}

impl Place {
    fn is_of_jobs(&self) -> bool {
        matches!(self, Place::Job(_) | Place::User(_))
    }
}

#[derive(Clone, Debug)]
struct Cluster {
    faults: Vec<usize>,
    of: usize,
    gain: f64,
}

/// Faults of one place between pauses that are too long for one cause. No cluster spans two of them, so that only the
/// blocks of faults that were taken are searched again.
struct Block {
    place: Place,
    faults: Vec<usize>,
}

/// What nodes of the fleet share, numbered by kind and name.
struct Fleet<'a> {
    shared: Vec<Part<'a>>,
    /// For each node what it shares. By number: the names are long, and looked up for each fault.
    of_node: Vec<Vec<Use>>,
    /// Number of what there is of each kind.
    kinds: BTreeMap<SharedKind, usize>,
}

/// One of [`Fleet::shared`], for example a leaf switch.
struct Part<'a> {
    kind: SharedKind,
    name: &'a str,
    /// Number of nodes that share it, from each time at which it changes. Counted once: large clusters are searched again and again.
    nodes: Vec<(UnixMillis, usize)>,
}

/// When a node shares something.
#[derive(Clone, Copy)]
struct Use {
    number: usize,
    from: UnixMillis,
    /// `None` while it has no end.
    to: Option<UnixMillis>,
}

/// When an attempt ran. Apart from the attempt, which is large: a user has thousands, which are searched again and again.
#[derive(Clone, Copy)]
struct Run {
    start: UnixMillis,
    /// The largest time if it has not ended.
    end: UnixMillis,
    attempt: usize,
}

struct Scan<'a> {
    history: &'a History,
    settings: &'a Settings,
    faults: &'a [Fault],
    fleet: Fleet<'a>,
    /// Faults by place, by time.
    places: BTreeMap<Place, Vec<usize>>,
    /// By place, cause and time.
    blocks: Vec<Block>,
    /// Indices of the blocks of each fault.
    of_fault: Vec<Vec<usize>>,
    /// Attempts by user, by start.
    of_user: BTreeMap<u32, Vec<Run>>,
    /// Faults per millisecond of a node.
    rate: f64,
}

/// Finds the incidents.
pub(crate) fn incidents(history: &History, settings: &Settings, faults: &[Fault]) -> Found {
    let mut found = Found { of_fault: vec![None; faults.len()], ..Found::default() };
    let mut scan = Scan::new(history, settings, faults);
    // The first pass counts faults of incidents as if each node had failed alone, which makes it cautious.
    for _ in 0..2 {
        let alone = found.of_fault.iter().filter(|incident| incident.is_none()).count();
        scan.rate = rate(history, settings, alone);
        found = scan.run();
    }
    found
}

/// Faults per millisecond of a node. `alone`: number of faults without an incident.
fn rate(history: &History, settings: &Settings, alone: usize) -> f64 {
    let span = history.now.saturating_sub(history.begin).max(settings.together);
    (alone as f64 + 1.0) / (history.nodes.len().max(1) as f64 * span as f64)
}

impl<'a> Scan<'a> {
    /// All but the rate: it alone differs between the passes.
    fn new(history: &'a History, settings: &'a Settings, faults: &'a [Fault]) -> Scan<'a> {
        let fleet = Fleet::of(history);
        let mut places: BTreeMap<Place, Vec<usize>> = BTreeMap::new();
        let of_faults = parallel::map(faults, |fault| places_of(history, settings, &fleet, fault));
        for (index, of_fault) in of_faults.into_iter().enumerate() {
            for place in of_fault {
                places.entry(place).or_default().push(index);
            }
        }
        let blocks = blocks(&places, settings, &fleet, faults);
        let mut of_fault = vec![Vec::new(); faults.len()];
        for (index, block) in blocks.iter().enumerate() {
            for fault in &block.faults {
                of_fault[*fault].push(index);
            }
        }
        let mut of_user: BTreeMap<u32, Vec<Run>> = BTreeMap::new();
        for (index, attempt) in history.attempts.iter().enumerate() {
            let end = attempt.end.map_or(UnixMillis::MAX, |(end, _)| end);
            of_user.entry(attempt.uid).or_default().push(Run { start: attempt.start, end, attempt: index });
        }
        for runs in of_user.values_mut() {
            runs.sort_by_key(|run| run.start);
        }
        Scan { history, settings, faults, fleet, places, blocks, of_fault, of_user, rate: 0.0 }
    }

    fn run(&self) -> Found {
        let mut found = Found { of_fault: vec![None; self.faults.len()], ..Found::default() };
        let mut taken: Vec<(Place, Cluster)> = Vec::new();
        let of_blocks = parallel::map(&self.blocks, |block| self.clusters(block, &found));
        let mut clusters: BTreeMap<usize, Vec<Cluster>> =
            of_blocks.into_iter().enumerate().filter(|(_, of_block)| !of_block.is_empty()).collect();
        while let Some((block, cluster)) = best(&clusters) {
            let place = self.blocks[block].place;
            let changed: BTreeSet<usize> =
                cluster.faults.iter().flat_map(|fault| &self.of_fault[*fault]).copied().collect();
            let culprit = if place.is_of_jobs() { self.only_proof(&cluster) } else { None };
            match culprit {
                // The node that proof names took its peers with it, not the job.
                Some(node) => {
                    let of_others =
                        cluster.faults.iter().copied().filter(|fault| self.faults[*fault].node != node);
                    found.collateral.extend(of_others);
                }
                None => {
                    for fault in &cluster.faults {
                        found.of_fault[*fault] = Some(taken.len());
                    }
                    taken.push((place, cluster));
                }
            }
            // Only these can have other clusters than before.
            for block in changed {
                let left = self.clusters(&self.blocks[block], &found);
                if left.is_empty() {
                    clusters.remove(&block)
                } else {
                    clusters.insert(block, left)
                };
            }
        }
        self.absorb(&mut taken, &mut found);
        self.finish(taken, found)
    }

    /// Clusters of one block that exceed what chance can explain.
    fn clusters(&self, block: &Block, found: &Found) -> Vec<Cluster> {
        let is_free =
            |fault: &&usize| found.of_fault[**fault].is_none() && !found.collateral.contains(*fault);
        let free = block.faults.iter().filter(is_free).copied().collect();
        let parts = without_pauses(free, self.settings, self.faults).into_iter();
        parts.filter_map(|part| self.cluster(block.place, part)).collect()
    }

    fn cluster(&self, place: Place, faults: Vec<usize>) -> Option<Cluster> {
        let failed = distinct(faults.iter().map(|fault| self.faults[*fault].node));
        let (fewest, looks) = match place {
            Place::Shared(number) => {
                let span = self.history.now.saturating_sub(self.history.begin) as f64;
                let times = (span / self.settings.together as f64).max(1.0);
                let kind = self.fleet.shared[number].kind;
                let places = self.fleet.kinds.get(&kind).copied().unwrap_or(1) as f64;
                (self.settings.fewest_nodes, places * times)
            }
            Place::Job(_) | Place::User(_) => (FEWEST_NODES_OF_JOB, self.history.attempts.len() as f64),
        };
        if failed < fewest {
            return None;
        }
        let first = self.faults[*faults.first()?].time;
        let last = self.faults[*faults.last()?].time;
        let of = match place {
            Place::Shared(number) => self.fleet.shared[number].nodes(first).max(failed),
            Place::Job(attempt) => self.history.members[attempt].len().max(failed),
            Place::User(uid) => self.nodes_of_user(uid, first, last).max(failed),
        };
        let gain = gain(failed as f64, of as f64, self.chance(last - first));
        (gain > (looks / self.settings.false_incidents).ln()).then_some(Cluster { faults, of, gain })
    }

    /// Number of nodes on which jobs of a user ran between two times, or had ended shortly before.
    fn nodes_of_user(&self, uid: u32, first: UnixMillis, last: UnixMillis) -> usize {
        let runs = self.of_user.get(&uid).map(Vec::as_slice).unwrap_or_default();
        let begun = &runs[..runs.partition_point(|run| run.start <= last)];
        let near = begun.iter().filter(|run| run.end.saturating_add(self.settings.after_end) >= first);
        distinct(near.flat_map(|run| &self.history.members[run.attempt]).copied())
    }

    /// The only node of a cluster of which there is proof.
    fn only_proof(&self, cluster: &Cluster) -> Option<usize> {
        let proofs = cluster.faults.iter().map(|fault| &self.faults[*fault]);
        let nodes: BTreeSet<usize> =
            proofs.filter(|fault| fault.grade == Grade::Proof).map(|fault| fault.node).collect();
        if nodes.len() == 1 { nodes.first().copied() } else { None }
    }

    /// Adds single late nodes of what is mostly down, and joins incidents of one place that follow each other.
    fn absorb(&self, taken: &mut [(Place, Cluster)], found: &mut Found) {
        let mut order: Vec<usize> = (0..taken.len()).collect();
        order.sort_by_key(|index| (self.start(&taken[*index].1), taken[*index].0));
        let mut into: Vec<usize> = (0..taken.len()).collect();
        for (rank, index) in order.iter().enumerate() {
            let (place, cluster) = &taken[*index];
            if place.is_of_jobs() {
                continue;
            }
            let before = order[..rank].iter().rev().find(|other| {
                let (earlier_place, earlier) = &taken[**other];
                earlier_place == place && self.start(cluster) <= self.last(earlier) + self.settings.quiet
            });
            if let Some(before) = before {
                into[*index] = into[*before];
            }
        }
        for incident in found.of_fault.iter_mut().flatten() {
            *incident = into[*incident];
        }
        for index in 0..taken.len() {
            if into[index] != index {
                let (later, target) = (taken[index].1.clone(), &mut taken[into[index]].1);
                target.faults.extend(later.faults);
                target.of = target.of.max(later.of);
                taken[index].1.faults.clear();
            }
        }
        for (index, (place, cluster)) in taken.iter_mut().enumerate() {
            if cluster.faults.is_empty() || place.is_of_jobs() {
                continue;
            }
            let start = self.start(cluster);
            let (mut first, mut last) = (start, self.last(cluster));
            let mut nodes: BTreeSet<usize> =
                cluster.faults.iter().map(|fault| self.faults[*fault].node).collect();
            let of = cluster.of as f64;
            let of_place = self.places.get(place).map(Vec::as_slice).unwrap_or_default();
            // Sorted by time: the fleet's image has all faults, and few of them are near.
            let earliest = start.saturating_sub(self.settings.together);
            let near = of_place.partition_point(|fault| self.faults[*fault].time < earliest);
            for fault in &of_place[near..] {
                let Fault { time, node, .. } = &self.faults[*fault];
                if *time > last + self.settings.quiet {
                    break;
                }
                if found.of_fault[*fault].is_some() || found.collateral.contains(fault) {
                    continue;
                }
                let (from, to) = (first.min(*time), last.max(*time));
                let (before, after) = (nodes.len() as f64, nodes.len() as f64 + 1.0);
                let chance = self.chance(to - from);
                let more = gain(after, of.max(after), chance) - gain(before, of, chance);
                if nodes.contains(node) || more > LATE_NODE.ln() {
                    found.of_fault[*fault] = Some(index);
                    cluster.faults.push(*fault);
                    nodes.insert(*node);
                    (first, last) = (from, to);
                }
            }
        }
    }

    /// Probability that a node fails by itself in a cluster that lasts this long.
    fn chance(&self, span: UnixMillis) -> f64 {
        (self.rate * (span + self.settings.together) as f64).min(0.5)
    }

    fn start(&self, cluster: &Cluster) -> UnixMillis {
        cluster.faults.iter().map(|fault| self.faults[*fault].time).min().unwrap_or(0)
    }

    fn last(&self, cluster: &Cluster) -> UnixMillis {
        cluster.faults.iter().map(|fault| self.faults[*fault].time).max().unwrap_or(0)
    }

    /// Numbers the incidents by start.
    fn finish(&self, taken: Vec<(Place, Cluster)>, mut found: Found) -> Found {
        let mut numbered: Vec<(usize, Incident)> = taken
            .into_iter()
            .enumerate()
            .filter(|(_, (_, cluster))| !cluster.faults.is_empty())
            .map(|(index, (place, cluster))| (index, self.incident(place, &cluster)))
            .collect();
        numbered.sort_by(|(_, one), (_, other)| (one.start, &one.reason).cmp(&(other.start, &other.reason)));
        let number: BTreeMap<usize, usize> =
            numbered.iter().enumerate().map(|(number, (index, _))| (*index, number)).collect();
        for incident in &mut found.of_fault {
            *incident = incident.and_then(|index| number.get(&index).copied());
        }
        found.incidents = numbered.into_iter().map(|(_, incident)| incident).collect();
        found
    }

    fn incident(&self, place: Place, cluster: &Cluster) -> Incident {
        let faults = || cluster.faults.iter().map(|fault| &self.faults[*fault]);
        let nodes: BTreeSet<usize> = faults().map(|fault| fault.node).collect();
        let mut nodes: Vec<String> =
            nodes.into_iter().map(|node| self.history.name(node).to_owned()).collect();
        nodes.sort();
        let mut causes: BTreeMap<Cause, usize> = BTreeMap::new();
        for fault in faults() {
            *causes.entry(fault.cause).or_insert(0) += 1;
        }
        let cause =
            causes.iter().rev().max_by_key(|(_, count)| **count).map_or(Cause::Other, |(cause, _)| *cause);
        let (start, last) = (self.start(cluster), self.last(cluster));
        let end = (last + self.settings.quiet < self.history.now).then_some(last);
        let of = cluster.of.max(nodes.len());
        let (reason, what) = match place {
            Place::Shared(number) => {
                let Part { kind, name, .. } = &self.fleet.shared[number];
                let shared = Shared { kind: *kind, name: (*name).to_owned() };
                let what = format!("{} of {of} nodes of {kind} {name} failed: {cause}", nodes.len());
                (Reason::Shared(shared), what)
            }
            Place::Job(attempt) => {
                let attempt = &self.history.attempts[attempt];
                let what =
                    format!("{} of {of} nodes of job {} failed with it: {cause}", nodes.len(), attempt.job);
                (Reason::Job { job: attempt.job, attempt: attempt.attempt }, what)
            }
            Place::User(uid) => {
                let what = format!("{} of {of} nodes with jobs of user {uid} failed: {cause}", nodes.len());
                (Reason::User { uid }, what)
            }
        };
        Incident { reason, cause, nodes, of, start, end, what }
    }
}

/// Number of different nodes.
fn distinct(nodes: impl Iterator<Item = usize>) -> usize {
    let mut nodes: Vec<usize> = nodes.collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes.len()
}

impl<'a> Fleet<'a> {
    fn of(history: &'a History) -> Fleet<'a> {
        /// Nodes that came and went, by time.
        type Changes = BTreeMap<UnixMillis, (usize, usize)>;
        let mut changes: HashMap<(SharedKind, &str), Changes> = HashMap::new();
        let all = || history.nodes.iter().map(Node::shared_when);
        for (shared, from, to) in all().flatten() {
            let of = changes.entry(shared).or_default();
            of.entry(from).or_default().0 += 1;
            if let Some(to) = to {
                of.entry(to).or_default().1 += 1;
            }
        }
        let steps = |changes: Changes| {
            let mut nodes = 0;
            let step = |(time, (more, fewer)): (UnixMillis, (usize, usize))| {
                // No node leaves before it came.
                nodes = nodes + more - fewer;
                (time, nodes)
            };
            changes.into_iter().map(step).collect()
        };
        let mut numbers: HashMap<(SharedKind, &str), usize> = HashMap::new();
        let (mut shared, mut kinds) = (Vec::new(), BTreeMap::new());
        for ((kind, name), changes) in changes.into_iter().collect::<BTreeMap<_, _>>() {
            numbers.insert((kind, name), shared.len());
            shared.push(Part { kind, name, nodes: steps(changes) });
            *kinds.entry(kind).or_insert(0) += 1;
        }
        let in_use =
            |(shared, from, to)| numbers.get(&shared).map(|number| Use { number: *number, from, to });
        let of_node = all().map(|of_node| of_node.filter_map(in_use).collect()).collect();
        Fleet { shared, of_node, kinds }
    }
}

impl Use {
    fn contains(self, time: UnixMillis) -> bool {
        self.from <= time && self.to.is_none_or(|to| time < to)
    }
}

impl Part<'_> {
    /// Number of nodes that share it at a time.
    fn nodes(&self, time: UnixMillis) -> usize {
        let later = self.nodes.partition_point(|(from, _)| *from <= time);
        self.nodes[..later].last().map_or(0, |(_, nodes)| *nodes)
    }
}

/// Where a fault could belong: to what its node shares and that can show this cause, and to jobs that failed with it.
fn places_of(history: &History, settings: &Settings, fleet: &Fleet<'_>, fault: &Fault) -> BTreeSet<Place> {
    let mut places = BTreeSet::new();
    for Use { number, .. } in fleet.of_node[fault.node].iter().filter(|shared| shared.contains(fault.time)) {
        let Part { kind, name, .. } = fleet.shared[*number];
        // A node with eight rails has eight leaf switches: the port that failed names one.
        let is_other_leaf =
            kind == SharedKind::Leaf && !fault.leafs.is_empty() && !fault.leafs.contains(name);
        if kind.explains(fault.cause) && !is_other_leaf {
            places.insert(Place::Shared(*number));
        }
    }
    for attempt in &fault.attempts {
        // A job that was cancelled or completed can leave its nodes unable to end it: only around its end.
        let is_possible = |known: &crate::Attempt| {
            known.end.is_none_or(|(end, _)| {
                has_failed(known) || (end.saturating_sub(settings.before_end)..).contains(&fault.time)
            })
        };
        if history.attempts.get(*attempt).is_some_and(is_possible) {
            places.insert(Place::Job(*attempt));
            places.extend(history.attempts.get(*attempt).map(|attempt| Place::User(attempt.uid)));
        }
    }
    places
}

/// Faults of each place by blocks.
fn blocks(
    places: &BTreeMap<Place, Vec<usize>>,
    settings: &Settings,
    fleet: &Fleet<'_>,
    faults: &[Fault],
) -> Vec<Block> {
    let mut blocks = Vec::new();
    let fewest = settings.fewest_nodes.min(FEWEST_NODES_OF_JOB);
    for (place, of_place) in places {
        // An image explains nearly all causes, and so two failures at once that have nothing in common: one cause at a time.
        let is_image = |number: usize| fleet.shared[number].kind == SharedKind::Image;
        let by_cause = matches!(place, Place::Shared(number) if is_image(*number));
        let mut groups: BTreeMap<Option<Cause>, Vec<usize>> = BTreeMap::new();
        for fault in of_place {
            let cause = by_cause.then_some(faults[*fault].cause);
            groups.entry(cause).or_default().push(*fault);
        }
        for group in groups.into_values() {
            let parts = without_pauses(group, settings, faults).into_iter();
            // Most have a single fault, which is no cluster.
            let large = parts.filter(|faults| faults.len() >= fewest);
            blocks.extend(large.map(|faults| Block { place: *place, faults }));
        }
    }
    blocks
}

/// Splits faults, which are sorted by time, at pauses that are too long for one cause.
fn without_pauses(of: Vec<usize>, settings: &Settings, faults: &[Fault]) -> Vec<Vec<usize>> {
    let is_near = |one: &usize, next: &usize| faults[*next].time <= faults[*one].time + settings.together;
    of.chunk_by(is_near).map(<[usize]>::to_vec).collect()
}

/// The cluster with the largest gain, and its block; of equal ones that of the first place.
fn best(clusters: &BTreeMap<usize, Vec<Cluster>>) -> Option<(usize, Cluster)> {
    let mut best: Option<(usize, &Cluster)> = None;
    for (block, of_block) in clusters {
        for cluster in of_block {
            if best.is_none_or(|(_, known)| cluster.gain > known.gain + 1e-9) {
                best = Some((*block, cluster));
            }
        }
    }
    best.map(|(block, cluster)| (block, cluster.clone()))
}

/// Logarithm of the likelihood ratio: `failed` of `of` nodes with their own share against the share that chance makes.
fn gain(failed: f64, of: f64, chance: f64) -> f64 {
    let share = failed / of;
    if share <= chance {
        return 0.0;
    }
    let spared = of - failed;
    let of_spared = if spared > 0.0 { spared * ((1.0 - share) / (1.0 - chance)).ln() } else { 0.0 };
    failed * (share / chance).ln() + of_spared
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gain_grows_with_the_share_that_failed() {
        let chance = 7e-5;
        let leaf = gain(32.0, 32.0, chance);
        let fleet = gain(32.0, 1000.0, chance);
        assert!(leaf > fleet && fleet > 0.0, "{leaf} {fleet}");
        // 28 of a leaf's 32 nodes, 16 of which fill a rack.
        assert!(gain(28.0, 32.0, chance) > gain(16.0, 16.0, chance));
        // A job with 20 nodes under a leaf of 32.
        assert!(gain(20.0, 20.0, chance) > gain(20.0, 32.0, chance));
        assert_eq!(gain(0.0, 32.0, chance), 0.0);
    }
}
