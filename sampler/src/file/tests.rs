use railgate_node_report::usage::format::HeadGpu;
use railgate_node_report::usage::{Field, HostField, State, Usage, Values, summarize, timeline};

use super::*;

const START: u64 = 1_700_000_000_000;

fn head(gpus: usize, rails: usize) -> Head {
    let gpu = |index| HeadGpu { index, model: "NVIDIA H200".into(), ..HeadGpu::default() };
    Head {
        start: START,
        interval_s: 5.0,
        gpus: (0..u32::try_from(gpus).unwrap()).map(gpu).collect(),
        rails: vec![railgate_node_report::usage::format::HeadRail::default(); rails],
        ..Head::new("n1", 7, 0)
    }
}

/// A sample in which every field of a training job changes.
fn sample(number: u64) -> Sample {
    let still = ["dfma", "imma", "fp64", "hw_", "sw_", "power_brake"];
    #[expect(clippy::cast_precision_loss, reason = "small")]
    let wave = |k: usize| 50.0 + ((number * 37 + k as u64 * 11) % 101) as f64 / 3.0;
    let mut gpu = Values::default();
    for (k, field) in GpuField::ALL.iter().enumerate() {
        let moves = still.iter().all(|name| !field.name().starts_with(name));
        gpu.put(*field, Some(if moves { wave(k) } else { 0.0 }));
    }
    let mut rail = Values::default();
    for (k, field) in RailField::ALL.iter().enumerate() {
        rail.put(*field, Some(if field.grows() { 0.0 } else { wave(k) }));
    }
    let mut host = Values::default();
    HostField::ALL.iter().for_each(|field| host.put(*field, Some(wave(field.place()))));
    Sample {
        start: START + number * 5000,
        seconds: 5.0,
        folded: 1,
        gpus: vec![gpu; 8],
        rails: vec![rail; 8],
        host,
        ..Sample::default()
    }
}

fn all(dir: &Path) -> Vec<Vec<u8>> {
    SAMPLER_FILES.iter().filter_map(|name| fs::read(dir.join(name)).ok()).collect()
}

const END: End = End {
    at: START,
    cpu_s: 0.0,
    memory_mib: 0.0,
    oom_kills: None,
    memory_peak_mib: None,
    cpus_allowed: None,
};

#[test]
fn day_of_eight_gpus_fits_and_its_last_hour_has_full_resolution() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = Files::new(dir.path());
    files.head(head(8, 8));
    let day = 24 * 720;
    for number in 0..day {
        files.sample(&sample(number), number % 4000 == 100);
    }
    let streams = all(dir.path());
    let bytes: usize = streams.iter().map(Vec::len).sum();
    assert!(bytes < 4 << 20, "{bytes}");
    let slices: Vec<&[u8]> = streams.iter().map(Vec::as_slice).collect();
    let usage = summarize(&slices, START + day * 5000, &Default::default()).unwrap();
    assert!((usage.coverage.sampled_s - 86_400.0).abs() < 1e-6, "{}", usage.coverage.sampled_s);
    assert_eq!((usage.coverage.missing_s, usage.sampler.samples), (0.0, day));
    let (_, seen) = timeline(&slices.concat()).unwrap();
    let fine = |sample: &&Sample| sample.folded == 1;
    assert!(seen.iter().rev().take(720).all(|sample| sample.folded == 1));
    assert!(seen.iter().filter(fine).filter(|sample| sample.start < START + 8_000_000).count() >= 36);
}

#[test]
fn file_that_cannot_be_folded_stops_growing_with_a_note() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = Files::new(dir.path());
    files.head(head(8, 8));
    let state = |number| if number % 2 == 0 { State::Running } else { State::Yielded };
    for number in 0..6000 {
        files.sample(&Sample { state: state(number), ..sample(number) }, false);
    }
    files.end(END);
    assert!(files.minutes.length <= MINUTES_BYTES + 4000, "{}", files.minutes.length);
    let found = usage(dir.path(), START + 30_000_000);
    assert!(
        found.coverage.missing_s > 100.0 && found.notes[0].ends_with("samples.minutes is full"),
        "{:?}",
        found.notes
    );
}

#[test]
fn minute_with_an_unknown_part_is_not_averaged_over_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = Files::new(dir.path());
    files.head(head(8, 8));
    for number in 0..12 {
        let mut sample = sample(number);
        if number >= 4 {
            sample.gpus[3] = Values::default();
        }
        files.sample(&sample, false);
    }
    let found = usage(dir.path(), START + 60_000);
    assert_eq!((found.gpus[2].sampled_s, found.gpus[3].sampled_s), (60.0, 20.0));
}

