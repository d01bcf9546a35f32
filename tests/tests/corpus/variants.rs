//! Variants of the recorded jobs: ended early, with samples missing, sampled half as often, training or starting for much longer, on
//! a machine that lacks some of the counters or whose chips differ, cut off, or beside another program in one job. A report may be
//! silent about such a job, and must not give advice that is wrong for the recorded one.

use railgate_model::GpuField;
use railgate_node_report::usage::{Field, Fold, HostField, Sample, Value, Values};
use regex::Regex;

use crate::expect::Outcome;
use crate::recording::{Recording, Said};
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
    /// First lines with these words are right as well.
    also_right: &'static [&'static str],
    /// A rule that finds nothing in these jobs, even if another finding comes first.
    not_by: &'static str,
}

const VARIANTS: [Variant; 15] = [
    Variant {
        what: "ended after so many tenths of it",
        change: ended_early,
        numbers: &[3, 4, 5, 6, 7, 8, 9],
        interval_s: 5.0,
        with_files: false,
        also_right: &[],
        not_by: "",
    },
    Variant {
        what: "without every third sample, from",
        change: gaps,
        numbers: &[0, 1, 2],
        interval_s: 5.0,
        with_files: true,
        also_right: &[],
        not_by: "",
    },
    Variant {
        what: "with samples of 10 s, after so many of 5 s",
        change: coarse,
        numbers: &[0, 1],
        interval_s: 10.0,
        with_files: true,
        also_right: &[],
        not_by: "",
    },
    Variant {
        what: "with so many times its training",
        change: longer,
        numbers: &[3, 10, 60],
        interval_s: 5.0,
        with_files: false,
        also_right: &[],
        not_by: "",
    },
    Variant {
        what: "in minutes, with so many times its training",
        change: minutes,
        numbers: &[60, 200],
        interval_s: 5.0,
        with_files: false,
        also_right: &[],
        not_by: "",
    },
    Variant {
        what: "with so many times its start-up",
        change: longer_start,
        numbers: &[3, 10, 60],
        interval_s: 5.0,
        with_files: false,
        also_right: &["the job's start-up took"],
        not_by: "",
    },
    Variant {
        what: "with so many times its last idle sample",
        change: longer_end,
        numbers: &[3, 10],
        interval_s: 5.0,
        with_files: false,
        also_right: &["no kernel ran on the GPU for the last", "the job probably saves checkpoints"],
        not_by: "",
    },
    Variant {
        what: "with samples that begin so many tenths of one later",
        change: shifted,
        numbers: &[2, 5, 8],
        interval_s: 5.0,
        with_files: true,
        also_right: &[],
        not_by: "",
    },
    Variant {
        what: "trained for so many tenths of a sample, of which half lie in each of two",
        change: moment,
        numbers: &[4, 6, 10, 14, 18],
        interval_s: 5.0,
        with_files: false,
        also_right: &[],
        not_by: "",
    },
    Variant {
        what: "without a group of counters (LACKS), number",
        change: lacking,
        numbers: &[0, 1, 2, 3, 4, 5, 6],
        interval_s: 5.0,
        with_files: true,
        also_right: &[],
        not_by: "",
    },
    Variant {
        what: "with a first chip that the power cap holds to so many percent less than the clock of the second one",
        change: hotter_chip,
        numbers: &[4, 8, 12],
        interval_s: 5.0,
        with_files: true,
        also_right: &[],
        not_by: "slow-clock",
    },
    Variant {
        what: "with a first chip that the power cap holds to so many percent less, after a start-up of 60 times its length",
        change: hotter_chip_later,
        numbers: &[4, 8, 12],
        interval_s: 5.0,
        with_files: true,
        also_right: &["the job's start-up took"],
        not_by: "slow-clock",
    },
    Variant {
        what: "at work from the first sample on",
        change: without_start,
        numbers: &[0],
        interval_s: 5.0,
        with_files: false,
        also_right: &[],
        not_by: "",
    },
    Variant {
        what: "with a rest of so many samples in the middle",
        change: rests,
        numbers: &[1, 4, 12],
        interval_s: 5.0,
        with_files: false,
        also_right: &["no kernel ran on the GPU for", "no kernel runs on any GPU for"],
        not_by: "",
    },
    Variant {
        what: "so many times, one after the other",
        change: in_series,
        numbers: &[4, 12],
        interval_s: 5.0,
        with_files: false,
        also_right: &[
            "the starts of the job's",
            "no kernel ran on the GPU for",
            "the start of another program",
        ],
        not_by: "",
    },
];

