//! Processors, memory, PCIe, NFS and the NVIDIA driver.

use super::{DEVICE, Format, Helper, NEWEST, OLDEST, Row, linux, linux_in, nvidia, reported, row};

const WATCHDOG: Helper = Helper { text: "watchdog: ", wording: "watchdog: ", files: &["kernel/watchdog.c"] };

const NMI_WATCHDOG: Helper = Helper {
    text: "NMI watchdog: ",
    wording: "NMI watchdog: ",
    files: &["kernel/watchdog_hld.c", "kernel/watchdog_perf.c"],
};

const RCU: Helper = Helper { text: "rcu: ", wording: "rcu: ", files: &["kernel/rcu/tree.c"] };

/// `pr_fmt` of `aer.c`: printed by `pci_err`, not by `pci_printk`.
const AER_DEVICE: Helper =
    Helper { text: "{word} {bdf}: AER: ", wording: "AER: ", files: &["drivers/pci/pcie/aer.c"] };

const EDAC: Helper =
    Helper { text: "EDAC {part}: ", wording: "EDAC MC%d: ", files: &["drivers/edac/edac_mc.h"] };

/// The macro `HW_ERR`.
const HARDWARE_ERROR: Helper =
    Helper { text: "[Hardware Error]: ", wording: "[Hardware Error]: ", files: &["include/linux/printk.h"] };

const MCE: Helper = Helper {
    text: "mce: [Hardware Error]: ",
    wording: "mce: ",
    files: &["arch/x86/kernel/cpu/mce/internal.h"],
};

const SOFT: &str = "BUG: soft lockup - CPU#{int} stuck for {int}s! [{name}:{pid}]";
const HARD: &str = "Watchdog detected hard LOCKUP on cpu {int}";
const SELF_STALL: &str = "INFO: {word} self-detected stall on CPU|{rest}";
const STALLS: &str = "INFO: {word} detected stalls on CPUs/tasks:|{rest}";
const EXPEDITED: &str = "INFO: {word} detected expedited stalls on CPUs/tasks: {rest}";
const BLOCKED: &str = "task {name}:{pid} blocked for more than {int} seconds.";

/// RHEL 6 and 7, from records in bug reports.
const OLD_KERNEL: &str = "Linux 3.10 and older";

const AER: &str = "drivers/pci/pcie/aer.c";
const FATAL: &str = "PCIe Bus Error: severity=|Uncorrected (Fatal)|{rest}";
const FATAL_NEW: &str = "PCIe Bus Error: severity=|Uncorrectable (Fatal)|{rest}";
const NON_FATAL: &str = "PCIe Bus Error: severity=|Uncorrected (Non-Fatal)|{rest}";
const NON_FATAL_NEW: &str = "PCIe Bus Error: severity=|Uncorrectable (Non-Fatal)|{rest}";
const CORRECTED: &str = "PCIe Bus Error: severity=|Corrected|{rest}";
const CORRECTED_NEW: &str = "PCIe Bus Error: severity=|Correctable|{rest}";

/// The last release with "Uncorrected"; later ones have "Uncorrectable".
const UNCORRECTED: super::Release = (6, 7);
const UNCORRECTABLE: super::Release = (6, 8);

const fn aer(until: super::Release, text: &'static str) -> Format {
    linux_in(AER, OLDEST, until, text).after(DEVICE)
}

const fn aer_new(text: &'static str) -> Format {
    linux_in(AER, UNCORRECTABLE, NEWEST, text).after(DEVICE)
}

const NFS_SERVER: &str = "net/sunrpc/clnt.c";
const PEERMEM: &str = "kernel-open/nvidia-peermem/nvidia-peermem.c";
const KNVLINK_PEERS: &str = "src/nvidia/src/kernel/gpu/nvlink/arch/hopper/kernel_nvlink_gh100.c";
const KNVLINK: &str = "src/nvidia/src/kernel/gpu/nvlink/kernel_nvlink.c";

