//! Groups the ranks of all nodes by their stacks. In a hang, the smallest group usually holds the rank that the others wait for.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Frame, GpuState, RankStack, Stacks, native};
use crate::python_file::{is_own, name};

/// Maximum number of groups in the text besides the largest one.
const MOST_GROUPS: usize = 8;
/// Maximum number of nodes and of ranges of ranks that the text names.
const MOST_NAMES: usize = 4;

/// Functions that only call another one. Users know the name of the wrapped function.
const WRAPPERS: [&str; 8] = [
    "wrapper",
    "_wrapper",
    "inner",
    "wrapped",
    "wrapped_fn",
    "decorate_context",
    "_wrapped_call_impl",
    "_call_impl",
];

/// Ranks with the same stack, as far as a user's own code is concerned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// What they do, as the end of a sentence: `in all_reduce (train.py:88)`, `stopped (state T)`.
    pub what: String,
    /// The ranks, ascending.
    pub ranks: Vec<u32>,
    /// Their nodes, ascending.
    pub nodes: Vec<String>,
    /// The function of a library that most of them wait in, if they have a Python stack: `cudaStreamSynchronize
    /// (libcudart.so)`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub library: Option<String>,
}

/// Where a [`RankLine`] is from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LineOf {
    /// The stack of a process.
    #[default]
    Stack,
    /// PyTorch's flight recorder.
    Recorder,
    /// NCCL's RAS: a sentence about all ranks.
    Ras,
    /// A GPU, instead of a rank.
    Gpu,
}

/// Summary of one process of a rank, in one line. [`Groups`] needs no more of its stack.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankLine {
    /// The attempt.
    pub attempt: u32,
    /// Node name.
    pub node: String,
    /// The rank.
    pub rank: u32,
    /// What it does, as the end of a sentence: [`Group::what`].
    pub what: String,
    /// Whether that is from a Python stack.
    pub is_python: bool,
    /// [`Group::library`]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub library: Option<String>,
    /// Where it is from.
    #[serde(default)]
    pub of: LineOf,
    /// The GPU, if it is of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuState>,
}

impl RankLine {
    /// The line of a stack.
    pub fn new(attempt: u32, node: &str, stack: &RankStack) -> Self {
        let is_python = stack.python.is_some();
        let library = stack.native.as_ref().filter(|_| is_python).and_then(native::library_call);
        let (node, what) = (node.to_owned(), what(stack));
        RankLine { attempt, node, rank: stack.rank, what, is_python, library, ..RankLine::default() }
    }

    /// All lines of a node, within their limits.
    pub fn all(attempt: u32, node: &str, stacks: Stacks) -> Vec<Self> {
        let stacks = stacks.bounded();
        let line = |rank: u32, what: &str, of: LineOf| {
            let what = what.to_owned();
            RankLine { attempt, node: node.to_owned(), rank, what, of, ..RankLine::default() }
        };
        let of_stacks = stacks.ranks.iter().map(|rank| RankLine::new(attempt, node, rank));
        let recorded = stacks.recorded.iter().map(|one| line(one.rank, &one.what, LineOf::Recorder));
        let ras = stacks.ras.iter().map(|text| line(0, text, LineOf::Ras));
        let gpus =
            stacks.gpus.iter().map(|gpu| RankLine { gpu: Some(gpu.clone()), ..line(0, "", LineOf::Gpu) });
        of_stacks.chain(recorded).chain(ras).chain(gpus).collect()
    }
}

/// Groups ranks of one node after another: only a line for each rank is kept.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    /// By node and rank.
    ranks: BTreeMap<(String, u32), Known>,
}

#[derive(Clone, Debug, Default)]
struct Known {
    what: String,
    is_python: bool,
    library: Option<String>,
}

/// Ranks that do the same.
#[derive(Debug, Default)]
struct Same {
    ranks: BTreeSet<u32>,
    nodes: BTreeSet<String>,
    libraries: BTreeMap<String, usize>,
}

