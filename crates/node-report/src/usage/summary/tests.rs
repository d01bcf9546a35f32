use super::*;
use crate::usage::format::Note;
use crate::usage::{Fold, Values};

const START: u64 = 1_700_000_000_000;

fn head(model: &str, lacking: &[(&str, &str)]) -> Record {
    let gpu = HeadGpu {
        index: 3,
        uuid: "GPU-3".into(),
        model: model.into(),
        lacking: lacking.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect(),
        ..HeadGpu::default()
    };
    let rails = vec![HeadRail { hca: "mlx5_0".into(), port: 1, rail: Some(0) }];
    Record::Head(Head { start: START, interval_s: 5.0, gpus: vec![gpu], rails, ..Head::new("n1", 7, 0) })
}

fn sample(at_s: u64, tensor: f64, clock: f64) -> Sample {
    let mut gpu = Values::default();
    gpu.put(GpuField::Tensor, Some(tensor));
    gpu.put(GpuField::TensorWork, Some(tensor * clock));
    gpu.put(GpuField::TensorWorkSlowed, Some(tensor * clock));
    gpu.put(GpuField::Sm, Some(tensor));
    gpu.put(GpuField::SmWork, Some(tensor * clock));
    gpu.put(GpuField::Power, Some(700.0));
    #[expect(clippy::cast_precision_loss, reason = "small")]
    gpu.put(GpuField::Energy, Some((at_s + 5) as f64 * 700.0));
    gpu.put(GpuField::PowerCap, Some(50.0));
    let mut rail = Values::default();
    rail.put(RailField::Errors, Some(2.0));
    Sample {
        start: START + at_s * 1000,
        seconds: 5.0,
        folded: 1,
        gpus: vec![gpu],
        rails: vec![rail],
        ..Sample::default()
    }
}

fn stream(records: Vec<Record>) -> Vec<u8> {
    let mut out = Vec::new();
    for record in records {
        record.write(&mut out).unwrap();
    }
    out
}

fn known<T: Clone>(reading: &Reading<T>) -> T {
    reading.known().cloned().expect("known")
}

#[test]
fn minute_and_its_samples_count_once() {
    let fine: Vec<Sample> =
        (0..24).map(|k| sample(k * 5, if k < 12 { 90.0 } else { 30.0 }, 1500.0)).collect();
    let mut fold = Fold::default();
    fine.iter().take(12).for_each(|sample| fold.add(sample));
    let minutes = stream(vec![head("NVIDIA H200", &[]), Record::Sample(fold.take().unwrap())]);
    let samples = std::iter::once(head("NVIDIA H200", &[])).chain(fine.into_iter().map(Record::Sample));
    let fine = stream(samples.collect());
    let usage = summarize(&[&minutes, &fine], START + 120_000, &GpuFigures::default()).unwrap();
    let gpu = &usage.gpus[0];
    assert_eq!(usage.coverage.sampled_s, 120.0);
    assert_eq!((usage.coverage.missing_s, usage.coverage.gaps.len()), (0.0, 0));
    assert_eq!(known(&gpu.counters.tensor_percent).mean, 60.0);
    assert_eq!(known(&gpu.energy_j), 84_000.0);
    assert_eq!(known(&gpu.energy_from_power_j), 84_000.0);
    assert_eq!(known(&gpu.throttled).power_cap_s, 60.0);
    assert_eq!(known(&usage.rails[0].errors), 2);
    assert_eq!(usage.sampler.samples, 24);
    let one = [&minutes[..], &fine[..]].concat();
    assert_eq!(timeline(&one).unwrap().1.len(), 24);
    assert_eq!(summarize(&[&one], START + 120_000, &GpuFigures::default()).unwrap().gpus, usage.gpus);
}

