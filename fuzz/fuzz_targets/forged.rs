//! Kernel log records that an unprivileged process can cause, with process names, file names and paths of its choice.
//!
//! The fuzz target `kernel_forged` and `tests/tests/forged.rs` share it.

/// Text that a forger would try, besides arbitrary bytes.
const WORDS: &[&str] = &[
    "NVRM: ",
    "Xid (",
    "Xid (PCI:0000:61:00): 79, ",
    "Xid (PCI:0000:61:00): 48, ",
    "PCI:0000:61:00",
    "0000:61:00.0",
    "1:0:0",
    "): 79, ",
    "GPU ",
    "The NVIDIA GPU ",
    "(PCI ID: 10de:2330) installed in this system has",
    "fallen off the bus",
    ": GPU has fallen off the bus.",
    "fallen off the bus and is not responding to commands.",
    "pid=1, name=x, ",
    "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
    "Contained: SM (0x1)",
    "NETIR_LINK_EVT Fatal XC0 i0 Link 01 (0x02142",
    "nvidia-nvswitch",
    "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 22003, Fatal, ",
    "pcieport 0000:15:01.0: ",
    "PCIe Bus Error: severity=Uncorrected (Fatal)",
    "mlx5_core 0000:5e:00.0: ",
    "health compromised",
    "Port module event[error]",
    "EDAC MC0: 1 UE ",
    "EXT4-fs error (device md0): ",
    "XFS (md1): Shutting down filesystem",
    "I/O error, dev nvme0n1",
    "nvme nvme0: timeout, ",
    "mce: [Hardware Error]: Machine check events logged",
    "INFO: task ",
    " blocked for more than 120 seconds.",
    "nfs: server a not responding",
    "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!",
    "attempt to access beyond end of device\nsda1: rw=0, want=9, limit=4",
    "nvme nvme4: Disabling device after reset failure: -19",
    "md/raid1:md1: Disk failure on sda1, disabling device.",
    "critical medium error, dev nvme0n1, sector 7",
    "Buffer I/O error on dev sda1, logical block 7",
    "EXT4-fs (md0): Remounting filesystem read-only",
    "watchdog: Watchdog detected hard LOCKUP on cpu 1",
    "print_health_info:447:(pid 0): synd 0x8: unrecoverable hardware error",
    "\n",
    "\u{1}c",
    "\\x0a",
    "[77]: ",
    "; ",
];

/// Xid codes that a program can cause by its work on the GPU.
const RAISABLE: &[u32] = &[8, 13, 31, 32, 43, 45, 68, 69, 109, 137];

/// Consumes bytes; reads zero after their end.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// Text of the forger's choice, at most `most` bytes: words of the list, and bytes.
    fn text(&mut self, most: usize) -> Vec<u8> {
        let mut text = Vec::new();
        for _ in 0..self.next() % 6 {
            match self.next() {
                byte if byte < 200 => {
                    text.extend(
                        WORDS.get(usize::from(byte) % WORDS.len()).copied().unwrap_or_default().bytes(),
                    );
                }
                _ => text.push(self.next().max(1)),
            }
        }
        text.truncate(most);
        text
    }

    /// A process name of `TASK_COMM_LEN` bytes.
    fn name(&mut self) -> Vec<u8> {
        self.text(15)
    }

    /// The name of a file, without slashes.
    fn file(&mut self) -> Vec<u8> {
        self.text(255).into_iter().map(|byte| if byte == b'/' { b'_' } else { byte }).collect()
    }
}