impl Groups {
    /// Adds a process. Of several processes of a rank on a node, the one with a Python stack counts: a shell that started it
    /// only waits.
    pub fn add(&mut self, node: &str, stack: &RankStack) {
        self.add_line(RankLine::new(0, node, stack));
    }

    /// The same from a line; its attempt does not matter here.
    pub fn add_line(&mut self, line: RankLine) {
        let RankLine { node, rank, what, is_python, library, .. } = line;
        let known = self.ranks.entry((node, rank)).or_default();
        if known.what.is_empty() || is_python && !known.is_python {
            *known = Known { what, is_python, library };
        }
    }

    /// Returns the groups, largest first.
    pub fn finish(self) -> Vec<Group> {
        let mut by_what: BTreeMap<String, Same> = BTreeMap::new();
        for ((node, rank), Known { what, library, .. }) in self.ranks {
            let same = by_what.entry(what).or_default();
            same.ranks.insert(rank);
            same.nodes.insert(node);
            if let Some(library) = library {
                *same.libraries.entry(library).or_default() += 1;
            }
        }
        let mut groups: Vec<Group> = by_what.into_iter().map(|(what, same)| same.group(what)).collect();
        groups.sort_by_key(|group| (std::cmp::Reverse(group.ranks.len()), group.ranks.first().copied()));
        groups
    }
}

impl Same {
    fn group(self, what: String) -> Group {
        // A thread that polls is in another function each time.
        let most = self.ranks.len() / 2;
        let library = self.libraries.into_iter().find(|(_, count)| *count > most).map(|(library, _)| library);
        Group {
            what,
            ranks: self.ranks.into_iter().collect(),
            nodes: self.nodes.into_iter().collect(),
            library,
        }
    }
}

impl Group {
    /// What they do, with the function of the library: `in step (train.py:88), inside cudaStreamSynchronize (libcudart.so)`.
    pub fn doing(&self) -> String {
        match &self.library {
            Some(library) => format!("{}, inside {library}", self.what),
            None => self.what.clone(),
        }
    }
}

/// Groups the ranks of all nodes by what they do, largest group first.
pub fn group<'a>(stacks: impl IntoIterator<Item = (&'a str, &'a RankStack)>) -> Vec<Group> {
    let mut groups = Groups::default();
    for (node, stack) in stacks {
        groups.add(node, stack);
    }
    groups.finish()
}

/// The groups as one line: the largest, then the smallest ones, at most 8. `groups` is sorted as [`group`] returns it.
///
/// `1,023 ranks in all_reduce (train.py:88); rank 517 on gn65 in DataLoader.__next__ (data.py:31)`
pub fn text(groups: &[Group]) -> String {
    let Some((largest, rest)) = groups.split_first() else { return "no ranks".to_owned() };
    let (between, few) = rest.split_at(rest.len().saturating_sub(MOST_GROUPS));
    let mut parts = vec![match largest.ranks.len() {
        1 => minority(largest),
        count => format!("{} ranks {}", grouped(count), largest.doing()),
    }];
    parts.extend(few.iter().map(minority));
    if !between.is_empty() {
        let ranks: usize = between.iter().map(|group| group.ranks.len()).sum();
        parts.push(format!("{} ranks in {} more groups", grouped(ranks), grouped(between.len())));
    }
    parts.join("; ")
}

fn minority(group: &Group) -> String {
    let ranges = ranges(&group.ranks);
    let ranks = match (group.ranks.as_slice(), ranges.len()) {
        ([rank], _) => format!("rank {rank}"),
        (_, ..=MOST_NAMES) => format!("ranks {}", ranges.join(", ")),
        (ranks, _) => format!("{} ranks", grouped(ranks.len())),
    };
    let nodes = match group.nodes.as_slice() {
        nodes if nodes.len() <= MOST_NAMES => nodes.join(", "),
        nodes => format!("{} nodes", grouped(nodes.len())),
    };
    format!("{ranks} on {nodes} {}", group.doing())
}

