//! Severity, class and fix of each kind of kernel line. The lines themselves are in `railgate_model::kernel_lines`;
//! Xids and SXids have tables of their own.

use railgate_model::{Class, Severity};

/// How a line of one kind is judged.
#[derive(Clone, Copy, Debug)]
pub struct KernelLineJudgement {
    /// Id of the kind, in the configuration and in `railgate_model::kernel_lines`.
    pub id: &'static str,
    /// The fault, in a few words.
    pub what: &'static str,
    /// What a person does about it, in a few words.
    pub fix: &'static str,
    /// Who is responsible: the node, the fabric, the site or the user.
    pub class: Class,
    /// The severity unless the site sets another one in `[gate.checks.kmsg] lines`.
    pub severity: Severity,
    /// A user program can make the kernel write such a line, so it never fails.
    pub raisable: bool,
}

const fn line(id: &'static str, what: &'static str, fix: &'static str) -> KernelLineJudgement {
    KernelLineJudgement { id, what, fix, class: Class::Node, severity: Severity::Warn, raisable: false }
}

impl KernelLineJudgement {
    const fn raisable(self) -> KernelLineJudgement {
        KernelLineJudgement { raisable: true, ..self }
    }

    const fn note(self) -> KernelLineJudgement {
        KernelLineJudgement { severity: Severity::Note, ..self }
    }

    const fn of(self, class: Class) -> KernelLineJudgement {
        KernelLineJudgement { class, ..self }
    }
}

/// One judgement for each kind in the table of lines.
pub(crate) static JUDGEMENTS: &[KernelLineJudgement] = &[
    line("task-hung", "task hung in the kernel", "see log; reboot").raisable(),
    line("soft-lockup", "processor locked up", "see log; reboot").raisable(),
    // Interrupts were off for 10 seconds. Profilers and overloaded virtual machines can cause that.
    line("hard-lockup", "processor locked up with interrupts off", "see log; reboot").raisable(),
    line("rcu-stall", "processor stalls the kernel", "see log; reboot").raisable(),
    line("pcie-fatal", "fatal PCIe error", "reseat card"),
    line("pcie-uncorrected", "uncorrected PCIe error", "reseat card"),
    line("pcie-corrected", "corrected PCIe error", "watch it").note(),
    line("memory-uncorrected", "uncorrected memory error", "replace DIMM"),
    line("memory-corrected", "corrected memory error", "watch it").note(),
    line("machine-check", "machine check events", "see mcelog").note(),
    // The load of a job can cause it.
    line("nfs-silent", "NFS server does not respond", "check server").of(Class::Site).raisable(),
    // The server was restarted, or the lease of a program expired.
    line("nfs-locks", "NFS locks lost", "check server; restart their job").of(Class::Site).note().raisable(),
    line("file-max", "no more files can be opened", "raise fs.file-max").of(Class::Site).raisable(),
    // A program frees GPU memory, or is killed, while an HCA uses that memory.
    line("peermem", "GPU memory freed under an HCA", "update driver if it repeats").note().raisable(),
    line("nvlink-detect", "driver cannot read NVLink states", "reset GPUs").raisable(),
    line("mlx5-power", "slot gives the HCA too little power", "check slot power").of(Class::Site),
    line("mlx5-cable", "transceiver or cable reports an error", "replace cable").of(Class::Fabric),
    line("mlx5-temperature", "HCA is too hot", "check cooling"),
    line("mlx5-health", "HCA firmware reports a fault", "reset HCA"),
    // A program's verbs calls become firmware commands.
    line("mlx5-command", "HCA firmware does not answer a command", "reset HCA").raisable(),
    // Flow control in a congested fabric can stop a queue as well.
    line("net-timeout", "network interface does not send or receive", "see log; check link")
        .of(Class::Fabric)
        .raisable(),
    line("nvme-timeout", "NVMe controller does not answer", "replace drive"),
    line("nvme-path", "NVMe drive has no working path", "check drive"),
    line("nvme-path-wait", "NVMe drive waits for its controller", "watch it").note(),
    line("disk-error", "I/O errors", "replace drive"),
    // A damaged file system, or a partition table larger than the drive; a mounted user image can cause it, too.
    line("disk-past-end", "access beyond the end of a drive", "fsck, check partitions").raisable(),
    line("md-drive", "array lost a drive", "replace drive"),
    line("md-failed", "array failed", "replace drive, rebuild array"),
    line("fs-read-only", "file system made read-only", "fsck, check disk"),
    line("fs-shutdown", "file system shut down", "xfs_repair"),
    line("fs-error", "file system has errors", "fsck, check disk"),
];

/// Returns how a kind of kernel line is judged, by its id (for example `pcie-fatal`), or `None` for an unknown id.
#[must_use]
pub fn kernel_line_judgement(id: &str) -> Option<&'static KernelLineJudgement> {
    JUDGEMENTS.iter().find(|judgement| judgement.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_line_has_one_judgement() {
        let lines: Vec<&str> = railgate_model::kernel_lines::ids().collect();
        let judged: Vec<&str> = JUDGEMENTS.iter().map(|judgement| judgement.id).collect();
        assert_eq!(judged, lines);
    }

    #[test]
    fn no_line_drains_by_default() {
        for judgement in JUDGEMENTS {
            assert!(matches!(judgement.severity, Severity::Warn | Severity::Note), "{}", judgement.id);
            assert!(!judgement.what.is_empty() && !judgement.fix.is_empty(), "{}", judgement.id);
        }
    }
}
