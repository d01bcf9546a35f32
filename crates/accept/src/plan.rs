//! The plan of an acceptance, from TOML.

use std::collections::BTreeSet;
use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;

use crate::stages::{STAGES, Unit};

/// Most nodes of a plan.
const MOST_NODES: usize = 4096;
/// Most units of a plan: each is a job and a line of the report.
const MOST_UNITS: usize = 20_000;

/// Expands a list of nodes such as `gn[1-4]`.
pub type Expand<'a> = &'a dyn Fn(&str) -> Result<Vec<String>, String>;

/// An error in a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadPlan {
    /// Line, from 1.
    pub line: usize,
    /// The problem, with the key.
    pub why: String,
}

/// A number from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Within<const MIN: u32, const MAX: u32>(pub(crate) u32);

impl<'de, const MIN: u32, const MAX: u32> Deserialize<'de> for Within<MIN, MAX> {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let number = i64::deserialize(from)?;
        let wrong = || serde::de::Error::custom(format!("{number} is not between {MIN} and {MAX}"));
        let number = u32::try_from(number).map_err(|_| wrong())?;
        if (MIN..=MAX).contains(&number) { Ok(Within(number)) } else { Err(wrong()) }
    }
}

/// A positive number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Positive(pub(crate) f64);

impl<'de> Deserialize<'de> for Positive {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let number = f64::deserialize(from)?;
        if number.is_finite() && number > 0.0 {
            Ok(Positive(number))
        } else {
            Err(serde::de::Error::custom(format!("{number} is not above 0")))
        }
    }
}

/// An absolute path without characters that a command line could not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Absolute(pub(crate) String);

impl<'de> Deserialize<'de> for Absolute {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let path = String::deserialize(from)?;
        if path.starts_with('/') && !path.chars().any(char::is_control) {
            Ok(Absolute(path))
        } else {
            Err(serde::de::Error::custom(format!("'{path}' is not an absolute path")))
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGroup {
    name: Spanned<String>,
    nodes: Spanned<String>,
}

/// A limit of a figure, with its source.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Expect {
    /// Id of the figure, for example `node.gemm-rate-bf16.rate_tflops`.
    pub(crate) figure: String,
    pub(crate) min: Option<f64>,
    pub(crate) max: Option<f64>,
    /// Where the limit comes from, for example `contract, table 3`.
    pub(crate) source: String,
}

/// How often a stage is run, and how long one of its jobs may take.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Simple {
    #[serde(default = "once")]
    pub(crate) repetitions: Within<1, 10_000>,
    pub(crate) limit_min: Option<Within<1, 10_080>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Soak {
    #[serde(default = "once")]
    pub(crate) repetitions: Within<1, 10_000>,
    pub(crate) limit_min: Option<Within<1, 10_080>>,
    #[serde(default)]
    pub(crate) fault: Vec<Spanned<Fault>>,
}

/// A fault that is injected into a node before one of its rounds, and undone before the tests of that round.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fault {
    pub(crate) node: String,
    pub(crate) repetition: Within<1, 10_000>,
    /// A program with its arguments.
    pub(crate) inject: Vec<String>,
    pub(crate) undo: Vec<String>,
    /// The check that must find it.
    pub(crate) check: String,
}

impl Soak {
    pub(crate) fn simple(&self) -> Simple {
        Simple { repetitions: self.repetitions, limit_min: self.limit_min }
    }

    /// All faults, with their numbers from 1.
    pub(crate) fn faults(&self) -> impl Iterator<Item = (usize, &Fault)> {
        self.fault.iter().enumerate().map(|(place, fault)| (place + 1, fault.get_ref()))
    }

