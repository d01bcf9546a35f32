//! Handles: what NCCL is given for an event, and hands back. They are numbers and never addresses, so that what arrives
//! late, twice, or never does no harm.

/// What a handle stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handle {
    /// A timed operation, by its slot.
    Op(Use),
    /// A channel of one.
    Channel(Use),
    /// A communicator's launch; one at a time is between its begin and its end.
    Launch(usize),
    /// A thread's group at NCCL's interface.
    Group,
}

/// A slot, and whose turn it is there.
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
/// Generations are below this.
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

    /// `None`: none of ours.
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
