use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::SystemTime;

use nix::time::{ClockId, clock_gettime};
use railgate_fsutil::{ReadError, read};
use railgate_model::{ForgedLine, KernelLine, KernelLog, KernelMark, UnixMillis, kernel_lines};
use railgate_text::printable;

use crate::kernel_origin::{audited_crash, worded_by_a_process};

/// The kernel limits a record to 8 KiB with its dictionary. A buffer that is too small would make every read fail with
/// EINVAL.
const RECORD_BYTES: usize = 16 * 1024;

/// Maximum size of a log in a plain file.
const FILE_BYTES: u64 = 64 * 1024 * 1024;

/// Maximum number of lines kept, once for the GPU driver and once for all others: a driver that floods the log (PCIe
/// errors can come by the thousand) must not fill every snapshot, nor push out the GPU driver's lines.
const MAX_LINES: usize = 2048;

/// Maximum number of forged records, and of audit records that may identify their users. A process can cause thousands.
const MAX_FORGED: usize = 32;

/// Maximum time between the records of one crash. The kernel logs its audit record when the core is dumped, after the
/// crash record.
const SAME_CRASH_MS: u64 = 5_000;

/// Reads the kernel's records after `since` from `/dev/kmsg`, or from a plain file in the same format (one record per
/// line; continuation lines start with a space).
///
/// A mark from another boot is ignored: all records in the buffer are read.
///
/// # Errors
/// Returns an error if the log cannot be opened (`dmesg_restrict` without `CAP_SYSLOG`) or read.
pub fn kernel_log_read(
    kmsg: &Path,
    since: Option<&KernelMark>,
    boot_id: &str,
) -> Result<KernelLog, ReadError> {
    let file = read::open(kmsg)?;
    let at = |source| ReadError::io(kmsg, source);
    let mut records = Records::new(since, boot_id, Clock::now());
    if file.metadata().map_err(at)?.file_type().is_char_device() {
        drain_device(file, &mut records).map_err(at)?;
    } else {
        for record in split(&read::whole(kmsg, FILE_BYTES)?) {
            records.take(record);
        }
    }
    Ok(records.finish())
}

/// Reads one record per call of `read`. EAGAIN marks the end. EPIPE means that records were overwritten before they
/// were read; the next read continues with the oldest one.
fn drain_device(mut file: File, records: &mut Records) -> io::Result<()> {
    let mut buffer = vec![0; RECORD_BYTES];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => {
                records.take(&String::from_utf8_lossy(buffer.get(..length).unwrap_or_default()));
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN) => return Ok(()),
                Some(libc::EPIPE) => records.log.overrun = true,
                Some(libc::EINTR) => {}
                _ => return Err(error),
            },
        }
    }
}

/// The records of a plain file. A last line without a newline is incomplete and left for the next check run.
fn split(text: &str) -> Vec<&str> {
    let mut records = Vec::new();
    let mut begin = 0;
    for (end, _) in text.match_indices('\n') {
        let next = end + 1;
        if !text.get(next..).is_some_and(|rest| rest.starts_with(' ')) {
            records.extend(text.get(begin..next));
            begin = next;
        }
    }
    records
}

/// Converts timestamps of records to wall-clock time.
#[derive(Clone, Copy)]
struct Clock {
    /// Wall-clock time at which the monotonic clock was zero.
    boot: UnixMillis,
    now: UnixMillis,
}

impl Clock {
    fn now() -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let up = clock_gettime(ClockId::CLOCK_MONOTONIC).map(std::time::Duration::from).unwrap_or_default();
        let millis = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or_default();
        Clock { boot: millis(now.saturating_sub(up)), now: millis(now) }
    }

    /// The kernel's timestamps come from a clock that is not synchronised, and can be off by minutes after weeks. The
    /// result is limited to the present, so that a record never seems to come after the end of the job that it ended.
    fn at(self, micros: u64) -> UnixMillis {
        self.boot.saturating_add(micros / 1000).min(self.now)
    }
}

struct Records {
    log: KernelLog,
    after: Option<u64>,
    /// Sequence number of the first record, if none is missing.
    expected: Option<u64>,
    clock: Clock,
    gpus: Newest,
    others: Newest,
    forged: VecDeque<ForgedLine>,
    /// Process id, user id and time of the latest audited crashes.
    crashes: VecDeque<(u32, u32, UnixMillis)>,
}

/// The latest lines of one kind.
#[derive(Default)]
struct Newest {
    lines: VecDeque<KernelLine>,
    dropped: bool,
}

