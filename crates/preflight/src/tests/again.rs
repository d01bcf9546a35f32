//! Slow pairs are measured again in the same round.

use super::healthy::measured;
use super::simulated::{ASSUMED, Fabric, Fault, HICCUPS, Harm, QUIET, Random, assert_named, named};
use crate::{DEFAULT_REPEATS, End, NoteKind, Outcome, Pair, Place, Plan, Round, Settings, Tested, What};

const GOOD: Outcome = Outcome::Measured { gbps: [389.0; 2], latency_us: 3.0 };
const SLOW: Outcome = Outcome::Measured { gbps: [140.0, 389.0], latency_us: 3.0 };
const LATE: Outcome = Outcome::Measured { gbps: [389.0; 2], latency_us: 30.0 };
const CORRUPT: Outcome = Outcome::Corrupt { wrong_words: [0, 7] };

fn failed(down_end: Option<usize>) -> Outcome {
    Outcome::Failed { why: "transport retry counter exceeded".to_owned(), down_end }
}

/// Pairs of neighbours.
fn neighbours(nodes: usize) -> Vec<Pair> {
    (0..nodes / 2).map(|number| Pair { left: 2 * number, right: 2 * number + 1 }).collect()
}

/// A round of these pairs with two rails. `result` has the number of the pair and the rail.
fn round(pairs: Vec<Pair>, result: impl Fn(usize, usize) -> Outcome) -> Round {
    let tests = pairs.iter().enumerate().flat_map(|(number, pair)| [(number, *pair, 0), (number, *pair, 1)]);
    let tested =
        tests.map(|(number, pair, rail)| Tested { pair, rail, outcome: result(number, rail) }).collect();
    Round { pairs, tested, measured_again: 0 }
}

fn plan(nodes: usize) -> Plan {
    Plan::new(vec![Place::unknown(2); nodes], Settings::default())
}

/// Numbers of the pairs of one round of 16 nodes that are measured again.
fn again(result: impl Fn(usize, usize) -> Outcome) -> Vec<usize> {
    let pairs = plan(16).again(&[round(neighbours(16), result)]);
    pairs.iter().map(|pair| pair.left / 2).collect()
}

#[test]
fn pairs_with_a_slow_or_late_rail_are_measured_again() {
    let result = |number: usize, rail: usize| match (number, rail) {
        (2, 1) => SLOW,
        (5, 0) => LATE,
        _ => GOOD,
    };
    assert_eq!(again(result), [2, 5]);
    assert_eq!(plan(16).again(&[]), []);
}

#[test]
fn a_result_just_above_the_limit_is_measured_again() {
    let of = |share: f64, times: f64| {
        let near = Outcome::Measured { gbps: [389.0, 389.0 * share], latency_us: 3.0 * times };
        again(move |number, rail| if (number, rail) == (3, 1) { near.clone() } else { GOOD })
    };
    assert_eq!(of(0.805, 1.0), [3]);
    assert_eq!(of(1.0, 2.98), [3]);
    assert_eq!(of(0.81, 2.95), Vec::<usize>::new());
}

#[test]
fn facts_are_no_reason_to_measure_again() {
    let unknown = Outcome::Unknown { why: "timeout".to_owned() };
    let not_valid = Outcome::Measured { gbps: [f64::NAN, 389.0], latency_us: 3.0 };
    for outcome in [CORRUPT, failed(None), failed(Some(4)), unknown, not_valid] {
        let result = |number, rail| if (number, rail) == (2, 1) { outcome.clone() } else { GOOD };
        assert_eq!(again(result), Vec::<usize>::new(), "{outcome:?}");
        // Another rail of the pair is one.
        let with_slow = |number, rail| if (number, rail) == (2, 0) { SLOW } else { result(number, rail) };
        assert_eq!(again(with_slow), [2], "{outcome:?}");
    }
}

#[test]
fn a_rail_that_is_slow_in_most_pairs_is_no_reason() {
    // Above half of eight pairs; the other rail still is one.
    let of = |slow: usize| {
        move |number: usize, rail: usize| match (number, rail) {
            (7, 1) => SLOW,
            (_, 0) if number < slow => LATE,
            _ => GOOD,
        }
    };
    assert_eq!(again(of(3)), [0, 1, 2, 7]);
    // The upper one of two middle latencies is then the high one: 4 of 8 are not late.
    let slow = |count: usize| {
        move |number: usize, rail: usize| if rail == 0 && number < count { SLOW } else { GOOD }
    };
    assert_eq!(again(slow(4)), [0, 1, 2, 3]);
    assert_eq!(again(slow(5)), Vec::<usize>::new());
    let both =
        |number: usize, rail: usize| if (number, rail) == (7, 1) { SLOW } else { slow(5)(number, rail) };
    assert_eq!(again(both), [7]);
    // Few pairs have no majority.
    let three = round(neighbours(6), |_, rail| if rail == 0 { SLOW } else { GOOD });
    assert_eq!(plan(6).again(&[three]), neighbours(6));
}

