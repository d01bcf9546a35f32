//! Groups nodes that share their leaf switches, and finds ports on other switches than those of their neighbours.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use railgate_text::natural;
use serde::Serialize;

use crate::name::style;
use crate::wiring::Wiring;

/// Identifies an HCA port, to match the ports of different nodes and to order those of one node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// Rail of the port in the site's table.
    Rail(usize),
    /// Name and port.
    Named(Vec<(String, u64)>, u8),
}

impl Key {
    /// Returns `None` for a port that the site's table leaves out.
    pub(crate) fn of(hca: &str, port: u8, wiring: &Wiring) -> Option<Self> {
        if wiring.rail.is_empty() {
            return Some(Key::Named(natural(hca), port));
        }
        wiring.rail_of(hca, port).map(Key::Rail)
    }

    /// Keys of one style can be compared between nodes. With the site's table, all keys have one style.
    fn style(&self) -> String {
        match self {
            Key::Rail(_) => String::new(),
            Key::Named(name, _) => style(name),
        }
    }
}

/// The position of an HCA port.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    pub(crate) hca: String,
    pub(crate) port: u8,
    /// Index of the leaf switch.
    pub(crate) leaf: usize,
    pub(crate) leaf_port: LeafPort,
}

/// A port of a leaf switch: a number for InfiniBand, a name for Ethernet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum LeafPort {
    /// Number from 1.
    Number(u8),
    /// For example `Ethernet1/5`.
    Name(String),
}

impl std::fmt::Display for LeafPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LeafPort::Number(number) => number.fmt(f),
            LeafPort::Name(name) => name.fmt(f),
        }
    }
}

pub(crate) type Nodes = BTreeMap<String, BTreeMap<Key, Seat>>;

/// The ports of a node with the leaf switch of each.
type Signature<'a> = Vec<(&'a Key, usize)>;

/// Nodes on the same leaf switches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unit {
    /// Name of the leaf switch if there is only one, otherwise `unit-N`.
    pub name: String,
    /// Names of the nodes, sorted.
    pub nodes: Vec<String>,
    /// Leaf switch of each rail, in rail order.
    pub rails: Vec<Expected>,
    /// Each rail has its own leaf switch.
    pub by_rail: bool,
}

/// The expected position of a rail's port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Expected {
    /// Rail from 0.
    pub rail: usize,
    /// Name of the HCA on the first node that has it; empty if node descriptions only have the host name.
    pub hca: String,
    /// Port of the HCA.
    pub port: u8,
    /// Leaf switch; `None` if none has more than half of the nodes.
    pub leaf: Option<String>,
}

/// The kind of a wiring fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// The cable leads to another leaf switch than it should.
    WrongLeaf,
    /// The port has no link, but those of the node's neighbours have.
    NoLink,
    /// The nodes disagree, and no leaf switch has more than half of them; or the port may be one that the text lacks or
    /// does not name.
    Undecided,
}

/// A port with a wiring fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// The kind of fault.
    pub kind: FaultKind,
    /// The node; empty if all nodes of the unit are undecided.
    pub node: String,
    /// Its HCA.
    pub hca: String,
    /// Port of the HCA.
    pub port: u8,
    /// Actual leaf switch.
    pub leaf: Option<String>,
    /// Port of that leaf switch.
    pub leaf_port: Option<LeafPort>,
    /// Expected leaf switch; several if the site's table allows several.
    pub should: Vec<String>,
    /// Rail from 0.
    pub rail: usize,
    /// The port that is in its place, for example `gn3 mlx5_5 port 1`.
    pub swapped_with: Option<String>,
    /// Description in one line.
    pub text: String,
}

/// A unit under construction.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) nodes: Vec<String>,
    /// The ports that more than half of the nodes with names of the same style have, with the leaf switch that has more
    /// than half of these.
    pub(crate) leafs: BTreeMap<Key, Option<usize>>,
}

impl Group {
    /// The rail of each port in `leafs`: its index among the names of its style.
    pub(crate) fn rails(&self) -> BTreeMap<&Key, usize> {
        let mut places: BTreeMap<String, usize> = BTreeMap::new();
        let mut rails = BTreeMap::new();
        for key in self.leafs.keys() {
            let place = places.entry(key.style()).or_default();
            let rail = if let Key::Rail(rail) = key { *rail } else { *place };
            *place += 1;
            rails.insert(key, rail);
        }
        rails
    }

    /// Whether each port of a node has its own leaf switch.
    fn by_rail(&self) -> bool {
        let mut styles: BTreeMap<String, Vec<Option<usize>>> = BTreeMap::new();
        for (key, leaf) in &self.leafs {
            styles.entry(key.style()).or_default().push(*leaf);
        }
        let apart =
            |leafs: &Vec<Option<usize>>| leafs.iter().flatten().collect::<BTreeSet<_>>().len() == leafs.len();
        styles.values().all(apart) && styles.values().any(|leafs| leafs.len() > 1)
    }
}

