//! Places from the topology of the whole cluster, as `scontrol show topology` prints it or as `topology.conf` has it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use railgate_text::shorten;

use super::place::{MAX_DEPTH, Place, SwitchPath};

/// The longest text that is read, bytes. A line has some 100 bytes for each switch.
pub const MAX_TOPOLOGY: usize = 8 << 20;

/// Most pairs of node and switch, or of switch and parent.
const MAX_PAIRS: usize = 1 << 20;

/// Expands a host list, for example `gn[1-3]`; `None` if it is invalid.
pub type Hostlist<'a> = &'a dyn Fn(&str) -> Option<Vec<String>>;

/// The kind of a topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Switches.
    Tree,
    /// Blocks, and blocks of blocks.
    Block,
    /// Rings of nodes.
    Ring,
    /// Tori. The places of their nodes are not read.
    Torus,
}

/// Places of the nodes of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    shape: Option<Shape>,
    paths: HashMap<String, SwitchPath>,
}

impl Topology {
    /// Returns the kind, `None` if the cluster has no topology.
    pub fn shape(&self) -> Option<Shape> {
        self.shape
    }

    /// Returns the places of these nodes, in the same order.
    pub fn places<S: AsRef<str>>(&self, nodes: &[S]) -> Vec<Place> {
        let place = |node: &S| self.paths.get(node.as_ref()).cloned().map_or(Place::Unknown, Place::Known);
        nodes.iter().map(place).collect()
    }
}

/// A text that is no topology.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTopology {
    /// More than 8 MiB, or more than a million pairs of node and switch.
    #[error("the topology is too large")]
    TooLarge,
    /// A line that has no known form.
    #[error("line {number} of the topology: '{line}'")]
    Line {
        /// From 1.
        number: usize,
        /// The text.
        line: String,
    },
    /// An invalid list of nodes or switches.
    #[error("'{0}' is not a host list")]
    Hostlist(String),
    /// Two switches or blocks of one name.
    #[error("'{0}' is in the topology twice")]
    Twice(String),
    /// A switch above itself, more than 16 tiers, or a name that no switch has.
    #[error("switches above '{0}': a loop, too many tiers, or an invalid name")]
    Above(String),
    /// No topology of this name, or several and none that is the default.
    #[error("no topology '{0}'")]
    NoSuch(String),
}

/// A switch, block or ring as a source has it.
#[derive(Clone, Debug, Default)]
pub(super) struct Record {
    pub(super) name: String,
    pub(super) nodes: Option<String>,
    pub(super) children: Option<String>,
    /// Blocks: set for a block of blocks, with the number of its nodes.
    pub(super) aggregated: Option<u32>,
}

/// Parses the lines of `scontrol show topology`, which are the same for a cluster with `topology.conf` and with `topology.yaml`, or of
/// `topology.conf` itself. An empty text is a cluster without topology.
///
/// One call serves all nodes of a job: `scontrol show topology`, or with the name of the partition's `Topology=` from 25.05 on. Each user may
/// make it. It must run without `SLURM_TOPO_LEN` in its environment, which truncates lines.
///
/// # Errors
/// [`BadTopology`]; then no place is known.
pub fn topology_lines(text: &str, hostlist: Hostlist<'_>) -> Result<Topology, BadTopology> {
    if text.len() > MAX_TOPOLOGY {
        return Err(BadTopology::TooLarge);
    }
    let mut shape = None;
    let mut records = Vec::new();
    // `topology.conf` continues a line that ends with a backslash.
    let text = text.replace("\\\n", " ");
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let bad = || BadTopology::Line { number: number + 1, line: shorten(line, 80) };
        let mut fields = line.split_whitespace().map(|field| field.split_once('='));
        let (key, name) = match fields.next() {
            None => continue,
            Some(first) => first.ok_or_else(bad)?,
        };
        let key = key.to_ascii_lowercase();
        let of = match key.as_str() {
            "switchname" => Shape::Tree,
            "blockname" | "aggregatedblock" => Shape::Block,
            "ringname" => Shape::Ring,
            "torusname" => Shape::Torus,
            "blocksizes" => continue,
            _ => return Err(bad()),
        };
        if shape.is_some_and(|shape| shape != of) || name.is_empty() {
            return Err(bad());
        }
        shape = Some(of);
        let mut record = Record { name: name.to_owned(), ..Record::default() };
        for field in fields {
            let (field, value) = field.ok_or_else(bad)?;
            match field.to_ascii_lowercase().as_str() {
                "nodes" => record.nodes = Some(value.to_owned()),
                "switches" => record.children = Some(value.to_owned()),
                "blocksize" if key == "aggregatedblock" => {
                    record.aggregated = Some(value.parse().map_err(|_| bad())?);
                }
                _ => {}
            }
        }
        if key == "aggregatedblock" && record.aggregated.is_none() {
            return Err(bad());
        }
        records.push(record);
    }
    shape.map_or_else(|| Ok(Topology::default()), |shape| build(shape, &records, hostlist))
}

