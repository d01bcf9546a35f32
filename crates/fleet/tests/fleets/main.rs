//! Fleets with known truth. `cargo test --release -p railgate-fleet --test fleets -- --ignored --nocapture` prints the rows of
//! `docs/accuracy.md`, each with what went wrong; without `--ignored` a few smaller fleets.
#![expect(clippy::unwrap_used, reason = "tests")]
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "durations and counts of a simulation"
)]

mod generator;
mod meta;
mod page;
mod random;
mod score;
mod work;

use generator::Parameters;
use score::{Score, play};

fn sum(fleets: impl Iterator<Item = Parameters>, storms: usize, every: u64) -> Score {
    let mut sum = Score::default();
    for parameters in fleets {
        sum.add(&play(&parameters, storms, every));
    }
    sum
}

/// The head of the table is repeated before each row: tests run side by side.
fn print(name: &str, score: &Score) {
    println!("{}\n{}\n{}", Score::HEAD, score.row(name), score.details.join("\n"));
}

/// What holds at any rate of failures. How many lemons can be found depends on how often they fail.
fn check(name: &str, score: &Score) {
    assert!(score.lemons.precision() >= 0.9, "{name}: {:?}", score.lemons);
    assert_eq!(score.framed, 0, "{name}: lemons by jobs or accusations");
    assert!(score.as_one_share() >= 0.95, "{name}: {} of {}", score.as_one, score.planted);
    assert_eq!(score.drains_in_storms, 0, "{name}: drains during incidents");
    assert!(score.ettr_share() >= 0.9, "{name}: {} of {}", score.ettr_held, score.jobs);
}

#[test]
fn a_thousand_nodes_for_28_days() {
    let score = sum((1..=4).map(|seed| Parameters::new(1000, 28, seed)), 1, 4);
    print("1,000 x 28", &score);
    check("1,000 x 28", &score);
    assert!(score.lemons.recall() >= 0.8, "{:?}", score.lemons);
}

#[test]
fn other_rates_of_failure() {
    for factor in [0.5, 2.0] {
        let score = sum((11..=13).map(|seed| Parameters::new(1000, 28, seed).times(factor)), 1, 4);
        let name = format!("1,000 x 28, rates x {factor}");
        print(&name, &score);
        check(&name, &score);
    }
}

/// Rows of the page: seeds that were not used while the rules were made.
fn eight_fleets(name: &str, with: impl Fn(Parameters) -> Parameters, recall: f64) {
    let fleets = (401..=408).map(|seed| with(Parameters::new(1000, 28, seed)));
    let (name, score) = (format!("8 x 1,000 nodes, 28 days{name}"), sum(fleets, 3, 2));
    print(&name, &score);
    check(&name, &score);
    assert!(score.lemons.recall() >= recall, "{name}: {:?}", score.lemons);
}

#[test]
#[ignore = "minutes, even in release"]
fn eight_fleets_at_the_usual_rates() {
    eight_fleets("", |usual| usual, 0.8);
}

/// In 28 days many lemons fail only once or twice.
#[test]
#[ignore = "minutes, even in release"]
fn eight_fleets_at_half_the_rates() {
    eight_fleets(", rates x 0.5", |usual| usual.times(0.5), 0.5);
}

#[test]
#[ignore = "minutes, even in release"]
fn eight_fleets_with_weaker_lemons() {
    eight_fleets(", lemons with half of the faults", |usual| Parameters { of_lemons: 0.5, ..usual }, 0.7);
}

#[test]
#[ignore = "minutes, even in release"]
fn eight_fleets_at_twice_the_rates() {
    eight_fleets(", rates x 2", |usual| usual.times(2.0), 0.8);
}

#[test]
#[ignore = "minutes, even in release"]
fn a_large_fleet_for_90_days() {
    let score = sum(std::iter::once(Parameters::new(4096, 90, 501)), 1, 14);
    print("4,096 nodes, 90 days", &score);
    check("4,096 nodes, 90 days", &score);
    assert!(score.lemons.recall() >= 0.8, "{:?}", score.lemons);
}