/// What a machine may lack.
struct Lack {
    gpu: &'static [GpuField],
    host: &'static [HostField],
}

/// Fields that come from GPM's metrics.
const GPM: [GpuField; 19] = [
    GpuField::Graphics,
    GpuField::Sm,
    GpuField::Occupancy,
    GpuField::Tensor,
    GpuField::Dfma,
    GpuField::Hmma,
    GpuField::Imma,
    GpuField::Dram,
    GpuField::Fp64,
    GpuField::Fp32,
    GpuField::Fp16,
    GpuField::PcieTx,
    GpuField::PcieRx,
    GpuField::NvlinkTx,
    GpuField::NvlinkRx,
    GpuField::SmWork,
    GpuField::TensorWork,
    GpuField::TensorWorkSlowed,
    GpuField::Fp32Work,
];

/// GPM (before Hopper); the driver's record of its utilisation; the processes' CPU time (a kernel without scheduler statistics); the
/// job's cgroup; power and clock; PCIe (MIG devices); pressure (a kernel without it).
const LACKS: [Lack; 7] = [
    Lack { gpu: &GPM, host: &[] },
    Lack { gpu: &[GpuField::Paused, GpuField::Pauses], host: &[] },
    Lack { gpu: &[GpuField::ProcessCpu, GpuField::ProcessWait], host: &[] },
    Lack { gpu: &[], host: HostField::ALL },
    Lack { gpu: &[GpuField::Power, GpuField::PowerCap, GpuField::SmClock], host: &[] },
    Lack { gpu: &[GpuField::PcieTx, GpuField::PcieRx], host: &[] },
    Lack { gpu: &[], host: &[HostField::CpuPressure, HostField::MemoryPressure, HostField::IoPressure] },
];

/// Words that are right of a kind, and less exact than what the missing counter would show: the pressure of the job's cgroup is that of
/// no rank, and copies show what the CPU works on.
const LESS_EXACT: [(&str, &str); 2] = [
    ("loaded-rank", "a process of the job waits for a CPU core"),
    ("sums-on-the-host", "or other work between steps"),
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
    let all = before.iter().chain(std::iter::repeat_n(middle, times).flatten()).chain(after);
    Some(one_after_another(samples.first()?, all))
}

/// The samples without gaps, from the start of this one.
fn one_after_another<'a>(from: &Sample, samples: impl Iterator<Item = &'a Sample>) -> Vec<Sample> {
    let mut clock = from.start;
    let placed = samples.map(|sample| {
        let sample = Sample { start: clock, ..sample.clone() };
        clock = sample.end();
        sample
    });
    placed.collect()
}

/// The samples before its first work, several times.
fn longer_start(samples: &[Sample], times: usize) -> Option<Vec<Sample>> {
    let first = samples.iter().position(works).filter(|first| *first > 0)?;
    let (before, after) = samples.split_at_checked(first)?;
    Some(one_after_another(samples.first()?, std::iter::repeat_n(before, times).flatten().chain(after)))
}

/// The last sample several times, if it has no work.
fn longer_end(samples: &[Sample], times: usize) -> Option<Vec<Sample>> {
    let last = samples.last().filter(|last| !works(last))?;
    Some(one_after_another(samples.first()?, samples.iter().chain(std::iter::repeat_n(last, times - 1))))
}

