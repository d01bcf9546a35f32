//! Format of the counters file of NCCL's profiler plugin, from which node reports are made: the one format that is
//! written in a user's process and read by root.
//!
//! The file is an array of 64-bit little-endian words of fixed size, and every counter is a word of its own. So a
//! writer that is killed leaves no partial number, a reader needs no lock, and the file contains no pointers. A user
//! can write it: [`RankFile::parse`] reads nothing outside its bytes; an invalid file is an error, and invalid
//! entries are left out and counted. The writer maps the file, the reader never does.
//!
//! | words | content |
//! |---|---|
//! | 64 | the head: [`head`] |
//! | 128 × 32 | communicators: [`comm`] |
//! | 2048 × 2 | calls and bytes by communicator, operation and size: [`count`] |
//! | 2048 × 10 | keys and times: [`cell`], found by [`Key`] |
//!
//! NCCL launches operations on one thread and receives GPU events on another. Counters of the two threads are in
//! different cache lines; otherwise each thread would wait for the other at every operation.

mod names;
mod parse;
mod start_number;

pub use names::{
    ALGORITHMS, DATATYPES, OPERATIONS, OTHER, P2P_GROUP, PROTOCOLS, RECV, SEND, position, type_size,
};
pub use parse::{BadRankFile, Cell, Comm, Op, RankFile};
pub use start_number::{MOST_STARTS, START_VARIABLE, start_number};

/// `RAILRANK`, read as a little-endian number.
pub const MAGIC: u64 = u64::from_le_bytes(*b"RAILRANK");
/// The layout described here.
pub const VERSION: u64 = 2;
/// Words of the head.
pub const HEAD_WORDS: usize = 64;
/// Most communicators of a process, concurrent or successive; further ones are counted in [`head::COMMS_LOST`].
pub const COMMS: usize = 128;
/// Words of a communicator.
pub const COMM_WORDS: usize = 32;
/// Most different keys of a process; operations with further ones are counted in [`head::CELLS_LOST`].
pub const CELLS: usize = 2048;
/// Words of a cell's counts.
pub const COUNT_WORDS: usize = 2;
/// Words of a cell.
pub const CELL_WORDS: usize = 10;
/// First word of the communicators.
pub const COMMS_AT: usize = HEAD_WORDS;
/// First word of the cells' counts.
pub const COUNTS_AT: usize = COMMS_AT + COMMS * COMM_WORDS;
/// First word of the cells.
pub const CELLS_AT: usize = COUNTS_AT + CELLS * COUNT_WORDS;
/// Size of the file, words.
pub const WORDS: usize = CELLS_AT + CELLS * CELL_WORDS;
/// Size of the file, bytes.
pub const BYTES: usize = WORDS * 8;

/// Indices of the words of the head.
pub mod head {
    /// [`crate::MAGIC`], written last.
    pub const MAGIC: usize = 0;
    /// [`crate::VERSION`].
    pub const VERSION: usize = 1;
    /// Process id, as the process itself sees it (a container may have its own pid namespace).
    pub const PID: usize = 2;
    /// When the file was created, nanoseconds since the epoch.
    pub const CREATED: usize = 3;
    /// Version of NCCL's profiler interface in use: 4 to 7.
    pub const API: usize = 4;
    /// Result of `ncclGetVersion`: 22809 is 2.28.9; 0: unknown.
    pub const NCCL: usize = 5;
    /// The requested [`crate::Mode`]; a process that can write the file may change it while the job runs.
    pub const WANTED: usize = 6;
    /// [`crate::Mode`] in force.
    pub const MODE: usize = 7;
    /// [`crate::Limit`]: why the mode in force is lower than the requested one.
    pub const LIMIT: usize = 8;
    /// Limit for the cost of timing kernels in mode `sample`, millionths of the time.
    pub const BUDGET: usize = 9;
    /// One window of operations in this many is timed now, a power of two.
    pub const DUTY: usize = 10;
    /// Communicators without room in the file.
    pub const COMMS_LOST: usize = 11;
    /// Operations without room in the file, counted in no cell.
    pub const CELLS_LOST: usize = 12;
    /// Timed operations that never finished.
    pub const EXPIRED: usize = 13;
    /// Timing events that belong to no known operation.
    pub const STRAY: usize = 14;
    /// Operations captured into a CUDA graph; their replays are not visible.
    pub const CAPTURED: usize = 15;
    /// Operations that NCCL shows only at its API (broadcasts of 2.29.2 and later): counted, never timed.
    pub const API_ONLY: usize = 16;
    /// Panics that were caught.
    pub const PANICS: usize = 17;
    /// Number of times that timing was switched on.
    pub const SWITCHES: usize = 18;
    /// Which start of the step inside the attempt the process belongs to: [`crate::start_number()`]. Earlier writers left 0.
    pub const START: usize = 19;
    /// Version of the plugin, text of at most 32 bytes.
    pub const PLUGIN: usize = 20;
}

