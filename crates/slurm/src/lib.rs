//! Slurm's commands, their output and the hooks' environment: the one crate that changes anything outside railgate's
//! own directories.

mod accounting;
mod admin_comment;
mod answer;
mod batch;
mod breaker;
mod client;
mod command;
mod config;
mod drain;
pub mod effect;
mod env;
mod hang_notes;
pub mod hostlist;
mod ledger;
mod ledger_tail;
mod lemon;
mod let_through;
mod readmit;
mod reason;
mod requeue;
mod spool;
mod typed;

pub use accounting::{Line as AccountingLine, Noted, note_in_accounting};
pub use answer::{
    HeldNode, JobStanding, JobState, ListedJob, NodeReason, NodeState, OwnersView, Refusable, UnixSeconds,
    WaitingJob,
};
pub use batch::{Batch, BatchJob, NodeStanding};
pub use breaker::Cap;
pub use client::{Client, JobRef, Listing};
pub use command::{SlurmError, run as run_program};
pub use config::{BreakerConfig, OnBreaker, RequeueConfig, SlurmConfig, StartWhen};
pub use drain::{Acting, DrainDesk, DrainOutcome, Pending, Stage};
pub use env::{
    Asked, BadEnv, Env, ExitCodes, Granted, UserPolicy, array_member, cluster_name, cpus_of_node,
    job_from_env, node_name,
};
pub use hang_notes::{HangChange, HangLimits, HangNote, HangStage};
pub use ledger::{Blamed, Entry, Event, Ledger, Uncounted, Used, used};
pub use ledger_tail::{Appended, LedgerMarks};
pub use lemon::LemonReason;
pub use let_through::LetThrough;
/// Options of users, parsed in one place for the plugin, the prolog and the controller.
pub use railgate_rundir::{GateChoice as GateLevel, RequeueChoice as Consent};
pub use readmit::{NotResumed, Standing};
pub use reason::{LEADER, MAX_REASON, Reason, is_ours};
pub use requeue::{
    Channel, Decision, Facts, NodeEvidence, Weight, after_node_fail, decide, fatal, may_be_requeued,
    move_delay, script_appends, weigh,
};
pub use spool::{Lost, Spool};
pub use typed::{Tasks, TypedJob};