/// Samples whose boundaries lie elsewhere: the first one is shorter, and each later one has the rest of a recorded one and the beginning
/// of the next. Work of a moment would be spread over more samples than it can lie in.
fn shifted(samples: &[Sample], tenths: usize) -> Option<Vec<Sample>> {
    if samples.iter().filter(|sample| works(sample)).count() < 4 {
        return None;
    }
    let first = f32::from(u8::try_from(tenths).ok()?) / 10.0;
    let part = |sample: &Sample, share: f32| Sample { seconds: share * sample.seconds, ..sample.clone() };
    let parts: Vec<Sample> =
        samples.iter().flat_map(|sample| [part(sample, first), part(sample, 1.0 - first)]).collect();
    let (start, rest) = parts.split_first()?;
    let folded = folded(rest, 2)?;
    Some(one_after_another(samples.first()?, std::iter::once(start).chain(&folded)))
}

/// A training that lies in two samples, the end of one and the beginning of the next.
fn moment(samples: &[Sample], tenths: usize) -> Option<Vec<Sample>> {
    let first = samples.iter().position(works)?;
    let last = samples.iter().rposition(works)?;
    let (before, after) = (samples.get(..first)?, samples.get(last + 1..)?);
    let (idle, end) = (before.last()?, after.first().filter(|end| !works(end))?);
    let work = samples.get(usize::midpoint(first, last)).filter(|_| last >= first + 3)?;
    let share = f32::from(u8::try_from(tenths).ok()?) / 20.0;
    let part = |sample: &Sample, share: f32| Sample { seconds: share * work.seconds, ..sample.clone() };
    let begins = folded(&[part(idle, 1.0 - share), part(work, share)], 2)?;
    let ends = folded(&[part(work, share), part(end, 1.0 - share)], 2)?;
    Some(one_after_another(samples.first()?, before.iter().chain(&begins).chain(&ends).chain(after)))
}

/// Without some counters. A GPU without GPM has the time with any kernel from the driver's record.
fn lacking(samples: &[Sample], what: usize) -> Option<Vec<Sample>> {
    fn lose<F: Field>(values: &mut Values<F>, fields: &[F]) {
        fields.iter().for_each(|field| values.set(*field, None));
    }
    let lack = LACKS.get(what)?;
    let mut samples = samples.to_vec();
    for sample in &mut samples {
        for gpu in &mut sample.gpus {
            // Early recordings have the last moment of a sample there, not the driver's record of all of it.
            let any = gpu.get(GpuField::Graphics).or(gpu.get(GpuField::AnyKernel));
            gpu.set(GpuField::AnyKernel, any);
            lose(gpu, lack.gpu);
        }
        lose(&mut sample.host, lack.host);
    }
    Some(samples)
}

/// Of two healthy chips one needs more power for the same clock: it computes for longer, and the other waits for it.
fn hotter_chip(samples: &[Sample], percent: usize) -> Option<Vec<Sample>> {
    let part = 1.0 - f32::from(u8::try_from(percent).ok()?) / 100.0;
    let mut samples = samples.to_vec();
    for sample in samples.iter_mut().filter(|sample| works(sample)) {
        let [first, second, ..] = &mut sample.gpus[..] else { return None };
        let (Some(own), Some(other)) = (first.get(GpuField::SmClock), second.get(GpuField::SmClock)) else {
            continue;
        };
        let slower = other.mean * part / own.mean;
        for (field, factor) in
            [(GpuField::SmClock, slower), (GpuField::Sm, 1.0 / slower), (GpuField::Tensor, 1.0 / slower)]
        {
            let changed = first.get(field).map(|value| even(value.mean * factor));
            first.set(field, changed);
        }
        first.set(GpuField::PowerCap, Some(even(100.0)));
    }
    Some(samples)
}

/// The same after a long start-up: of all time the power cap is in force for little.
fn hotter_chip_later(samples: &[Sample], percent: usize) -> Option<Vec<Sample>> {
    longer_start(&hotter_chip(samples, percent)?, 60)
}

/// A script that runs its program again and again, with other settings or input.
fn in_series(samples: &[Sample], times: usize) -> Option<Vec<Sample>> {
    Some(one_after_another(samples.first()?, std::iter::repeat_n(samples, times).flatten()))
}

/// A program whose GPUs work from the first sample on.
fn without_start(samples: &[Sample], _: usize) -> Option<Vec<Sample>> {
    let first = samples.iter().position(works).filter(|first| *first > 0)?;
    Some(samples.get(first..)?.to_vec())
}

