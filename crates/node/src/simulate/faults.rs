use std::fmt;
use std::str::FromStr;

use super::SimulateError;

/// What has the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultPart {
    /// A GPU, by NVML index.
    Gpu,
    /// A compute HCA, by its place in the list of rails.
    Hca,
    /// A required mount, by its place in the host part.
    Mount,
    /// The node as a whole; takes no index.
    Node,
}

/// One named fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is explained to people in FAULTS")]
pub enum FaultKind {
    GpuLost,
    GpuMissing,
    GpuUnreadable,
    GpuResetRequired,
    GpuRecoveryAction,
    GpuEccUncorrected,
    GpuEccCorrected,
    GpuRemapPending,
    GpuRemapFailed,
    GpuNvlinkDown,
    GpuPcieNarrow,
    GpuProcessLeftover,
    GpuProcessExiting,
    GpuXid(u32),
    NvmlMissing,
    NvmlSlow,
    NvmlSilent,
    NvmlStuck,
    IbMissing,
    IbPortDown,
    IbPortPolling,
    IbPortInit,
    IbRateLow,
    IbLinkFlapping,
    IbSymbolErrors,
    IbRenamed,
    MountMissing,
    MountReadOnly,
    MountStale,
    MountHang,
    KmsgUnreadable,
}

/// A fault for people: what `railgate simulate --list` prints.
#[derive(Clone, Copy, Debug)]
pub struct FaultInfo {
    /// `gpu-lost`; `gpu-xid-<code>` stands for any code.
    pub id: &'static str,
    /// One line.
    pub about: &'static str,
    /// What has it.
    pub part: FaultPart,
    /// Where it is when no index is given.
    pub default_index: u32,
    kind: FaultKind,
}

/// A fault at its place: `gpu-lost@3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which.
    pub kind: FaultKind,
    /// Where; 0 for faults of the whole node.
    pub index: u32,
}

const XID: &str = "gpu-xid-";

const fn gpu(id: &'static str, kind: FaultKind, about: &'static str) -> FaultInfo {
    FaultInfo { id, about, part: FaultPart::Gpu, default_index: 3, kind }
}

const fn hca(id: &'static str, kind: FaultKind, about: &'static str) -> FaultInfo {
    FaultInfo { id, about, part: FaultPart::Hca, default_index: 2, kind }
}

const fn mount(id: &'static str, kind: FaultKind, about: &'static str) -> FaultInfo {
    FaultInfo { id, about, part: FaultPart::Mount, default_index: 0, kind }
}

const fn node(id: &'static str, kind: FaultKind, about: &'static str) -> FaultInfo {
    FaultInfo { id, about, part: FaultPart::Node, default_index: 0, kind }
}

