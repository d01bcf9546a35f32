//! File systems: a checkpoint that all nodes write at once, read back; metadata; fio where it is installed.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{Command, Of, Program, Stage, Unit};
use crate::figures::{Better, Tolerance};
use crate::plan::Plan;
use crate::report::{Build, Item, Outcome};
use crate::result::Output;

pub(super) const STAGE: Stage = Stage {
    id: "storage",
    about: "a checkpoint that all nodes write at once, read back, and metadata; fio where it is installed",
    units,
    commands,
    judge,
};

fn units(plan: &Plan) -> Vec<Unit> {
    let Some(table) = &plan.storage else { return Vec::new() };
    let unit = |repetition: u32| Unit {
        id: format!("storage.all.r{repetition}"),
        stage: "storage",
        repetition,
        nodes: plan.nodes.clone(),
        fewest: 1,
        limit_min: table.limit_min.map_or(60, |limit| limit.0),
    };
    (1..=table.repetitions.0).map(unit).collect()
}

fn commands(plan: &Plan, unit: &Unit, _: &[String]) -> Vec<Command> {
    let Some(table) = &plan.storage else { return Vec::new() };
    let limit_s = u64::from(unit.limit_min) * 60;
    let mut commands = Vec::new();
    for (number, dir) in table.dirs.iter().enumerate() {
        let (mib, files) = (table.mib_per_node.0.to_string(), table.files_per_node.0.to_string());
        let args = ["accept", "--storage-test", &dir.0, "--mib", &mib, "--files", &files];
        commands.push(Command::new(&format!("write.{number}"), Program::RailgateOnEach, &args, limit_s));
        let Some(seconds) = table.fio_s else { continue };
        let seconds = seconds.0.to_string();
        for pattern in ["randread", "randwrite"] {
            // railgate starts fio in a directory of its own, since users can plant links in this one.
            let args = ["accept", "--fio-test", &dir.0, "--pattern", pattern, "--seconds", &seconds];
            let id = format!("fio.{number}.{pattern}");
            commands.push(Command::new(&id, Program::Railgate, &args, limit_s));
        }
    }
    commands
}

/// The line that a node prints about one file system.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct StorageTested {
    /// Name of the node.
    pub node: String,
    /// Writing the file, MiB.
    pub write: Option<Span>,
    /// Reading it back, MiB.
    pub read: Option<Span>,
    /// Creating, looking up and removing small files, operations.
    pub files: Option<Span>,
    /// What the file system did wrong.
    pub failed: Option<String>,
    /// Why there is no result otherwise.
    pub error: Option<String>,
}

/// Work between two times.
#[derive(Debug, Serialize, Deserialize)]
pub struct Span {
    /// Milliseconds since 1970.
    pub began: u64,
    /// Milliseconds since 1970.
    pub ended: u64,
    /// MiB, or operations.
    pub count: u32,
}

/// What the file systems did wrong, and what is not known.
#[derive(Default)]
struct Problems {
    failed: BTreeSet<String>,
    unknown: BTreeSet<String>,
}

fn judge(build: &mut Build<'_>, results: &[Of<'_>]) {
    let Some(table) = build.plan.storage.clone() else { return };
    let mut problems = Problems::default();
    for of in results {
        for (number, dir) in table.dirs.iter().enumerate() {
            let found = of.result.output(&format!("write.{number}"));
            match found {
                Some(output) => checkpoint(build, of, &dir.0, output, &mut problems),
                None => problems.unknown.extend([format!("{}: {}: not run", of.unit.id, dir.0)]),
            }
            for pattern in ["randread", "randwrite"] {
                match of.result.output(&format!("fio.{number}.{pattern}")) {
                    Some(output) => fio(build, of, &dir.0, pattern, output, &mut problems),
                    None if table.fio_s.is_some() => {
                        problems.unknown.extend([format!("{}: {}: fio: not run", of.unit.id, dir.0)]);
                    }
                    None => {}
                }
            }
        }
    }
    if results.is_empty() {
        return;
    }
    let Problems { failed, unknown } = problems;
    let outcome = match (failed.is_empty(), unknown.is_empty()) {
        (false, _) => Outcome::Fail,
        (true, false) => Outcome::Unknown,
        (true, true) => Outcome::Pass,
    };
    build.add(
        Item::new(
            "storage.tested",
            "storage",
            outcome,
            &format!("file systems tested: {}", table.dirs.len()),
        )
        .details(failed.into_iter().chain(unknown).collect())
        .tolerance(
            "each node writes, reads back the same bytes, and removes its files",
            "rates are judged by [[expect]] of the plan",
        ),
    );
}

