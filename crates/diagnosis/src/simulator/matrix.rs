//! Tests that the rules name the planted fault, for each set of data sources.

use railgate_model::Reading;

use super::*;
use crate::{Analysis, Outcome, Rules, analyse};

const SEEDS: u64 = 20;

fn analysed(planted: Planted<'_>, seed: u64, heard: Heard) -> (Run, Analysis) {
    let run = run(planted, &mut Chance(seed));
    let nodes = nodes(planted, &run, heard);
    let outcome = if run.failed { Outcome::Failed } else { Outcome::Good };
    let analysis = analyse(&nodes, nodes[0].end, outcome, None, &Rules::DEFAULT).unwrap();
    (run, analysis)
}

/// Confusion matrix. Rows: planted fault; columns: first finding.
fn matrix(heard: Heard) -> (String, usize, usize, usize) {
    use std::fmt::Write as _;
    let (mut text, mut right, mut wrong, mut all) = (String::new(), 0, 0, 0);
    let _ = writeln!(text, "| planted | named rightly | of | instead |\n|---|---:|---:|---|");
    for (plant, about, want) in PLANTS {
        let mut named = 0;
        let mut instead = std::collections::BTreeMap::<String, usize>::new();
        for seed in 0..SEEDS {
            let (run, analysis) = analysed(&[plant], seed * 77 + 5, heard);
            let first = analysis.diagnoses.first();
            let rule = first.map_or("", |first| first.rule.as_str());
            let part = first.map_or("", |first| first.part.as_str());
            let who = format!("n{} GPU {}", run.odd / PER_NODE, run.odd % PER_NODE);
            let rank = format!("rank {}", run.odd);
            let whose = match plant {
                Plant::UnusedGpu => part == format!("n{} GPU {PER_NODE}", run.odd / PER_NODE),
                Plant::Sleeps
                | Plant::Pauses
                | Plant::SlowClock
                | Plant::SmallBatch
                | Plant::Nan
                | Plant::Killed
                | Plant::Hang => part.ends_with(&rank) || part.starts_with(&who),
                _ => true,
            };
            if rule == want && whose {
                named += 1;
            } else {
                let label = match (rule, rule == want) {
                    ("", _) => "nothing".to_owned(),
                    (rule, false) => rule.to_owned(),
                    (rule, true) if part.is_empty() => format!("{rule}, rank not named"),
                    (rule, true) => format!("{rule}, of another"),
                };
                wrong += usize::from(label != "nothing" && !label.ends_with("not named"));
                *instead.entry(label).or_default() += 1;
            }
        }
        let instead: Vec<String> = instead.iter().map(|(rule, count)| format!("{rule} {count}")).collect();
        let _ = writeln!(text, "| {about} | {named} | {SEEDS} | {} |", instead.join(", "));
        right += named;
        all += SEEDS as usize;
    }
    (text, right, wrong, all)
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test reads a page, the crate does not")]
fn planted_faults_are_named() {
    let (text, right, _, all) = matrix(ALL);
    let no_nccl = matrix(Heard { nccl: false, ..ALL });
    let no_helper = matrix(Heard { application: false, waits_told: false, ..ALL });
    let no_gpm = matrix(Heard { gpm: false, ..ALL });
    let sampler = matrix(Heard { application: false, waits_told: false, nccl: false, gpm: true });
    let (pairs, pairs_wrong, all_pairs) = two_at_once();
    let tables = [&text, &sampler.0, &no_helper.0, &no_nccl.0, &no_gpm.0, &pairs];
    tables.iter().for_each(|table| println!("{table}"));
    assert!(right * 10 >= all * 9, "{right} of {all}");
    // With fewer data sources fewer faults are named, but never a wrong part.
    for (heard, found) in
        [("no plugin", &no_nccl), ("no helper", &no_helper), ("no GPM", &no_gpm), ("alone", &sampler)]
    {
        assert!(found.2 * 20 <= found.3, "{heard}: {} of {} wrong\n{}", found.2, found.3, found.0);
    }
    assert!(pairs_wrong * 20 <= all_pairs, "{pairs_wrong} of {all_pairs} wrong\n{pairs}");
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/accuracy.md");
    let page = std::fs::read_to_string(page).unwrap_or_default();
    for (heard, table) in [
        ("all", &text),
        ("the sampler alone", &sampler.0),
        ("no helper", &no_helper.0),
        ("no plugin", &no_nccl.0),
        ("no GPM", &no_gpm.0),
        ("two at once", &pairs),
    ] {
        assert!(page.contains(table.as_str()), "docs/accuracy.md, {heard}: the table is now\n{table}");
    }
}

/// Two faults in one run, in the same rank where each has one: both must be named, in any order; any other
/// finding is wrong.
fn two_at_once() -> (String, usize, usize) {
    use Plant::{
        Hang, InputStalls, MemoryBound, Nan, Sleeps, SlowClock, SlowRail, SmallBatch, StoppedRail,
        TinyKernels,
    };
    use std::fmt::Write as _;
    let pairs = [
        [SlowClock, InputStalls],
        [SlowClock, SlowRail],
        [SlowClock, MemoryBound],
        [Sleeps, TinyKernels],
        [Sleeps, InputStalls],
        [SmallBatch, MemoryBound],
        [InputStalls, MemoryBound],
        [InputStalls, SlowRail],
        [SlowClock, StoppedRail],
        [Nan, SlowClock],
        [Hang, InputStalls],
    ];
    let of = |plant: Plant| PLANTS.iter().find(|row| row.0 == plant).copied().unwrap();
    let (mut text, mut wrong, mut all) = (String::new(), 0, 0);
    let _ = writeln!(text, "| planted | both named | of | instead |\n|---|---:|---:|---|");
    for pair in pairs {
        let mut named = 0;
        let mut instead = std::collections::BTreeMap::<String, usize>::new();
        for seed in 0..SEEDS {
            let (_, analysis) = analysed(&pair, seed * 77 + 5, ALL);
            let found: std::collections::BTreeSet<&str> =
                analysis.diagnoses.iter().map(|one| one.rule.as_str()).collect();
            let want: std::collections::BTreeSet<&str> = pair.iter().map(|plant| of(*plant).2).collect();
            if found == want {
                named += 1;
            } else {
                wrong += usize::from(!found.is_subset(&want));
                let label = found.into_iter().collect::<Vec<_>>().join(" and ");
                *instead.entry(if label.is_empty() { "nothing".to_owned() } else { label }).or_default() += 1;
            }
        }
        let instead: Vec<String> = instead.iter().map(|(rule, count)| format!("{rule} {count}")).collect();
        let about = format!("{} and {}", of(pair[0]).1, of(pair[1]).1);
        let _ = writeln!(text, "| {about} | {named} | {SEEDS} | {} |", instead.join(", "));
        all += SEEDS as usize;
    }
    (text, wrong, all)
}

#[test]
fn healthy_job_has_no_findings() {
    let (_, analysis) = analysed(&[], 3, ALL);
    assert_eq!(analysis.diagnoses, []);
    let shares = analysis.shares.known().unwrap();
    let known = |reading: &Reading<f64>| *reading.known().unwrap();
    let sum = shares.compute
        + known(&shares.comm_wait)
        + known(&shares.comm_wire)
        + shares.memory
        + known(&shares.input)
        + shares.launch
        + shares.idle
        + known(&shares.checkpoint);
    assert!((sum - 100.0).abs() < 0.5, "{shares:?}");
    assert_eq!(shares.confidence, "high");
    let good = analysis.goodput.known().unwrap();
    let parts =
        good.productive_s + good.start_up_s + good.checkpoint_s + good.redone_s + good.tail_s + good.other_s;
    assert!((parts - good.allocated_s).abs() < 0.1, "{good:?}");
}

/// Computed by hand: 8 ranks of 4,096 tokens in 1.2 s at 4.3e10 FLOP per token are 1,174 TFLOP/s, of 8 × 989.4.
#[test]
fn model_flop_utilisation_matches_a_manual_calculation() {
    let (_, analysis) = analysed(&[], 3, ALL);
    let model = analysis.model.known().unwrap();
    let by_hand = model.units_per_s * 4.3e10 / 1e12 / (8.0 * 989.4);
    assert!((model.fraction - by_hand).abs() < 1e-9 && (0.13..0.16).contains(&model.fraction), "{model:?}");
    assert!(*model.of_allocated.known().unwrap() < model.fraction);
    assert!((model.peak_tflops - 989.4).abs() < 1e-6);
    assert_eq!((model.gpus, model.unit.as_str()), (8.0, "tokens"));
}

#[test]
fn missing_data_is_unknown_and_not_zero() {
    let none = Heard { application: false, waits_told: false, nccl: false, gpm: true };
    let (_, analysis) = analysed(&[], 3, none);
    assert!(matches!(&analysis.model, Reading::Failed(why) if why.contains("does not report")));
    assert!(matches!(&analysis.goodput, Reading::Failed(_)));
    let shares = analysis.shares.known().unwrap();
    assert!(matches!(&shares.comm_wait, Reading::Failed(_)) && matches!(&shares.input, Reading::Failed(_)));
    assert_eq!(shares.confidence, "low");
    assert_eq!(analyse(&[], None, Outcome::Good, None, &Rules::DEFAULT), None);
}

#[test]
fn repeated_steps_of_an_earlier_attempt_are_counted() {
    let run = run(&[], &mut Chance(9));
    let mut nodes = nodes(&[], &run, ALL);
    for rank in nodes.iter_mut().filter_map(|node| node.application.as_mut()).flat_map(|told| &mut told.ranks)
    {
        (rank.first_number, rank.last_number) = (Some(1000), Some(1399));
    }
    let good = |before| {
        let analysis = analyse(&nodes, nodes[0].end, Outcome::Good, before, &Rules::DEFAULT).unwrap();
        analysis.goodput.known().unwrap().clone()
    };
    let (fresh, again) = (good(None), good(Some(1099)));
    assert_eq!(fresh.redone_s, 0.0);
    // 100 repeated steps.
    assert!((again.redone_s - 100.0 * fresh.productive_s / 399.0).abs() < 0.5, "{again:?}");
    assert_eq!(good(Some(999)), fresh);
}
