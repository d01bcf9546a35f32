use std::time::{Duration, Instant};

use railgate_gate::{Seen, covers_whole_node, devices_are_well, follow_ups, judge, plan};
use railgate_model::{
    Class, Finding, Fitness, Job, KernelMark, KnownGpu, Part, PartName, Phase, Plan, Profile, ProfileError,
    Severity, Snapshot, Verdict, XidEvent,
};
use railgate_probe::{Request, follow_up, live};

use railgate_topology_check::judge_topology_file;

use railgate_rundir::Root;
use railgate_slurm::{Client, Env};

use crate::history::History;
use crate::{Config, Past, Places, SAMPLER_XIDS};

/// One look at this node, judged.
#[derive(Debug)]
pub struct Look {
    /// What the node says.
    pub snapshot: Snapshot,
    /// What the gate says.
    pub verdict: Verdict,
    /// The machine type it was held against.
    pub profile: Profile,
    /// Why it is `generic` although the site named another.
    pub profile_problem: Option<ProfileError>,
    /// The GPUs of this node when it was last found fit, before this one. Slurm counts them so until slurmd restarts.
    pub known_gpus: Vec<KnownGpu>,
    /// How long looking and judging took, milliseconds.
    pub took_ms: f64,
}

impl Look {
    /// One line in the log, and one more for each fault of our own.
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

/// What a look is for.
#[derive(Clone, Copy, Debug)]
pub struct Purpose<'a> {
    /// When.
    pub phase: Phase,
    /// For which job; `None` judges the whole node.
    pub job: Option<&'a Job>,
    /// The baseline.
    pub before: Option<&'a Snapshot>,
    /// Where the kernel log is read from; `None` is the last mark that was settled.
    pub kernel_since: Option<&'a KernelMark>,
    /// Read also what nothing is judged by: the job's baseline and rail map need every part.
    pub everything: bool,
    /// Read also the kernel log where nothing is judged by it: from `kernel_since` on, else all that is left of it.
    pub kernel_log: bool,
    /// Exercise the hardware, too: the RDMA self-test, where the whole node is looked at.
    pub full: bool,
    /// Nothing is remembered of it: somebody only wants to see what would be found.
    pub trial: bool,
}

impl Purpose<'_> {
    /// The whole node, by what is judged at this moment.
    pub fn whole_node(phase: Phase) -> Self {
        Purpose {
            phase,
            job: None,
            before: None,
            kernel_since: None,
            everything: false,
            kernel_log: false,
            full: false,
            trial: false,
        }
    }
}

/// Reads and judges this node within `[gate] deadline`, and remembers what the next look needs.
pub fn look(config: &Config, places: &Places, node: &str, purpose: &Purpose<'_>) -> Look {
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
    // What checks have settled is no news to them; it may be to the job.
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
            tracing::warn!("{why}; judging as a machine of no known type");
            (Profile::generic(), Some(why))
        }
    };
    let (profile, profile_problem) = match without_gpus(config, places, &profile, &mut snapshot, began) {
        Some(cpu) => (cpu, None),
        None => (profile, profile_problem),
    };
    judge_topology_file(&config.rails, Some(&profile), &mut snapshot);
    snapshot.nvml_xids = told_by_nvml(places, purpose, &snapshot);
    let seen = Seen {
        phase: purpose.phase,
        now: &snapshot,
        before: purpose.before,
        job: purpose.job,
        profile: Some(&profile),
        memory: &history.memory,
    };
    let readings = follow_ups(&config.gate, &seen, purpose.full);
    let mut snapshot = snapshot.clone();
    follow_up(&config.source, &readings, began + config.gate.deadline, &mut snapshot);
    let seen = Seen { now: &snapshot, ..seen };
    let verdict = judge(&config.gate, &seen);
    let whole = covers_whole_node(&seen);
    let took_ms = began.elapsed().as_secs_f64() * 1000.0;
    let known_gpus = history.memory.inventory.clone();
    let look = Look { snapshot, verdict, profile, profile_problem, known_gpus, took_ms };
    if config.source.speaks_for_the_node() && !purpose.trial {
        remember(config, places, purpose, &look, history.open, whole);
    }
    look
}

/// The profile of a machine without GPUs, where this is one: NVML does not answer, and the site's profile has no GPUs or
/// Slurm gives none of this node to jobs. What NVML says is then not missing. A node of a GPU profile whose driver is broken
/// has GPUs in Slurm.
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
        tracing::debug!("Slurm gives no GPUs of this node to jobs, so that NVML is not needed: {why}");
        railgate_profiles::load("cpu", &places.profiles()).ok()?
    };
    snapshot.gpus = Part::Skipped;
    Some(cpu)
}

/// Slurm's answer is worth no more waiting: without it the node is judged as one that could not be read.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the next look needs, and whoever asks later what was found; `open`: something was, and has not gone.
fn remember(
    config: &Config,
    places: &Places,
    purpose: &Purpose<'_>,
    look: &Look,
    mut open: bool,
    whole: bool,
) {
    let told = |findings: &[Finding]| findings.iter().any(|finding| finding.severity > Severity::Note);
    if open || told(&look.verdict.findings) || told(&look.verdict.shadow) {
        let job = purpose.job.map(|job| job.id);
        open = Past::change(places, |past| past.note(&config.gate, look, job, whole));
    }
    let Look { snapshot, verdict, .. } = look;
    History::change(places, |history| {
        history.begin(snapshot);
        history.open = open;
        history.memory = history.memory.after(snapshot, whole && devices_are_well(verdict));
        history.memory.strike(snapshot, verdict);
        // A look that judged some GPUs only says nothing about what the kernel said of the others. What was
        // worth a warning has been given one.
        if whole && matches!(verdict.fitness, Fitness::Fit | Fitness::Degraded) {
            history.settle(snapshot);
            history.memory.settle(snapshot, verdict);
        }
    });
}

/// What the job's sampler heard from NVML, where the kernel's log could not be read.
fn told_by_nvml(places: &Places, purpose: &Purpose<'_>, snapshot: &Snapshot) -> Option<Vec<XidEvent>> {
    let job = purpose.job.filter(|_| snapshot.kernel_log.missing().is_some())?.id;
    Root::new(&places.run).job(job).current(job).ok()?.read_json(SAMPLER_XIDS).ok()
}

/// The machine type that configuration names; with `auto` the one that the GPU's name belongs to, or `generic`.
///
/// The name tells what one GPU can do, not how many the site put into the machine or whether it wired them:
/// a virtual machine may have one of eight and no HCA. So a profile chosen by name says nothing of counts.
///
/// # Errors
/// The named profile does not exist or is wrong.
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

/// Everything up to this look has been acted on: the next look begins after it.
pub fn settle(places: &Places, snapshot: &Snapshot) {
    History::keep_settled(places, snapshot);
}
