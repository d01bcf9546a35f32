//! A stand-in for NCCL: loads the built library and calls it in the same order and from the same threads as NCCL, in
//! each version of the interface. Mask, environment and counters belong to a process, so each scene runs in its own
//! process; the test then reads its file.
#![allow(unsafe_code, reason = "it plays NCCL's part of a C interface")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests stand outside of test functions")]

#[cfg(target_arch = "x86_64")]
mod cold;
mod played;
mod ring;
mod scenes;

use std::fs;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::OnceLock;

use railgate_rankfile::{BYTES, Cell, Comm, Limit, Mode, OPERATIONS, RankFile};

/// Variable with the scene's name; without it the process is the test harness.
const SCENE: &str = "RAILGATE_TEST_SCENE";

/// Builds the library and NCCL's stand-in, and returns their paths.
fn built() -> &'static (PathBuf, PathBuf) {
    static BUILT: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
    BUILT.get_or_init(|| {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command
            .args(["build", "--quiet", "-p", "nccl-profiler-railgate"])
            .args((!cfg!(debug_assertions)).then_some("--release"))
            .current_dir(env!("CARGO_MANIFEST_DIR"));
        assert!(command.status().unwrap().success());
        // This executable is in deps/.
        let exe = std::env::current_exe().unwrap();
        let plugin = exe.ancestors().nth(2).unwrap().join("libnccl_profiler_railgate.so");
        let nccl = Path::new(env!("CARGO_TARGET_TMPDIR")).join("played-libnccl.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/driver/nccl.c");
        let mut command = Command::new("cc");
        command
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-ftls-model=initial-exec", "-o"])
            .arg(&nccl)
            .arg(source);
        assert!(command.status().unwrap().success());
        (plugin, nccl)
    })
}

/// Results of a scene.
struct Left {
    files: Vec<RankFile>,
    said: String,
    status: ExitStatus,
    dir: tempfile::TempDir,
}

impl Left {
    /// The only file.
    fn file(&self) -> &RankFile {
        let [file] = &self.files[..] else { panic!("{} files; {}", self.files.len(), self.said) };
        assert_eq!((file.panics, file.nonsense), (0, 0), "{file:?}");
        file
    }

    fn comm(&self) -> &Comm {
        let [comm] = &self.file().comms[..] else { panic!("{:?}", self.file().comms) };
        comm
    }
}

/// Cells of an operation.
fn cells<'f>(file: &'f RankFile, op: &str) -> Vec<&'f Cell> {
    file.cells.iter().filter(|cell| OPERATIONS[usize::from(cell.key.op)] == op).collect()
}

struct Scene<'a> {
    name: &'a str,
    release: u64,
    mode: &'a str,
    job_dir: Option<&'a Path>,
    /// Largest file, bytes.
    file_size: Option<u64>,
    /// Plugin to load instead of this one.
    plugin: Option<&'a Path>,
    /// Where valgrind writes its trace.
    trace: Option<&'a Path>,
}

fn scene(name: &str) -> Scene<'_> {
    Scene { name, release: 22_809, mode: "full", job_dir: None, file_size: None, plugin: None, trace: None }
}

impl Scene<'_> {
    fn left(self) -> Left {
        let left = self.ended();
        assert!(left.status.success(), "{}", left.said);
        left
    }

    /// Runs the scene in its own process, which may be killed.
    fn ended(self) -> Left {
        let (plugin, nccl) = built();
        let plugin = self.plugin.unwrap_or(plugin);
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("user")).unwrap();
        let own = std::env::current_exe().unwrap();
        let mut command = Command::new(if self.trace.is_some() { Path::new("valgrind") } else { &own });
        if let Some(trace) = self.trace {
            command.args(["--tool=lackey", "--trace-mem=yes"]);
            command.arg(format!("--log-file={}", trace.display())).arg(&own);
        }
        command.args(["--exact", "--nocapture", "plays"]).env(SCENE, self.name);
        command.env("LD_PRELOAD", nccl).env("RAILGATE_TEST_NCCL", self.release.to_string());
        command.env("RAILGATE_TEST_LIBRARIES", std::env::join_paths([plugin, nccl.as_path()]).unwrap());
        command
            .env("RAILGATE_JOB_DIR", self.job_dir.unwrap_or(dir.path()))
            .env("RAILGATE_NCCL_MODE", self.mode)
            .env("RAILGATE_START", "2");
        command.env_remove("RAILGATE_NCCL_BUDGET_PPM");
        if let Some(bytes) = self.file_size {
            let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
            // SAFETY: a single system call between fork and exec.
            unsafe {
                command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                });
            }
        }
        let output = command.output().unwrap();
        let said =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        let ranks = dir.path().join("user/ranks");
        let mut files = Vec::new();
        for entry in fs::read_dir(ranks).into_iter().flatten().map(Result::unwrap) {
            if entry.file_name() != "mode" {
                files.push(RankFile::parse(&fs::read(entry.path()).unwrap()).unwrap());
            }
        }
        Left { files, said, status: output.status, dir }
    }
}