/// One message as formatted by the kernel: format strings of Linux 6.1 and of NVIDIA's driver, with `{}` for text
/// that the process chooses.
fn message(bytes: &mut Bytes<'_>) -> Vec<u8> {
    let kind = bytes.next() % 26;
    let (name, file) = (bytes.name(), bytes.file());
    let raisable = RAISABLE.get(usize::from(bytes.next()) % RAISABLE.len()).copied().unwrap_or(13);
    let xid = format!("NVRM: Xid (PCI:0000:61:00): {raisable}, pid=77, name=");
    let parts: Vec<&[u8]> = match kind {
        0 | 1 => vec![
            &name,
            b"[77]: segfault at 0 ip 0000000000401136 sp 00007ffd5c1e0000 error 4 in ",
            &file,
            b"[401000+1000] likely on CPU 3 (core 1, socket 0)",
        ],
        2 => vec![&name, b"[77]: segfault at 0 ip 0 sp 0 error 4 in ", &file, b"[401000+1000]"],
        3 => vec![&name, b"[77] trap invalid opcode ip:401136 sp:7ffd error:0 in ", &file, b"[401000+1000]"],
        4 => vec![
            &name,
            b"[77] general protection fault ip:401136 sp:7ffd error:0 in ",
            &file,
            b"[401000+1000]",
        ],
        5 => vec![
            &name,
            b"[77]: unhandled exception: DABT (lower EL), ESR 0x0000000092000046 in ",
            &file,
            b"[401000+1000]",
        ],
        6 => vec![&name, b" invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0"],
        7 => vec![
            &name,
            b": page allocation failure: order:4, mode:0x40cc0(GFP_KERNEL|__GFP_COMP), nodemask=(null)",
        ],
        8 => vec![&name, b": attempt to access beyond end of device"],
        9 => vec![b"INFO: task ", &name, b":77 blocked for more than 120 seconds."],
        10 => vec![b"watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [", &name, b":77]"],
        11 => vec![
            b"Memory cgroup out of memory: Killed process 77 (",
            &name,
            b") total-vm:1kB, anon-rss:1kB, UID:1002 pgtables:1kB oom_score_adj:0",
        ],
        12 => vec![
            b"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,task=",
            &name,
            b",pid=77,uid=1002",
        ],
        13 => vec![
            b"EXT4-fs error (device loop0): ext4_lookup:1858: inode #2: comm ",
            &name,
            b": iget: checksum invalid",
        ],
        14 => vec![b"overlayfs: failed to resolve '", &file, b"': -2"],
        15 => vec![b"process '", &file, b"' started with executable stack"],
        16 => vec![&file, b"IN= OUT=lo SRC=127.0.0.1 DST=127.0.0.1 LEN=60 PROTO=TCP SPT=1 DPT=2"],
        17 => vec![b"NVRM: API mismatch: the client '", &name, b"' (process 77)"],
        18 => vec![
            b"audit: type=1701 audit(1.5:9): auid=1000 uid=1002 gid=1002 ses=1 pid=77 comm=",
            &file,
            b" sig=11 res=1",
        ],
        19 => vec![
            &name,
            b": attempt to access beyond end of device\nloop0: rw=0, sector=9, nr_sectors = 8 limit=4",
        ],
        20 => vec![
            b"EXT4-fs error (device dm-3): ext4_lookup:1858: inode #2: comm ",
            &name,
            b": iget: checksum invalid",
        ],
        21 => vec![b"VFS: file-max limit 1000000 reached"],
        22 => vec![b"rcu: INFO: rcu_preempt self-detected stall on CPU"],
        23 => vec![b"task ", &name, b":77 blocked for more than 120 seconds."],
        24 => vec![
            &name,
            b": attempt to access beyond end of device\ndm-3: rw=0, sector=9, nr_sectors = 8 limit=4",
        ],
        _ => vec![xid.as_bytes(), &name, b", Ch 00000010"],
    };
    parts.concat()
}

/// Text as read from `/dev/kmsg`, and the number of records.
pub(crate) fn log(bytes: &[u8], uptime_ms: u64) -> (String, u64) {
    let mut bytes = Bytes(bytes);
    let mut log = String::new();
    let mut seq = 0;
    while !bytes.0.is_empty() && seq < 64 {
        let message = message(&mut bytes);
        log.push_str(&format!("6,{seq},{},-;", uptime_ms * 1000));
        for byte in message {
            match byte {
                b'\\' => log.push_str("\\x5c"),
                b' '..=b'~' => log.push(char::from(byte)),
                _ => log.push_str(&format!("\\x{byte:02x}")),
            }
        }
        log.push('\n');
        seq += 1;
    }
    (log, seq)
}

/// A configuration in which every check that can drain does so at the first finding.
pub(crate) const STRICT: &str = r#"
strikes = 1
new_checks = "act"
[prolog]
warn = "report"
[checks.gpu-xid]
unknown_code = "fail"
nvlink_fatal = "fail"
codes = { "8" = "fail", "13" = "fail", "31" = "fail", "32" = "fail", "43" = "fail", "45" = "fail", "68" = "fail", "69" = "fail", "109" = "fail", "137" = "fail" }
[checks.gpu-sxid]
fatal = "fail"
[checks.kmsg]
lines = { "task-hung" = "fail", "soft-lockup" = "fail", "pcie-fatal" = "fail", "pcie-uncorrected" = "fail", "pcie-corrected" = "fail", "mlx5-power" = "fail", "mlx5-cable" = "fail", "mlx5-health" = "fail", "nfs-silent" = "fail", "disk-error" = "fail", "nvme-timeout" = "fail", "fs-error" = "fail", "fs-read-only" = "fail", "fs-shutdown" = "fail", "memory-uncorrected" = "fail", "memory-corrected" = "fail", "machine-check" = "fail", "hard-lockup" = "fail", "rcu-stall" = "fail", "nfs-locks" = "fail", "file-max" = "fail", "peermem" = "fail", "nvlink-detect" = "fail", "mlx5-temperature" = "fail", "mlx5-command" = "fail", "net-timeout" = "fail", "nvme-path" = "fail", "nvme-path-wait" = "fail", "disk-past-end" = "fail", "md-drive" = "fail", "md-failed" = "fail" }
"#;
