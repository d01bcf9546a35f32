use std::time::{Duration, Instant};

use railgate_gate::Mode;
use railgate_model::{Action, Phase, Severity};
use railgate_slurm::{Acting, Client, DrainDesk, DrainOutcome, Env, Reason};
use railgate_stats::store::{Retention, sweep};
use railgate_stats::{Act, ActKind};

use crate::look::{Look, Purpose, look, settle};
use crate::metrics::{Held, publish};
use crate::sweep::stale_runs;
use crate::switches::{self, Switch};
use crate::{Config, Episode, History, Past, Places, now};

/// Whether anything may be changed on this node now. The reason is in the words of whoever reads the log.
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

/// Where drains of this node are made.
pub fn desk(config: &Config, places: &Places, env: &Env) -> DrainDesk {
    let client = Client::new(&config.slurm, env);
    DrainDesk::new(client, config.breaker.clone(), &places.run, &places.state, acting(config, places))
}

/// A prolog or epilog that has nothing to drain itself spends no more time on another program's drain.
const UNFINISHED: Duration = Duration::from_secs(15);

/// Drains the node that a verdict calls for, with the jobs that the reason is evidence for. `None` where the
/// verdict calls for nothing. Finishes a drain that another program of this node began and was killed in.
pub fn drain(config: &Config, places: &Places, env: &Env, look: &Look, jobs: &[u32]) -> Option<DrainOutcome> {
    let desk = desk(config, places, env);
    if look.verdict.action != Action::Drain {
        let node = &look.snapshot.node;
        let unfinished = desk.until(Instant::now() + UNFINISHED);
        if let Some(outcome) = unfinished.settle_unfinished(node, &look.snapshot.boot_id) {
            tracing::warn!("{node}: a drain that was not finished: {outcome}");
        }
        no_longer_let_through(&unfinished, places, node, false);
        return None;
    }
    drain_at(desk, config, places, look, jobs)
}

fn drain_at(
    desk: DrainDesk,
    config: &Config,
    places: &Places,
    look: &Look,
    jobs: &[u32],
) -> Option<DrainOutcome> {
    if look.verdict.action != Action::Drain {
        return None;
    }
    let node = &look.snapshot.node;
    let cause = look.verdict.cause()?;
    let reason = Reason::new(cause, look.verdict.phase, jobs);
    let desk = desk.of_look(look.snapshot.taken);
    let outcome = desk.drain(node, &look.snapshot.boot_id, &reason);
    match &outcome {
        DrainOutcome::NotActing(why) => tracing::warn!("would drain {node}: {reason} ({why})"),
        // These say the reason themselves.
        DrainOutcome::Drained { .. } | DrainOutcome::AlreadyOurs { .. } => {
            tracing::warn!("{node}: {outcome}")
        }
        other => tracing::warn!("{node}: {other} ({reason})"),
    }
    if !config.source.speaks_for_the_node() {
        return Some(outcome);
    }
    Past::change(places, |past| past.acted(cause, &outcome));
    // What was acted on must not be found again once somebody has resumed the node. In report mode saying it
    // is all there is to do: said at every look until the reboot, it would drain old faults on the day the
    // site begins to enforce. A pause is another matter: afterwards the node must be drained.
    let only_told = config.gate.mode == Mode::Report && matches!(outcome, DrainOutcome::NotActing(_));
    if outcome.carries_evidence() || only_told {
        settle(places, &look.snapshot);
    }
    if outcome.carries_evidence() {
        // Once it is repaired and back in service, a first sight is a first one again.
        History::change(places, |history| history.memory.strikes.clear());
    }
    publish(config, places, look, &Held::Outcome(&outcome));
    Some(outcome)
}

/// Takes back what the node's comment says in Slurm, once the fault that it tells of no longer makes the node unfit.
fn no_longer_let_through(desk: &DrainDesk, places: &Places, node: &str, ask: bool) {
    let Some(note) = desk.let_through(node, ask) else { return };
    // A card that answers again is still found, as a warning.
    let still = |episode: &Episode| {
        let fails = episode.open && !episode.shadow && episode.finding.severity == Severity::Fail;
        fails && note.tells_of(&episode.finding)
    };
    if !Past::load(places).episodes.iter().any(still) {
        desk.take_back_let_through(node);
    }
}

/// A drain as the report tells it.
pub fn record(outcome: &DrainOutcome, by: Phase) -> Act {
    let (what, detail) = match outcome {
        DrainOutcome::Drained { reason } | DrainOutcome::AlreadyOurs { reason, .. } => {
            (ActKind::Drained, reason.clone())
        }
        DrainOutcome::Foreign { reason } => (ActKind::ForeignReason, reason.clone()),
        DrainOutcome::BreakerOpen { scope, held, limit } => {
            let detail = format!("nodes that railgate holds in the {scope}: {held} (at most {limit})");
            (ActKind::Breaker, detail)
        }
        DrainOutcome::Pending(why) => (ActKind::Pending, why.clone()),
        DrainOutcome::NotActing(why) => (ActKind::WouldDrain, why.clone()),
    };
    Act { what, time: now(), by: by.to_string(), detail }
}

/// What a periodic check saw and did.
#[derive(Debug)]
pub struct Periodic {
    /// The look.
    pub look: Look,
    /// A reason that had waited for slurmctld, and what became of it.
    pub settled: Option<DrainOutcome>,
    /// What became of the drain that the verdict calls for.
    pub drained: Option<DrainOutcome>,
}

/// slurmd kills a HealthCheckProgram with SIGKILL after 60 s. Looking, lock waits, Slurm's commands and the count after a
/// drain end by then; what is written afterwards waits for locks for 6 s at most. The rest is for `--then`.
const PERIODIC: Duration = Duration::from_secs(45);

/// The look must leave time for a drain. Not much less, though:
/// without persistence a driver takes its time, and two silences in a row are a fault.
const PERIODIC_LOOK: Duration = Duration::from_secs(25);

/// One periodic check: brings a pending reason to its place, looks, and does what the verdict says.
pub fn periodic(config: &Config, places: &Places, env: &Env, node: &str, phase: Phase) -> Periodic {
    let until = Instant::now() + PERIODIC;
    let mut config = config.clone();
    config.gate.deadline = config.gate.deadline.min(PERIODIC_LOOK);
    let config = &config;
    let look = look(config, places, node, &Purpose::whole_node(phase));
    look.log(None);
    let desk = desk(config, places, env).until(until);
    let settled = desk.settle_pending(node, &look.snapshot.boot_id);
    let drained = drain_at(desk.clone(), config, places, &look, &[]);
    if drained.is_none() {
        if config.source.speaks_for_the_node() {
            no_longer_let_through(&desk, places, node, true);
        }
        publish(config, places, &look, &Held::Ask(env, until));
    }
    // Housekeeping has time at the next check.
    if until.saturating_duration_since(Instant::now()) >= SWEEP {
        sweep_daily(config, places);
    }
    stale_runs(config, places, env, node, until);
    Periodic { look, settled, drained }
}

/// Of the minute that Slurm gives a periodic check.
const SWEEP: Duration = Duration::from_secs(5);

/// Once a day: reports of this machine that are older than the site keeps them.
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
