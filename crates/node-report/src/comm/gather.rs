//! Merges the files of many processes into the figures of one node. The job wrote all of them.

use std::collections::BTreeMap;

use railgate_rankfile::{
    ALGORITHMS, Cell, Comm, DATATYPES, Key, Limit, Mode, OPERATIONS, OTHER, P2P_GROUP, PROTOCOLS, RECV,
    RankFile, SEND,
};

use crate::plain::float;

use super::{Collective, Communication, Communicator, LastOp, NcclProcess, RankTime, busbw_factor};

/// Limits of processes, communicators and rows, so that no job makes its node report large.
const MOST_PROCESSES: usize = 256;
const MOST_COMMUNICATORS: usize = 512;
const MOST_ROWS: usize = 1000;

/// Overhead of timing per operation on the GPU, nanoseconds. A timed kernel ends when its times have reached
/// host memory, and a collective ends with its last rank. Timed calls sit between untimed ones if only part of
/// them is sampled. Measured with two ranks (messages 0.1 to 0.4 µs, collectives 0.5 to 1.1), four (0.0; 0.6 to
/// 1.1) and eight (collectives 0.8 to 1.6); not with more.
const TIMING_OF_MESSAGES_NS: u64 = 200;
const TIMING_OF_FEW_NS: u64 = 800;
const TIMING_OF_MORE_NS: u64 = 1_100;
/// Largest number of ranks that counts as few.
const FEW: u32 = 4;
/// Uncertainty of these constants.
const TIMING_ERROR_NS: u64 = 500;

/// Gap between two collectives that wait only for each other: 4 to 5 µs (measured). A longer gap on any rank
/// means that all waited for its launching thread. Timing delays that thread by some µs, so where few calls are
/// timed they are not representative.
const QUEUED_NS: f64 = 5_000.0;
/// Share of the interval above which that matters.
const HELD_UP: f64 = 0.04;

/// Number of calls that are timed in a row.
const WINDOW: f64 = 8.0;

/// Communicator, operation and size class.
type RowKey = (u64, u32, u8, u8, u8, u8, u8);

#[derive(Default)]
struct Row {
    nodes: u64,
    calls: u64,
    bytes: u64,
    timed: u64,
    timed_bytes: u64,
    sum_ns: u64,
    min_ns: Option<u64>,
    max_ns: u64,
    squares: u64,
    spaced: u64,
    spaced_bytes: u64,
    spaced_ns: u64,
    /// Gap between two calls, on the rank where it is longest.
    gap_ns: f64,
    ranks: BTreeMap<u32, RankTime>,
}

/// Sums up the files of one node. `unread` has one line for each other file, with the error.
pub fn gather(files: &[RankFile], unread: Vec<String>) -> Communication {
    let mut found = Communication { unread, ..Communication::default() };
    let mut rows: BTreeMap<RowKey, Row> = BTreeMap::new();
    for file in files {
        if found.processes.len() < MOST_PROCESSES {
            found.processes.push(process(file));
        }
        for comm in &file.comms {
            if found.communicators.len() < MOST_COMMUNICATORS {
                found.communicators.push(communicator(file, comm));
            } else {
                found.more_communicators += 1;
            }
        }
        for cell in &file.cells {
            if let Some(comm) = file.comms.iter().find(|comm| comm.index == cell.key.comm) {
                let key = cell.key;
                let at =
                    (comm.hash, comm.ranks, key.op, key.datatype, key.algorithm, key.protocol, key.class);
                rows.entry(at).or_default().add(comm, cell);
            }
        }
    }
    found.collectives = rows.iter().map(|(key, row)| row.shown(*key)).collect();
    found.collectives.sort_by_key(|row| std::cmp::Reverse((row.bytes, row.calls)));
    found.more_collectives = found.collectives.len().saturating_sub(MOST_ROWS) as u64;
    found.collectives.truncate(MOST_ROWS);
    found.blind_spots = blind_spots(files, &found);
    found
}