#[test]
fn a_rail_that_stayed_slow_in_two_rounds_is_no_reason() {
    // Rail 0 of the first node with three partners; in the third round also rail 0 of the fifth, and once rail 1 of the first.
    let with = |step: usize| -> Vec<Pair> {
        (0..8).map(|node| Pair { left: node, right: 8 + (node + step) % 8 }).collect()
    };
    let slow = |number: usize, rail: usize| if (number, rail) == (0, 0) { SLOW } else { GOOD };
    let third = |number: usize, rail: usize| if (number, rail) == (4, 0) { SLOW } else { slow(number, rail) };
    let mut history = vec![round(with(0), slow), round(with(1), slow)];
    assert_eq!(plan(16).again(&history), [with(1)[0]], "the second round");
    history.push(round(with(2), third));
    assert_eq!(plan(16).again(&history), [with(2)[4]]);
    let other_rail =
        |number: usize, rail: usize| if (number, rail) == (0, 1) { SLOW } else { third(number, rail) };
    history[2] = round(with(2), other_rail);
    assert_eq!(plan(16).again(&history), [with(2)[0], with(2)[4]]);
}

#[test]
fn a_node_is_in_one_pair_at_a_time() {
    let pairs = vec![Pair { left: 0, right: 1 }, Pair { left: 1, right: 2 }, Pair { left: 2, right: 3 }];
    let all_slow = round(pairs.clone(), |_, rail| if rail == 1 { LATE } else { SLOW });
    let mut history = vec![round(neighbours(16), |_, _| GOOD)];
    history.push(all_slow);
    assert_eq!(plan(16).again(&history), [pairs[0], pairs[2]]);
}

/// The outcome of a pair whose measurements were these, the second one with the nodes in the other order if `turned`.
fn merged(first: Outcome, second: Outcome, turned: bool) -> Outcome {
    let pair = Pair { left: 0, right: 1 };
    let mut round = Round {
        pairs: vec![pair],
        tested: vec![Tested { pair, rail: 0, outcome: first }],
        ..Round::default()
    };
    let of_second = if turned { Pair { left: 1, right: 0 } } else { pair };
    round.measure_again(&[pair], vec![Tested { pair: of_second, rail: 0, outcome: second }]);
    assert_eq!((round.tested.len(), round.measured_again), (1, 1));
    round.tested.remove(0).outcome
}

#[test]
fn the_best_measurement_of_each_direction_counts() {
    let of = |there, back, latency_us| Outcome::Measured { gbps: [there, back], latency_us };
    let first = of(140.0, 380.0, 3.0);
    let second = of(385.0, 90.0, 2.5);
    assert_eq!(merged(first.clone(), second.clone(), false), of(385.0, 380.0, 2.5));
    assert_eq!(merged(first.clone(), second, true), of(140.0, 385.0, 2.5));
    // Figures that are no measurement change nothing.
    for other in [of(f64::NAN, 400.0, 1.0), Outcome::Unknown { why: String::new() }] {
        assert_eq!(merged(first.clone(), other.clone(), false), first);
        assert_eq!(merged(other, first.clone(), false), first);
    }
}

#[test]
fn facts_stay_whichever_measurement_they_are_from() {
    let unknown = Outcome::Unknown { why: String::new() };
    for (weaker, fact) in [
        (GOOD, CORRUPT),
        (unknown.clone(), CORRUPT),
        (failed(None), CORRUPT),
        (failed(Some(1)), CORRUPT),
        (GOOD, failed(None)),
        (unknown, failed(None)),
        (GOOD, failed(Some(1))),
        (failed(None), failed(Some(1))),
    ] {
        assert_eq!(merged(weaker.clone(), fact.clone(), false), fact);
        assert_eq!(merged(fact.clone(), weaker, false), fact);
    }
    let words = |there, back| Outcome::Corrupt { wrong_words: [there, back] };
    assert_eq!(merged(words(7, 0), words(1, 2), false), words(8, 2));
    assert_eq!(merged(words(7, 0), words(1, 2), true), words(9, 1));
    assert_eq!(merged(words(u64::MAX, 0), words(1, 0), false), words(u64::MAX, 0));
    // No wrong word is no fact.
    assert_eq!(merged(words(0, 0), GOOD, false), GOOD);
}

#[test]
fn a_result_that_was_missing_is_taken() {
    let pair = Pair { left: 0, right: 1 };
    let mut round = Round { pairs: vec![pair], ..Round::default() };
    let late = Tested { pair, rail: 3, outcome: GOOD };
    round.measure_again(&[pair], vec![late.clone()]);
    assert_eq!(round.tested, [late]);
}

