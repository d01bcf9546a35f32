//! `railgate-epilog`: slurmd runs it as root on each node of a job, after the job's last process.
//!
//! Checks the node again, compares with the prolog's readings, drains the node if it broke, writes the node's part of
//! the job's report, and removes the run's directory. It does not decide whether the job is requeued:
//! `railgate-epilog-ctld` does, from the drain reasons and the reports.

mod failure_line;
mod job_log;
mod leftovers;
mod sampled;
mod suspicion;
mod tasks;
mod whole_node;

use std::process::ExitCode;
use std::time::Instant;

use railgate_model::{
    Allocation, Class, Finding, Job, KernelMark, PREFLIGHT_CHECK, Phase, Severity, Snapshot,
};
use railgate_node_report::comm::refer;
use railgate_node_report::{
    EvidenceItem, Exit, GateRun, NodeReport, RunGpus, Window, evidence, gpu_uses, kernel_events, port_uses,
};
use railgate_rundir::Run;
use railgate_runner::{
    Hook, Purpose, acting, application, ask_full_check, check_node, communication, drain, forget_job,
    guarded, launched, now, preflight_mark, record,
};
use railgate_slurm::{Acting, ExitCodes, GateLevel};
use railgate_store::{bring_stacks, store};

fn main() -> ExitCode {
    let own = [railgate_runner::tasks(), vec![tasks::TASK, leftovers::TASK, job_log::TASK]].concat();
    if let Some(code) = railgate_probe::dispatch(&own) {
        return code;
    }
    guarded("epilog", || match Hook::enter("epilog").map(|hook| run(&hook)) {
        Some(Told::NodeFailed) => ExitCode::from(1),
        Some(Told::Nothing) | None => ExitCode::SUCCESS,
    })
}

/// What the exit code tells Slurm.
enum Told {
    /// Nothing: Slurm would drain the node for any other exit code than 0.
    Nothing,
    /// The node failed under the job, which Slurm needs to know to restart a job of `--requeue=expedite`. Only of a node
    /// that railgate has drained: Slurm keeps its reason.
    NodeFailed,
}

/// Data that the prolog left.
struct Before {
    run: Run,
    report: Option<NodeReport>,
    snapshot: Option<Snapshot>,
}

fn run(hook: &Hook) -> Told {
    let job = &hook.job;
    let end = now();
    let sampled = sampled::end(hook);
    forget_job(&hook.config, job.id);
    let before = before(hook);
    let mut report = match before.as_ref().and_then(|before| before.report.clone()) {
        Some(report) => report,
        None => {
            let mut report = NodeReport::new(&hook.cluster, &hook.node, job.clone(), job.restarts, end);
            report.faults.push("railgate's prolog did not run here for this attempt: the node was not checked before it, and there is no baseline to compare with".to_owned());
            report
        }
    };
    report.end = Some(end);
    report.exit = exit(hook, &mut report);
    let mut told = Told::Nothing;
    if !report.refused() && judge(hook, before.as_ref(), &mut report) && hook.config.requeue.expedite {
        told = Told::NodeFailed;
    }
    if let Some(before) = &before
        && before.run.gate == GateLevel::Preflight.as_str()
        && !report.refused()
    {
        preflight(hook, &mut report);
    }
    if before.is_some() {
        report.steps = tasks::steps(hook);
        match communication(&hook.places.run, job.id, job.uid) {
            Ok(found) => {
                report.communication = found;
                report.communication.iter_mut().for_each(|told| refer(told, &hook.config.stats.references));
            }
            Err(why) => {
                tracing::warn!(job = job.id, "the NCCL counters of the job's processes are unknown: {why}")
            }
        }
        report.faults.extend(suspicion::suspicion(&report));
        report.application = application(&hook.places.run, job.id, job.uid);
        report.launched = launched(&hook.places.run, job.id, job.uid);
    }
    let outputs = sampled.outputs.clone();
    sampled::compare(hook, sampled, &mut report);
    let stored = store(&hook.config.report, &report);
    for problem in &stored.problems {
        tracing::warn!(job = job.id, "report: {problem}");
    }
    if let Err(why) = bring_stacks(&hook.config.report, &report) {
        tracing::warn!(job = job.id, "stacks: {why}");
    }
    job_log::find(hook, &report, outputs.as_ref());
    failure_line::say(hook, &report.for_reader());
    let runs = hook.runs().job(job.id);
    if let Err(why) = runs.remove() {
        tracing::warn!(job = job.id, "{}: {why}", runs.path().display());
    }
    told
}

fn before(hook: &Hook) -> Option<Before> {
    let job = hook.job.id;
    let read = hook.runs().job(job).current(job).map_err(|why| why.to_string()).and_then(|dir| {
        let run: Run = dir.read_json("run.json").map_err(|why| format!("run.json: {why}"))?;
        let optional = |name: &str, why: std::io::Error| tracing::warn!(job, "{name}: {why}");
        let report = dir.read_json("report.json").map_err(|why| optional("report.json", why)).ok();
        let snapshot = dir.read_json("before.json").map_err(|why| optional("before.json", why)).ok();
        Ok(Before { run, report, snapshot })
    });
    read.map_err(|why| tracing::warn!(job, "{why}")).ok()
}

/// Returns the job with the GPUs that it held. After a failover slurmctld reports no GPUs until its nodes have
/// registered (22.05: four seconds); the list that the prolog received stays valid while the job runs.
fn with_gpus(mut job: Job, told_before: &Job) -> Job {
    if !matches!(job.allocation, Allocation::Gpus(_)) {
        job.allocation.clone_from(&told_before.allocation);
    }
    job
}

