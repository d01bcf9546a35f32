//! Finds the job of a cgroup from the path that Slurm gave it.

/// Returns the job in a line of `/proc/PID/cgroup`, `HIERARCHY:CONTROLLERS:PATH`, or `None` if it names none. Slurm's
/// paths are `/slurm/uid_1000/job_48213/step_0` (v1; `slurm_NODE` with several slurmd) and
/// `/system.slice/slurmstepd.scope/job_48213/step_0/user/task_0` (v2; `NODE_slurmstepd.scope`). Only the outermost job
/// counts, since a user can choose names below it.
pub fn job_of_cgroup(line: &str) -> Option<u32> {
    job_of_path(line.splitn(3, ':').nth(2)?)
}

/// Returns the job in a cgroup path, or `None` if it names none.
pub fn job_of_path(path: &str) -> Option<u32> {
    let mut ours = false;
    for name in path.split('/') {
        if ours && let Some(id) = name.strip_prefix("job_") {
            return id.parse().ok();
        }
        ours = ours || name == "slurm" || name.starts_with("slurm_") || name.ends_with("slurmstepd.scope");
        // Cgroups that users may create are in slices of their own.
        if name == "user.slice" {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroups_of_slurm_name_the_job() {
        for (line, job) in [
            ("0::/system.slice/slurmstepd.scope/job_48213/step_0/user/task_0", Some(48213)),
            ("0::/system.slice/node1_slurmstepd.scope/job_7/step_batch/user/task_special", Some(7)),
            ("4:memory:/slurm/uid_1000/job_48213/step_batch", Some(48213)),
            ("4:memory:/slurm_n1/uid_1000/job_3/step_0/job_9", Some(3)),
            ("0::/user.slice/user-1000.slice/user@1000.service/slurm/job_5", None),
            ("0::/system.slice/job_5", None),
            ("0::/slurm/uid_0/job_x", None),
            ("0::/", None),
            ("", None),
        ] {
            assert_eq!(job_of_cgroup(line), job, "{line}");
        }
    }
}
