//! The file in which NCCL's profiler plugin counts, and from which a node's report is made: the one format that
//! code in a user's process writes and root reads.
//!
//! It is an array of 64-bit little-endian words of one fixed size, and every counter is a word of its own. So a
//! writer that is killed leaves no half of a number behind, a reader needs no lock, and nothing in the file points
//! anywhere. A user can write it: [`RankFile::parse`] looks at nothing outside its bytes, and what makes no sense
//! is an error or is left out and counted. The writer maps the file, the reader never does.
//!
//! | words | what |
//! |---|---|
//! | 64 | the head: [`head`] |
//! | 128 × 32 | communicators: [`comm`] |
//! | 2048 × 2 | calls and bytes by communicator, operation and size: [`count`] |
//! | 2048 × 10 | their key and times: [`cell`], found by their [`Key`] |
//!
//! NCCL launches on one thread and hears of the GPU on another. What the one counts stands in no cache line that the other
//! writes to: each would wait for the other at every operation.

mod names;
mod parse;

pub use names::{
    ALGORITHMS, DATATYPES, OPERATIONS, OTHER, P2P_GROUP, PROTOCOLS, RECV, SEND, position, type_size,
};
pub use parse::{BadRankFile, Cell, Comm, Op, RankFile};

/// `RAILRANK`, read as a little-endian number.
pub const MAGIC: u64 = u64::from_le_bytes(*b"RAILRANK");
/// The layout described here.
pub const VERSION: u64 = 2;
/// Words of the head.
pub const HEAD_WORDS: usize = 64;
/// Communicators that a process can have at a time or one after the other; further ones are counted in
/// [`head::COMMS_LOST`].
pub const COMMS: usize = 128;
/// Words of a communicator.
pub const COMM_WORDS: usize = 32;
/// Different keys that a process can count; further ones are counted in [`head::CELLS_LOST`].
pub const CELLS: usize = 2048;
/// Words of a cell's counts.
pub const COUNT_WORDS: usize = 2;
/// Words of a cell.
pub const CELL_WORDS: usize = 10;
/// Where the communicators begin.
pub const COMMS_AT: usize = HEAD_WORDS;
/// Where the cells' counts begin.
pub const COUNTS_AT: usize = COMMS_AT + COMMS * COMM_WORDS;
/// Where the cells begin.
pub const CELLS_AT: usize = COUNTS_AT + CELLS * COUNT_WORDS;
/// The whole file, words.
pub const WORDS: usize = CELLS_AT + CELLS * CELL_WORDS;
/// The whole file, bytes.
pub const BYTES: usize = WORDS * 8;

/// Words of the head.
pub mod head {
    /// [`crate::MAGIC`], written last.
    pub const MAGIC: usize = 0;
    /// [`crate::VERSION`].
    pub const VERSION: usize = 1;
    /// Process, as it sees itself (a container may number its own).
    pub const PID: usize = 2;
    /// When the file was made, nanoseconds since the epoch.
    pub const CREATED: usize = 3;
    /// Version of NCCL's profiler interface in use: 4 to 7.
    pub const API: usize = 4;
    /// `ncclGetVersion`: 22809 is 2.28.9; 0: not found out.
    pub const NCCL: usize = 5;
    /// [`crate::Mode`] that is wished for; whoever may write the file may change it while the job runs.
    pub const WANTED: usize = 6;
    /// [`crate::Mode`] in force.
    pub const MODE: usize = 7;
    /// [`crate::Limit`]: why less is in force than wished for.
    pub const LIMIT: usize = 8;
    /// What timing kernels may cost in mode `sample`, millionths of the time.
    pub const BUDGET: usize = 9;
    /// One window of operations in so many is timed now, a power of two.
    pub const DUTY: usize = 10;
    /// Communicators that found no room.
    pub const COMMS_LOST: usize = 11;
    /// Operations that found no room, and are in no cell.
    pub const CELLS_LOST: usize = 12;
    /// Operations whose timing never came to an end.
    pub const EXPIRED: usize = 13;
    /// Timing events that belong to no operation that is known.
    pub const STRAY: usize = 14;
    /// Operations captured into a CUDA graph: their replays are not seen.
    pub const CAPTURED: usize = 15;
    /// Operations that NCCL shows at its interface only (broadcasts of 2.29.2 and later): counted, never timed.
    pub const API_ONLY: usize = 16;
    /// Panics that were caught.
    pub const PANICS: usize = 17;
    /// How often timing was switched on.
    pub const SWITCHES: usize = 18;
    /// Version of the plugin, text of at most 32 bytes.
    pub const PLUGIN: usize = 20;
}

/// Words of a communicator.
pub mod comm {
    /// 0 free, 1 in use, 2 destroyed; written last.
    pub const STATE: usize = 0;
    /// NCCL's hash: the same on all its ranks.
    pub const HASH: usize = 1;
    /// Ranks, shifted by 32, and this rank.
    pub const RANKS: usize = 2;
    /// Nodes.
    pub const NODES: usize = 3;
    /// When it was made, nanoseconds since the epoch.
    pub const CREATED: usize = 4;
    /// The last operation at which a clock was asked: [`LAST_TIME`] is the time of this one, and of those behind it only the
    /// earliest that they can have.
    pub const CLOCKED: usize = 5;
    /// Operations handed to the GPU.
    pub const OPS: usize = 8;
    /// The last one's key.
    pub const LAST_KEY: usize = 9;
    /// Its number as NCCL counts this kind of operation; 0 for point to point.
    pub const LAST_SEQ: usize = 10;
    /// Its bytes.
    pub const LAST_BYTES: usize = 11;
    /// When it was handed over, nanoseconds since the epoch, a few milliseconds coarse: [`CLOCKED`].
    pub const LAST_TIME: usize = 12;
    /// Messages of the rank to itself. NCCL up to 2.30 loses count of its kernels with the first of them: what it says of
    /// times belongs to other operations from then on, and is left out.
    pub const TO_ITSELF: usize = 13;
    /// The writer's own note, of no use to a reader: up to this operation nothing changes in what is timed, and no clock is due.
    pub const LOOK: usize = 14;
    /// The writer's own note: what timing all operations would have taken, nanoseconds.
    pub const PRICE: usize = 15;
    /// Name that the framework gave it, text of at most 64 bytes.
    pub const NAME: usize = 16;
    /// Operations that the GPU was seen to begin, of those that were timed.
    pub const BEGUN: usize = 24;
    /// And to finish.
    pub const DONE: usize = 25;
    /// The number of the last one that was seen to finish, of [`OPS`], from 1.
    pub const DONE_OP: usize = 26;
    /// When it was seen, nanoseconds since the epoch.
    pub const DONE_TIME: usize = 27;
}

