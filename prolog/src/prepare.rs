use std::time::{Duration, Instant};

use railgate_model::{Action, Allocation, JobGpus, SampledGpus, UnixMillis};
use railgate_node_report::NodeReport;
use railgate_rails::{JobShape, environment, net, rail_map, topology, topology_wanted};
use railgate_rundir::{CONTROL_GATE, Run, RunDir, TaskEnv, TaskSetting, mount_user};
use railgate_runner::{CheckRun, Hook, SAMPLER_GPUS, kernel_mark};
use railgate_slurm::GateLevel;
use railgate_slurm::hostlist::expand;
use railgate_store::{Asked, NodeWord, Words, load_nodelist, load_words};

use crate::handed_over;

/// Bytes that a job may write below the run's directory: enough for NCCL's logs and the plugin's notes, too little to
/// fill /run.
const USER_BYTES: u64 = 64 << 20;
/// And the number of files.
const USER_INODES: u64 = 4096;
/// Longest wait for a file server that has the reason of an earlier requeue.
const PATIENCE: Duration = Duration::from_secs(3);
/// Most notices in the job's output: a job that lost many nodes at once need not list them all.
const MOST_NOTICES: usize = 8;

/// Creates the run's directory with all files that the plugin and the epilog need. An error of the file system is
/// logged and reported, and the job runs without NCCL settings.
pub(crate) fn run_directory(
    hook: &Hook,
    check_run: &CheckRun,
    start: UnixMillis,
    report: &mut NodeReport,
) -> Option<RunDir> {
    let run = Run {
        boot_id: check_run.snapshot.boot_id.clone(),
        kernel_seq: kernel_mark(&check_run.snapshot).map(|mark| mark.seq),
        profile: report.options.profile.clone(),
        gate: report.options.gate.clone(),
        requeue: report.options.requeue.clone(),
        hang: report.options.hang.clone(),
        ..Run::new(hook.job.id, hook.job.restarts, start / 1000)
    };
    report.run = format!("{}-{}", run.attempt, run.start);
    if let Err(why) = hook.runs().close() {
        tracing::warn!("run directories of earlier jobs: {why}; other users may read them");
    }
    let held = held(hook, check_run);
    let gpus = check_run.snapshot.gpus.data();
    let sampled = SampledGpus::new(&hook.job.allocation, &held, gpus, &check_run.known_gpus);
    let made = hook.runs().job(hook.job.id).create(&run).and_then(|dir| {
        dir.write_json("before.json", &check_run.snapshot)?;
        dir.write_json(SAMPLER_GPUS, &sampled)?;
        Ok(dir)
    });
    let dir = match made {
        Ok(dir) => dir,
        Err(why) => {
            let place = hook.runs().job(hook.job.id);
            let place = place.path().display();
            fault(report, format!("{place}: {why}; the job runs without railgate's environment"));
            return None;
        }
    };
    if let Err(why) = mount_user(&dir, hook.job.uid, hook.job.gid, USER_BYTES, USER_INODES) {
        fault(report, format!("user directory: {why}"));
    }
    let tasks = task_env(hook, check_run, held, &dir, report);
    let (text, left_out) = tasks.to_text();
    for setting in left_out {
        tracing::warn!(job = hook.job.id, "{} is left out: no value for an environment", setting.name);
    }
    if let Err(why) = dir.write("task.env", text.as_bytes()) {
        fault(report, format!("task.env: {why}"));
    }
    Some(dir)
}

/// Leaves the prolog's part of the report for the epilog and makes the run current. Returns whether both succeeded.
pub(crate) fn publish(hook: &Hook, run: &RunDir, report: &NodeReport) -> bool {
    let published = run.write_json("report.json", report).and_then(|()| run.publish());
    if let Err(why) = &published {
        tracing::error!(
            job = hook.job.id,
            "run directory: {why}; the job runs without railgate's environment"
        );
    }
    published.is_ok()
}

/// The job's GPUs: the settings of NCCL and the sampler follow the same ones.
fn held(hook: &Hook, check_run: &CheckRun) -> JobGpus {
    JobGpus::resolve(
        &hook.job.allocation,
        check_run.snapshot.gpus.data(),
        &check_run.known_gpus,
        check_run.profile.gpus.count,
    )
}

