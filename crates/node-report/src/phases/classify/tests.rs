use super::*;
use crate::phases::{Phase, Phases, by_gpu};

const STEP: UnixMillis = 5000;

fn gpu(kernels: f64, sm: f64, tensor: f64, dram: f64) -> CellGpu {
    let (kernels, sm, tensor, dram) = (Some(kernels), Some(sm), Some(tensor), Some(dram));
    CellGpu { kernels, sm, tensor, dram, ..CellGpu::default() }
}

fn trains() -> CellGpu {
    gpu(99.0, 92.0, 60.0, 30.0)
}

/// At this share of the usual level.
fn partly(share: f64) -> CellGpu {
    gpu(99.0 * share, 92.0 * share, 60.0 * share, 30.0 * share)
}

fn waits() -> CellGpu {
    gpu(100.0, 12.0, 0.0, 0.1)
}

fn quiet() -> CellGpu {
    gpu(0.0, 0.0, 0.0, 0.0)
}

fn cells(gpus: &[[CellGpu; 2]]) -> Vec<Cell> {
    (0..)
        .zip(gpus)
        .map(|(at, gpus)| Cell { start: at * STEP, end: (at + 1) * STEP, gpus: gpus.to_vec(), written: 0.0 })
        .collect()
}

/// Both GPUs do the same, for so many samples each.
fn alike(parts: &[(CellGpu, usize)]) -> Vec<Cell> {
    let gpus: Vec<_> = parts.iter().flat_map(|(gpu, times)| vec![[*gpu; 2]; *times]).collect();
    cells(&gpus)
}

fn kinds(cells: &[Cell]) -> Vec<(PhaseKind, f64)> {
    classify(cells, true).list.iter().map(|phase| (phase.kind, phase.seconds())).collect()
}

use PhaseKind::{Evaluating, Idle, Saving, Slow, Stalled, StartUp, Steady, Tail};

/// GPT on two H200s: 28 s of start-up with short kernels of the initialisation, 17 s of steps.
#[test]
fn idle_time_of_the_start_is_not_training() {
    let run = alike(&[
        (quiet(), 3),
        (partly(0.05), 1),
        (quiet(), 1),
        (partly(0.6), 1),
        (trains(), 3),
        (quiet(), 1),
    ]);
    assert_eq!(kinds(&run), [(StartUp, 27.0), (Steady, 18.0), (Tail, 5.0)]);
    // The sample that holds both is not in the figures of the training.
    assert_eq!(classify(&run, true).training, [6 * STEP, 7 * STEP, 8 * STEP]);
}

/// An H200 whose first steps did more than the later ones: the sample in which they began has the usual level.
#[test]
fn a_pause_with_which_the_training_begins_is_of_the_start() {
    let first = CellGpu { went_on: 0.52, ..partly(0.9) };
    let run = alike(&[(quiet(), 2), (first, 1), (trains(), 3), (quiet(), 1)]);
    assert_eq!(kinds(&run), [(StartUp, 12.6), (Steady, 17.4), (Tail, 5.0)]);
    // Its figures are those of the training nevertheless.
    assert_eq!(classify(&run, true).training.len(), 4);
    // One GPU had begun.
    let mut one = run.clone();
    one[2].gpus[1].went_on = 0.0;
    assert_eq!(kinds(&one), [(StartUp, 10.0), (Steady, 20.0), (Tail, 5.0)]);
    // A pause later on is one of the training.
    let mut later = run;
    (later[2].gpus, later[3].gpus) = (vec![trains(); 2], vec![first; 2]);
    assert_eq!(kinds(&later), [(StartUp, 10.0), (Steady, 20.0), (Tail, 5.0)]);
}

/// Two H200s that trained for 2.4 s waited for each other, and the job was cancelled within a sample.
#[test]
fn the_end_of_a_wait_is_no_training() {
    let wait = [gpu(100.0, 0.8, 0.0, 0.0), gpu(100.0, 18.2, 0.0, 0.0)];
    let end = [gpu(72.6, 0.5, 0.0, 0.0), gpu(74.3, 13.5, 0.0, 0.0)];
    let last_trained = [gpu(79.5, 35.4, 13.1, 17.0), gpu(76.2, 42.0, 13.2, 17.0)];
    let run =
        [vec![[quiet(); 2]; 3], vec![[partly(0.1); 2], last_trained], vec![wait; 8], vec![end, [quiet(); 2]]]
            .concat();
    let trained: f64 = kinds(&cells(&run)).iter().filter(|one| one.0 == Steady).map(|one| one.1).sum();
    assert!(trained <= 5.0, "{:?}", kinds(&cells(&run)));
    assert_eq!(kinds(&cells(&run))[2..], [(Stalled, 45.0), (Tail, 5.0)]);
    // The only GPU of a job waits for no other.
    let alone: Vec<Cell> =
        cells(&run).into_iter().map(|cell| Cell { gpus: vec![cell.gpus[1]], ..cell }).collect();
    assert!(classify(&alone, false).list.iter().all(|phase| phase.kind != Stalled));
}