/// Words of a cell's counts.
pub mod count {
    /// Operations.
    pub const CALLS: usize = 0;
    /// Their bytes.
    pub const BYTES: usize = 1;
}

/// Words of a cell.
pub mod cell {
    /// [`crate::Key`]; 0: free.
    pub const KEY: usize = 0;
    /// Operations that were timed to the end.
    pub const TIMED: usize = 1;
    /// Their bytes.
    pub const TIMED_BYTES: usize = 2;
    /// GPU time of those, nanoseconds.
    pub const SUM: usize = 3;
    /// The shortest, as `u64::MAX - ns`: zero is none yet.
    pub const MIN: usize = 4;
    /// The longest, nanoseconds.
    pub const MAX: usize = 5;
    /// Sum of squares, in units of (100 ns)².
    pub const SQUARES: usize = 6;
    /// Timed operations whose successor on the communicator began at once, as in a benchmark's loop.
    pub const SPACED: usize = 7;
    /// Their bytes.
    pub const SPACED_BYTES: usize = 8;
    /// From their begin to that of their successor, nanoseconds.
    pub const SPACED_SUM: usize = 9;
}

/// How much is looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Calls, bytes and the last operation.
    Count,
    /// Besides, the GPU's own times of a part of the operations.
    #[default]
    Sample,
    /// Of all but each communicator's first, which makes connections.
    Full,
    /// Nothing.
    Off,
}

impl Mode {
    /// As the file has it.
    pub fn word(self) -> u64 {
        match self {
            Mode::Count => 1,
            Mode::Sample => 2,
            Mode::Full => 3,
            Mode::Off => 4,
        }
    }

    /// From the file.
    pub fn of(word: u64) -> Option<Self> {
        match word {
            1 => Some(Mode::Count),
            2 => Some(Mode::Sample),
            3 => Some(Mode::Full),
            4 => Some(Mode::Off),
            _ => None,
        }
    }

    /// `count`, `sample`, `full`, `off`.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Count => "count",
            Mode::Sample => "sample",
            Mode::Full => "full",
            Mode::Off => "off",
        }
    }
}

/// Why less is looked at than was wished for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Limit {
    /// It is not.
    #[default]
    None,
    /// This release of NCCL is known to crash under a profiler.
    Release,
    /// This release of NCCL is slow when kernels are timed.
    SlowRelease,
    /// Nobody could tell which release it is.
    UnknownRelease,
    /// `/dev/shm` has too little room: NCCL crashes there when kernels are timed.
    Shm,
    /// A rank has sent a message to itself: the GPU counts its kernels, NCCL does not.
    OwnMessages,
    /// Operations were captured into a graph: the GPU counts its replays, NCCL does not.
    Captures,
    /// This release of NCCL does not tell what is captured.
    HiddenCaptures,
    /// Several threads launch at once, messages among it.
    Threads,
}

impl Limit {
    /// All of them.
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

    /// As the file has it.
    pub fn word(self) -> u64 {
        Limit::ALL.iter().position(|limit| *limit == self).map_or(0, |at| at as u64)
    }

    /// From the file; what is not known is no limit.
    pub fn of(word: u64) -> Self {
        usize::try_from(word).ok().and_then(|at| Limit::ALL.get(at).copied()).unwrap_or_default()
    }

    /// For people; empty for [`Limit::None`].
    pub fn as_str(self) -> &'static str {
        match self {
            Limit::None => "",
            Limit::Release => "this release of NCCL is known to crash under a profiler",
            Limit::SlowRelease => "this release of NCCL is slow when kernels are timed",
            Limit::UnknownRelease => "NCCL's release could not be found out",
            Limit::Shm => "/dev/shm has too little room for timing kernels",
            Limit::OwnMessages => {
                "a rank sent messages to itself, as an all-to-all does (with RAILGATE_NCCL_MODE=full other communicators are timed)"
            }
            Limit::Captures => "operations were captured into CUDA graphs",
            Limit::HiddenCaptures => {
                "this release of NCCL does not tell what is captured into CUDA graphs (RAILGATE_NCCL_MODE=full times all the same)"
            }
            Limit::Threads => {
                "several threads launched at once, messages among it (RAILGATE_NCCL_MODE=full times all the same)"
            }
        }
    }
}

/// What is counted together.
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
    /// Messages of 2^class bytes up to twice that; 0 holds empty ones, too.
    pub class: u8,
}

impl Key {
    /// As the file has it; never 0.
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

    /// From the file; `None` where it is none of ours.
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

    /// The class of a message.
    pub fn class_of(bytes: u64) -> u8 {
        u8::try_from(bytes.checked_ilog2().unwrap_or(0)).unwrap_or(0)
    }
}