impl Row {
    fn add(&mut self, comm: &Comm, cell: &Cell) {
        self.nodes = self.nodes.max(comm.nodes);
        self.calls = self.calls.saturating_add(cell.calls);
        self.bytes = self.bytes.saturating_add(cell.bytes);
        self.timed = self.timed.saturating_add(cell.timed);
        self.timed_bytes = self.timed_bytes.saturating_add(cell.timed_bytes);
        self.sum_ns = self.sum_ns.saturating_add(cell.sum_ns);
        self.min_ns = [self.min_ns, cell.min_ns].into_iter().flatten().min();
        self.max_ns = self.max_ns.max(cell.max_ns);
        self.squares = self.squares.saturating_add(cell.squares);
        self.spaced = self.spaced.saturating_add(cell.spaced);
        self.spaced_bytes = self.spaced_bytes.saturating_add(cell.spaced_bytes);
        self.spaced_ns = self.spaced_ns.saturating_add(cell.spaced_ns);
        if cell.spaced > 0 && cell.timed > 0 {
            let gap = mean(cell.spaced_ns, cell.spaced) - mean(cell.sum_ns, cell.timed);
            self.gap_ns = self.gap_ns.max(gap);
        }
        let rank = self.ranks.entry(comm.rank).or_insert(RankTime { rank: comm.rank, ..RankTime::default() });
        rank.calls = rank.calls.saturating_add(cell.calls);
        rank.timed = rank.timed.saturating_add(cell.timed);
        rank.gpu_s += seconds(cell.sum_ns);
    }

    fn shown(&self, (hash, size, op, datatype, algorithm, protocol, class): RowKey) -> Collective {
        let held_up = op != P2P_GROUP && self.is_held_up();
        let spaced_ns = self.spaced_ns.saturating_sub(self.timing_ns(op, size));
        let op = name(OPERATIONS, op);
        let gpu_s = seconds(self.sum_ns);
        let timed = (self.timed > 0 && self.sum_ns > 0).then_some(());
        let rate = |calls: u64, bytes: u64, ns: u64| {
            #[allow(clippy::cast_precision_loss, reason = "bytes of a job")]
            let bytes = bytes as f64;
            let factor = busbw_factor(&op, size).filter(|_| calls > 0 && ns > 0)?;
            Some(bytes / seconds(ns) * factor / 1e9)
        };
        let busbw = rate(self.timed, self.timed_bytes, self.sum_ns);
        let back_to_back = rate(self.spaced, self.spaced_bytes, spaced_ns).filter(|_| !held_up);
        Collective {
            communicator: format!("{hash:016x}"),
            size,
            nodes: self.nodes,
            op,
            from_bytes: 1 << class.min(63),
            datatype: name(DATATYPES, datatype),
            algorithm: name(ALGORITHMS, algorithm),
            protocol: name(PROTOCOLS, protocol),
            ranks: u32::try_from(self.ranks.len()).unwrap_or(u32::MAX),
            calls: self.calls,
            bytes: self.bytes,
            timed: self.timed,
            timed_bytes: self.timed_bytes,
            gpu_s,
            min_s: timed.and(self.min_ns).map(seconds),
            max_s: timed.map(|()| seconds(self.max_ns)),
            back_to_back: self.spaced,
            back_to_back_bytes: self.spaced_bytes,
            back_to_back_s: seconds(spaced_ns),
            busbw_gb_s: busbw,
            busbw_back_to_back_gb_s: back_to_back,
            reference_gb_s: None,
            of_reference_percent: None,
            error_percent: self.error_percent(),
            back_to_back_error_percent: back_to_back.and(self.back_to_back_error_percent()),
            by_rank: self.ranks.values().copied().collect(),
        }
    }

    /// Overhead of timing on the time from begin to begin. Zero if most calls were timed: the job really had
    /// that overhead.
    fn timing_ns(&self, op: u8, ranks: u32) -> u64 {
        let each = match op {
            P2P_GROUP => TIMING_OF_MESSAGES_NS,
            _ if ranks <= FEW => TIMING_OF_FEW_NS,
            _ => TIMING_OF_MORE_NS,
        };
        let added = self.spaced.saturating_mul(each);
        if self.is_sampled() && added < self.spaced_ns / 2 { added } else { 0 }
    }

    fn is_sampled(&self) -> bool {
        self.timed < self.calls / 2
    }

    /// Whether timing lengthened the gaps.
    fn is_held_up(&self) -> bool {
        self.is_sampled() && self.gap_ns - QUEUED_NS > HELD_UP * mean(self.spaced_ns, self.spaced)
    }

