use railgate_model::{Class, Gpu, GpuProcess, Job, PartName, Phase, Reading, Severity};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::{either, settings, words};

/// The check.
pub(crate) struct GpuProcesses;

settings! {
    action = Drain;
    ignore: Vec<String> = words("Xorg dcgm* nv-fabricmanager nv-hostengine nvidia-cuda-mps* nvidia-imex nvidia-persistenced nvidia-smi railgate*"), "commands that may use a GPU without a job: names, or beginnings with a trailing *";
    class: Class = Class::User, limit either(Class::User, Class::Node), "user: the user is notified, nothing drains; node: leftovers before a job drain the node";
}

impl Check for GpuProcesses {
    const ABOUT: &'static str = "processes that belong to no running job use the job's GPUs";
    const EXPLAIN: &'static str = "
Reads `nvmlDeviceGet{Compute,Graphics}RunningProcesses_v3`, and `/proc` for each process: its name, its user, whether
it is exiting, and the Slurm job it belongs to (cgroup, slurmstepd ancestor). Exiting processes, those of live Slurm
jobs and the names in `ignore` are not leftovers. After a job, any process of it that still runs is a leftover, since Slurm should
have ended it.

Why: the next job lacks the memory that a leftover holds, and dies with out-of-memory.

Fix: end the process; if it does not end, it holds the driver, and the node needs a GPU reset or a reboot.

Before a job, a leftover that holds GPU memory is `fail`, otherwise `warn`. The class is `user`: it is reported, the job's
owner is notified, nothing drains. With `class = \"node\"` it drains the node. A leftover of root has the class `site` (`warn`).
On a shared node only the job's GPUs are checked.
";
    const CLASS: Class = Class::User;
    const PARTS: &'static [PartName] = &[PartName::Gpus];
    const SCOPE: Scope = Scope::Gpus;
    // The periodic phase is left out: processes of running jobs are legitimate.
    const PHASES: &'static [Phase] = &[Phase::Prolog, Phase::Epilog];
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        if scene.unclear().is_some() {
            // The GPU may belong to another job, so no process on it is judged; `gpu-count` has reported why.
            return;
        }
        for gpu in scene.answering() {
            let part = gpu.index.to_string();
            let what = format!("gpu {part} processes");
            let Some(processes) = out.value(&part, &what, SOURCE, &gpu.processes) else { continue };
            for process in processes {
                if let Some(found) = leftover(scene, set, gpu, process) {
                    out.add(found);
                }
            }
        }
    }
}

const SOURCE: &str = "nvmlDeviceGetComputeRunningProcesses_v3, /proc";

fn leftover(scene: &Scene<'_>, set: &Settings, gpu: &Gpu, process: &GpuProcess) -> Option<Found> {
    let name = process.name.known().map_or("?", String::as_str);
    if process.exiting || set.ignore.iter().any(|pattern| is_called(pattern, name)) {
        return None;
    }
    let part = gpu.index.to_string();
    let memory = match &process.used_mib {
        Reading::Known(mib) => format!("{mib} MiB"),
        Reading::Unsupported | Reading::Failed(_) => "unknown memory".to_owned(),
    };
    let what = format!("process {} ({name}, {memory})", process.pid);
    let row = |found: Found, got: String| {
        found.row(format!("gpu {} process {}", gpu.index, process.pid), got, "a live job's, or none", SOURCE)
    };
    let uid = process.uid.known().map_or_else(|| "unknown uid".to_owned(), |uid| format!("uid {uid}"));
    match &process.slurm_job {
        Reading::Known(Some(job)) if !is_over(scene, *job) => None,
        Reading::Failed(why) => {
            let found =
                Found::unknown(set.class, part, format!("{what}: job unknown")).fix("check the process");
            Some(row(found, format!("{uid}, {memory}, job unknown ({why})")))
        }
        _ if process.uid == Reading::Known(0) => {
            let found =
                Found::warn(Class::Site, part, format!("{what} of root, in no job")).fix("add to ignore");
            Some(row(found, format!("{uid}, {memory}")))
        }
        _ => {
            let holds = process.used_mib != Reading::Known(0);
            let severity =
                if holds && scene.phase() == Phase::Prolog { Severity::Fail } else { Severity::Warn };
            let found = Found::new(severity, set.class, part, format!("leftover {what}")).fix("kill it");
            Some(row(found, format!("{uid}, {memory}")))
        }
    }
}