/// Gaps of the text. Because of them, a port that seems to have no link may have one.
#[derive(Debug, Default)]
pub(crate) struct Gaps {
    /// HCAs without a node name, by leaf switch.
    pub(crate) unnamed: BTreeMap<usize, usize>,
    /// Number of devices without a record, as in a truncated text.
    pub(crate) unrecorded: usize,
}

/// Groups nodes into units. A node belongs to a unit with which it shares more than half of its leaf switches, so that
/// a few wrong cables do not change its unit.
pub(crate) fn groups(nodes: &Nodes) -> Vec<Group> {
    let mut same: BTreeMap<Signature<'_>, Vec<&String>> = BTreeMap::new();
    for (name, seats) in nodes {
        let signature: Vec<_> = seats.iter().map(|(key, seat)| (key, seat.leaf)).collect();
        if !signature.is_empty() {
            same.entry(signature).or_default().push(name);
        }
    }
    let mut order: Vec<_> = same.into_iter().collect();
    // The most common signatures come first, since the majority determines what is right.
    order.sort_by_key(|(_, members)| (std::cmp::Reverse(members.len()), members.first().copied()));
    let mut found: Vec<(Signature<'_>, Vec<String>)> = Vec::new();
    let mut on_leaf: HashMap<usize, Vec<usize>> = HashMap::new();
    for (signature, members) in order {
        // Upper bound of the leaf switches shared with each unit, which rules out most units quickly.
        let mut near: BTreeMap<usize, usize> = BTreeMap::new();
        for at in signature.iter().filter_map(|(_, leaf)| on_leaf.get(leaf)).flatten() {
            *near.entry(*at).or_default() += 1;
        }
        let best = near
            .into_iter()
            .filter(|(_, most)| most * 2 > signature.len())
            .filter_map(|(at, _)| {
                let other = &found.get(at)?.0;
                let shared = shared(&signature, other);
                let agreed = signature.iter().filter(|seat| other.contains(seat)).count();
                let most = signature.len().max(other.len());
                (shared * 2 > most).then_some((shared, agreed, std::cmp::Reverse(at)))
            })
            .max();
        let at = match best {
            Some((_, _, std::cmp::Reverse(at))) => at,
            None => {
                for (_, leaf) in &signature {
                    let units = on_leaf.entry(*leaf).or_default();
                    if units.last() != Some(&found.len()) {
                        units.push(found.len());
                    }
                }
                found.push((signature, Vec::new()));
                found.len() - 1
            }
        };
        if let Some((_, unit)) = found.get_mut(at) {
            unit.extend(members.into_iter().cloned());
        }
    }
    let mut groups: Vec<Group> = found
        .into_iter()
        .map(|(_, members)| Group { leafs: majority(nodes, &members), nodes: members })
        .collect();
    for group in &mut groups {
        group.nodes.sort_by_key(|name| natural(name));
    }
    groups.sort_by_key(|group| group.nodes.first().map(|name| natural(name)));
    groups
}

/// Number of leaf switches that two signatures share, counted with multiplicity.
fn shared(one: &[(&Key, usize)], other: &[(&Key, usize)]) -> usize {
    let sorted = |seats: &[(&Key, usize)]| {
        let mut leafs: Vec<usize> = seats.iter().map(|(_, leaf)| *leaf).collect();
        leafs.sort_unstable();
        leafs
    };
    let (one, mut other) = (sorted(one), sorted(other).into_iter().peekable());
    one.into_iter()
        .filter(|leaf| {
            while other.next_if(|next| next < leaf).is_some() {}
            other.next_if_eq(leaf).is_some()
        })
        .count()
}

fn majority(nodes: &Nodes, members: &[String]) -> BTreeMap<Key, Option<usize>> {
    let mut votes: BTreeMap<Key, BTreeMap<usize, usize>> = BTreeMap::new();
    let mut users: BTreeMap<String, usize> = BTreeMap::new();
    for seats in members.iter().filter_map(|name| nodes.get(name)) {
        for style in seats.keys().map(Key::style).collect::<BTreeSet<_>>() {
            *users.entry(style).or_default() += 1;
        }
        for (key, seat) in seats {
            *votes.entry(key.clone()).or_default().entry(seat.leaf).or_default() += 1;
        }
    }
    votes
        .into_iter()
        .filter_map(|(key, votes)| {
            let all: usize = votes.values().sum();
            let most = votes.iter().find(|(_, count)| **count * 2 > all).map(|(leaf, _)| *leaf);
            let users = match key {
                Key::Rail(_) => members.len(),
                Key::Named(..) => users.get(&key.style()).copied().unwrap_or_default(),
            };
            // A single node with names of a style cannot be compared with others.
            let compared = users > 1 || users * 2 >= members.len();
            (compared && all * 2 > users).then_some((key, most))
        })
        .collect()
}

/// The ports of the unit that a node lacks, without those that it has under another name.
fn lacking<'a>(group: &'a Group, seats: &BTreeMap<Key, Seat>) -> BTreeSet<&'a Key> {
    let styles: BTreeSet<String> = seats.keys().map(Key::style).collect();
    let mut others: Vec<(&Key, &Seat)> =
        seats.iter().filter(|(key, _)| !group.leafs.contains_key(key)).collect();
    let mut lacking: Vec<&Key> = group.leafs.keys().filter(|key| !seats.contains_key(key)).collect();
    lacking.retain(|key| matches!(key, Key::Rail(_)) || styles.contains(&key.style()));
    // First the ports of the leaf switch on which this port should be, then those with names that cannot be compared.
    lacking.retain(|key| {
        let leaf = group.leafs.get(*key).copied().flatten();
        let found = others.iter().position(|(_, seat)| Some(seat.leaf) == leaf);
        found.map(|at| others.remove(at)).is_none()
    });
    lacking.retain(|key| {
        let found = others.iter().position(|(other, _)| other.style() != key.style());
        found.map(|at| others.remove(at)).is_none()
    });
    lacking.into_iter().collect()
}