#[test]
fn hiccups_accuse_nothing() {
    for seed in 0..300 {
        let report = Fabric::new(64, HICCUPS, seed).run().report;
        assert_eq!(named(&report), Vec::<&What>::new(), "seed {seed}: {:#?}", report.verdicts);
    }
}

#[test]
fn a_slow_rail_is_named_although_the_best_measurement_counts() {
    // Of what the part sends and receives. With 75 % and this noise, one measurement in 100 is above the limit.
    for shares in [[0.6, 0.6], [0.75, 0.75], [0.6, 1.0], [1.0, 0.6]] {
        let noises = measured(0.0, 1.0).into_iter().chain([("assumed", ASSUMED, Settings::default())]);
        for (name, noise, settings) in noises {
            for seed in 0..200 {
                let mut random = Random(seed);
                let fault = Fault::Rail(End { node: random.below(64), rail: random.below(8) }, Harm::Slow);
                let mut fabric = Fabric::new(64, noise, seed).with(&[fault]);
                (fabric.settings, fabric.slow) = (settings.clone(), Some(shares));
                let run = fabric.run();
                assert_named(&run, &[fault], &format!("{name}, {shares:?}, seed {seed}"));
            }
        }
    }
}

#[test]
fn faults_are_named_among_measured_noise_with_pauses() {
    let harms = [Harm::Slow, Harm::Corrupt, Harm::Failed, Harm::Down];
    for (name, noise, settings) in measured(0.0, 1.0) {
        for (seed, harm) in (0..400).zip(harms.into_iter().cycle()) {
            let mut random = Random(seed);
            let fault = Fault::Rail(End { node: random.below(64), rail: random.below(8) }, harm);
            let mut fabric = Fabric::new(64, noise, seed).with(&[fault]);
            fabric.settings = settings.clone();
            assert_named(&fabric.run(), &[fault], &format!("{name}, seed {seed}"));
        }
    }
}

#[test]
fn wrong_values_in_one_measurement_of_many_are_kept() {
    let (mut some, mut kept) = (0, 0);
    for seed in 0..300 {
        let mut random = Random(seed);
        let end = End { node: random.below(64), rail: random.below(8) };
        // Slow as well, so that the pair is measured again.
        let mut fabric = Fabric::new(64, QUIET, seed)
            .with(&[Fault::Rail(end, Harm::Slow), Fault::Rail(end, Harm::Corrupt)]);
        fabric.one_corrupt_in = 4;
        let run = fabric.run();
        let has_wrong =
            |round: &Round| round.tested.iter().any(|one| matches!(one.outcome, Outcome::Corrupt { .. }));
        some += usize::from(run.rounds.iter().any(has_wrong));
        let verdict = &run.report.verdicts[0];
        assert!(Fault::Rail(end, Harm::Slow).is(&verdict.what), "seed {seed}: {verdict:?}");
        kept += usize::from(matches!(verdict.sign, crate::Sign::Corrupt { .. }));
    }
    assert!(some > 200, "{some} of 300");
    assert_eq!(kept, some);
}

#[test]
fn a_bad_rail_costs_four_repeats() {
    let fault = Fault::Rail(End { node: 20, rail: 3 }, Harm::Slow);
    let rounds = Fabric::new(64, QUIET, 1).with(&[fault]).run().rounds;
    assert_eq!(rounds.iter().map(|round| round.measured_again).collect::<Vec<_>>(), [2, 2, 0]);
    let rounds = Fabric::new(64, QUIET, 1).with(&[fault]).repeats(0).run().rounds;
    assert!(rounds.iter().all(|round| round.measured_again == 0));
}

#[test]
fn a_pause_is_no_note_once_it_is_over() {
    // The same pause, with and without a repeat.
    let pair = Pair { left: 0, right: 1 };
    let slow = |number: usize, rail: usize| if (number, rail) == (0, 0) { SLOW } else { GOOD };
    let second: Vec<Pair> = (0..8).map(|node| Pair { left: node, right: node + 8 }).collect();
    let mut history = vec![round(neighbours(16), slow), round(second, |_, _| GOOD)];
    assert_eq!(plan(16).next(&history), Some(vec![pair]));
    history[0].measure_again(&[pair], vec![Tested { pair, rail: 0, outcome: GOOD }]);
    assert_eq!(plan(16).next(&history), None);
    let report = plan(16).report(&history);
    assert_eq!((report.verdicts.len(), report.notes.len()), (0, 0));
    assert!(report.notes.iter().all(|note| note.kind == NoteKind::SlowOnce));
    assert_eq!(DEFAULT_REPEATS, 2);
}
