//! `all_reduce_perf` of nccl-tests on all nodes, by size against the baseline of the plan.

use std::collections::{BTreeMap, BTreeSet};

use railgate_preflight::{AllReduce, SizeResult};

use super::{Command, Of, Program, Stage, Unit};
use crate::figures::{Better, Tolerance};
use crate::plan::Plan;
use crate::report::{Build, Item, Outcome};

pub(super) const STAGE: Stage = Stage {
    id: "collectives",
    about: "all_reduce_perf of nccl-tests on all nodes, by size against the baseline of the plan",
    units,
    commands,
    judge,
};

fn units(plan: &Plan) -> Vec<Unit> {
    let Some(table) = &plan.collectives else { return Vec::new() };
    let unit = |repetition: u32| Unit {
        id: format!("collectives.all.r{repetition}"),
        stage: "collectives",
        repetition,
        nodes: plan.nodes.clone(),
        fewest: 1,
        limit_min: table.limit_min.map_or(30, |limit| limit.0),
    };
    (1..=table.repetitions.0).map(unit).collect()
}

fn commands(plan: &Plan, unit: &Unit, nodes: &[String]) -> Vec<Command> {
    let Some(table) = &plan.collectives else { return Vec::new() };
    let tasks = table.tasks_per_node.0;
    let all = usize::try_from(tasks).unwrap_or(1) * nodes.len();
    let mut options = vec![format!("--ntasks={all}"), format!("--ntasks-per-node={tasks}")];
    options.extend(table.srun.iter().cloned());
    let args: Vec<&str> =
        [table.program.0.as_str()].into_iter().chain(table.args.iter().map(String::as_str)).collect();
    vec![Command::new("all-reduce", Program::Srun(options), &args, u64::from(unit.limit_min) * 60)]
}

fn judge(build: &mut Build<'_>, results: &[Of<'_>]) {
    let Some(table) = build.plan.collectives.clone() else { return };
    let (mut wrong, mut unknown) = (BTreeSet::new(), BTreeSet::new());
    let mut slowest: BTreeMap<u64, f64> = BTreeMap::new();
    // The bus bandwidth of fewer nodes is not that of the baseline.
    let mut missing = BTreeSet::new();
    for of in results {
        let absent: Vec<&String> =
            of.unit.nodes.iter().filter(|node| !of.result.nodes.contains(node)).collect();
        missing.extend(absent.iter().map(|node| format!("{}: without {node}", of.unit.id)));
        let Some(output) = of.result.output("all-reduce") else {
            unknown.insert(format!("{}: not run", of.unit.id));
            continue;
        };
        let printed = AllReduce::parse(&output.stdout);
        let failed = output.exit != Some(0);
        if printed.sizes.is_empty() || failed {
            unknown.insert(format!("{}: {}", of.unit.id, output.reason().unwrap_or("no result")));
        }
        // Such a bus bandwidth is that of one node.
        if let Some(why) = printed.partial(of.result.nodes.len(), failed) {
            unknown.insert(format!("{}: {why}", of.unit.id));
            continue;
        }
        for SizeResult { bytes, busbw_gb_s: busbw, wrong: count } in printed.sizes {
            let id = format!("collectives.all-reduce.{bytes}.busbw_gb_s");
            build.figures.add(
                &id,
                "GB/s",
                Better::Higher,
                Tolerance::None,
                "all nodes",
                "",
                "all nodes",
                of.unit.repetition,
                busbw,
            );
            if absent.is_empty() {
                let lowest = slowest.entry(bytes).or_insert(busbw);
                *lowest = lowest.min(busbw);
            }
            match count {
                Some(0) => {}
                Some(count) => wrong.extend([format!("{}: {bytes} bytes: {count} values wrong", of.unit.id)]),
                None => unknown.extend([format!("{}: {bytes} bytes: values were not compared", of.unit.id)]),
            }
        }
    }
    if results.is_empty() {
        return;
    }
    unknown.extend(missing.iter().cloned());
    let outcome = match (wrong.is_empty(), unknown.is_empty()) {
        (false, _) => Outcome::Fail,
        (true, false) => Outcome::Unknown,
        (true, true) => Outcome::Pass,
    };
    build.add(
        Item::new("collectives.values", "collectives", outcome, "all-reduce on all nodes: values")
            .details(wrong.into_iter().chain(unknown).collect())
            .tolerance("every value right", "nccl-tests compares them"),
    );
    for baseline in &table.baseline {
        let id = format!("collectives.all-reduce.{}", baseline.bytes);
        let want = baseline.busbw_gb_s.0;
        let (outcome, got) = match slowest.get(&baseline.bytes) {
            Some(got) if *got >= want && missing.is_empty() => (Outcome::Pass, format!("{got:.2} GB/s")),
            Some(got) if *got >= want => (Outcome::Unknown, format!("{got:.2} GB/s")),
            Some(got) => (Outcome::Fail, format!("{got:.2} GB/s")),
            None => (Outcome::Unknown, "not measured".to_owned()),
        };
        let what = format!("all-reduce of {} bytes, lowest bus bandwidth: {got}", baseline.bytes);
        build.add(
            Item::new(&id, "collectives", outcome, &what)
                .details(missing.iter().cloned().collect())
                .tolerance(&format!("at least {want} GB/s"), &baseline.source),
        );
    }
}