/// Indices of the words of a communicator.
pub mod comm {
    /// 0 free, 1 in use, 2 destroyed; written last.
    pub const STATE: usize = 0;
    /// NCCL's hash of the communicator, the same on all its ranks.
    pub const HASH: usize = 1;
    /// Number of ranks, shifted left by 32, and this rank.
    pub const RANKS: usize = 2;
    /// Number of nodes.
    pub const NODES: usize = 3;
    /// When it was created, nanoseconds since the epoch.
    pub const CREATED: usize = 4;
    /// The last operation at which a clock was read: [`LAST_TIME`] is its time, and only the earliest possible time
    /// of later operations.
    pub const CLOCKED: usize = 5;
    /// Operations launched on the GPU.
    pub const OPS: usize = 8;
    /// Key of the last operation.
    pub const LAST_KEY: usize = 9;
    /// Sequence number of the last operation in NCCL's count of its kind; 0 for point-to-point.
    pub const LAST_SEQ: usize = 10;
    /// Bytes of the last operation.
    pub const LAST_BYTES: usize = 11;
    /// When the last operation was launched, nanoseconds since the epoch, to a few milliseconds: [`CLOCKED`].
    pub const LAST_TIME: usize = 12;
    /// Messages of the rank to itself. NCCL up to 2.30 miscounts its kernels from the first of them on: its times
    /// then belong to other operations, and are left out.
    pub const TO_ITSELF: usize = 13;
    /// Internal to the writer: up to this operation the choice of timed operations does not change, and no clock
    /// reading is due.
    pub const DECIDE_AT: usize = 14;
    /// Internal to the writer: the cost of timing all operations, nanoseconds.
    pub const PRICE: usize = 15;
    /// The name that the framework gave it, text of at most 64 bytes.
    pub const NAME: usize = 16;
    /// Timed operations that were seen to start on the GPU.
    pub const BEGUN: usize = 24;
    /// Timed operations that were seen to finish.
    pub const DONE: usize = 25;
    /// Number of the last operation that was seen to finish, in the count of [`OPS`], from 1.
    pub const DONE_OP: usize = 26;
    /// When that was, nanoseconds since the epoch.
    pub const DONE_TIME: usize = 27;
}

/// Indices of the words of a cell's counts.
pub mod count {
    /// Operations.
    pub const CALLS: usize = 0;
    /// Their bytes.
    pub const BYTES: usize = 1;
}

/// Indices of the words of a cell.
pub mod cell {
    /// [`crate::Key`]; 0: free.
    pub const KEY: usize = 0;
    /// Operations that were timed and finished.
    pub const TIMED: usize = 1;
    /// Their bytes.
    pub const TIMED_BYTES: usize = 2;
    /// Their GPU time, nanoseconds.
    pub const SUM: usize = 3;
    /// The shortest GPU time, as `u64::MAX - ns`; zero: none yet.
    pub const MIN: usize = 4;
    /// The longest GPU time, nanoseconds.
    pub const MAX: usize = 5;
    /// Sum of the squares of the GPU times, in units of (100 ns)².
    pub const SQUARES: usize = 6;
    /// Timed operations whose successor on the communicator started immediately, as in a benchmark's loop.
    pub const SPACED: usize = 7;
    /// Their bytes.
    pub const SPACED_BYTES: usize = 8;
    /// Sum of their launch intervals (start to start of the successor), nanoseconds.
    pub const SPACED_SUM: usize = 9;
}

/// What the plugin records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Calls, bytes and the last operation.
    Count,
    /// In addition, GPU times of a sample of the operations.
    #[default]
    Sample,
    /// GPU times of all operations except each communicator's first, which makes connections.
    Full,
    /// Nothing is recorded.
    Off,
}

impl Mode {
    /// The word in the file.
    pub fn word(self) -> u64 {
        match self {
            Mode::Count => 1,
            Mode::Sample => 2,
            Mode::Full => 3,
            Mode::Off => 4,
        }
    }

    /// Parses the word in the file.
    pub fn of(word: u64) -> Option<Self> {
        match word {
            1 => Some(Mode::Count),
            2 => Some(Mode::Sample),
            3 => Some(Mode::Full),
            4 => Some(Mode::Off),
            _ => None,
        }
    }

