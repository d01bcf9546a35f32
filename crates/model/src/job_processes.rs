use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Reading;

/// The result of one probe of a job's processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobProcesses {
    /// In order of their ids.
    pub processes: Vec<JobProcess>,
    /// Processes of the job that were not probed, because there are too many.
    pub more: usize,
    /// Processes of the job that their own user may not read.
    pub closed: usize,
}

/// One process of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobProcess {
    /// `0`, `batch`, `extern`, `interactive`; empty where that is not known.
    pub step: String,
    /// It has another root directory than the node: a container.
    pub image: bool,
    /// `libnccl.so` is mapped.
    pub nccl: bool,
    /// `libcuda.so` is mapped.
    pub cuda: bool,
    /// The file of an NCCL net plugin that is mapped: `libnccl-net-ofi.so`.
    pub net_plugin: Option<String>,
    /// It holds an RDMA device open (`/dev/infiniband/uverbs*`). Read only of processes with NCCL or CUDA;
    /// `Unsupported` for all others.
    pub rdma: Reading<bool>,
    /// What it was started with, printable and cut; later changes of its own are not seen.
    pub env: BTreeMap<String, String>,
    /// The contents of NCCL's configuration files, as the process sees them, the first file that names a variable
    /// counting. Read only of processes with NCCL or CUDA.
    pub files: BTreeMap<String, String>,
}