/// `3, 5-7` as a list. `ranks` is ascending.
fn ranges(ranks: &[u32]) -> Vec<String> {
    let next = |a: &u32, b: &u32| a.checked_add(1) == Some(*b);
    let text = |run: &[u32]| match run {
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    };
    ranks.chunk_by(next).map(text).collect()
}

/// `1,023`
pub(super) fn grouped(count: usize) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// What a process does, as the end of a sentence.
fn what(stack: &RankStack) -> String {
    let place = stack.python.as_deref().and_then(place);
    let stopped = match stack.state {
        Some('T') => Some("stopped (state T)"),
        Some('t') => Some("stopped by a debugger (state t)"),
        Some('Z' | 'X') => Some("without its main thread, which has ended (state Z)"),
        _ => None,
    };
    let place = place.or_else(|| stack.native.as_ref().and_then(native::place));
    match (stopped, place, stack.kernel.as_deref()) {
        // A process that was stopped inside a collective is not one that waits in it.
        (Some(stopped), Some(place), _) => format!("{stopped} {place}"),
        (Some(stopped), None, _) => stopped.to_owned(),
        (None, Some(place), _) => place,
        (None, None, Some(kernel)) => format!("in the kernel: {kernel}"),
        (None, None, None) => stack.why.clone().unwrap_or_else(|| "not known".to_owned()),
    }
}

/// The function that the innermost frame of the user's own code called, where the user's code called it: `in all_reduce
/// (train.py:88)`. `frames`: innermost first.
pub fn place(frames: &[Frame]) -> Option<String> {
    let own = frames.iter().position(|frame| is_own(&frame.file));
    let (called, at) = match own {
        Some(own) => {
            let inner = frames.get(..own).unwrap_or_default();
            // From the user's frame inwards.
            let called = inner.iter().rev().find(|frame| !WRAPPERS.contains(&short(&frame.function)));
            let at = frames.get(own)?;
            (called.or(inner.last()).unwrap_or(at), at)
        }
        None => (frames.first()?, frames.first()?),
    };
    Some(format!("in {} ({}:{})", short(&called.function), name(&at.file), at.line))
}