    /// Error of the bandwidth of back-to-back calls: sampling plus uncertainty of the overhead of timing. Calls
    /// of one window in a loop share their disturbances (a late launch), so a window counts as one sample.
    #[allow(clippy::cast_precision_loss, reason = "counts and times of a job")]
    fn back_to_back_error_percent(&self) -> Option<f64> {
        let sampled = self.error_percent()?;
        if !self.is_sampled() {
            return Some(sampled);
        }
        let timing = TIMING_ERROR_NS as f64 / mean(self.spaced_ns, self.spaced).max(1.0);
        Some((sampled * WINDOW.sqrt()).hypot(timing * 100.0))
    }

    /// Standard error of the mean; zero if every call was timed.
    #[allow(clippy::cast_precision_loss, reason = "counts and times of a job")]
    fn error_percent(&self) -> Option<f64> {
        let (n, all) = (self.timed as f64, self.calls as f64);
        if self.timed < 2 || self.sum_ns == 0 {
            return None;
        }
        let mean = self.sum_ns as f64 / n / 100.0;
        let variance = (self.squares as f64 / n - mean * mean).max(0.0) * n / (n - 1.0);
        let left_out = (1.0 - n / all.max(n)).max(0.0);
        Some((variance / n * left_out).sqrt() / mean * 100.0)
    }
}

fn mean(sum: u64, count: u64) -> f64 {
    float(sum) / float(count.max(1))
}

fn process(file: &RankFile) -> NcclProcess {
    NcclProcess {
        pid: file.pid,
        start: ms(file.created_ms),
        start_number: file.start,
        nccl: file.nccl.map(|[major, minor, patch]| format!("{major}.{minor}.{patch}")),
        api: file.api,
        plugin: file.plugin.clone(),
        mode: file.mode.or(file.wanted).map(|mode| mode.as_str().to_owned()),
        limit: file.limit.as_str().to_owned(),
        duty: file.duty,
        lost: file.cells_lost,
        expired: file.expired,
        captured: file.captured,
        panics: file.panics,
    }
}

fn communicator(file: &RankFile, comm: &Comm) -> Communicator {
    Communicator {
        hash: format!("{:016x}", comm.hash),
        name: comm.name.clone(),
        size: comm.ranks,
        rank: comm.rank,
        nodes: comm.nodes,
        pid: file.pid,
        start: ms(comm.created_ms),
        start_number: file.start,
        destroyed: comm.destroyed,
        ops: comm.ops,
        last: comm.last.map(|op| LastOp {
            op: name(OPERATIONS, op.key.op),
            seq: (!point_to_point(op.key)).then_some(op.seq),
            bytes: op.bytes,
            time: ms(op.time_ms),
            time_is_earliest: op.time_is_earliest,
        }),
        timed_begun: comm.begun,
        timed_done: comm.done,
        done_op: (comm.done > 0).then_some(comm.done_op),
        done_time: (comm.done > 0).then(|| ms(comm.done_ms)),
    }
}

/// What NCCL's profiler interface does not expose, as far as it concerns these processes.
fn blind_spots(files: &[RankFile], found: &Communication) -> Vec<String> {
    let mut spots = Vec::new();
    let sum = |of: fn(&RankFile) -> u64| files.iter().map(of).fold(0, u64::saturating_add);
    let mut add = |count: u64, text: &str| {
        if count > 0 {
            spots.push(format!("{count} {text}"));
        }
    };
    add(
        sum(|file| file.captured),
        "operations were captured into CUDA graphs: their replays are only counted between nodes",
    );
    add(
        sum(|file| file.api_only),
        "broadcasts were counted without GPU times: NCCL 2.29.2 and later does not report them",
    );
    add(
        sum(|file| file.comms_lost),
        "communicators were too many for one process to record: their operations are not counted",
    );
    add(
        sum(|file| file.cells_lost),
        "operations are not counted: their signatures were too many for one process to record",
    );
    add(sum(|file| file.nonsense), "entries of the processes' files are invalid and left out");
    add(
        files.iter().flat_map(|file| &file.comms).filter(|comm| comm.to_itself > 0).count() as u64,
        "ranks sent messages to themselves, as an all-to-all does: NCCL loses count of that communicator's kernels then, and no \
         times of it are known from there on",
    );
    add(
        found.collectives.iter().filter(|row| row.algorithm == "CE").map(|row| row.calls).sum(),
        "operations used the copy engines: counted without GPU times, because NCCL does not time them",
    );
    add(
        files.iter().filter(|file| file.mode == Some(Mode::Off)).count() as u64,
        "processes had counting disabled",
    );
    for limit in Limit::ALL.into_iter().filter(|limit| *limit != Limit::None) {
        let here = files.iter().filter(|file| file.limit == limit).count() as u64;
        add(here, &format!("processes recorded no GPU times: {}", limit.as_str()));
    }
    spots
}