/// Returns the units and their faults. `names` maps the indices of switches.
pub(crate) fn judge(
    nodes: &Nodes,
    groups: &[Group],
    names: &BTreeMap<usize, String>,
    wiring: &Wiring,
    gaps: &Gaps,
) -> (Vec<Unit>, Vec<Fault>) {
    let named = |leaf: usize| names.get(&leaf).cloned().unwrap_or_default();
    let unnamed: BTreeMap<String, usize> =
        gaps.unnamed.iter().map(|(leaf, count)| (named(*leaf), *count)).collect();
    let mut units = Vec::new();
    let mut faults = Vec::new();
    for (number, group) in groups.iter().enumerate() {
        let leafs: BTreeSet<usize> = group.leafs.values().flatten().copied().collect();
        let mut unit = Unit {
            name: match leafs.iter().collect::<Vec<_>>()[..] {
                [leaf] => named(*leaf),
                _ => format!("unit-{}", number + 1),
            },
            nodes: group.nodes.clone(),
            rails: Vec::new(),
            by_rail: group.by_rail(),
        };
        let none = BTreeMap::new();
        let seats = |name: &String| nodes.get(name).unwrap_or(&none);
        let lacking: BTreeMap<&String, BTreeSet<&Key>> =
            group.nodes.iter().map(|name| (name, lacking(group, seats(name)))).collect();
        for (key, rail) in group.rails() {
            let leaf = group.leafs.get(key).copied().flatten();
            let seat = group.nodes.iter().find_map(|name| nodes.get(name)?.get(key));
            let (hca, port) = seat.map_or_else(Default::default, |seat| (seat.hca.clone(), seat.port));
            let expected = Expected { rail, hca, port, leaf: leaf.map(named) };
            let allowed = match key {
                Key::Rail(rail) => wiring.rail.get(*rail).map(|rail| &rail.leafs[..]).unwrap_or_default(),
                Key::Named(..) => &[],
            };
            if leaf.is_none() && allowed.is_empty() {
                faults.push(undecided(group, nodes, key, &expected, &named));
            }
            for name in &group.nodes {
                let seat = seats(name).get(key);
                if seat.is_none() && !lacking.get(name).is_some_and(|keys| keys.contains(key)) {
                    continue;
                }
                let mut fault = fault(name, seat, &expected, allowed, &named);
                if let Some(fault) = fault.as_mut().filter(|fault| fault.kind == FaultKind::NoLink) {
                    doubt(fault, &unnamed, gaps.unrecorded);
                }
                faults.extend(fault);
            }
            unit.rails.push(expected);
        }
        units.push(unit);
    }
    pair(&mut faults);
    (units, faults)
}

/// A missing link is undecided if an HCA without a node name, or a switch without a record, may have it.
fn doubt(fault: &mut Fault, unnamed: &BTreeMap<String, usize>, unrecorded: usize) {
    let near: usize = match fault.should[..] {
        [] => unnamed.values().sum(),
        _ => fault.should.iter().filter_map(|leaf| unnamed.get(leaf)).sum(),
    };
    let s = |count: usize| if count == 1 { "" } else { "s" };
    let why = match (near, unrecorded) {
        (0, 0) => return,
        (0, devices) => format!("the text is incomplete: {devices} device{} without a record", s(devices)),
        (hcas, _) => format!("{hcas} HCA{} there without a node's name may be it", s(hcas)),
    };
    fault.kind = FaultKind::Undecided;
    fault.text.push_str(&format!("; {why}"));
}