/// In the scene's own process.
#[test]
fn plays() {
    if let Ok(name) = std::env::var(SCENE) {
        scenes::play(&name);
    }
}

#[test]
fn every_version_of_the_interface_counts_calls_bytes_and_times() {
    // The first and the last release of each version; with 2.31 kernels are not timed.
    for (release, api) in [(22_703, 4), (22_809, 5), (22_902, 6), (23_007, 6), (23_102, 7), (23_203, 7)] {
        let left = Scene { release, ..scene("ten") }.left();
        let (file, comm) = (left.file(), left.comm());
        let nccl = [release / 10_000, release / 100 % 100, release % 100];
        assert_eq!((file.api, file.nccl, file.expired, file.stray), (api, Some(nccl), 0, 0), "{file:?}");
        assert_eq!((comm.hash, comm.ranks, comm.rank, comm.nodes, file.start), (0xabc, 4, 1, 1, 2));
        assert_eq!((comm.name.as_str(), comm.ops, comm.destroyed), ("tensor parallel", 10, true));
        let [cell] = cells(file, "AllReduce")[..] else { panic!("{:?}", file.cells) };
        assert_eq!((cell.calls, cell.bytes), (10, 10 * 1024));
        if api == 7 {
            assert_eq!((file.limit, cell.timed), (Limit::SlowRelease, 0));
            continue;
        }
        // All but the first. Ten microseconds each, one every twelve: the gap is only in the launch interval.
        assert_eq!((file.limit, cell.timed, cell.timed_bytes), (Limit::None, 9, 9 * 1024), "{release}");
        assert_eq!((cell.sum_ns, cell.min_ns, cell.max_ns), (90_000, Some(10_000), 10_000));
        assert_eq!((cell.spaced, cell.spaced_bytes, cell.spaced_ns), (8, 8 * 1024, 8 * 12_000));
        assert_eq!((comm.begun, comm.done, comm.done_op), (9, 9, 10));
    }
}

#[test]
fn a_release_without_a_supported_version_loads_nothing() {
    for release in [22_205, 22_304, 22_602] {
        let left = Scene { release, ..scene("nothing-to-load") }.left();
        assert!(left.files.is_empty());
    }
}

#[test]
fn releases_with_known_problems_and_unknown_ones_are_restricted() {
    let crashes = Scene { release: 23_003, ..scene("refused") }.left();
    assert_eq!((crashes.file().limit, crashes.file().comms.len()), (Limit::Release, 0));
    assert!(
        crashes.said.contains("> 3 0x1 PROFILER/Plugin: railgate: counts nothing: this release"),
        "{}",
        crashes.said
    );
    let unknown = Scene { release: 0, ..scene("untimed") }.left();
    assert_eq!((unknown.file().limit, unknown.comm().ops), (Limit::UnknownRelease, 10));
}

#[test]
fn a_killed_process_leaves_a_file_with_its_last_operation() {
    let left = scene("killed").ended();
    assert_eq!(left.status.signal(), Some(libc::SIGKILL), "{}", left.said);
    let comm = left.comm();
    assert_eq!((comm.ops, comm.destroyed, comm.begun, comm.done, comm.done_op), (4, false, 3, 2, 3));
    let last = comm.last.unwrap();
    assert_eq!((last.seq, last.bytes), (3, 1024));
    assert!(last.time_ms > 1_700_000_000_000);
}

#[test]
fn a_process_that_exits_leaves_a_file_with_its_last_operation() {
    let left = scene("no-finalize").left();
    assert_eq!((left.comm().ops, left.comm().destroyed), (10, false));
}

