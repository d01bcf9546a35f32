use crate::{
    BYTES, CELL_WORDS, CELLS, CELLS_AT, COMM_WORDS, COMMS, COMMS_AT, COUNT_WORDS, COUNTS_AT, Key, Limit,
    MAGIC, MOST_STARTS, Mode, P2P_GROUP, RECV, SEND, VERSION, cell, comm, count, head,
};

/// Why a file is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadRankFile {
    /// The size is not [`crate::BYTES`].
    Size(usize),
    /// The magic number is missing, or the writer ended before the head was complete.
    Magic,
    /// An unknown version of the layout.
    Version(u64),
}

impl std::fmt::Display for BadRankFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BadRankFile::Size(bytes) => write!(f, "{bytes} bytes instead of {BYTES}"),
            BadRankFile::Magic => f.write_str("not a rank file, or never finished"),
            BadRankFile::Version(version) => write!(f, "version {version} instead of {VERSION}"),
        }
    }
}

impl std::error::Error for BadRankFile {}

/// Counters of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankFile {
    /// Process id, as the process itself sees it.
    pub pid: u64,
    /// When it created the file, milliseconds since the epoch.
    pub created_ms: u64,
    /// Which start of the step inside the attempt it belongs to; 0 in files of earlier writers.
    pub start: u32,
    /// Version of NCCL's profiler interface.
    pub api: u64,
    /// NCCL's release: major, minor, patch.
    pub nccl: Option<[u64; 3]>,
    /// Version of the plugin.
    pub plugin: String,
    /// The mode requested last.
    pub wanted: Option<Mode>,
    /// The mode in force last.
    pub mode: Option<Mode>,
    /// Why that mode is lower than the requested one.
    pub limit: Limit,
    /// Limit for the cost of timing, millionths of the time.
    pub budget_ppm: u64,
    /// One window in this many was timed last.
    pub duty: u64,
    /// Communicators without room in the file.
    pub comms_lost: u64,
    /// Operations that are counted in no cell.
    pub cells_lost: u64,
    /// Timed operations that never finished.
    pub expired: u64,
    /// Timing events that belong to no known operation.
    pub stray: u64,
    /// Operations captured into a graph.
    pub captured: u64,
    /// Operations that were visible only at NCCL's API.
    pub api_only: u64,
    /// Panics that were caught.
    pub panics: u64,
    /// In the order of the file; cells refer to [`Comm::index`].
    pub comms: Vec<Comm>,
    /// In the order of the file.
    pub cells: Vec<Cell>,
    /// Invalid entries, which were left out.
    pub nonsense: u64,
}

/// A communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comm {
    /// [`Key::comm`] of its cells.
    pub index: u8,
    /// NCCL's hash.
    pub hash: u64,
    /// Number of ranks.
    pub ranks: u32,
    /// This process's rank.
    pub rank: u32,
    /// Number of nodes.
    pub nodes: u64,
    /// The name that the framework gave it; bytes that are not printable ASCII became `?`.
    pub name: String,
    /// Whether it was destroyed or aborted (`ncclCommAbort`).
    pub destroyed: bool,
    /// When it was created, milliseconds since the epoch.
    pub created_ms: u64,
    /// Operations launched on the GPU.
    pub ops: u64,
    /// The last of them; `None` if there was none.
    pub last: Option<Op>,
    /// Timed operations that were seen to start on the GPU.
    pub begun: u64,
    /// Timed operations that were seen to finish.
    pub done: u64,
    /// Number of the last operation that was seen to finish, in the count of `ops`, from 1; 0: none.
    pub done_op: u64,
    /// When that was, milliseconds since the epoch.
    pub done_ms: u64,
    /// Messages of the rank to itself, after which no operation is timed.
    pub to_itself: u64,
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// Key of the operation.
    pub key: Key,
    /// NCCL's sequence number; 0 for point-to-point.
    pub seq: u64,
    /// Its bytes.
    pub bytes: u64,
    /// When it was launched on the GPU, milliseconds since the epoch.
    pub time_ms: u64,
    /// Whether `time_ms` is only the earliest possible time: [`comm::CLOCKED`].
    pub time_is_earliest: bool,
}

