//! Tests on a real Slurm cluster. They need root: `cargo xtask test`.

mod gate;
mod plain;
