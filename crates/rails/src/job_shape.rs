use std::path::PathBuf;

use railgate_model::{Allocation, GpuId, Snapshot};

/// What a job holds on this node, as far as NCCL's environment depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobShape {
    /// Its GPUs here.
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

/// A job's GPUs on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum JobGpus {
    /// Every one, or nobody knows which: such a job gets every rail.
    #[default]
    All,
    /// Those with these NVML indices.
    Indices(Vec<u32>),
    /// None: such a job gets no NCCL environment.
    None,
}

impl JobGpus {
    /// What Slurm said, with UUIDs looked up. A list that cannot be understood, or a MIG device, whose GPU
    /// the snapshot does not name, means every GPU: too many rails are slower, too few break the job.
    pub fn of(allocation: &Allocation, snapshot: &Snapshot) -> Self {
        let ids = match allocation {
            Allocation::NoGpus => return JobGpus::None,
            Allocation::Unreadable(_) => return JobGpus::All,
            Allocation::Gpus(ids) => ids,
        };
        let gpus = snapshot.gpus.data().map_or(&[][..], |gpus| &gpus.gpus);
        let index = |id: &GpuId| match id {
            GpuId::Index(index) => Some(*index),
            GpuId::Uuid(uuid) => gpus.iter().find(|gpu| gpu.uuid.known() == Some(uuid)).map(|gpu| gpu.index),
        };
        match ids.iter().map(index).collect::<Option<Vec<u32>>>() {
            Some(indices) if indices.is_empty() => JobGpus::None,
            Some(indices) => JobGpus::Indices(indices),
            None => JobGpus::All,
        }
    }

    /// The job holds the GPU with this index, as far as anybody knows.
    pub(crate) fn has(&self, index: u32) -> bool {
        match self {
            JobGpus::All => true,
            JobGpus::Indices(indices) => indices.contains(&index),
            JobGpus::None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::machine;

    #[test]
    fn what_slurm_said_becomes_indices() {
        let snapshot = machine();
        let of = |allocation: &Allocation| JobGpus::of(allocation, &snapshot);
        assert_eq!(of(&Allocation::NoGpus), JobGpus::None);
        assert_eq!(of(&Allocation::Gpus(vec![])), JobGpus::None);
        assert_eq!(of(&Allocation::Unreadable("x".to_owned())), JobGpus::All);
        let ids = vec![GpuId::Index(3), GpuId::Uuid("GPU-1".to_owned())];
        assert_eq!(of(&Allocation::Gpus(ids)), JobGpus::Indices(vec![3, 1]));
        assert_eq!(of(&Allocation::Gpus(vec![GpuId::Uuid("MIG-7".to_owned())])), JobGpus::All);
    }
}