#[test]
fn a_forked_child_counts_nothing() {
    let left = scene("fork").left();
    assert_eq!(left.comm().ops, 20, "the parent's alone");
}

#[test]
fn communicators_beyond_the_limit_are_counted_as_lost() {
    let left = scene("communicators").left();
    let file = left.file();
    assert_eq!((file.comms.len(), file.comms_lost), (128, 72));
    assert!(file.comms.iter().all(|comm| comm.ops == 2 && comm.done == 1), "{:?}", file.comms);
}

#[test]
fn events_of_many_threads_are_all_counted() {
    let left = scene("threads").left();
    let file = left.file();
    assert_eq!(file.comms.iter().map(|comm| comm.ops).sum::<u64>(), 8 * 5000);
    let timed: u64 = file.cells.iter().map(|cell| cell.timed).sum();
    let begun: u64 = file.comms.iter().map(|comm| comm.begun).sum();
    assert!(timed > 1000 && timed + file.expired <= begun.max(timed) + 8 && begun < 8 * 5000, "{file:?}");
}

#[test]
fn no_operation_is_missed_when_threads_launch_fast() {
    let (old, usual, new) = (22_703, 22_809, 23_007);
    for (release, mode) in
        [(old, "count"), (usual, "count"), (usual, "sample"), (usual, "full"), (new, "sample")]
    {
        let left = Scene { release, mode, ..scene("busy") }.left();
        let file = left.file();
        assert_eq!(file.comms.len(), 8);
        for comm in &file.comms {
            let of = |op: &str| {
                let all = cells(file, op).into_iter().filter(|cell| cell.key.comm == comm.index);
                all.map(|cell| (cell.calls, cell.bytes)).collect::<Vec<_>>()
            };
            let mut reduced = of("AllReduce");
            reduced.sort_unstable();
            assert_eq!(
                reduced,
                [8, 1 << 12, 1 << 20].map(|count| (3000, 3000 * 4 * count)),
                "{release} {mode}"
            );
            // Bytes per rank, times two ranks.
            assert_eq!(of("AllGather"), [(3000, 3000 * 4 * 300 * 2)]);
            assert_eq!((of("Send"), of("P2pGroup")), (vec![(30, 30 * 64)], vec![(30, 30 * 64)]));
            // NCCL numbers each function separately; the stand-in numbers all together.
            let last = comm.last.unwrap();
            assert_eq!((comm.ops, last.seq, last.bytes), (12_030, 11_999, 4 * 300 * 2));
        }
    }
}

#[test]
fn a_process_killed_at_any_time_is_off_by_at_most_one_operation() {
    for _ in 0..5 {
        let left = Scene { mode: "count", ..scene("killed-busy") }.ended();
        assert_eq!(left.status.signal(), Some(libc::SIGKILL), "{}", left.said);
        let file = left.file();
        assert_eq!(file.comms.len(), 4);
        for comm in &file.comms {
            let (mut calls, mut bytes) = (0, 0);
            for cell in file.cells.iter().filter(|cell| cell.key.comm == comm.index) {
                (calls, bytes) = (calls + cell.calls, bytes + cell.bytes);
            }
            assert!(comm.ops > 1000 && comm.ops.abs_diff(calls) <= 1, "{calls}: {comm:?}");
            assert!(bytes.abs_diff(calls * 1024) <= 1024, "{bytes} {calls}");
        }
    }
}

#[test]
fn the_time_of_the_last_operation_is_its_own_or_marked() {
    for mode in ["count", "full"] {
        last_operations_time(mode);
    }
}

fn last_operations_time(mode: &str) {
    let left = Scene { mode, ..scene("rest") }.left();
    let comms = &left.file().comms;
    // The operation after a short loop, and the eighth after a fast loop.
    for pair in [[0, 1], [2, 3]] {
        let [before, after] = pair.map(|at| comms[at].last.unwrap().time_ms);
        assert!((300..60_000).contains(&(after - before)), "{pair:?}: {} ms", after - before);
    }
    assert!(!comms[1].last.unwrap().time_is_earliest);
    // The last of all, and the first after a fast loop: if its time is not its own, that is marked.
    let [eighth, last] = [3, 4].map(|at| comms[at].last.unwrap());
    assert!(last.time_is_earliest || last.time_ms + 50 >= eighth.time_ms, "{last:?} {eighth:?}");
}