/// A training of 9 s with a sample missing: its two edges are longer than what lies between them.
#[test]
fn of_three_samples_the_one_in_the_middle_shows_the_level() {
    let run = alike(&[(quiet(), 3), (partly(0.53), 1), (trains(), 1), (partly(0.48), 1)]);
    assert_eq!(classify(&run, true).training, [4 * STEP]);
    // Levels that differ little are all of the training.
    let run = alike(&[(quiet(), 3), (partly(0.8), 1), (trains(), 1), (partly(0.7), 1)]);
    assert_eq!(classify(&run, true).training.len(), 3);
    // A training that rests itself, as while it saves, may rest more at its edges.
    let rests = gpu(62.0, 57.0, 40.0, 20.0);
    let run = alike(&[(quiet(), 3), (partly(0.35), 1), (rests, 1), (partly(0.33), 1)]);
    assert_eq!(classify(&run, true).training.len(), 3);
}

/// Rank 1 ran out of memory and ended; rank 0 waited for it in a collective for 85 s.
#[test]
fn waiting_for_a_rank_that_is_gone_is_a_stall() {
    let gone = [waits(), quiet()];
    let run = [vec![[quiet(); 2]; 3], vec![[trains(); 2]; 3], vec![gone; 17]].concat();
    assert_eq!(kinds(&cells(&run)), [(StartUp, 15.0), (Steady, 15.0), (Stalled, 85.0)]);
    // The job is cancelled, and a last sample has no kernel.
    let ended = [run.clone(), vec![[quiet(); 2]]].concat();
    let list = classify(&cells(&ended), true).list;
    let phases = Phases { list, ..Phases::default() };
    assert_eq!(phases.last_stall().map(Phase::seconds), Some(85.0));
    // The only GPU of a job waits for no other: small kernels are its own.
    let alone: Vec<Cell> = cells(&run)
        .into_iter()
        .map(|cell| Cell { gpus: cell.gpus.into_iter().take(1).collect(), ..cell })
        .collect();
    let list = classify(&alone, false).list;
    assert!(list.iter().all(|phase| phase.kind != Stalled), "{list:?}");
}

/// Two H200s: two seconds of steps lie in one sample, and the job is cancelled after a minute.
#[test]
fn training_of_one_sample_is_followed_by_a_stall() {
    let last_steps = [gpu(99.9, 4.9, 1.5, 2.2), gpu(3.9, 3.2, 1.2, 1.7)];
    let parts = [vec![[quiet(); 2]; 2], vec![[partly(0.4); 2], last_steps], vec![[waits(), quiet()]; 11]];
    let mut run = cells(&parts.concat());
    // Samples are not equally long, so that the longer one's level is the usual one.
    (run[2].end, run[3].start) = (3 * STEP + 20, 3 * STEP + 20);
    assert_eq!(kinds(&run), [(StartUp, 10.0), (Steady, 5.02), (Stalled, 59.98)]);
    let end = run[14].end;
    run.push(Cell { start: end, end: end + STEP, gpus: vec![quiet(); 2], written: 0.0 });
    let list = classify(&run, true).list;
    assert_eq!(Phases { list, ..Phases::default() }.last_stall().map(Phase::seconds), Some(59.98));
}

/// An optimizer on the CPU: kernels run 1 % of the time.
#[test]
fn a_job_that_hardly_uses_its_gpus_trains_all_the_same() {
    let run = alike(&[(quiet(), 2), (gpu(1.4, 1.2, 0.4, 0.6), 4), (quiet(), 1)]);
    assert_eq!(kinds(&run), [(StartUp, 10.0), (Steady, 20.0), (Tail, 5.0)]);
    // A context without work.
    assert_eq!(kinds(&alike(&[(gpu(0.05, 0.0, 0.0, 0.0), 4)])), [(Idle, 20.0)]);
}

