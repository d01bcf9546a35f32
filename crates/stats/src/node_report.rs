use railgate_model::{
    Finding, Job, KernelLine, Part, PartName, RailMap, Setting, Snapshot, UnixMillis, Verdict, XidEvent,
};
use serde::{Deserialize, Serialize};

use crate::{Application, Applied, Communication, GpuUse, PortUse, Tasks, Transport, Usage, Window};

/// The schema that this build writes. A reader accepts this and every earlier one; fields are added,
/// never renamed.
pub const REPORT_SCHEMA: u32 = 1;

/// What one node has to say about one attempt of a job: `<attempt>/<node>.json`.
///
/// The prolog writes one when it refuses the job, the epilog writes one always; a later one replaces an
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
    /// The job as this node saw it; `nodelist` is unexpanded.
    pub job: Job,
    /// `SLURM_JOB_RESTART_COUNT` as the prolog saw it.
    pub attempt: u32,
    /// `<attempt>-<start, seconds>`; empty where the prolog left no run directory.
    #[serde(default)]
    pub run: String,
    /// The boot in which the run ended.
    #[serde(default)]
    pub boot_id: String,
    /// When the prolog began.
    pub start: UnixMillis,
    /// When the epilog began; `None` in a report of the prolog.
    #[serde(default)]
    pub end: Option<UnixMillis>,
    /// The run went on when this was written: what stands here was known then. `None` in a part that nothing follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_of: Option<UnixMillis>,
    /// `--railgate-*`, after policy.
    #[serde(default)]
    pub options: Options,
    /// What the gate said before the job.
    #[serde(default)]
    pub prolog: Option<Look>,
    /// What the gate said after it.
    #[serde(default)]
    pub epilog: Option<Look>,
    /// How the node is wired.
    #[serde(default)]
    pub rail_map: Option<RailMap>,
    /// What railgate offered to the tasks on this node.
    #[serde(default)]
    pub settings: Vec<Setting>,
    /// What the tasks really had, one entry per step. Written by the job's own processes: a hint.
    #[serde(default)]
    pub steps: Vec<StepEnv>,
    /// What the job's processes had, read from them by the sampler; `None` where it did not run.
    #[serde(default)]
    pub tasks: Option<Tasks>,
    /// The environment that railgate meant and the one that the processes had, variable by variable.
    #[serde(default)]
    pub applied: Vec<Applied>,
    /// Over what NCCL's data went; `None` where there was nothing to choose.
    #[serde(default)]
    pub transport: Option<Transport>,
    /// What the job got out of the node's hardware; `None` where no sampler ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// What NCCL's profiler plugin counted; `None` where it ran in no process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub communication: Option<Communication>,
    /// What the program said of itself; `None` where it said nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application: Option<Application>,
    /// Between which two check runs the counters were compared.
    #[serde(default)]
    pub window: Option<Window>,
    /// The node's GPUs, those of the job marked.
    #[serde(default)]
    pub gpus: Vec<GpuUse>,
    /// The node's RDMA ports.
    #[serde(default)]
    pub ports: Vec<PortUse>,
    /// What the kernel said during the run.
    #[serde(default)]
    pub kernel: KernelEvents,
    /// Findings that may have ended the job, for the controller.
    #[serde(default)]
    pub evidence: Vec<EvidenceItem>,
    /// How the job ended, as this node's epilog received it.
    #[serde(default)]
    pub exit: Option<Exit>,
    /// What railgate did on the node, or would have done.
    #[serde(default)]
    pub acts: Vec<Act>,
    /// railgate's own faults, one line each.
    #[serde(default)]
    pub faults: Vec<String>,
}

impl NodeReport {
    /// A report that knows who it is about and nothing else.
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
            applied: Vec::new(),
            transport: None,
            usage: None,
            application: None,
            communication: None,
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

