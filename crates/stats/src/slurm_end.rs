use railgate_model::UnixMillis;
use serde::{Deserialize, Serialize};

use crate::SlurmView;

/// How Slurm ended an attempt, as `slurmctld` showed it to the controller's program: `<attempt>/slurm-end.json`. slurmctld
/// purges a job `MinJobAge` after its end; without slurmdbd this file is then the only record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlurmEnd {
    /// [`crate::REPORT_SCHEMA`] of the writer.
    pub schema: u32,
    /// `SLURM_CLUSTER_NAME`.
    pub cluster: String,
    /// Job id, as the report directory has it.
    pub job: u32,
    /// The array and the task, where the job is a member of one.
    #[serde(default)]
    pub task: Option<(u32, u32)>,
    /// The attempt that ended.
    pub attempt: u32,
    /// When it was recorded.
    pub time: UnixMillis,
    /// What Slurm showed.
    pub slurm: SlurmView,
}

impl SlurmView {
    /// The job has ended, by Slurm's state of it.
    pub fn has_ended(&self) -> bool {
        const ENDED: [&str; 10] = [
            "BOOT_FAIL",
            "CANCELLED",
            "COMPLETED",
            "DEADLINE",
            "FAILED",
            "NODE_FAIL",
            "OUT_OF_MEMORY",
            "PREEMPTED",
            "REVOKED",
            "TIMEOUT",
        ];
        ENDED.contains(&self.state.split([' ', '+']).next().unwrap_or_default())
    }
}