/// Makes the places from all records of a topology.
pub(super) fn build(
    shape: Shape,
    records: &[Record],
    hostlist: Hostlist<'_>,
) -> Result<Topology, BadTopology> {
    let mut names = HashSet::new();
    // Each torus has a line for itself and one for each of its placements.
    for record in records.iter().filter(|_| shape != Shape::Torus) {
        if !names.insert((record.aggregated.is_some(), record.name.as_str())) {
            return Err(BadTopology::Twice(shorten(&record.name, 80)));
        }
    }
    let paths = match shape {
        Shape::Tree => tree(records, hostlist)?,
        Shape::Block | Shape::Ring => blocks(records, hostlist)?,
        Shape::Torus => HashMap::new(),
    };
    Ok(Topology { shape: Some(shape), paths })
}

fn expand(list: &str, pairs: &mut usize, hostlist: Hostlist<'_>) -> Result<Vec<String>, BadTopology> {
    let names = hostlist(list).ok_or_else(|| BadTopology::Hostlist(shorten(list, 80)))?;
    *pairs += names.len();
    if *pairs > MAX_PAIRS { Err(BadTopology::TooLarge) } else { Ok(names) }
}

/// A node may have several leafs, and a switch several parents, as in a fat tree. All switches that a node can reach in a tier then
/// are one switch of its path, as in `SLURM_TOPOLOGY_ADDR`.
fn tree(records: &[Record], hostlist: Hostlist<'_>) -> Result<HashMap<String, SwitchPath>, BadTopology> {
    let mut pairs = 0;
    let mut parents: HashMap<String, BTreeSet<&str>> = HashMap::new();
    let mut leafs: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for record in records {
        // A switch above others also lists the nodes of all of them.
        let (list, above) = match (&record.children, &record.nodes) {
            (Some(children), _) => (expand(children, &mut pairs, hostlist)?, true),
            (None, Some(nodes)) => (expand(nodes, &mut pairs, hostlist)?, false),
            (None, None) => continue,
        };
        for name in list {
            if above {
                parents.entry(name).or_default().insert(record.name.as_str());
            } else {
                leafs.entry(name).or_default().insert(record.name.as_str());
            }
        }
    }
    let mut seen: HashMap<BTreeSet<&str>, SwitchPath> = HashMap::new();
    let mut paths = HashMap::new();
    for (node, leafs) in leafs {
        let path = match seen.get(&leafs) {
            Some(path) => path.clone(),
            None => {
                let path = above(&leafs, &parents)?;
                seen.insert(leafs, path.clone());
                path
            }
        };
        paths.insert(node, path);
    }
    Ok(paths)
}

fn above(
    leafs: &BTreeSet<&str>,
    parents: &HashMap<String, BTreeSet<&str>>,
) -> Result<SwitchPath, BadTopology> {
    let joined = |tier: &BTreeSet<&str>| tier.iter().copied().collect::<Vec<_>>().join(",");
    let mut path = Vec::new();
    let mut tier = leafs.clone();
    while !tier.is_empty() && path.len() <= MAX_DEPTH {
        path.push(joined(&tier));
        tier = tier.iter().filter_map(|switch| parents.get(*switch)).flatten().copied().collect();
    }
    path.reverse();
    SwitchPath::new(path).ok_or_else(|| BadTopology::Above(shorten(&joined(leafs), 80)))
}

fn blocks(records: &[Record], hostlist: Hostlist<'_>) -> Result<HashMap<String, SwitchPath>, BadTopology> {
    let mut pairs = 0;
    // Of each node: blocks of blocks by size, the largest first, and its own blocks.
    let mut above: HashMap<String, BTreeSet<(std::cmp::Reverse<u32>, &str)>> = HashMap::new();
    let mut own: HashMap<String, Vec<&str>> = HashMap::new();
    for record in records {
        let Some(nodes) = &record.nodes else { continue };
        for node in expand(nodes, &mut pairs, hostlist)? {
            match record.aggregated {
                Some(size) => {
                    above.entry(node).or_default().insert((std::cmp::Reverse(size), record.name.as_str()));
                }
                None => own.entry(node).or_default().push(record.name.as_str()),
            }
        }
    }
    let mut paths = HashMap::new();
    for (node, own) in own {
        // Slurm has no node in two blocks. If a text has one, nothing is known of it.
        let [own] = own[..] else { continue };
        let above = above.get(&node).into_iter().flatten().map(|(_, name)| *name);
        let path = above.chain([own]).map(str::to_owned).collect();
        let path = SwitchPath::new(path).ok_or_else(|| BadTopology::Above(shorten(own, 80)))?;
        paths.insert(node, path);
    }
    Ok(paths)
}

#[cfg(test)]
mod tests;
