//! Ranks of a simulated program, read as the child reads them.

use railgate_model::UnixMillis;
use railgate_rankfile::position;

use super::detector::{Count, Counts};
use super::*;

const START: UnixMillis = 1_800_000_000_000;

/// A data-parallel program that waits for its loss after each step, as most do: ranks enqueue the operations of a step in
/// its first part, and end it together.
struct Program {
    ranks: usize,
    /// Ranks of the communicator, if some are on other nodes.
    of: u32,
    step_s: f64,
    /// Part of the step in which operations are enqueued.
    burst: f64,
    ops: u32,
    steps: u32,
    /// Seconds that a rank does something else before a step.
    pause: fn(u32, usize) -> f64,
    /// A file whose counts are higher than the others' from the beginning.
    offset: u64,
}

impl Default for Program {
    fn default() -> Self {
        let pause = |_, _| 0.0;
        Program { ranks: 8, of: 8, step_s: 0.25, burst: 0.4, ops: 20, steps: 200, pause, offset: 0 }
    }
}

impl Program {
    /// When each rank enqueues each operation, and the end of the last step.
    fn times(&self) -> (Vec<Vec<f64>>, f64) {
        let mut times = vec![Vec::new(); self.ranks];
        let mut now = 1.0;
        for step in 0..self.steps {
            let starts: Vec<f64> = (0..self.ranks).map(|rank| now + (self.pause)(step, rank)).collect();
            for (times, start) in times.iter_mut().zip(&starts) {
                let each = self.step_s * self.burst / f64::from(self.ops);
                times.extend((1..=self.ops).map(|op| start + each * f64::from(op)));
            }
            now = starts.iter().copied().fold(now, f64::max) + self.step_s;
        }
        (times, now)
    }

    fn counts(&self, times: &[Vec<f64>], at: f64) -> Vec<Counts> {
        let count = |(rank, times): (usize, &Vec<f64>)| {
            let ops = times.partition_point(|time| *time <= at) as u64;
            let ops = ops + if rank == 0 { self.offset } else { 0 };
            let rank = u32::try_from(rank).unwrap();
            let op = position(railgate_rankfile::OPERATIONS, b"AllReduce");
            let comms = vec![Count { hash: 0xc0ffee, ranks: self.of, rank, ops, op, seq: ops }];
            Counts { file: rank.into(), pid: 0, comms, left_out: false }
        };
        times.iter().enumerate().map(count).collect()
    }

    fn watched(&self) -> Pauses {
        self.watched_with(|_, _| {})
    }

    /// Changes each reading before the detector gets it.
    fn watched_with(&self, change: impl Fn(f64, &mut Vec<Counts>)) -> Pauses {
        let (times, end) = self.times();
        let mut detector = Detector::default();
        let mut clock = Duration::ZERO;
        while clock.as_secs_f64() < end {
            let mut counts = self.counts(&times, clock.as_secs_f64());
            change(clock.as_secs_f64(), &mut counts);
            let time = START + u64::try_from(clock.as_millis()).unwrap();
            detector.add(At { clock, time }, &counts);
            clock += EVERY + Duration::from_micros(300);
        }
        detector.found
    }
}

fn evaluation(step: u32, rank: usize) -> f64 {
    if step % 20 == 19 && rank == 0 { 1.5 } else { 0.0 }
}

