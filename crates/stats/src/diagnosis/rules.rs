//! One file per rule. To add one: its file, its `mod` line, its row.

use super::register::register;

pub(super) mod hang;
mod input_bound;
mod killed_rank;
pub(super) mod launch_bound;
mod memory_bound;
mod nan;
pub(crate) mod rail_imbalance;
mod sleeping_rank;
pub(crate) mod slow_clock;
#[cfg(test)]
mod tests;
mod uneven_work;

// What ended the job stands before what made it slow.
register! {
    nan,
    killed_rank,
    hang,
    slow_clock,
    sleeping_rank,
    uneven_work,
    input_bound,
    memory_bound,
    launch_bound,
    rail_imbalance,
}
