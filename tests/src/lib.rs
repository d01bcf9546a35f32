//! What railgate's tests and its demo share: a real Slurm cluster on one machine, and simulated hardware
//! for its nodes. `README.md` beside this package says how to write a test with it.

pub mod cluster;
pub mod hardware;
pub mod poll;