/// Checks the node again, and drains it if it is unfit. Returns whether it is drained for a fault that may have ended the
/// job.
fn judge(hook: &Hook, before: Option<&Before>, report: &mut NodeReport) -> bool {
    let job = &with_gpus(hook.job.clone(), &report.job);
    let baseline = before.and_then(|before| before.snapshot.as_ref());
    let since = before.and_then(|before| {
        let seq = before.run.kernel_seq?;
        Some(KernelMark { boot_id: before.run.boot_id.clone(), seq })
    });
    let purpose = Purpose {
        job: Some(job),
        before: baseline,
        kernel_since: since.as_ref(),
        everything: job.allocation != Allocation::NoGpus,
        // It contains out-of-memory kills, also if the script continued afterwards.
        kernel_log: report.exit.is_none_or(|exit| exit.status != 0),
        ..Purpose::whole_node(Phase::Epilog)
    };
    let begun = Instant::now();
    let mut seen = check_node(&hook.config, &hook.places, &hook.node, &purpose);
    let gpus_of = |seen: &railgate_runner::CheckRun| {
        RunGpus::resolve(&job.allocation, baseline, &seen.snapshot, &seen.known_gpus)
    };
    for _ in 0..leftovers::TRIES {
        let goes_on = begun.elapsed() < leftovers::LAST_CHECK
            && leftovers::found(&seen.verdict)
            && leftovers::end(&seen.snapshot, job, gpus_of(&seen).after());
        if !goes_on {
            break;
        }
        seen = check_node(&hook.config, &hook.places, &hook.node, &purpose);
    }
    let held = gpus_of(&seen);
    report.boot_id.clone_from(&seen.snapshot.boot_id);
    report.kernel = kernel_events(&seen.snapshot, report.start, job, &hook.config.stats);
    report.evidence =
        evidence(&seen.verdict, baseline, &seen.snapshot, &report.kernel, &held, report.rail_map.as_ref());
    whole_node::claim(hook, job, &mut report.evidence);
    report.window = baseline.map(|before| Window { start: before.taken, end: seen.snapshot.taken });
    if job.allocation != Allocation::NoGpus {
        report.gpus = gpu_uses(baseline, &seen.snapshot, &held);
        report.ports = port_uses(baseline, &seen.snapshot, report.rail_map.as_ref());
    }
    seen.log(Some(job));
    // The reason names this job only if the fault may have ended it.
    let own = report.evidence.iter().any(|item| item.own == Some(true));
    let jobs = if own { vec![job.id] } else { Vec::new() };
    let outcome = drain(&hook.config, &hook.places, &hook.env, &seen, &jobs);
    report.acts.extend(outcome.as_ref().map(|outcome| record(outcome, Phase::Epilog)));
    report.epilog = Some(GateRun::new(&seen.snapshot, seen.verdict, seen.took_ms));
    own && outcome.is_some_and(|outcome| outcome.carries_evidence())
}

/// Adds what the job's own preflight accuses this node of. Only the job's tasks have tested it, so it can move this job, and it is
/// not judged: it asks for a full check by root.
fn preflight(hook: &Hook, report: &mut NodeReport) {
    let job = &hook.job;
    let Some(what) = preflight_mark(&hook.places.run, job.id, job.uid) else { return };
    tracing::info!(job = job.id, "the job's preflight names this node: {what}");
    let finding = Finding {
        check: PREFLIGHT_CHECK.to_owned(),
        part: String::new(),
        severity: Severity::Fail,
        class: Class::Node,
        what,
        fix: "railgate check --full".to_owned(),
        evidence: Vec::new(),
    };
    report.evidence.push(EvidenceItem { finding, time: None, device: String::new(), own: Some(true) });
    if asks_for_full_check(hook, report.exit) {
        ask_full_check(&hook.places);
    }
}

/// Whether the node's next job gets a full check: only after an attempt that ended as one whose script the preflight kept from starting,
/// and only where railgate acts and a user may have such a check at all, since it delays another job.
fn asks_for_full_check(hook: &Hook, exit: Option<Exit>) -> bool {
    const NOT_STARTED: i32 = 1 << 8;
    let slurm = &hook.config.slurm;
    let allowed = slurm.default_gate == GateLevel::Full || slurm.allow_gate.contains(&GateLevel::Full);
    allowed
        && exit.is_some_and(|exit| exit.status == NOT_STARTED)
        && matches!(acting(&hook.config, &hook.places), Acting::Allowed)
}

fn exit(hook: &Hook, report: &mut NodeReport) -> Option<Exit> {
    match ExitCodes::from_env(&hook.env) {
        Ok(codes) => codes.job.map(|status| Exit {
            status: status.cast_signed(),
            derived: codes.derived.map(u32::cast_signed),
        }),
        Err(why) => {
            report.faults.push(why.to_string());
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::GpuId;

    use super::*;

    #[test]
    fn the_prologs_gpus_are_used_if_the_epilog_has_none() {
        let job = |allocation| Job {
            id: 7,
            uid: 1000,
            gid: 1000,
            user: "alice".to_owned(),
            restarts: 0,
            nodelist: "gn1".to_owned(),
            het_leader: None,
            allocation,
            partition: "main".to_owned(),
        };
        let (none, two) = (job(Allocation::NoGpus), job(Allocation::Gpus(vec![GpuId::Index(2)])));
        let unreadable = job(Allocation::Unreadable("gpu:8".to_owned()));
        assert_eq!(with_gpus(none.clone(), &two), two);
        assert_eq!(with_gpus(unreadable, &two), two);
        assert_eq!(with_gpus(none.clone(), &none), none);
        assert_eq!(with_gpus(two.clone(), &none), two);
    }
}
