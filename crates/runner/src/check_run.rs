use std::time::{Duration, Instant};

use railgate_gate::{Seen, covers_whole_node, devices_are_well, follow_ups, judge, plan};
use railgate_model::{
    Class, Finding, Fitness, GpuInventory, Job, KernelMark, Part, PartName, Phase, Plan, Profile,
    ProfileError, Severity, Snapshot, Verdict, XidEvent,
};
use railgate_probe::{Request, follow_up, live};

use railgate_topology_check::judge_topology_file;

use railgate_rundir::Root;
use railgate_slurm::{Client, Env};

use crate::asked_check::{full_check_done, take_full_check};
use crate::history::History;
use crate::{Config, FindingHistory, Places, SAMPLER_XIDS};

/// One check run of this node: readings and verdict.
#[derive(Debug)]
pub struct CheckRun {
    /// The readings.
    pub snapshot: Snapshot,
    /// The gate's verdict on them.
    pub verdict: Verdict,
    /// The machine profile that was used.
    pub profile: Profile,
    /// Why `generic` was used although the site names another profile.
    pub profile_problem: Option<ProfileError>,
    /// The GPUs of this node when it was last found fit before this run.
    pub known_gpus: GpuInventory,
    /// Duration of reading and judging, milliseconds.
    pub took_ms: f64,
}

impl CheckRun {
    /// Logs one line for the verdict, and one more for each internal fault of railgate.
    pub fn log(&self, job: Option<&Job>) {
        let Verdict { phase, fitness, findings, .. } = &self.verdict;
        let cause = self.verdict.cause();
        let cause = cause.map(|cause| format!(", {}: {}", cause.subject(), cause.what)).unwrap_or_default();
        let (id, restarts) = (job.map(|job| job.id), job.map(|job| job.restarts));
        let took_ms = self.took_ms.round();
        match fitness {
            Fitness::Fit if job.is_none() => tracing::debug!(took_ms, "{phase}: {fitness}"),
            Fitness::Fit | Fitness::Degraded => {
                tracing::info!(job = id, restarts, took_ms, "{phase}: {fitness}{cause}");
            }
            Fitness::Unknown | Fitness::Unfit => {
                tracing::warn!(job = id, restarts, took_ms, "{phase}: {fitness}{cause}");
            }
        }
        let ours = |finding: &&Finding| finding.class == Class::Internal && finding.severity > Severity::Note;
        for ours in findings.iter().filter(ours) {
            tracing::error!(job = id, "{phase}: {}: {}", ours.subject(), ours.what);
        }
    }
}

/// Parameters of a check run.
#[derive(Clone, Copy, Debug)]
pub struct Purpose<'a> {
    /// The phase.
    pub phase: Phase,
    /// The job whose devices are judged; `None` judges the whole node.
    pub job: Option<&'a Job>,
    /// The job's baseline from its prolog, if there is one.
    pub before: Option<&'a Snapshot>,
    /// Where reading of the kernel log starts; `None`: at the last settled mark.
    pub kernel_since: Option<&'a KernelMark>,
    /// Read all parts, also those that no check needs: the job's baseline and rail map need them.
    pub everything: bool,
    /// Read the kernel log even if no check needs it: from `kernel_since`, else from its beginning.
    pub kernel_log: bool,
    /// Also exercise the hardware (the self-tests of GPUs and RDMA devices), if the whole node is checked.
    pub full: bool,
    /// Also do so if a job's preflight asked for it and the last time was more than an hour ago.
    pub may_take_asked: bool,
    /// Save no state: the result is only displayed.
    pub trial: bool,
}

impl Purpose<'_> {
    /// A check of the whole node with the readings that this phase's checks need.
    pub fn whole_node(phase: Phase) -> Self {
        Purpose {
            phase,
            job: None,
            before: None,
            kernel_since: None,
            everything: false,
            kernel_log: false,
            full: false,
            may_take_asked: false,
            trial: false,
        }
    }
}

/// Reads and judges this node within `[gate] deadline`, and saves the state that the next check run needs.
pub fn check_node(config: &Config, places: &Places, node: &str, purpose: &Purpose<'_>) -> CheckRun {
    let began = Instant::now();
    let history = History::load(places);
    let mut plan = plan(&config.gate, purpose.phase, purpose.job);
    if purpose.everything {
        plan.parts = Plan::everything().parts;
    }
    let unjudged = purpose.kernel_log && !plan.parts.contains(&PartName::KernelLog);
    if unjudged {
        plan.parts.push(PartName::KernelLog);
    }
    // Records before the settled mark are old for the checks, but may be new to the job.
    let since = purpose.kernel_since.or(history.settled.as_ref().filter(|_| !unjudged));
    let mut snapshot = live(
        &config.source,
        &Request {
            node: node.to_owned(),
            plan,
            kernel_since: since.cloned(),
            topology_file: config.rails.topology_file_of_others(),
            deadline: config.gate.deadline,
        },
    );
    let (profile, profile_problem) = match profile_of(config, places, &snapshot) {
        Ok(profile) => (profile, None),
        Err(why) => {
            tracing::warn!("{why}; checking as a machine of unknown type");
            (Profile::generic(), Some(why))
        }
    };
    let (profile, profile_problem) = match without_gpus(config, places, &profile, &mut snapshot, began) {
        Some(cpu) => (cpu, None),
        None => (profile, profile_problem),
    };
    judge_topology_file(&config.rails, Some(&profile), &mut snapshot);
    snapshot.nvml_xids = sampler_xids(places, purpose, &snapshot);
    let seen = Seen {
        phase: purpose.phase,
        now: &snapshot,
        before: purpose.before,
        job: purpose.job,
        profile: Some(&profile),
        memory: &history.memory,
    };
    let whole = covers_whole_node(&seen);
    // A job that does not hold the whole node cannot run it, and leaves it to another one.
    let full = purpose.full || (purpose.may_take_asked && whole && take_full_check(places));
    let readings = follow_ups(&config.gate, &seen, full);
    let mut snapshot = snapshot.clone();
    follow_up(&config.source, &readings, began + config.gate.deadline, &mut snapshot);
    let seen = Seen { now: &snapshot, ..seen };
    let verdict = judge(&config.gate, &seen);
    let took_ms = began.elapsed().as_secs_f64() * 1000.0;
    let known_gpus = history.memory.inventory_in(&snapshot.boot_id);
    let check_run = CheckRun { snapshot, verdict, profile, profile_problem, known_gpus, took_ms };
    if config.source.speaks_for_the_node() && !purpose.trial {
        remember(config, places, purpose, &check_run, history.open, whole);
        if full && whole {
            full_check_done(places);
        }
    }
    check_run
}