/// Counters of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The key.
    pub key: Key,
    /// Operations.
    pub calls: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Operations that were timed and finished.
    pub timed: u64,
    /// Their bytes.
    pub timed_bytes: u64,
    /// Their GPU time, nanoseconds.
    pub sum_ns: u64,
    /// The shortest GPU time, nanoseconds; `None` if none was timed.
    pub min_ns: Option<u64>,
    /// The longest GPU time, nanoseconds.
    pub max_ns: u64,
    /// Sum of the squares of the GPU times, (100 ns)².
    pub squares: u64,
    /// Timed operations whose successor started immediately.
    pub spaced: u64,
    /// Their bytes.
    pub spaced_bytes: u64,
    /// Sum of their launch intervals (start to start of the successor), nanoseconds.
    pub spaced_ns: u64,
}

impl RankFile {
    /// Parses a file. Counters may be from slightly different moments, since the writer may still be running.
    ///
    /// # Errors
    /// Wrong size, magic number or version. Other invalid entries are left out and counted.
    pub fn parse(bytes: &[u8]) -> Result<Self, BadRankFile> {
        if bytes.len() != BYTES {
            return Err(BadRankFile::Size(bytes.len()));
        }
        let (words, mut file) = (Words(bytes), RankFile::without_cells(bytes)?);
        for index in 0..CELLS {
            match words.cell(index) {
                Entry::Free => {}
                Entry::Good(cell) if file.comms.iter().any(|comm| comm.index == cell.key.comm) => {
                    file.cells.push(cell);
                }
                Entry::Good(_) | Entry::Nonsense => file.nonsense += 1,
            }
        }
        Ok(file)
    }

    /// Parses the head and the first communicators: as many as the bytes hold, for a reader that reads them often. See
    /// [`RankFile::bytes_with_comms`].
    ///
    /// # Errors
    /// Less than a head, or a wrong magic number or version. Other invalid entries are left out and counted.
    pub fn without_cells(bytes: &[u8]) -> Result<Self, BadRankFile> {
        if bytes.len() < RankFile::bytes_with_comms(0) {
            return Err(BadRankFile::Size(bytes.len()));
        }
        let words = Words(bytes);
        if words.at(head::MAGIC) != MAGIC {
            return Err(BadRankFile::Magic);
        }
        if words.at(head::VERSION) != VERSION {
            return Err(BadRankFile::Version(words.at(head::VERSION)));
        }
        let mut file = RankFile {
            pid: words.at(head::PID),
            created_ms: words.ms(head::CREATED),
            start: u32::try_from(words.at(head::START))
                .ok()
                .filter(|start| *start < MOST_STARTS)
                .unwrap_or(0),
            api: words.at(head::API),
            nccl: release(words.at(head::NCCL)),
            plugin: words.text(head::PLUGIN, 4),
            wanted: Mode::of(words.at(head::WANTED)),
            mode: Mode::of(words.at(head::MODE)),
            limit: Limit::of(words.at(head::LIMIT)),
            budget_ppm: words.at(head::BUDGET),
            duty: words.at(head::DUTY),
            comms_lost: words.at(head::COMMS_LOST),
            cells_lost: words.at(head::CELLS_LOST),
            expired: words.at(head::EXPIRED),
            stray: words.at(head::STRAY),
            captured: words.at(head::CAPTURED),
            api_only: words.at(head::API_ONLY),
            panics: words.at(head::PANICS),
            ..RankFile::default()
        };
        for index in 0..COMMS {
            match words.comm(index) {
                Entry::Free => {}
                Entry::Good(comm) => file.comms.push(comm),
                Entry::Nonsense => file.nonsense += 1,
            }
        }
        Ok(file)
    }

    /// Bytes from the beginning of a file up to the end of this many communicators.
    pub fn bytes_with_comms(comms: usize) -> usize {
        8 * (COMMS_AT + comms.min(COMMS) * COMM_WORDS)
    }

    /// Whether the process launched messages between ranks, among these cells or as a communicator's last operation.
    /// Their number differs between ranks.
    pub fn has_messages(&self) -> bool {
        let last = self.comms.iter().filter_map(|comm| Some(comm.last.as_ref()?.key));
        let message = |key: Key| [SEND, RECV, P2P_GROUP].contains(&key.op);
        last.chain(self.cells.iter().map(|cell| cell.key)).any(message)
            || self.comms.iter().any(|comm| comm.to_itself > 0)
    }
}

enum Entry<T> {
    Free,
    Good(T),
    Nonsense,
}

struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn at(&self, word: usize) -> u64 {
        let bytes = self.0.get(word * 8..word * 8 + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_le_bytes)
    }

    fn ms(&self, word: usize) -> u64 {
        self.at(word) / 1_000_000
    }

    fn text(&self, word: usize, words: usize) -> String {
        let bytes = self.0.get(word * 8..(word + words) * 8).unwrap_or_default();
        let plain = |&byte: &u8| if byte == b' ' || byte.is_ascii_graphic() { char::from(byte) } else { '?' };
        bytes.iter().take_while(|byte| **byte != 0).map(plain).collect()
    }

    fn comm(&self, index: usize) -> Entry<Comm> {
        let at = COMMS_AT + index * COMM_WORDS;
        let word = |word| self.at(at + word);
        let state = word(comm::STATE);
        if state == 0 {
            return Entry::Free;
        }
        let ranks = word(comm::RANKS);
        let (ranks, rank) = (ranks >> 32, ranks & 0xffff_ffff);
        let sizes = u32::try_from(ranks).ok().zip(u32::try_from(rank).ok());
        let (Some((ranks, rank)), Ok(index)) = (sizes, u8::try_from(index)) else { return Entry::Nonsense };
        if state > 2 || rank >= ranks || ranks > MOST_RANKS {
            return Entry::Nonsense;
        }
        let last = Key::of(word(comm::LAST_KEY)).map(|key| Op {
            key,
            seq: word(comm::LAST_SEQ),
            bytes: word(comm::LAST_BYTES),
            time_ms: self.ms(at + comm::LAST_TIME),
            time_is_earliest: word(comm::OPS) > word(comm::CLOCKED),
        });
        Entry::Good(Comm {
            index,
            hash: word(comm::HASH),
            ranks,
            rank,
            nodes: word(comm::NODES).min(u64::from(MOST_RANKS)),
            name: self.text(at + comm::NAME, 8),
            destroyed: state == 2,
            created_ms: self.ms(at + comm::CREATED),
            ops: word(comm::OPS),
            last,
            begun: word(comm::BEGUN),
            done: word(comm::DONE),
            done_op: word(comm::DONE_OP),
            done_ms: self.ms(at + comm::DONE_TIME),
            to_itself: word(comm::TO_ITSELF),
        })
    }

    fn cell(&self, index: usize) -> Entry<Cell> {
        let at = CELLS_AT + index * CELL_WORDS;
        let word = |word| self.at(at + word);
        if word(cell::KEY) == 0 {
            return Entry::Free;
        }
        let Some(key) = Key::of(word(cell::KEY)) else { return Entry::Nonsense };
        let counted = |word| self.at(COUNTS_AT + index * COUNT_WORDS + word);
        let (calls, timed) = (counted(count::CALLS), word(cell::TIMED));
        let min = word(cell::MIN);
        // The writer may count on between two reads, but only so far, and no process lives long enough for larger
        // values.
        let spaced = word(cell::SPACED);
        let sums = word(cell::SUM).max(word(cell::SPACED_SUM));
        if timed > calls.saturating_add(SLACK)
            || spaced > timed.saturating_add(SLACK)
            || calls > MOST
            || sums > MOST_NS
        {
            return Entry::Nonsense;
        }
        Entry::Good(Cell {
            key,
            calls,
            bytes: counted(count::BYTES),
            timed: timed.min(calls),
            timed_bytes: word(cell::TIMED_BYTES),
            sum_ns: word(cell::SUM),
            min_ns: (min > 0).then(|| u64::MAX - min),
            max_ns: word(cell::MAX),
            squares: word(cell::SQUARES),
            spaced: spaced.min(timed).min(calls),
            spaced_bytes: word(cell::SPACED_BYTES),
            spaced_ns: word(cell::SPACED_SUM),
        })
    }
}

/// Most by which a counter may exceed a related one that was read earlier.
const SLACK: u64 = 4096;
/// Upper bound of counts: a year of a million operations a second.
const MOST: u64 = 1 << 45;
/// Upper bound of times: 128 GPUs for a year.
const MOST_NS: u64 = 1 << 62;
const MOST_RANKS: u32 = 1 << 24;

