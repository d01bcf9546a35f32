use std::path::PathBuf;

use railgate_model::JobGpus;

/// What a job holds on this node, as far as NCCL's environment depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobShape {
    /// Its GPUs here. Where it cannot be told which, the job gets every rail: too many rails are slower, too few break the job.
    /// A job without GPUs gets no NCCL environment.
    pub gpus: JobGpus,
    /// Job id.
    pub job_id: u32,
    /// How many nodes the job has; `None` where that is not known.
    pub nodes: Option<u32>,
    /// Where the job itself may write on this node, as its tasks see it. Empty where it has no such place.
    pub user_dir: PathBuf,
    /// `--railgate-profile`, one that [`crate::RailsConfig::check_profile`] accepts; others add nothing.
    pub profile: Option<String>,
    /// The topology file that was written for this node, as the tasks see it.
    pub topology_file: Option<PathBuf>,
    /// NCCL's environment plugin, if it is there; `None`: what depends on NCCL's release reaches nobody.
    pub env_plugin: Option<PathBuf>,
    /// railgate's profiler plugin, if it is there and the site wants it for this job.
    pub profiler: Option<PathBuf>,
    /// What the node's `/etc/nccl.conf` says.
    pub site_conf: Vec<(String, String)>,
}