/// All of them.
pub const FAULTS: &[FaultInfo] = &[
    gpu("gpu-lost", FaultKind::GpuLost, "NVML says that the GPU is lost, the kernel log has Xid 79"),
    gpu("gpu-missing", FaultKind::GpuMissing, "the GPU is neither on the PCI bus nor in NVML's count"),
    gpu("gpu-unreadable", FaultKind::GpuUnreadable, "NVML cannot open the GPU and does not say why"),
    gpu("gpu-reset-required", FaultKind::GpuResetRequired, "NVML says that the GPU must be reset"),
    gpu(
        "gpu-recovery-action",
        FaultKind::GpuRecoveryAction,
        "the driver asks for a reset of the GPU (field 230)",
    ),
    gpu("gpu-ecc-uncorrected", FaultKind::GpuEccUncorrected, "two uncorrectable memory errors since boot"),
    gpu("gpu-ecc-corrected", FaultKind::GpuEccCorrected, "60 million corrected memory errors since boot"),
    gpu("gpu-remap-pending", FaultKind::GpuRemapPending, "a row remap waits for a reset"),
    gpu("gpu-remap-failed", FaultKind::GpuRemapFailed, "a row remap failed"),
    gpu("gpu-nvlink-down", FaultKind::GpuNvlinkDown, "the GPU's last NVLink is down"),
    gpu("gpu-pcie-narrow", FaultKind::GpuPcieNarrow, "the PCIe link has half of its lanes"),
    gpu("gpu-process-leftover", FaultKind::GpuProcessLeftover, "a process of no job holds the GPU"),
    gpu("gpu-process-exiting", FaultKind::GpuProcessExiting, "a process on the GPU is about to go"),
    FaultInfo {
        id: "gpu-xid-<code>",
        about: "the kernel log has this Xid, for example gpu-xid-94",
        part: FaultPart::Gpu,
        default_index: 3,
        kind: FaultKind::GpuXid(0),
    },
    node("nvml-missing", FaultKind::NvmlMissing, "the NVML library is not installed"),
    node("nvml-slow", FaultKind::NvmlSlow, "NVML takes eight seconds"),
    node("nvml-silent", FaultKind::NvmlSilent, "NVML gives no answer; its reader can be killed"),
    node("nvml-stuck", FaultKind::NvmlStuck, "NVML gives no answer; its reader hangs in the kernel"),
    hca("ib-missing", FaultKind::IbMissing, "the HCA is on the PCI bus, and no driver holds it"),
    hca("ib-port-down", FaultKind::IbPortDown, "the port is down and disabled"),
    hca(
        "ib-port-polling",
        FaultKind::IbPortPolling,
        "the port is down and looks for its other end: cable or optic",
    ),
    hca("ib-port-init", FaultKind::IbPortInit, "the link is up, and no subnet manager has come by"),
    hca("ib-rate-low", FaultKind::IbRateLow, "the port runs at half its rate"),
    hca("ib-link-flapping", FaultKind::IbLinkFlapping, "the link went down five times since boot"),
    hca("ib-symbol-errors", FaultKind::IbSymbolErrors, "the port counts 50,000 symbol errors"),
    node("ib-renamed", FaultKind::IbRenamed, "no fault: the HCAs have other names than on the other nodes"),
    mount(
        "mount-missing",
        FaultKind::MountMissing,
        "a required mount is not mounted (0 is /home, 1 is /scratch)",
    ),
    mount("mount-read-only", FaultKind::MountReadOnly, "a required mount is read-only"),
    mount("mount-stale", FaultKind::MountStale, "a required mount answers with a stale file handle"),
    mount("mount-hang", FaultKind::MountHang, "a required mount gives no answer"),
    node("kmsg-unreadable", FaultKind::KmsgUnreadable, "the kernel log cannot be read"),
];

impl FaultKind {
    fn info(self) -> Option<&'static FaultInfo> {
        let template = if let FaultKind::GpuXid(_) = self { FaultKind::GpuXid(0) } else { self };
        FAULTS.iter().find(|info| info.kind == template)
    }

    /// What has this fault.
    pub fn part(self) -> FaultPart {
        self.info().map_or(FaultPart::Node, |info| info.part)
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FaultKind::GpuXid(code) => write!(f, "{XID}{code}"),
            kind => f.write_str(kind.info().map_or("unnamed", |info| info.id)),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind.part() {
            FaultPart::Node => self.kind.fmt(f),
            _ => write!(f, "{}@{}", self.kind, self.index),
        }
    }
}

impl FromStr for Fault {
    type Err = SimulateError;

    /// `gpu-lost@3`, `gpu-xid-94`, `nvml-missing`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let shown = || crate::sysfs::printable(&text.chars().take(80).collect::<String>());
        let (id, index) = match text.split_once('@') {
            Some((id, index)) => (id, Some(index)),
            None => (text, None),
        };
        let code = id.strip_prefix(XID).and_then(|code| code.parse().ok());
        let (info, kind) = match code {
            Some(code) => (FaultKind::GpuXid(code).info(), FaultKind::GpuXid(code)),
            None => {
                let info = FAULTS.iter().find(|info| info.id == id && info.kind != FaultKind::GpuXid(0));
                (info, info.map_or(FaultKind::GpuXid(0), |info| info.kind))
            }
        };
        let Some(info) = info else {
            let known = FAULTS.iter().map(|info| info.id).collect::<Vec<_>>().join(", ");
            return Err(SimulateError::UnknownFault { fault: shown(), known });
        };
        let index = match (index, info.part) {
            (None, _) => info.default_index,
            (Some(_), FaultPart::Node) => {
                let why = "it concerns the whole node and takes no index".to_owned();
                return Err(SimulateError::Index { fault: shown(), why });
            }
            (Some(index), part) => {
                // People know HCAs by name.
                let number = index.strip_prefix("mlx5_").filter(|_| part == FaultPart::Hca).unwrap_or(index);
                number.parse().map_err(|_| SimulateError::Index {
                    fault: shown(),
                    why: "the index after '@' is no number".to_owned(),
                })?
            }
        };
        Ok(Fault { kind, index })
    }
}
