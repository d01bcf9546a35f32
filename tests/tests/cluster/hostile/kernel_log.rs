//! Kernel messages with text from users: names of programs and files.

use anyhow::{Result, ensure};
use railgate_tests::poll;

use super::stage::{Case, Input, MINUTE, Stage};

pub(super) const INPUT: Input = Input { name: "kernel log", cases: CASES };

/// Strict settings of a site. Any line that they set to `fail` must be one that no user can cause.
pub(super) const STRICT: &str = "
[gate.checks.kmsg]
lines = { pcie-fatal = 'fail', pcie-uncorrected = 'fail', mlx5-health = 'fail', disk-error = 'fail', fs-read-only = 'fail', disk-past-end = 'fail', net-timeout = 'fail' }
";

/// GPU 3 of the simulated machine.
const GPU: &str = "0000:61:00";

/// Address of an HCA of the simulated machine.
const HCA: &str = "0000:5e:00.0";

/// Cuts a name to 15 bytes, as the kernel does.
fn cut(comm: &str) -> String {
    comm.bytes().take(15).map(char::from).collect()
}

/// The x86 kernel's line about a SIGSEGV; `file` is the base name of the executed file.
fn segfault(comm: &str, file: &str) -> String {
    format!(
        "{}[4711]: segfault at 0 ip 00007f3b5d6c1a2f sp 00007ffd0c1b2a30 error 4 in {file}[7f3b5d6c1000+1000] likely on CPU 3 (core 3, socket 0)",
        cut(comm)
    )
}

/// The same line for an address outside of any file.
fn segfault_nowhere(comm: &str) -> String {
    format!("{}[4711]: segfault at 0 ip 0000000000000000 sp 00007ffd0c1b2a30 error 14", cut(comm))
}

fn trap(comm: &str, file: &str) -> String {
    format!(
        "traps: {}[4711] general protection fault ip:55d0c1a2b3c4 sp:7ffd0c1b2a30 error:0 in {file}[55d0c1a2b000+1000]",
        cut(comm)
    )
}

/// Logs these lines while Bob's job runs. His epilog, Alice's prolog and epilog, and the periodic check then judge them.
fn log_lines(stage: &Stage<'_>, lines: &[String]) -> Result<()> {
    stage.during("", |_| {
        let mut hardware = stage.cluster.hardware(&stage.node)?;
        lines.iter().try_for_each(|line| hardware.log_kernel_line(line))
    })?;
    Ok(())
}

/// Appends a record in the format of `/dev/kmsg`, with the writer's level and facility.
fn raw(stage: &Stage<'_>, prefix: u32, text: &str) -> Result<()> {
    let file = stage.cluster.path(&stage.node, "/opt/railgate-test/kmsg")?;
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)?;
    let stamp = now.tv_sec() * 1_000_000 + now.tv_nsec() / 1000;
    let log = std::fs::read_to_string(&file)?;
    let last = log.lines().filter_map(|line| line.split(',').nth(1)?.parse::<u64>().ok()).max();
    let record = format!("{prefix},{},{stamp},-;{text}\n", last.unwrap_or(0) + 1);
    Ok(std::fs::write(&file, log + &record)?)
}