#[test]
fn first_collective_that_never_ends_is_a_stall() {
    assert_eq!(kinds(&alike(&[(quiet(), 4), (waits(), 20)])), [(StartUp, 20.0), (Stalled, 100.0)]);
    let ended = alike(&[(quiet(), 4), (waits(), 20), (quiet(), 1)]);
    assert_eq!(kinds(&ended), [(StartUp, 20.0), (Stalled, 100.0), (Tail, 5.0)]);
    assert_eq!(kinds(&alike(&[(quiet(), 4)])), [(Idle, 20.0)]);
}

#[test]
fn pauses_between_steps_have_their_causes() {
    let evaluation = [gpu(80.0, 60.0, 40.0, 10.0), waits()];
    let run = [vec![[trains(); 2]; 5], vec![evaluation; 3], vec![[trains(); 2]; 5]].concat();
    assert_eq!(kinds(&cells(&run)), [(Steady, 25.0), (Evaluating, 15.0), (Steady, 25.0)]);

    let mut save = alike(&[(trains(), 5), (waits(), 2), (trains(), 5)]);
    assert_eq!(kinds(&save), [(Steady, 25.0), (Stalled, 10.0), (Steady, 25.0)]);
    save.iter_mut().filter(|cell| cell.gpus[0] == waits()).for_each(|cell| cell.written = 4e8);
    assert_eq!(kinds(&save), [(Steady, 25.0), (Saving, 10.0), (Steady, 25.0)]);

    let idle = alike(&[(trains(), 5), (quiet(), 2), (trains(), 5)]);
    assert_eq!(kinds(&idle), [(Steady, 25.0), (Idle, 10.0), (Steady, 25.0)]);
}

/// 3 s of steps in two samples were taken for 10 s with GPUs that are idle for 70 % of the time.
#[test]
fn training_of_a_moment_in_two_samples_is_as_long_as_its_kernels_run() {
    let rounded = |run: &[Cell]| -> Vec<_> {
        kinds(run).into_iter().map(|(kind, seconds)| (kind, seconds.round())).collect()
    };
    let moment = alike(&[(quiet(), 2), (partly(0.3), 2), (quiet(), 2)]);
    assert_eq!(rounded(&moment), [(StartUp, 14.0), (Steady, 3.0), (Tail, 14.0)]);
    // The same work at the end of the run, and the small kernels of an initialisation before it.
    assert_eq!(rounded(&alike(&[(quiet(), 2), (partly(0.3), 2)])), [(StartUp, 14.0), (Steady, 3.0)]);
    let blip = alike(&[(quiet(), 1), (partly(0.05), 1), (partly(0.3), 2), (quiet(), 2)]);
    assert_eq!(rounded(&blip), [(StartUp, 14.0), (Steady, 3.0), (Tail, 14.0)]);
    // Steps beside them show that GPUs work no more than that.
    let slow = alike(&[(quiet(), 2), (partly(0.1), 1), (partly(0.3), 2), (quiet(), 2)]);
    assert_eq!(rounded(&slow), [(StartUp, 15.0), (Steady, 10.0), (Tail, 10.0)]);
    let three = alike(&[(quiet(), 2), (partly(0.3), 3), (quiet(), 2)]);
    assert_eq!(rounded(&three), [(StartUp, 10.0), (Steady, 15.0), (Tail, 10.0)]);
    // Full samples are full.
    assert_eq!(rounded(&alike(&[(quiet(), 2), (trains(), 2)])), [(StartUp, 10.0), (Steady, 10.0)]);
}

/// A job that is ended soon after it began to train. The first sample may be the longer one by some milliseconds.
#[test]
fn of_two_samples_the_second_one_shows_the_level() {
    let mut run = alike(&[(quiet(), 2), (partly(0.45), 1), (trains(), 1)]);
    run[3].end -= 3;
    let course = classify(&run, true);
    assert_eq!(course.training, [3 * STEP]);
    assert_eq!(kinds(&run)[1].0, Steady);
    let mut blip = alike(&[(quiet(), 2), (partly(0.06), 1), (trains(), 1)]);
    blip[3].end -= 3;
    assert_eq!(classify(&blip, true).training, [3 * STEP]);
    assert_eq!(kinds(&blip), [(StartUp, 15.0), (Steady, 4.997)]);
}

