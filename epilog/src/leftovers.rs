use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use railgate_child::{Outcome, Task, become_user};
use railgate_model::{Job, JobGpus, Reading, Snapshot, Verdict};

/// Most check runs while processes remain on the job's GPUs.
pub(crate) const TRIES: u32 = 3;
/// No further check run starts after this time: each may take all of `[gate] deadline`, and an epilog that exceeds
/// PrologEpilogTimeout drains the node. A user can leave a process behind, but must not be able to cause a drain with
/// it.
pub(crate) const LAST_CHECK: Duration = Duration::from_secs(8);
const END: &str = "end-leftovers";
pub(crate) const TASK: Task = Task::new(END, end_as_user);

/// Time for a killed process that holds GPU memory to exit.
const PATIENCE: Duration = Duration::from_secs(2);

/// Whether processes that belong to no live job remain on the job's GPUs.
pub(crate) fn found(verdict: &Verdict) -> bool {
    verdict.findings.iter().any(|finding| finding.check == "gpu-processes")
}

/// Kills processes that the job left on its own GPUs, and waits briefly. Only processes of the job's own user that
/// belong to no live Slurm job: otherwise the next job would find the memory occupied. `held`: the job's GPUs in
/// `now`. Returns whether there were any.
pub(crate) fn end(now: &Snapshot, job: &Job, held: &JobGpus) -> bool {
    let gpus = now.gpus.data().map_or(&[][..], |gpus| &gpus.gpus);
    let mut some = false;
    let mut pids = Vec::new();
    for gpu in gpus.iter().filter(|gpu| held.has(gpu.index) == Some(true)) {
        for process in gpu.processes.known().into_iter().flatten() {
            let own = process.uid == Reading::Known(job.uid);
            let ended =
                matches!(process.slurm_job, Reading::Known(owner) if owner.is_none_or(|id| id == job.id));
            let Ok(pid) = i32::try_from(process.pid) else { continue };
            if !own || !ended || process.exiting || pid <= 1 || pids.contains(&pid) {
                continue;
            }
            some = true;
            // Root's processes cannot be attributed by uid, so they are only given time.
            if job.uid == 0 {
                continue;
            }
            tracing::info!(job = job.id, pid, name = ?process.name, "ending a process that the job left on GPU {}", gpu.index);
            pids.push(pid);
        }
    }
    if !pids.is_empty() {
        let ended =
            serde_json::to_vec(&(job.uid, job.gid, pids)).map_err(|why| why.to_string()).and_then(|order| {
                match railgate_child::run(END, &order, PATIENCE) {
                    Outcome::Done(problems) => Ok(String::from_utf8_lossy(&problems).into_owned()),
                    Outcome::Failed(why) => Err(why),
                    Outcome::Silent | Outcome::Stuck => Err("no answer".to_owned()),
                }
            });
        match ended {
            Ok(problems) if problems.is_empty() => {}
            Ok(why) | Err(why) => tracing::warn!(job = job.id, "cannot end them all: {why}"),
        }
    }
    if some {
        std::thread::sleep(PATIENCE);
    }
    some
}

/// Runs in a child, as the job's user: if the pid was reused by a process of another user since it was read, the
/// kernel refuses the signal.
fn end_as_user(input: &[u8]) -> Result<Vec<u8>, String> {
    let (uid, gid, pids): (u32, u32, Vec<i32>) =
        serde_json::from_slice(input).map_err(|why| why.to_string())?;
    become_user(uid, gid, &[]).map_err(|why| why.to_string())?;
    let refused = pids.into_iter().filter_map(|pid| match kill(Pid::from_raw(pid), Signal::SIGKILL) {
        Ok(()) | Err(Errno::ESRCH) => None,
        Err(why) => Some(format!("{pid}: {why}")),
    });
    Ok(refused.collect::<Vec<_>>().join(", ").into_bytes())
}