/// From 0 to 1, the same for the same place.
fn jitter(step: u32, rank: usize) -> f64 {
    let mixed = (u64::from(step) << 8 | rank as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    f64::from(u32::try_from(mixed >> 40).unwrap()) / f64::from(1 << 24)
}

#[test]
fn rank_that_evaluates_is_behind_in_each_pause() {
    // Ranks that enqueue all the time, of which rank 0 is always a little late.
    let late = |step, rank| evaluation(step, rank) + if rank == 0 { 0.03 } else { 0.0 };
    for (step_s, burst, pause) in [
        (0.072, 0.4, evaluation as fn(u32, usize) -> f64),
        (0.25, 0.4, evaluation),
        (0.5, 0.4, evaluation),
        (0.5, 0.95, late),
    ] {
        let pauses = Program { step_s, burst, pause, ..Program::default() }.watched();
        let [sum] = &pauses.sums[..] else { panic!("{step_s}: {:?}", pauses.sums) };
        assert_eq!((&sum.behind[..], sum.communicator.as_str()), (&[0][..], "0000000000c0ffee"));
        // A communicator of fewer steps is not known yet.
        assert!((9..=10).contains(&sum.pauses), "{step_s}: {sum:?}");
        let each = sum.lost_s / f64::from(u32::try_from(sum.pauses).unwrap());
        assert!((each - 1.5).abs() < 0.15, "{step_s}: {each}");
        let one = &pauses.longest[3];
        assert_eq!((one.most - one.fewest, one.op.as_str(), one.seq), (20, "AllReduce", Some(one.most)));
        assert!(one.ahead > 0 && one.start > START, "{one:?}");
    }
}

#[test]
fn half_a_second_in_a_tenth_of_the_steps_is_measured() {
    for step_s in [0.072, 0.25] {
        let pause = |step, rank| if step % 10 == 9 && rank == 1 { 0.5 } else { 0.0 };
        let pauses = Program { ranks: 2, of: 2, step_s, pause, ..Program::default() }.watched();
        let [sum] = &pauses.sums[..] else { panic!("{step_s}: {:?}", pauses.sums) };
        assert!(sum.behind == [1] && (18..=20).contains(&sum.pauses), "{step_s}: {sum:?}");
        let lost = sum.lost_s / f64::from(u32::try_from(sum.pauses).unwrap());
        assert!((lost - 0.5).abs() < 0.08, "{step_s}: {lost}");
    }
}

/// Steps of 5 s whose operations are enqueued in their first 1.5 or 3 s: waiting for the GPU in the rest is no loss.
#[test]
fn waiting_for_the_gpu_is_no_part_of_a_pause() {
    let pause = |step, rank| if step % 20 == 19 && rank == 1 { 8.0 } else { 0.0 };
    for burst in [0.3, 0.6] {
        let pauses = Program { step_s: 5.0, burst, pause, ..Program::default() }.watched();
        let [sum] = &pauses.sums[..] else { panic!("{:?}", pauses.sums) };
        let lost = sum.lost_s / f64::from(u32::try_from(sum.pauses).unwrap());
        assert!(sum.behind == [1] && sum.pauses >= 9 && (lost - 8.0).abs() < 0.2, "{sum:?}");
    }
    let uneven = |step, rank| 0.15 * jitter(step, rank);
    assert_eq!(
        Program { step_s: 5.0, burst: 0.6, pause: uneven, ..Program::default() }.watched(),
        Pauses::default()
    );
}

#[test]
fn pauses_may_become_most_of_the_time() {
    let pause = |step, rank| if step > 50 && step % 10 == 9 && rank == 1 { 3.0 } else { 0.0 };
    let pauses = Program { step_s: 0.072, pause, ..Program::default() }.watched();
    assert_eq!((&pauses.sums[0].behind[..], pauses.sums[0].pauses), (&[1][..], 15));
}

/// Rank 1 does nothing for two seconds, and rank 0 needs nothing of it.
#[test]
fn a_rank_that_none_waits_for_does_not_pause() {
    let mut detector = Detector::default();
    for n in 0..200_u64 {
        let count = |rank: u32, ops| {
            let comms = vec![Count { hash: 1, ranks: 2, rank, ops, op: 2, seq: ops }];
            Counts { file: rank.into(), pid: 0, comms, left_out: false }
        };
        let counts = [count(0, 10 * n), count(1, 10 * if (100..120).contains(&n) { 100 } else { n })];
        detector.add(At { clock: EVERY * u32::try_from(n).unwrap(), time: START }, &counts);
    }
    assert_eq!(detector.found, Pauses::default());
}

#[test]
fn healthy_ranks_and_long_steps_do_not_pause() {
    let uneven = |step, rank| 0.1 * jitter(step, rank);
    for (step_s, burst, pause) in [
        (0.072, 0.4, uneven as fn(u32, usize) -> f64),
        (0.25, 0.9, uneven),
        (2.0, 0.1, uneven),
        // A step whose operations are enqueued in a third of it, and one with a regular pause of its rank 2.
        (5.0, 0.3, |_, _| 0.0),
        (2.0, 0.3, |_, rank| if rank == 2 { 0.4 } else { 0.0 }),
    ] {
        // Pauses of all ranks of a node matter where the communicator has other nodes.
        for of in [8, 16] {
            let pauses = Program { of, step_s, burst, pause, ..Program::default() }.watched();
            assert_eq!(pauses, Pauses::default(), "{step_s} of {of}");
        }
    }
}

#[test]
fn nobody_is_behind_if_all_pause() {
    let all = |step: u32, rank| if step % 20 == 19 { 3.0 + 0.15 * jitter(step, rank) } else { 0.0 };
    let program = Program { pause: all, ..Program::default() };
    assert_eq!(program.watched(), Pauses::default());
    // Another node of the communicator may be the one that is waited for.
    let pauses = Program { of: 16, ..program }.watched();
    let [sum] = &pauses.sums[..] else { panic!("{pauses:?}") };
    assert!(sum.behind.is_empty() && sum.pauses >= 9, "{sum:?}");
    assert!(pauses.longest.iter().all(|one| one.fewest == one.most), "{pauses:?}");
}

#[test]
fn counts_that_always_differ_accuse_no_rank() {
    let all = |step: u32, _| if step % 20 == 19 { 3.0 } else { 0.0 };
    let program = Program { ranks: 2, of: 2, pause: all, offset: 7, ..Program::default() };
    assert_eq!(program.watched(), Pauses::default());
    // Rank 1 is behind then, and nevertheless found.
    let pause = |step, rank| if step % 20 == 19 && rank == 1 { 1.5 } else { 0.0 };
    let pauses = Program { ranks: 2, of: 2, pause, offset: 7, ..Program::default() }.watched();
    assert_eq!(pauses.sums[0].behind, [1]);
}

#[test]
fn a_shorter_pause_of_a_waiting_rank_does_not_hide_the_long_one() {
    let pause = |step, rank| match (step % 20, rank) {
        (19, 0) => 2.5,
        (19, 1) => 0.8,
        _ => 0.0,
    };
    let pauses = Program { pause, ..Program::default() }.watched();
    let [sum] = &pauses.sums[..] else { panic!("{pauses:?}") };
    assert!(sum.behind == [0] && sum.lost_s > 20.0, "{sum:?}");
}

#[test]
fn late_readings_and_left_out_processes_are_unknown() {
    // Every ten seconds the sampler gets no processor for two.
    let program = Program { of: 16, ..Program::default() };
    let (times, _) = program.times();
    let mut detector = Detector::default();
    for n in 0..400 {
        let clock = EVERY * n + Duration::from_secs(2) * (n / 80);
        detector.add(At { clock, time: START }, &program.counts(&times, clock.as_secs_f64()));
    }
    assert_eq!(detector.found, Pauses::default());
    let program = Program { pause: evaluation, ..Program::default() };
    // From a second on that it captures a graph, the communicator is left out, with all that was found.
    let pauses = program.watched_with(|at, counts| counts[3].left_out = at > 30.0);
    assert_eq!(pauses, Pauses { left_out: 1, ..Pauses::default() });
}

/// A file of another program, a torn number, and one that vanishes and comes back.
#[test]
fn nonsense_is_no_pause() {
    let pauses = Program::default().watched_with(|at, counts| {
        let step = (at * 10.0).round();
        if step % 7.0 == 0.0 {
            counts[2].comms[0].ops = u64::MAX;
        }
        if step % 50.0 > 20.0 {
            counts.remove(5);
            counts[4].comms.clear();
        }
    });
    assert_eq!(pauses, Pauses::default());
}

/// Tensor-parallel pairs 0, 1 and 2, 3; data-parallel pairs 0, 2 and 1, 3. Rank 1 waits for rank 0 and lets rank 3 wait.
#[test]
fn who_waits_for_another_rank_is_not_the_one_that_paused() {
    let mut ops = [[0_u64; 2]; 4];
    let mut detector = Detector::default();
    for n in 0..80_u64 {
        match n {
            40 => (ops[1][0], ops[2][0], ops[3][0]) = (ops[1][0] + 3, ops[2][0] + 12, ops[3][0] + 12),
            41 => (ops[2][1], ops[3][1]) = (ops[2][1] + 2, ops[3][1] + 2),
            42..60 => {}
            // Rank 1 goes on before the next reading.
            60 => (ops[0], ops[1]) = (ops[0].map(|ops| ops + 12), ops[1].map(|ops| ops + 9)),
            _ => ops = [[12 * n, 2 * n]; 4],
        }
        let count = |rank: u64, [tensor, data]: [u64; 2]| {
            let of = |hash, rank: u64, ops| Count {
                hash,
                ranks: 2,
                rank: u32::try_from(rank).unwrap(),
                ops,
                op: 2,
                seq: ops,
            };
            let comms = vec![of(1 + rank / 2, rank % 2, tensor), of(3 + rank % 2, rank / 2, data)];
            Counts { file: rank, pid: 0, comms, left_out: false }
        };
        let counts: Vec<Counts> = (0..).zip(ops).map(|(rank, ops)| count(rank, ops)).collect();
        detector.add(At { clock: EVERY * u32::try_from(n).unwrap(), time: START }, &counts);
    }
    let [pause] = &detector.found.longest[..] else { panic!("{:?}", detector.found) };
    assert_eq!((&pause.behind[..], pause.lost_s > 1.8), (&[0][..], true), "{pause:?}");
    assert!(["0000000000000001", "0000000000000003"].contains(&pause.communicator.as_str()), "{pause:?}");
}

/// A rank file with one communicator of two ranks that has enqueued this many operations.
fn rank_file(rank: u64, ops: u64) -> Vec<u8> {
    use railgate_rankfile::{COMMS_AT, Key, MAGIC, Mode, VERSION, WORDS, comm, head};
    let mut words = vec![0_u64; WORDS];
    (words[head::MAGIC], words[head::VERSION], words[head::MODE]) = (MAGIC, VERSION, Mode::Count.word());
    let mut put = |word: usize, value: u64| words[COMMS_AT + word] = value;
    put(comm::STATE, 1);
    put(comm::HASH, 0xc0ffee);
    put(comm::RANKS, 2 << 32 | rank);
    put(comm::OPS, ops);
    put(comm::LAST_SEQ, ops);
    put(comm::LAST_KEY, Key { comm: 0, op: 2, datatype: 8, algorithm: 2, protocol: 3, class: 20 }.word());
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn put(bytes: &mut [u8], word: usize, value: u64) {
    bytes[word * 8..word * 8 + 8].copy_from_slice(&value.to_le_bytes());
}

#[test]
fn files_that_change_while_they_are_read_are_left_out() {
    use railgate_rankfile::{BYTES, CELLS_AT, COMMS_AT, Key, Mode, SEND, comm, head};
    use std::fs::{self, File};
    use std::os::unix::fs::{FileExt, MetadataExt, symlink};

    let place = tempfile::tempdir().unwrap();
    let uid = fs::metadata(place.path()).unwrap().uid();
    let run = Root::new(place.path()).job(7).create(&railgate_rundir::Run::new(7, 0, 1)).unwrap();
    let ranks = run.user().join("ranks");
    let mut files = Files::new(run, uid);
    files.search().unwrap();
    assert!(files.is_empty());
    fs::create_dir_all(&ranks).unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(ranks.join(name), bytes).unwrap();
    write("100.1", &rank_file(0, 5));
    write("101.2", &rank_file(1, 5));
    write("mode", b"full");
    write("short.3", &rank_file(1, 5)[..BYTES - 8]);
    write("zeros.4", &[0; BYTES]);
    write("text", b"no rank file");
    symlink("/etc/passwd", ranks.join("link.5")).unwrap();
    nix::unistd::mkfifo(&ranks.join("fifo.6"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    files.search().unwrap();
    let seen = |files: &mut Files| -> Vec<(u32, u64, bool)> {
        let of = |one: Counts| one.comms.iter().map(|count| (count.rank, count.ops, one.left_out)).collect();
        files.read().into_iter().flat_map::<Vec<_>, _>(of).collect()
    };
    assert_eq!(seen(&mut files), [(0, 5, false), (1, 5, false)]);
    // The plugin writes through a mapping.
    let open = |name: &str| File::options().write(true).open(ranks.join(name)).unwrap();
    let change = |name: &str, word: usize, value: u64| {
        open(name).write_all_at(&value.to_le_bytes(), 8 * word as u64).unwrap();
    };
    change("101.2", COMMS_AT + comm::OPS, 9);
    assert_eq!(seen(&mut files), [(0, 5, false), (1, 9, false)]);
    for (word, value) in [
        // Nothing is counted; no magic number; no such rank; destroyed.
        (head::MODE, Mode::Off.word()),
        (head::MAGIC, 7),
        (COMMS_AT + comm::RANKS, u64::MAX),
        (COMMS_AT + comm::STATE, 2),
    ] {
        change("101.2", word, value);
        assert_eq!(seen(&mut files), [(0, 5, false)], "{word}");
        write("101.2", &rank_file(1, 9));
        files.search().unwrap();
        assert_eq!(seen(&mut files).len(), 2, "{word}");
    }
    // Truncated between two readings, then whole again.
    open("100.1").set_len(1000).unwrap();
    assert_eq!(seen(&mut files), [(1, 9, false)]);
    write("100.1", &rank_file(0, 12));
    files.search().unwrap();
    change("100.1", head::CAPTURED, 1);
    assert_eq!(seen(&mut files), [(0, 12, true), (1, 9, false)]);
    // A message that a later operation hides, in a place that is rarely read.
    let mut sends = rank_file(1, 9);
    let key = Key { comm: 0, op: SEND, datatype: 8, algorithm: 0, protocol: 0, class: 3 };
    put(&mut sends, CELLS_AT, key.word());
    write("101.2", &sends);
    files.search().unwrap();
    assert_eq!(seen(&mut files), [(0, 12, true), (1, 9, true)]);
    fs::remove_file(ranks.join("101.2")).unwrap();
    for n in 0..80 {
        write(&format!("1.{:x}", 1000 + n), &rank_file(0, n));
    }
    files.search().unwrap();
    assert_eq!(seen(&mut files).len(), 64);
    fs::remove_dir_all(&ranks).unwrap();
    symlink("/etc", &ranks).unwrap();
    files.search().unwrap_err();
    assert!(files.is_empty() && seen(&mut files).is_empty());
}
