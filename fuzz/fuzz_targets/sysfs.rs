//! Files of sysfs and procfs with arbitrary content: read and judged without a panic.

#![no_main]

#[path = "judged.rs"]
mod judged;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use railgate_probe::readers::{fabric_read, host_read, pci_read};
use railgate_simulate::{parse, simulated};
use railgate_model::{Part, Profile, Snapshot};

/// Paths below `sys` and `proc`, and their content on a healthy machine.
const FILES: &[(&str, &str)] = &[
    ("sys/devices/mlx5_0/node_guid", "b83f:d203:00a1:0001"),
    ("sys/devices/mlx5_0/fw_ver", "28.39.2048"),
    ("sys/devices/mlx5_0/hca_type", "MT4129"),
    ("sys/devices/mlx5_0/board_id", "MT_0000000838"),
    ("sys/devices/mlx5_0/ports/1/state", "4: ACTIVE"),
    ("sys/devices/mlx5_0/ports/1/phys_state", "5: LinkUp"),
    ("sys/devices/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)"),
    ("sys/devices/mlx5_0/ports/1/link_layer", "InfiniBand"),
    ("sys/devices/mlx5_0/ports/1/lid", "0x5"),
    ("sys/devices/mlx5_0/ports/1/sm_lid", "0x1"),
    ("sys/devices/mlx5_0/ports/1/pkeys/0", "0xffff"),
    ("sys/devices/mlx5_0/ports/1/gids/0", "fe80:0000:0000:0000:b83f:d203:00a1:0001"),
    ("sys/devices/mlx5_0/ports/1/gid_attrs/types/0", "RoCE v2"),
    ("sys/devices/mlx5_0/ports/1/gid_attrs/ndevs/0", "ib0"),
    ("sys/devices/mlx5_0/ports/1/counters/link_downed", "0"),
    ("sys/devices/mlx5_0/ports/1/counters/symbol_error", "N/A (no PMA)"),
    ("sys/devices/mlx5_0/ports/1/counters/port_rcv_data", "18446744073709551615"),
    ("sys/devices/mlx5_0/ports/1/hw_counters/out_of_sequence", "7"),
    ("sys/devices/pci/0000:18:00.0/vendor", "0x15b3"),
    ("sys/devices/pci/0000:18:00.0/device", "0x1021"),
    ("sys/devices/pci/0000:18:00.0/class", "0x020700"),
    ("sys/devices/pci/0000:18:00.0/numa_node", "0"),
    ("sys/devices/pci/0000:18:00.0/current_link_speed", "32.0 GT/s PCIe"),
    ("sys/devices/pci/0000:18:00.0/current_link_width", "16"),
    ("sys/devices/pci/0000:18:00.0/max_link_speed", "32.0 GT/s PCIe"),
    ("sys/devices/pci/0000:18:00.0/max_link_width", "16"),
    ("sys/devices/pci/0000:18:00.0/config", "configuration"),
    ("sys/class/net/ib0/operstate", "up"),
    ("sys/class/net/ib0/mtu", "4092"),
    ("sys/class/net/ib0/dev_port", "0"),
    ("sys/class/nvme/nvme0/model", "a drive"),
    ("sys/class/nvme/nvme0/serial", "S1"),
    ("sys/class/nvme/nvme0/firmware_rev", "1"),
    ("sys/class/nvme/nvme0/state", "live"),
    ("sys/class/nvme/nvme0/hwmon1/temp1_input", "40850"),
    ("sys/class/nvme/nvme0/hwmon1/temp1_crit", "84850"),
    ("sys/class/nvme/nvme0/hwmon1/temp1_alarm", "0"),
    ("sys/devices/system/edac/mc/mc0/ce_count", "0"),
    ("sys/devices/system/edac/mc/mc0/ue_count", "0"),
    ("sys/devices/system/edac/mc/mc0/dimm0/dimm_label", "CPU_SrcID#0_MC#0_Chan#0_DIMM#0"),
    ("sys/devices/system/edac/mc/mc0/dimm0/size", "65536"),
    ("sys/devices/system/edac/mc/mc0/dimm0/dimm_ce_count", "0"),
    ("sys/devices/system/edac/mc/mc0/dimm0/dimm_ue_count", "0"),
    ("sys/devices/system/cpu/online", "0-127"),
    ("sys/devices/system/cpu/cpufreq/policy0/scaling_governor", "performance"),
    ("sys/devices/system/node/node0/cpulist", "0-63"),
    ("sys/class/ptp/ptp0/clock_name", "mlx5_ptp"),
    ("proc/stat", "cpu  1 2 3\nbtime 1767600000\n"),
    ("proc/cpuinfo", "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nflags\t\t: fpu\n"),
    ("proc/meminfo", "MemTotal:       2113412345 kB\n"),
    ("proc/cmdline", "root=/dev/sda1 iommu=pt"),
    (
        "proc/interrupts",
        "           CPU0       CPU1\nMCE:          0          0   Machine check exceptions\n",
    ),
    ("proc/self/mountinfo", "22 28 0:21 / /no/such rw - ext4 /dev/sda1 rw\n"),
    (
        "proc/net/route",
        "Iface\tDestination\tGateway\tFlags\nib0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\n",
    ),
    ("proc/sys/kernel/hostname", "gn1"),
    ("proc/sys/kernel/osrelease", "6.1.0"),
    (
        "proc/77/stat",
        "77 (a (b) c) D 1 77 77 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 300 4096 1 18446744073709551615",
    ),
    (
        "proc/77/status",
        "Name:\tslurmd\nUid:\t0\t0\t0\t0\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t6\n",
    ),
    (
        "proc/77/limits",
        "Limit  Soft Limit  Hard Limit  Units\nMax locked memory  unlimited  unlimited  bytes\n",
    ),
];