/// Two rails, of which the second stops after a minute; the first minute is also in a file of minutes.
#[test]
fn a_rail_that_stops_is_quiet_from_then_on() {
    let rail = |number: usize| HeadRail { hca: format!("mlx5_{number}"), port: 1, rail: Some(number) };
    let mut storage = rail(2);
    storage.rail = None;
    let head = Head {
        start: START,
        interval_s: 5.0,
        rails: vec![rail(0), storage, rail(1)],
        ..Head::new("n1", 7, 0)
    };
    let fine: Vec<Sample> = (0..24)
        .map(|k| {
            let rate = |bytes_s: f64| {
                let mut values = Values::default();
                values.put(RailField::Tx, Some(bytes_s));
                values.put(RailField::Rx, Some(bytes_s));
                values
            };
            let second = rate(if k < 12 { 2e10 } else { 0.0 });
            Sample { gpus: vec![], rails: vec![rate(2e10), rate(0.0), second], ..sample(k * 5, 0.0, 0.0) }
        })
        .collect();
    let mut fold = Fold::default();
    fine.iter().take(12).for_each(|sample| fold.add(sample));
    let minutes = stream(vec![Record::Head(head.clone()), Record::Sample(fold.take().unwrap())]);
    let fine =
        stream(std::iter::once(Record::Head(head)).chain(fine.into_iter().map(Record::Sample)).collect());
    let usage = summarize(&[&minutes, &fine], START + 120_000, &GpuFigures::default()).unwrap();
    let quiet = |hca: &str| usage.rails.iter().find(|rail| rail.hca == hca).unwrap().quiet.clone();
    let stopped = known(&quiet("mlx5_1"));
    let longest = stopped.longest.unwrap();
    assert_eq!((stopped.over_s, longest.start, longest.end), (120.0, START + 60_000, None));
    assert_eq!((longest.seconds, longest.before_s), (60.0, 60.0));
    assert!((longest.before_bytes_s / 4e10 - 1.0).abs() < 1e-6, "{longest:?}");
    assert_eq!(known(&quiet("mlx5_0")).longest, None);
    assert_eq!(quiet("mlx5_2"), Reading::Unsupported, "storage is no rail");
    // Reports of earlier releases have no such figure.
    let mut old = serde_json::to_value(&usage.rails[0]).unwrap();
    old.as_object_mut().unwrap().remove("quiet");
    let old: RailUsage = serde_json::from_value(old).unwrap();
    assert!(matches!(old.quiet, Reading::Failed(_)));
}

#[test]
fn tensor_fraction_is_activity_times_clock_over_the_datasheet_clock() {
    let bytes = stream(vec![head("NVIDIA H200", &[]), Record::Sample(sample(0, 93.7, 1469.0))]);
    let usage = summarize(&[&bytes], START + 5000, &GpuFigures::default()).unwrap();
    let flop = &usage.gpus[0].flop;
    let raw = known(&flop.uncalibrated_fraction);
    assert!((raw - 0.937 * 1469.0 / 1830.0).abs() < 1e-6);
    assert!((flop.tensor_tflops["bf16"] - 667.5).abs() < 0.03 * 667.5, "{flop:?}");
    assert!((flop.tensor_tflops["fp8"] / flop.tensor_tflops["tf32"] - 4.0).abs() < 1e-9);
    assert_eq!((flop.calibration.from.as_str(), flop.calibration.band), ("built-in", 0.03));
    let unknown = stream(vec![head("X9", &[]), Record::Sample(sample(0, 93.7, 1469.0))]);
    let usage = summarize(&[&unknown], START + 5000, &GpuFigures::default()).unwrap();
    assert!(
        matches!(&usage.gpus[0].flop.tensor_fraction, Reading::Failed(why) if why.contains("[stats.models]"))
    );
}

