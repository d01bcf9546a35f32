//! What lines of the kernel's log mean, as data. Xids and SXids have tables of their own.

use railgate_node::{Class, Severity};

/// Where a line names the part it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    /// Nothing: the whole node.
    Node,
    /// The PCI address of the device that the line is about.
    Pci,
    /// The word after this text, up to a blank, comma, colon or bracket.
    After(&'static str),
}

/// Where the kernel's own text begins. What stands in the middle of a line may be the name of a process or a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begins {
    /// At the beginning of the line.
    Line,
    /// Behind `DRIVER 0000:1a:00.0: `, where DRIVER begins with this.
    Device(&'static str),
}

/// One kind of line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    /// Its name in the configuration.
    pub(crate) id: &'static str,
    pub(crate) begins: Begins,
    /// Any of these lists; the kernel's text begins with the first of a list and has the others somewhere behind it.
    pub(crate) texts: &'static [&'static [&'static str]],
    pub(crate) names: Names,
    /// In a few words.
    pub(crate) what: &'static str,
    pub(crate) fix: &'static str,
    pub(crate) class: Class,
    pub(crate) severity: Severity,
    /// A program can make the kernel write it.
    pub(crate) raisable: bool,
    /// A later line with this text about the same part takes it back.
    pub(crate) over: Option<&'static str>,
}

const fn line(
    id: &'static str,
    texts: &'static [&'static [&'static str]],
    names: Names,
    what: &'static str,
    fix: &'static str,
) -> Line {
    Line {
        id,
        begins: Begins::Line,
        texts,
        names,
        what,
        fix,
        class: Class::Node,
        severity: Severity::Warn,
        raisable: false,
        over: None,
    }
}

const fn device(driver: &'static str, line: Line) -> Line {
    Line { begins: Begins::Device(driver), names: Names::Pci, ..line }
}

const fn raisable(line: Line) -> Line {
    Line { raisable: true, ..line }
}

const fn note(line: Line) -> Line {
    Line { severity: Severity::Note, ..line }
}

const fn of(class: Class, line: Line) -> Line {
    Line { class, ..line }
}

/// The first that fits counts.
pub(crate) static LINES: &[Line] = &[
    // The process that hangs is named by its user, so the line is about the node.
    raisable(line(
        "task-hung",
        &[&["INFO: task ", " blocked for more than "]],
        Names::Node,
        "task hung in the kernel",
        "see log; reboot",
    )),
    raisable(line(
        "soft-lockup",
        &[
            &["watchdog: BUG: soft lockup - CPU#"],
            &["NMI watchdog: BUG: soft lockup - CPU#"],
            &["BUG: soft lockup - CPU#"],
            &["watchdog: Watchdog detected hard LOCKUP on cpu"],
            &["NMI watchdog: Watchdog detected hard LOCKUP on cpu"],
            &["rcu: INFO: rcu_", "self-detected stall on CPU"],
            &["INFO: rcu_", "self-detected stall on CPU"],
        ],
        Names::Node,
        "processor locked up",
        "see log; reboot",
    )),
    device(
        "",
        line(
            "pcie-fatal",
            &[
                &["", "PCIe Bus Error: severity=Uncorrected (Fatal)"],
                &["", "PCIe Bus Error: severity=Uncorrectable (Fatal)"],
            ],
            Names::Pci,
            "fatal PCIe error",
            "reseat card",
        ),
    ),
    device(
        "",
        line(
            "pcie-uncorrected",
            &[
                &["", "PCIe Bus Error: severity=Uncorrected (Non-Fatal)"],
                &["", "PCIe Bus Error: severity=Uncorrectable (Non-Fatal)"],
            ],
            Names::Pci,
            "uncorrected PCIe error",
            "reseat card",
        ),
    ),
    note(device(
        "",
        line(
            "pcie-corrected",
            &[&["", "PCIe Bus Error: severity=Corrected"], &["", "PCIe Bus Error: severity=Correctable"]],
            Names::Pci,
            "corrected PCIe error",
            "watch it",
        ),
    )),
    of(
        Class::Site,
        device(
            "mlx5",
            line(
                "mlx5-power",
                &[&["", "insufficient power on the PCIe slot"]],
                Names::Pci,
                "slot gives the HCA too little power",
                "check slot power",
            ),
        ),
    ),
    of(
        Class::Fabric,
        device(
            "mlx5",
            line(
                "mlx5-cable",
                &[&["Port module event[error]"]],
                Names::Pci,
                "optic or cable reports an error",
                "replace cable",
            ),
        ),
    ),
    device(
        "mlx5",
        line(
            "mlx5-health",
            &[
                &["", "health compromised"],
                &["", "Fatal error ", " detected"],
                &["", "firmware internal error"],
                &["", "Health issue observed", "severity(0)"],
                &["", "Health issue observed", "severity(1)"],
                &["", "Health issue observed", "severity(2)"],
                &["", "Health issue observed", "severity(3)"],
            ],
            Names::Pci,
            "HCA firmware is in trouble",
            "reset HCA",
        ),
    ),
    Line {
        over: Some(" OK"),
        class: Class::Site,
        ..line(
            "nfs-silent",
            &[&["nfs: server ", " not responding"]],
            Names::After("nfs: server "),
            "NFS server does not respond",
            "check server",
        )
    },
    line(
        "disk-error",
        &[
            &["I/O error, dev nvme"],
            &["I/O error, dev sd"],
            &["I/O error, dev md"],
            &["I/O error, dev dm-"],
            &["blk_update_request: I/O error, dev nvme"],
            &["blk_update_request: I/O error, dev sd"],
            &["blk_update_request: I/O error, dev md"],
            &["blk_update_request: I/O error, dev dm-"],
        ],
        Names::After("I/O error, dev "),
        "I/O errors",
        "replace drive",
    ),
    line(
        "nvme-timeout",
        &[
            &["nvme nvme", "timeout, "],
            &["nvme nvme", "controller is down; will reset"],
            &["nvme nvme", "Removing after probe failure"],
            &["nvme nvme", "Device not ready"],
        ],
        Names::After("nvme "),
        "NVMe controller does not answer",
        "replace drive",
    ),
    line(
        "fs-error",
        &[&["EXT4-fs error (device "], &["BTRFS error (device "], &["BTRFS critical (device "]],
        Names::After("(device "),
        "file system has errors",
        "fsck, check disk",
    ),
    line(
        "fs-read-only",
        &[&["EXT4-fs (", "Remounting filesystem read-only"]],
        Names::After("EXT4-fs ("),
        "file system made read-only",
        "fsck, check disk",
    ),
    line(
        "fs-shutdown",
        &[&["XFS (", "Shutting down filesystem"], &["XFS (", "Corruption"], &["XFS (", "metadata I/O error"]],
        Names::After("XFS ("),
        "file system shut down",
        "xfs_repair",
    ),
    line(
        "memory-uncorrected",
        &[&["EDAC MC", " UE "]],
        Names::After("EDAC "),
        "uncorrected memory error",
        "replace DIMM",
    ),
    note(line(
        "memory-corrected",
        &[&["EDAC MC", " CE "]],
        Names::After("EDAC "),
        "corrected memory error",
        "watch it",
    )),
    note(line(
        "machine-check",
        &[
            &["mce: [Hardware Error]: Machine check events logged"],
            &["[Hardware Error]: Machine check events logged"],
        ],
        Names::Node,
        "machine check events",
        "see mcelog",
    )),
];
