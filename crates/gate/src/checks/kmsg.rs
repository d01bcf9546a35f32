use std::collections::BTreeMap;

use railgate_model::kernel_lines::{KernelPart, ids, taken_back};
use railgate_model::{Class, KernelLine, PartName, Severity, UnixMillis};

use super::kmsg_table::{KernelLineJudgement, kernel_line_judgement};
use crate::agreement::{Nvml, grade};
use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::{keys, settings};

/// The check.
pub(crate) struct KernelMessages;

settings! {
    action = Drain;
    lines: BTreeMap<String, Severity> = BTreeMap::new(), limit keys(is_kind, not_a_kind), "severities of single kinds: { \"pcie-fatal\" = \"fail\", \"nfs-silent\" = \"note\" }";
}

fn is_kind(id: &str) -> bool {
    ids().any(|known| known == id)
}

fn not_a_kind(id: &str) -> String {
    format!("no kind '{id}' (known: {})", ids().collect::<Vec<_>>().join(", "))
}

impl Check for KernelMessages {
    const ABOUT: &'static str = "the kernel logged a fault: hung tasks, PCIe, HCAs, NFS, disks, memory";
    const EXPLAIN: &'static str = "
Reads the lines of `/dev/kmsg` since railgate last handled the log (see `kernel-log`; only those that the kernel itself wrote), and
compares them with a table of the format strings of the kernel and its drivers: Linux 5.10 to 6.12 (RHEL 9 has 5.14, Ubuntu
22.04 and 24.04 have 5.15 and 6.8, Debian 11 to 13 are covered) and MLNX_OFED:

- `task-hung`, `soft-lockup`, `hard-lockup`, `rcu-stall`: tasks and processors that do not move.
- `pcie-fatal`, `pcie-uncorrected`, `pcie-corrected` (a note): errors that AER reports.
- `mlx5-power`, `mlx5-cable`, `mlx5-temperature`, `mlx5-health`: slot power, transceiver, heat and firmware of an HCA.
- `mlx5-command`, `net-timeout`: an HCA does not answer a command; a queue of a network interface is stuck.
- `nfs-silent`: a server does not respond, and has not come back since. `nfs-locks` (a note): the server revoked locks.
- `disk-error`, `disk-past-end`: I/O errors; access beyond the end of a drive.
- `nvme-timeout`, `nvme-path`, `nvme-path-wait` (a note): an NVMe drive does not answer, has no working path, or waits
  for its controller.
- `md-drive`, `md-failed`: an md array lost a drive, or has failed.
- `fs-error`, `fs-read-only`, `fs-shutdown`: file systems.
- `memory-uncorrected`, `memory-corrected` (a note), `machine-check` (a note).
- `file-max`: the kernel opens no more files (`fs.file-max`).
- `peermem` (a note), `nvlink-detect`: messages of the NVIDIA driver about GPU memory that an HCA used, and about NVLinks.

Why: drivers report here first, and often only here, what breaks an hour later. Xids have a check of their own.

All are `warn` unless marked as a note; `lines` sets the severity of single ones. The log is a single source, so with `\"fail\"`
a node is drained when the kernel logs a fault of the same part a second time within 24 hours. A program can cause
`task-hung`, `soft-lockup`, `hard-lockup`, `rcu-stall`, `nfs-silent`, `nfs-locks`, `file-max`, `peermem`, `nvlink-detect`,
`mlx5-command`, `net-timeout` and `disk-past-end`, so these never fail; nor does any line about a `dm-N` device, since container runtimes map
users' encrypted images to such devices. Lines about loop devices are not judged: they are users' images.

Fix: read the line in the log (`dmesg -T`); it names the part.
";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::KernelLog];
    const SCOPE: Scope = Scope::Gpus;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        // `kernel-log` reports that the log could not be read.
        let Some(log) = scene.now.kernel_log.data() else { return };
        let mut sights: BTreeMap<(&str, String), Sight<'_>> = BTreeMap::new();
        for line in &log.lines {
            if let Some(back) = taken_back(&line.text) {
                sights.remove(&(back.id, name(back.part)));
            }
            let Some(seen) = line.recognise() else { continue };
            let Some(judgement) = kernel_line_judgement(seen.id) else { continue };
            let sight = sights.entry((seen.id, name(seen.part))).or_insert(Sight {
                judgement,
                part: seen.part,
                written: Vec::new(),
                last: line,
            });
            sight.written.push(line.time);
            sight.last = line;
        }
        for ((id, _), sight) in sights {
            let KernelLineJudgement { what, fix, class, severity, .. } = *sight.judgement;
            let severity = set.lines.get(id).copied().unwrap_or(severity);
            let times = sight.written.len();
            let what = if times > 1 { format!("{what} ({times} times)") } else { what.to_owned() };
            let source = format!("kmsg seq {}", sight.last.seq);
            let found = Found::new(severity, class, device(scene, sight.part), what).fix(fix).row(
                id,
                &sight.last.text,
                "no such line",
                source,
            );
            let raisable = sight.judgement.raisable || is_mapped(sight.part);
            out.add(grade(found, Nvml::Silent, raisable, sight.written));
        }
    }
}

