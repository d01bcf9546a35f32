//! One file per rule. To add one, add its file, its `mod` line and its row.

use super::register::register;

mod cpu_contention;
pub(crate) mod degraded_rail;
pub(super) mod hang;
mod host_bound;
pub(crate) mod idle_gpus;
mod input_bound;
pub(crate) mod killed_rank;
pub(super) mod launch_bound;
mod memory_bound;
mod nan;
pub(super) mod pauses;
mod pausing_rank;
pub(crate) mod rail_imbalance;
mod saving;
mod sleeping_rank;
pub(crate) mod slow_clock;
#[cfg(test)]
mod tests;
mod uneven_work;

// Causes of the end of a job come before causes of slowness.
register! {
    nan,
    killed_rank,
    hang,
    slow_clock,
    pausing_rank,
    sleeping_rank,
    uneven_work,
    input_bound,
    cpu_contention,
    saving,
    pauses,
    memory_bound,
    launch_bound,
    degraded_rail,
    rail_imbalance,
    idle_gpus,
    host_bound,
}
