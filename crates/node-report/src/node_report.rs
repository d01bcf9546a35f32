use railgate_model::{
    Finding, Job, KernelLine, Part, PartName, RailMap, Setting, Snapshot, UnixMillis, Verdict, XidEvent,
};
use serde::{Deserialize, Serialize};

use crate::usage::{GpuFigures, phases, summarize};
use crate::{
    Application, Applied, Communication, GpuUse, Hangs, Launched, NodeWait, PortUse, Tasks, Transport, Usage,
    Window,
};

/// Schema that this build writes. Readers accept it and all earlier ones; fields are added, never renamed.
pub const REPORT_SCHEMA: u32 = 1;

/// Report of one node about one attempt of a job: `<attempt>/<node>.json`.
///
/// The prolog writes one if it refuses the job, the epilog always writes one; a later report replaces an
/// earlier one of the same node and attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// [`REPORT_SCHEMA`] of the writer.
    pub schema: u32,
    /// Version of the railgate that wrote it.
    pub railgate: String,
    /// `SLURM_CLUSTER_NAME`.
    pub cluster: String,
    /// Slurm's name of the node.
    pub node: String,
    /// The job as seen on this node; `nodelist` is unexpanded.
    pub job: Job,
    /// `SLURM_JOB_RESTART_COUNT` in the prolog.
    pub attempt: u32,
    /// `<attempt>-<start, seconds>`; empty if the prolog left no run directory.
    #[serde(default)]
    pub run: String,
    /// Boot id at the end of the run.
    #[serde(default)]
    pub boot_id: String,
    /// Start of the prolog.
    pub start: UnixMillis,
    /// Start of the epilog; `None` in a report of the prolog.
    #[serde(default)]
    pub end: Option<UnixMillis>,
    /// Time of a partial report, written while the run continued. `None` in a final report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_of: Option<UnixMillis>,
    /// `--railgate-*`, after policy.
    #[serde(default)]
    pub options: Options,
    /// Check run of the prolog.
    #[serde(default)]
    pub prolog: Option<GateRun>,
    /// Check run of the epilog.
    #[serde(default)]
    pub epilog: Option<GateRun>,
    /// Rails of the node and their distance to GPUs.
    #[serde(default)]
    pub rail_map: Option<RailMap>,
    /// Settings that railgate offered to tasks on this node.
    #[serde(default)]
    pub settings: Vec<Setting>,
    /// Environment of tasks, one entry per step. Written by the job's own processes, so it is only a hint.
    #[serde(default)]
    pub steps: Vec<StepEnv>,
    /// Environment of the job's processes, read by the sampler; `None` if it did not run.
    #[serde(default)]
    pub tasks: Option<Tasks>,
    /// Ranks of the job that ran here, from `RANK` or `SLURM_PROCID` of its processes, sorted; empty if none was seen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<u32>,
    /// Comparison of railgate's settings with the environment of the processes, per variable.
    #[serde(default)]
    pub applied: Vec<Applied>,
    /// Transport of NCCL; `None` if there was no choice.
    #[serde(default)]
    pub transport: Option<Transport>,
    /// Use of the node's hardware; `None` if no sampler ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Counts of NCCL's profiler plugin; `None` if no process loaded it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub communication: Option<Communication>,
    /// Hangs that the guard found while the job ran; `None` if it found none, or did not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hangs: Option<Hangs>,
    /// In a partial report: no GPU of the node has worked for long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<NodeWait>,
    /// Report of the program; `None` if it wrote none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application: Option<Application>,
    /// Starts of the program by `railgate launch`; only in the report of the node with the batch script.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launched: Option<Launched>,
    /// The two check runs between which counters are compared.
    #[serde(default)]
    pub window: Option<Window>,
    /// The node's GPUs; those of the job are marked.
    #[serde(default)]
    pub gpus: Vec<GpuUse>,
    /// The node's RDMA ports.
    #[serde(default)]
    pub ports: Vec<PortUse>,
    /// Kernel messages during the run.
    #[serde(default)]
    pub kernel: KernelEvents,
    /// Findings that may have ended the job, for the controller.
    #[serde(default)]
    pub evidence: Vec<EvidenceItem>,
    /// Exit status of the job, as this node's epilog received it.
    #[serde(default)]
    pub exit: Option<Exit>,
    /// Acts of railgate on the node, including those that were suppressed.
    #[serde(default)]
    pub acts: Vec<Act>,
    /// Internal errors of railgate, one line each.
    #[serde(default)]
    pub faults: Vec<String>,
}