/// The job of this prolog or epilog has no processes of its own: it has not started, or has ended.
fn is_over(scene: &Scene<'_>, job: u32) -> bool {
    scene.seen.job.is_some_and(|own: &Job| own.id == job)
}

/// Compares with the first 15 characters of `pattern`, since the kernel cuts command names there.
fn is_called(pattern: &str, name: &str) -> bool {
    let cut = |text: &str| text.chars().take(15).collect::<String>();
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(&cut(start)),
        None => cut(pattern) == cut(name),
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::{Action, Fitness, GpuProcess, Phase, Reading, Severity};

    use crate::testing::{Case, case};

    fn process(case: Case, bend: impl FnOnce(&mut GpuProcess)) -> Case {
        let mut process = GpuProcess {
            pid: 77,
            used_mib: Reading::Known(500),
            name: Reading::Known("python3".to_owned()),
            uid: Reading::Known(1000),
            exiting: false,
            slurm_job: Reading::Known(None),
        };
        bend(&mut process);
        case.gpu(3, |gpu| gpu.processes = Reading::Known(vec![process]))
    }

    fn severities(bend: impl FnOnce(&mut GpuProcess)) -> Vec<Severity> {
        process(case("h100-sxm"), bend).of("gpu-processes")
    }

    #[test]
    fn a_leftover_process_notifies_and_does_not_drain() {
        let leftover = process(case("h100-sxm"), |_| {});
        assert_eq!(
            leftover.summary(),
            "degraded: fail gpu-processes@3: leftover process 77 (python3, 500 MiB); kill it"
        );
        assert_eq!(leftover.judge().action, Action::Notify);
        let strict = leftover.settings("[checks.gpu-processes]\nclass = \"node\"");
        assert_eq!(strict.fitness(), Fitness::Unfit);
    }

    #[test]
    fn exiting_job_and_daemon_processes_are_not_leftovers() {
        assert!(severities(|process| process.exiting = true).is_empty());
        assert!(severities(|process| process.slurm_job = Reading::Known(Some(7))).is_empty());
        assert!(severities(|process| process.name = Reading::Known("nvidia-persiste".to_owned())).is_empty());
        assert!(severities(|process| process.name = Reading::Known("dcgm-exporter".to_owned())).is_empty());
        assert!(process(case("h100-sxm"), |_| {}).phase(Phase::Periodic).of("gpu-processes").is_empty());
    }

    #[test]
    fn a_process_on_another_jobs_gpu_is_ignored() {
        assert_eq!(process(case("h100-sxm"), |_| {}).holding(&[0, 1, 2]).summary(), "fit");
        assert_eq!(process(case("h100-sxm"), |_| {}).holding(&[3]).of("gpu-processes"), [Severity::Fail]);
    }

    #[test]
    fn a_process_of_the_ended_job_is_a_leftover() {
        let own = |case: Case| process(case, |process| process.slurm_job = Reading::Known(Some(48213)));
        assert_eq!(own(case("h100-sxm").after_the_job()).of("gpu-processes"), [Severity::Warn]);
        assert_eq!(own(case("h100-sxm")).of("gpu-processes"), [Severity::Fail]);
    }

    #[test]
    fn severity_depends_on_memory_user_and_failed_readings() {
        assert_eq!(severities(|process| process.used_mib = Reading::Known(0)), [Severity::Warn]);
        assert_eq!(severities(|process| process.used_mib = Reading::Unsupported), [Severity::Fail]);
        assert_eq!(severities(|process| process.uid = Reading::Known(0)), [Severity::Warn]);
        let whose = Reading::Failed("permission denied".to_owned());
        assert_eq!(severities(|process| process.slurm_job = whose), [Severity::Unknown]);
        let unread = case("h100-sxm").gpu(3, |gpu| gpu.processes = Reading::Failed("999".to_owned()));
        assert_eq!(unread.of("gpu-processes"), [Severity::Unknown]);
        let unsupported = case("h100-sxm").gpu(3, |gpu| gpu.processes = Reading::Unsupported);
        assert_eq!(unsupported.summary(), "fit");
    }

    #[test]
    fn control_characters_in_a_process_name_are_replaced() {
        let hostile = process(case("h100-sxm"), |process| {
            process.name = Reading::Known("\u{1b}[2J\nx".to_owned());
        });
        assert!(hostile.summary().contains("(?[2J?x, 500 MiB)"));
    }
}
