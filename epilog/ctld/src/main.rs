//! `railgate-epilog-ctld`: slurmctld runs it as SlurmUser (`EpilogSlurmctld`) at the *start* of every job's
//! completion. Only this program decides whether a job is requeued.
//!
//! # Available information (22.05 to 26.05, tested on 22.05.8, 24.11.5, 26.05.5)
//! The environment has the exit code, the restart count, node list, array and het ids and the `SPANK_RAILGATE_*`
//! options, but no GPUs and no job state. While a job completes, `scontrol show job` shows `COMPLETING`, regardless
//! of how it ended (23.11 and later show more), but `Reason`, `EndTime` and `Restarts` distinguish the cases:
//!
//! | event | exit code | restart count here | `scontrol show job` |
//! |---|---|---|---|
//! | failed by itself | not 0 | of the attempt | `Reason=NonZeroExitCode` (ended by a signal: `JobLaunchFailure`, `RaisedSignal`) |
//! | completed, cancelled, preempted, timed out | 0 | of the attempt | `EndTime` is in the past |
//! | requeued: `scontrol requeue`, a failed prolog | 0 | one more already | `EndTime` is in the future, `Restarts` the same |
//! | requeued: a node failed | 0 (24.11 and later: 1) | of the attempt | `EndTime` is in the future, `Restarts` one more |
//! | the batch host's own prolog failed, requeued | 256 | of the attempt | a moment later `Restarts` one more |
//! | the same with `--no-requeue` | 256 | of the attempt | `Requeue=0` |
//!
//! Exit code 0 with restart count 0 therefore returns at once, before anything is read: this is every job that
//! succeeded or was cancelled. Its nodes are noted (a line in a file), and how Slurm ended it is queried later, for
//! many jobs at once (`sum_up`). For a job that was restarted before, one query determines whether it ended or was
//! requeued. A node failure during the very first attempt is seen only at the next event: the note names the
//! attempt's nodes, and a node that Slurm has shown as down since then is the evidence, as is `NODE_FAIL`. A restart
//! without such evidence does not count as a node failure, since requeueing a job that has just ended raises the
//! restart count, too.
//!
//! # Waiting for the nodes
//! This program runs at the same time as the nodes' epilogs, and a job stays completing until both have ended; it
//! cannot start in between, so a requeue from here is free of races. `NodeList` of a completing job shrinks as nodes
//! finish their epilogs (or fail), and is empty after the last one: then all drain reasons and reports are available.
//! A loop with back-off polls it, for at most `[requeue] wait` and in at most `[requeue] waiters` processes at once
//! (lock files); a further process checks once and reports that it did not wait. A job that cannot be requeued
//! because of its state, options or exit code is not waited for.
//!
//! `afterok`, `afternotok` and `afterany` wait for a completing job, so nothing that depends on the job starts
//! between its attempts. `singleton` does not wait (22.05): a job of the same name and owner may start while this one
//! completes, and then runs before its next attempt. This program cannot prevent that.
//!
//! # Evidence
//! A node's epilog adds the ids of jobs that failed there to its drain reason, and writes its part of the report as
//! the job's user. Only root writes the reason. The job's owner could forge the report, and would gain a restart of
//! that job within its budget; no report affects decisions about a node.
//!
//! # Budgets
//! Counted from the ledger, whose line is written *before* the requeue: without a ledger no job is requeued. Moves by
//! the gate are Slurm's own requeues (the prolog has drained the node and failed); this program only counts them and,
//! from the second on, delays the next start. `PrologSlurmctld` is not used.
//!
//! All state is in `/var/lib/railgate/controller/`, which belongs to SlurmUser; root writes nothing there.

mod call;
mod ended_job;
mod ends;
mod evidence;
mod expedited;
mod failed;
mod kept_log;
mod old_notes;
mod record;
mod requeued;
mod restarts;
mod slurm_end;
mod sum_up;
mod summed;
mod tally;
#[cfg(test)]
mod testing;
mod wait;

use std::process::ExitCode;

use railgate_runner::{Places, guarded, start_stderr, switches};

use call::{Call, Nothing};

fn main() -> ExitCode {
    let tasks = [railgate_runner::tasks(), vec![sum_up::FIND, summed::TASK]].concat();
    if let Some(code) = railgate_probe::dispatch(&tasks) {
        return code;
    }
    guarded("epilog-ctld", || {
        let env = std::env::vars_os().collect();
        let places = Places::default();
        if switches::disabled(&places) {
            return ExitCode::SUCCESS;
        }
        if sum_up::is_asked() {
            if let Err(why) = sum_up::work(&places, &env) {
                tracing::error!("ends of jobs: {why}");
            }
            return ExitCode::SUCCESS;
        }
        if call::ended_well(&env) {
            ends::note(&call::own(&places), &env);
            sum_up::leave_note(&places, &env);
            return ExitCode::SUCCESS;
        }
        // Before waiting below, since the process that works the notes off also waits.
        sum_up::leave_note(&places, &env);
        match Call::enter(places, env) {
            Ok(call) if call.exit.job == Some(0) => requeued::handle(call),
            Ok(call) => failed::handle(call),
            Err(Nothing::Quiet) => {}
            Err(Nothing::Trouble(why)) => {
                start_stderr(railgate_runner::LogLevel::Info);
                tracing::error!("epilog-ctld: {why}; nothing is decided about this job");
            }
        }
        // slurmctld would only log a failure, and the job is over either way.
        ExitCode::SUCCESS
    })
}
