use std::fmt;
use std::str::FromStr;

use railgate_text::did_you_mean;

use super::SimulateError;
use super::fabric_faults::FabricFault;
use super::gpu_self_test::GpuSelfTestFault;
use super::host_faults::{HostFault, log_lines};

/// The part that has the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultPart {
    /// A GPU, by NVML index.
    Gpu,
    /// A compute HCA, by its rail number.
    Hca,
    /// A required mount, by its index in the host part.
    Mount,
    /// The whole node; takes no index.
    Node,
}

/// The kind of a fault.
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
    GpuXidByNvml,
    GpuEccContained,
    GpuEccOff,
    GpuEccModePending,
    GpuEccAggregate,
    GpuSramThreshold,
    GpuRemapMany,
    GpuPagesPending,
    GpuPagesFull,
    GpuThrottleThermal,
    GpuThrottlePowerBrake,
    GpuThrottled,
    GpuHot,
    GpuMemoryHot,
    GpuPowerCapped,
    GpuPcieSlow,
    GpuPcieReplays,
    GpuAcsOn,
    GpuNvlinkErrors,
    GpuFabricNotStarted,
    GpuFabricFailed,
    GpuFabricUnhealthy,
    GpuFabricOtherClique,
    GpuPeersBlocked,
    GpuPersistenceOff,
    GpuClocksLowered,
    GpuMigOn,
    GpuVbiosOther,
    GpuMemoryHeld,
    GpuMemoryShort,
    GpuForeign,
    GpuNvlink5Fatal,
    GpuNvlink5Nonfatal,
    DriverOther,
    LibraryOther,
    FabricManagerOther,
    SwitchFatal,
    SwitchLink,
    SwitchNonfatal,
    SwitchHalt,
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
    KmsgForged,
    Fabric(FabricFault),
    GpuSelfTest(GpuSelfTestFault),
    Host(HostFault),
}

/// Description of a fault, as `railgate simulate --list` prints it.
#[derive(Clone, Copy, Debug)]
pub struct FaultInfo {
    /// Id, for example `gpu-lost`; `gpu-xid-<code>` stands for any code.
    pub id: &'static str,
    /// Description in one line.
    pub about: &'static str,
    /// The part that has it.
    pub part: FaultPart,
    /// Index if none is given.
    pub default_index: u32,
    kind: FaultKind,
}

/// A fault and its place, for example `gpu-lost@3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The fault.
    pub kind: FaultKind,
    /// Index of the part; 0 for faults of the whole node.
    pub index: u32,
}

const XID: &str = "gpu-xid-";

const fn gpu(id: &'static str, kind: FaultKind, about: &'static str) -> FaultInfo {
    FaultInfo { id, about, part: FaultPart::Gpu, default_index: 3, kind }
}

const fn hca(id: &'static str, kind: FaultKind, about: &'static str) -> FaultInfo {
    FaultInfo { id, about, part: FaultPart::Hca, default_index: 2, kind }
}

const fn fabric(id: &'static str, fault: FabricFault, about: &'static str) -> FaultInfo {
    hca(id, FaultKind::Fabric(fault), about)
}

const fn gpu_self_test(id: &'static str, fault: GpuSelfTestFault, about: &'static str) -> FaultInfo {
    gpu(id, FaultKind::GpuSelfTest(fault), about)
}

const fn mount(id: &'static str, kind: FaultKind, about: &'static str) -> FaultInfo {
    FaultInfo { id, about, part: FaultPart::Mount, default_index: 0, kind }
}

const fn node(id: &'static str, kind: FaultKind, about: &'static str) -> FaultInfo {
    FaultInfo { id, about, part: FaultPart::Node, default_index: 0, kind }
}

const fn host(id: &'static str, fault: HostFault, about: &'static str) -> FaultInfo {
    node(id, FaultKind::Host(fault), about)
}

const fn kernel(id: &'static str, text: &'static str, about: &'static str) -> FaultInfo {
    host(id, HostFault::LogLine(text), about)
}