/// A GPU that is busy for half of the time: only the clock of that half was read too high.
#[test]
fn only_the_clock_of_tensor_kernels_is_corrected() {
    let mut half = sample(0, 40.0, 1700.0);
    half.gpus[0].put(GpuField::TensorWorkSlowed, Some(40.0 * 700.0));
    half.gpus[0].put(GpuField::Fp32Work, Some(10.0 * 1700.0));
    let bytes = stream(vec![head("NVIDIA H200", &[]), Record::Sample(half)]);
    let usage = summarize(&[&bytes], START + 5000, &GpuFigures::default()).unwrap();
    let flop = &usage.gpus[0].flop;
    let clock = 1000.0 + 700.0 * flop.calibration.factor;
    assert!((known(&flop.tensor_fraction) - 0.4 * clock / 1830.0).abs() < 1e-6, "{flop:?}");
    assert!((known(&flop.fp32_tflops) - 0.1 * clock * 1e6 * 256.0 * 132.0 / 1e12).abs() < 1e-6, "{flop:?}");
}

/// The counters do not distinguish data types: the figures of the slowest and the fastest type are bounds of
/// the work of any mixture, and a single type has its own figure.
#[test]
fn work_of_mixed_types_is_between_the_slowest_and_the_fastest_type() {
    let kinds = [("tf32", 97.0_f64, 1700.0, 0.5), ("bf16", 93.7, 1469.0, 1.0), ("fp8", 80.0, 1300.0, 2.0)];
    for mixture in [[20, 0, 0], [0, 20, 0], [0, 0, 20], [5, 10, 5], [1, 5, 14], [10, 0, 10]] {
        let all: Vec<_> = mixture.iter().zip(kinds).flat_map(|(count, kind)| vec![kind; *count]).collect();
        let samples = (0_u64..).zip(&all).map(|(k, kind)| Record::Sample(sample(k * 5, kind.1, kind.2)));
        let bytes = stream(std::iter::once(head("NVIDIA H200", &[])).chain(samples).collect());
        let usage = summarize(&[&bytes], START + 100_000, &GpuFigures::default()).unwrap();
        let flop = &usage.gpus[0].flop;
        let done = all.iter().map(|kind| kind.1 / 100.0 * kind.2 / 1830.0 * kind.3);
        let done = done.sum::<f64>() / 20.0 * 989.4 * flop.calibration.factor;
        let of = |name: &str| flop.tensor_tflops[name];
        assert!(of("tf32") <= 1.001 * done && done <= 1.001 * of("fp8"), "{mixture:?}: {done} {flop:?}");
        for (count, kind) in mixture.iter().zip(kinds).filter(|(count, _)| **count == 20) {
            assert!((of(kind.0) / done - 1.0).abs() < 1e-3, "{count} {}: {done} {flop:?}", kind.0);
        }
    }
}

#[test]
fn field_that_was_never_read_is_not_zero_and_has_a_reason() {
    let lacking = [("dram_percent", "unsupported"), ("fp32_percent_mhz", "GPM: lost")];
    let bytes = stream(vec![head("NVIDIA A100-SXM4-80GB", &lacking), Record::Sample(sample(0, 1.0, 1000.0))]);
    let usage = summarize(&[&bytes], START + 5000, &GpuFigures::default()).unwrap();
    let gpu = &usage.gpus[0];
    assert_eq!(gpu.counters.dram_percent, Reading::Unsupported);
    assert_eq!(gpu.flop.fp32_tflops, Reading::Failed("GPM: lost".to_owned()));
    assert_eq!(gpu.flop.calibration.from, "none");
    assert!(matches!(usage.host.cpus_allowed, Reading::Failed(_)));
    assert_eq!(usage.host.cpu_cores, Reading::Unsupported);
}