fn point_to_point(key: Key) -> bool {
    [SEND, RECV, P2P_GROUP].contains(&key.op)
}

fn name(table: &[&str], at: u8) -> String {
    table.get(usize::from(at)).copied().unwrap_or(OTHER).to_owned()
}

fn ms(time: u64) -> railgate_model::UnixMillis {
    time
}

#[allow(clippy::cast_precision_loss, reason = "times of a job")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(op: u8, class: u8) -> Key {
        Key { comm: 0, op, datatype: 8, algorithm: 2, protocol: 3, class }
    }

    fn file(rank: u32, cells: Vec<Cell>) -> RankFile {
        let comm = Comm {
            index: 0,
            hash: 0xabc,
            ranks: 8,
            rank,
            nodes: 1,
            name: String::new(),
            destroyed: false,
            created_ms: 1,
            ops: 10,
            last: None,
            begun: 3,
            done: 2,
            done_op: 9,
            done_ms: 5,
            to_itself: 1,
        };
        RankFile {
            pid: u64::from(rank),
            nccl: Some([2, 28, 9]),
            comms: vec![comm],
            cells,
            ..RankFile::default()
        }
    }

    fn cell(calls: u64, timed: u64, each_ns: u64) -> Cell {
        Cell {
            key: key(2, 20),
            calls,
            bytes: calls << 20,
            timed,
            timed_bytes: timed << 20,
            sum_ns: timed * each_ns,
            min_ns: (timed > 0).then_some(each_ns),
            max_ns: each_ns,
            squares: timed * (each_ns / 100) * (each_ns / 100),
            spaced: timed / 2,
            spaced_bytes: (timed / 2) << 20,
            spaced_ns: timed / 2 * (each_ns + 4_500),
        }
    }

    #[test]
    fn rows_sum_the_ranks_and_the_fastest_rank_shows_the_transfer_time() {
        let found = gather(&[file(0, vec![cell(10, 2, 10_000)]), file(1, vec![cell(10, 2, 30_000)])], vec![]);
        let [row] = &found.collectives[..] else { panic!("one row") };
        assert_eq!((row.op.as_str(), row.from_bytes, row.ranks, row.calls), ("AllReduce", 1 << 20, 2, 20));
        assert_eq!((row.bytes, row.timed, row.min_s, row.max_s), (20 << 20, 4, Some(10e-6), Some(30e-6)));
        // 1 MiB in 20 µs on average, times 2 * 7 / 8.
        assert!((row.busbw_gb_s.unwrap() - 91.75).abs() < 0.1, "{row:?}");
        // One call of each rank had a successor 4.5 µs later; the overhead of timing is subtracted.
        assert!((row.busbw_back_to_back_gb_s.unwrap() - 78.42).abs() < 0.1, "{row:?}");
        assert!((row.error_percent.unwrap() - 25.8).abs() < 0.1, "{row:?}");
        let means: Vec<_> = row.by_rank.iter().map(|rank| rank.mean_s()).collect();
        assert_eq!(means, [Some(10e-6), Some(30e-6)]);
        assert_eq!(found.communicators.len(), 2);
        assert_eq!((found.communicators[1].timed_begun, found.communicators[1].done_op), (3, Some(9)));
    }

    #[test]
    fn overhead_of_timing_is_subtracted_if_few_calls_are_timed() {
        let row = |timed| gather(&[file(0, vec![cell(1000, timed, 20_000)])], vec![]).collectives.remove(0);
        let (sampled, full) = (row(24), row(990));
        // 24.5 µs from begin to begin, of which timing took 1.1 ± 0.5 since the next calls were not timed.
        assert!((sampled.back_to_back_s - 12.0 * 23.4e-6).abs() < 1e-9, "{sampled:?}");
        assert!((sampled.busbw_back_to_back_gb_s.unwrap() - 78.42).abs() < 0.01, "{sampled:?}");
        assert!((sampled.back_to_back_error_percent.unwrap() - 2.04).abs() < 0.01, "{sampled:?}");
        assert!((full.back_to_back_s - 495.0 * 24.5e-6).abs() < 1e-9, "{full:?}");
        assert!(full.back_to_back_error_percent.unwrap() < 0.01, "{full:?}");
        for (ranks, op, took_ns) in
            [(1, 2, 800), (4, 2, 800), (5, 2, 1100), (64, 2, 1100), (64, P2P_GROUP, 200)]
        {
            let mut one = file(0, vec![Cell { key: key(op, 20), ..cell(1000, 24, 20_000) }]);
            one.comms[0].ranks = ranks;
            let row = gather(&[one], vec![]).collectives.remove(0);
            let left_ns = row.back_to_back_s * 1e9 / 12.0;
            assert!((left_ns - (24_500.0 - f64::from(took_ns))).abs() < 0.1, "{ranks} ranks: {left_ns}");
        }
    }

    #[test]
    fn calls_delayed_by_timing_have_no_bandwidth() {
        let row = |timed: u64, gap: u64| {
            let late = Cell { spaced_ns: timed / 2 * (20_000 + gap), ..cell(1000, timed, 20_000) };
            let waits = Cell { spaced_ns: timed / 2 * (20_000 + gap), ..cell(1000, timed, 16_000 + gap) };
            gather(&[file(0, vec![late]), file(1, vec![waits])], vec![]).collectives.remove(0)
        };
        assert!(row(24, 5_800).busbw_back_to_back_gb_s.is_some());
        let held_up = row(24, 6_500);
        assert_eq!((held_up.busbw_back_to_back_gb_s, held_up.back_to_back_error_percent), (None, None));
        // Neither figure can be compared with that of a loop.
        assert!(held_up.busbw_gb_s.is_some() && held_up.comparable_gb_s().is_none());
        // If all calls are timed the overhead is really the job's.
        assert!(row(990, 9_000).busbw_back_to_back_gb_s.is_some());
    }

    #[test]
    fn untimed_calls_have_no_bandwidth() {
        let found = gather(&[file(0, vec![cell(10, 0, 0)])], vec!["4711.x: not a rank file".to_owned()]);
        let row = &found.collectives[0];
        assert_eq!(
            (row.busbw_gb_s, row.busbw_back_to_back_gb_s, row.min_s, row.error_percent),
            (None, None, None, None)
        );
        assert_eq!(found.unread.len(), 1);
        let [spot] = &found.blind_spots[..] else { panic!("{:?}", found.blind_spots) };
        assert!(spot.starts_with("1 ranks sent messages to themselves"), "{spot}");
    }

    #[test]
    fn blind_spots_are_listed() {
        let seen = RankFile { captured: 3, limit: Limit::Shm, ..file(0, vec![]) };
        let found = gather(&[seen], vec![]);
        assert_eq!(found.blind_spots.len(), 3, "{:?}", found.blind_spots);
    }

    #[test]
    fn report_size_is_bounded() {
        let cells = |rank: u32| -> Vec<Cell> {
            let op = |op| (0..60).map(move |class| Cell { key: key(op, class), ..cell(1, 1, 1) });
            (0..16)
                .flat_map(op)
                .map(|cell| Cell { calls: u64::MAX, bytes: u64::MAX, ..cell })
                .filter(|_| rank < 900)
                .collect()
        };
        let files: Vec<RankFile> =
            (0..900).map(|rank| file(rank, if rank < 3 { cells(rank) } else { vec![] })).collect();
        let mut odd = files;
        for file in &mut odd {
            file.comms[0].hash = file.pid;
        }
        let found = gather(&odd, vec![]);
        assert_eq!(
            (found.collectives.len(), found.processes.len(), found.communicators.len()),
            (1000, 256, 512)
        );
        assert_eq!((found.more_communicators, found.more_collectives), (900 - 512, 3 * 16 * 60 - 1000));
    }
}
