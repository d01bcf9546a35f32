//! `railgate-epilog-ctld`: slurmctld runs it as SlurmUser (`EpilogSlurmctld`) at the *start* of every job's
//! completion. It is the one place that decides whether a job comes back.
//!
//! # What it can know, and when (22.05 to 26.05, tried on 22.05.8, 24.11.5, 26.05.5)
//! The environment holds the exit code, the restart count, node list, array and het ids and the `SPANK_RAILGATE_*`
//! options, and nothing of GPUs or of the job's state. While a job completes, `scontrol show job` says
//! `COMPLETING` whatever it ended as (23.11 and later say more), but `Reason`, `EndTime` and `Restarts` tell:
//!
//! | what happened | exit code | restart count here | `scontrol show job` |
//! |---|---|---|---|
//! | failed by itself | not 0 | of the attempt | `Reason=NonZeroExitCode` (ended by a signal: `JobLaunchFailure`, `RaisedSignal`) |
//! | completed, cancelled, preempted, timed out | 0 | of the attempt | `EndTime` is past |
//! | put back: `scontrol requeue`, a failed prolog | 0 | one more already | `EndTime` is to come, `Restarts` the same |
//! | put back: a node died | 0 (24.11 and later: 1) | of the attempt | `EndTime` is to come, `Restarts` one more |
//! | the batch host's own prolog failed, put back | 256 | of the attempt | a moment later `Restarts` one more |
//! | the same with `--no-requeue` | 256 | of the attempt | `Requeue=0` |
//!
//! So exit code 0 and restart count 0 return at once, before anything is read: that is every job that ran well
//! or was cancelled. Where it ran is noted (a line in a file), and how Slurm ended it is asked for later, of many jobs at
//! once (`sum_up`). Of a job that was restarted before, one query tells
//! whether it ended or went back. A death of a node during the very first attempt is seen only at the next event:
//! the note names the attempt's nodes, and one that Slurm shows as down since then is the evidence. A restart without it
//! is not counted as a death: whoever puts a job back that has just ended raises the restart count, too. Evidence is a
//! node that Slurm has as down, and its `NODE_FAIL`.
//!
//! # Waiting for the nodes
//! This program runs at the same time as the nodes' epilogs, and a job keeps completing until both are through;
//! it cannot start again in between, so a requeue from here is free of races. `NodeList` of a completing job
//! shrinks as nodes finish their epilogs (or die), and is empty when the last one has: then every drain reason
//! and report that will come has come. One back-off loop asks for it, at most `[requeue] wait` long and by at
//! most `[requeue] waiters` processes at once (lock files); a later one asks once and says that it did not wait.
//! A job whose own state, options or exit code already rule a restart out is not waited for.
//!
//! `afterok`, `afternotok` and `afterany` wait for a completing job, so nothing of them happens between its
//! attempts. `singleton` does not (22.05): a job of the same name and owner may start while this one completes, and
//! then runs before its next attempt. Nothing here could prevent it.
//!
//! # Evidence
//! A node's epilog puts the ids of jobs that died there into its drain reason, and writes its part of the
//! report as the job's user. The reason is root's word. The report could be forged by the job's owner, who
//! gains a restart of that job within its budget; nothing in a report decides about a node.
//!
//! # Budgets
//! Counted from the ledger, whose line is written *before* the job goes back: without a ledger nothing is
//! restarted. Moves by the gate are Slurm's own requeues (the prolog has drained the node and failed); this program
//! only counts them and, from the second on, delays the next start. `PrologSlurmctld` is not used.
//!
//! Everything it keeps is in `/var/lib/railgate/controller/`, which belongs to SlurmUser; root writes nothing there.

mod call;
mod ended_job;
mod ends;
mod evidence;
mod failed;
mod kept_log;
mod old_notes;
mod put_back;
mod record;
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
        // Before the waiting: whoever works the notes off waits, too.
        sum_up::leave_note(&places, &env);
        match Call::enter(places, env) {
            Ok(call) if call.exit.job == Some(0) => put_back::look(&call),
            Ok(call) => failed::look(&call),
            Err(Nothing::Quiet) => {}
            Err(Nothing::Trouble(why)) => {
                start_stderr(railgate_runner::LogLevel::Info);
                tracing::error!("epilog-ctld: {why}; nothing is decided about this job");
            }
        }
        // slurmctld only logs it, and the job is over either way.
        ExitCode::SUCCESS
    })
}