    /// The prolog refused the job on this node.
    pub fn refused(&self) -> bool {
        self.acts.iter().any(|act| act.what == ActKind::Refused)
    }
}

/// What the user asked for, bounded by the site's policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Options {
    /// `--railgate-profile`.
    pub profile: Option<String>,
    /// `off`, `quick`, `full`.
    pub gate: String,
    /// `auto`, `never` or a number of restarts.
    pub requeue: String,
}

/// One check run of the gate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Look {
    /// When the snapshot was taken.
    pub taken: UnixMillis,
    /// How long check run and judgement took, milliseconds.
    #[serde(default)]
    pub took_ms: Option<f64>,
    /// The answer.
    pub verdict: Verdict,
    /// Parts that gave nothing.
    #[serde(default)]
    pub missing: Vec<MissingPart>,
}

impl Look {
    /// A snapshot and what the gate said of it.
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
        Look {
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
    /// Which.
    pub part: PartName,
    /// Why, as [`railgate_model::Part::missing`] puts it.
    pub why: String,
}

/// The variables of one step, as its tasks on this node found or left them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepEnv {
    /// `batch`, `extern`, `interactive` or the step's number.
    pub step: String,
    /// The variables that railgate knows about.
    pub settings: Vec<StepSetting>,
}

/// One variable of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepSetting {
    /// `NCCL_IB_HCA`
    pub name: String,
    /// What the task started with.
    pub value: String,
    /// Whose value that is.
    pub from: SetBy,
    /// The value that did not win: railgate's where the user's stayed, the user's where the site forces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instead_of: Option<String>,
}

/// Whose value a task started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SetBy {
    /// The user's own, left alone.
    User,
    /// railgate's, where the user had none.
    Railgate,
    /// railgate's over the user's, because the site says `force`.
    Forced,
    /// A container image's.
    Image,
}

/// What the kernel log held between the check runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KernelEvents {
    /// Xids, in time order, of every GPU of the node.
    pub xids: Vec<XidEvent>,
    /// Other records that matter, in order, at most [`crate::StatsConfig::max_kernel_events`].
    pub lines: Vec<KernelLine>,
    /// How many more there were.
    pub more: usize,
    /// Records were overwritten before they were read.
    pub overrun: bool,
    /// Why the log was not read, if it was not.
    pub unread: Option<String>,
}

/// A finding that may have ended the job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvidenceItem {
    /// What was found.
    pub finding: Finding,
    /// When it happened; `None` where only the two check runs bound it.
    #[serde(default)]
    pub time: Option<UnixMillis>,
    /// PCI address of the GPU, or `mlx5_2:1`; empty for the whole node.
    #[serde(default)]
    pub device: String,
    /// The job held that device; `None` where that cannot be told.
    #[serde(default)]
    pub own: Option<bool>,
}

/// How the job ended, from the epilog's environment.
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

    /// Signal, 0 for none. Slurm's own 253 (out of memory) arrives here as 125.
    pub fn signal(self) -> i32 {
        self.status & 0x7f
    }
}

/// Something that railgate did on a node, or had reason to do and did not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Act {
    /// What.
    pub what: ActKind,
    /// When.
    pub time: UnixMillis,
    /// `prolog`, `epilog`, `periodic`.
    pub by: String,
    /// The drain reason, the message, or why nothing was done.
    pub detail: String,
}

/// Kinds of [`Act`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ActKind {
    /// The node was drained, with `detail` as the reason.
    Drained,
    /// It would have been: report mode, pause, the flag file; `detail` says which and with what reason.
    WouldDrain,
    /// The breaker forbade it, or took it back.
    Breaker,
    /// Someone else holds the node; their reason stands, `detail` quotes it.
    ForeignReason,
    /// slurmctld did not answer; the reason waits for the periodic check.
    Pending,
    /// The prolog refused the job here, so that Slurm moves it.
    Refused,
    /// The job's owner was notified.
    Notified,
    /// It was tried and failed.
    Failed,
}
