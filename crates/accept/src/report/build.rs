//! Puts the report together from the judgements of the stages.

use std::collections::{BTreeMap, BTreeSet};

use railgate_model::mttf;

use super::heat::{self, Course, HeatMap};
use super::{Chart, Facts, Inventory, Item, Named, Outcome, Overall, Report};
use crate::digest::{digest, digest_of_all};
use crate::figures::Figures;
use crate::journal::{BadJournal, Event};
use crate::plan::Plan;
use crate::result::UnitResult;
use crate::stages::{Of, STAGES, Unit, is_injected};
use crate::state::{Fate, State};

/// Largest difference between two repetitions of a rate of a GPU, per cent.
const MOST_SPREAD: f64 = 5.0;
const SPREAD_SOURCE: &str = "SuperBench counts more than 5 % below the baseline as a defect; the same limit is used here between two tests of one card (a choice)";

/// A report while stages add to it.
pub(crate) struct Build<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) figures: Figures,
    pub(crate) inventory: Vec<Inventory>,
    pub(crate) exceptions: Vec<String>,
    pub(crate) charts: Vec<Chart>,
    /// Nodes with a failure, each with the unit in which it was found.
    pub(crate) failed: BTreeSet<(String, String)>,
    items: Vec<Item>,
    /// Lowest rate by network, node and rail.
    rails: BTreeMap<String, BTreeMap<(String, usize), f64>>,
    courses: Vec<Course>,
}

impl Build<'_> {
    pub(crate) fn add(&mut self, item: Item) {
        self.items.push(item);
    }

    /// Id with the machine type, if there are several.
    pub(crate) fn id_of(&self, id: &str, machine: &str) -> String {
        if self.plan.machines.is_empty() { id.to_owned() } else { format!("{id}@{machine}") }
    }

    /// A rate of a rail for the heat map, which shows the lowest one.
    pub(crate) fn rail(&mut self, net: &str, node: &str, rail: usize, rate: f64) {
        let lowest =
            self.rails.entry(net.to_owned()).or_default().entry((node.to_owned(), rail)).or_insert(rate);
        *lowest = lowest.min(rate);
    }

    /// A heat map of the highest value of each node in each repetition, of all figures with this beginning and end.
    pub(crate) fn course(&mut self, end: &str, beginning: &str, title: &str) {
        self.courses.push(Course {
            end: end.to_owned(),
            beginning: beginning.to_owned(),
            title: title.to_owned(),
        });
    }
}

/// A result that the journal names and whose file is intact.
struct Loaded {
    unit: Unit,
    result: UnitResult,
}