#[test]
fn a_launch_without_end_adds_nothing_to_the_next() {
    let left = scene("abandoned").left();
    let file = left.file();
    let of = |op| cells(file, op).iter().map(|cell| (cell.calls, cell.bytes)).collect::<Vec<_>>();
    assert_eq!((of("Send"), of("P2pGroup")), (vec![(2, 2 * 4096)], vec![(1, 4096)]));
}

#[test]
fn invalid_calls_do_no_harm() {
    for release in [22_703, 22_809, 23_007] {
        let left = Scene { release, ..scene("nonsense") }.left();
        let comm = left.comm();
        assert_eq!((comm.ops, comm.done), (2, 1), "{release}: {:?}", left.file());
        assert!(left.file().stray > 0);
    }
}

#[test]
fn operations_that_end_late_or_never_are_counted_as_expired() {
    let left = scene("late").left();
    let file = left.file();
    // 9000 were timed and did not end; 4096 have room at a time.
    assert_eq!((left.comm().ops, file.expired), (9001, 9000 - 4096));
    assert_eq!(cells(file, "AllReduce")[0].timed, 1, "the last one's end arrived");
    assert!(file.stray > 0, "the first one's arrived too late");
}

#[test]
fn a_communicator_that_was_idle_takes_no_slot_of_another() {
    let left = scene("rested").left();
    let timed: u64 = cells(left.file(), "AllReduce").iter().map(|cell| cell.timed).sum();
    assert_eq!((timed, left.file().expired), (6009, 0));
}

#[test]
fn kinds_beyond_the_limit_are_counted_as_lost() {
    let left = scene("kinds").left();
    let file = left.file();
    let kept: u64 = file.cells.iter().map(|cell| cell.calls).sum();
    assert_eq!((file.cells.len(), kept + file.cells_lost), (2048, 60 * 40));
}

#[test]
fn nothing_is_allocated_after_a_communicator_was_created() {
    for (release, mode) in [(22_703, "full"), (22_809, "sample"), (23_007, "full"), (22_809, "count")] {
        let left = Scene { release, mode, ..scene("allocations") }.left();
        assert!(left.comm().ops >= 1000);
    }
}

#[test]
fn without_a_run_directory_the_job_runs_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let missing = dir.path().join("missing");
    for place in [&missing, &file, Path::new("relative"), Path::new("")] {
        let left = Scene { job_dir: Some(place), ..scene("refused") }.left();
        assert!(left.files.is_empty() && left.said.contains("counts nothing"), "{}", left.said);
    }
}

#[test]
fn a_file_size_limit_does_not_kill_the_job() {
    // For a write beyond the limit the kernel sends a signal that kills the process.
    let left = Scene { file_size: Some(BYTES as u64 - 1), ..scene("refused") }.left();
    assert!(left.files.is_empty() && left.said.contains("counts nothing"), "{}", left.said);
    let left = Scene { file_size: Some(BYTES as u64), ..scene("ten") }.left();
    assert_eq!(left.comm().ops, 10);
}

#[test]
fn the_mode_changes_while_the_job_runs() {
    // With NCCL 2.27, timing is either on from the beginning or stays off.
    let left = Scene { mode: "off", release: 22_703, ..scene("switched") }.left();
    assert_eq!((left.file().mode, left.file().limit), (Some(Mode::Count), Limit::HiddenCaptures));
    assert!(left.comm().ops > 0 && left.file().cells[0].timed == 0);
    for release in [22_809, 23_007] {
        let left = Scene { mode: "off", release, ..scene("switched") }.left();
        let cell = cells(left.file(), "AllReduce")[0];
        assert!(left.dir.path().join("user/ranks/mode").exists());
        assert_eq!(left.file().mode, Some(Mode::Full));
        assert!(cell.calls > 0 && cell.timed > 0 && cell.timed < cell.calls, "{cell:?}");
    }
}

#[test]
fn a_sample_contains_every_communicator_and_size() {
    let left = Scene { mode: "sample", ..scene("sample") }.left();
    let file = left.file();
    assert_eq!(cells(file, "AllReduce").len(), 2 * 3);
    for cell in cells(file, "AllReduce") {
        assert!(cell.timed > 8 && cell.timed < cell.calls / 2 && cell.spaced > 0, "{cell:?}");
        // 10 µs each, one every 12 µs.
        assert_eq!((cell.sum_ns, cell.spaced_ns), (cell.timed * 10_000, cell.spaced * 12_000));
    }
}