#[test]
fn gaps_are_listed_and_suspended_time_is_neither_running_nor_idle() {
    let mut asleep = sample(5, 0.0, 345.0);
    asleep.state = State::Suspended;
    let note = Note { at: START, what: "NVML did not answer".to_owned() };
    let mut bytes = stream(vec![
        head("NVIDIA H200", &[]),
        Record::Sample(sample(0, 80.0, 1500.0)),
        Record::Sample(asleep),
        Record::Sample(sample(40, 80.0, 1500.0)),
        Record::Note(note),
    ]);
    bytes.extend([1, 2, 3]);
    let usage = summarize(&[&bytes], START + 60_000, &GpuFigures::default()).unwrap();
    let coverage = &usage.coverage;
    assert_eq!((coverage.sampled_s, coverage.suspended_s, coverage.missing_s), (10.0, 5.0, 45.0));
    let gaps: Vec<_> =
        coverage.gaps.iter().map(|gap| (gap.start - START, gap.end - START, &*gap.why)).collect();
    assert_eq!(gaps, [(10_000, 40_000, "no sample"), (45_000, 60_000, "the sampler was gone")]);
    assert_eq!(known(&usage.gpus[0].counters.tensor_percent).min, 80.0);
    assert_eq!(usage.notes.len(), 2, "{:?}", usage.notes);
    assert_eq!(summarize(&[b"nothing"], START, &GpuFigures::default()), None);
}

#[test]
fn gpu_without_a_uuid_yet_is_the_same_gpu() {
    let Record::Head(mut early) = head("", &[("power_w", "nvml: no answer yet")]) else { panic!() };
    early.gpus[0].uuid.clear();
    let bytes = stream(vec![
        Record::Head(early.clone()),
        head("NVIDIA H200", &[]),
        Record::Sample(sample(0, 50.0, 1830.0)),
    ]);
    let usage = summarize(&[&bytes], START + 5000, &GpuFigures::default()).unwrap();
    assert_eq!((usage.gpus.len(), usage.gpus[0].model.as_str()), (1, "NVIDIA H200"));
    let usage =
        summarize(&[&stream(vec![Record::Head(early)])], START + 5000, &GpuFigures::default()).unwrap();
    assert_eq!(usage.gpus[0].counters.power_w, Reading::Failed("nvml: no answer yet".to_owned()));
    assert_eq!(usage.coverage.missing_s, 5.0);
}

#[test]
fn gpu_keeps_its_name_if_nvml_stops_responding() {
    let Record::Head(mut late) = head("", &[("power_w", "NVML did not answer")]) else { panic!() };
    late.gpus[0].uuid.clear();
    let named = head("NVIDIA H200", &[]);
    let bytes = stream(vec![named, Record::Sample(sample(0, 50.0, 1830.0)), Record::Head(late)]);
    let usage = summarize(&[&bytes], START + 5000, &GpuFigures::default()).unwrap();
    assert_eq!((usage.gpus.len(), usage.gpus[0].model.as_str()), (1, "NVIDIA H200"));
    assert!(usage.gpus[0].flop.tensor_fraction.known().is_some());
}

#[test]
fn mig_slice_has_its_share_of_the_peak() {
    let Record::Head(mut whole) = head("NVIDIA H200", &[]) else { panic!() };
    whole.gpus[0].instance = Some(2);
    whole.gpus[0].instance_sms = Some(66);
    let bytes = stream(vec![Record::Head(whole), Record::Sample(sample(0, 50.0, 1830.0))]);
    let usage = summarize(&[&bytes], START + 5000, &GpuFigures::default()).unwrap();
    let peak = usage.gpus[0].flop.peak.clone().unwrap();
    assert!((peak.bf16_tflops - 494.7).abs() < 0.1);
    assert_eq!(usage.gpus[0].mig, Some(MigSlice { instance: 2, sms: 66, of_sms: 132 }));
}

