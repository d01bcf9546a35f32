use railgate_model::UnixMillis;
use serde::{Deserialize, Serialize};

use crate::SlurmView;

/// How Slurm ended an attempt, as slurmctld showed it to the controller's program: `<attempt>/slurm-end.json`.
/// slurmctld purges a job `MinJobAge` after its end; without slurmdbd this file is then the only record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlurmEnd {
    /// [`crate::REPORT_SCHEMA`] of the writer.
    pub schema: u32,
    /// `SLURM_CLUSTER_NAME`.
    pub cluster: String,
    /// Job id, as in the name of the report directory.
    pub job: u32,
    /// Array job id and task number, if the job is a member of an array.
    #[serde(default)]
    pub task: Option<(u32, u32)>,
    /// The attempt that ended.
    pub attempt: u32,
    /// Time of the record.
    pub time: UnixMillis,
    /// State of the job in Slurm.
    pub slurm: SlurmView,
}

impl SlurmView {
    /// Whether the job has ended, according to its state in Slurm.
    pub fn has_ended(&self) -> bool {
        railgate_model::job_has_ended(&self.state)
    }
}