/// All faults.
pub const FAULTS: &[FaultInfo] = &[
    gpu("gpu-lost", FaultKind::GpuLost, "NVML reports the GPU as lost; the kernel logs Xid 79"),
    gpu("gpu-missing", FaultKind::GpuMissing, "the GPU is neither on the PCI bus nor in NVML's count"),
    gpu("gpu-unreadable", FaultKind::GpuUnreadable, "NVML cannot open the GPU and gives no reason"),
    gpu("gpu-reset-required", FaultKind::GpuResetRequired, "NVML reports that the GPU must be reset"),
    gpu(
        "gpu-recovery-action",
        FaultKind::GpuRecoveryAction,
        "the driver requests a reset of the GPU (field 230)",
    ),
    gpu("gpu-ecc-uncorrected", FaultKind::GpuEccUncorrected, "two uncorrectable memory errors since boot"),
    gpu("gpu-ecc-corrected", FaultKind::GpuEccCorrected, "60 million corrected memory errors since boot"),
    gpu("gpu-remap-pending", FaultKind::GpuRemapPending, "a row remap is pending until the next reset"),
    gpu("gpu-remap-failed", FaultKind::GpuRemapFailed, "a row remap failed"),
    gpu("gpu-nvlink-down", FaultKind::GpuNvlinkDown, "the GPU's last NVLink is down"),
    gpu("gpu-pcie-narrow", FaultKind::GpuPcieNarrow, "the PCIe link has half of its lanes"),
    gpu(
        "gpu-process-leftover",
        FaultKind::GpuProcessLeftover,
        "a process that belongs to no job uses the GPU",
    ),
    gpu("gpu-process-exiting", FaultKind::GpuProcessExiting, "a process that uses the GPU is about to exit"),
    gpu(
        "gpu-ecc-contained",
        FaultKind::GpuEccContained,
        "one uncorrectable memory error, contained by the driver (Xid 94)",
    ),
    gpu("gpu-ecc-off", FaultKind::GpuEccOff, "ECC is off"),
    gpu("gpu-ecc-mode-pending", FaultKind::GpuEccModePending, "ECC will be off after the next reset"),
    gpu(
        "gpu-ecc-aggregate",
        FaultKind::GpuEccAggregate,
        "600 uncorrectable memory errors over the card's life, none since boot",
    ),
    gpu(
        "gpu-sram-threshold",
        FaultKind::GpuSramThreshold,
        "the GPU reports more SRAM errors than its threshold",
    ),
    gpu("gpu-remap-many", FaultKind::GpuRemapMany, "512 rows are remapped because of uncorrectable errors"),
    gpu(
        "gpu-pages-pending",
        FaultKind::GpuPagesPending,
        "page retirements are pending until the next reset (before Ampere)",
    ),
    gpu("gpu-pages-full", FaultKind::GpuPagesFull, "62 of at most 64 pages are retired (before Ampere)"),
    gpu("gpu-throttle-thermal", FaultKind::GpuThrottleThermal, "hardware thermal slowdown is active"),
    gpu("gpu-throttle-power-brake", FaultKind::GpuThrottlePowerBrake, "the power brake is active"),
    gpu(
        "gpu-throttled",
        FaultKind::GpuThrottled,
        "hardware thermal slowdown was active for 20 minutes since the driver was loaded",
    ),
    gpu("gpu-hot", FaultKind::GpuHot, "the GPU is two degrees above its slowdown temperature"),
    gpu("gpu-memory-hot", FaultKind::GpuMemoryHot, "the GPU's memory is above its temperature limit"),
    gpu("gpu-power-capped", FaultKind::GpuPowerCapped, "the power limit is half of the expected value"),
    gpu("gpu-pcie-slow", FaultKind::GpuPcieSlow, "the PCIe link stays at generation 1 under load"),
    gpu("gpu-pcie-replays", FaultKind::GpuPcieReplays, "100,000 PCIe replays since the driver was loaded"),
    gpu(
        "gpu-acs-on",
        FaultKind::GpuAcsOn,
        "ACS is on: the PCIe switch above the GPU sends peer traffic through the host",
    ),
    gpu(
        "gpu-nvlink-errors",
        FaultKind::GpuNvlinkErrors,
        "an NVLink of the GPU has 5,000 replays and 3 recoveries",
    ),
    gpu(
        "gpu-fabric-not-started",
        FaultKind::GpuFabricNotStarted,
        "the GPU is not registered with its NVLink fabric",
    ),
    gpu("gpu-fabric-failed", FaultKind::GpuFabricFailed, "the registration with the NVLink fabric failed"),
    gpu(
        "gpu-fabric-unhealthy",
        FaultKind::GpuFabricUnhealthy,
        "the NVLink fabric reports degraded bandwidth for the GPU",
    ),
    gpu(
        "gpu-fabric-other-clique",
        FaultKind::GpuFabricOtherClique,
        "the GPU is in a different clique from its neighbours",
    ),
    gpu(
        "gpu-peers-blocked",
        FaultKind::GpuPeersBlocked,
        "the GPU and its neighbours cannot read each other's memory",
    ),
    gpu("gpu-persistence-off", FaultKind::GpuPersistenceOff, "persistence mode is off"),
    gpu(
        "gpu-clocks-lowered",
        FaultKind::GpuClocksLowered,
        "the application clocks are set below their default",
    ),
    gpu("gpu-mig-on", FaultKind::GpuMigOn, "MIG is on"),
    gpu("gpu-vbios-other", FaultKind::GpuVbiosOther, "the GPU's VBIOS version differs from its neighbours'"),
    gpu("gpu-memory-held", FaultKind::GpuMemoryHeld, "30 GiB of memory are in use without a visible process"),
    gpu("gpu-memory-short", FaultKind::GpuMemoryShort, "half of the GPU's memory is missing"),
    gpu("gpu-foreign", FaultKind::GpuForeign, "the GPU is of a different model from the profile's"),
    gpu("gpu-nvlink5-fatal", FaultKind::GpuNvlink5Fatal, "the kernel logs a fatal NVLink 5 event (Xid 149)"),
    gpu(
        "gpu-nvlink5-nonfatal",
        FaultKind::GpuNvlink5Nonfatal,
        "the kernel logs an NVLink 5 event that is not fatal (Xid 145)",
    ),
    node("driver-other", FaultKind::DriverOther, "the driver's version differs from the other nodes'"),
    node(
        "fabric-manager-other",
        FaultKind::FabricManagerOther,
        "the version of the installed fabric manager differs from the driver's",
    ),
    node("nvml-other", FaultKind::LibraryOther, "the NVML library's version differs from the driver's"),
    node("nvswitch-fatal", FaultKind::SwitchFatal, "the kernel logs a fatal NVSwitch error (SXid 22003)"),
    node("nvswitch-link", FaultKind::SwitchLink, "the kernel logs a fatal NVSwitch link error (SXid 20034)"),
    node("nvswitch-soe-halt", FaultKind::SwitchHalt, "an NVSwitch's controller halted (SXid 26006)"),
    node(
        "nvswitch-nonfatal",
        FaultKind::SwitchNonfatal,
        "the kernel logs a corrected NVSwitch error (SXid 12028)",
    ),
    FaultInfo {
        id: "gpu-xid-<code>",
        about: "the kernel logs this Xid, for example gpu-xid-94",
        part: FaultPart::Gpu,
        default_index: 3,
        kind: FaultKind::GpuXid(0),
    },
    gpu(
        "gpu-nvml-xid",
        FaultKind::GpuXidByNvml,
        "the kernel log cannot be read; NVML reported Xid 48 during the job",
    ),
    node("nvml-missing", FaultKind::NvmlMissing, "the NVML library is not installed"),
    node("nvml-slow", FaultKind::NvmlSlow, "NVML takes eight seconds to answer"),
    node("nvml-silent", FaultKind::NvmlSilent, "NVML does not answer; its reader process can be killed"),
    node("nvml-stuck", FaultKind::NvmlStuck, "NVML does not answer; its reader process hangs in the kernel"),
    hca("ib-missing", FaultKind::IbMissing, "the HCA is on the PCI bus but has no driver"),
    hca("ib-port-down", FaultKind::IbPortDown, "the port is down and disabled"),
    hca(
        "ib-port-polling",
        FaultKind::IbPortPolling,
        "the port is down and polling: a cable or transceiver fault",
    ),
    hca(
        "ib-port-init",
        FaultKind::IbPortInit,
        "the link is up, but no subnet manager has configured the port",
    ),
    hca("ib-rate-low", FaultKind::IbRateLow, "the port runs at half its rate"),
    hca("ib-link-flapping", FaultKind::IbLinkFlapping, "the link went down five times since boot"),
    hca("ib-symbol-errors", FaultKind::IbSymbolErrors, "the port has 50,000 symbol errors"),
    fabric("ib-firmware", FabricFault::Firmware, "the HCA's firmware version differs from the other HCAs'"),
    fabric("ib-swapped", FabricFault::Swapped, "the names of the HCA and its neighbour are swapped"),
    fabric("ib-lane-lost", FabricFault::LaneLost, "the port uses one of its four lanes"),
    fabric("ib-layer", FabricFault::Layer, "the port's link layer is Ethernet"),
    fabric("ib-no-lid", FabricFault::NoLid, "the port is active without a LID"),
    fabric("ib-no-sm", FabricFault::NoSubnetManager, "the port is active but has no subnet manager"),
    fabric("ib-pkey-missing", FabricFault::PkeyMissing, "the port is in no partition"),
    fabric(
        "ib-pkey-limited",
        FabricFault::PkeyLimited,
        "the port is a limited member of its partition (detected with [fabric] pkeys)",
    ),
    fabric(
        "ib-interface-down",
        FabricFault::InterfaceDown,
        "the HCA's interface is down (detected with [fabric] interfaces_up)",
    ),
    fabric("ib-far", FabricFault::Far, "the HCA is on the other socket (detected with [fabric] distance)"),
    fabric("ib-counters-unreadable", FabricFault::CountersUnreadable, "the port's counters cannot be read"),
    fabric(
        "ib-receive-errors",
        FabricFault::Counts("port_rcv_errors", 400),
        "400 packets arrived with errors",
    ),
    fabric(
        "ib-recoveries",
        FabricFault::Counts("link_error_recovery", 12),
        "the link recovered from errors twelve times",
    ),
    fabric(
        "ib-integrity",
        FabricFault::Counts("local_link_integrity_errors", 40),
        "the port's receiver exceeded its error limit 40 times",
    ),
    fabric("ib-link-dropped", FabricFault::Counts("link_downed", 1), "the link went down once and recovered"),
    fabric(
        "ib-out-of-sequence",
        FabricFault::Counts("out_of_sequence", 90_000),
        "90,000 packets arrived out of order",
    ),
    fabric(
        "ib-timeouts",
        FabricFault::Counts("local_ack_timeout_err", 500),
        "500 packets were not acknowledged in time",
    ),
    fabric(
        "ib-discards",
        FabricFault::Counts("port_xmit_discards", 70_000),
        "the port dropped 70,000 packets",
    ),
    fabric(
        "roce-ecn",
        FabricFault::Counts("np_ecn_marked_roce_packets", 9_000_000),
        "nine million ECN-marked packets arrived",
    ),
    fabric(
        "roce-discards",
        FabricFault::Counts("rx_discards_phy", 70_000),
        "the port discarded 70,000 received packets because its buffer was full",
    ),
    fabric(
        "roce-out-of-buffer",
        FabricFault::Counts("out_of_buffer", 70_000),
        "70,000 packets arrived while no receive buffer was posted",
    ),
    fabric(
        "roce-paused",
        FabricFault::Counts("rx_prio3_pause_duration", 600_000_000),
        "priority 3 was paused for ten minutes (detected from the second check run on)",
    ),
    fabric(
        "roce-pausing",
        FabricFault::Counts("tx_prio3_pause_duration", 600_000_000),
        "the port paused the switch for ten minutes (detected from the second check run on)",
    ),
    fabric(
        "roce-pause-storm",
        FabricFault::Counts("tx_pause_storm_error_events", 3),
        "the adapter stopped three pause storms (detected from the second check run on)",
    ),
    fabric(
        "ib-corrected-rising",
        FabricFault::Counts("rx_corrected_bits_phy", 2_000_000_000),
        "two billion corrected bits (detected if the port usually has fewer)",
    ),
    fabric(
        "roce-gid-missing",
        FabricFault::GidMissing,
        "the GID table has no IPv4 address (detected on an Ethernet fabric)",
    ),
    fabric(
        "roce-gid-v1",
        FabricFault::GidVersion,
        "the GID table has only RoCE v1 entries (detected on an Ethernet fabric)",
    ),
    fabric(
        "roce-gid-subnet",
        FabricFault::GidSubnet,
        "the address in the GID table is in another subnet (detected with [fabric] subnets)",
    ),
    fabric(
        "roce-mtu-low",
        FabricFault::MtuLow,
        "an interface has an MTU of 1500 bytes (detected with [fabric] mtu)",
    ),
    fabric("optic-hot", FabricFault::OpticHot, "the transceiver is above its warning temperature"),
    fabric(
        "optic-dark",
        FabricFault::OpticDark,
        "the transceiver reports an alarm: low receive power on one lane",
    ),
    fabric(
        "optic-dim",
        FabricFault::OpticDim,
        "the receive power of one lane is barely above the transceiver's warning limit",
    ),
    fabric(
        "optic-uneven",
        FabricFault::OpticUneven,
        "one lane of the transceiver has half the receive power of the others",
    ),
    fabric(
        "optic-ageing",
        FabricFault::OpticAgeing,
        "the bias current of a laser in the transceiver is close to its limit",
    ),
    fabric("optic-unreadable", FabricFault::OpticUnreadable, "the transceiver in the port cannot be read"),
    fabric("optic-copper", FabricFault::OpticCopper, "no fault: a copper cable, which has no monitors"),
    fabric(
        "rdma-self-test-fails",
        FabricFault::SelfTestFails,
        "the HCA cannot send data to itself in the self-test",
    ),
    node(
        "rdma-self-test-missing",
        FaultKind::Fabric(FabricFault::SelfTestMissing),
        "the self-test of the HCAs is requested, but its program is not installed",
    ),
    gpu_self_test(
        "gpu-self-test-wrong",
        GpuSelfTestFault::Wrong,
        "the GPU computes a wrong value in the self-test",
    ),
    gpu_self_test(
        "gpu-self-test-silent",
        GpuSelfTestFault::Silent,
        "the GPU does not answer after the first test of the self-test",
    ),
    gpu_self_test(
        "gpu-self-test-slow",
        GpuSelfTestFault::Slow,
        "the GPU's memory has two thirds of the others' read rate in the self-test",
    ),
    gpu_self_test(
        "gpu-self-test-nvlink",
        GpuSelfTestFault::NvLink,
        "an NVLink of the GPU is trained again while the GPUs copy to each other in the self-test",
    ),
    node(
        "gpu-self-test-missing",
        FaultKind::GpuSelfTest(GpuSelfTestFault::Missing),
        "the self-test of the GPUs is requested, but its program is not installed",
    ),
    node(
        "gpu-direct-missing",
        FaultKind::Fabric(FabricFault::DirectMissing),
        "an old kernel without nvidia_peermem: GPUDirect RDMA is unavailable",
    ),
    node("ib-renamed", FaultKind::IbRenamed, "no fault: the names of the HCAs differ from the other nodes'"),
    mount(
        "mount-missing",
        FaultKind::MountMissing,
        "a required mount is not mounted (0 is /home, 1 is /scratch)",
    ),
    mount("mount-read-only", FaultKind::MountReadOnly, "a required mount is read-only"),
    mount("mount-stale", FaultKind::MountStale, "a required mount returns a stale file handle"),
    mount("mount-hang", FaultKind::MountHang, "a required mount does not answer"),
    node("kmsg-unreadable", FaultKind::KmsgUnreadable, "the kernel log cannot be read"),
    node("kmsg-forged", FaultKind::KmsgForged, "the kernel log has a crashed process with the driver's name"),
    host(
        "host-silent",
        HostFault::HostSilent,
        "the host readings do not finish; the reader process can be killed",
    ),
    host(
        "host-stuck",
        HostFault::HostStuck,
        "the host readings do not finish; the reader process hangs in the kernel",
    ),
    host("disk-full", HostFault::DiskFull, "the root file system has 210 MiB free"),
    host("disk-inodes", HostFault::DiskInodes, "the root file system has 12 inodes free"),
    host("tmp-full", HostFault::TmpFull, "users have filled /tmp"),
    host("disk-read-only", HostFault::DiskReadOnly, "the kernel has made the root file system read-only"),
    host("disk-unreadable", HostFault::DiskUnreadable, "the root file system returns an I/O error"),
    host("nvme-dead", HostFault::NvmeDead, "an NVMe controller is dead"),
    host("nvme-hot", HostFault::NvmeHot, "an NVMe drive is above its critical temperature"),
    host("nvme-missing", HostFault::NvmeMissing, "an NVMe drive is missing (detected with [host] nvmes)"),
    host("nvme-read-only", HostFault::NvmeReadOnly, "an NVMe drive reports that it is read-only"),
    host(
        "nvme-spare-low",
        HostFault::NvmeSpareLow,
        "an NVMe drive reports that it has few spare blocks left",
    ),
    host("nvme-worn", HostFault::NvmeWorn, "an NVMe drive has used up its rated life"),
    host(
        "memory-missing",
        HostFault::MemoryMissing,
        "a sixteenth of the memory is missing (detected with [host] memory_gib)",
    ),
    host("dimm-missing", HostFault::DimmMissing, "a memory module is missing (detected with [host] dimms)"),
    host("dimm-uncorrected", HostFault::DimmUncorrected, "an uncorrected memory error since boot"),
    host("dimm-corrected", HostFault::DimmCorrected, "50,000 corrected memory errors since boot"),
    host("machine-check", HostFault::MachineCheck, "two machine check exceptions since boot"),
    host("cpu-offline", HostFault::CpuOffline, "eight processors are offline (detected with [host] cpus)"),
    host(
        "cpu-governor",
        HostFault::CpuGovernor,
        "eight processors use the powersave governor (detected with [host] governor)",
    ),
    host(
        "process-blocked",
        HostFault::ProcessBlocked,
        "a process is in D state (detected from the second check run on)",
    ),
    host("zombies", HostFault::Zombies, "4,000 zombie processes"),
    host("service-down", HostFault::ServiceDown, "chronyd is not running (detected if it is required)"),
    host(
        "services-unreadable",
        HostFault::ServicesUnreadable,
        "the services cannot be read (detected if one is required)",
    ),
    host("clock-unsynchronised", HostFault::ClockUnsynchronised, "the clock is not synchronised"),
    host("clock-off", HostFault::ClockOff, "the clock may be off by 90 s"),
    host(
        "module-missing",
        HostFault::ModuleMissing,
        "nvidia_peermem is not loaded (detected if it is required)",
    ),
    host(
        "boot-arg-missing",
        HostFault::BootArgMissing,
        "the kernel was booted without iommu=pt (detected if it is required)",
    ),
    host("memlock-low", HostFault::MemlockLow, "jobs may lock at most 8 MiB of memory"),
    host("shm-small", HostFault::ShmSmall, "/dev/shm has a size of 64 MiB"),
    host("shm-full", HostFault::ShmFull, "jobs have filled /dev/shm"),
    kernel("task-hung", log_lines::TASK_HUNG, "the kernel logs a hung task"),
    kernel("soft-lockup", log_lines::SOFT_LOCKUP, "the kernel logs a soft lockup of a processor"),
    kernel(
        "hard-lockup",
        log_lines::HARD_LOCKUP,
        "the kernel logs a hard lockup of a processor (interrupts off)",
    ),
    kernel("file-max", log_lines::FILE_MAX, "the kernel logs that the limit of open files is reached"),
    kernel("pcie-fatal", log_lines::PCIE_FATAL, "the kernel logs a fatal PCIe error of GPU 3"),
    kernel(
        "pcie-uncorrected",
        log_lines::PCIE_UNCORRECTED,
        "the kernel logs an uncorrected PCIe error of GPU 3",
    ),
    kernel("pcie-corrected", log_lines::PCIE_CORRECTED, "the kernel logs a corrected PCIe error of GPU 3"),
    kernel("hca-power", log_lines::HCA_POWER, "the kernel logs insufficient slot power for mlx5_2"),
    kernel("hca-cable", log_lines::HCA_CABLE, "the kernel logs an error of the transceiver in mlx5_2"),
    kernel("hca-health", log_lines::HCA_HEALTH, "the kernel logs a firmware error of mlx5_2"),
    kernel("hca-command", log_lines::HCA_COMMAND, "the kernel logs a command that timed out on mlx5_2"),
    kernel(
        "net-timeout",
        log_lines::NET_TIMEOUT,
        "the kernel logs a stuck transmit queue of the interface of mlx5_2",
    ),
    kernel("nfs-silent", log_lines::NFS_SILENT, "the kernel logs an NFS server that does not respond"),
    kernel("disk-error", log_lines::DISK_ERROR, "the kernel logs an I/O error"),
    kernel("nvme-timeout", log_lines::NVME_TIMEOUT, "the kernel logs a timeout of an NVMe controller"),
    kernel("nvme-path", log_lines::NVME_PATH, "the kernel logs an NVMe drive without a working path"),
    kernel("md-drive", log_lines::MD_DRIVE, "the kernel logs that an md array lost a drive"),
    kernel("fs-error", log_lines::FS_ERROR, "the kernel logs a file system error"),
    kernel("fs-read-only", log_lines::FS_READ_ONLY, "the kernel logs that a file system became read-only"),
    kernel("fs-shutdown", log_lines::FS_SHUTDOWN, "the kernel logs that a file system was shut down"),
    kernel(
        "memory-uncorrected",
        log_lines::MEMORY_UNCORRECTED,
        "the kernel logs an uncorrected memory error",
    ),
    kernel("memory-corrected", log_lines::MEMORY_CORRECTED, "the kernel logs a corrected memory error"),
    host("site-fail", HostFault::SiteFail, "a site check fails"),
    host("site-warn", HostFault::SiteWarn, "a site check warns"),
    host("site-silent", HostFault::SiteSilent, "a site check does not finish"),
    host("site-stuck", HostFault::SiteStuck, "a site check hangs in the kernel"),
    host("site-foreign", HostFault::SiteForeign, "the file of a site check belongs to a user"),
    host("site-broken", HostFault::SiteBroken, "a site check crashes"),
    host("topology-file-broken", HostFault::TopologyBroken, "NCCL refuses the site's topology file"),
    host(
        "topology-file-stale",
        HostFault::TopologyStale,
        "the site's topology file describes another machine",
    ),
    host("cloud-reboot", HostFault::CloudReboot, "Azure will reboot the machine in two hours"),
    host("cloud-freeze", HostFault::CloudFreeze, "Azure will pause the machine in two hours"),
    host("cloud-silent", HostFault::CloudSilent, "Azure's metadata service does not answer"),
    host("site-not-executable", HostFault::SiteNotExecutable, "the file of a site check is not executable"),
];

impl FaultKind {
    fn info(self) -> Option<&'static FaultInfo> {
        let template = if let FaultKind::GpuXid(_) = self { FaultKind::GpuXid(0) } else { self };
        FAULTS.iter().find(|info| info.kind == template)
    }

    /// Returns the part that has this fault.
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

    /// Parses for example `gpu-lost@3`, `gpu-xid-94` or `nvml-missing`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let shown = || railgate_text::clip(text, 80);
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
            let meant = did_you_mean(id, FAULTS.iter().map(|info| info.id));
            return Err(SimulateError::UnknownFault { fault: shown(), meant });
        };
        let index = match (index, info.part) {
            (None, _) => info.default_index,
            (Some(_), FaultPart::Node) => {
                let why = "it concerns the whole node and takes no index".to_owned();
                return Err(SimulateError::Index { fault: shown(), why });
            }
            (Some(index), part) => {
                // HCAs can be given by name.
                let number = index.strip_prefix("mlx5_").filter(|_| part == FaultPart::Hca).unwrap_or(index);
                number.parse().map_err(|_| SimulateError::Index {
                    fault: shown(),
                    why: "the index after '@' is not a number".to_owned(),
                })?
            }
        };
        Ok(Fault { kind, index })
    }
}
