//! What each node has: nodes of one machine type must have the same parts and versions.

use std::collections::BTreeMap;

use railgate_model::{Reading, Snapshot};
use serde::Deserialize;

use super::{Command, Of, Program, Stage, of_each_node};
use crate::report::{Build, Counted, Inventory, Item, Outcome};

pub(super) const STAGE: Stage = Stage {
    id: "inventory",
    about: "parts and versions of each node; nodes of one machine type must be equal",
    units: |plan| of_each_node("inventory", plan, plan.inventory, 10),
    commands: |_, _, _| {
        vec![
            Command::new("snapshot", Program::Railgate, &["snapshot"], 300),
            Command::new("nccl", Program::Railgate, &["accept", "--nccl-library"], 60),
        ]
    },
    judge,
};

const SOURCE: &str = "version lock: nodes of one machine type are equal";

/// The NCCL library that programs of a job load.
#[derive(Deserialize)]
struct Nccl {
    version: String,
}

/// `Err` is the reason why the value is not known.
type Value = Result<String, String>;
/// Values by node.
type Values = BTreeMap<String, Value>;
/// A value of a node, with its key.
type Row = (&'static str, Value);

fn judge(build: &mut Build<'_>, results: &[Of<'_>]) {
    // Key, machine type → node → value.
    let mut all: BTreeMap<(&str, String), Values> = BTreeMap::new();
    for of in results {
        let Some(node) = of.unit.nodes.first() else { continue };
        let mut rows = match of.result.json::<Snapshot>("snapshot") {
            Ok(snapshot) => rows(&snapshot),
            Err(why) => vec![("snapshot", Err(why))],
        };
        rows.push(("nccl", of.result.json::<Nccl>("nccl").map(|nccl| nccl.version)));
        for (key, value) in rows {
            let of_key = all.entry((key, build.plan.machine(node).to_owned())).or_default();
            // A later repetition that differs is a difference as well.
            let name = match of_key.get(node) {
                Some(earlier) if *earlier == value => continue,
                Some(_) => format!("{node} r{}", of.unit.repetition),
                None => node.clone(),
            };
            of_key.insert(name, value);
        }
    }
    for ((key, machine), values) in all {
        build.inventory.push(Inventory {
            key: key.to_owned(),
            machine: machine.clone(),
            values: shown(&values),
        });
        let id = build.id_of(&format!("inventory.{key}"), &machine);
        build.add(item(&id, key, &machine, &values));
    }
}

fn item(id: &str, key: &str, machine: &str, values: &Values) -> Item {
    let counted = counted(values);
    let most = counted.iter().max_by_key(|(_, nodes)| nodes.len());
    let mut details = Vec::new();
    for (value, nodes) in &counted {
        if most.is_some_and(|(most, _)| most != value) {
            details.push(format!("{}: {value}", nodes.join(", ")));
        }
    }
    let unknown: Vec<String> = values
        .iter()
        .filter_map(|(node, value)| Some(format!("{node}: {}", value.as_ref().err()?)))
        .collect();
    let outcome = match (counted.len(), unknown.is_empty()) {
        (2.., _) => Outcome::Fail,
        (1, true) => Outcome::Pass,
        _ => Outcome::Unknown,
    };
    let what = match most {
        Some((value, nodes)) => format!("{key} of {machine}: {value} on {} of {}", nodes.len(), values.len()),
        None => format!("{key} of {machine}: not known"),
    };
    details.extend(unknown);
    Item::new(id, "inventory", outcome, &what).details(details).tolerance("equal on all nodes", SOURCE)
}

/// Nodes by known value.
fn counted(values: &Values) -> BTreeMap<&str, Vec<&str>> {
    let mut counted: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (node, value) in values {
        if let Ok(value) = value {
            counted.entry(value).or_default().push(node);
        }
    }
    counted
}

fn shown(values: &Values) -> Vec<Counted> {
    let known = counted(values).into_iter();
    let unknown = values.values().filter(|value| value.is_err()).count();
    let unknown = (unknown > 0).then(|| Counted { value: "not known".to_owned(), nodes: unknown });
    known
        .map(|(value, nodes)| Counted { value: value.to_owned(), nodes: nodes.len() })
        .chain(unknown)
        .collect()
}

fn rows(snapshot: &Snapshot) -> Vec<Row> {
    let mut rows = Vec::new();
    match snapshot.host.data() {
        Some(host) => {
            rows.push(("kernel", one(&host.kernel)));
            let cpu = host.cpu.clone().map(|(vendor, family, model)| format!("{vendor} {family} {model}"));
            rows.push(("cpu", one(&cpu)));
            rows.push(("cpus", one(&host.system.cpus)));
            // The kernel reserves a little more or less from boot to boot.
            rows.push(("memory-gib", one(&host.memory_mib.clone().map(|mib| (mib + 512) / 1024))));
        }
        None => rows.push(("host", Err(snapshot.host.missing().unwrap_or_default()))),
    }
    match snapshot.gpus.data() {
        Some(gpus) => {
            rows.push(("gpu-driver", one(&gpus.driver)));
            rows.push(("gpus", one(&gpus.count)));
            rows.push(("gpu-model", each(gpus.gpus.iter().map(|gpu| &gpu.name))));
            rows.push(("gpu-vbios", each(gpus.gpus.iter().map(|gpu| &gpu.vbios))));
            rows.push(("gpu-inforom", each(gpus.gpus.iter().map(|gpu| &gpu.details.inforom))));
            rows.push(("gpu-gsp", each(gpus.gpus.iter().map(|gpu| &gpu.details.gsp))));
        }
        None => rows.push(("gpu-driver", Err(snapshot.gpus.missing().unwrap_or_default()))),
    }
    match snapshot.fabric.data() {
        Some(fabric) => {
            rows.push(("hcas", Ok(fabric.hcas.len().to_string())));
            rows.push(("hca-model", each(fabric.hcas.iter().map(|hca| &hca.hca_type))));
            rows.push(("hca-board", each(fabric.hcas.iter().map(|hca| &hca.details.board))));
            rows.push(("hca-firmware", each(fabric.hcas.iter().map(|hca| &hca.firmware))));
        }
        None => rows.push(("hcas", Err(snapshot.fabric.missing().unwrap_or_default()))),
    }
    rows
}

fn one<T: ToString>(reading: &Reading<T>) -> Result<String, String> {
    match reading {
        Reading::Known(value) => Ok(value.to_string()),
        Reading::Unsupported => Ok("not supported".to_owned()),
        Reading::Failed(why) => Err(why.clone()),
    }
}

/// The different values of several devices: `28.39.1002` or `28.39.1002 ×7, 28.36.1010`.
fn each<'a>(readings: impl Iterator<Item = &'a Reading<String>>) -> Result<String, String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for reading in readings {
        *counts.entry(one(reading)?).or_default() += 1;
    }
    if counts.is_empty() {
        return Ok("none".to_owned());
    }
    let single = counts.len() == 1;
    let word = |(value, count): (String, usize)| if single { value } else { format!("{value} ×{count}") };
    Ok(counts.into_iter().map(word).collect::<Vec<_>>().join(", "))
}
