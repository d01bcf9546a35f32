use serde::{Deserialize, Serialize};

/// What one RDMA device did in the self-test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SelfTested {
    /// `mlx5_0`
    pub device: String,
    /// Gb/s through the device and back, payload only; absent where it did not work.
    pub gbps: Option<f64>,
    /// How much was sent.
    pub bytes: u64,
    /// Why it did not work.
    pub error: Option<String>,
}