fn release(code: u64) -> Option<[u64; 3]> {
    // Since 2.9 the code is major * 10000 + minor * 100 + patch.
    ((20_900..1_000_000).contains(&code)).then_some([code / 10_000, code / 100 % 100, code % 100])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key { comm: 3, op: 2, datatype: 8, algorithm: 2, protocol: 3, class: 20 }
    }

    fn file() -> Vec<u8> {
        let mut words = vec![0_u64; crate::WORDS];
        words[head::MAGIC] = MAGIC;
        words[head::VERSION] = VERSION;
        words[head::PID] = 4711;
        words[head::NCCL] = 22_809;
        words[head::MODE] = Mode::Sample.word();
        words[head::PLUGIN] = u64::from_le_bytes(*b"0.1.0\0\0\0");
        let at = COMMS_AT + 3 * COMM_WORDS;
        words[at + comm::STATE] = 1;
        words[at + comm::HASH] = 0xabc;
        words[at + comm::RANKS] = 8 << 32 | 5;
        words[at + comm::OPS] = 9;
        words[at + comm::LAST_KEY] = key().word();
        words[at + comm::LAST_SEQ] = 8;
        words[at + comm::LAST_TIME] = 5_000_000;
        words[at + comm::CLOCKED] = 9;
        words[at + comm::NAME] = u64::from_le_bytes(*b"tp\x1b0\0xyz");
        let at = CELLS_AT + 77 * CELL_WORDS;
        words[at] = key().word();
        words[COUNTS_AT + 77 * COUNT_WORDS + count::CALLS] = 9;
        words[COUNTS_AT + 77 * COUNT_WORDS + count::BYTES] = 9 << 20;
        words[at + cell::TIMED] = 2;
        words[at + cell::SUM] = 3000;
        words[at + cell::MIN] = u64::MAX - 1000;
        words[at + cell::MAX] = 2000;
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn put(bytes: &mut [u8], word: usize, value: u64) {
        bytes[word * 8..word * 8 + 8].copy_from_slice(&value.to_le_bytes());
    }

    #[test]
    fn counters_of_a_process_are_read() {
        let read = RankFile::parse(&file()).unwrap();
        assert_eq!((read.pid, read.nccl, read.mode), (4711, Some([2, 28, 9]), Some(Mode::Sample)));
        assert_eq!((read.plugin.as_str(), read.nonsense, read.start), ("0.1.0", 0, 0));
        for (word, start) in [(2, 2), (1_000_000, 0), (u64::MAX, 0)] {
            let mut later = file();
            put(&mut later, head::START, word);
            assert_eq!(RankFile::parse(&later).unwrap().start, start);
        }
        let [comm] = &read.comms[..] else { panic!("one communicator") };
        assert_eq!((comm.index, comm.hash, comm.ranks, comm.rank, comm.ops), (3, 0xabc, 8, 5, 9));
        assert_eq!((comm.name.as_str(), comm.destroyed), ("tp?0", false));
        assert_eq!(comm.last, Some(Op { key: key(), seq: 8, bytes: 0, time_ms: 5, time_is_earliest: false }));
        let [cell] = &read.cells[..] else { panic!("one cell") };
        assert_eq!((cell.key, cell.calls, cell.bytes, cell.timed), (key(), 9, 9 << 20, 2));
        assert_eq!((cell.min_ns, cell.max_ns, cell.sum_ns), (Some(1000), 2000, 3000));
        // No clock was read for the last operation.
        let mut unclocked = file();
        put(&mut unclocked, COMMS_AT + 3 * COMM_WORDS + comm::CLOCKED, 8);
        let last = RankFile::parse(&unclocked).unwrap().comms[0].last;
        assert!(last.is_some_and(|op| op.time_is_earliest && op.time_ms == 5));
    }

    #[test]
    fn a_file_of_other_size_magic_or_version_is_refused() {
        let bytes = file();
        for size in [0, 7, BYTES - 1] {
            assert_eq!(RankFile::parse(&bytes[..size]), Err(BadRankFile::Size(size)));
        }
        let mut other = bytes.clone();
        put(&mut other, head::MAGIC, 0);
        assert_eq!(RankFile::parse(&other).unwrap_err().to_string(), "not a rank file, or never finished");
        let mut later = bytes;
        put(&mut later, head::VERSION, 1);
        assert_eq!(RankFile::parse(&later).unwrap_err().to_string(), "version 1 instead of 2");
    }

    #[test]
    fn the_beginning_of_a_file_has_the_same_communicators() {
        let (bytes, whole) = (file(), RankFile::parse(&file()).unwrap());
        let begin = |comms| RankFile::without_cells(&bytes[..RankFile::bytes_with_comms(comms)]);
        let read = begin(4).unwrap();
        assert_eq!((&read.comms, read.mode, read.cells.len()), (&whole.comms, whole.mode, 0));
        assert!(begin(3).unwrap().comms.is_empty());
        assert_eq!(RankFile::without_cells(&bytes[..511]), Err(BadRankFile::Size(511)));
        assert!(!whole.has_messages());
        let mut sends = bytes.clone();
        put(&mut sends, CELLS_AT + 77 * CELL_WORDS, Key { op: SEND, ..key() }.word());
        assert!(RankFile::parse(&sends).unwrap().has_messages());
    }

    #[test]
    fn invalid_entries_are_left_out_and_counted() {
        let comm_at = COMMS_AT + 3 * COMM_WORDS;
        let cell_at = CELLS_AT + 77 * CELL_WORDS;
        for (word, value) in [
            (comm_at + comm::STATE, 9),
            (comm_at + comm::RANKS, 8 << 32 | 8),
            (comm_at + comm::RANKS, u64::MAX),
            (cell_at + cell::KEY, u64::MAX),
            (cell_at + cell::KEY, 1),
            (COUNTS_AT + 77 * COUNT_WORDS + count::CALLS, u64::MAX),
            (cell_at + cell::TIMED, 100_000),
            (cell_at + cell::SUM, u64::MAX),
        ] {
            let mut bytes = file();
            put(&mut bytes, word, value);
            let read = RankFile::parse(&bytes).unwrap();
            assert!(read.cells.is_empty() && read.nonsense > 0, "{word} {value}");
        }
    }

    #[test]
    fn size_classes_are_powers_of_two() {
        for (bytes, class) in [(0, 0), (1, 0), (8, 3), (15, 3), (16, 4), (1 << 30, 30), (u64::MAX, 63)] {
            assert_eq!(Key::class_of(bytes), class, "{bytes}");
        }
    }

    #[test]
    fn constants_are_the_indices_of_their_names() {
        use crate::{OPERATIONS, P2P_GROUP, RECV, SEND, position};
        let named = [P2P_GROUP, RECV, SEND].map(|at| OPERATIONS[usize::from(at)]);
        assert_eq!(named, ["P2pGroup", "Recv", "Send"]);
        assert_eq!((position(OPERATIONS, b"AllReduce"), position(OPERATIONS, b"Invalid")), (2, 0));
        for (name, size) in [("Float32", 4), ("Bfloat16", 2), ("Int64", 8), ("Float8e4m3", 1), ("other", 1)] {
            assert_eq!(crate::type_size(position(crate::DATATYPES, name.as_bytes())), size, "{name}");
        }
    }

    /// Seeds and findings of `fuzz/fuzz_targets/rank_file.rs`: changes of words in an empty file.
    #[test]
    fn the_seeds() {
        let seeds = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/rank_file");
        let mut read = 0;
        for seed in std::fs::read_dir(seeds).unwrap() {
            let mut bytes = vec![0; BYTES];
            put(&mut bytes, head::MAGIC, MAGIC);
            put(&mut bytes, head::VERSION, VERSION);
            for change in std::fs::read(seed.unwrap().path()).unwrap().chunks_exact(10) {
                let word = usize::from(u16::from_le_bytes([change[0], change[1]])) % (BYTES / 8);
                put(&mut bytes, word, u64::from_le_bytes(change[2..].try_into().unwrap()));
            }
            let Ok(file) = RankFile::parse(&bytes) else { continue };
            read += 1;
            assert!(file.cells.iter().all(|cell| cell.timed <= cell.calls && cell.spaced <= cell.timed));
            assert!(file.comms.iter().all(|comm| comm.rank < comm.ranks));
        }
        assert!(read >= 10, "{read}");
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(changes in proptest::collection::vec((0..crate::WORDS, proptest::num::u64::ANY), 0..40)) {
            let mut bytes = file();
            for (word, value) in changes {
                put(&mut bytes, word, value);
            }
            let _ = RankFile::parse(&bytes);
        }

        #[test]
        fn keys_survive_a_round_trip(word in proptest::num::u64::ANY) {
            for word in [word, word | 1 << 63, (word | 1 << 63) & !(0x7fff_ffff << 32)] {
                if let Some(key) = Key::of(word) {
                    proptest::prop_assert_eq!(key.word(), word);
                }
            }
        }
    }
}