/// Returns the CPU profile for a machine without GPUs: NVML does not answer, and either the site's profile has no
/// GPUs or Slurm offers none of this node. The GPU readings are then not expected. A GPU node whose driver is broken
/// still has GPUs in Slurm.
fn without_gpus(
    config: &Config,
    places: &Places,
    profile: &Profile,
    snapshot: &mut Snapshot,
    began: Instant,
) -> Option<Profile> {
    let Part::Failed { why, .. } = &snapshot.gpus else { return None };
    let cpu = if profile.gpus.count == Some(0) {
        profile.clone()
    } else {
        let until = began + config.gate.deadline;
        let env: Env = std::env::vars_os().collect();
        let client = Client::new(&config.slurm, &env).until(until.min(Instant::now() + PATIENCE));
        if client.node(&snapshot.node).ok()?.gpus != Some(false) {
            return None;
        }
        tracing::debug!("Slurm offers no GPUs of this node, so NVML is not needed: {why}");
        railgate_profiles::load("cpu", &places.profiles()).ok()?
    };
    snapshot.gpus = Part::Skipped;
    Some(cpu)
}

/// Longest wait for Slurm's answer; without it the GPUs are judged as unreadable.
const PATIENCE: Duration = Duration::from_secs(5);

/// Saves the state for the next check run and the finding history. `open`: an earlier finding may persist.
fn remember(
    config: &Config,
    places: &Places,
    purpose: &Purpose<'_>,
    check_run: &CheckRun,
    mut open: bool,
    whole: bool,
) {
    let told = |findings: &[Finding]| findings.iter().any(|finding| finding.severity > Severity::Note);
    if open || told(&check_run.verdict.findings) || told(&check_run.verdict.shadow) {
        let job = purpose.job.map(|job| job.id);
        open = FindingHistory::change(places, |past| past.note(&config.gate, check_run, job, whole));
    }
    let CheckRun { snapshot, verdict, .. } = check_run;
    History::change(places, |history| {
        history.begin(snapshot);
        history.open = open;
        history.memory = history.memory.after(snapshot, whole && devices_are_well(verdict));
        history.memory.strike(snapshot, verdict);
        // A check run for some GPUs settles nothing about the kernel messages of the others. Findings of warning
        // level have been reported by now and are settled too.
        if whole && matches!(verdict.fitness, Fitness::Fit | Fitness::Degraded) {
            history.settle(snapshot);
            history.memory.settle(snapshot, verdict);
        }
    });
}

/// Xids that the job's sampler received from NVML, used where the kernel log could not be read.
fn sampler_xids(places: &Places, purpose: &Purpose<'_>, snapshot: &Snapshot) -> Option<Vec<XidEvent>> {
    let job = purpose.job.filter(|_| snapshot.kernel_log.missing().is_some())?.id;
    Root::new(&places.run).job(job).current(job).ok()?.read_json(SAMPLER_XIDS).ok()
}

/// The configured machine profile; with `auto` the one that matches the GPU's name, or `generic`.
///
/// A GPU's name defines what one GPU can do, but not how many the machine has or how they are connected: a virtual
/// machine may have one of eight and no HCA. A profile chosen by name therefore sets no counts.
///
/// # Errors
/// The named profile does not exist or is invalid.
pub fn profile_of(config: &Config, places: &Places, snapshot: &Snapshot) -> Result<Profile, ProfileError> {
    let dirs = places.profiles();
    if config.profile != "auto" {
        return railgate_profiles::load(&config.profile, &dirs);
    }
    let name = snapshot.gpus.data().and_then(|gpus| gpus.gpus.iter().find_map(|gpu| gpu.name.known()));
    let matching = name.map(|name| railgate_profiles::matching(name, &dirs)).transpose()?.flatten();
    let mut profile = matching.unwrap_or_else(Profile::generic);
    profile.gpus.count = None;
    profile.gpus.nvlinks_up = None;
    profile.fabric.hcas = None;
    Ok(profile)
}

/// Records that everything up to this check run has been acted on: the next one starts after it.
pub fn settle(places: &Places, snapshot: &Snapshot) {
    History::keep_settled(places, snapshot);
}
