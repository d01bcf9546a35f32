//! One file per check. To add one: its file, its `mod` line, its row.

use crate::register::register;

mod boot_arg;
mod clock;
mod cpu;
mod dimm;
mod disk;
mod gpu_count;
mod gpu_ecc;
mod gpu_lost;
mod gpu_nvlink;
mod gpu_processes;
mod gpu_recovery_action;
mod gpu_remap;
mod gpu_xid;
mod ib_count;
mod ib_port;
mod ib_rate;
mod kernel_log;
mod kmsg;
mod kmsg_table;
mod memlock;
mod memory;
mod module;
mod mounts;
mod nvme;
mod part_silent;
mod read_only;
mod service;
mod shm;
mod site;
mod tasks;
mod topology_file;
mod xid_table;

register! {
    gpu_lost::GpuLost = "gpu-lost",
    gpu_recovery_action::GpuRecoveryAction = "gpu-recovery-action",
    gpu_xid::GpuXid = "gpu-xid",
    gpu_ecc::GpuEcc = "gpu-ecc",
    gpu_remap::GpuRemap = "gpu-remap",
    gpu_count::GpuCount = "gpu-count",
    gpu_nvlink::GpuNvlink = "gpu-nvlink",
    ib_count::IbCount = "ib-count",
    ib_port::IbPort = "ib-port",
    ib_rate::IbRate = "ib-rate",
    mounts::Mounts = "mounts",
    part_silent::PartSilent = "part-silent",
    gpu_processes::GpuProcesses = "gpu-processes",
    site::Site = "site",
    read_only::ReadOnly = "read-only",
    nvme::NvmeDrives = "nvme",
    dimm::DimmErrors = "dimm",
    memory::MemorySize = "memory",
    cpu::Processors = "cpu",
    tasks::Tasks = "tasks",
    service::Services = "service",
    kmsg::KernelMessages = "kmsg",
    disk::Disk = "disk",
    shm::SharedMemory = "shm",
    module::Modules = "module",
    boot_arg::BootArgs = "boot-arg",
    memlock::Memlock = "memlock",
    clock::ClockKept = "clock",
    topology_file::TopologyFile = "topology-file",
    kernel_log::KernelLogReadable = "kernel-log",
}
