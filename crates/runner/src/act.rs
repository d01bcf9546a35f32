use std::time::{Duration, Instant};

use railgate_gate::Mode;
use railgate_model::{Action, Phase, Severity};
use railgate_node_report::{Act, ActKind};
use railgate_slurm::{Acting, Client, DrainDesk, DrainOutcome, Env, Reason};
use railgate_store::{Retention, sweep};

use crate::check_run::{CheckRun, Purpose, check_node, settle};
use crate::metrics::{Held, publish};
use crate::sweep::stale_runs;
use crate::switches::{self, Switch};
use crate::{Config, Episode, FindingHistory, History, Loaded, Places, hang_end, node_name, now};

/// The places, the configuration and a client of Slurm, read anew in a child.
pub(crate) fn loaded() -> Result<(Places, Config, Client), String> {
    let places = Places::default();
    let config = Loaded::read(&places.config(), false, &node_name()).map_err(|why| why.in_one_line())?.config;
    let env: Env = std::env::vars_os().collect();
    let client = Client::new(&config.slurm, &env);
    Ok((places, config, client))
}

/// Whether railgate may change anything on this node now. A refusal gives the reason for the log.
pub fn acting(config: &Config, places: &Places) -> Acting {
    match switches::state(places) {
        Switch::Disabled => Acting::Forbidden(format!("{}/disable exists", places.etc.display())),
        Switch::Paused(pause) => {
            let why = if pause.why.is_empty() { String::new() } else { format!(": {}", pause.why) };
            Acting::Forbidden(format!("paused by {}{why}", pause.by))
        }
        Switch::On if config.gate.mode == Mode::Report => {
            Acting::Forbidden("[gate] mode = \"report\"".to_owned())
        }
        Switch::On if !config.source.speaks_for_the_node() => {
            Acting::Forbidden("[source] names other roots than the system's".to_owned())
        }
        Switch::On => Acting::Allowed,
    }
}

/// The drain desk of this node: Slurm client, breaker limits, directories, and whether anything may be changed.
pub fn desk(config: &Config, places: &Places, env: &Env) -> DrainDesk {
    let client = Client::new(&config.slurm, env);
    DrainDesk::new(client, config.breaker.clone(), &places.run, &places.state, acting(config, places))
}

/// Deadline for finishing a drain that another program began. A prolog or epilog without a drain of its own spends no
/// more than this.
const UNFINISHED: Duration = Duration::from_secs(15);

/// Drains the node if the verdict requires it, and names `jobs` in the reason as the jobs affected. Returns `None` if
/// the verdict requires no drain. Also finishes a drain that another program of this node began before it was killed.
pub fn drain(
    config: &Config,
    places: &Places,
    env: &Env,
    check_run: &CheckRun,
    jobs: &[u32],
) -> Option<DrainOutcome> {
    let desk = desk(config, places, env);
    if check_run.verdict.action != Action::Drain {
        let node = &check_run.snapshot.node;
        let unfinished = desk.until(Instant::now() + UNFINISHED);
        if let Some(outcome) = unfinished.settle_unfinished(node, &check_run.snapshot.boot_id) {
            tracing::warn!("{node}: a drain that was not finished: {outcome}");
        }
        no_longer_let_through(&unfinished, places, node, false);
        return None;
    }
    drain_at(desk, config, places, check_run, jobs)
}

pub(crate) fn drain_at(
    desk: DrainDesk,
    config: &Config,
    places: &Places,
    check_run: &CheckRun,
    jobs: &[u32],
) -> Option<DrainOutcome> {
    if check_run.verdict.action != Action::Drain {
        return None;
    }
    let node = &check_run.snapshot.node;
    let cause = check_run.verdict.cause()?;
    let reason = Reason::new(cause, check_run.verdict.phase, jobs);
    let desk = desk.of_check_run(check_run.snapshot.taken);
    let outcome = desk.drain(node, &check_run.snapshot.boot_id, &reason);
    match &outcome {
        DrainOutcome::NotActing(why) => tracing::warn!("would drain {node}: {reason} ({why})"),
        // These log the reason themselves.
        DrainOutcome::Drained { .. } | DrainOutcome::AlreadyOurs { .. } => {
            tracing::warn!("{node}: {outcome}")
        }
        other => tracing::warn!("{node}: {other} ({reason})"),
    }
    if !config.source.speaks_for_the_node() {
        return Some(outcome);
    }
    FindingHistory::change(places, |past| past.acted(cause, &outcome));
    // A fault that led to a drain must not be found again once an admin has resumed the node. In report mode the log
    // line is the whole action: without settling it here it would repeat at every check run until the reboot, and
    // drain for old faults on the day the site begins to enforce. After a pause, however, the node must still be
    // drained.
    let only_told = config.gate.mode == Mode::Report && matches!(outcome, DrainOutcome::NotActing(_));
    if outcome.carries_evidence() || only_told {
        settle(places, &check_run.snapshot);
    }
    if outcome.carries_evidence() {
        // Once the node is repaired and back in service, counting of strikes starts from zero.
        History::change(places, |history| history.memory.strikes.clear());
    }
    publish(config, places, check_run, &Held::Outcome(&outcome));
    Some(outcome)
}