#[test]
fn a_sample_contains_every_kind_in_a_loop() {
    let left = Scene { mode: "sample", ..scene("soon") }.left();
    let cells = cells(left.file(), "AllReduce");
    assert_eq!(cells.len(), 25);
    for cell in cells {
        // At least six windows, at each 32nd call.
        assert!(cell.calls == 207 && cell.timed >= 48 && cell.spaced >= 42, "{cell:?}");
        assert!(cell.timed < cell.calls / 2, "{cell:?}");
    }
}

#[test]
fn an_idle_communicator_does_not_keep_others_timed() {
    let left = Scene { mode: "sample", ..scene("idle") }.left();
    // The initial balance of 0.5 ms pays for 312 operations; how many more fit in the budget depends on the duration
    // of the 50,000.
    let timed: u64 = cells(left.file(), "AllReduce").iter().map(|cell| cell.timed).sum();
    assert!((300..25_000).contains(&timed), "{timed}");
}

#[test]
fn messages_of_a_launch_are_counted_singly_and_together() {
    for release in [22_703, 22_809, 23_007] {
        let left = Scene { release, ..scene("messages") }.left();
        let file = left.file();
        let of =
            |op| cells(file, op).iter().map(|cell| (cell.calls, cell.bytes, cell.timed)).collect::<Vec<_>>();
        assert_eq!(of("Send"), [(4, 4 * 4096, 0)]);
        assert_eq!(of("Recv"), [(4, 4 * 4096, 0)]);
        // To three others, and to itself, which is not sent over the network. From then on NCCL's times belong to
        // other operations.
        assert_eq!(of("P2pGroup"), [(1, 3 * 4096, 0)], "{release}: {file:?}");
        assert_eq!((of("AllReduce")[0].0, of("AllReduce")[0].2, left.comm().to_itself), (11, 0, 2));
        assert_eq!(left.comm().ops, 12);
    }
}

#[test]
fn operations_that_two_threads_finish_at_once_are_all_counted() {
    let left = scene("meeting").left();
    let (comm, each) = (left.comm(), scenes::MEETINGS as u64);
    for op in ["AllReduce", "P2pGroup"] {
        let [cell] = cells(left.file(), op)[..] else { panic!("{:?}", left.file()) };
        assert_eq!((cell.timed, cell.sum_ns), (each, each * 10_000), "{op}: {cell:?}");
    }
    let all = 2 * each;
    assert_eq!((comm.begun, comm.done, comm.done_op), (all, all, all + 1));
}

#[test]
fn operations_in_flight_are_timed_after_the_mode_is_set_to_off() {
    let left = scene("off-meanwhile").left();
    assert_eq!(cells(left.file(), "AllReduce")[0].timed, 10);
}

#[test]
fn a_communicator_ends_although_the_gpu_counts_more_than_nccl() {
    for (release, mode) in
        [(22_703, "sample"), (22_703, "full"), (22_809, "sample"), (22_809, "full"), (23_007, "sample")]
    {
        let left = Scene { release, mode, ..scene("all-to-all") }.left();
        let file = left.file();
        let limit = match (release, mode) {
            (_, "full") => Limit::None,
            (22_703, _) => Limit::HiddenCaptures,
            _ => Limit::OwnMessages,
        };
        assert_eq!((file.limit, left.comm().to_itself), (limit, 600), "{release} {mode}");
        // All operations are counted nevertheless.
        assert_eq!(cells(file, "AllReduce")[0].calls, 1500);
    }
}

#[test]
fn a_communicator_ends_after_graphs_were_replayed() {
    for release in [22_809, 23_007] {
        let left = Scene { release, mode: "sample", ..scene("graphs") }.left();
        assert_eq!((left.file().limit, left.file().mode), (Limit::Captures, Some(Mode::Count)));
        // In the middle of a window: the captured operations stay timed, so all are.
        let left = Scene { release, mode: "sample", ..scene("graphs-in-a-window") }.left();
        assert_eq!((left.file().limit, left.file().mode), (Limit::None, Some(Mode::Full)));
        assert!(cells(left.file(), "AllReduce")[0].timed < 5, "times of other operations");
        let left = Scene { release, ..scene("graphs") }.left();
        assert_eq!((left.file().limit, left.file().mode), (Limit::None, Some(Mode::Full)));
    }
    // This release does not report captures.
    let left = Scene { release: 22_703, mode: "sample", ..scene("graphs") }.left();
    assert_eq!((left.file().limit, left.file().mode), (Limit::HiddenCaptures, Some(Mode::Count)));
}

