use std::collections::BTreeMap;

use railgate_node::{Action, Class, KernelLine, PartName, PciAddress, Severity, UnixMillis};
use serde::{Deserialize, Serialize};

use super::kmsg_table::{Begins, LINES, Line, Names};
use crate::agreement::{Nvml, grade};
use crate::register::{Check, Scope, Table};
use crate::report::{Found, Report};
use crate::scene::Scene;

/// The check.
pub(crate) struct KernelMessages;

/// `[gate.checks.kmsg]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The strongest thing that may follow.
    pub action: Action,
    /// The site's own severity for single kinds of lines.
    pub lines: BTreeMap<String, Severity>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { action: Action::Drain, lines: BTreeMap::new() }
    }
}

impl Table for Settings {
    fn action(&self) -> Action {
        self.action
    }

    fn problems(&self) -> Vec<String> {
        let known = |id: &&String| LINES.iter().all(|line| line.id != **id);
        let ids: Vec<&str> = LINES.iter().map(|line| line.id).collect();
        let why = |id: &String| format!("lines: no kind '{id}' (known: {})", ids.join(", "));
        self.lines.keys().filter(known).map(why).collect()
    }
}

impl Check for KernelMessages {
    const ABOUT: &'static str = "the kernel complains: hung tasks, PCIe, HCAs, NFS, disks, memory";
    const EXPLAIN: &'static str = "
Reads the lines of `/dev/kmsg` since the last look that was acted on (those that the kernel itself wrote), against a table:

- `task-hung`, `soft-lockup`: tasks and processors that do not move.
- `pcie-fatal`, `pcie-uncorrected`, `pcie-corrected` (a note): errors that AER reports.
- `mlx5-power`, `mlx5-cable`, `mlx5-health`: slot power, optic and firmware of an HCA.
- `nfs-silent`: a server does not respond, and has not come back since.
- `disk-error`, `nvme-timeout`, `fs-error`, `fs-read-only`, `fs-shutdown`: drives and file systems.
- `memory-uncorrected`, `memory-corrected` (a note), `machine-check` (a note).

Why: drivers say here first, and often only here, what breaks an hour later. Xids have a check of their own.

All are `warn` unless it says otherwise; `lines` gives single ones another severity. A line of the log is one source, so with
`\"fail\"` a node is drained when the kernel writes of the same part a second time within 24 hours. `task-hung` and
`soft-lockup` never fail: a program can cause them.

Fix: the line itself says which part; `dmesg -T`.

```toml
[gate.checks.kmsg]
action = \"drain\"      # off, shadow, report, notify, drain
lines = {}            # { \"pcie-fatal\" = \"fail\", \"nfs-silent\" = \"note\" }
```";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::KernelLog];
    const SCOPE: Scope = Scope::Gpus;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        // That the log could not be read `kernel-log` says.
        let Some(log) = scene.now.kernel_log.data() else { return };
        let mut sights: BTreeMap<(&str, String), Sight<'_>> = BTreeMap::new();
        for kernel in &log.lines {
            // What has come back is no news any more.
            sights.retain(|(_, part), sight| !sight.is_over(part, &kernel.text));
            let Some(line) = LINES.iter().find(|line| fits(line, &kernel.text)) else { continue };
            let part = part_of(line.names, &kernel.text);
            let sight =
                sights.entry((line.id, part)).or_insert(Sight { line, written: Vec::new(), last: kernel });
            sight.written.push(kernel.time);
            sight.last = kernel;
        }
        for ((id, part), sight) in sights {
            let line = sight.line;
            let severity = set.lines.get(id).copied().unwrap_or(line.severity);
            let part = device(scene, line.names, part);
            let what = if sight.written.len() > 1 {
                format!("{} ({} times)", line.what, sight.written.len())
            } else {
                line.what.to_owned()
            };
            let source = format!("kmsg seq {}", sight.last.seq);
            let found = Found::new(severity, line.class, part, what).fix(line.fix).row(
                id,
                &sight.last.text,
                "no such line",
                source,
            );
            out.add(grade(found, Nvml::Silent, line.raisable, sight.written));
        }
    }
}

/// A kind of line about one part.
struct Sight<'a> {
    line: &'static Line,
    written: Vec<UnixMillis>,
    last: &'a KernelLine,
}

impl Sight<'_> {
    fn is_over(&self, part: &str, text: &str) -> bool {
        let Some(over) = self.line.over else { return false };
        text.ends_with(over) && part_of(self.line.names, text) == part
    }
}

fn fits(line: &Line, text: &str) -> bool {
    let own = match line.begins {
        Begins::Line => text,
        Begins::Device(driver) => match of_device(text) {
            Some((by, _, own)) if by.starts_with(driver) => own,
            _ => return false,
        },
    };
    // An image file that a user's container runtime has mounted: its errors are the user's.
    let image = matches!(line.names, Names::After(_)) && part_of(line.names, text).starts_with("loop");
    !image
        && line.texts.iter().any(|all| {
            let (first, others) = all.split_first().unwrap_or((&"", &[]));
            own.strip_prefix(first).is_some_and(|rest| others.iter().all(|one| rest.contains(one)))
        })
}