    /// Name: `count`, `sample`, `full`, `off`.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Count => "count",
            Mode::Sample => "sample",
            Mode::Full => "full",
            Mode::Off => "off",
        }
    }
}

/// Why the mode in force is lower than the requested one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Limit {
    /// It is not lower.
    #[default]
    None,
    /// This release of NCCL is known to crash under a profiler.
    Release,
    /// This release of NCCL is slow when kernels are timed.
    SlowRelease,
    /// The release of NCCL is unknown.
    UnknownRelease,
    /// `/dev/shm` has too little room: NCCL crashes there when kernels are timed.
    Shm,
    /// A rank has sent a message to itself: the GPU counts such kernels, NCCL does not.
    OwnMessages,
    /// Operations were captured into a graph: the GPU counts its replays, NCCL does not.
    Captures,
    /// This release of NCCL does not report which operations are captured.
    HiddenCaptures,
    /// Several threads launch at once, and some launch messages.
    Threads,
}

impl Limit {
    /// All values.
    pub const ALL: [Limit; 9] = [
        Limit::None,
        Limit::Release,
        Limit::SlowRelease,
        Limit::UnknownRelease,
        Limit::Shm,
        Limit::OwnMessages,
        Limit::Captures,
        Limit::HiddenCaptures,
        Limit::Threads,
    ];

    /// The word in the file.
    pub fn word(self) -> u64 {
        Limit::ALL.iter().position(|limit| *limit == self).map_or(0, |at| at as u64)
    }

    /// Parses the word in the file; an unknown value is [`Limit::None`].
    pub fn of(word: u64) -> Self {
        usize::try_from(word).ok().and_then(|at| Limit::ALL.get(at).copied()).unwrap_or_default()
    }

    /// Text for people; empty for [`Limit::None`].
    pub fn as_str(self) -> &'static str {
        match self {
            Limit::None => "",
            Limit::Release => "this release of NCCL is known to crash under a profiler",
            Limit::SlowRelease => "this release of NCCL is slow when kernels are timed",
            Limit::UnknownRelease => "the release of NCCL is unknown",
            Limit::Shm => "/dev/shm has too little room for timing kernels",
            Limit::OwnMessages => {
                "a rank sent messages to itself, as an all-to-all does (with RAILGATE_NCCL_MODE=full other communicators are timed)"
            }
            Limit::Captures => "operations were captured into CUDA graphs",
            Limit::HiddenCaptures => {
                "this release of NCCL does not report what is captured into CUDA graphs (RAILGATE_NCCL_MODE=full still times)"
            }
            Limit::Threads => {
                "several threads launched at once, including messages (RAILGATE_NCCL_MODE=full still times)"
            }
        }
    }
}

/// Operations with equal keys share a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Index of the communicator in the file.
    pub comm: u8,
    /// Index into [`OPERATIONS`].
    pub op: u8,
    /// Index into [`DATATYPES`].
    pub datatype: u8,
    /// Index into [`ALGORITHMS`].
    pub algorithm: u8,
    /// Index into [`PROTOCOLS`].
    pub protocol: u8,
    /// Size class: messages of 2^class bytes up to twice that; 0 also contains empty ones.
    pub class: u8,
}

impl Key {
    /// The word in the file; never 0.
    pub fn word(self) -> u64 {
        let part = |value: u8, bits: u32, at: u32| (u64::from(value) & ((1 << bits) - 1)) << at;
        1 << 63
            | part(self.comm, 8, 0)
            | part(self.op, 5, 8)
            | part(self.datatype, 5, 13)
            | part(self.algorithm, 4, 18)
            | part(self.protocol, 3, 22)
            | part(self.class, 7, 25)
    }

    /// Parses the word in the file; `None` if it is invalid.
    pub fn of(word: u64) -> Option<Self> {
        let part = |bits: u32, at: u32| u8::try_from((word >> at) & ((1 << bits) - 1)).unwrap_or(u8::MAX);
        let key = Key {
            comm: part(8, 0),
            op: part(5, 8),
            datatype: part(5, 13),
            algorithm: part(4, 18),
            protocol: part(3, 22),
            class: part(7, 25),
        };
        let known = usize::from(key.comm) < COMMS
            && usize::from(key.op) < OPERATIONS.len()
            && usize::from(key.datatype) < DATATYPES.len()
            && usize::from(key.algorithm) < ALGORITHMS.len()
            && usize::from(key.protocol) < PROTOCOLS.len()
            && key.class < 64
            && key.word() == word;
        known.then_some(key)
    }

    /// The size class of a message.
    pub fn class_of(bytes: u64) -> u8 {
        u8::try_from(bytes.checked_ilog2().unwrap_or(0)).unwrap_or(0)
    }
}