#[test]
fn counters_are_fields_of_their_gpu_and_may_be_absent_in_older_reports() {
    let stream = stream(vec![head("NVIDIA H200", &[]), Record::Sample(sample(0, 60.0, 1500.0))]);
    let gpu = summarize(&[&stream], START + 5_000, &GpuFigures::default()).unwrap().gpus.remove(0);
    let mut json = serde_json::to_value(&gpu).unwrap();
    assert_eq!(json["tensor_percent"]["known"]["mean"], 60.0);
    assert_eq!(serde_json::from_value::<GpuUsage>(json.clone()).unwrap(), gpu);
    for field in ["tensor_percent", "idle"] {
        json.as_object_mut().unwrap().remove(field);
    }
    let older: GpuUsage = serde_json::from_value(json).unwrap();
    assert!(matches!(older.counters.tensor_percent, Reading::Failed(_)), "{older:?}");
    assert!(matches!(older.idle, Reading::Failed(_)), "{older:?}");
    assert_eq!(older.counters.power_w, gpu.counters.power_w);
}

#[test]
fn every_counter_is_on_the_page_of_reports() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/report.md");
    let page = std::fs::read_to_string(page).unwrap();
    let words: BTreeSet<&str> = page.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    let counters = GpuCounters::<Spread>::from_fn(|_| Reading::Unsupported);
    let named = serde_json::to_value(counters).unwrap();
    for name in named.as_object().unwrap().keys() {
        assert!(words.contains(name.as_str()), "docs/report.md, usage, gpus[]: {name} is missing");
    }
}

/// A notebook that computed for a minute, slept, was suspended, computed once more and sleeps since.
#[test]
fn time_without_a_kernel_is_counted_and_dated() {
    let busy = |at: u64, percent: f64| {
        let mut sample = sample(at, 0.0, 1000.0);
        sample.gpus[0].put(GpuField::Graphics, Some(percent));
        Record::Sample(sample)
    };
    let mut still = sample(20, 0.0, 345.0);
    still.state = State::Suspended;
    let of = |mut records: Vec<Record>| {
        records.insert(0, head("NVIDIA H200", &[]));
        let bytes = stream(records);
        known(&summarize(&[&bytes], START + 60_000, &GpuFigures::default()).unwrap().gpus[0].idle)
    };
    let records = vec![
        busy(0, 80.0),
        busy(5, 1.0),
        busy(10, 0.0),
        busy(15, 30.0),
        Record::Sample(still),
        busy(25, 0.0),
    ];
    let idle = IdleTime { over_s: 25.0, idle_s: 15.0, since: Some(START + 20_000) };
    assert_eq!(of(records.clone()), idle);
    assert_eq!(of(records.into_iter().rev().collect()), idle, "in any order");
    assert_eq!(of(vec![busy(0, 0.0), busy(5, 7.0)]), IdleTime { over_s: 10.0, idle_s: 5.0, since: None });
    assert_eq!(of(vec![busy(5, 0.0), busy(10, 0.0)]).since, Some(START + 5_000), "never used");
    // The minute that was made of samples has a kernel, and half of its samples have none.
    let samples: Vec<Sample> = (0..12)
        .map(|k| match busy(5 * k, if k < 6 { 90.0 } else { 0.0 }) {
            Record::Sample(sample) => sample,
            _ => panic!(),
        })
        .collect();
    let mut fold = Fold::default();
    samples.iter().for_each(|sample| fold.add(sample));
    let mut records = vec![Record::Sample(fold.take().unwrap())];
    records.extend(samples.into_iter().map(Record::Sample));
    assert_eq!(of(records), IdleTime { over_s: 60.0, idle_s: 30.0, since: Some(START + 30_000) });
    // Neither counter is known: that is no idle time.
    let mut blind = sample(0, 0.0, 1000.0);
    blind.gpus[0].put(GpuField::Graphics, None);
    blind.gpus[0].put(GpuField::AnyKernel, None);
    let lacking = [("any_kernel_percent", "GPU is lost")];
    let bytes = stream(vec![head("NVIDIA H200", &lacking), Record::Sample(blind)]);
    let usage = summarize(&[&bytes], START + 5000, &GpuFigures::default()).unwrap();
    assert_eq!(usage.gpus[0].idle, Reading::Failed("GPU is lost".to_owned()));
}
