use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use railgate_node::{Job, Reading, Snapshot, Verdict};
use railgate_stats::holds;

/// How often the node is looked at again while something still sits on the job's GPUs.
pub(crate) const TRIES: u32 = 3;
/// What a killed process that holds GPU memory needs to go.
const PATIENCE: Duration = Duration::from_secs(2);

/// Something sits on the job's GPUs that belongs to no live job.
pub(crate) fn found(verdict: &Verdict) -> bool {
    verdict.findings.iter().any(|finding| finding.check == "gpu-processes")
}

/// Ends what the job left on its own GPUs, and waits a little. Only processes of the job's own user that
/// belong to no live job of Slurm's: whoever comes next would find the memory taken.
pub(crate) fn end(now: &Snapshot, job: &Job) {
    let gpus = now.gpus.data().map_or(&[][..], |gpus| &gpus.gpus);
    for gpu in gpus.iter().filter(|gpu| holds(&job.allocation, gpu) == Some(true)) {
        for process in gpu.processes.known().into_iter().flatten() {
            let ours = process.uid == Reading::Known(job.uid) && job.uid != 0;
            let ended =
                matches!(process.slurm_job, Reading::Known(owner) if owner.is_none_or(|id| id == job.id));
            let Ok(pid) = i32::try_from(process.pid) else { continue };
            if !ours || !ended || process.exiting || pid <= 1 {
                continue;
            }
            tracing::info!(job = job.id, pid, name = ?process.name, "ending what the job left on GPU {}", gpu.index);
            if let Err(why) = kill(Pid::from_raw(pid), Signal::SIGKILL) {
                tracing::warn!(job = job.id, pid, "cannot end it: {why}");
            }
        }
    }
    std::thread::sleep(PATIENCE);
}
