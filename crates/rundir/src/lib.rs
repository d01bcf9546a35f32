//! The run directory: the prolog's files on the node for the plugin, the sampler and the epilog.
//!
//! ```text
//! /run/railgate/                      root
//!   jobs/<jobid>/                     root 0711, as is each run's directory: passed through by name, never listed
//!     current -> <run>                the run that is on the node now
//!     <attempt>-<start>/              one run; attempt as the prolog saw it, start in Unix seconds
//!       run.json                      [`Run`]: who, which attempt, what was asked for
//!       before.json                   the prolog's snapshot, the epilog's baseline
//!       gpus.json                     the job's GPUs by UUID, for the sampler
//!       report.json                   the prolog's part of the report: verdict, rail map, settings
//!       task.env                      [`TaskEnv`]: the one small file that the plugin reads, as root, per step
//!       nccl.env -> user/.nccl.env    [`NcclEnv`]: what depends on NCCL's release, for the plugin that NCCL loads
//!       topology.xml -> user/.topology.xml  NCCL's topology file, where the machine hides its wiring
//!       step-check.json               [`StepCheck`]: root's check after a failed step of `railgate launch`; 0644, for the job
//!       sampler.sock, tasks.json      the sampler's: how it is ended, and what the job's processes had
//!       yield.sock                    the sampler's, 0600, the job's uid: leaves the GPUs alone while it is held
//!       user/                         0700, the job's uid, a tmpfs of its own: all that a job may write
//!         env.<step>                  [`Used`]: what the step's first task here found and got
//!         preflight                   what `railgate preflight` accuses this node of, one line
//! ```
//!
//! Root writes everything except `user/` atomically, and only root can read it (0600, but for `step-check.json`), since it contains parts
//! of the environment of the job's processes. Files that tasks read are in `user/`, which other users cannot reach. The
//! SPANK plugin uses this crate, so it has few dependencies and only handles small files.

mod layout;
mod merge;
mod nccl_conf;
mod nccl_env;
mod note;
mod open_mode;
mod options;
mod step_check;
mod task_env;
mod used;
mod user;

/// In `user/`: what `railgate preflight` accuses this node of, one line of text that the job's tasks write.
pub const PREFLIGHT_MARK: &str = "preflight";
/// Exit code of `railgate preflight --before-script` that keeps a batch script from starting: no other program or loader ends with it by
/// accident.
pub const PREFLIGHT_NAMED: u8 = 86;

pub use layout::{JobDir, NoRun, Root, Run, RunDir};
pub use merge::{Change, JOB_DIR, KEPT, Merged, NET, SET, SET_PREFIX, merge};
pub use nccl_conf::NcclConf;
pub use nccl_env::{NcclEnv, ReleaseSetting};
pub use note::NoteDir;
pub use open_mode::{OpenMode, told_open_mode};
pub use options::{
    BadChoice, CONTROL, CONTROL_GATE, CONTROL_HANG, CONTROL_OPEN_MODE, CONTROL_PROFILE, CONTROL_PROFILER,
    CONTROL_REQUEUE, GateChoice, HangChoice, HangThen, ProfileName, ProfilerChoice, RequeueChoice,
};
pub use step_check::StepCheck;
pub use task_env::{BadTaskEnv, TaskEnv, TaskSetting};
pub use used::{Used, Winner};
pub use user::{BadUserFile, Mounted, UserDir, mount_user, unmount_user};
