//! Tests the table of kernel lines (`railgate_model::kernel_lines`) with the reader of the log and the sources of the
//! kernel.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use railgate_model::KernelLine;
use railgate_model::kernel_lines::{Format, KernelPart, Lead, Recognised, ids, recognise, rows, taken_back};
use railgate_probe::readers::kernel_log_read;

mod sources;

/// A valid text for a hole.
fn sample_of(hole: &str) -> &'static str {
    match hole {
        "int" => "7",
        "pid" => "4711",
        "hex" => "1f",
        "word" => "rcu_preempt",
        "part" => "md127",
        "disk" => "nvme0n1",
        "host" => "storage1",
        "bdf" => "0000:5e:00.0",
        "name" => "kworker/u64:3",
        "text" => "some (0x8) text",
        "rest" => " and more",
        other => panic!("unknown hole {other}"),
    }
}

fn holes(text: &str) -> Vec<&str> {
    text.split('{').skip(1).map(|rest| rest.split_once('}').unwrap().0).collect()
}

fn filled(text: &str) -> String {
    holes(text)
        .into_iter()
        .fold(text.replace('|', ""), |text, hole| text.replacen(&format!("{{{hole}}}"), sample_of(hole), 1))
}

fn lead_of(format: &Format) -> &'static str {
    match format.lead {
        Lead::None => "",
        Lead::Text(helper) => helper.text,
        Lead::Process => "{name}: ",
    }
}

/// A record of this format, as the kernel logs it.
fn sample(format: &Format) -> String {
    filled(lead_of(format)) + &filled(format.text)
}

fn read(level: u8, text: &str) -> Vec<KernelLine> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{level},9,1000000,-;{text}\n")).unwrap();
    kernel_log_read(file.path(), None, "this").unwrap().lines
}

#[test]
fn every_format_passes_the_reader_and_matches_its_row() {
    for row in rows() {
        for format in row.formats {
            let text = sample(format);
            let lines = read(3, &text);
            let got = lines.first().map(|line| line.recognise());
            let named = [lead_of(format), format.text]
                .into_iter()
                .flat_map(holes)
                .find(|hole| matches!(*hole, "part" | "disk" | "host" | "bdf"));
            let part = match named {
                None => KernelPart::Node,
                Some("bdf") => KernelPart::Pci(sample_of("bdf").parse().unwrap()),
                Some(hole) => KernelPart::Name(sample_of(hole)),
            };
            assert_eq!(got, Some(Some(Recognised { id: row.id, part })), "{text}");
        }
        for format in row.over {
            let text = sample(format);
            let lines = read(6, &text);
            let got = lines.first().map(|line| taken_back(&line.text).map(|back| back.id));
            assert_eq!(got, Some(Some(row.id)), "{text}");
            assert_eq!(recognise(&text), None, "{text}");
        }
    }
}

#[test]
fn ids_are_each_listed_once() {
    let unique: BTreeSet<&str> = ids().collect();
    assert_eq!(unique.len(), ids().count());
}

/// Text that a process chooses must not shift the hole that names the part.
#[test]
fn the_part_precedes_all_text_that_a_process_can_choose() {
    for format in rows().flat_map(|row| row.formats.iter().chain(row.over)) {
        let lead = if format.lead == Lead::Process { "" } else { lead_of(format) };
        let holes: Vec<&str> = [lead, format.text].into_iter().flat_map(holes).collect();
        let free = holes.iter().position(|hole| matches!(*hole, "name" | "text" | "rest"));
        let names = holes.iter().rposition(|hole| matches!(*hole, "part" | "disk" | "host" | "bdf"));
        assert!(free.is_none_or(|free| names.is_none_or(|names| names < free)), "{}", format.text);
        assert!(holes.iter().filter(|hole| **hole == "text").count() < 2, "{}", format.text);
        assert!(!format.text.replace("}{rest}", "").contains("}{"), "{}: holes side by side", format.text);
    }
}

#[test]
fn a_harmless_state_at_a_lower_priority_is_no_fault() {
    let text = "mlx5_core 0000:5e:00.0: print_health_info:447:(pid 0): synd 0x10: High temperature";
    assert_eq!(read(3, text)[0].recognise().map(|known| known.id), Some("mlx5-health"));
    assert_eq!(read(6, text)[0].recognise(), None);
    let info = "mlx5_core 0000:5e:00.0: print_health_info:431:(pid 0): Health issue observed, \
                High temperature, severity(6) INFO:";
    assert_eq!(recognise(info), None);
}

