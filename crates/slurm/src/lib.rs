//! What to tell Slurm, and what Slurm tells us: the one room that changes anything outside railgate's own
//! directories.

mod env;
pub mod hostlist;
mod reason;

pub use env::{
    Asked, BadEnv, Consent, Env, ExitCodes, GateLevel, Granted, UserPolicy, cluster_name, job_from_env,
    node_name,
};
pub use reason::{LEADER, MAX_REASON, Reason, is_ours};