/// An optimizer on the host copies all the time, in a sample with little work as much as goes with that.
#[test]
fn copies_that_go_with_the_work_are_no_save() {
    let copies = |gpu: CellGpu, sent: f64| CellGpu { sent, ..gpu };
    let training = (copies(trains(), 2e9), 3);
    let run = |gpu: CellGpu, sent| alike(&[training, (copies(gpu, sent), 1), training]);
    assert_eq!(kinds(&run(partly(0.3), 0.6e9)), [(Steady, 15.0), (Idle, 5.0), (Steady, 15.0)]);
    assert_eq!(kinds(&run(partly(0.3), 0.8e9)), [(Steady, 15.0), (Saving, 5.0), (Steady, 15.0)]);
    assert_eq!(kinds(&run(quiet(), 0.15e9)), [(Steady, 15.0), (Saving, 5.0), (Steady, 15.0)]);
    // The last save of a job ends after its last kernel.
    let last = alike(&[training, (copies(quiet(), 0.15e9), 2), (quiet(), 1)]);
    assert_eq!(kinds(&last), [(Steady, 15.0), (Saving, 10.0), (Tail, 5.0)]);
    // A core dump is written, and not copied from a GPU.
    let mut dump = alike(&[(trains(), 3), (quiet(), 2)]);
    dump[3].written = 4e8;
    assert_eq!(kinds(&dump), [(Steady, 15.0), (Tail, 10.0)]);
}

/// Parts of a model that are swapped between the host and the GPU: each goes onto it and off it again.
#[test]
fn copies_both_ways_are_no_save() {
    let copies = |sent, received| CellGpu { sent, received, ..quiet() };
    let run = |sent, received| {
        alike(&[(trains(), 3), (copies(sent, 1e6), 2), (copies(1e6, received), 1), (trains(), 3)])
    };
    assert_eq!(kinds(&run(0.5e9, 1e9)), [(Steady, 15.0), (Idle, 15.0), (Steady, 15.0)]);
    assert_eq!(kinds(&run(0.5e9, 0.2e9)), [(Steady, 15.0), (Saving, 10.0), (Idle, 5.0), (Steady, 15.0)]);
    // What is written to disks meanwhile may be a save.
    let mut written = run(0.5e9, 1e9);
    written[3].written = 4e8;
    assert_eq!(kinds(&written), [(Steady, 15.0), (Saving, 5.0), (Idle, 10.0), (Steady, 15.0)]);
}

/// Training that generates text in each epoch: many small kernels, which a level of SMs, tensor pipes and memory hardly shows.
#[test]
fn light_work_between_two_trainings_is_no_rest() {
    let generates = |kernels, sm| gpu(kernels, sm, 1.0, 5.0);
    let run = |light| {
        alike(&[
            (gpu(96.0, 90.0, 45.0, 35.0), 6),
            (light, 4),
            (gpu(96.0, 90.0, 45.0, 35.0), 6),
            (light, 2),
            (quiet(), 1),
        ])
    };
    for (kernels, sm) in [(72.0, 22.0), (24.0, 5.0)] {
        let list = kinds(&run(generates(kernels, sm)));
        assert_eq!(
            list,
            [(Steady, 30.0), (Slow, 20.0), (Steady, 30.0), (Slow, 10.0), (Tail, 5.0)],
            "{kernels}"
        );
    }
    // A sample with a moment of the training, and one with hardly a kernel.
    for (kernels, sm) in [(24.0, 22.0), (9.0, 1.0)] {
        let list = kinds(&run(generates(kernels, sm)));
        assert_eq!(list[1], (Idle, 20.0), "{kernels}");
    }
}

/// A job that is ended while one rank saves, or evaluates, has no hang.
#[test]
fn a_rank_at_work_at_the_end_is_no_stall() {
    let two = |first: CellGpu, number: u64| -> Vec<Cell> {
        let cell = |at: u64| Cell {
            start: at * STEP,
            end: (at + 1) * STEP,
            gpus: vec![first, waits()],
            written: 0.0,
        };
        let trained = |at: u64| Cell { gpus: vec![trains(); 2], ..cell(at) };
        (0..4).map(trained).chain((4..4 + number).map(cell)).collect()
    };
    let saves = CellGpu { sent: 0.3e9, ..quiet() };
    assert_eq!(kinds(&two(saves, 3)).last(), Some(&(Saving, 15.0)));
    assert_eq!(kinds(&two(partly(0.3), 3)).last(), Some(&(Evaluating, 15.0)));
    assert_eq!(kinds(&two(quiet(), 3)).last(), Some(&(Stalled, 15.0)));
}