/// The reader keeps the kernel's text without the name, so that a name cannot imitate a driver's record.
#[test]
fn a_leading_process_name_is_stripped_from_a_record() {
    let own = "attempt to access beyond end of device\\x0asda1: rw=0, sector=9, nr_sectors = 8 limit=4";
    for name in ["python3", "kworker/u203:1", "x[1]", "\\x0a\\x0a", "NVRM: GPU 1:0:0", "EXT4-fs (md0): "] {
        let lines = read(6, &format!("{name}: {own}"));
        assert_eq!(lines.iter().map(|line| line.text.as_str()).collect::<Vec<_>>(), [own], "{name}");
    }
    for refused in [
        "python3: attempt to access beyond end of device".to_owned(),
        format!("{}: {own}", "x".repeat(70)),
        format!("python3 {own}"),
        format!("NVRM: x: {own} x"),
        "a: attempt to access beyond end of device\\x0aloop0: rw=0, sector=9, nr_sectors = 8 limit=4"
            .to_owned(),
    ] {
        assert_eq!(read(6, &refused), [], "{refused}");
    }
}

/// Text further on in a record can be chosen by a user.
#[test]
fn a_format_inside_another_record_does_not_match() {
    for format in rows().flat_map(|row| row.formats) {
        let text = sample(format);
        for outer in [
            format!("overlayfs: failed to resolve '{text}': -2"),
            format!("process '{text}' started with executable stack"),
            format!("x[77]: segfault at 0 ip 0 sp 0 error 4 in {text}[401000+1000]"),
            format!("Memory cgroup out of memory: Killed process 7 ({text}) total-vm:1kB"),
            format!("NVRM: Xid (PCI:0000:18:00): 13, pid=1, name={text}, Graphics Exception"),
        ] {
            for line in read(3, &outer) {
                assert_eq!(line.recognise(), None, "{outer}");
            }
        }
    }
}

