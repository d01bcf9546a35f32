//! What the kinds of kernel lines mean. The lines themselves are in `railgate_model::kernel_lines`; Xids and SXids have tables of
//! their own.

use railgate_model::{Class, Severity};

/// What follows from one kind of line.
#[derive(Clone, Copy, Debug)]
pub struct KernelLineJudgement {
    /// Its name in the configuration, and in the table of lines.
    pub id: &'static str,
    /// What is wrong, in a few words.
    pub what: &'static str,
    /// What a person does about it.
    pub fix: &'static str,
    /// Whose trouble it is.
    pub class: Class,
    /// How bad it is, where the site sets nothing else.
    pub severity: Severity,
    /// A program can make the kernel write it.
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

/// One for each id of the table of lines.
pub(crate) static JUDGEMENTS: &[KernelLineJudgement] = &[
    line("task-hung", "task hung in the kernel", "see log; reboot").raisable(),
    line("soft-lockup", "processor locked up", "see log; reboot").raisable(),
    // Interrupts were off for 10 seconds. Profilers and overloaded virtual machines can cause it, so a program can.
    line("hard-lockup", "processor locked up with interrupts off", "see log; reboot").raisable(),
    line("rcu-stall", "processor stalls the kernel", "see log; reboot").raisable(),
    line("pcie-fatal", "fatal PCIe error", "reseat card"),
    line("pcie-uncorrected", "uncorrected PCIe error", "reseat card"),
    line("pcie-corrected", "corrected PCIe error", "watch it").note(),
    line("memory-uncorrected", "uncorrected memory error", "replace DIMM"),
    line("memory-corrected", "corrected memory error", "watch it").note(),
    line("machine-check", "machine check events", "see mcelog").note(),
    // Load from jobs is enough.
    line("nfs-silent", "NFS server does not respond", "check server").of(Class::Site).raisable(),
    // The server restarted, or a program's lease ran out.
    line("nfs-locks", "NFS locks lost", "check server; restart their job").of(Class::Site).note().raisable(),
    line("file-max", "no more files can be opened", "raise fs.file-max").of(Class::Site).raisable(),
    // A program that frees GPU memory while an HCA uses it, or is killed then.
    line("peermem", "GPU memory freed under an HCA", "update driver if it repeats").note().raisable(),
    line("nvlink-detect", "driver cannot read NVLink states", "reset GPUs").raisable(),
    line("mlx5-power", "slot gives the HCA too little power", "check slot power").of(Class::Site),
    line("mlx5-cable", "transceiver or cable reports an error", "replace cable").of(Class::Fabric),
    line("mlx5-temperature", "HCA is too hot", "check cooling"),
    line("mlx5-health", "HCA firmware reports a fault", "reset HCA"),
    // Verbs of a program become such commands.
    line("mlx5-command", "HCA firmware does not answer a command", "reset HCA").raisable(),
    // Flow control of a congested fabric stops a queue as well.
    line("net-timeout", "network interface does not send or receive", "see log; check link")
        .of(Class::Fabric)
        .raisable(),
    line("nvme-timeout", "NVMe controller does not answer", "replace drive"),
    line("nvme-path", "NVMe drive has no working path", "check drive"),
    line("nvme-path-wait", "NVMe drive waits for its controller", "watch it").note(),
    line("disk-error", "I/O errors", "replace drive"),
    // A damaged file system, or a partition table that promises too much.
    line("disk-past-end", "access beyond the end of a drive", "fsck, check partitions").raisable(),
    line("md-drive", "array lost a drive", "replace drive"),
    line("md-failed", "array failed", "replace drive, rebuild array"),
    line("fs-read-only", "file system made read-only", "fsck, check disk"),
    line("fs-shutdown", "file system shut down", "xfs_repair"),
    line("fs-error", "file system has errors", "fsck, check disk"),
];

/// What a kind of kernel line means, by its id in the table of lines.
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
    fn a_line_alone_drains_nothing() {
        for judgement in JUDGEMENTS {
            assert!(matches!(judgement.severity, Severity::Warn | Severity::Note), "{}", judgement.id);
            assert!(!judgement.what.is_empty() && !judgement.fix.is_empty(), "{}", judgement.id);
        }
    }
}