/// Removes railgate's comment from the node in Slurm, once the fault that it names no longer makes the node unfit.
fn no_longer_let_through(desk: &DrainDesk, places: &Places, node: &str, ask: bool) {
    let Some(note) = desk.let_through(node, ask) else { return };
    // A GPU that answers again is still found, as a warning.
    let still = |episode: &Episode| {
        let fails = episode.open && !episode.shadow && episode.finding.severity == Severity::Fail;
        fails && note.matches(&episode.finding)
    };
    if !FindingHistory::load(places).episodes.iter().any(still) {
        desk.take_back_let_through(node);
    }
}

/// Converts the outcome of a drain to the entry of the node's report.
pub fn record(outcome: &DrainOutcome, by: Phase) -> Act {
    let (what, detail) = match outcome {
        DrainOutcome::Drained { reason } | DrainOutcome::AlreadyOurs { reason, .. } => {
            (ActKind::Drained, reason.clone())
        }
        DrainOutcome::Foreign { reason } => (ActKind::ForeignReason, reason.clone()),
        DrainOutcome::BreakerOpen { scope, held, limit } => {
            let detail = format!("nodes drained by railgate in the {scope}: {held} (at most {limit})");
            (ActKind::Breaker, detail)
        }
        DrainOutcome::Pending(why) => (ActKind::Pending, why.clone()),
        DrainOutcome::NotActing(why) => (ActKind::WouldDrain, why.clone()),
    };
    Act { what, time: now(), by: by.to_string(), detail }
}

/// Result of a periodic check.
#[derive(Debug)]
pub struct Periodic {
    /// The check run.
    pub check_run: CheckRun,
    /// Outcome of a pending drain reason from an earlier run (slurmctld did not answer then), if there was one.
    pub settled: Option<DrainOutcome>,
    /// Outcome of the drain that the verdict requires; `None` if it requires none.
    pub drained: Option<DrainOutcome>,
}

/// slurmd kills a HealthCheckProgram with SIGKILL after 60 s. The check run, lock waits, Slurm's commands and the
/// count after a drain end within this time; later writes wait at most 6 s for locks. The rest is for `--then`.
const PERIODIC: Duration = Duration::from_secs(45);

/// Deadline of the check run itself, which must leave time for a drain. It cannot be much shorter: without
/// persistence mode the driver is slow to start, and two unanswered probes in a row are a fault.
const PERIODIC_CHECK: Duration = Duration::from_secs(25);

/// One periodic check: sets a pending drain reason, runs the checks, and acts on the verdict.
pub fn periodic(config: &Config, places: &Places, env: &Env, node: &str, phase: Phase) -> Periodic {
    let until = Instant::now() + PERIODIC;
    let mut config = config.clone();
    config.gate.deadline = config.gate.deadline.min(PERIODIC_CHECK);
    let config = &config;
    let check_run = check_node(config, places, node, &Purpose::whole_node(phase));
    check_run.log(None);
    let desk = desk(config, places, env).until(until);
    let settled = desk.settle_pending(node, &check_run.snapshot.boot_id);
    let drained = drain_at(desk.clone(), config, places, &check_run, &[]);
    if drained.is_none() {
        if config.source.speaks_for_the_node() {
            no_longer_let_through(&desk, places, node, true);
        }
        publish(config, places, &check_run, &Held::Ask(env, until));
    }
    // Housekeeping can wait for the next check.
    if until.saturating_duration_since(Instant::now()) >= SWEEP {
        sweep_daily(config, places);
    }
    stale_runs(config, places, env, node, until);
    hang_end::forget_old(config, places, env, node, until);
    Periodic { check_run, settled, drained }
}

/// Least time that must be left for housekeeping.
const SWEEP: Duration = Duration::from_secs(5);

/// Once a day, removes reports of this machine that are older than the configured retention.
fn sweep_daily(config: &Config, places: &Places) {
    const DAY: u64 = 24 * 3600;
    let now_ms = now();
    let now = now_ms / 1000;
    if now < History::load(places).swept.saturating_add(DAY) {
        return;
    }
    History::change(places, |history| history.swept = now);
    let retention = Retention::local(&config.report);
    let swept = sweep(&config.report.local_dir, retention, now_ms, SWEEP);
    for problem in &swept.problems {
        tracing::warn!("old reports: {problem}");
    }
}