/// A script that runs one program after the other: between two of them no process has the GPU open, as in the last sample of the first
/// program.
#[test]
fn each_program_of_a_script_has_phases_of_its_own() {
    let with = |memory_mib, gpu: CellGpu| CellGpu { memory_mib: Some(memory_mib), ..gpu };
    let run = |between| {
        let one = [(with(600.0, quiet()), 2), (with(9e3, trains()), 3), (with(between, partly(0.6)), 1)];
        let rest = [(with(between, quiet()), 1)];
        alike(&[one.as_slice(), &rest, &one, &rest].concat())
    };
    let found = |cells: &[Cell]| {
        let course = classify_starts(cells, false, &[]);
        let list = course.list.iter().map(|phase| (phase.kind, phase.seconds())).collect::<Vec<_>>();
        (list, course.training.len())
    };
    let apart = [(StartUp, 10.0), (Steady, 18.0), (StartUp, 17.0), (Steady, 18.0), (Tail, 7.0)];
    // Without the first and the last sample of each.
    assert_eq!(found(&run(0.0)), (apart.to_vec(), 2));
    // The last moment of the job holds the end of its only program.
    let mut end = alike(&[(with(9e3, trains()), 3), (with(0.0, partly(0.6)), 2)]);
    end[4].end -= STEP - 100;
    assert!(found(&end).1 >= 3, "{:?}", found(&end));
    // One program that rests.
    let rests = [(StartUp, 10.0), (Steady, 20.0), (Idle, 15.0), (Steady, 18.0), (Tail, 7.0)];
    assert_eq!(found(&run(883.0)), (rests.to_vec(), 7));
}

/// A handler of SIGTERM saves after a stall.
#[test]
fn a_save_after_a_stall_does_not_hide_it() {
    let saves = CellGpu { sent: 0.3e9, ..quiet() };
    let run = alike(&[(trains(), 5), (waits(), 6), (saves, 1), (quiet(), 1)]);
    assert_eq!(kinds(&run), [(Steady, 25.0), (Stalled, 30.0), (Saving, 5.0), (Tail, 5.0)]);
    let list = classify(&run, true).list;
    assert_eq!(Phases { list, ..Phases::default() }.last_stall().map(Phase::seconds), Some(30.0));
}

#[test]
fn a_slow_stretch_needs_three_samples() {
    let with = |slow| alike(&[(trains(), 9), (partly(0.6), slow), (trains(), 9)]);
    assert_eq!(kinds(&with(2)), [(Steady, 100.0)]);
    assert_eq!(kinds(&with(3)), [(Steady, 45.0), (Slow, 15.0), (Steady, 45.0)]);
}

/// A decode loop of tiny kernels, 7 % busy, after an autotuning burst at full load.
#[test]
fn a_short_burst_does_not_define_the_usual_level() {
    let small = gpu(7.0, 3.0, 0.5, 2.5);
    let run = alike(&[(quiet(), 2), (trains(), 2), (small, 40)]);
    let found = classify(&run, true);
    assert_eq!(found.list.last().map(|phase| phase.kind), Some(Steady));
    assert!(found.training.len() >= 40, "{found:?}");
}

/// Without GPM only the time with any kernel is known: no stall can be told.
#[test]
fn without_gpm_no_gpu_is_said_to_wait() {
    let busy = CellGpu { kernels: Some(100.0), ..CellGpu::default() };
    let none = CellGpu { kernels: Some(0.0), ..CellGpu::default() };
    assert_eq!(
        kinds(&alike(&[(none, 2), (busy, 8), (none, 1)])),
        [(StartUp, 10.0), (Steady, 40.0), (Tail, 5.0)]
    );
    assert_eq!(classify(&alike(&[(CellGpu::default(), 3)]), true), Course::default());
}

#[test]
fn the_list_is_bounded_and_covers_the_same_time() {
    let parts: Vec<_> = (0..400).flat_map(|_| [(trains(), 3), (quiet(), 1)]).collect();
    let list = classify(&alike(&parts), true).list;
    assert!(list.len() <= MOST, "{}", list.len());
    assert_eq!(list.first().map(|phase| phase.start), Some(0));
    assert_eq!(list.last().map(|phase| phase.end), Some(1600 * STEP));
    assert!(list.windows(2).all(|two| two[0].end <= two[1].start), "{list:?}");
}