pub(super) fn build(facts: &Facts<'_>) -> Result<Report, BadJournal> {
    let state = State::follow(facts.entries)?;
    let plan = facts.plan;
    let units = plan.units();
    let mut build = Build {
        plan,
        figures: Figures::default(),
        inventory: Vec::new(),
        exceptions: Vec::new(),
        charts: Vec::new(),
        failed: BTreeSet::new(),
        items: Vec::new(),
        rails: BTreeMap::new(),
        courses: Vec::new(),
    };
    let loaded = load(&mut build, facts, &state, &units);
    about_the_run(&mut build, facts, &state, &units);
    for stage in STAGES {
        let of_stage: Vec<Of<'_>> = loaded
            .iter()
            .filter(|one| one.unit.stage == stage.id)
            .map(|one| Of { unit: &one.unit, result: &one.result })
            .collect();
        (stage.judge)(&mut build, &of_stage);
    }
    let figures = std::mem::take(&mut build.figures).all(&plan.expect, !plan.machines.is_empty());
    let items = figures.iter().filter_map(|figure| {
        let item = figure.item()?;
        Some(with_gaps(item, gaps(plan, figure, &figures)))
    });
    build.items.extend(items);
    for expect in &plan.expect {
        let has = |figure: &super::Figure| {
            figure.id == expect.figure || figure.id.starts_with(&format!("{}@", expect.figure))
        };
        if !figures.iter().any(has) {
            let what = format!("{}: not measured", expect.figure);
            let item = Item::new(&format!("figure.{}", expect.figure), "run", Outcome::Unknown, &what);
            build.add(item.tolerance("has a limit in the plan", &expect.source));
        }
    }
    repeatability(&mut build, &figures);
    let heat_maps: Vec<HeatMap> = heat::of_rails(&build.rails)
        .into_iter()
        .chain(heat::of_cards(&figures))
        .chain(build.courses.iter().filter_map(|course| heat::of_course(course, &figures)))
        .collect();
    let (ended, unknown) = losses(&state);
    let results = named(&state);
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let planned: BTreeSet<&str> = units.iter().map(|unit| unit.stage).collect();
    let not_in_plan = STAGES.iter().filter(|stage| !planned.contains(stage.id));
    Ok(Report {
        schema: 1,
        title: plan.title.clone(),
        run: state.run.clone(),
        railgate: facts.railgate.to_owned(),
        began: state.began,
        made: facts.now,
        plan_digest: facts.plan_digest.to_owned(),
        results_digest: digest_of_all(
            results.iter().map(|named| (named.name.as_str(), named.sha256.as_str())),
        ),
        results,
        journal_digest: facts.journal_digest.to_owned(),
        hostlist: facts.hostlist.to_owned(),
        nodes: plan.nodes.clone(),
        units_done: loaded.len(),
        units: units.len(),
        overall: Overall::Incomplete,
        mttf: mttf(node_hours(plan, &loaded), count(ended + build.failed.len()), count(unknown)),
        items: build.items,
        inventory: build.inventory,
        figures,
        heat_maps,
        charts: build.charts,
        exceptions: build.exceptions,
        not_in_plan: not_in_plan.map(|stage| format!("{}: {}", stage.id, stage.about)).collect(),
        changes: None,
    })
}

/// The result files that the journal names.
fn named(state: &State) -> Vec<Named> {
    let attempts = state.units.values().flat_map(|unit| &unit.attempts);
    let mut named: Vec<Named> = attempts
        .filter_map(|attempt| match &attempt.fate {
            Fate::Done { file, digest } => Some(Named { name: file.clone(), sha256: digest.clone() }),
            _ => None,
        })
        .collect();
    named.sort();
    named
}

/// Reads the files that the journal names, and adds the items `run.complete` and `run.results`.
fn load(build: &mut Build<'_>, facts: &Facts<'_>, state: &State, units: &[Unit]) -> Vec<Loaded> {
    let (mut loaded, mut damaged, mut lacking) = (Vec::new(), Vec::new(), Vec::new());
    for unit in units {
        let of = state.of(unit);
        let Some(Fate::Done { file, digest: want }) = of.and_then(|of| Some(&of.done()?.fate)) else {
            let last =
                of.and_then(|of| of.given_up.clone().or_else(|| Some(reason(&of.attempts.last()?.fate))));
            lacking.push(format!("{}: {}", unit.id, last.unwrap_or_else(|| "not submitted".to_owned())));
            continue;
        };
        let content = facts.files.iter().find(|known| known.name == *file).map(|known| &known.content);
        let result = match content {
            None => Err("the file is missing".to_owned()),
            Some(content) if digest(content) != *want => {
                Err("the file was changed after the journal recorded it".to_owned())
            }
            Some(content) => serde_json::from_slice::<UnitResult>(content).map_err(|why| why.to_string()),
        };
        match result {
            Ok(result) if result.run == state.run && result.unit == unit.id => {
                loaded.push(Loaded { unit: unit.clone(), result });
            }
            Ok(_) => damaged.push(format!("{file}: is the result of another unit or run")),
            Err(why) => damaged.push(format!("{file}: {why}")),
        }
    }
    let outcome = if lacking.is_empty() { Outcome::Pass } else { Outcome::Unknown };
    let what = format!("{} of {} jobs of the plan have a result", units.len() - lacking.len(), units.len());
    build.add(Item::new("run.complete", "run", outcome, &what).details(lacking).tolerance("all", "the plan"));
    let outcome = if damaged.is_empty() { Outcome::Pass } else { Outcome::Fail };
    let what = format!("{} files of raw results are as the journal recorded them", loaded.len());
    build.add(
        Item::new("run.results", "run", outcome, &what)
            .details(damaged)
            .tolerance("SHA-256 of each file", "journal.jsonl, written when the result was found"),
    );
    loaded
}

