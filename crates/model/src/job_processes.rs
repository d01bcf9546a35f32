use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Reading, UnixMillis};

/// The result of one probe of a job's processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobProcesses {
    /// Sorted by process id.
    pub processes: Vec<JobProcess>,
    /// Number of processes of the job that were not probed, because there are too many.
    pub more: usize,
    /// Number of processes of the job that their own user may not read.
    pub closed: usize,
}

/// One process of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobProcess {
    /// `0`, `batch`, `extern`, `interactive`; empty if unknown.
    pub step: String,
    /// When it began, by the kernel; `None` if that is not known.
    pub began: Option<UnixMillis>,
    /// Its root directory differs from the node's: a container.
    pub image: bool,
    /// `libnccl.so` is mapped.
    pub nccl: bool,
    /// `libcuda.so` is mapped.
    pub cuda: bool,
    /// File name of a mapped NCCL net plugin, for example `libnccl-net-ofi.so`.
    pub net_plugin: Option<String>,
    /// Whether it has an RDMA device open (`/dev/infiniband/uverbs*`). Only read for processes with NCCL or CUDA;
    /// `Unsupported` for all others.
    pub rdma: Reading<bool>,
    /// The environment at its start, made printable and truncated. Later changes by the process are not visible.
    pub env: BTreeMap<String, String>,
    /// Variables from NCCL's configuration files as the process sees them; the first file with a variable takes
    /// precedence. Only read for processes with NCCL or CUDA.
    pub files: BTreeMap<String, String>,
}