/// Two starts of one attempt: each has its own start-up and its own usual level.
#[test]
fn each_start_has_its_own_phases() {
    let run = alike(&[
        (quiet(), 2),
        (trains(), 4),
        (waits(), 3),
        (quiet(), 1),
        (quiet(), 3),
        (partly(0.3), 4),
        (quiet(), 1),
    ]);
    let starts = [(0, 0), (1, 10 * STEP)].map(|(start_number, first)| StepStart { start_number, first });
    let said = |starts: &[StepStart]| -> Vec<(u32, PhaseKind, f64)> {
        let list = classify_starts(&run, true, starts).list;
        list.iter().map(|phase| (phase.start_number, phase.kind, phase.seconds())).collect()
    };
    let expected = [
        (0, StartUp, 10.0),
        (0, Steady, 20.0),
        (0, Stalled, 15.0),
        (0, Tail, 5.0),
        (1, StartUp, 15.0),
        (1, Steady, 20.0),
        (1, Tail, 5.0),
    ];
    assert_eq!(said(&starts), expected);
    assert_eq!(classify_starts(&run, true, &starts).training.len(), 8);
    let one = classify(&run, true);
    assert_eq!(classify_starts(&run, true, &[]), one);
    assert_ne!(said(&[]).len(), expected.len());
    // Many short starts make no long list.
    let many: Vec<StepStart> =
        (0..200).map(|start| StepStart { start_number: start, first: u64::from(start) * STEP }).collect();
    let crowd = alike(&[(trains(), 200)]);
    assert!(classify_starts(&crowd, true, &many).list.len() <= MOST);
}

/// One rank saves while the other one waits for it: of the node, the pause is a save.
#[test]
fn a_gpu_that_waits_for_the_one_that_saves_is_stalled() {
    let train = |count: usize| vec![[trains(), trains()]; count];
    let save = vec![[quiet(), waits()]; 3];
    let mut run = cells(&[train(4), save, train(4)].concat());
    run.iter_mut().skip(4).take(3).for_each(|cell| cell.written = 200e6);
    let list = classify(&run, true).list;
    assert_eq!(list[1].kind, Saving);
    let said = |run: &[Cell], gpus| -> Vec<Vec<(PhaseKind, f64)>> {
        let all = by_gpu(run, gpus, true, &[], &classify(run, true).list);
        all.into_iter().map(|own| own.into_iter().collect()).collect()
    };
    assert_eq!(said(&run, 2), [[(Steady, 40.0), (Saving, 15.0)], [(Steady, 40.0), (Stalled, 15.0)]]);
    // GPUs that agree to within a sample are not listed, nor are samples of other GPUs.
    run.iter_mut().for_each(|cell| cell.written = 0.0);
    run.iter_mut().skip(4).take(3).for_each(|cell| cell.gpus = vec![waits(); 2]);
    run[0].gpus[1] = partly(0.7);
    assert_eq!(said(&run, 2), [[]; 0] as [[(PhaseKind, f64); 0]; 0]);
    run[0].gpus[1] = quiet();
    run[1].gpus[1] = quiet();
    assert_eq!(said(&run, 2).len(), 2);
    assert_eq!(said(&run, 3).len(), 0);
    // A GPU that no rank uses.
    let unused = cells(&vec![[trains(), quiet()]; 6]);
    assert_eq!(said(&unused, 2), [[(Steady, 30.0)], [(Idle, 30.0)]]);
}

/// A loop over small parameters, and JAX without jit: kernels run 4 % to 17 % of the time on a thousandth of the SMs.
#[test]
fn kernels_that_hardly_use_the_gpu_are_training() {
    let tiny = gpu(17.0, 0.2, 0.0, 0.0);
    assert_eq!(
        kinds(&alike(&[(quiet(), 2), (tiny, 3), (quiet(), 1)])),
        [(StartUp, 10.0), (Steady, 15.0), (Tail, 5.0)]
    );
    // At the end the memory is cleared.
    let cleared = alike(&[(quiet(), 2), (gpu(4.0, 0.1, 0.0, 0.0), 9), (gpu(0.0, 0.0, 0.0, 1.5), 1)]);
    assert_eq!(kinds(&cleared), [(StartUp, 10.0), (Steady, 45.0), (Tail, 5.0)]);
    // A context without work.
    assert_eq!(kinds(&alike(&[(gpu(0.1, 0.0, 0.0, 0.0), 5)])), [(Idle, 25.0)]);
}