fn task_env(
    hook: &Hook,
    check_run: &CheckRun,
    gpus: JobGpus,
    dir: &RunDir,
    report: &mut NodeReport,
) -> TaskEnv {
    let mut tasks = TaskEnv { notices: notices(hook, check_run), ..TaskEnv::default() };
    // The plugin runs the preflight only if the prolog, as root, writes this setting. It ignores the job's environment.
    let preflight = (hook.granted.gate == GateLevel::Preflight).then(|| TaskSetting {
        name: CONTROL_GATE.to_owned(),
        value: GateLevel::Preflight.to_string(),
        force: true,
        ..TaskSetting::default()
    });
    if hook.job.allocation == Allocation::NoGpus {
        tasks.settings.extend(preflight);
        return tasks;
    }
    let map = rail_map(&check_run.snapshot, Some(&check_run.profile));
    let mut shape = JobShape {
        gpus,
        job_id: hook.job.id,
        nodes: expand(&hook.job.nodelist).ok().and_then(|hosts| u32::try_from(hosts.len()).ok()),
        user_dir: hook.runs().job(hook.job.id).path().join("current/user"),
        profile: hook.granted.profile.clone(),
        topology_file: None,
        env_plugin: handed_over::env_plugin(&hook.config.rails),
        profiler: handed_over::profiler(&hook.config.stats, hook.job.id, hook.granted.profiler),
        site_conf: handed_over::site_conf(),
    };
    if topology_wanted(&hook.config.rails, &map, &check_run.snapshot) {
        match topology(&map, &check_run.snapshot) {
            Ok(text) => match dir.write_for_tasks("topology.xml", text.as_bytes(), hook.job.uid) {
                Ok(()) => shape.topology_file = Some(dir.file("topology.xml")),
                Err(why) => fault(report, format!("topology.xml: {why}")),
            },
            Err(why) => fault(report, format!("no topology file: {why}")),
        }
    }
    let mut settings = environment(&map, &check_run.snapshot, &hook.config.rails, &shape);
    if let Some(file) = handed_over::by_release(&settings)
        && let Err(why) = dir.write_for_tasks("nccl.env", file.as_bytes(), hook.job.uid)
    {
        fault(report, format!("nccl.env: {why}; version-dependent settings not applied"));
        settings.retain(|setting| setting.nccl.is_none());
    }
    tasks.net = Some(net(&hook.config.rails, &map, &check_run.snapshot));
    tasks.settings = handed_over::for_tasks(&settings);
    tasks.settings.extend(preflight);
    report.rail_map = Some(map);
    report.settings = settings;
    tasks
}

/// Notices for the owner, in the job's own output.
fn notices(hook: &Hook, check_run: &CheckRun) -> Vec<String> {
    let mut notices: Vec<String> =
        hook.granted.refused.iter().map(|refused| format!("railgate: {refused}")).collect();
    notices.extend(why_it_moved(hook));
    if check_run.verdict.action == Action::Notify
        && let Some(cause) = check_run.verdict.cause()
    {
        notices.push(format!("railgate: {}: {}: {}; {}", hook.node, cause.subject(), cause.what, cause.fix));
    }
    notices
}

/// Why the previous attempt ended, from the reports of its nodes. Repeated because the output file of a job without
/// `--open-mode=append` was truncated at the restart.
///
/// The nodes of that attempt are those of the controller's decision about it; no other files in the job's report
/// directory are opened.
fn why_it_moved(hook: &Hook) -> Vec<String> {
    let Some(last) = hook.job.restarts.checked_sub(1) else { return Vec::new() };
    let until = Instant::now() + PATIENCE;
    let left = || until.saturating_duration_since(Instant::now());
    let config = &hook.config.report;
    let jobs = [hook.job.id];
    let asked = Asked { cluster: &hook.cluster, jobs: &jobs, uid: hook.job.uid, attempt: last, nodes: &[] };
    let words = load_nodelist(config, &asked, left()).and_then(|list| {
        let nodes =
            list.map_or_else(|| Ok(Vec::new()), |list| expand(&list)).map_err(|why| why.to_string())?;
        if nodes.is_empty() {
            Ok(Words::default())
        } else {
            load_words(config, &Asked { nodes: &nodes, ..asked }, left())
        }
    });
    let words = words.unwrap_or_else(|why| {
        tracing::warn!(job = hook.job.id, "unknown why attempt {last} ended: {why}");
        Words::default()
    });
    if let Some(untold) = words.could_not_tell() {
        tracing::warn!(job = hook.job.id, "why attempt {last} ended: {untold}");
    }
    let line = |word: &NodeWord| {
        let when = if word.refused { "before it started" } else { "while it ran" };
        let cause = word.cause.as_ref()?;
        Some(format!("railgate: attempt {last} left node {}, which failed {when}: {cause}", word.node))
    };
    words.nodes.iter().filter_map(line).take(MOST_NOTICES).collect()
}

fn fault(report: &mut NodeReport, what: String) {
    tracing::error!(job = report.job.id, "{what}");
    report.faults.push(what);
}