impl Newest {
    fn push(&mut self, line: KernelLine) {
        if self.lines.len() >= MAX_LINES {
            self.lines.pop_front();
            self.dropped = true;
        }
        self.lines.push_back(line);
    }
}

impl Records {
    fn new(since: Option<&KernelMark>, boot_id: &str, clock: Clock) -> Self {
        let same_boot = since.filter(|mark| mark.boot_id == boot_id);
        let after = same_boot.map(|mark| mark.seq);
        Records {
            log: KernelLog {
                since: same_boot.cloned(),
                last_seq: after,
                overrun: false,
                lines: Vec::new(),
                forged: Vec::new(),
            },
            after,
            // The state is from an earlier boot, so all records of this boot are new.
            expected: since.map(|_| after.map_or(0, |seq| seq.saturating_add(1))),
            clock,
            gpus: Newest::default(),
            others: Newest::default(),
            forged: VecDeque::new(),
            crashes: VecDeque::new(),
        }
    }

    fn take(&mut self, record: &str) {
        let Some(record) = Record::parse(record) else { return };
        if self.after.is_some_and(|after| record.seq <= after) {
            return;
        }
        if self.expected.take().is_some_and(|expected| record.seq > expected) {
            self.log.overrun = true;
        }
        self.log.last_seq = Some(self.log.last_seq.map_or(record.seq, |seq| seq.max(record.seq)));
        if record.facility != 0 {
            return;
        }
        let time = self.clock.at(record.micros);
        if let Some((pid, uid)) = audited_crash(record.text) {
            keep_newest(&mut self.crashes, (pid, uid, time));
        }
        let own = match worded_by_a_process(record.text) {
            None if kernel_lines::is_read(record.text) => record.text,
            None => return,
            Some(worded) => {
                if kernel_lines::imitates(record.text) {
                    let text = printable(record.text).into_owned();
                    let forged = ForgedLine { seq: record.seq, time, pid: worded.pid, uid: None, text };
                    keep_newest(&mut self.forged, forged);
                }
                let Some(own) = kernel_lines::own_words(record.text) else { return };
                own
            }
        };
        let line =
            KernelLine { seq: record.seq, time, level: record.level, text: printable(own).into_owned() };
        if own.starts_with("NVRM:") || own.starts_with("nvidia") {
            self.gpus.push(line);
        } else {
            self.others.push(line);
        }
    }

    fn finish(mut self) -> KernelLog {
        for forged in &mut self.forged {
            let same = |(pid, _, time): &&(u32, u32, UnixMillis)| {
                Some(*pid) == forged.pid && time.abs_diff(forged.time) <= SAME_CRASH_MS
            };
            forged.uid = self.crashes.iter().find(same).map(|(_, uid, _)| *uid);
        }
        let mut log = self.log;
        log.forged = self.forged.into();
        log.overrun |= self.gpus.dropped || self.others.dropped;
        log.lines = self.gpus.lines.into_iter().chain(self.others.lines).collect();
        log.lines.sort_by_key(|line| line.seq);
        log
    }
}

fn keep_newest<T>(kept: &mut VecDeque<T>, one: T) {
    if kept.len() >= MAX_FORGED {
        kept.pop_front();
    }
    kept.push_back(one);
}

struct Record<'a> {
    facility: u64,
    level: u8,
    seq: u64,
    micros: u64,
    text: &'a str,
}

