//! Detects kernel log records that start with text chosen by a process.
//!
//! The kernel prefixes some messages with the name of the process that caused them, and appends the name of its
//! executable. A user chooses both. For example, x86 logs `NAME[PID]: segfault at … in FILE[…]`, so a program called
//! `NVRM: GPU 1:0:0` causes a line that starts like those of the NVIDIA driver.

/// `TASK_COMM_LEN` without its NUL: the maximum length of a process name.
const NAME_BYTES: usize = 15;

/// Texts that the kernel prints directly after a process name without `[PID]` in between. From the format strings of
/// Linux 5.14 to 6.12: `mm/oom_kill.c`, `mm/page_alloc.c`, `mm/vmalloc.c`, `block/blk-core.c`, `kernel/signal.c`,
/// `kernel/exit.c`, `net/`.
const BEHIND_A_NAME: &[&str] = &[
    " invoked oom-killer: ",
    ": page allocation ",
    ": vmalloc error",
    ": vmalloc size",
    ": attempt to access beyond end of device",
    ": rw=",
    ": potentially unexpected fatal signal",
    " used greatest stack depth: ",
    " uses obsolete ",
    " (",
    "/",
];

/// A record that starts with text chosen by a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Worded {
    /// Process id, if the record has it.
    pub(crate) pid: Option<u32>,
}

/// Detects whether a record, as `/dev/kmsg` escapes it, starts with text that a user chose, through a process name or a
/// packet filter rule.
///
/// A driver's record is never mistaken for one: the fixed prefixes and device addresses are longer than a process name.
pub(crate) fn worded_by_a_process(text: &str) -> Option<Worded> {
    let mut name_bytes = 0;
    let mut rest = text;
    while name_bytes <= NAME_BYTES && !rest.is_empty() {
        if let Some(pid) = bracketed_pid(rest) {
            return Some(Worded { pid: Some(pid) });
        }
        if name_bytes > 0 && BEHIND_A_NAME.iter().any(|words| behind_a_name(rest, words)) {
            return Some(Worded { pid: None });
        }
        rest = after_one_byte(rest);
        name_bytes += 1;
    }
    // Netfilter's LOG target prints a prefix of up to 127 characters, then the packet. A user can have such rules in a
    // network namespace (`net.netfilter.nf_log_all_netns`).
    let packet = text.split_once("IN=").is_some_and(|(_, rest)| rest.contains(" OUT="));
    packet.then_some(Worded { pid: None })
}

/// The process id in `[4711]: ` or `[4711] `.
fn bracketed_pid(text: &str) -> Option<u32> {
    let (digits, rest) = text.strip_prefix('[')?.split_once(']')?;
    let number = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()?;
    (rest.starts_with(": ") || rest.starts_with(' ')).then_some(number)
}

/// Whether `words` follow a name: `NAME (4711): `, `NAME/4711: ` and `NAME (pid 4711) ` need a number; the others are
/// texts that no driver prints at this place.
fn behind_a_name(text: &str, words: &str) -> bool {
    let Some(rest) = text.strip_prefix(words) else { return false };
    match words {
        " (" | "/" => {
            let rest = rest.strip_prefix("pid ").unwrap_or(rest);
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let end = if words == "/" { ": " } else { ")" };
            digits > 0 && rest.get(digits..).is_some_and(|rest| rest.starts_with(end))
        }
        _ => true,
    }
}

/// Skips one byte of the original text: `/dev/kmsg` escapes the backslash and all that is not printable ASCII as
/// `\xNN`.
fn after_one_byte(text: &str) -> &str {
    let escaped = text.strip_prefix("\\x").and_then(|rest| rest.get(2..));
    escaped.unwrap_or_else(|| {
        let mut characters = text.chars();
        characters.next();
        characters.as_str()
    })
}

