use railgate_model::{JobRequest, UnixMillis};
use serde::{Deserialize, Serialize};

/// The controller's decision about one attempt of a job, with the reason: `<attempt>/decision.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// [`crate::REPORT_SCHEMA`] of the writer.
    pub schema: u32,
    /// `SLURM_CLUSTER_NAME`.
    pub cluster: String,
    /// Job id, as in the name of the report directory.
    pub job: u32,
    /// The attempt that had ended.
    pub attempt: u32,
    /// Time of the decision.
    pub time: UnixMillis,
    /// What the controller did with the job.
    pub what: DecisionKind,
    /// Reason, in one sentence.
    pub why: String,
    /// Slurm's base state of the job if known: `FAILED`, `NODE_FAIL`.
    #[serde(default)]
    pub state: Option<String>,
    /// The job's request, if Slurm was queried for it.
    #[serde(default)]
    pub request: JobRequest,
    /// Faults found on its nodes that do not count as the cause.
    #[serde(default)]
    pub discounted: Vec<Discounted>,
    /// The nodes were not queried: the owner had not requested a restart and nothing else ruled one out.
    #[serde(default)]
    pub not_asked: bool,
    /// `SLURM_JOB_EXIT_CODE`, a raw wait status.
    #[serde(default)]
    pub exit_status: Option<i32>,
    /// Consent after policy: `auto`, `never` or a number.
    #[serde(default)]
    pub consent: String,
    /// Use of the restart budget; `None` if it was not read.
    #[serde(default)]
    pub budget: Option<Budget>,
    /// The attempt's nodes, unexpanded; a node that died leaves no report with it.
    #[serde(default)]
    pub nodelist: String,
    /// The nodes that were checked.
    #[serde(default)]
    pub nodes: Vec<DecisionNode>,
    /// How long the controller waited for the epilogs, milliseconds.
    #[serde(default)]
    pub waited_ms: u64,
}

/// What the controller did with the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DecisionKind {
    /// Requeued by railgate.
    Requeued,
    /// Requeued by Slurm itself: a node died.
    RequeuedBySlurm,
    /// Requeued by Slurm itself: the gate refused a node before the job started.
    Moved,
    /// Requeued and held: the restart budget is spent.
    Held,
    /// Not requeued.
    Left,
    /// Not requeued, and cancelled, because Slurm would have held it (`sbatch --requeue=expedite`). Slurm counts a restart.
    Cancelled,
    /// The requeue failed; `why` has the error.
    Failed,
}

impl DecisionKind {
    /// Whether the job was requeued, so that its final end is that of a later attempt.
    pub fn went_back(self) -> bool {
        match self {
            DecisionKind::Requeued
            | DecisionKind::RequeuedBySlurm
            | DecisionKind::Moved
            | DecisionKind::Held => true,
            DecisionKind::Left | DecisionKind::Cancelled | DecisionKind::Failed => false,
        }
    }

    /// Title of the decision; a colon and the reason follow.
    pub fn title(self) -> &'static str {
        match self {
            DecisionKind::Requeued => "railgate requeued the job",
            DecisionKind::RequeuedBySlurm => "Slurm requeued the job",
            DecisionKind::Moved => "Slurm requeued the job",
            DecisionKind::Held => "railgate held the job",
            DecisionKind::Left | DecisionKind::Cancelled => "the job was not requeued",
            DecisionKind::Failed => "the job could not be requeued",
        }
    }
}

/// The restart budget of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Budget {
    /// Restarts after failures in the sliding window, including this one.
    pub restarts: u32,
    /// Allowed number of restarts.
    pub max_restarts: u32,
    /// Requeues by the gate before the job had started.
    pub moves: u32,
    /// Number of requeues at which the back-off reaches its maximum.
    pub max_moves: u32,
}

/// A fault that was found on a node and does not count as the cause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Discounted {
    /// Slurm's name of the node.
    pub node: String,
    /// `site-raid`, `gpu-lost@3`.
    pub subject: String,
    /// Why it does not count as the cause.
    pub why: String,
}

/// State of one node at the time of the decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionNode {
    /// Slurm's name.
    pub node: String,
    /// Slurm's state: `IDLE+DRAIN`.
    #[serde(default)]
    pub state: String,
    /// Slurm's reason of the node, set by railgate or another owner.
    #[serde(default)]
    pub reason: String,
    /// The node had evidence for this job.
    #[serde(default)]
    pub evidence: bool,
    /// Source of the evidence: `drain reason`, `report`.
    #[serde(default)]
    pub source: String,
}
