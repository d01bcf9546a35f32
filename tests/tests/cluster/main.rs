//! Tests on a real Slurm cluster. They need root: `cargo xtask test`.

mod array_storm;
mod beside;
mod breaker;
mod comes_back;
mod controller_away;
mod doctor;
mod fabric;
mod gate;
mod hangs;
mod hostile;
mod nccl_release;
mod node_death;
mod nvml_hangs;
mod own_faults;
mod plain;
mod plugin;
mod rails;
mod resume;
mod shared_node;
mod stays_ended;
mod templates;
mod training;
mod unfit;
mod usage;
mod way_back;
mod without_root;
