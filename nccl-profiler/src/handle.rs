//! Handles, which NCCL receives for an event and later returns. They are numbers and never addresses, so that a
//! handle that is returned late, twice, or never does no harm.

/// Meaning of a handle.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handle {
    /// A timed operation, by its slot.
    Op(Use),
    /// A channel of a timed operation.
    Channel(Use),
    /// A launch of a communicator; at most one is between its start and its end.
    Launch(usize),
    /// A thread's group call at NCCL's API.
    Group,
}

/// A slot, and the generation of its use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Use {
    pub(crate) generation: u64,
    pub(crate) slot: usize,
}

const TAG: u64 = 0x5a;
const OP: u64 = TAG << 4 | 1;
const CHANNEL: u64 = TAG << 4 | 2;
const LAUNCH: u64 = TAG << 4 | 3;
const GROUP: u64 = TAG << 4 | 4;
const KIND_AT: u32 = 52;
const GENERATION_AT: u32 = 12;
const INDICES: u64 = (1 << GENERATION_AT) - 1;
/// Upper bound of generations.
pub(crate) const GENERATIONS: u64 = 1 << (KIND_AT - GENERATION_AT);

impl Handle {
    #[inline]
    pub(crate) fn word(self) -> u64 {
        let (kind, generation, index) = match self {
            Handle::Op(Use { generation, slot }) => (OP, generation, slot),
            Handle::Channel(Use { generation, slot }) => (CHANNEL, generation, slot),
            Handle::Launch(comm) => (LAUNCH, 0, comm),
            Handle::Group => (GROUP, 0, 0),
        };
        (kind << KIND_AT) | ((generation % GENERATIONS) << GENERATION_AT) | (index as u64 & INDICES)
    }

    /// Parses a handle; `None` if it is not from this plugin.
    #[inline]
    pub(crate) fn of(word: u64) -> Option<Self> {
        let index = usize::try_from(word & INDICES).ok()?;
        let found = Use { generation: (word >> GENERATION_AT) % GENERATIONS, slot: index };
        match word >> KIND_AT {
            OP => Some(Handle::Op(found)),
            CHANNEL => Some(Handle::Channel(found)),
            LAUNCH => Some(Handle::Launch(index)),
            GROUP => Some(Handle::Group),
            _ => None,
        }
    }
}