    /// Returns what is wrong with a fault.
    fn problem(&self, fault: &Fault, nodes: &[String]) -> Option<String> {
        let is_program = |words: &[String]| words.first().is_some_and(|program| program.starts_with('/'));
        if !nodes.contains(&fault.node) {
            Some(format!("soak.fault.node: {} is not in nodes", fault.node))
        } else if fault.repetition.0 > self.repetitions.0 {
            Some(format!("soak.fault.repetition: {} is above soak.repetitions", fault.repetition.0))
        } else if !is_program(&fault.inject) || !is_program(&fault.undo) {
            Some("soak.fault: inject and undo begin with the absolute path of a program".to_owned())
        } else {
            None
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pairs {
    #[serde(default = "once")]
    pub(crate) repetitions: Within<1, 10_000>,
    pub(crate) limit_min: Option<Within<1, 10_080>>,
    /// `auto`, `rdma` or `tcp`, as `railgate preflight --net`.
    #[serde(default)]
    pub(crate) net: Net,
    /// Also test by TCP.
    #[serde(default)]
    pub(crate) tcp_beside: bool,
    /// Also test each node with each other one, in jobs of two nodes.
    #[serde(default)]
    pub(crate) all_to_all: bool,
    pub(crate) expected_gbps: Option<Positive>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Net {
    #[default]
    Auto,
    Rdma,
    Tcp,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Storage {
    #[serde(default = "once")]
    pub(crate) repetitions: Within<1, 10_000>,
    pub(crate) limit_min: Option<Within<1, 10_080>>,
    /// Directories on the file systems to test; the test makes and removes its own directory in each.
    pub(crate) dirs: Vec<Absolute>,
    /// Written and read by each node, MiB.
    pub(crate) mib_per_node: Within<1, 1_048_576>,
    /// Created, looked up and removed by each node.
    #[serde(default = "thousand")]
    pub(crate) files_per_node: Within<1, 1_000_000>,
    /// Also run fio where it is installed: random reads and writes of 4 KiB for this many seconds each.
    pub(crate) fio_s: Option<Within<1, 3600>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Collectives {
    #[serde(default = "once")]
    pub(crate) repetitions: Within<1, 10_000>,
    pub(crate) limit_min: Option<Within<1, 10_080>>,
    /// `all_reduce_perf` of nccl-tests, built for MPI.
    pub(crate) program: Absolute,
    #[serde(default)]
    pub(crate) args: Vec<String>,
    /// Options of srun, for example `--mpi=pmix`.
    #[serde(default)]
    pub(crate) srun: Vec<String>,
    pub(crate) tasks_per_node: Within<1, 128>,
    /// Bus bandwidth that each size should reach.
    #[serde(default)]
    pub(crate) baseline: Vec<Baseline>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Baseline {
    pub(crate) bytes: u64,
    pub(crate) busbw_gb_s: Positive,
    pub(crate) source: String,
}

fn once<const MIN: u32, const MAX: u32>() -> Within<MIN, MAX> {
    Within(1)
}

fn thousand() -> Within<1, 1_000_000> {
    Within(1000)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    title: String,
    nodes: Spanned<String>,
    #[serde(default)]
    sbatch: Vec<String>,
    attempts: Option<Within<1, 100>>,
    wait_s: Option<Within<0, 604_800>>,
    jobs_at_once: Option<Within<1, 4096>>,
    #[serde(default)]
    machine: Vec<RawGroup>,
    #[serde(default)]
    leaf: Vec<RawGroup>,
    #[serde(default)]
    expect: Vec<Spanned<Expect>>,
    inventory: Option<Simple>,
    node: Option<Simple>,
    pairs: Option<Pairs>,
    storage: Option<Spanned<Storage>>,
    collectives: Option<Collectives>,
    soak: Option<Soak>,
}

/// A named group of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Its nodes.
    pub nodes: Vec<String>,
}

/// A plan without errors.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Title of the report.
    pub title: String,
    /// All nodes, in the order of the plan.
    pub nodes: Vec<String>,
    /// More options of sbatch.
    pub sbatch: Vec<String>,
    /// How often a unit whose job was lost is submitted, at most.
    pub attempts: u32,
    /// How long a unit waits for nodes that are not available, seconds.
    pub wait_s: u32,
    /// Most jobs in the queue at a time.
    pub jobs_at_once: u32,
    /// Machine types: nodes of one type must be equal.
    pub machines: Vec<Group>,
    /// Nodes under one leaf switch.
    pub leafs: Vec<Group>,
    pub(crate) expect: Vec<Expect>,
    pub(crate) inventory: Option<Simple>,
    pub(crate) node: Option<Simple>,
    pub(crate) pairs: Option<Pairs>,
    pub(crate) storage: Option<Storage>,
    pub(crate) collectives: Option<Collectives>,
    pub(crate) soak: Option<Soak>,
}

/// Finds the line of a position.
struct Lines<'a>(&'a str);

impl Lines<'_> {
    fn bad(&self, at: Range<usize>, why: impl Into<String>) -> BadPlan {
        let before = self.0.get(..at.start.min(self.0.len())).unwrap_or(self.0);
        BadPlan { line: before.matches('\n').count() + 1, why: why.into() }
    }
}

/// Whether a name can be part of a file name and of a job name.
fn is_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    (1..=64).contains(&text.len()) && text.chars().all(fits)
}

impl Plan {
    /// Reads a plan.
    ///
    /// # Errors
    /// Returns the first problem, with its line.
    pub fn parse(text: &str, expand: Expand<'_>) -> Result<Plan, BadPlan> {
        let lines = Lines(text);
        let raw: Raw = toml::from_str(text)
            .map_err(|why| lines.bad(why.span().unwrap_or_default(), why.message().to_owned()))?;
        let list = |key: &str, list: &Spanned<String>| {
            let bad = |why: String| lines.bad(list.span(), format!("{key}: {why}"));
            let nodes = expand(list.get_ref()).map_err(bad)?;
            let mut seen = BTreeSet::new();
            for node in &nodes {
                if !is_name(node) {
                    return Err(bad(format!("'{node}' is not a name of a node")));
                }
                if !seen.insert(node) {
                    return Err(bad(format!("{node} is named twice")));
                }
            }
            match nodes.len() {
                1..=MOST_NODES => Ok(nodes),
                count => Err(bad(format!("{count} nodes, not between 1 and {MOST_NODES}"))),
            }
        };
        let nodes = list("nodes", &raw.nodes)?;
        let groups = |key: &str, raw: &[RawGroup]| {
            let mut groups: Vec<Group> = Vec::new();
            for group in raw {
                let (name, all) = (group.name.get_ref(), list(&format!("{key}.nodes"), &group.nodes)?);
                if !is_name(name) || groups.iter().any(|other| other.name == *name) {
                    let why = format!(
                        "{key}.name: '{name}' is used twice or has other characters than letters, digits, - and _"
                    );
                    return Err(lines.bad(group.name.span(), why));
                }
                for node in &all {
                    if !nodes.contains(node) {
                        return Err(
                            lines.bad(group.nodes.span(), format!("{key}.nodes: {node} is not in nodes"))
                        );
                    }
                    if groups.iter().any(|other| other.nodes.contains(node)) {
                        let why = format!("{key}.nodes: {node} is in two groups");
                        return Err(lines.bad(group.nodes.span(), why));
                    }
                }
                groups.push(Group { name: name.clone(), nodes: all });
            }
            Ok(groups)
        };
        let machines = groups("machine", &raw.machine)?;
        let leafs = groups("leaf", &raw.leaf)?;
        let covers = |one: &str, other: &str| {
            let base = |figure: &str| figure.split('@').next().unwrap_or_default().to_owned();
            one == other || (base(one) == base(other) && !(one.contains('@') && other.contains('@')))
        };
        for (number, expect) in raw.expect.iter().enumerate() {
            let earlier = raw.expect.iter().take(number);
            let figure = &expect.get_ref().figure;
            if earlier.into_iter().any(|other| covers(&other.get_ref().figure, figure)) {
                return Err(lines.bad(expect.span(), format!("expect '{figure}': has a limit already")));
            }
            let Expect { figure, min, max, source } = expect.get_ref();
            let why = match (min, max) {
                (None, None) => "neither min nor max",
                (Some(min), Some(max)) if min > max => "min is above max",
                _ if min.iter().chain(max).any(|limit| !limit.is_finite()) => {
                    "a limit is not a finite number"
                }
                _ if source.trim().is_empty() => "source is empty: a limit names where it comes from",
                _ => continue,
            };
            return Err(lines.bad(expect.span(), format!("expect '{figure}': {why}")));
        }
        if let Some(storage) = &raw.storage
            && storage.get_ref().dirs.is_empty()
        {
            return Err(lines.bad(storage.span(), "storage.dirs: no directory"));
        }
        for (soak, fault) in
            raw.soak.iter().flat_map(|soak| soak.fault.iter().map(move |fault| (soak, fault)))
        {
            if let Some(why) = soak.problem(fault.get_ref(), &nodes) {
                return Err(lines.bad(fault.span(), why));
            }
        }
        let plan = Plan {
            title: raw.title,
            nodes,
            sbatch: raw.sbatch,
            attempts: raw.attempts.map_or(3, |count| count.0),
            wait_s: raw.wait_s.map_or(3600, |count| count.0),
            jobs_at_once: raw.jobs_at_once.map_or(64, |count| count.0),
            machines,
            leafs,
            expect: raw.expect.into_iter().map(Spanned::into_inner).collect(),
            inventory: raw.inventory,
            node: raw.node,
            pairs: raw.pairs,
            storage: raw.storage.map(Spanned::into_inner),
            collectives: raw.collectives,
            soak: raw.soak,
        };
        match plan.units().len() {
            0 => Err(BadPlan { line: 1, why: format!("no stage: add one of {}", stages()) }),
            1..=MOST_UNITS => Ok(plan),
            count => Err(BadPlan { line: 1, why: format!("{count} jobs; at most {MOST_UNITS}") }),
        }
    }

    /// Returns the units of work, in the order in which they are submitted.
    pub fn units(&self) -> Vec<Unit> {
        STAGES.iter().flat_map(|stage| (stage.units)(self)).collect()
    }

    /// Returns how many faults the plan injects.
    pub fn faults(&self) -> usize {
        self.soak.as_ref().map_or(0, |soak| soak.fault.len())
    }

    /// Returns the machine type of a node.
    pub(crate) fn machine(&self, node: &str) -> &str {
        let of = self.machines.iter().find(|machine| machine.nodes.iter().any(|name| name == node));
        of.map_or("all nodes", |machine| &machine.name)
    }
}

fn stages() -> String {
    let names: Vec<String> = STAGES.iter().map(|stage| format!("[{}]", stage.id)).collect();
    names.join(", ")
}