#[test]
fn years_of_samples_stay_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = Files::new(dir.path());
    files.head(head(8, 8));
    let mut minute = sample(0);
    minute.seconds = 60.0;
    for number in 0..4500 {
        minute.start = START + number * 60_000;
        files.sample(&minute, false);
    }
    assert!(files.minutes.length <= MINUTES_BYTES, "{}", files.minutes.length);
    let streams = all(dir.path());
    let slices: Vec<&[u8]> = streams.iter().map(Vec::as_slice).collect();
    let usage = summarize(&slices, START, &Default::default()).unwrap();
    assert_eq!((usage.coverage.sampled_s, usage.sampler.samples), (270_000.0, 4500));
}

/// Redirects all files to `/dev/full`.
fn take_nothing(files: &mut Files) {
    let full = || File::options().write(true).open("/dev/full").unwrap();
    (files.minutes.file, files.fine.file) = (Some(full()), Some(full()));
}

#[test]
fn records_refused_by_a_full_disk_are_noted_and_written_later_if_possible() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = Files::new(dir.path());
    files.head(head(8, 8));
    take_nothing(&mut files);
    for number in 0..25 {
        files.sample(&sample(number), false);
    }
    (files.minutes.file, files.fine.file) = (None, None);
    files.sample(&sample(25), false);
    files.end(END);
    let streams = all(dir.path());
    let slices: Vec<&[u8]> = streams.iter().map(Vec::as_slice).collect();
    let usage = summarize(&slices, START + 130_000, &Default::default()).unwrap();
    assert_eq!((usage.coverage.sampled_s, usage.coverage.missing_s), (130.0, 0.0));
    assert_eq!(usage.notes.len(), 1);
    assert!(usage.notes[0].starts_with("25 samples could not be written: No space"), "{:?}", usage.notes);
}
fn usage(dir: &Path, end: u64) -> Usage {
    let streams = all(dir);
    let slices: Vec<&[u8]> = streams.iter().map(Vec::as_slice).collect();
    summarize(&slices, end, &Default::default()).unwrap()
}

#[test]
fn a_hundred_restarted_samplers_lose_only_the_time_between_them() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = Files::new(dir.path());
    files.head(head(8, 8));
    for number in 0..200 {
        files.sample(&sample(number), number == 0);
    }
    let before: usize = all(dir.path()).iter().map(Vec::len).sum();
    let mut number = 200;
    for killed in 0..100 {
        // Kills the sampler in the middle of a record of each file; the next one starts five seconds later.
        for name in SAMPLER_FILES {
            let Ok(mut file) = File::options().append(true).open(dir.path().join(name)) else { continue };
            file.write_all(&[40, 0, 0, 0, b'S', 1, 2]).unwrap();
        }
        number += 1;
        let (known, totals) = earlier(dir.path()).unwrap();
        assert_eq!((known, totals.energy.len(), totals.rails.len()), (head(8, 8), 8, 8), "{killed}");
        files = Files::new(dir.path());
        files.head(head(8, 8));
        for _ in 0..3 {
            files.sample(&sample(number), false);
            number += 1;
        }
    }
    drop(files);
    let found = usage(dir.path(), START + number * 5000);
    assert_eq!((found.sampler.samples, found.coverage.sampled_s), (500, 2500.0));
    assert_eq!((found.coverage.missing_s, found.notes.len()), (500.0, 0), "{:?}", found.notes);
    let grown = all(dir.path()).iter().map(Vec::len).sum::<usize>() - before;
    let mut one = Vec::new();
    Record::Sample(sample(0)).write(&mut one).unwrap();
    assert!(grown <= 300 * one.len() + (4 << 10), "{grown} bytes for 300 samples of {}", one.len());
}

/// Records under a wrong head would be misread.
#[test]
fn head_refused_by_a_full_disk_is_written_before_the_next_record() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = Files::new(dir.path());
    files.head(head(1, 0));
    take_nothing(&mut files);
    files.head(head(8, 8));
    files.sample(&sample(0), false);
    (files.minutes.file, files.fine.file) = (None, None);
    for number in 1..13 {
        files.sample(&sample(number), false);
    }
    let found = usage(dir.path(), START + 65_000);
    assert_eq!((found.gpus.len(), found.coverage.sampled_s, found.notes.len()), (8, 65.0, 0));
}