/// `mlx5_core 0000:1a:00.0: …`: the driver, its device, and what it says.
fn of_device(text: &str) -> Option<(&str, PciAddress, &str)> {
    let (driver, rest) = text.split_once(' ')?;
    let (place, _) = rest.split_once([' ', ','])?;
    let address = place.trim_end_matches(':').parse().ok()?;
    let own = rest.get(place.len()..)?.trim_start();
    place.contains('.').then_some((driver, address, own))
}

fn part_of(names: Names, text: &str) -> String {
    match names {
        Names::Node => String::new(),
        Names::Pci => of_device(text).map_or_else(String::new, |(_, at, _)| at.to_string()),
        Names::After(lead) => {
            let rest = text.split_once(lead).map_or("", |(_, rest)| rest);
            let word = rest.split([' ', ',', ')', '(']).next().unwrap_or_default();
            word.trim_end_matches(':').chars().take(40).collect()
        }
    }
}

/// People know GPUs and HCAs by other names than their addresses.
fn device(scene: &Scene<'_>, names: Names, part: String) -> String {
    let Some(at) = (names == Names::Pci).then(|| part.parse::<PciAddress>().ok()).flatten() else {
        return part;
    };
    let hcas = scene.now.fabric.data().map_or(&[][..], |fabric| fabric.hcas.as_slice());
    if let Some(hca) = hcas.iter().find(|hca| hca.pci.known() == Some(&at)) {
        return hca.name.clone();
    }
    let gpu = scene.all_gpus().iter().find(|gpu| gpu.pci.known() == Some(&at));
    gpu.map_or(part, |gpu| format!("gpu{}", gpu.index))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Look, look};

    fn says(lines: &[&str]) -> Vec<String> {
        lines.iter().fold(look("h100-sxm"), |look, line| look.kernel(line)).findings()
    }

    #[test]
    fn every_kind() {
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
                "warn kmsg@mlx5_3: optic or cable reports an error; replace cable",
            ),
            (
                "mlx5_core 0000:5e:00.0: poll_health:975:(pid 0): device's health compromised - reached miss count",
                "warn kmsg@mlx5_3: HCA firmware is in trouble; reset HCA",
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
                "mce: [Hardware Error]: Machine check events logged",
                "note kmsg: machine check events; see mcelog",
            ),
        ];
        let mut seen = std::collections::BTreeSet::new();
        for (line, finding) in cases {
            assert_eq!(says(&[line]), [finding], "{line}");
            seen.insert(LINES.iter().find(|known| fits(known, line)).unwrap().id);
        }
        let all: std::collections::BTreeSet<&str> = LINES.iter().map(|line| line.id).collect();
        assert_eq!(seen, all, "a kind without a line");
    }

    #[test]
    fn what_a_program_can_raise_never_fails() {
        for line in [
            "INFO: task python3:4711 blocked for more than 120 seconds.",
            "watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [python3:77]",
        ] {
            let strict = "[checks.kmsg]\nlines = { task-hung = \"fail\", soft-lockup = \"fail\" }";
            let look = look("h100-sxm").settings(strict).kernel(line).again().kernel(line);
            assert_eq!(look.of("kmsg"), [Severity::Warn], "{line}");
        }
    }

    #[test]
    fn a_name_inside_a_line_is_no_line() {
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
    fn what_a_healthy_machine_says_is_nothing() {
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
    fn a_server_that_came_back_is_none_and_another_still_is() {
        let back = says(&[
            "nfs: server a not responding, still trying",
            "nfs: server b not responding, still trying",
            "nfs: server b not responding, still trying",
            "nfs: server a OK",
        ]);
        assert_eq!(back, ["warn kmsg@b: NFS server does not respond (2 times); check server"]);
    }

    #[test]
    fn the_site_has_the_last_word() {
        let fatal =
            |look: Look| look.kernel("nvidia 0000:61:00.0: PCIe Bus Error: severity=Uncorrected (Fatal)");
        let strict = || fatal(look("h100-sxm")).settings("[checks.kmsg]\nlines = { pcie-fatal = \"fail\" }");
        assert_eq!(strict().says(), "degraded: warn kmsg@gpu3: fatal PCIe error, strike 1 of 2; reseat card");
        let twice = fatal(strict().again());
        assert_eq!(twice.says(), "unfit: fail kmsg@gpu3: fatal PCIe error (2 times); reseat card");
        let config: crate::GateConfig = toml::from_str("[checks.kmsg]\nlines = { aer = \"fail\" }").unwrap();
        assert!(
            config.problems()[0].starts_with("gate.checks.kmsg.lines: no kind 'aer' (known: task-hung, ")
        );
    }
}