const CASES: &[Case] = &[
    Case {
        id: "kmsg-name-and-file-lose-a-gpu",
        does: "lets a program named `NVRM: GPU 1:0:0` crash in a file `fallen off the bus`",
        run: |stage| log_lines(stage, &[segfault("NVRM: GPU 1:0:0", "fallen off the bus")]),
    },
    Case {
        id: "kmsg-name-loses-the-node",
        does: "lets a program named `NVRM: fallen off the bus` crash in a file of that name, with no address",
        run: |stage| log_lines(stage, &[segfault("NVRM: fallen off the bus", "NVRM: fallen off the bus")]),
    },
    Case {
        id: "kmsg-name-of-this-gpu",
        does: "the same with the address of a GPU of the node, cut to 15 bytes in the process name and complete in the file name",
        run: |stage| {
            let file = format!("NVRM: GPU {GPU}.0: GPU has fallen off the bus.");
            log_lines(stage, &[segfault("NVRM: GPU 61:0:", &file), segfault("NVRM: The NVIDI", &file)])
        },
    },
    Case {
        id: "kmsg-name-at-address-zero",
        does: "crashes outside of any mapped file, with a driver's text as its name",
        run: |stage| {
            let names = ["NVRM: Xid (PCI:", "NVRM: Xid (0:0:", "nvidia-nvswitch", "NVRM: GPU at PC"];
            log_lines(stage, &names.map(segfault_nowhere))
        },
    },
    Case {
        id: "kmsg-sentence-in-pieces",
        does: "crashes three programs whose names and files begin and end the driver's sentence of three lines",
        run: |stage| {
            let lost = "NVRM: fallen off the bus and is not responding to commands.";
            let has = "NVRM: (PCI ID: 10de:2330) installed in this system has";
            log_lines(
                stage,
                &[
                    segfault("NVRM: The NVIDI", has),
                    segfault("NVRM: (PCI ID: ", lost),
                    trap("NVRM: fallen of", lost),
                ],
            )
        },
    },
    Case {
        id: "kmsg-trap",
        does: "traps (general protection, int3, invalid opcode) in a file named as a whole Xid line",
        run: |stage| {
            let file = format!("NVRM: Xid (PCI:{GPU}): 79, pid=1, name=x, GPU has fallen off the bus.");
            let int3 = format!(
                "traps: NVRM: Xid (PCI:[4711] trap int3 ip:55d0 sp:7ffd error:0 in {file}[55d0c1a2b000+1000]"
            );
            log_lines(stage, &[trap("NVRM: Xid (PCI:", &file), int3, trap("x", &format!("\n{file}"))])
        },
    },
    Case {
        id: "kmsg-newline-in-name",
        does: "uses program and file names with a newline followed by a complete Xid line",
        run: |stage| {
            let whole = format!("NVRM: Xid (PCI:{GPU}): 79, pid=1, name=x, GPU has fallen off the bus.");
            let file = format!("x\n3,999999,1,-;{whole}\n{whole}\n ");
            log_lines(stage, &[segfault("x\nNVRM: Xid (P", &file), segfault("NVRM: \nNVRM: Xi", &file)])
        },
    },
    Case {
        id: "kmsg-out-of-memory",
        does: "is killed for its memory under a name of the driver, which appears as task= and comm in those lines",
        run: |stage| {
            let memcg = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/x,task_memcg=/x,task=NVRM: Xid (PCI:,pid=4711,uid=5002";
            let killed = "Memory cgroup out of memory: Killed process 4711 (NVRM: Xid (PCI:) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:5002 pgtables:1kB oom_score_adj:0";
            let invoked =
                "NVRM: Xid (PCI: invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0";
            log_lines(stage, &[memcg, killed, invoked].map(str::to_owned))
        },
    },
    Case {
        id: "kmsg-audit",
        does: "crashes under audit: comm= and exe= of its record hold whole lines of the driver",
        run: |stage| {
            let exe = format!("/home/rgbob/NVRM: GPU {GPU}.0: GPU has fallen off the bus.");
            let line = format!(
                "audit: type=1701 audit(1795395488.123:42): auid=5002 uid=5002 gid=5002 ses=1 pid=4711 comm=\"NVRM: Xid (PCI:\" exe=\"{exe}\" sig=11 res=1"
            );
            log_lines(stage, &[line])
        },
    },
    Case {
        id: "kmsg-other-lines-with-a-name",
        does: "causes the kernel's other lines that name a program: executable stack, split lock, core limit, blocked task",
        run: |stage| {
            let lines = [
                "process 'NVRM: Xid (PCI:' started with executable stack",
                "x86/split lock detection: #AC: NVRM: Xid (PCI:/4711 took a split_lock trap at address: 0x401000",
                "Process 4711(NVRM: Xid (PCI:) has RLIMIT_CORE set to 1",
                "NVRM: Xid (PCI:[4711]: bad frame in rt_sigreturn frame:00007ffd ip:7f3b sp:7ffd orax:ffffffff in fallen off the bus[55d0c1a2b000+1000]",
                "NVRM: GPU 1:0:0 (4711): Uses obsolete fallen off the bus",
                "INFO: task NVRM: Xid (PCI::4711 blocked for more than 120 seconds.",
            ];
            log_lines(stage, &lines.map(str::to_owned))
        },
    },
    Case {
        id: "kmsg-file-breaks-pcie",
        does: "crashes in files named as fatal PCIe errors of a GPU and of an HCA, which the site sets to fail",
        run: |stage| {
            let pcie = format!(
                "nvidia {GPU}.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer"
            );
            let hca = &format!(
                "mlx5_core {HCA}: poll_health:975:(pid 0): device's health compromised - reached miss count"
            );
            log_lines(
                stage,
                &[
                    segfault("x", &pcie),
                    trap("mlx5_core 0000:", &pcie),
                    segfault("x", hca),
                    trap("mlx5_core", hca),
                ],
            )
        },
    },
    Case {
        id: "kmsg-file-breaks-disks",
        does: "crashes in files named as errors of drives and file systems, which the site sets to fail",
        run: |stage| {
            let disk = "I/O error, dev nvme0n1, sector 12345 op 0x0:(READ) flags 0x0";
            let ext4 = "EXT4-fs (md0): Remounting filesystem read-only";
            log_lines(stage, &[segfault("x", disk), segfault("EXT4-fs (md0): ", ext4), trap("x", ext4)])
        },
    },
    Case {
        id: "kmsg-name-past-the-end",
        does: "reads past the end of an image under names that imitate a driver's record, and causes other lines that the site sets to fail",
        run: |stage| {
            let past = |name: &str, device: &str| {
                let name = cut(name);
                format!(
                    "{name}: attempt to access beyond end of device\n{device}: rw=0, sector=9, nr_sectors = 8 limit=4"
                )
            };
            log_lines(
                stage,
                &[
                    past("NVRM: GPU 1:0:0", "loop0"),
                    past("EXT4-fs (md0): ", "dm-3"),
                    past("x: attempt to a", "sda1: rw=0, sector=9, nr_sectors = 8 limit=4\nloop0"),
                    format!(
                        "mlx5_core {HCA} eth2: NETDEV WATCHDOG: CPU: 3: transmit queue 5 timed out 5012 ms"
                    ),
                    "VFS: file-max limit 1048576 reached".to_owned(),
                ],
            )
        },
    },
    Case {
        id: "kmsg-file-breaks-switches",
        does: "crashes a program `nvidia-nvswitch` in a file named as a fatal SXid",
        run: |stage| {
            let file = "0: SXid (PCI:0000:05:00.0): 10003, Fatal, Host error";
            log_lines(
                stage,
                &[segfault("nvidia-nvswitch", file), segfault("nvidia-nvswitc", &format!("h{file}"))],
            )
        },
    },
    Case {
        id: "kmsg-name-field-of-an-xid",
        does: "causes application Xids with process names that imitate another code, another GPU or a requested reset",
        run: |stage| {
            let names = [
                "): 79, pid=1, n",
                "fallen off the ",
                "GPU-I:05): 48, ",
                "Fatal  XC0 i0 ",
                "to 0x4 (Reboot)",
                "\n79\u{1b}[2J",
            ];
            let xid = |name: &str| {
                format!(
                    "NVRM: Xid (PCI:{GPU}): 31, pid=4711, name={name}, Ch 00000018, intr 00000000. MMU Fault: ENGINE GRAPHICS"
                )
            };
            log_lines(stage, &names.map(xid))
        },
    },
    Case {
        id: "kmsg-xids-a-program-raises",
        does: "causes every application Xid a hundred times",
        run: |stage| {
            let xid =
                |code: u32| format!("NVRM: Xid (PCI:{GPU}): {code}, pid=4711, name=python3, Ch 00000018");
            let lines: Vec<String> = (0..100).flat_map(|_| [13, 31, 43, 45, 69].map(xid)).collect();
            log_lines(stage, &lines)
        },
    },
    Case {
        id: "kmsg-written-by-a-program",
        does: "a service that may write to /dev/kmsg repeats a user's text as a driver's line, at every level",
        run: |stage| {
            stage.during("", |_| {
                let whole = format!("NVRM: Xid (PCI:{GPU}): 79, pid=1, name=x, GPU has fallen off the bus.");
                (8..16).chain([27, 30]).try_for_each(|prefix| raw(stage, prefix, &whole))
            })?;
            let denied = stage.bob_there().run(&["sh", "-c", "echo x > /opt/railgate-test/kmsg"])?;
            ensure!(denied.code != 0, "Bob may write the kernel log");
            Ok(())
        },
    },
    Case {
        id: "kmsg-huge-and-broken-records",
        does: "records of 60 kB, without a text, with bytes that are no UTF-8, and numbers beyond 64 bits",
        run: |stage| {
            stage.during("", |_| {
                raw(stage, 6, &format!("x[1]: segfault in {}", "\\xff\\x1b[2J".repeat(5000)))?;
                raw(stage, 6, "")?;
                raw(stage, 6, &format!("NVRM: Xid (PCI:{GPU}): 99999999999999999999, x"))?;
                raw(stage, 6, &format!("NVRM: Xid (PCI:{}): 79, x", "f".repeat(4000)))
            })?;
            Ok(())
        },
    },
    Case {
        id: "kmsg-flood-hides-nothing",
        does: "3,000 crashes; the driver's line about a GPU that is really lost among them is still seen, and its node drained",
        run: |stage| {
            stage.during("", |_| {
                let mut hardware = stage.cluster.hardware(&stage.node)?;
                for number in 0..3000 {
                    if number == 1500 {
                        hardware.inject("gpu-lost@3")?;
                    }
                    hardware.log_kernel_line(&segfault("NVRM: GPU 1:0:0", "fallen off the bus"))?;
                }
                Ok(())
            })?;
            let node = poll::until(MINUTE, "the node to be drained", || {
                Ok(Some(stage.cluster.node(&stage.node)?).filter(|node| node.drained()))
            })?;
            ensure!(node.reason().starts_with("railgate: gpu-lost@3: "), "{}", node.reason());
            stage.repaired(&stage.node)
        },
    },
];
