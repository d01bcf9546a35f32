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

/// What holds at any rate of failures. How many lemons can be found depends on how often they fail.
fn check(name: &str, score: &Score) {
    println!("{}\n{}", score.row(name), score.details.join("\n"));
    assert!(score.lemons.precision() >= 0.9, "{name}: {:?}", score.lemons);
    assert_eq!(score.framed, 0, "{name}: lemons by jobs or accusations");
    assert!(score.as_one_share() >= 0.95, "{name}: {} of {}", score.as_one, score.planted);
    assert_eq!(score.drains_in_storms, 0, "{name}: drains during incidents");
    assert!(score.ettr_share() >= 0.9, "{name}: {} of {}", score.ettr_held, score.jobs);
}

#[test]
fn a_thousand_nodes_for_28_days() {
    println!("{}", Score::HEAD);
    let score = sum((1..=2).map(|seed| Parameters::new(1000, 28, seed)), 1, 5);
    check("1,000 x 28", &score);
    assert!(score.lemons.recall() >= 0.8, "{:?}", score.lemons);
}

#[test]
fn other_rates_of_failure() {
    println!("{}", Score::HEAD);
    for factor in [0.5, 2.0] {
        let score = sum(std::iter::once(Parameters::new(1000, 28, 11).times(factor)), 1, 10);
        check(&format!("1,000 x 28, rates x {factor}"), &score);
    }
}

/// The rows of the page: seeds that were not used while the rules were made.
#[test]
#[ignore = "minutes, even in release"]
fn large_fleets() {
    println!("{}", Score::HEAD);
    for factor in [1.0, 0.5, 2.0] {
        let fleets = (101..=108).map(|seed| Parameters::new(1000, 28, seed).times(factor));
        let score = sum(fleets, 3, 1);
        check(&format!("8 x 1,000 nodes, 28 days, rates x {factor}"), &score);
        assert!(factor < 1.0 || score.lemons.recall() >= 0.8, "{:?}", score.lemons);
    }
    for factor in [1.0, 0.5, 2.0] {
        let score = sum(std::iter::once(Parameters::new(4096, 90, 201).times(factor)), 3, 7);
        check(&format!("4,096 nodes, 90 days, rates x {factor}"), &score);
        assert!(score.lemons.recall() >= 0.8, "{:?}", score.lemons);
    }
}