/// A rest of so many samples in the middle of the work: the processes stay, and do nothing.
fn rests(samples: &[Sample], long: usize) -> Option<Vec<Sample>> {
    let (first, last) = (samples.iter().position(works)?, samples.iter().rposition(works)?);
    let middle = usize::midpoint(first, last);
    let before = samples.get(middle).filter(|_| last >= first + 4)?;
    let mut rest = samples.get(..first)?.last()?.clone();
    for (gpu, before) in rest.gpus.iter_mut().zip(&before.gpus) {
        gpu.set(GpuField::MemoryUsed, before.get(GpuField::MemoryUsed));
    }
    let (before, after) = samples.split_at_checked(middle)?;
    Some(one_after_another(
        samples.first()?,
        before.iter().chain(std::iter::repeat_n(&rest, long)).chain(after),
    ))
}

/// A value that did not change within its sample.
fn even(mean: f32) -> Value {
    Value { mean, min: mean, max: mean }
}

fn none_is_wrong(count: usize, wrong: &[String], jobs: &str) {
    assert!(count > 0 && wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
    println!("{count} {jobs} without wrong advice");
}

#[test]
fn reports_of_variants_give_no_wrong_advice() {
    let kinds = kinds();
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (gpu, name, recording) in recordings() {
        let kind = kinds.get(&name).unwrap_or_else(|| panic!("{name} is not in corpus.toml"));
        for Variant { what, change, numbers, interval_s, with_files, also_right, not_by } in VARIANTS {
            for &number in numbers.iter().filter(|_| with_files || !recording.has_files()) {
                let Some(said) = recording.said_of(interval_s, |samples| change(samples, number)).unwrap()
                else {
                    continue;
                };
                count += 1;
                let less_exact = LESS_EXACT.iter().filter(|(kind, _)| *kind == name).map(|(_, words)| *words);
                let right =
                    also_right.iter().copied().chain(less_exact).any(|words| said.first.contains(words));
                if said.rules.iter().any(|rule| rule == not_by)
                    || kind.outcome(&said, None).unwrap() == Outcome::Wrong
                        && (!right || kind.forbids(&said).unwrap())
                {
                    wrong.push(format!("{gpu}/{name} {what}, {number}: {}", said.advice));
                }
            }
        }
    }
    none_is_wrong(count, &wrong, "variants");
}

/// A site that has NCCL's profiler plugin off, and a program that does not report: only the samples tell of its ranks, so that the report
/// names the GPU of the one to blame.
#[test]
fn reports_without_files_of_ranks_give_no_wrong_advice() {
    let (kinds, named) = (kinds(), Regex::new(r"gn1 GPU \d+").unwrap());
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (gpu, name, recording) in recordings().iter().filter(|(_, _, recording)| recording.has_files()) {
        let (said, with_files) = (recording.said_without_files().unwrap(), recording.said().unwrap());
        count += 1;
        let blamed = |said: &Said| named.find(&said.first).map(|found| found.as_str().to_owned());
        let same = blamed(&said).is_some_and(|gpu| blamed(&with_files).is_none_or(|other| other == gpu));
        if kinds[name].outcome(&said, None).unwrap() == Outcome::Wrong
            && (!same || kinds[name].forbids(&said).unwrap())
        {
            wrong.push(format!("{gpu}/{name}: {}", said.advice));
        }
    }
    none_is_wrong(count, &wrong, "jobs without files of ranks");
}

/// Slurm gives a job one core if it asks for none, and programs with a thread for each core use all of theirs.
#[test]
fn reports_of_jobs_that_use_all_their_cores_give_no_wrong_advice() {
    let kinds = kinds();
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (gpu, name, recording) in recordings() {
        let said = recording.said_with_few_cores().unwrap();
        count += 1;
        if kinds[&name].outcome(&said, None).unwrap() == Outcome::Wrong {
            wrong.push(format!("{gpu}/{name}: {}", said.advice));
        }
    }
    none_is_wrong(count, &wrong, "jobs that use all their cores");
}

/// The layers of a model on two GPUs, or two GPUs that one process feeds by turns: no other process has a part in what they do.
#[test]
fn reports_of_one_process_with_two_gpus_give_no_wrong_advice() {
    const OTHERS: [&str; 2] = ["no kernel ran on any of 2 GPUs for", "one process drives 2 GPUs"];
    let (kinds, all) = (kinds(), recordings());
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (gpu, name, recording) in alone(&all) {
        let Some(said) = recording.said_with_two_gpus().unwrap() else { continue };
        count += 1;
        let right = OTHERS.iter().any(|words| said.first.contains(words));
        let said = Said { ended: recording.said().unwrap().ended, ..said };
        if kinds[name].outcome(&said, None).unwrap() == Outcome::Wrong && !right {
            wrong.push(format!("{gpu}/{name}: {}", said.advice));
        }
    }
    none_is_wrong(count, &wrong, "jobs of one process with two GPUs");
}

/// That a job was cancelled, or reached its time limit, changes nothing of its speed before. Only idle GPUs at its end may be a hang then.
#[test]
fn reports_of_jobs_that_were_cut_off_have_the_same_findings() {
    let kinds = kinds();
    let (mut others, mut count) = (Vec::new(), 0);
    for (gpu, name, recording) in recordings() {
        for state in ["CANCELLED", "TIMEOUT"] {
            let Some(said) = recording.said_ended(state).unwrap() else { continue };
            let of = |said: &Said| -> Vec<String> {
                said.rules.iter().filter(|rule| *rule != "idle-gpus").cloned().collect()
            };
            let as_recorded = recording.said().unwrap();
            let (cut_off, completed) = (of(&said), of(&as_recorded));
            let said = Said { ended: as_recorded.ended, ..said };
            count += 1;
            if cut_off != completed || kinds[&name].outcome(&said, None).unwrap() == Outcome::Wrong {
                others.push(format!(
                    "{gpu}/{name} {state}: {cut_off:?}, completed {completed:?}: {}",
                    said.advice
                ));
            }
        }
    }
    assert!(count > 0 && others.is_empty(), "{} of {count}:\n{}", others.len(), others.join("\n"));
}

/// A sweep in one job: a program with nothing to criticise on one GPU, and any other one beside it, which does not wait for the first, and
/// may begin later. That GPUs are idle before or after their programs is right.
#[test]
fn reports_of_two_programs_in_one_job_give_no_wrong_advice() {
    const IDLE: &str = "no kernel ran on any of 2 GPUs for";
    let (kinds, all) = (kinds(), recordings());
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (gpu, name, recording) in alone(&all) {
        let ended = recording.said().unwrap().ended;
        for (first, second, later) in good(&all, gpu)
            .flat_map(|good| [(good, recording), (recording, good)])
            .flat_map(|(first, second)| [0, 3, 30].map(|later| (first, second, later)))
        {
            let Some(said) = first.said_beside(&[second], later).unwrap() else { continue };
            count += 1;
            let said = Said { ended: ended.clone(), ..said };
            if kinds[name].outcome(&said, None).unwrap() == Outcome::Wrong && !said.first.contains(IDLE) {
                wrong.push(format!("{gpu}/{name}, {later} samples later: {}", said.advice));
            }
        }
    }
    none_is_wrong(count, &wrong, "pairs of programs");
}

/// Recordings without files of their ranks, which tell of one program only.
fn alone(all: &[(String, String, Recording)]) -> impl Iterator<Item = (&str, &str, &Recording)> {
    let alone = all.iter().filter(|(_, _, recording)| !recording.has_files());
    alone.map(|(gpu, name, recording)| (gpu.as_str(), name.as_str(), recording))
}

/// Programs on this model with nothing to criticise.
fn good<'a>(all: &'a [(String, String, Recording)], gpu: &'a str) -> impl Iterator<Item = &'a Recording> {
    let is_good = move |(on, name, _): &(&str, &str, &Recording)| {
        *on == gpu && ["plain", "forward-only"].contains(name)
    };
    alone(all).filter(is_good).map(|(_, _, recording)| recording)
}

/// Training that generates text in each epoch: its GPU runs many small kernels then, and does not rest.
#[test]
fn training_that_generates_text_has_no_pauses() {
    let all = recordings();
    let at_work = |samples: &[Sample]| -> Vec<Sample> {
        let first = samples.iter().position(works).map_or(0, |first| first + 1);
        let last = samples.iter().rposition(works).unwrap_or(0);
        samples.get(first..last).unwrap_or_default().to_vec()
    };
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (gpu, _, decode) in alone(&all).filter(|(_, name, _)| *name == "decode") {
        let generates = at_work(&decode.samples());
        for good in good(&all, gpu) {
            let said = good.said_of(5.0, |own| {
                let trains = at_work(own);
                let trains = trains.iter().cycle().take(12).cloned();
                let epoch: Vec<Sample> = trains.chain(generates.iter().cycle().take(6).cloned()).collect();
                let first = own.iter().position(works)?;
                let start = own.get(..first)?;
                let all = start.iter().chain(std::iter::repeat_n(&epoch, 5).flatten());
                Some(one_after_another(own.first()?, all))
            });
            let said = said.unwrap().unwrap();
            count += 1;
            if !said.rules.is_empty() {
                wrong.push(format!("{gpu}: {}", said.advice));
            }
        }
    }
    none_is_wrong(count, &wrong, "trainings that generate text");
}

/// The same on two nodes, and a program with nothing to criticise on the other node: neither waits for the other.
#[test]
fn reports_of_two_nodes_give_no_wrong_advice() {
    let (kinds, all) = (kinds(), recordings());
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (gpu, name, recording) in alone(&all) {
        let ended = recording.said().unwrap().ended;
        for (which, other) in
            std::iter::once(("the same", recording)).chain(good(&all, gpu).map(|good| ("a good one", good)))
        {
            let said = recording.said_with_node(other).unwrap();
            count += 1;
            let said = Said { ended: ended.clone(), ..said };
            if kinds[name].outcome(&said, None).unwrap() == Outcome::Wrong {
                wrong.push(format!("{gpu}/{name}, {which} on the other node: {}", said.advice));
            }
        }
    }
    none_is_wrong(count, &wrong, "jobs on two nodes");
}

/// The same program on each of eight GPUs, as in a sweep over settings: each GPU waits for its own host, and none for another GPU.
#[test]
fn reports_of_eight_programs_in_one_job_give_no_wrong_advice() {
    let (kinds, all) = (kinds(), recordings());
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (gpu, name, recording) in alone(&all) {
        let Some(said) = recording.said_beside(&[recording; 7], 0).unwrap() else { continue };
        count += 1;
        let said = Said { ended: recording.said().unwrap().ended, ..said };
        if kinds[name].outcome(&said, None).unwrap() == Outcome::Wrong {
            wrong.push(format!("{gpu}/{name}: {}", said.advice));
        }
    }
    none_is_wrong(count, &wrong, "jobs of eight programs");
}

/// Two programs one after the other on the same GPU, as in a script with two steps; one of them has nothing to criticise. That the GPU is
/// idle while the second one starts is right.
#[test]
fn reports_of_two_programs_in_turn_give_no_wrong_advice() {
    const IDLE: &str = "no kernel ran on the GPU for";
    let (kinds, all) = (kinds(), recordings());
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (gpu, name, recording) in alone(&all) {
        for (other, is_first) in
            good(&all, gpu).flat_map(|good| [(good.samples(), true), (good.samples(), false)])
        {
            let said = recording.said_of(5.0, |own| {
                let alike = own.first()?.gpus.len() == 1 && other.first()?.gpus.len() == 1;
                let (one, two) = if is_first { (&other[..], own) } else { (own, &other[..]) };
                let all = one_after_another(own.first()?, one.iter().chain(two));
                alike.then_some(all)
            });
            let Some(said) = said.unwrap() else { continue };
            count += 1;
            if kinds[name].outcome(&said, None).unwrap() == Outcome::Wrong && !said.first.contains(IDLE) {
                wrong.push(format!("{gpu}/{name}, the other one first {is_first}: {}", said.advice));
            }
        }
    }
    none_is_wrong(count, &wrong, "jobs of two programs in turn");
}