/// Parses process id and user id from an audit record of a process that was killed by a signal (`audit: type=1701`).
/// The kernel prints these records if no audit daemon runs. A user cannot influence the fields before `comm=`.
pub(crate) fn audited_crash(text: &str) -> Option<(u32, u32)> {
    let (own, _) = text.strip_prefix("audit: type=1701 audit(")?.split_once(" comm=")?;
    let number = |key: &str| {
        own.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('=')?.parse::<u32>().ok())
    };
    Some((number("pid")?, number("uid")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_that_start_with_a_process_name_are_detected() {
        let pid = |pid| Some(Worded { pid });
        for (text, want) in [
            (
                "NVRM: fallen of[77]: segfault at 0 ip 0 sp 0 error 4 in NVRM: fallen off the bus[400000+1000]",
                pid(Some(77)),
            ),
            (
                "NVRM: GPU 1:0:0[77]: segfault at 0 ip 0 sp 0 error 4 in fallen off the bus[1+1]",
                pid(Some(77)),
            ),
            ("nvidia-nvswitch[8] trap invalid opcode ip:1 sp:2 error:0 in a[1+1]", pid(Some(8))),
            ("mlx5_core[9] general protection fault ip:1 sp:2 error:0", pid(Some(9))),
            ("a[1] b[2]: segfault at 0", pid(Some(1))),
            ("\\x0aNVRM: x[77]: segfault at 0", pid(Some(77))),
            (
                "\\x0a\\x0a\\x0a\\x0a\\x0a\\x0a\\x0a\\x0a\\x0a\\x0a\\x0a\\x0a\\x0a\\x0a\\x0a[77]: segfault at 0",
                pid(Some(77)),
            ),
            ("NVRM: Xid (0:0) invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0", pid(None)),
            ("NVRM: x: page allocation failure: order:4, mode:0x40cc0", pid(None)),
            ("EDAC MC0: 1 UE: vmalloc error: size 1, page order 0", pid(None)),
            ("pcieport (4711): drop_caches: 3", pid(None)),
            ("mlx5_core/4711: potentially unexpected fatal signal 11.", pid(None)),
            ("NVRM: Xid (PCI:0000:18:00): 79, x IN= OUT=lo SRC=127.0.0.1", pid(None)),
        ] {
            assert_eq!(worded_by_a_process(text), want, "{text}");
        }
    }

    #[test]
    fn driver_records_are_not_mistaken_for_them() {
        for text in [
            "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            "NVRM: Xid (PCI:0000:05:00 GPU-I:05): 94, pid=4712, name=a[1] b, Contained: SM (0x1)",
            "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.",
            "NVRM: (PCI ID: 10de:2330) installed in this system has",
            "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            "mlx5_core 0000:1a:00.0: Port module event[error]: module 0, Cable error",
            "mlx5_core 0000:1a:00.0: mlx5_cmd_out_err:838:(pid 4711): CREATE_QP(0x500) failed",
            "pcieport 0000:15:01.0: AER: Multiple Corrected error received: 0000:15:01.0",
            "pcieport 0000:15:01.0:    [ 0] RxErr                  (First)",
            "watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [python3:77]",
            "INFO: task python3:4711 blocked for more than 120 seconds.",
            "Memory cgroup out of memory: Killed process 4711 (python3) total-vm:1kB, UID:1000",
            "oom-kill:constraint=CONSTRAINT_MEMCG,task=python3,pid=4711,uid=1000",
            "EXT4-fs error (device md0): ext4_lookup:1858: inode #2: comm ls: iget: checksum invalid",
            "EXT4-fs (md0): Remounting filesystem read-only",
            "XFS (md1): Ending clean mount",
            "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0)",
            "nvme nvme1: I/O 12 QID 3 timeout, aborting",
            "nvme nvme0: 127/0/0 default/read/poll queues",
            "mce: [Hardware Error]: Machine check events logged",
            "{1}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 1",
            "nfs: server storage not responding, still trying",
            "Lustre: 4711:0:(client.c:2305:ptlrpc_expire_one_request()) @@@ Request sent has timed out",
            "LNetError: 77:0:(o2iblnd_cb.c:3442:kiblnd_check_txs_locked()) Timed out tx",
            "RPC: Registered tcp transport module.",
        ] {
            assert_eq!(worded_by_a_process(text), None, "{text}");
        }
    }

    #[test]
    fn an_audit_record_gives_process_and_user() {
        let text = "audit: type=1701 audit(1700000000.1:2): auid=1000 uid=1002 gid=1002 ses=1 subj=unconfined \
                    pid=77 comm=\"pid=1 uid=0\" exe=\"/x\" sig=11 res=1";
        assert_eq!(audited_crash(text), Some((77, 1002)));
        assert_eq!(audited_crash("audit: type=1400 audit(1.1:2): pid=77 uid=1002 comm=\"x\""), None);
    }
}
