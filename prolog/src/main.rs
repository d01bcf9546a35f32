//! `railgate-prolog`: slurmd runs it as root on each node of a job, before the job's first process.
//!
//! On a fit node the prolog runs the checks, writes a few small files, and sends nothing to slurmctld. An unfit node
//! is drained with railgate's reason first; then the prolog fails, so that Slurm moves the job. The order matters:
//! slurmctld sets its own reason "Prolog error" only on a node that is not draining yet. An internal failure of
//! railgate lets the job run.

mod handed_over;
mod move_on;
mod prepare;
mod refuse;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use railgate_model::{Allocation, Phase};
use railgate_node_report::{GateRun, NodeReport, Options};
use railgate_runner::{Hook, Purpose, check_node, drain, guarded, now, record, start_sampler};
use railgate_slurm::{Client, DrainOutcome, GateLevel};
use railgate_store::store_start;

/// Deadline of all queries to slurmctld after the drain together. Beyond PrologEpilogTimeout Slurm would kill the
/// prolog and drain the node itself, even if the breaker has just forbidden that.
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    if let Some(code) = railgate_probe::dispatch(&railgate_runner::tasks()) {
        return code;
    }
    guarded("prolog", || match Hook::enter("prolog") {
        Some(hook) => run(&hook),
        None => ExitCode::SUCCESS,
    })
}

fn run(hook: &Hook) -> ExitCode {
    #[cfg(feature = "fault-injection")]
    assert!(
        hook.env.get(std::ffi::OsStr::new("SLURM_JOB_COMMENT")).is_none_or(|said| said != "panic"),
        "injected"
    );
    let start = now();
    let job = &hook.job;
    let mut report = NodeReport::new(&hook.cluster, &hook.node, job.clone(), job.restarts, start);
    report.options = Options {
        profile: hook.granted.profile.clone(),
        gate: hook.granted.gate.to_string(),
        requeue: hook.granted.requeue.to_string(),
        hang: hook.granted.hang.map(|choice| choice.to_string()),
    };
    say_that_it_begins(hook, &report);
    let judged = hook.granted.gate != GateLevel::Off;
    let purpose = Purpose {
        job: Some(job),
        everything: job.allocation != Allocation::NoGpus,
        full: judged && hook.granted.gate == GateLevel::Full,
        may_take_asked: judged,
        ..Purpose::whole_node(Phase::Prolog)
    };
    let check_run = check_node(&hook.config, &hook.places, &hook.node, &purpose);
    report.boot_id.clone_from(&check_run.snapshot.boot_id);
    report.faults.extend(check_run.profile_problem.as_ref().map(ToString::to_string));
    if judged {
        report.prolog = Some(GateRun::new(&check_run.snapshot, check_run.verdict.clone(), check_run.took_ms));
        check_run.log(Some(job));
    }
    let run = prepare::run_directory(hook, &check_run, start, &mut report);
    let mut code = ExitCode::SUCCESS;
    if judged && let Some(outcome) = drain(&hook.config, &hook.places, &hook.env, &check_run, &[job.id]) {
        report.acts.push(record(&outcome, Phase::Prolog));
        let client = Client::new(&hook.config.slurm, &hook.env).until(Instant::now() + PATIENCE);
        if refuse::must_not_start(hook, &client, &outcome, &check_run.verdict, &mut report) {
            let answers = !matches!(outcome, DrainOutcome::Pending(_));
            if !(answers && move_on::ask(hook, &client)) {
                code = ExitCode::FAILURE;
            }
        }
    }
    if let Some(run) = run {
        let published = prepare::publish(hook, &run, &report);
        let wanted = hook.config.stats.sampler && job.allocation != Allocation::NoGpus;
        if published
            && wanted
            && !report.refused()
            && let Err(why) = start_sampler(hook, &run)
        {
            tracing::warn!(job = job.id, "no sampler: {why}");
        }
    }
    code
}

/// Writes a first part to the report directory, so that a node that fails during the job is known as one of its
/// nodes. Runs in parallel with the checks and is not waited for: a slow file server costs the job nothing, and the
/// thread's child ends with this process.
fn say_that_it_begins(hook: &Hook, report: &NodeReport) {
    let (config, report) = (hook.config.report.clone(), report.clone());
    let started = std::thread::Builder::new().spawn(move || {
        if let Err(why) = store_start(&config, &report) {
            tracing::info!(job = report.job.id, "report: {why}");
        }
    });
    if let Err(why) = started {
        tracing::info!("report: no thread: {why}");
    }
}
