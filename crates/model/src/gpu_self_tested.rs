use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::PciAddress;

/// What `railgate-gpu-selftest` printed about the GPUs of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuSelfTest {
    /// The GPUs that it was to test; it refuses one that another process uses meanwhile.
    pub asked: Vec<PciAddress>,
    /// Its results, in the order of its output.
    pub tests: Vec<GpuSelfTested>,
    /// Why results may be missing: it was killed at its deadline, it crashed, or a line is not a result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
}

/// How long each GPU works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SelfTestLength {
    /// Ten to fifteen seconds for eight GPUs.
    #[default]
    Quick,
    /// At most 90 s.
    Full,
}

impl SelfTestLength {
    /// Returns the argument of the program's `--length`, which is also the value in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            SelfTestLength::Quick => "quick",
            SelfTestLength::Full => "full",
        }
    }
}

/// The result of one test of one GPU: a line of `railgate-gpu-selftest`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuSelfTested {
    /// Address on the PCI bus, `0000:61:00.0`; of a copy between two GPUs the source.
    pub gpu: PciAddress,
    /// NVML's UUID of the GPU, by which calibrations of cards are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// The other GPU of a copy between two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<PciAddress>,
    /// As the driver names the card: `NVIDIA H200`.
    pub model: String,
    /// Name of the test, for example `gemm-bf16`.
    pub test: String,
    /// Time that it took, seconds.
    pub seconds: f64,
    /// Whether what was computed or copied is right.
    pub values: ValueCheck,
    /// Figures by their name, which ends with the unit, for example `rate_tflops`.
    pub measured: BTreeMap<String, f64>,
    /// Why there is no result, or not all of it: that is neither good nor bad.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
    /// Why the test does not apply to this card or node: no result is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_applicable: Option<String>,
}

impl GpuSelfTested {
    /// The last test of the values of a GPU alone. Rates of products and copies between GPUs follow.
    pub const LAST: &str = "host-copy";

    /// Tests and rates in which good cards of one model agree. Copies to another GPU and from the host depend on where the other end is,
    /// and copies of all cards at once share the links of the host.
    pub const COMPARABLE: [(&str, &str); 9] = [
        ("memory-bandwidth", "copy_gb_s"),
        ("memory-pattern", "read_gb_s"),
        ("memory-pattern", "write_gb_s"),
        ("host-copy-alone", "device_to_host_gb_s"),
        ("gemm-rate-bf16", "rate_tflops"),
        ("gemm-rate-fp16", "rate_tflops"),
        ("gemm-rate-tf32", "rate_tflops"),
        ("gemm-rate-fp8", "rate_tflops"),
        ("gemm-rate-fp32", "rate_tflops"),
    ];
}

/// Comparison of every value with what it must be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ValueCheck {
    /// The test has no values, or did not come to comparing them.
    None,
    /// All are right.
    Right {
        /// Values that were compared.
        compared: u64,
        /// Digest of a product: the same on every card, in hexadecimal digits.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        digest: Option<String>,
    },
    /// Some are wrong.
    Wrong {
        /// Values that were compared.
        compared: u64,
        /// Number of wrong ones.
        wrong: u64,
        /// The first of them, at most eight.
        first: Vec<WrongValue>,
    },
}

/// A value that a GPU computed or kept wrongly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrongValue {
    /// Where: `tile 3,17, row 402, column 2190`, or `byte 0x1f00`.
    pub place: String,
    /// Its bits, in hexadecimal digits.
    pub got: String,
    /// The right bits.
    pub want: String,
}