/// Without the functions around it: `main.<locals>.step`.
fn short(function: &str) -> &str {
    function.rsplit("<locals>.").next().unwrap_or(function)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TORCH: &str = "/opt/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py";

    fn rank(rank: u32, frames: &[(&str, &str, u32)]) -> RankStack {
        let frames = frames.iter().map(|(function, file, line)| Frame::new(function, file, *line)).collect();
        RankStack { rank, state: Some('S'), python: Some(frames), ..RankStack::default() }
    }

    fn reduce(number: u32) -> RankStack {
        let wrapper = ("_exception_logger.<locals>.wrapper", TORCH, 81);
        rank(number, &[("all_reduce", TORCH, 2806), wrapper, ("main", "/home/a/train.py", 88)])
    }

    fn load(number: u32) -> RankStack {
        let next = ("DataLoader.__next__", "/opt/env/lib/python3.11/site-packages/torch/utils/data.py", 9);
        let select = ("select", "/usr/lib/python3.11/selectors.py", 415);
        rank(number, &[select, next, ("batches", "/home/a/data.py", 31), ("main", "/home/a/train.py", 80)])
    }

    #[test]
    fn a_stack_is_called_by_what_the_users_code_called() {
        let own = rank(0, &[("main.<locals>.step", "/home/a/train.py", 5), ("main", "/home/a/train.py", 9)]);
        let foreign = rank(0, &[("wait", "/usr/lib/python3.11/threading.py", 320)]);
        let wrapped = rank(0, &[("wrapper", TORCH, 81), ("main", "/home/a/train.py", 88)]);
        let none =
            RankStack { state: Some('S'), why: Some("not a Python program".into()), ..RankStack::default() };
        let kernel = RankStack { kernel: Some("hrtimer_nanosleep".into()), ..none.clone() };
        let stopped = RankStack { state: Some('T'), ..reduce(0) };
        for (stack, text) in [
            (&reduce(0), "in all_reduce (train.py:88)"),
            (&load(0), "in DataLoader.__next__ (data.py:31)"),
            (&own, "in step (train.py:5)"),
            (&foreign, "in wait (threading.py:320)"),
            (&wrapped, "in wrapper (train.py:88)"),
            (&rank(0, &[]), "not known"),
            (&none, "not a Python program"),
            (&kernel, "in the kernel: hrtimer_nanosleep"),
            (&RankStack { state: Some('T'), ..kernel.clone() }, "stopped (state T)"),
            (&stopped, "stopped (state T) in all_reduce (train.py:88)"),
        ] {
            assert_eq!(what(stack), text);
        }
    }

    #[test]
    fn the_rank_that_does_something_else_is_named() {
        let nodes: Vec<String> = (0..1024).map(|rank| format!("gn{}", rank / 8 + 1)).collect();
        let mut stacks: Vec<RankStack> = (0..1024).map(reduce).collect();
        stacks[517] = load(517);
        let all = || nodes.iter().map(String::as_str).zip(&stacks);
        let groups = group(all());
        assert_eq!(
            text(&groups),
            "1,023 ranks in all_reduce (train.py:88); rank 517 on gn65 in DataLoader.__next__ (data.py:31)"
        );
        let reversed = group(all().collect::<Vec<_>>().into_iter().rev());
        assert_eq!(reversed, groups, "the order of the nodes does not matter");
        assert_eq!((groups[0].ranks.len(), groups[0].nodes.len()), (1023, 128));
    }

    #[test]
    fn ranks_are_ranges_and_groups_are_bounded() {
        assert_eq!(ranges(&[3, 5, 6, 7, 9, u32::MAX]), ["3", "5-7", "9", "4294967295"]);
        let grouped = [1, 999, 1_000, 1_234_567].map(grouped);
        assert_eq!(grouped, ["1", "999", "1,000", "1,234,567"]);
        assert_eq!(text(&[]), "no ranks");
        let named = |ranks: &[u32]| {
            let stacks: Vec<RankStack> = ranks.iter().map(|rank| load(*rank)).collect();
            minority(&group(stacks.iter().map(|stack| ("gn1", stack))).remove(0))
        };
        assert_eq!(named(&[3, 5, 6]), "ranks 3, 5-6 on gn1 in DataLoader.__next__ (data.py:31)");
        assert_eq!(named(&[1, 3, 5, 7, 9]), "5 ranks on gn1 in DataLoader.__next__ (data.py:31)");
        // A hundred ranks in one place, and each of 20 others in another.
        let mut stacks: Vec<RankStack> = (0..100).map(reduce).collect();
        stacks.extend((100..120).map(|number| rank(number, &[("f", "/home/a/x.py", number)])));
        let all = text(&group(stacks.iter().map(|stack| ("gn1", stack))));
        assert!(
            all.starts_with("100 ranks in all_reduce (train.py:88); rank 112 on gn1 in f (x.py:112); "),
            "{all}"
        );
        assert!(all.ends_with("rank 119 on gn1 in f (x.py:119); 12 ranks in 12 more groups"), "{all}");
        let sizes = all.matches(';').count();
        assert_eq!(sizes, MOST_GROUPS + 1);
    }

    #[test]
    fn a_shell_of_a_rank_does_not_hide_its_program() {
        let shell = RankStack { rank: 3, kernel: Some("do_wait".into()), ..RankStack::default() };
        for order in [[&shell, &reduce(3)], [&reduce(3), &shell]] {
            let groups = group(order.map(|stack| ("gn1", stack)));
            assert_eq!(text(&groups), "rank 3 on gn1 in all_reduce (train.py:88)");
        }
    }
}