impl NodeReport {
    /// A report with the identity of node and job, and no other content.
    pub fn new(
        cluster: impl Into<String>,
        node: impl Into<String>,
        job: Job,
        attempt: u32,
        start: UnixMillis,
    ) -> Self {
        NodeReport {
            schema: REPORT_SCHEMA,
            railgate: env!("CARGO_PKG_VERSION").to_owned(),
            cluster: cluster.into(),
            node: node.into(),
            job,
            attempt,
            run: String::new(),
            boot_id: String::new(),
            start,
            end: None,
            as_of: None,
            options: Options::default(),
            prolog: None,
            epilog: None,
            rail_map: None,
            settings: Vec::new(),
            steps: Vec::new(),
            tasks: None,
            ranks: Vec::new(),
            applied: Vec::new(),
            transport: None,
            usage: None,
            application: None,
            launched: None,
            communication: None,
            hangs: None,
            wait: None,
            window: None,
            gpus: Vec::new(),
            ports: Vec::new(),
            kernel: KernelEvents::default(),
            evidence: Vec::new(),
            exit: None,
            acts: Vec::new(),
            faults: Vec::new(),
        }
    }

    /// Adds the hardware usage, from the files of the run's sampler up to `end`, with the phases of the run: `tasks`, which knows
    /// its starts, comes first.
    pub fn add_usage(&mut self, streams: &[&[u8]], end: UnixMillis, figures: &GpuFigures) {
        let Some(mut usage) = summarize(streams, end, figures) else { return };
        let others = usage.gpus.len() > 1 || self.job.nodelist != self.node;
        let starts = self.tasks.as_ref().map_or(&[][..], |tasks| &tasks.starts);
        usage.phases = phases(streams, &usage, others, starts, figures);
        self.usage = Some(usage);
    }

    /// Whether the prolog refused the job on this node.
    pub fn refused(&self) -> bool {
        self.acts.iter().any(|act| act.what == ActKind::Refused)
    }
}

/// Options of the user, limited by the site's policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Options {
    /// `--railgate-profile`.
    pub profile: Option<String>,
    /// `off`, `quick`, `full`.
    pub gate: String,
    /// `auto`, `never` or a number of restarts.
    pub requeue: String,
    /// `--railgate-hang`: `report`, `notify`, `end`, `end,after=600s`; `None`: not requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hang: Option<String>,
}

/// One check run of the gate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GateRun {
    /// Time of the snapshot.
    pub taken: UnixMillis,
    /// Duration of check run and judgement, milliseconds.
    #[serde(default)]
    pub took_ms: Option<f64>,
    /// Verdict of the gate.
    pub verdict: Verdict,
    /// Parts of the node without data.
    #[serde(default)]
    pub missing: Vec<MissingPart>,
}

impl GateRun {
    /// Combines a snapshot with the gate's verdict on it.
    pub fn new(snapshot: &Snapshot, verdict: Verdict, took_ms: f64) -> Self {
        fn missing<T>(part: PartName, outcome: &Part<T>) -> Option<MissingPart> {
            let asked = !matches!(outcome, Part::Skipped);
            outcome.missing().filter(|_| asked).map(|why| MissingPart { part, why })
        }
        let missing = [
            missing(PartName::Gpus, &snapshot.gpus),
            missing(PartName::Fabric, &snapshot.fabric),
            missing(PartName::Pci, &snapshot.pci),
            missing(PartName::KernelLog, &snapshot.kernel_log),
            missing(PartName::Host, &snapshot.host),
        ];
        GateRun {
            taken: snapshot.taken,
            took_ms: Some(took_ms),
            verdict,
            missing: missing.into_iter().flatten().collect(),
        }
    }
}

/// A part of a snapshot without data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingPart {
    /// Name of the part.
    pub part: PartName,
    /// Reason, from [`railgate_model::Part::missing`].
    pub why: String,
}

/// Variables of one step, as its tasks on this node received or kept them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepEnv {
    /// `batch`, `extern`, `interactive` or the step's number.
    pub step: String,
    /// Variables that railgate knows.
    pub settings: Vec<StepSetting>,
}