pub(super) static ROWS: &[Row] = &[
    row(
        "task-hung",
        &[
            linux("kernel/hung_task.c", "INFO: task {name}:{pid} blocked for more than {int} seconds."),
            reported("leptonai/gpud, components/cpu/kmsg_matcher.go", BLOCKED),
        ],
    ),
    row(
        "soft-lockup",
        &[
            linux("kernel/watchdog.c", SOFT).after(WATCHDOG),
            reported("Linux 4.13 and older", SOFT).after(NMI_WATCHDOG),
            reported(OLD_KERNEL, SOFT),
        ],
    ),
    row(
        "hard-lockup",
        &[
            linux_in("kernel/watchdog_hld.c", OLDEST, (6, 4), HARD).after(NMI_WATCHDOG),
            linux_in("kernel/watchdog.c", (6, 5), NEWEST, HARD).after(WATCHDOG),
            reported(OLD_KERNEL, HARD),
        ],
    ),
    row(
        "rcu-stall",
        &[
            linux("kernel/rcu/tree_stall.h", SELF_STALL).after(RCU),
            linux("kernel/rcu/tree_stall.h", STALLS).after(RCU),
            linux("kernel/rcu/tree_exp.h", EXPEDITED).after(RCU),
            linux("kernel/rcu/tasks.h", "INFO: {word} detected stalls on tasks:"),
            reported("Linux 4.18 and older", SELF_STALL),
            reported("Linux 4.18 and older", STALLS),
            reported("Linux 4.18 and older", EXPEDITED),
        ],
    ),
    row(
        "pcie-fatal",
        &[
            aer(UNCORRECTED, FATAL),
            aer_new(FATAL_NEW),
            aer(UNCORRECTED, FATAL).after(AER_DEVICE),
            aer_new(FATAL_NEW).after(AER_DEVICE),
        ],
    ),
    row(
        "pcie-uncorrected",
        &[
            aer(UNCORRECTED, NON_FATAL),
            aer_new(NON_FATAL_NEW),
            aer(UNCORRECTED, NON_FATAL).after(AER_DEVICE),
            aer_new(NON_FATAL_NEW).after(AER_DEVICE),
        ],
    ),
    row(
        "pcie-corrected",
        &[
            aer(UNCORRECTED, CORRECTED),
            aer_new(CORRECTED_NEW),
            aer(UNCORRECTED, CORRECTED).after(AER_DEVICE),
            aer_new(CORRECTED_NEW).after(AER_DEVICE),
        ],
    ),
    row("memory-uncorrected", &[linux("drivers/edac/edac_mc.c", "{int} UE {rest}").after(EDAC)]),
    row("memory-corrected", &[linux("drivers/edac/edac_mc.c", "{int} CE {rest}").after(EDAC)]),
    row(
        "machine-check",
        &[
            linux("arch/x86/kernel/cpu/mce/core.c", "Machine check events logged").after(MCE),
            linux("arch/x86/kernel/cpu/mce/core.c", "Machine check events logged").after(HARDWARE_ERROR),
        ],
    ),
    Row {
        id: "nfs-silent",
        formats: &[
            linux(NFS_SERVER, "|nfs|: server {host} not responding, still trying"),
            linux(NFS_SERVER, "|nfs|: server {host} not responding, timed out"),
            linux(NFS_SERVER, "|lockd|: server {host} not responding, still trying"),
            linux(NFS_SERVER, "|lockd|: server {host} not responding, timed out"),
        ],
        over: &[linux(NFS_SERVER, "|nfs|: server {host} OK"), linux(NFS_SERVER, "|lockd|: server {host} OK")],
    },
    row(
        "nfs-locks",
        &[
            linux_in("fs/nfs/nfs4state.c", OLDEST, (5, 10), "NFS: {word}: Lock reclaim failed!"),
            reported("leptonai/gpud, components/nfs/kmsg_matcher.go", "{word}: Lock reclaim failed!"),
        ],
    ),
    row("file-max", &[linux("fs/file_table.c", "VFS: file-max limit {int} reached")]),
    row(
        "peermem",
        &[nvidia(
            PEERMEM,
            "nvidia-peermem| {word}:{int} ERROR |detected invalid context, skipping further processing",
        )],
    ),
    row(
        "nvlink-detect",
        &[
            nvidia(KNVLINK_PEERS, "NVRM: |{word}: |Getting peer0's postRxDetLinkMask failed!"),
            nvidia(KNVLINK_PEERS, "NVRM: |{word}: |Getting peer1's postRxDetLinkMask failed!"),
            nvidia(KNVLINK, "NVRM: |{word}: |Failed to update Rx Detect Link mask!"),
        ],
    ),
];
