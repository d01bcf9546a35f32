use railgate_model::{JobRequest, UnixMillis};
use serde::{Deserialize, Serialize};

/// What the controller decided about one attempt of a job, and why: `<attempt>/decision.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// [`crate::REPORT_SCHEMA`] of the writer.
    pub schema: u32,
    /// `SLURM_CLUSTER_NAME`.
    pub cluster: String,
    /// Job id, as the report directory has it.
    pub job: u32,
    /// The attempt that had ended.
    pub attempt: u32,
    /// When it was decided.
    pub time: UnixMillis,
    /// What was done about the job.
    pub what: DecisionKind,
    /// One sentence.
    pub why: String,
    /// Slurm's base state of the job where it could be seen: `FAILED`, `NODE_FAIL`.
    #[serde(default)]
    pub state: Option<String>,
    /// What the job asked for, where Slurm was asked about it.
    #[serde(default)]
    pub request: JobRequest,
    /// Faults that were found on its nodes and do not count as the cause.
    #[serde(default)]
    pub discounted: Vec<Discounted>,
    /// The nodes were not asked, because the owner had not asked for a restart and nothing else forbade one.
    #[serde(default)]
    pub not_asked: bool,
    /// `SLURM_JOB_EXIT_CODE`, a raw wait status.
    #[serde(default)]
    pub exit_status: Option<i32>,
    /// `auto`, `never` or a number: the consent after policy.
    #[serde(default)]
    pub consent: String,
    /// How much of the budget is used; `None` where it was not looked at.
    #[serde(default)]
    pub budget: Option<Budget>,
    /// The attempt's nodes, unexpanded: of a node that died there is no part to say it.
    #[serde(default)]
    pub nodelist: String,
    /// The nodes that were looked at.
    #[serde(default)]
    pub nodes: Vec<DecisionNode>,
    /// How long the controller waited for the epilogs, milliseconds.
    #[serde(default)]
    pub waited_ms: u64,
}

/// What was done about the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DecisionKind {
    /// It goes back to the queue, by railgate.
    Requeued,
    /// It goes back to the queue, by Slurm itself: a node died.
    RequeuedBySlurm,
    /// It goes back to the queue, by Slurm itself: the gate of a node refused it before it started.
    Moved,
    /// It goes back and is held: the budget is spent.
    Held,
    /// It stays ended.
    Left,
    /// It should have come back and the attempt failed; `why` says how.
    Failed,
}

impl DecisionKind {
    /// The job went back into the queue: how it ended is another attempt's end.
    pub(crate) fn went_back(self) -> bool {
        match self {
            DecisionKind::Requeued
            | DecisionKind::RequeuedBySlurm
            | DecisionKind::Moved
            | DecisionKind::Held => true,
            DecisionKind::Left | DecisionKind::Failed => false,
        }
    }

    /// What was done, before a colon and the reason.
    pub fn title(self) -> &'static str {
        match self {
            DecisionKind::Requeued => "railgate requeued the job",
            DecisionKind::RequeuedBySlurm => "Slurm requeued the job",
            DecisionKind::Moved => "Slurm put the job back into the queue",
            DecisionKind::Held => "railgate held the job",
            DecisionKind::Left => "the job was left as it was",
            DecisionKind::Failed => "the job could not be requeued",
        }
    }
}

/// The restart budget of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Budget {
    /// Deaths during a run in the sliding window, this one included.
    pub restarts: u32,
    /// How many are allowed.
    pub max_restarts: u32,
    /// Moves by the gate, before the job had started.
    pub moves: u32,
    /// How many are allowed before the back-off is at its longest.
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
    /// Why it does not count.
    pub why: String,
}

/// What was known of one node when it was decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionNode {
    /// Slurm's name.
    pub node: String,
    /// Slurm's state: `IDLE+DRAIN`.
    #[serde(default)]
    pub state: String,
    /// Its reason, of railgate or of another owner.
    #[serde(default)]
    pub reason: String,
    /// It carried evidence for this job.
    #[serde(default)]
    pub evidence: bool,
    /// Where the evidence came from: `drain reason`, `report`.
    #[serde(default)]
    pub source: String,
}