/// One variable of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepSetting {
    /// `NCCL_IB_HCA`
    pub name: String,
    /// Value at the start of the task.
    pub value: String,
    /// Origin of the value.
    pub from: SetBy,
    /// The value that was not used: railgate's if the user's was kept, the user's if the site forces its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instead_of: Option<String>,
}

/// Origin of a value at the start of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SetBy {
    /// Set by the user, and kept.
    User,
    /// Set by railgate; the user had set none.
    Railgate,
    /// Set by railgate in place of the user's, because the site configures `force`.
    Forced,
    /// Set by a container image.
    Image,
}

/// Records of the kernel log between the check runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KernelEvents {
    /// Xids of every GPU of the node, in time order.
    pub xids: Vec<XidEvent>,
    /// Other relevant records in order, at most [`crate::StatsConfig::max_kernel_events`].
    pub lines: Vec<KernelLine>,
    /// Number of records omitted above that limit.
    pub more: usize,
    /// Records were overwritten in the kernel's buffer before they were read.
    pub overrun: bool,
    /// Why the log could not be read, if so.
    pub unread: Option<String>,
}

/// A finding that may have ended the job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvidenceItem {
    /// The finding.
    pub finding: Finding,
    /// Time of the fault; `None` if it is only known to be between the two check runs.
    #[serde(default)]
    pub time: Option<UnixMillis>,
    /// PCI address of the GPU, or `mlx5_2:1`; empty for the node as a whole.
    #[serde(default)]
    pub device: String,
    /// Whether the job held that device; `None` if not known.
    #[serde(default)]
    pub own: Option<bool>,
}

/// Exit status of the job, from the epilog's environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// `SLURM_JOB_EXIT_CODE`, a raw wait status. 0 also for cancelled and timed-out jobs.
    pub status: i32,
    /// `SLURM_JOB_DERIVED_EC`: the raw wait status of the worst step.
    #[serde(default)]
    pub derived: Option<i32>,
}

impl Exit {
    /// Exit code, 0 to 255.
    pub fn code(self) -> i32 {
        (self.status >> 8) & 0xff
    }

    /// Signal, 0 for none. Slurm's own 253 (out of memory) appears as 125.
    pub fn signal(self) -> i32 {
        self.status & 0x7f
    }
}

/// An act of railgate on a node, or one that it had reason for and did not do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Act {
    /// Kind of act.
    pub what: ActKind,
    /// Time of the act.
    pub time: UnixMillis,
    /// Program: `prolog`, `epilog`, `periodic`.
    pub by: String,
    /// The drain reason, the message, or why nothing was done.
    pub detail: String,
}

/// Kinds of [`Act`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ActKind {
    /// The node was drained; `detail` is the reason.
    Drained,
    /// The drain was suppressed by report mode, pause or the flag file; `detail` names which, and the reason of
    /// the drain.
    WouldDrain,
    /// The breaker prevented the drain, or undid it.
    Breaker,
    /// The node was already drained by another owner, whose reason is kept; `detail` quotes it.
    ForeignReason,
    /// slurmctld did not answer; the periodic check will set the drain reason.
    Pending,
    /// The prolog refused the job, so that Slurm requeues it.
    Refused,
    /// The job's owner was notified.
    Notified,
    /// An act failed.
    Failed,
}

impl ActKind {
    /// The act in words, with the node as its subject where it has none: `drained`. Used by timeline, gate table
    /// and first screen.
    pub fn title(self) -> &'static str {
        match self {
            ActKind::Drained => "drained",
            ActKind::WouldDrain => "would have been drained",
            ActKind::Breaker => "not drained, the breaker is open",
            ActKind::ForeignReason => "already drained by others",
            ActKind::Pending => "drain pending, slurmctld did not answer",
            ActKind::Refused => "job refused",
            ActKind::Notified => "owner notified",
            ActKind::Failed => "an action of railgate failed",
        }
    }
}

impl Act {
    /// One line: act, program and detail, `drained (epilog): railgate: gpu-lost@3`.
    pub fn sentence(&self) -> String {
        let detail = if self.detail.is_empty() { String::new() } else { format!(": {}", self.detail) };
        format!("{} ({}){detail}", self.what.title(), self.by)
    }
}
