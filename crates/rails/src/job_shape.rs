use std::path::PathBuf;

use railgate_model::JobGpus;

/// The properties of a job on this node that its NCCL environment depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobShape {
    /// GPUs of the job on this node. If they are unclear the job gets every rail: too many rails are slower, too few
    /// break the job. A job without GPUs gets no NCCL environment.
    pub gpus: JobGpus,
    /// Job id.
    pub job_id: u32,
    /// Number of nodes of the job; `None` if unknown.
    pub nodes: Option<u32>,
    /// Directory on this node to which the job can write, as its tasks see it. Empty if there is none.
    pub user_dir: PathBuf,
    /// Value of `--railgate-profile`, accepted by [`crate::RailsConfig::check_profile`]; other values have no effect.
    pub profile: Option<String>,
    /// The topology file written for this node, as the tasks see it.
    pub topology_file: Option<PathBuf>,
    /// NCCL environment plugin, if it is installed. With `None`, values that depend on the NCCL release are not
    /// applied.
    pub env_plugin: Option<PathBuf>,
    /// railgate's profiler plugin, if it is installed and the site wants it for this job.
    pub profiler: Option<PathBuf>,
    /// Variables in the node's `/etc/nccl.conf`.
    pub site_conf: Vec<(String, String)>,
}