struct Tree {
    root: PathBuf,
    profile: Profile,
    healthy: Snapshot,
}

static TREE: LazyLock<Tree> = LazyLock::new(|| {
    let root = PathBuf::from(format!("/dev/shm/railgate-fuzz-sysfs-{}", std::process::id()));
    for (path, text) in FILES {
        put(&root.join(path), text.as_bytes());
    }
    for (link, target) in [
        ("sys/class/infiniband/mlx5_0", "../../devices/mlx5_0"),
        ("sys/bus/pci/devices/0000:18:00.0", "../../../devices/pci/0000:18:00.0"),
        ("sys/devices/mlx5_0/device", "../pci/0000:18:00.0"),
    ] {
        let link = root.join(link);
        fs::create_dir_all(link.parent().expect("below the root")).expect("memory");
        symlink(target, link).expect("memory");
    }
    fs::create_dir_all(root.join("sys/devices/pci/0000:18:00.0/net/ib0")).expect("memory");
    let (profile, _) = parse("h100-sxm", &[]).expect("a profile that is built in");
    let healthy = simulated(&profile, &[]);
    Tree { root, profile, healthy }
});

fn put(path: &Path, bytes: &[u8]) {
    fs::create_dir_all(path.parent().expect("below the root")).expect("memory");
    fs::write(path, bytes).expect("memory");
}

/// Edits: each has the index of a file, a number of bytes, and those bytes, until the input ends.
fn edits(mut bytes: &[u8]) -> Vec<(usize, &[u8])> {
    let mut edits = Vec::new();
    while let [which, length, rest @ ..] = bytes {
        let (value, after) = rest.split_at(usize::from(*length).min(rest.len()));
        edits.push((usize::from(*which) % FILES.len(), value));
        bytes = after;
    }
    edits
}

fuzz_target!(|bytes: &[u8]| {
    let tree = &*TREE;
    let edits = edits(bytes);
    for (which, value) in &edits {
        put(&tree.root.join(FILES[*which].0), value);
    }
    let (sys, proc) = (tree.root.join("sys"), tree.root.join("proc"));
    let mut snapshot = tree.healthy.clone();
    if let Ok(data) = fabric_read(&sys) {
        snapshot.fabric = Part::Read { data, took_ms: 1.0 };
    }
    if let Ok(data) = pci_read(&sys) {
        snapshot.pci = Part::Read { data, took_ms: 1.0 };
    }
    snapshot.host = Part::Read { data: host_read(&proc, &sys), took_ms: 1.0 };
    for (which, _) in &edits {
        put(&tree.root.join(FILES[*which].0), FILES[*which].1.as_bytes());
    }
    let text = serde_json::to_string(&snapshot).expect("plain data");
    let again: Snapshot = serde_json::from_str(&text).expect("what was written can be read");
    assert_eq!(again, snapshot);
    judged::judged(&snapshot, Some(&tree.healthy), &tree.profile);
});