/// Records from bug reports and from the tests of other monitors.
#[test]
fn records_of_real_kernels_match_their_rows() {
    let past_end = "kworker/u203:1: attempt to access beyond end of device\\x0anvme0n1p1: rw=1, sector=9, nr_sectors = 8 limit=4";
    let old_past_end = "attempt to access beyond end of device\\x0asda1: rw=0, want=262211, limit=63";
    for (text, id, part) in [
        ("NMI watchdog: Watchdog detected hard LOCKUP on cpu 12", "hard-lockup", ""),
        ("watchdog: Watchdog detected hard LOCKUP on cpu 12", "hard-lockup", ""),
        ("rcu: INFO: rcu_preempt self-detected stall on CPU", "rcu-stall", ""),
        ("rcu: INFO: rcu_sched detected stalls on CPUs/tasks:", "rcu-stall", ""),
        (
            "rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 3-.... } 21 jiffies s: 1 root: 0x8/.",
            "rcu-stall",
            "",
        ),
        ("INFO: rcu_sched self-detected stall on CPU { 4}  (t=60001 jiffies g=1 c=0 q=3)", "rcu-stall", ""),
        ("watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [python3:2254956]", "soft-lockup", ""),
        ("NMI watchdog: BUG: soft lockup - CPU#0 stuck for 23s! [cuda-EvtHandlr:77]", "soft-lockup", ""),
        ("BUG: soft lockup - CPU#0 stuck for 67s! [kworker/0:1:77]", "soft-lockup", ""),
        ("INFO: task jfsmount:136986 blocked for more than 120 seconds.", "task-hung", ""),
        ("task jfsmount:136986 blocked for more than 120 seconds.", "task-hung", ""),
        ("INFO: task kworker/u64:3:99 blocked for more than 122 seconds.", "task-hung", ""),
        (
            "mlx5_core 0000:5e:00.0: wait_func:1176:(pid 811): ENABLE_HCA(0x104) timeout. Will cause a leak of a command resource",
            "mlx5-command",
            "0000:5e:00.0",
        ),
        (
            "mlx5_core 0000:5e:00.0: cb_timeout_handler:937:(pid 9): cmd[3]: CREATE_MKEY(0x200) Async, timeout. Will cause a leak of a command resource",
            "mlx5-command",
            "0000:5e:00.0",
        ),
        (
            "mlx5_core 0000:5e:00.0: print_health_info:403:(pid 0): synd 0x8: unrecoverable hardware error",
            "mlx5-health",
            "0000:5e:00.0",
        ),
        (
            "mlx5_core 0000:5e:00.0: print_health_info:431:(pid 0): Health issue observed, firmware internal error, severity(3) ERROR:",
            "mlx5-health",
            "0000:5e:00.0",
        ),
        (
            "mlx5_core 0000:5e:00.0: poll_health:836:(pid 0): Fatal error 1 detected",
            "mlx5-health",
            "0000:5e:00.0",
        ),
        (
            "mlx5_core 0000:5e:00.0: port_module:258:(pid 0): Port module event[error]: module 0, Cable error, Bad or shorted cable/module",
            "mlx5-cable",
            "0000:5e:00.0",
        ),
        (
            "mlx5_core 0000:5e:00.0: port_module:258:(pid 0): Port module event[error]: module 0, Cable error, One or more network ports have been powered down due to insufficient/unadvertised power on the PCIe slot",
            "mlx5-power",
            "0000:5e:00.0",
        ),
        ("NETDEV WATCHDOG: ens5f0np0 (mlx5_core): transmit queue 7 timed out", "net-timeout", "ens5f0np0"),
        (
            "NETDEV WATCHDOG: ens5f0np0 (mlx5_core): transmit queue 7 timed out 5012 ms",
            "net-timeout",
            "ens5f0np0",
        ),
        (
            "mlx5_core 0000:5e:00.0 ens5f0np0: NETDEV WATCHDOG: CPU: 12: transmit queue 7 timed out 5012 ms",
            "net-timeout",
            "0000:5e:00.0",
        ),
        ("mlx5_core 0000:5e:00.0 ens5f0np0: TX timeout detected", "net-timeout", "0000:5e:00.0"),
        (
            "mlx5_core 0000:5e:00.0 ens5f0np0: TX timeout on queue: 7, SQ: 0x1a, CQ: 0x2b, SQ Cons: 0x1 SQ Prod: 0x2, usecs since last trans: 15000000",
            "net-timeout",
            "0000:5e:00.0",
        ),
        (
            "mlx5_core 0000:5e:00.0 ens5f0np0: RX timeout on channel: 3, ICOSQ: 0x1a RQ: 0x2b, CQ: 0x3c",
            "net-timeout",
            "0000:5e:00.0",
        ),
        (
            "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing",
            "peermem",
            "",
        ),
        (
            "NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!",
            "nvlink-detect",
            "",
        ),
        (
            "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!",
            "nvlink-detect",
            "",
        ),
        (
            "md/raid1:md1: Disk failure on sda1, disabling device.\\x0amd/raid1:md1: Operation continuing on 1 devices.",
            "md-drive",
            "sda1",
        ),
        ("md/raid10:md2: Disk failure on nvme2n1p1, disabling device.", "md-drive", "nvme2n1p1"),
        ("md/raid:md5: Disk failure on sdb3, disabling device.", "md-drive", "sdb3"),
        ("md/raid:md5: Cannot continue operation (2/4 failed).", "md-failed", "md5"),
        ("md/raid1:md1: Disk failure on sda1 detected, failing array", "md-failed", "md1"),
        ("md/raid0md0: Disk failure on nvme0n1p1 detected, failing array.", "md-failed", "md0"),
        ("md: md0: raid0 array has a missing/failed member", "md-failed", "md0"),
        ("EXT4-fs (dm-0): Remounting filesystem read-only", "fs-read-only", "dm-0"),
        ("EXT3-fs (dm-6): Remounting filesystem read-only", "fs-read-only", "dm-6"),
        ("EXT3-fs (sda1): error: remounting filesystem read-only", "fs-read-only", "sda1"),
        ("XFS (sda1): Remounting filesystem read-only", "fs-read-only", "sda1"),
        ("BTRFS: Remounting filesystem read-only", "fs-read-only", ""),
        ("BTRFS info (device sda1): forced readonly", "fs-read-only", "sda1"),
        ("BTRFS info (device sda1: state EA): forced readonly", "fs-read-only", "sda1"),
        ("BTRFS info (device sda1 state EA): forced readonly", "fs-read-only", "sda1"),
        (
            "BTRFS: error (device sda1: state A) in btrfs_run_delayed_refs:2149: errno=-5 IO failure",
            "fs-error",
            "sda1",
        ),
        ("block nvme0n1: no available path - failing I/O", "nvme-path", "nvme0n1"),
        ("block nvme0n1: no usable path - requeuing I/O", "nvme-path-wait", "nvme0n1"),
        ("nvme nvme4: Disabling device after reset failure: -19", "nvme-timeout", "nvme4"),
        ("nvme nvme4: Removing after probe failure status: -19", "nvme-timeout", "nvme4"),
        (
            "nvme nvme4: I/O tag 22 (2016) opcode 0x2 (Admin Cmd) QID 0 timeout, reset controller",
            "nvme-timeout",
            "nvme4",
        ),
        (
            "nvme nvme0: I/O tag 5 (1005) opcode 0x2 (I/O Cmd) QID 3 timeout, aborting req_op:READ(0) size:4096",
            "nvme-timeout",
            "nvme0",
        ),
        ("nvme nvme0: I/O 3 (I/O Cmd) QID 2 timeout, aborting", "nvme-timeout", "nvme0"),
        (
            "Buffer I/O error on dev dm-0, logical block 1308098575, lost async page write",
            "disk-error",
            "dm-0",
        ),
        ("EXT4-fs (dm-0): I/O error while writing superblock", "fs-error", "dm-0"),
        (past_end, "disk-past-end", "nvme0n1p1"),
        (old_past_end, "disk-past-end", "sda1"),
        ("XFS (md127): log I/O error -5", "fs-error", "md127"),
        (
            "XFS (md127): Metadata corruption detected at xfs_agi_verify+0x5c/0x100 [xfs], xfs_agi block 0x2",
            "fs-error",
            "md127",
        ),
        (
            "XFS (nvme0n1): Log I/O Error (0x2) detected at xlog_write+0x5a5/0x600 [xfs] (fs/xfs/xfs_log.c:2483).  Shutting down filesystem.",
            "fs-shutdown",
            "nvme0n1",
        ),
        (
            "critical medium error, dev sdb, sector 1953525160 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2",
            "disk-error",
            "sdb",
        ),
        ("blk_update_request: critical medium error, dev sdb, sector 1953525160", "disk-error", "sdb"),
        ("print_req_error: I/O error, dev sdb, sector 1953525160", "disk-error", "sdb"),
        (
            "blk_update_request: I/O error, dev nvme0n1, sector 12 op 0x1:(WRITE) flags 0x800 phys_seg 1 prio class 0",
            "disk-error",
            "nvme0n1",
        ),
        ("NFS: nfs4_reclaim_open_state: Lock reclaim failed!", "nfs-locks", ""),
        ("NFS: __nfs4_reclaim_open_state: Lock reclaim failed!", "nfs-locks", ""),
        ("nfs4_reclaim_open_state: Lock reclaim failed!", "nfs-locks", ""),
        (
            "nfs: server nfs-prod-01.example.com not responding, timed out",
            "nfs-silent",
            "nfs-prod-01.example.com",
        ),
        ("VFS: file-max limit 1000000 reached", "file-max", ""),
        (
            "pcieport 0000:5d:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Inaccessible, (Unregistered Agent ID)",
            "pcie-fatal",
            "0000:5d:00.0",
        ),
    ] {
        let lines = read(3, text);
        let got = lines.first().and_then(KernelLine::recognise);
        let got = got.map(|known| {
            let part = match known.part {
                KernelPart::Node => String::new(),
                KernelPart::Pci(at) => at.to_string(),
                KernelPart::Name(name) => name.to_owned(),
            };
            (known.id, part)
        });
        assert_eq!(got, Some((id, part.to_owned())), "{text}");
    }
}