/// Lines of one kind about one part.
struct Sight<'a> {
    judgement: &'static KernelLineJudgement,
    part: KernelPart<'a>,
    written: Vec<UnixMillis>,
    last: &'a KernelLine,
}

/// Whether a drive is a device-mapper device. A container runtime creates one for an encrypted image of a user, so its
/// errors do not count.
fn is_mapped(part: KernelPart<'_>) -> bool {
    matches!(part, KernelPart::Name(name) if name.starts_with("dm-"))
}

fn name(part: KernelPart<'_>) -> String {
    match part {
        KernelPart::Node => String::new(),
        KernelPart::Pci(at) => at.to_string(),
        KernelPart::Name(name) => name.chars().take(40).collect(),
    }
}

/// The name of a part in findings: the GPU's index or the HCA's name rather than a PCI address.
fn device(scene: &Scene<'_>, part: KernelPart<'_>) -> String {
    let KernelPart::Pci(at) = part else { return name(part) };
    let hcas = scene.now.fabric.data().map_or(&[][..], |fabric| fabric.hcas.as_slice());
    if let Some(hca) = hcas.iter().find(|hca| hca.pci.known() == Some(&at)) {
        return hca.name.clone();
    }
    let gpu = scene.all_gpus().iter().find(|gpu| gpu.pci.known() == Some(&at));
    gpu.map_or_else(|| name(part), |gpu| format!("gpu{}", gpu.index))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Case, case};

    fn says(lines: &[&str]) -> Vec<String> {
        lines.iter().fold(case("h100-sxm"), |case, line| case.kernel(line)).findings()
    }

    #[test]
    fn each_kind_of_line_makes_its_finding() {
        let cases = [
            (
                "INFO: task python3:4711 blocked for more than 120 seconds.",
                "warn kmsg: task hung in the kernel; see log; reboot",
            ),
            (
                "watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [python3:77]",
                "warn kmsg: processor locked up; see log; reboot",
            ),
            (
                "pcieport 0000:15:01.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)",
                "warn kmsg@0000:15:01.0: fatal PCIe error; reseat card",
            ),
            (
                "nvidia 0000:61:00.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer",
                "warn kmsg@gpu3: uncorrected PCIe error; reseat card",
            ),
            (
                "mlx5_core 0000:1a:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
                "note kmsg@0000:1a:00.0: corrected PCIe error; watch it",
            ),
            (
                "mlx5_core 0000:5e:00.0: mlx5_pcie_event:301:(pid 99): Detected insufficient power on the PCIe slot (27W).",
                "warn kmsg@mlx5_3: slot gives the HCA too little power; check slot power",
            ),
            (
                "mlx5_core 0000:5e:00.0: Port module event[error]: module 0, Cable error, High Temperature",
                "warn kmsg@mlx5_3: transceiver or cable reports an error; replace cable",
            ),
            (
                "mlx5_core 0000:5e:00.0: poll_health:975:(pid 0): device's health compromised - reached miss count",
                "warn kmsg@mlx5_3: HCA firmware reports a fault; reset HCA",
            ),
            (
                "nfs: server storage not responding, still trying",
                "warn kmsg@storage: NFS server does not respond; check server",
            ),
            (
                "I/O error, dev nvme0n1, sector 12345 op 0x0:(READ) flags 0x0",
                "warn kmsg@nvme0n1: I/O errors; replace drive",
            ),
            (
                "nvme nvme1: I/O 12 QID 3 timeout, aborting",
                "warn kmsg@nvme1: NVMe controller does not answer; replace drive",
            ),
            (
                "EXT4-fs error (device md0): ext4_lookup:1858: inode #2: comm ls: iget: checksum invalid",
                "warn kmsg@md0: file system has errors; fsck, check disk",
            ),
            (
                "EXT4-fs (md0): Remounting filesystem read-only",
                "warn kmsg@md0: file system made read-only; fsck, check disk",
            ),
            (
                "XFS (md1): Corruption of in-memory data detected.  Shutting down filesystem",
                "warn kmsg@md1: file system shut down; xfs_repair",
            ),
            (
                "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0)",
                "warn kmsg@MC0: uncorrected memory error; replace DIMM",
            ),
            (
                "EDAC MC3: 2 CE memory read error on CPU_SrcID#0_MC#3_Chan#1_DIMM#0",
                "note kmsg@MC3: corrected memory error; watch it",
            ),
            (
                "NMI watchdog: Watchdog detected hard LOCKUP on cpu 12",
                "warn kmsg: processor locked up with interrupts off; see log; reboot",
            ),
            (
                "rcu: INFO: rcu_sched detected stalls on CPUs/tasks:",
                "warn kmsg: processor stalls the kernel; see log; reboot",
            ),
            (
                "NFS: nfs4_reclaim_open_state: Lock reclaim failed!",
                "note kmsg: NFS locks lost; check server; restart their job",
            ),
            (
                "VFS: file-max limit 1000000 reached",
                "warn kmsg: no more files can be opened; raise fs.file-max",
            ),
            (
                "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing",
                "note kmsg: GPU memory freed under an HCA; update driver if it repeats",
            ),
            (
                "NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!",
                "warn kmsg: driver cannot read NVLink states; reset GPUs",
            ),
            (
                "mlx5_core 0000:5e:00.0: temp_warn:162:(pid 0): High temperature on sensors with bit set 0 1",
                "warn kmsg@mlx5_3: HCA is too hot; check cooling",
            ),
            (
                "mlx5_core 0000:5e:00.0: wait_func:1176:(pid 77): ENABLE_HCA(0x104) timeout. Will cause a leak of a command resource",
                "warn kmsg@mlx5_3: HCA firmware does not answer a command; reset HCA",
            ),
            (
                "NETDEV WATCHDOG: eth2 (mlx5_core): transmit queue 5 timed out",
                "warn kmsg@eth2: network interface does not send or receive; see log; check link",
            ),
            (
                "block nvme0n1: no available path - failing I/O",
                "warn kmsg@nvme0n1: NVMe drive has no working path; check drive",
            ),
            (
                "block nvme0n1: no usable path - requeuing I/O",
                "note kmsg@nvme0n1: NVMe drive waits for its controller; watch it",
            ),
            (
                "attempt to access beyond end of device\\x0asda1: rw=0, want=9, limit=4",
                "warn kmsg@sda1: access beyond the end of a drive; fsck, check partitions",
            ),
            (
                "md/raid1:md1: Disk failure on sda1, disabling device.\\x0amd/raid1:md1: Operation continuing on 1 devices.",
                "warn kmsg@sda1: array lost a drive; replace drive",
            ),
            (
                "md/raid0md0: Disk failure on nvme0n1p1 detected, failing array.",
                "warn kmsg@md0: array failed; replace drive, rebuild array",
            ),
            (
                "mce: [Hardware Error]: Machine check events logged",
                "note kmsg: machine check events; see mcelog",
            ),
        ];
        let mut seen = std::collections::BTreeSet::new();
        for (line, finding) in cases {
            assert_eq!(says(&[line]), [finding], "{line}");
            seen.insert(railgate_model::kernel_lines::recognise(line).unwrap().id);
        }
        let all: std::collections::BTreeSet<&str> = ids().collect();
        assert_eq!(seen, all, "a kind without a line");
    }

    /// A configuration that sets every kind to `fail`.
    fn strict() -> String {
        let lines: Vec<String> = ids().map(|id| format!("{id} = \"fail\"")).collect();
        format!("[checks.kmsg]\nlines = {{ {} }}", lines.join(", "))
    }

    #[test]
    fn a_line_that_a_program_can_raise_never_fails() {
        for line in [
            "INFO: task python3:4711 blocked for more than 120 seconds.",
            "watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [python3:77]",
            "NMI watchdog: Watchdog detected hard LOCKUP on cpu 12",
            "rcu: INFO: rcu_preempt self-detected stall on CPU",
            "NFS: nfs4_reclaim_open_state: Lock reclaim failed!",
            "VFS: file-max limit 1000000 reached",
            "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing",
            "mlx5_core 0000:5e:00.0: wait_func:1176:(pid 77): CREATE_QP(0x500) timeout. Will cause a leak of a command resource",
            "mlx5_core 0000:5e:00.0 eth2: NETDEV WATCHDOG: CPU: 3: transmit queue 5 timed out 5012 ms",
            "attempt to access beyond end of device\\x0asda1: rw=0, want=9, limit=4",
            "I/O error, dev dm-3, sector 12345 op 0x0:(READ) flags 0x0",
            "EXT4-fs error (device dm-3): ext4_lookup:1858: inode #2: comm ls: iget: checksum invalid",
        ] {
            let case = case("h100-sxm").settings(&strict()).kernel(line).again().kernel(line);
            assert_eq!(case.of("kmsg"), [Severity::Warn], "{line}");
        }
    }

    #[test]
    fn a_line_that_no_program_can_raise_fails_if_the_site_sets_it() {
        for line in [
            "nvme nvme4: Disabling device after reset failure: -19",
            "md/raid1:md1: Disk failure on sda1, disabling device.",
            "mlx5_core 0000:5e:00.0: print_health_info:447:(pid 0): synd 0x8: unrecoverable hardware error",
            "critical medium error, dev nvme0n1, sector 12345 op 0x0:(READ) flags 0x0",
        ] {
            let case = case("h100-sxm").settings(&strict()).kernel(line).again().kernel(line);
            assert_eq!(case.of("kmsg"), [Severity::Fail], "{line}");
        }
    }

    #[test]
    fn the_page_lists_every_kind_and_those_that_never_fail() {
        let (lists, rest) = KernelMessages::EXPLAIN.split_once("\nWhy: ").unwrap();
        let (_, raisable) = rest.split_once("A program can cause").unwrap();
        let (raisable, _) = raisable.split_once("so these never fail").unwrap();
        for id in ids() {
            let judgement = kernel_line_judgement(id).unwrap();
            let note = lists.contains(&format!("`{id}` (a note)"));
            assert!(lists.contains(&format!("`{id}`")), "{id}");
            assert_eq!(note, judgement.severity == Severity::Note, "{id}");
            assert_eq!(raisable.contains(&format!("`{id}`")), judgement.raisable, "{id}");
        }
    }

    #[test]
    fn a_process_or_file_name_in_a_line_is_not_parsed_as_a_line() {
        let lines = [
            "EXT4-fs error (device loop0): ext4_lookup:1858: inode #2: comm ls: iget: checksum invalid",
            "EXT4-fs warning (device md0): comm PCIe Bus Error: severity=Uncorrected (Fatal)",
            "overlayfs: failed to resolve 'pcieport 0000:15:01.0: PCIe Bus Error: severity=Uncorrected (Fatal)': -2",
            "Memory cgroup out of memory: Killed process 7 (EDAC MC0: UE ) total-vm:1kB",
            "NVRM: Xid (PCI:0000:18:00): 13, pid=1, name= soft lockup - , Graphics Exception",
            "mlx5_core 0000:5e:00.0: Port module event: module 0, Cable plugged",
        ];
        let findings: Vec<_> = says(&lines).into_iter().filter(|line| !line.contains("Xid 13")).collect();
        assert_eq!(findings, Vec::<String>::new());
    }

    #[test]
    fn lines_of_a_healthy_machine_make_no_finding() {
        let lines = [
            "mlx5_core 0000:5e:00.0: Port module event: module 0, Cable plugged",
            "mlx5_core 0000:5e:00.0: Port module event: module 0, Cable unplugged",
            "mlx5_core 0000:5e:00.0: 252.048 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x8 link)",
            "nvme nvme0: Shutdown timeout set to 10 seconds",
            "nvme nvme0: 127/0/0 default/read/poll queues",
            "pcieport 0000:15:01.0: AER: enabled with IRQ 34",
            "EXT4-fs (md0): mounted filesystem with ordered data mode. Quota mode: none.",
            "XFS (md1): Ending clean mount",
            "EDAC MC0: Giving out device to module i10nm_edac controller Intel_10nm Socket#0 IMC#0",
            "mce: CPU0: Thermal monitoring enabled (TM1)",
            "I/O error, dev sr0, sector 0 op 0x0:(READ) flags 0x80700",
            "I/O error, dev loop3, sector 0",
            "RPC: Registered tcp transport module.",
        ];
        assert_eq!(says(&lines), Vec::<String>::new());
    }

    #[test]
    fn an_nfs_server_that_responds_again_makes_no_finding() {
        let back = says(&[
            "nfs: server a not responding, still trying",
            "nfs: server b not responding, still trying",
            "nfs: server b not responding, still trying",
            "nfs: server a OK",
        ]);
        assert_eq!(back, ["warn kmsg@b: NFS server does not respond (2 times); check server"]);
    }

    #[test]
    fn the_site_sets_the_severity_of_a_kind() {
        let fatal =
            |case: Case| case.kernel("nvidia 0000:61:00.0: PCIe Bus Error: severity=Uncorrected (Fatal)");
        let strict = || fatal(case("h100-sxm")).settings("[checks.kmsg]\nlines = { pcie-fatal = \"fail\" }");
        assert_eq!(
            strict().summary(),
            "degraded: warn kmsg@gpu3: fatal PCIe error, strike 1 of 2; reseat card"
        );
        let twice = fatal(strict().again());
        assert_eq!(twice.summary(), "unfit: fail kmsg@gpu3: fatal PCIe error (2 times); reseat card");
        let config: crate::GateConfig = toml::from_str("[checks.kmsg]\nlines = { aer = \"fail\" }").unwrap();
        assert!(
            config.problems()[0].starts_with("gate.checks.kmsg.lines: no kind 'aer' (known: task-hung, ")
        );
    }
}
