//! One file per check. A new check needs its file here, its `mod` line and its row in the register below.

use crate::register::register;

mod boot_arg;
mod clock;
mod cloud_maintenance;
mod cpu;
mod dimm;
mod disk;
mod fabric_manager;
mod gpu_acs;
mod gpu_clocks;
mod gpu_count;
mod gpu_direct;
mod gpu_ecc;
mod gpu_fabric;
mod gpu_identity;
mod gpu_link_errors;
mod gpu_lost;
mod gpu_memory;
mod gpu_mig;
mod gpu_nvlink;
mod gpu_pcie;
mod gpu_peers;
mod gpu_persistence;
mod gpu_power;
mod gpu_processes;
mod gpu_recovery_action;
mod gpu_remap;
mod gpu_retired_pages;
pub(crate) mod gpu_self_test;
mod gpu_sxid;
mod gpu_temperature;
mod gpu_throttle;
mod gpu_versions;
mod gpu_window;
mod gpu_xid;
mod ib_congestion;
mod ib_count;
mod ib_distance;
mod ib_errors;
mod ib_firmware;
mod ib_flap;
mod ib_interface;
mod ib_layer;
mod ib_lid;
mod ib_pkey;
mod ib_port;
mod ib_rate;
mod ib_slot;
mod ib_transport;
mod ib_trend;
mod ib_width;
mod kernel_log;
mod kmsg;
mod kmsg_forged;
pub(crate) mod kmsg_table;
mod memlock;
mod memory;
mod module;
mod mounts;

mod nvme;
mod optic;
mod part_silent;
mod rdma_self_test;
mod read_only;
mod roce_gid;
mod roce_mtu;
mod roce_pause;
mod service;
mod shm;
mod site;
mod tasks;
mod topology_file;
mod xid_counterparts;

register! {
    gpu_lost::GpuLost = "gpu-lost",
    gpu_recovery_action::GpuRecoveryAction = "gpu-recovery-action",
    gpu_xid::GpuXid = "gpu-xid",
    gpu_sxid::GpuSxid = "gpu-sxid",
    gpu_ecc::GpuEcc = "gpu-ecc",
    gpu_remap::GpuRemap = "gpu-remap",
    gpu_count::GpuCount = "gpu-count",
    gpu_fabric::GpuFabricState = "gpu-fabric",
    gpu_nvlink::GpuNvlink = "gpu-nvlink",
    gpu_peers::GpuPeers = "gpu-peers",
    gpu_pcie::GpuPcie = "gpu-pcie",
    gpu_retired_pages::GpuRetiredPages = "gpu-retired-pages",
    gpu_self_test::GpuSelfTest = "gpu-self-test",
    gpu_throttle::GpuThrottle = "gpu-throttle",
    gpu_temperature::GpuTemperature = "gpu-temperature",
    gpu_link_errors::GpuLinkErrors = "gpu-link-errors",
    ib_count::IbCount = "ib-count",
    ib_port::IbPort = "ib-port",
    ib_rate::IbRate = "ib-rate",
    rdma_self_test::RdmaSelfTest = "rdma-self-test",
    ib_flap::IbFlap = "ib-flap",
    ib_layer::IbLayer = "ib-layer",
    ib_errors::IbErrors = "ib-errors",
    optic::OpticModules = "optic",
    ib_width::IbWidth = "ib-width",
    ib_lid::IbLid = "ib-lid",
    ib_pkey::IbPkey = "ib-pkey",
    roce_gid::RoceGid = "roce-gid",
    roce_mtu::RoceMtu = "roce-mtu",
    ib_interface::IbInterface = "ib-interface",
    ib_firmware::IbFirmware = "ib-firmware",
    ib_slot::IbSlot = "ib-slot",
    ib_distance::IbDistance = "ib-distance",
    gpu_direct::GpuDirect = "gpu-direct",
    roce_pause::RocePause = "roce-pause",
    ib_transport::IbTransport = "ib-transport",
    ib_congestion::IbCongestion = "ib-congestion",
    ib_trend::IbTrend = "ib-trend",
    mounts::Mounts = "mounts",
    part_silent::PartSilent = "part-silent",
    gpu_processes::GpuProcesses = "gpu-processes",
    gpu_memory::GpuMemory = "gpu-memory",
    gpu_identity::GpuIdentity = "gpu-identity",
    gpu_mig::GpuMig = "gpu-mig",
    gpu_power::GpuPower = "gpu-power",
    gpu_clocks::GpuClocks = "gpu-clocks",
    gpu_acs::GpuAcs = "gpu-acs",
    gpu_versions::GpuVersions = "gpu-versions",
    fabric_manager::FabricManager = "fabric-manager",
    gpu_persistence::GpuPersistence = "gpu-persistence",
    site::Site = "site",
    read_only::ReadOnly = "read-only",
    nvme::NvmeDrives = "nvme",
    dimm::DimmErrors = "dimm",
    memory::MemorySize = "memory",
    cpu::Processors = "cpu",
    tasks::Tasks = "tasks",
    service::Services = "service",
    kmsg::KernelMessages = "kmsg",
    kmsg_forged::ForgedRecords = "kmsg-forged",
    disk::Disk = "disk",
    shm::SharedMemory = "shm",
    module::Modules = "module",
    boot_arg::BootArgs = "boot-arg",
    memlock::Memlock = "memlock",
    clock::ClockKept = "clock",
    topology_file::TopologyFile = "topology-file",
    kernel_log::KernelLogReadable = "kernel-log",
    cloud_maintenance::CloudMaintenance = "cloud-maintenance",
}
