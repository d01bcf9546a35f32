//! Nodes test each other on every rail: all at once, under each leaf switch, and each with each other one.

use std::collections::{BTreeMap, BTreeSet};

use railgate_preflight::{
    End, Outcome as Measured, Pair, Place, Plan as Rails, Round, Settings, Tested, What,
};
use serde::Deserialize;

use super::{Command, Of, Program, Stage, Unit};
use crate::figures::{Better, Tolerance};
use crate::plan::{Net, Pairs, Plan};
use crate::report::{Build, Item, Outcome};

pub(super) const STAGE: Stage = Stage {
    id: "pairs",
    about: "pairs of nodes test every rail: all at once, by leaf switch, and each node with each other one",
    units,
    commands: |plan, _, _| commands(plan),
    judge,
};

fn units(plan: &Plan) -> Vec<Unit> {
    let Some(table) = &plan.pairs else { return Vec::new() };
    let mut groups = vec![("all".to_owned(), plan.nodes.clone())];
    groups.extend(plan.leafs.iter().map(|leaf| (format!("leaf-{}", leaf.name), leaf.nodes.clone())));
    if table.all_to_all {
        for (place, left) in plan.nodes.iter().enumerate() {
            let others = plan.nodes.iter().skip(place + 1);
            groups.extend(others.map(|right| (format!("{left}.{right}"), vec![left.clone(), right.clone()])));
        }
    }
    let limit_min = table.limit_min.map_or(20, |limit| limit.0);
    let unit = |repetition: u32, (name, nodes): &(String, Vec<String>)| Unit {
        id: format!("pairs.{name}.r{repetition}"),
        stage: "pairs",
        repetition,
        nodes: nodes.clone(),
        fewest: 2,
        limit_min,
    };
    let more = |repetition| groups.iter().map(move |group| unit(repetition, group));
    (1..=table.repetitions.0).flat_map(more).filter(|unit| unit.nodes.len() > 1).collect()
}

fn commands(plan: &Plan) -> Vec<Command> {
    let Some(Pairs { net, tcp_beside, expected_gbps, .. }) = &plan.pairs else { return Vec::new() };
    let command = |id: &str, net: &str| {
        let args = ["preflight", "--gpus", "none", "--nccl", "none", "--net", net, "--format", "json"];
        let mut command = Command::new(id, Program::Railgate, &args, 600);
        if let Some(expected) = expected_gbps.filter(|_| id == "preflight") {
            command.args.push(format!("--expected-gbps={}", expected.0));
        }
        command
    };
    let name = match net {
        Net::Auto => "auto",
        Net::Rdma => "rdma",
        Net::Tcp => "tcp",
    };
    let beside = (*tcp_beside && !matches!(net, Net::Tcp)).then(|| command("tcp", "tcp"));
    [command("preflight", name)].into_iter().chain(beside).collect()
}

/// The part of the output of `railgate preflight --format json` that is judged.
#[derive(Deserialize)]
struct Printed {
    nodes: Vec<String>,
    net: Option<String>,
    /// HCAs of each node; `None`: not known.
    #[serde(default)]
    devices: Vec<Option<Vec<String>>>,
    rounds: Vec<Round>,
    #[serde(default)]
    report: PrintedReport,
    problems: Vec<Problem>,
}

#[derive(Default, Deserialize)]
struct PrintedReport {
    /// Ends without a result in this job.
    #[serde(default)]
    unknown: Vec<End>,
}

#[derive(Deserialize)]
struct Problem {
    node: String,
    why: String,
}

/// All results by one kind of network.
#[derive(Default)]
struct OfNet {
    /// Number of HCAs by index of the node.
    rails: BTreeMap<usize, usize>,
    rounds: Vec<Round>,
    unknown: BTreeSet<String>,
}

fn judge(build: &mut Build<'_>, results: &[Of<'_>]) {
    let mut nets: BTreeMap<String, OfNet> = BTreeMap::new();
    for of in results {
        // A job that ran nothing has no output to find a problem in.
        for Command { id, .. } in commands(build.plan) {
            match of.result.json::<Printed>(&id) {
                Ok(printed) => hear(build, &mut nets, of, printed),
                Err(why) => {
                    let net = if id == "tcp" { "tcp" } else { "rails" };
                    nets.entry(net.to_owned()).or_default().unknown.insert(format!("{}: {why}", of.unit.id));
                }
            }
        }
    }
    for (net, of) in nets {
        verdicts(build, &net, &of);
    }
}