impl<'a> Record<'a> {
    /// Parses `prio,seq,usec,flags[,more];text` and the following lines `KEY=value`, which start with a space.
    fn parse(record: &'a str) -> Option<Self> {
        let (head, rest) = record.split_once(';')?;
        let mut fields = head.split(',');
        let priority: u64 = fields.next()?.parse().ok()?;
        let seq = fields.next()?.parse().ok()?;
        let micros = fields.next()?.parse().ok()?;
        fields.next()?;
        let text = rest.split('\n').next().unwrap_or(rest);
        Some(Record {
            facility: priority >> 3,
            level: u8::try_from(priority & 7).unwrap_or(7),
            seq,
            micros,
            text,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, since: Option<(&str, u64)>) -> KernelLog {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let since = since.map(|(boot_id, seq)| KernelMark { boot_id: boot_id.into(), seq });
        kernel_log_read(file.path(), since.as_ref(), "this").unwrap()
    }

    const LOG: &str = "\
5,0,0,-;Linux version 6.1.0
3,1,1000000,-;NVRM: Xid (PCI:0000:18:00): 79, pid=1, GPU has fallen off the bus.
 SUBSYSTEM=pci
 DEVICE=+pci:0000:18:00.0
11,2,2000000,-;NVRM: Xid (PCI:0000:19:00): 79, said by a process
4,3,3000000,-,caller=T77;mlx5_core 0000:1a:00.0: Port module event[error]: module 0, Cable error
6,4,4000000,-;usb 1-1: new device
";

    #[test]
    fn only_relevant_records_of_the_kernel_are_kept() {
        let log = read(LOG, None);
        let seqs: Vec<u64> = log.lines.iter().map(|line| line.seq).collect();
        assert_eq!(seqs, [1, 3]);
        assert_eq!(log.last_seq, Some(4));
        assert_eq!(log.lines[0].level, 3);
        assert_eq!(log.lines[0].text, "NVRM: Xid (PCI:0000:18:00): 79, pid=1, GPU has fallen off the bus.");
        assert_eq!(log.lines[1].time - log.lines[0].time, 2000);
        assert!(!log.overrun);
    }

    /// Every wording of NVIDIA's drivers, including old ones, as records of /dev/kmsg.
    #[test]
    fn every_wording_of_nvidia_drivers_is_kept() {
        let log = read(
            "\
3,1,1000000,-;NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
 SUBSYSTEM=pci
3,2,20000000,-;NVRM: Xid (0000:03:00): 14, Channel 00000001
3,3,20000000,-;NVRM: Xid (PCI:0008:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000)
3,4,20000000,-;NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.
3,5,40000000,-;NVRM: The NVIDIA GPU 0000:19:00.0
3,6,40000000,-;NVRM: (PCI ID: 10de:2330) installed in this system has
3,7,40000000,-;NVRM: fallen off the bus and is not responding to commands.
3,8,40000000,-;NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x4 (Drain and Reset) to 0x1 (GPU Reset Required)
3,9,40000000,-;nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up
3,10,40000000,-;nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)
3,11,40000000,-;nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 20034, Severity 1 Engine instance 60 Sub-engine instance 00
12,12,40000000,-;NVRM: Xid (PCI:0000:1a:00): 79, pid=1, name=x, a program writes to the log
",
            None,
        );
        let xids: Vec<_> =
            log.xids().iter().map(|xid| (xid.code, xid.gpu.map(|at| at.to_string()))).collect();
        let at = |place: &str| Some(place.to_owned());
        let want = [
            (79, at("0000:05:00.0")),
            (14, at("0000:03:00.0")),
            (149, at("0008:01:00.0")),
            (79, at("0000:18:00.0")),
            (79, at("0000:19:00.0")),
            (154, at("0008:01:00.0")),
        ];
        assert_eq!(xids, want);
        let sxids: Vec<_> = log.sxids().iter().map(|sxid| (sxid.code, sxid.fatal, sxid.seq)).collect();
        assert_eq!(sxids, [(20034, true, 9), (12028, false, 10)]);
    }

    /// Records that x86 logs for crashing programs with names that imitate a driver's record.
    #[test]
    fn a_record_that_a_process_words_is_dropped() {
        let log = read(
            "\
6,1,1000000,-;NVRM: fallen of[77]: segfault at 0 ip 0000000000401136 sp 00007ffd5c1e error 4 in NVRM: fallen off the bus[401000+1000] likely on CPU 3 (core 1, socket 0)
5,2,1500000,-;audit: type=1701 audit(1.5:9): auid=1000 uid=1002 gid=1002 ses=1 pid=77 comm=4E56524D exe=\"/tmp/x\" sig=11 res=1
6,3,2000000,-;NVRM: GPU 1:0:0[78]: segfault at 0 ip 0 sp 0 error 4 in fallen off the bus[401000+1000]
6,4,2000000,-;python3[79]: segfault at 0 ip 0 sp 0 error 4 in a: PCIe Bus Error: severity=Uncorrected (Fatal)[401000+1000]
4,5,2000000,-;mlx5_core 0:0:0 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0
4,6,2000000,-;overlayfs: failed to resolve 'pcieport 0000:15:01.0: PCIe Bus Error: severity=Uncorrected (Fatal)': -2
4,7,2000000,-;NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus. IN= OUT=lo SRC=127.0.0.1 DST=127.0.0.1
",
            None,
        );
        assert_eq!(log.lines, []);
        assert_eq!((log.xids(), log.sxids()), (Vec::new(), Vec::new()));
        let told: Vec<_> = log.forged.iter().map(|forged| (forged.seq, forged.pid, forged.uid)).collect();
        let want = [(1, Some(77), Some(1002)), (3, Some(78), None), (5, None, None), (7, None, None)];
        assert_eq!(told, want);
    }

    #[test]
    fn the_number_of_forged_records_is_limited() {
        let flood: String = (0..5000)
            .map(|seq| {
                format!("6,{seq},0,-;NVRM: x[{seq}]: segfault at 0 ip 0 sp 0 error 4 in NVRM: x[1+1]\n")
            })
            .collect();
        let log = read(&flood, None);
        assert_eq!((log.forged.len(), log.forged.last().unwrap().seq), (MAX_FORGED, 4999));
        assert!(!log.overrun);
    }

    /// Inputs that fuzzing found.
    #[test]
    fn the_fuzzing_corpus_is_read_without_panic() {
        let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/kernel_log");
        let mut read = 0;
        for seed in std::fs::read_dir(seeds).unwrap() {
            let path = seed.unwrap().path();
            let Ok(log) = kernel_log_read(&path, None, "this") else {
                assert!(std::str::from_utf8(&std::fs::read(&path).unwrap()).is_err(), "{}", path.display());
                continue;
            };
            assert!(log.lines.iter().all(|line| !line.text.chars().any(char::is_control)));
            assert!(log.xids().len() <= log.lines.len() && log.sxids().len() <= log.lines.len());
            read += 1;
        }
        assert!(read > 20, "{read}");
    }

    #[test]
    fn a_timestamp_in_the_future_is_limited_to_the_present() {
        let ahead = u64::MAX / 2;
        let log = read(&format!("3,1,{ahead},-;NVRM: one\n"), None);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
        assert!(u128::from(log.lines[0].time) <= now);
    }

    #[test]
    fn only_records_after_a_mark_of_this_boot_are_read() {
        let log = read(LOG, Some(("this", 1)));
        assert_eq!(log.lines.iter().map(|line| line.seq).collect::<Vec<_>>(), [3]);
        assert_eq!(log.since.as_ref().map(|mark| mark.seq), Some(1));
        // Without new records the mark stays.
        assert_eq!(read(LOG, Some(("this", 4))).last_seq, Some(4));
        // A mark from another boot means reading from the start.
        let log = read(LOG, Some(("other", 3)));
        assert_eq!((log.lines.len(), log.since.clone(), log.overrun), (2, None, false));
    }

    #[test]
    fn overwritten_records_set_overrun() {
        let tail = LOG.split_inclusive('\n').skip(5).collect::<String>();
        assert!(read(&tail, Some(("this", 1))).overrun);
        assert!(read(&tail, Some(("other", 9))).overrun);
        assert!(!read(&tail, Some(("this", 2))).overrun);
        assert!(!read(&tail, None).overrun);
    }

    #[test]
    fn an_unfinished_record_is_left_for_the_next_read() {
        let log = read("3,0,0,-;NVRM: one\n3,1,5,-;NVRM: tw", None);
        assert_eq!((log.last_seq, log.lines.len()), (Some(0), 1));
        assert_eq!(read("", None).last_seq, None);
        assert_eq!(read("rubbish\n;\n1,2\n", None).lines, []);
    }

    #[test]
    fn in_a_flood_the_newest_lines_and_all_xids_are_kept() {
        let count = u64::try_from(MAX_LINES).unwrap() + 10;
        let xid = "3,0,0,-;NVRM: Xid (PCI:0000:18:00): 79, pid=1, GPU has fallen off the bus.\n";
        let flood: String =
            (1..=count).map(|seq| format!("3,{seq},0,-;pcieport 0000:15:01.0: AER: again\n")).collect();
        let log = read(&format!("{xid}{flood}"), None);
        assert!(log.overrun);
        assert_eq!(log.lines.len(), MAX_LINES + 1);
        assert_eq!((log.lines[0].seq, log.lines[1].seq, log.last_seq), (0, 11, Some(count)));
        assert_eq!(log.xids().len(), 1);
    }

    #[test]
    fn this_kernels_log_is_read_or_refused() {
        // Often needs CAP_SYSLOG. Without it, the result must be an error rather than an empty log.
        match kernel_log_read(Path::new("/dev/kmsg"), None, "this") {
            Ok(log) => assert!(log.last_seq.is_some()),
            Err(error) => assert!(error.to_string().starts_with("/dev/kmsg: ")),
        }
    }
}
