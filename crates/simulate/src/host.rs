use std::collections::BTreeMap;
use std::path::PathBuf;

use railgate_model::{
    Clock, Dimm, DriveHealth, FileSystem, MemoryController, Nvme, Processes, Reading, Space, System,
};

/// A healthy server: two local disks, sixteen memory modules, 192 processors.
pub(super) fn system() -> System {
    System {
        file_systems: Reading::Known(file_systems()),
        nvmes: Reading::Known((0..4).map(nvme).collect()),
        memory: Reading::Known((0..8).map(controller).collect()),
        machine_checks: Reading::Known(0),
        cpus: Reading::Known(192),
        governors: Reading::Known(BTreeMap::from([("performance".to_owned(), 192)])),
        processes: Reading::Known(Processes { total: 3_180, zombies: 2, blocked: Vec::new() }),
        services: Reading::Known(words("chronyd munge nvidia-fabricmanager nvidia-persistenced slurmd sshd")),
        clock: Reading::Known(Clock {
            synchronised: true,
            error_us: 40,
            max_error_us: 2_900,
            ptp: vec!["ptp0 mlx5_ptp".to_owned()],
        }),
        modules: Reading::Known(words(
            "ib_core ib_uverbs mlx5_core mlx5_ib nfs nvidia nvidia_peermem nvidia_uvm",
        )),
        boot_args: Reading::Known(words(
            "BOOT_IMAGE=/vmlinuz-6.1.0-32-amd64 root=/dev/md0 ro iommu=pt quiet",
        )),
        memlock: Reading::Known(u64::MAX),
    }
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

fn file_systems() -> Vec<FileSystem> {
    let one =
        |path: &str, fs_type: &str, source: &str, size_gib: u64, free_gib: u64, inodes: u64| FileSystem {
            path: PathBuf::from(path),
            fs_type: fs_type.to_owned(),
            source: source.to_owned(),
            read_only: false,
            given_up: false,
            space: Reading::Known(Space {
                size_mib: size_gib * 1024,
                free_mib: free_gib * 1024,
                inodes,
                inodes_free: inodes - inodes / 10,
            }),
        };
    vec![
        one("/", "ext4", "/dev/md0", 875, 701, 58_000_000),
        one("/run", "tmpfs", "tmpfs", 202, 201, 52_000_000),
        one("/dev/shm", "tmpfs", "tmpfs", 1_007, 1_007, 264_000_000),
        // XFS creates inodes on demand and reports a large number.
        one("/tmp", "xfs", "/dev/md1", 27_900, 26_800, 2_900_000_000),
    ]
}

fn nvme(number: u32) -> Nvme {
    Nvme {
        name: format!("nvme{number}"),
        model: Reading::Known("SAMSUNG MZQL27T6HBLA-00A07".to_owned()),
        serial: Reading::Known(format!("S6CKNT0W{number:06}")),
        firmware: Reading::Known("GDC5602Q".to_owned()),
        state: Reading::Known("live".to_owned()),
        temperature_c: Reading::Known(34.0 + f64::from(number)),
        critical_c: Reading::Known(85.0),
        alarm: Reading::Known(false),
        health: Reading::Known(DriveHealth {
            critical_warning: 0,
            spare_percent: 100,
            spare_threshold_percent: 10,
            used_percent: 3,
            media_errors: 0,
        }),
    }
}

fn controller(number: u32) -> MemoryController {
    let dimm = |slot: u32| Dimm {
        label: format!("CPU_SrcID#{}_MC#{}_Chan#{slot}_DIMM#0", number / 4, number % 4),
        size_mib: Reading::Known(131_072),
        corrected: Reading::Known(0),
        uncorrected: Reading::Known(0),
    };
    MemoryController {
        name: format!("mc{number}"),
        corrected: Reading::Known(0),
        uncorrected: Reading::Known(0),
        dimms: (0..2).map(dimm).collect(),
    }
}
