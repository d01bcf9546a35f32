use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use railgate_model::{
    BlockedProcess, CloudEvent, DriveHealth, FileSystem, Part, Processes, Reading, Severity, SiteCheck,
    SiteFinding, SiteOutcome, Snapshot, Space, System, TopologyFile, TopologyRemark,
};

const DEADLINE_MS: f64 = 10_000.0;

/// Faults of the machine apart from GPUs and fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is explained to people in FAULTS")]
pub enum HostFault {
    HostSilent,
    HostStuck,
    DiskFull,
    DiskInodes,
    TmpFull,
    DiskReadOnly,
    DiskUnreadable,
    NvmeDead,
    NvmeHot,
    NvmeMissing,
    NvmeReadOnly,
    NvmeSpareLow,
    NvmeWorn,
    MemoryMissing,
    DimmMissing,
    DimmUncorrected,
    DimmCorrected,
    MachineCheck,
    CpuOffline,
    CpuGovernor,
    ProcessBlocked,
    Zombies,
    ServiceDown,
    ServicesUnreadable,
    ClockUnsynchronised,
    ClockOff,
    ModuleMissing,
    BootArgMissing,
    MemlockLow,
    ShmSmall,
    ShmFull,
    SiteFail,
    SiteWarn,
    SiteSilent,
    SiteStuck,
    SiteForeign,
    SiteBroken,
    SiteNotExecutable,
    TopologyBroken,
    TopologyStale,
    CloudReboot,
    CloudFreeze,
    CloudSilent,
    /// A line in the kernel log.
    LogLine(&'static str),
}

/// Kernel log lines, for faults that only the log shows. `GPU` and `HCA` stand for the address of the first one.
pub(super) mod log_lines {
    pub(crate) const TASK_HUNG: &str = "INFO: task python3:4711 blocked for more than 120 seconds.";
    pub(crate) const SOFT_LOCKUP: &str = "watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [python3:4711]";
    pub(crate) const HARD_LOCKUP: &str = "NMI watchdog: Watchdog detected hard LOCKUP on cpu 12";
    pub(crate) const FILE_MAX: &str = "VFS: file-max limit 1048576 reached";
    pub(crate) const HCA_COMMAND: &str = "mlx5_core HCA: wait_func:1176:(pid 812): ENABLE_HCA(0x104) timeout. Will cause a leak of a command resource";
    pub(crate) const NET_TIMEOUT: &str =
        "mlx5_core HCA ibs2: NETDEV WATCHDOG: CPU: 12: transmit queue 5 timed out 5012 ms";
    pub(crate) const NVME_PATH: &str = "block nvme1n1: no available path - failing I/O";
    pub(crate) const MD_DRIVE: &str = "md/raid1:md0: Disk failure on nvme1n1p2, disabling device.";
    pub(crate) const PCIE_FATAL: &str =
        "nvidia GPU: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)";
    pub(crate) const PCIE_UNCORRECTED: &str = "nvidia GPU: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)";
    pub(crate) const PCIE_CORRECTED: &str =
        "nvidia GPU: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)";
    pub(crate) const HCA_POWER: &str =
        "mlx5_core HCA: mlx5_pcie_event:301:(pid 812): Detected insufficient power on the PCIe slot (27W).";
    pub(crate) const HCA_CABLE: &str =
        "mlx5_core HCA: Port module event[error]: module 0, Cable error, High Temperature";
    pub(crate) const HCA_HEALTH: &str =
        "mlx5_core HCA: poll_health:975:(pid 0): device's health compromised - reached miss count";
    pub(crate) const NFS_SILENT: &str = "nfs: server storage not responding, still trying";
    pub(crate) const DISK_ERROR: &str = "I/O error, dev nvme1n1, sector 9175040 op 0x0:(READ) flags 0x80700";
    pub(crate) const NVME_TIMEOUT: &str = "nvme nvme1: I/O 12 QID 3 timeout, aborting";
    pub(crate) const FS_ERROR: &str =
        "EXT4-fs error (device md0): ext4_lookup:1858: inode #2: iget: checksum invalid";
    pub(crate) const FS_READ_ONLY: &str = "EXT4-fs (md0): Remounting filesystem read-only";
    pub(crate) const FS_SHUTDOWN: &str =
        "XFS (md1): Corruption of in-memory data detected.  Shutting down filesystem";
    pub(crate) const MEMORY_UNCORRECTED: &str =
        "EDAC MC1: 1 UE memory read error on CPU_SrcID#0_MC#1_Chan#0_DIMM#0 (channel:0 slot:0)";
    pub(crate) const MEMORY_CORRECTED: &str =
        "EDAC MC1: 2 CE memory read error on CPU_SrcID#0_MC#1_Chan#0_DIMM#0 (channel:0 slot:0)";
}

/// Adds an event of Azure that is due in two hours.
fn announce(snapshot: &mut Snapshot, kind: &str) {
    let event = CloudEvent {
        kind: kind.to_owned(),
        started: false,
        start: Reading::Known(snapshot.taken + 2 * 3_600_000),
        end: None,
        text: "Host server is undergoing maintenance.".to_owned(),
    };
    snapshot.extras.cloud_maintenance = Some(Reading::Known(vec![event]));
}

/// Applies the fault and returns the line that the kernel logs for it, if any.
pub(super) fn apply(snapshot: &mut Snapshot, fault: HostFault) -> Option<String> {
    match fault {
        HostFault::HostSilent => snapshot.host = Part::Silent { after_ms: DEADLINE_MS },
        HostFault::HostStuck => snapshot.host = Part::Stuck { after_ms: DEADLINE_MS },
        HostFault::LogLine(text) => return line(snapshot, text),
        HostFault::MemoryMissing => {
            if let Part::Read { data, .. } = &mut snapshot.host {
                data.memory_mib = data.memory_mib.clone().map(|mib| mib - mib / 16);
            }
        }
        HostFault::CloudReboot => announce(snapshot, "Reboot"),
        HostFault::CloudFreeze => announce(snapshot, "Freeze"),
        HostFault::CloudSilent => {
            let why =
                "169.254.169.254:80: /metadata/scheduledevents: no answer within the deadline".to_owned();
            snapshot.extras.cloud_maintenance = Some(Reading::Failed(why));
        }
        HostFault::SiteFail => site(snapshot, SiteOutcome::Said(vec![said(Severity::Fail, 2)])),
        HostFault::SiteWarn => site(snapshot, SiteOutcome::Said(vec![said(Severity::Warn, 1)])),
        HostFault::SiteSilent => site(snapshot, SiteOutcome::Silent { stuck: false, after_ms: DEADLINE_MS }),
        HostFault::SiteStuck => site(snapshot, SiteOutcome::Silent { stuck: true, after_ms: DEADLINE_MS }),
        HostFault::SiteForeign => {
            site(snapshot, SiteOutcome::Refused("belongs to uid 1000, not root".to_owned()));
        }
        HostFault::SiteBroken => site(snapshot, SiteOutcome::Failed("killed by signal 11".to_owned())),
        HostFault::TopologyBroken => {
            topology(snapshot, true, "a tab, which NCCL takes for the end of a name")
        }
        HostFault::TopologyStale => topology(snapshot, false, "GPU 3 (0000:61:00.0) is not in the file"),
        HostFault::SiteNotExecutable => site(snapshot, SiteOutcome::NotRun("is not executable".to_owned())),
        other => {
            if let Part::Read { data, .. } = &mut snapshot.host {
                on_system(&mut data.system, other);
            }
        }
    }
    None
}

fn on_system(system: &mut System, fault: HostFault) {
    match fault {
        HostFault::DiskFull => space(system, "/", |space| space.free_mib = 210),
        HostFault::DiskInodes => space(system, "/", |space| space.inodes_free = 12),
        HostFault::TmpFull => space(system, "/tmp", |space| space.free_mib = 0),
        HostFault::ShmSmall => space(system, "/dev/shm", |space| (space.size_mib, space.free_mib) = (64, 64)),
        HostFault::ShmFull => space(system, "/dev/shm", |space| space.free_mib = 3),
        HostFault::DiskReadOnly => file_system(system, "/", |one| one.given_up = true),
        HostFault::DiskUnreadable => file_system(system, "/", |one| {
            one.space = Reading::Failed("/: statvfs: Input/output error".to_owned());
        }),
        HostFault::NvmeDead => known(&mut system.nvmes, |drives| {
            if let Some(drive) = drives.get_mut(2) {
                drive.state = Reading::Known("dead".to_owned());
                // The log of a dead drive is not read.
                drive.health = Reading::Unsupported;
            }
        }),
        HostFault::NvmeHot => known(&mut system.nvmes, |drives| {
            if let Some(drive) = drives.get_mut(1) {
                (drive.temperature_c, drive.alarm) = (Reading::Known(88.0), Reading::Known(true));
            }
        }),
        HostFault::NvmeReadOnly => {
            drive(system, 3, |health| (health.critical_warning, health.media_errors) = (0x0c, 71))
        }
        HostFault::NvmeSpareLow => drive(system, 0, |health| {
            (health.critical_warning, health.spare_percent) = (0x01, 4);
        }),
        HostFault::NvmeWorn => drive(system, 2, |health| health.used_percent = 104),
        HostFault::NvmeMissing => known(&mut system.nvmes, |drives| drop(drives.pop())),
        HostFault::DimmMissing => known(&mut system.memory, |controllers| {
            if let Some(controller) = controllers.get_mut(1) {
                controller.dimms.pop();
            }
        }),
        HostFault::DimmUncorrected => dimm(system, 0, 1),
        HostFault::DimmCorrected => dimm(system, 50_000, 0),
        HostFault::MachineCheck => system.machine_checks = Reading::Known(2),
        HostFault::CpuOffline => known(&mut system.cpus, |count| *count -= *count / 24),
        HostFault::CpuGovernor => {
            let counts =
                [("performance", 184), ("powersave", 8)].map(|(name, count)| (name.to_owned(), count));
            system.governors = Reading::Known(BTreeMap::from(counts));
        }
        HostFault::ProcessBlocked => processes(system, |processes| {
            let name = "python3".to_owned();
            processes.blocked.push(BlockedProcess { pid: 4711, started: 25_000_000, name, switches: 1_204 });
        }),
        HostFault::Zombies => processes(system, |processes| processes.zombies = 4_000),
        HostFault::ServiceDown => without(&mut system.services, "chronyd"),
        HostFault::ServicesUnreadable => {
            system.services = Reading::Failed("/sys/fs/cgroup/system.slice: Permission denied".to_owned());
        }
        HostFault::ClockUnsynchronised => known(&mut system.clock, |clock| {
            (clock.synchronised, clock.max_error_us) = (false, 16_000_000);
        }),
        HostFault::ClockOff => known(&mut system.clock, |clock| clock.max_error_us = 90_000_000),
        HostFault::ModuleMissing => without(&mut system.modules, "nvidia_peermem"),
        HostFault::BootArgMissing => without(&mut system.boot_args, "iommu=pt"),
        HostFault::MemlockLow => system.memlock = Reading::Known(8 << 20),
        _ => {}
    }
}

fn known<T>(reading: &mut Reading<T>, change: impl FnOnce(&mut T)) {
    if let Reading::Known(value) = reading {
        change(value);
    }
}

fn without(names: &mut Reading<Vec<String>>, gone: &str) {
    known(names, |names| names.retain(|name| name != gone));
}

fn processes(system: &mut System, change: impl FnOnce(&mut Processes)) {
    known(&mut system.processes, change);
}

fn file_system(system: &mut System, path: &str, change: impl FnOnce(&mut FileSystem)) {
    known(&mut system.file_systems, |all| {
        if let Some(one) = all.iter_mut().find(|one| one.path == Path::new(path)) {
            change(one);
        }
    });
}

fn space(system: &mut System, path: &str, change: impl FnOnce(&mut Space)) {
    file_system(system, path, |one| known(&mut one.space, change));
}

fn drive(system: &mut System, place: usize, change: impl FnOnce(&mut DriveHealth)) {
    known(&mut system.nvmes, |drives| {
        if let Some(drive) = drives.get_mut(place) {
            known(&mut drive.health, change);
        }
    });
}

fn dimm(system: &mut System, corrected: u64, uncorrected: u64) {
    known(&mut system.memory, |controllers| {
        let Some(controller) = controllers.get_mut(1) else { return };
        (controller.corrected, controller.uncorrected) =
            (Reading::Known(corrected), Reading::Known(uncorrected));
        if let Some(dimm) = controller.dimms.first_mut() {
            (dimm.corrected, dimm.uncorrected) = (Reading::Known(corrected), Reading::Known(uncorrected));
        }
    });
}

fn site(snapshot: &mut Snapshot, outcome: SiteOutcome) {
    let path = PathBuf::from("/etc/railgate/checks.d/raid.sh");
    snapshot.extras.site_checks.retain(|check| check.name != "raid");
    snapshot.extras.site_checks.push(SiteCheck { name: "raid".to_owned(), path, outcome, took_ms: 12.0 });
}

fn topology(snapshot: &mut Snapshot, refused: bool, what: &str) {
    let remark = TopologyRemark { refused, place: "3:5".to_owned(), what: what.to_owned() };
    let path = PathBuf::from("/etc/nccl/topo.xml");
    let text = Reading::Known("<system version=\"1\"/>".to_owned());
    snapshot.extras.topology_file = Some(TopologyFile { path, text, said: Some(vec![remark]) });
}

fn said(severity: Severity, code: i32) -> SiteFinding {
    SiteFinding {
        severity,
        class: None,
        part: "md0".to_owned(),
        what: "1 disk missing".to_owned(),
        fix: "replace disk".to_owned(),
        proof: format!("exit code {code}"),
    }
}

/// Returns `None` on a machine without such a device.
fn line(snapshot: &Snapshot, text: &str) -> Option<String> {
    let gpu = snapshot.gpus.data().and_then(|gpus| gpus.gpus.get(3).or(gpus.gpus.first())?.pci.known());
    let hca =
        snapshot.fabric.data().and_then(|fabric| fabric.hcas.get(2).or(fabric.hcas.first())?.pci.known());
    let mut text = text.to_owned();
    for (name, address) in [(" GPU:", gpu), (" HCA:", hca), (" HCA ", hca)] {
        if text.contains(name) {
            let end = name.get(" GPU".len()..).unwrap_or_default();
            text = text.replace(name, &format!(" {}{end}", address?));
        }
    }
    Some(text)
}
