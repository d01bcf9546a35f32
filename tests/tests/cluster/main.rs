//! Tests on a real Slurm cluster. They need root: `cargo xtask test`.

mod breaker;
mod gate;
mod plain;
mod plugin;
mod templates;
mod unfit;