fn checkpoint(build: &mut Build<'_>, of: &Of<'_>, dir: &str, output: &Output, problems: &mut Problems) {
    let mut lines = Vec::new();
    for line in output.stdout.lines() {
        match serde_json::from_str::<StorageTested>(line) {
            Ok(written) => lines.push(written),
            Err(_) => problems.unknown.extend([format!("{dir}: a line that is not a result: {line}")]),
        }
    }
    for node in &of.unit.nodes {
        match lines.iter().find(|line| line.node == *node) {
            Some(StorageTested { failed: Some(why), .. }) => {
                problems.failed.extend([format!("{node}: {dir}: {why}")]);
            }
            Some(StorageTested { error: Some(why), .. }) => {
                problems.unknown.extend([format!("{node}: {dir}: {why}")]);
            }
            Some(StorageTested { write: Some(_), read: Some(_), files: Some(_), .. }) => {}
            Some(_) => problems.unknown.extend([format!("{node}: {dir}: the result is not whole")]),
            None if !of.result.nodes.contains(node) => {
                problems.unknown.extend([format!("{node}: {dir}: was not in the job")]);
            }
            None => problems
                .unknown
                .extend([format!("{node}: {dir}: {}", output.reason().unwrap_or("no result"))]),
        }
    }
    type Part = fn(&StorageTested) -> Option<&Span>;
    let parts: [(&str, &str, f64, Part); 3] = [
        ("write_gb_s", "GB/s", 1_048_576e-9, |line| line.write.as_ref()),
        ("read_gb_s", "GB/s", 1_048_576e-9, |line| line.read.as_ref()),
        ("metadata_ops_s", "operations/s", 1.0, |line| line.files.as_ref()),
    ];
    for (name, unit, scale, part) in parts {
        let spans: Vec<(&str, &Span)> =
            lines.iter().filter_map(|line| Some((line.node.as_str(), part(line)?))).collect();
        for (node, span) in &spans {
            let id = format!("storage.node.{name}");
            let value = rate(span.began, span.ended, f64::from(span.count) * scale);
            let part = format!("{node} {dir}");
            build.figures.add(
                &id,
                unit,
                Better::Higher,
                Tolerance::None,
                build.plan.machine(node),
                node,
                &part,
                of.unit.repetition,
                value,
            );
        }
        // All nodes together: from the first beginning to the last end.
        let began = spans.iter().map(|(_, span)| span.began).min();
        let ended = spans.iter().map(|(_, span)| span.ended).max();
        if let (Some(began), Some(ended), true) = (began, ended, spans.len() == of.result.nodes.len()) {
            let sum: f64 = spans.iter().map(|(_, span)| f64::from(span.count)).sum();
            let value = rate(began, ended, sum * scale);
            let id = format!("storage.all.{name}");
            build.figures.add(
                &id,
                unit,
                Better::Higher,
                Tolerance::None,
                "all nodes",
                "",
                dir,
                of.unit.repetition,
                value,
            );
        }
    }
}

/// Per second.
fn rate(began: u64, ended: u64, count: f64) -> f64 {
    let ms = u32::try_from(ended.saturating_sub(began)).unwrap_or(u32::MAX).max(1);
    count / (f64::from(ms) / 1000.0)
}

/// The part of fio's JSON that is used.
#[derive(Deserialize)]
struct Fio {
    jobs: Vec<FioJob>,
}

#[derive(Deserialize)]
struct FioJob {
    read: FioRate,
    write: FioRate,
}

#[derive(Deserialize)]
struct FioRate {
    iops: f64,
}

fn fio(
    build: &mut Build<'_>,
    of: &Of<'_>,
    dir: &str,
    pattern: &str,
    output: &Output,
    problems: &mut Problems,
) {
    match of.result.json::<Fio>(&output.command) {
        Ok(Fio { jobs }) => {
            for job in jobs {
                let value = if pattern == "randread" { job.read.iops } else { job.write.iops };
                let id = format!("storage.fio.{pattern}_4k_iops");
                let node = of.result.nodes.first().map_or("", String::as_str);
                let part = format!("{node} {dir}");
                build.figures.add(
                    &id,
                    "operations/s",
                    Better::Higher,
                    Tolerance::None,
                    build.plan.machine(node),
                    node,
                    &part,
                    of.unit.repetition,
                    value,
                );
            }
        }
        Err(why) => problems.unknown.extend([format!("{dir}: fio: {why}")]),
    }
}