/// Takes the results of one job, with the indices of the plan's nodes.
fn hear(build: &mut Build<'_>, nets: &mut BTreeMap<String, OfNet>, of: &Of<'_>, printed: Printed) {
    let net = match printed.net.as_deref() {
        Some("rdma") => "rdma",
        Some("tcp") => "tcp",
        _ => "rails",
    };
    let all = nets.entry(net.to_owned()).or_default();
    all.unknown.extend(printed.problems.iter().map(|problem| format!("{}: {}", problem.node, problem.why)));
    let place = |node: usize| {
        let name = printed.nodes.get(node)?;
        build.plan.nodes.iter().position(|known| known == name)
    };
    let unit = &of.unit.id;
    for (node, devices) in printed.devices.iter().enumerate().filter(|_| net == "rdma") {
        if let (Some(node), Some(devices)) = (place(node), devices) {
            let rails = all.rails.entry(node).or_default();
            *rails = (*rails).max(devices.len());
        }
    }
    let name = |node: usize| printed.nodes.get(node).map_or("?", String::as_str);
    let ends = printed.report.unknown.iter();
    all.unknown.extend(ends.map(|end| format!("{unit}: {} rail {}: no result", name(end.node), end.rail)));
    if printed.rounds.iter().all(|round| round.tested.is_empty()) {
        all.unknown.insert(format!("{unit}: no test"));
    }
    for (round, pair) in
        printed.rounds.iter().flat_map(|round| round.pairs.iter().map(move |pair| (round, pair)))
    {
        let has = |node: usize| printed.devices.get(node).and_then(Option::as_ref).map_or(1, Vec::len);
        let rails = if net == "rdma" { has(pair.left).min(has(pair.right)) } else { 1 };
        for rail in 0..rails.max(1) {
            let of_rail = |one: &&Tested| one.rail == rail && one.pair == *pair;
            if round
                .tested
                .iter()
                .find(of_rail)
                .is_none_or(|one| matches!(one.outcome, Measured::Unknown { .. }))
            {
                let (left, right) = (name(pair.left), name(pair.right));
                all.unknown.insert(format!("{unit}: {left} with {right}, rail {rail}: no result"));
            }
        }
    }
    let translated = |pair: Pair| Some(Pair { left: place(pair.left)?, right: place(pair.right)? });
    for round in printed.rounds {
        let tested: Vec<Tested> = round
            .tested
            .into_iter()
            .filter_map(|one| {
                Some(Tested {
                    pair: translated(one.pair)?,
                    rail: one.rail,
                    outcome: translate(one.outcome, &place),
                })
            })
            .collect();
        for one in &tested {
            figures(build, net, of.unit.repetition, one);
        }
        let pairs = round.pairs.into_iter().filter_map(translated).collect();
        all.rounds.push(Round { pairs, tested, measured_again: round.measured_again });
    }
}

fn translate(outcome: Measured, place: &dyn Fn(usize) -> Option<usize>) -> Measured {
    match outcome {
        Measured::Failed { why, down_end } => Measured::Failed { why, down_end: down_end.and_then(place) },
        other => other,
    }
}

fn figures(build: &mut Build<'_>, net: &str, repetition: u32, one: &Tested) {
    let Measured::Measured { gbps, latency_us } = one.outcome else { return };
    let plan = build.plan;
    let (Some(left), Some(right)) = (plan.nodes.get(one.pair.left), plan.nodes.get(one.pair.right)) else {
        return;
    };
    let rail = one.rail;
    for (from, to, value) in [(left, right, gbps[0]), (right, left, gbps[1])] {
        let part = format!("{from} rail {rail} to {to}");
        let id = format!("pairs.{net}.gbps");
        build.figures.add(
            &id,
            "Gb/s",
            Better::Higher,
            Tolerance::None,
            plan.machine(from),
            from,
            &part,
            repetition,
            value,
        );
        build.rail(net, from, rail, value);
    }
    let part = format!("{left} rail {rail} to {right}");
    let id = format!("pairs.{net}.latency_us");
    build.figures.add(
        &id,
        "µs",
        Better::Lower,
        Tolerance::None,
        plan.machine(left),
        left,
        &part,
        repetition,
        latency_us,
    );
}