#[test]
fn diverging_counts_in_mode_off_still_forbid_timing_later() {
    let left = Scene { mode: "off", ..scene("off-then-full") }.left();
    assert_eq!((left.file().limit, left.file().mode), (Limit::OwnMessages, Some(Mode::Count)));
    assert!(left.comm().ops > 0 && left.comm().to_itself == 0);
}

#[test]
fn messages_to_other_ranks_are_timed_and_the_communicator_ends() {
    let left = Scene { mode: "sample", ..scene("neighbours") }.left();
    assert_eq!((left.file().limit, left.comm().to_itself), (Limit::None, 0));
}

#[test]
fn the_mask_does_not_change_during_a_group_of_another_thread() {
    for release in [22_809, 23_007] {
        let left = Scene { release, mode: "sample", ..scene("two-threads") }.left();
        assert_eq!((left.file().limit, left.file().mode), (Limit::Threads, Some(Mode::Count)));
    }
}

#[test]
fn times_of_other_operations_are_left_out() {
    let left = scene("astray").left();
    let cell = cells(left.file(), "AllReduce")[0];
    // Of six, one started before the other's end, and one took longer than its age.
    assert_eq!((cell.calls, cell.timed, cell.sum_ns, left.file().stray), (7, 4, 40_000, 2), "{cell:?}");
    assert_eq!((cell.spaced, cell.spaced_ns), (2, 24_000));
}

#[test]
fn operations_visible_only_at_the_api_are_counted_there() {
    for release in [23_007, 23_203] {
        let left = Scene { release, ..scene("hidden") }.left();
        let file = left.file();
        let [cell] = cells(file, "Broadcast")[..] else { panic!("{:?}", file.cells) };
        assert_eq!(
            (cell.calls, cell.bytes, cell.timed, file.api_only, file.captured),
            (2, 2 * 1024, 0, 2, 1)
        );
        let [cell] = cells(file, "AllGather")[..] else { panic!("{:?}", file.cells) };
        // On the copy engines, bytes of one rank times four ranks.
        assert_eq!((cell.calls, cell.bytes, cell.timed), (1, 4 * 300, 0));
    }
}

#[test]
fn two_nccls_in_a_process_have_separate_masks() {
    let left = scene("two").left();
    assert_eq!(left.file().comms.iter().map(|comm| comm.ops).collect::<Vec<_>>(), [10, 10]);
}

#[test]
fn the_library_stays_loaded_when_nccl_closes_it() {
    let left = scene("closed").left();
    assert_eq!(left.comm().ops, 14, "what comes after the end is counted, and does no harm");
}

/// Medians of 20,000 pairs, without the loop itself; the plugins in `RAILGATE_COLD_OTHERS` (paths) take turns with
/// this one.
#[cfg(target_arch = "x86_64")]
#[test]
#[ignore = "a measurement: cargo test --release -p nccl-profiler-railgate --test driver -- --ignored --nocapture cold"]
fn cost_of_a_pair_of_operations_in_cold_caches() {
    for mode in ["count", "sample", "full"] {
        println!("{mode}:\n{}", Scene { mode, ..scene("cold") }.left().said);
    }
}

/// In the plugin and the C library, for a pair of operations. Valgrind does not use the kernel's `vdso`.
#[cfg(target_arch = "x86_64")]
#[test]
#[ignore = "a measurement with valgrind: cargo test --release -p nccl-profiler-railgate --test driver -- --ignored --nocapture cache_lines"]
fn instructions_and_cache_lines_of_a_pair_of_operations() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace");
    let others = cold::others();
    for plugin in [None].into_iter().chain(others.iter().map(|path| Some(path.as_path()))) {
        for mode in ["count", "sample"] {
            let left = Scene { mode, plugin, trace: Some(&trace), ..scene("traced") }.left();
            let (instructions, code, data) = cold::touched(&left.said, &trace);
            let name = plugin.unwrap_or(Path::new("this")).display();
            println!(
                "{mode}: {instructions} instructions, {code} cache lines of code, {data} of data: {name}"
            );
        }
    }
}
