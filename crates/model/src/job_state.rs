/// Returns whether a job's state in Slurm is one of its end. The base state decides: sacct prints `CANCELLED by 0`, and flags follow a `+`.
pub fn job_has_ended(state: &str) -> bool {
    const ENDED: [&str; 10] = [
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    ];
    ENDED.contains(&state.split([' ', '+']).next().unwrap_or_default())
}
