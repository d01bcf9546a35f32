//! What to tell Slurm, and what Slurm tells us: the one room that changes anything outside railgate's own
//! directories.

mod answer;
mod breaker;
mod client;
mod command;
mod config;
mod drain;
mod duration_text;
mod env;
pub mod hostlist;
mod lock;
mod reason;

pub use answer::{JobState, NodeReason, NodeState, UnixSeconds};
pub use client::{Client, JobRef};
pub use command::SlurmError;
pub use config::{BreakerConfig, OnBreaker, RequeueConfig, SlurmConfig, StartWhen};
pub use drain::{Acting, DrainDesk, DrainOutcome, Pending};
pub use env::{
    Asked, BadEnv, Consent, Env, ExitCodes, GateLevel, Granted, UserPolicy, cluster_name, job_from_env,
    node_name,
};
pub use reason::{LEADER, MAX_REASON, Reason, is_ours};