fn fault(
    node: &str,
    seat: Option<&Seat>,
    expected: &Expected,
    allowed: &[String],
    named: &impl Fn(usize) -> String,
) -> Option<Fault> {
    let right = expected.leaf.as_ref().filter(|leaf| allowed.is_empty() || allowed.contains(leaf));
    let should = right.map_or_else(|| allowed.to_vec(), |leaf| vec![leaf.clone()]);
    let leaf = seat.map(|seat| named(seat.leaf));
    let fits = match &leaf {
        Some(leaf) => should.is_empty() || should.contains(leaf),
        None => false,
    };
    if fits {
        return None;
    }
    let (hca, port) = seat.map_or((expected.hca.as_str(), expected.port), |seat| (&seat.hca, seat.port));
    let rail = expected.rail;
    let place = if should.is_empty() { "some leaf".to_owned() } else { should.join(" or ") };
    let of = port_of(node, hca, port);
    let text = match (&leaf, seat) {
        (Some(leaf), Some(seat)) => {
            format!("{of} is on {leaf} port {}, should be on {place} (rail {rail})", seat.leaf_port)
        }
        _ => format!("{of} has no link, should be on {place} (rail {rail})"),
    };
    Some(Fault {
        kind: if leaf.is_some() { FaultKind::WrongLeaf } else { FaultKind::NoLink },
        node: node.to_owned(),
        hca: hca.to_owned(),
        port,
        leaf,
        leaf_port: seat.map(|seat| seat.leaf_port.clone()),
        should,
        rail,
        swapped_with: None,
        text,
    })
}

/// Formats for example `gn3 mlx5_2 port 1`, or `gn3 port 1` if the HCA has no name.
fn port_of(node: &str, hca: &str, port: u8) -> String {
    let words = [node, hca].into_iter().filter(|word| !word.is_empty());
    words.map(|word| format!("{word} ")).collect::<String>() + &format!("port {port}")
}

fn undecided(
    group: &Group,
    nodes: &Nodes,
    key: &Key,
    expected: &Expected,
    named: &impl Fn(usize) -> String,
) -> Fault {
    let seats = group.nodes.iter().filter_map(|name| Some((name, nodes.get(name)?.get(key)?)));
    let said: Vec<String> =
        seats.clone().take(4).map(|(node, seat)| format!("{node} on {}", named(seat.leaf))).collect();
    let more = seats.count().saturating_sub(said.len());
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    let Expected { rail, hca, port, .. } = expected;
    let text = format!(
        "rail {rail} ({}): the nodes disagree, and no leaf has more than half: {}{more}",
        port_of("", hca, *port),
        said.join(", ")
    );
    Fault {
        kind: FaultKind::Undecided,
        node: String::new(),
        hca: hca.clone(),
        port: *port,
        leaf: None,
        leaf_port: None,
        should: Vec::new(),
        rail: *rail,
        swapped_with: None,
        text,
    }
}

/// Finds pairs of ports that are in each other's place, those of one node first.
fn pair(faults: &mut [Fault]) {
    let mut waiting: BTreeMap<(String, String), Vec<usize>> = BTreeMap::new();
    for (at, fault) in faults.iter().enumerate() {
        if let (Some(leaf), [should]) = (&fault.leaf, &fault.should[..]) {
            waiting.entry((leaf.clone(), should.clone())).or_default().push(at);
        }
    }
    for at in 0..faults.len() {
        let Some(fault) = faults.get(at) else { continue };
        let (Some(leaf), [should], None) = (&fault.leaf, &fault.should[..], &fault.swapped_with) else {
            continue;
        };
        let others = waiting.get(&(should.clone(), leaf.clone()));
        let free: Vec<usize> = others.into_iter().flatten().copied().filter(|other| *other != at).collect();
        let node = &fault.node;
        let own = free.iter().find(|other| faults.get(**other).is_some_and(|other| other.node == *node));
        // If several ports of other nodes match, the pair is unclear.
        let Some(other) = own.copied().or(match free[..] {
            [only] => Some(only),
            _ => None,
        }) else {
            continue;
        };
        let label = |at: usize| faults.get(at).map(|f| port_of(&f.node, &f.hca, f.port));
        for (at, with) in [(at, label(other)), (other, label(at))] {
            if let (Some(fault), Some(with)) = (faults.get_mut(at), with)
                && fault.swapped_with.is_none()
            {
                fault.text.push_str(&format!("; {with} is in its place"));
                fault.swapped_with = Some(with);
            }
        }
    }
}