fn verdicts(build: &mut Build<'_>, net: &str, of: &OfNet) {
    let plan = build.plan;
    let rails = |node: usize| {
        // One by TCP. By RDMA the node's HCAs count, so that a rail without a test is unknown.
        let known = if net == "tcp" { 1 } else { of.rails.get(&node).copied().unwrap_or(0) };
        let tested = of.rounds.iter().flat_map(|round| &round.tested);
        tested
            .filter(|one| one.pair.partner(node).is_some())
            .map(|one| one.rail + 1)
            .max()
            .unwrap_or(0)
            .max(known)
    };
    let leaf = |node: &String| plan.leafs.iter().position(|leaf| leaf.nodes.contains(node));
    let places: Vec<Place> = plan
        .nodes
        .iter()
        .enumerate()
        .map(|(index, node)| match leaf(node).and_then(|leaf| u32::try_from(leaf).ok()) {
            Some(leaf) => Place::under(leaf, rails(index)),
            None => Place::unknown(rails(index)),
        })
        .collect();
    let expected =
        plan.pairs.as_ref().and_then(|table| table.expected_gbps).filter(|_| net != "tcp" || is_tcp(plan));
    // As `railgate preflight`: the latency of TCP depends on what the processors do.
    let max_latency_times = if net == "tcp" { 10.0 } else { Settings::default().max_latency_times };
    let settings =
        Settings { expected_gbps: expected.map(|rate| rate.0), max_latency_times, ..Settings::default() };
    let report = Rails::new(places, settings).report(&of.rounds);
    let tolerance = match expected {
        Some(rate) => format!("each direction at least 80 % of {} Gb/s; every word right", rate.0),
        None => "each direction at least 80 % of the median; every word right".to_owned(),
    };
    let source = "docs/preflight.md: healthy rails differ by a few percent, a link that lost a lane has at most three quarters";
    let tested: usize = of.rounds.iter().map(|round| round.tested.len()).sum();
    for verdict in &report.verdicts {
        let id = format!("pairs.{net}.{}", subject(&verdict.what, &plan.nodes));
        let what = format!("by {net}: {}", verdict.sentence(&plan.nodes));
        build.add(Item::new(&id, "pairs", Outcome::Fail, &what).tolerance(&tolerance, source));
    }
    let mut unknown: Vec<String> = of.unknown.iter().cloned().collect();
    let nodes_of =
        |end: &End| plan.nodes.get(end.node).map(|node| format!("{node} rail {}: no result", end.rail));
    unknown.extend(report.unknown.iter().filter_map(nodes_of));
    let without = plan.nodes.iter().enumerate().filter(|(index, _)| net == "rdma" && rails(*index) == 0);
    unknown.extend(without.map(|(_, node)| format!("{node}: its rails are not known")));
    let outcome = match (tested, unknown.is_empty()) {
        (0, _) | (_, false) => Outcome::Unknown,
        _ => Outcome::Pass,
    };
    let accused = match report.verdicts.len() {
        0 => "no rail, node or path is accused".to_owned(),
        1 => "1 part is accused, in an item of its own".to_owned(),
        count => format!("{count} parts are accused, each in an item of its own"),
    };
    build.add(
        Item::new(
            &format!("pairs.{net}"),
            "pairs",
            outcome,
            &format!("by {net}: {tested} tests of rails; {accused}"),
        )
        .details(unknown)
        .tolerance(&tolerance, source),
    );
    let notes = report.notes.iter().map(|note| format!("{net}: {}", note.sentence(&plan.nodes)));
    build.exceptions.extend(notes);
}

fn is_tcp(plan: &Plan) -> bool {
    plan.pairs.as_ref().is_some_and(|table| matches!(table.net, Net::Tcp))
}

/// Id of an accused part.
fn subject(what: &What, nodes: &[String]) -> String {
    let name = |node: usize| nodes.get(node).map_or("?", String::as_str);
    match what {
        What::Rail(end) => format!("{}.rail-{}", name(end.node), end.rail),
        What::Node { node, .. } => name(*node).to_owned(),
        What::Path { left, right, rail } | What::RailOrPath { left, right, rail, .. } => {
            format!("{}.{}.rail-{rail}", name(*left), name(*right))
        }
        What::AllNodes { rail } => format!("all.rail-{rail}"),
    }
}
