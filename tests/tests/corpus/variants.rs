//! Variants of the recorded jobs: ended early, with samples missing, sampled half as often, or training for much longer. A
//! report may be silent about such a job, and must not give advice that is wrong for the recorded one.

use railgate_model::GpuField;
use railgate_node_report::usage::{Fold, Sample};

use crate::expect::Outcome;
use crate::{kinds, recordings};

/// A change of a job's samples, by a number. `None`: not of these.
type Change = fn(&[Sample], usize) -> Option<Vec<Sample>>;

struct Variant {
    what: &'static str,
    change: Change,
    numbers: &'static [usize],
    /// Interval of the sampler, seconds. Minutes are what it keeps of samples that are more than an hour old.
    interval_s: f64,
    /// Also of recordings with files of their ranks, which hold the state at the end of the job.
    with_files: bool,
}

const VARIANTS: [Variant; 5] = [
    Variant {
        what: "ended after so many tenths of it",
        change: ended_early,
        numbers: &[3, 4, 5, 6, 7, 8, 9],
        interval_s: 5.0,
        with_files: false,
    },
    Variant {
        what: "without every third sample, from",
        change: gaps,
        numbers: &[0, 1, 2],
        interval_s: 5.0,
        with_files: true,
    },
    Variant {
        what: "with samples of 10 s, after so many of 5 s",
        change: coarse,
        numbers: &[0, 1],
        interval_s: 10.0,
        with_files: true,
    },
    Variant {
        what: "with so many times its training",
        change: longer,
        numbers: &[3, 10, 60],
        interval_s: 5.0,
        with_files: false,
    },
    Variant {
        what: "in minutes, with so many times its training",
        change: minutes,
        numbers: &[60, 200],
        interval_s: 5.0,
        with_files: false,
    },
];

fn works(sample: &Sample) -> bool {
    let busy = |gpu: &railgate_node_report::usage::Values<GpuField>| {
        gpu.mean(GpuField::Graphics).or(gpu.mean(GpuField::AnyKernel))
    };
    sample.gpus.iter().filter_map(busy).any(|percent| percent >= 2.0)
}

/// Ended early, and not before its first work.
fn ended_early(samples: &[Sample], tenths: usize) -> Option<Vec<Sample>> {
    let kept = samples.get(..(samples.len() * tenths).div_ceil(10))?;
    (kept.len() < samples.len() && kept.iter().any(works)).then(|| kept.to_vec())
}

/// Without every third sample, beginning with one of the first three.
fn gaps(samples: &[Sample], from: usize) -> Option<Vec<Sample>> {
    let kept = samples.iter().enumerate().filter(|(at, _)| at % 3 != from);
    let kept: Vec<Sample> = kept.map(|(_, sample)| sample.clone()).collect();
    (!kept.is_empty()).then_some(kept)
}

/// So many samples folded into one.
fn folded(samples: &[Sample], into_one: usize) -> Option<Vec<Sample>> {
    let fold = |samples: &[Sample]| {
        let mut fold = Fold::default();
        samples.iter().for_each(|sample| fold.add(sample));
        fold.take()
    };
    samples.chunks(into_one).map(fold).collect()
}

/// Samples of twice the length, after so many of the usual one.
fn coarse(samples: &[Sample], fine: usize) -> Option<Vec<Sample>> {
    let (first, rest) = samples.split_at_checked(fine)?;
    Some([first.to_vec(), folded(rest, 2)?].concat())
}

fn minutes(samples: &[Sample], times: usize) -> Option<Vec<Sample>> {
    folded(&longer(samples, times)?, 12)
}

/// The samples between its first and its last work, several times. The second one with work may still hold a part of the start-up.
fn longer(samples: &[Sample], times: usize) -> Option<Vec<Sample>> {
    let (first, last) = (samples.iter().position(works)? + 2, samples.iter().rposition(works)?);
    let middle = samples.get(first..last).filter(|middle| !middle.is_empty())?;
    let (before, after) = (samples.get(..first)?, samples.get(last..)?);
    let mut clock = samples.first()?.start;
    let all = before.iter().chain(std::iter::repeat_n(middle, times).flatten()).chain(after);
    let placed = all.map(|sample| {
        let sample = Sample { start: clock, ..sample.clone() };
        clock = sample.end();
        sample
    });
    Some(placed.collect())
}

#[test]
fn reports_of_shorter_coarser_and_longer_jobs_give_no_wrong_advice() {
    let kinds = kinds();
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (gpu, name, recording) in recordings() {
        let kind = kinds.get(&name).unwrap_or_else(|| panic!("{name} is not in corpus.toml"));
        for Variant { what, change, numbers, interval_s, with_files } in VARIANTS {
            for &number in numbers.iter().filter(|_| with_files || !recording.has_files()) {
                let Some(said) = recording.said_of(interval_s, |samples| change(samples, number)).unwrap()
                else {
                    continue;
                };
                count += 1;
                if kind.outcome(&said, None).unwrap() == Outcome::Wrong {
                    wrong.push(format!("{gpu}/{name} {what}, {number}: {}", said.advice));
                }
            }
        }
    }
    assert!(count > 0 && wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
    println!("{count} variants without wrong advice");
}