fn reason(fate: &Fate) -> String {
    match fate {
        Fate::Open => "its job is in the queue or runs".to_owned(),
        Fate::Lost { why, .. } => format!("without a result: {why}"),
        Fate::Done { .. } => "has a result".to_owned(),
    }
}

/// Exceptions: what was repeated, left out, interrupted or not used.
fn about_the_run(build: &mut Build<'_>, facts: &Facts<'_>, state: &State, units: &[Unit]) {
    let mut missing: BTreeSet<String> = BTreeSet::new();
    let mut used: BTreeSet<&str> = BTreeSet::new();
    for unit in units {
        let Some(of) = state.of(unit) else { continue };
        for attempt in &of.attempts {
            missing.extend(attempt.without.iter().map(|node| format!("{}: {node}", unit.id)));
            if let Fate::Done { file, .. } = &attempt.fate {
                used.insert(file);
            }
        }
        missing.extend(of.given_up.iter().map(|why| format!("{}: {why}", unit.id)));
        let lost = of.attempts.iter().filter_map(|attempt| match &attempt.fate {
            Fate::Lost { why, .. } => Some(format!("attempt {} without a result: {why}", attempt.number)),
            _ => None,
        });
        let lost: Vec<String> = lost.collect();
        if !lost.is_empty() {
            let count = of.attempts.len();
            build.exceptions.push(format!("{}: submitted {count} times; {}", unit.id, lost.join("; ")));
        }
    }
    for file in facts.files.iter().filter(|file| !used.contains(file.name.as_str())) {
        let why = "a result that the journal does not name: the unit was run once more, or its job ended after it was counted as lost";
        build.exceptions.push(format!("{}: not used: {why}", file.name));
    }
    for entry in facts.entries {
        let at = railgate_model::rfc3339(entry.at).unwrap_or_default();
        match &entry.event {
            Event::GivenUp { unit, why } => build.exceptions.push(format!("{at}: {unit} was not run: {why}")),
            Event::LateResult { unit, attempt, .. } => build.exceptions.push(format!(
                "{at}: {unit}: the result of attempt {attempt} is used, which had been counted as lost"
            )),
            Event::Continue {} => build.exceptions.push(format!("{at}: the run was continued")),
            Event::Stop { why } => build.exceptions.push(format!("{at}: the run was interrupted: {why}")),
            Event::Torn { bytes } => {
                build.exceptions.push(format!(
                    "{at}: the last line of the journal was not finished: {bytes} bytes removed"
                ));
            }
            _ => {}
        }
    }
    let ours = missing.iter().any(|line| line.contains("railgate:"));
    let outcome = match (missing.is_empty(), ours) {
        (true, _) => Outcome::Pass,
        (false, true) => Outcome::Fail,
        (false, false) => Outcome::Unknown,
    };
    build.add(
        Item::new("run.nodes", "run", outcome, "nodes are available for the jobs of the plan")
            .details(missing.into_iter().collect())
            .tolerance(
                "all nodes; a node drained by railgate is a failure",
                "the state of the node in Slurm",
            ),
    );
}

/// A limit of the plan holds for all parts: one without a value is unknown.
fn with_gaps(mut item: Item, gaps: Vec<String>) -> Item {
    if !gaps.is_empty() {
        item.outcome = item.outcome.max(Outcome::Unknown);
        item.details.extend(gaps);
    }
    item
}