/// Records about users' images and healthy devices, and incomplete records.
#[test]
fn records_without_a_fault_of_the_node_do_not_match() {
    for text in [
        "I/O error, dev loop3, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 2",
        "I/O error, dev sr0, sector 0 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2",
        "Buffer I/O error on dev loop0, logical block 0, async page read",
        "EXT4-fs (loop0): Remounting filesystem read-only",
        "EXT4-fs error (device loop0): ext4_lookup:1858: inode #2: comm ls: iget: checksum invalid",
        "XFS (loop7): Metadata I/O Error (0x4) detected at xfs_fs_goingdown+0x5a/0xf8 [xfs].  Shutting down filesystem.",
        "BTRFS info (device loop2): forced readonly",
        "python3: attempt to access beyond end of device\\x0aloop0: rw=0, sector=9, nr_sectors = 8 limit=4",
        "XFS (md1): User initiated shutdown received.",
        "XFS (md1): Ending clean mount",
        "EXT4-fs (md0): mounted filesystem with ordered data mode. Quota mode: none.",
        "BTRFS info (device sda1): using free space tree",
        "nvme nvme0: Shutdown timeout set to 10 seconds",
        "nvme nvme0: 127/0/0 default/read/poll queues",
        "mlx5_core 0000:5e:00.0: Port module event: module 0, Cable plugged",
        "mlx5_core 0000:5e:00.0: PCIe slot advertised sufficient power (75W).",
        "mlx5_core 0000:5e:00.0: mlx5_cmd_out_err:838:(pid 77): CREATE_QP(0x500) op_mod(0x0) failed, status bad parameter(0x3), syndrome (0x1), err(-22)",
        "mlx5_pcie_event:299:(pid 1): Detected insufficient power on the PCIe slot (30W).",
        "md/raid1:md1: not clean -- starting background reconstruction",
        "md: raid1 personality registered for level 1",
        "nfs: server storage OK",
        "EDAC MC0: Giving out device to module i10nm_edac controller Intel_10nm Socket#0 IMC#0",
        "rcu: Hierarchical RCU implementation.",
        "NMI watchdog: Enabled. Permanently consumes one hw-PMU counter.",
        "VFS: Disk quotas dquot_6.6.0",
    ] {
        assert!(read(3, text).iter().all(|line| line.recognise().is_none()), "{text}");
    }
}
