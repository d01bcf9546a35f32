use serde::{Deserialize, Serialize};

/// The result of the self-test of one RDMA device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SelfTested {
    /// Device, for example `mlx5_0`.
    pub device: String,
    /// Throughput of a loopback transfer, payload only, Gb/s; absent if the transfer failed.
    pub gbps: Option<f64>,
    /// Bytes that were sent.
    pub bytes: u64,
    /// Why the transfer failed.
    pub error: Option<String>,
}
