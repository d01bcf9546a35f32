//! Tests of the rails before the first step of a job: which pairs of nodes test each other in the next round, and which rail, node
//! or path the results accuse. Pure functions of results; the caller runs the tests.
//!
//! All rails of a pair are tested in the same round, each in both directions. [`Plan::next`] returns the pairs of a round:
//!
//! 1. Neighbours under one leaf switch, so that cards and cables are tested without the spine.
//! 2. Other partners, across leafs where possible. No two suspects of the same rail are paired if that can be avoided.
//! 3. Only if a result was bad: each suspect with a third partner whose same rail was good, and each suspicious path again.
//!
//! In each round [`Plan::again`] returns the slow pairs, which the caller measures again before it asks for the next round;
//! [`Round::measure_again`] takes the results. The best measurement counts, and wrong values, failures and ports that were down stay.
//!
//! [`Plan::report`] then finds, for each rail on its own, the faults that explain all bad results:
//!
//! 1. An end whose port was down is named. Its results are not evidence about its partners.
//! 2. An end with bad results from at least two partners and no good one is named if it is accused more strongly than each of
//!    these partners: first by the number of partners that were good with a third node, then by the number of bad results.
//!    Its bad results are then explained. This is repeated until no such end is left.
//! 3. An end with more bad partners than good ones is named in the same way, but not as confirmed.
//! 4. A bad result that is left accuses the path if both ends were good with other partners, and otherwise the path or the ends
//!    that were not.
//! 5. A slow result that a second test of the same pair does not repeat is a note.
//! 6. A node with at least two and at least half of its rails named is named itself.
//!
//! [`AllReduce`] parses what NCCL's own test prints. No result of it accuses a part.
//!
//! What cannot be told apart: two bad paths that share an end look like a rail that is slow at times; a bad path of a bad end; a path
//! whose pair was not tested. Rails that are all equally slow are found only with [`Settings::expected_gbps`].

mod accuse;
mod again;
mod judge;
mod links;
mod nccl_tests;
mod rounds;
mod sentence;
#[cfg(test)]
mod tests;
mod third;
mod types;
mod verdict;

pub use judge::{Judged, Judgement, Usual};
pub use nccl_tests::{AllReduce, Partial, SizeResult};
pub use rounds::Plan;
pub use sentence::rate;
pub use types::{
    DEFAULT_REPEATS, End, MAX_REPEATS, MAX_ROUNDS, Outcome, Pair, Place, Round, Settings, Tested,
};
pub use verdict::{Note, NoteKind, Report, Sign, Verdict, What};