/// Nodes and cards without a value of a figure that has a limit in the plan.
fn gaps(plan: &Plan, figure: &super::Figure, all: &[super::Figure]) -> Vec<String> {
    let (id, machine) = figure.id.split_once('@').unwrap_or((&figure.id, ""));
    let expected = |expect: &crate::plan::Expect| [id, figure.id.as_str()].contains(&expect.figure.as_str());
    // Figures of all nodes together have no parts, and fio runs on one node.
    let of_nodes = figure.values.iter().any(|value| !value.node.is_empty());
    if !plan.expect.iter().any(expected) || !of_nodes || id.starts_with("storage.fio.") {
        return Vec::new();
    }
    let of_machine = |node: &str| machine.is_empty() || plan.machine(node) == machine;
    let has = |node: &str| {
        figure.values.iter().any(|value| value.node == node || value.part.split(' ').any(|word| word == node))
    };
    let nodes = plan.nodes.iter().filter(|node| of_machine(node) && !has(node));
    let mut gaps: Vec<String> = nodes.map(|node| format!("{node}: no value")).collect();
    let stage = id.split('.').next().unwrap_or_default();
    let is_of_cards = ["node", "soak"].contains(&stage);
    if is_of_cards && figure.values.iter().all(|value| !value.part.contains(" to ")) {
        let measured: BTreeSet<&str> = figure.values.iter().map(|value| value.part.as_str()).collect();
        let of_stage = all.iter().filter(|other| other.id.split('.').next() == Some(stage));
        let parts: BTreeSet<&str> = of_stage
            .flat_map(|other| &other.values)
            .filter(|value| !value.part.contains(" to ") && of_machine(&value.node) && has(&value.node))
            .map(|value| value.part.as_str())
            .collect();
        gaps.extend(parts.difference(&measured).map(|part| format!("{part}: no value")));
    }
    gaps
}

fn repeatability(build: &mut Build<'_>, figures: &[super::Figure]) {
    let baselines = build.plan.collectives.iter().flat_map(|table| &table.baseline);
    let with_baseline: BTreeSet<String> =
        baselines.map(|one| format!("collectives.all-reduce.{}.busbw_gb_s", one.bytes)).collect();
    // A figure that is only shown may vary.
    let judged = |figure: &&super::Figure| {
        let id = figure.id.split('@').next().unwrap_or_default();
        matches!(figure.unit.as_str(), "TFLOP/s" | "GB/s")
            && !figure.id.starts_with("storage.")
            && (!figure.tolerance.is_empty() || with_baseline.contains(id))
    };
    let with: Vec<(&super::Figure, f64)> =
        figures.iter().filter(judged).filter_map(|figure| Some((figure, figure.spread_percent?))).collect();
    if with.is_empty() {
        return;
    }
    let over = with.iter().filter(|(_, spread)| *spread > MOST_SPREAD);
    let details: Vec<String> = over.map(|(figure, spread)| format!("{}: {spread:.1} %", figure.id)).collect();
    let outcome = if details.is_empty() { Outcome::Pass } else { Outcome::Fail };
    let rates = if with.len() == 1 { "rate" } else { "rates" };
    let what = format!("repeatability of {} {rates} of GPUs and collectives", with.len());
    build.add(Item::new("run.repeatability", "run", outcome, &what).details(details).tolerance(
        &format!("repetitions of one part differ by at most {MOST_SPREAD} % of its median"),
        SPREAD_SOURCE,
    ));
}

/// Hours that nodes worked. A round with an injected fault is not one of them: what fails in it is no failure of the node.
fn node_hours(plan: &Plan, loaded: &[Loaded]) -> f64 {
    let of_one = |one: &Loaded| {
        let seconds =
            u32::try_from(one.result.ended.saturating_sub(one.result.began) / 1000).unwrap_or(u32::MAX);
        f64::from(seconds) / 3600.0 * f64::from(u32::try_from(one.result.nodes.len()).unwrap_or(u32::MAX))
    };
    loaded.iter().filter(|one| !is_injected(plan, &one.unit)).map(of_one).sum()
}

/// Jobs that a failed node ended, and those of which that is not known.
fn losses(state: &State) -> (usize, usize) {
    let attempts = state.units.values().flat_map(|unit| &unit.attempts);
    let known = attempts.filter_map(|attempt| match attempt.fate {
        Fate::Lost { node_failed, .. } => Some(node_failed),
        _ => None,
    });
    let known: Vec<Option<bool>> = known.collect();
    let count = |what: Option<bool>| known.iter().filter(|one| **one == what).count();
    (count(Some(true)), count(None))
}
