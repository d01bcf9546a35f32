use serde::{Deserialize, Serialize};

use crate::{KernelLine, KernelLog, PciAddress, Snapshot, UnixMillis, XidEvent};

/// The driver can log one fault in several ways within this time, milliseconds.
const SAME_FAULT_MS: u64 = 5_000;

/// The severity of an SXid, as the driver logs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SxidSeverity {
    /// `Correctable`: repaired.
    Correctable,
    /// `Non-fatal`: the links keep working.
    NonFatal,
    /// No severity in the line: `26006, SOE HALTED`.
    #[default]
    Unstated,
    /// `Fatal`: a link or the switch is lost.
    Fatal,
}

/// A line of the NVSwitch driver that reports an SXid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SxidEvent {
    /// SXid code.
    pub code: u32,
    /// PCI address of the switch in the record, with function 0.
    pub switch: Option<PciAddress>,
    /// Whether `severity` is `Fatal`.
    pub fatal: bool,
    /// Its severity, as the driver logs it.
    #[serde(default)]
    pub severity: SxidSeverity,
    /// Time of the record.
    pub time: UnixMillis,
    /// The record's sequence number.
    pub seq: u64,
    /// The whole line.
    pub text: String,
}

impl Snapshot {
    /// Returns the Xids that the driver reported, in order: from the kernel log, or from NVML if the log could not be
    /// read.
    pub fn xids(&self) -> Vec<XidEvent> {
        match self.kernel_log.data() {
            Some(log) => log.xids(),
            None => self.nvml_xids.clone().unwrap_or_default(),
        }
    }
}

impl KernelLog {
    /// Returns the Xids in these records, in order.
    ///
    /// Only complete sentences of the driver count: its prefix, the PCI address in its format, and for a lost GPU the
    /// full text. This prefix is longer than a process name, so no program can imitate it (`kernel_origin`). The text
    /// after `name=` is the name of a user's process and is ignored.
    ///
    /// The driver logs "GPU has fallen off the bus" in up to three ways. Repetitions about one GPU within five seconds
    /// are one event, with the numbered line if there is one.
    pub fn xids(&self) -> Vec<XidEvent> {
        let mut events: Vec<XidEvent> = Vec::new();
        let mut lost: Vec<XidEvent> = Vec::new();
        // One sentence can span three records; the first of them names the GPU.
        let mut named = None;
        for line in &self.lines {
            let Some(said) = line.text.strip_prefix("NVRM: ") else { continue };
            if let Some((gpu, code, rest)) = numbered(said) {
                events.push(event(line, code, gpu, pid(rest)));
                continue;
            }
            named = match (off_bus(said), named) {
                (OffBus::Whole(gpu), _) => {
                    lost.push(event(line, 79, gpu, None));
                    None
                }
                (OffBus::Begins(gpu), _) => Some(gpu),
                (OffBus::GoesOn, named) => named,
                (OffBus::Ends, Some(gpu)) => {
                    lost.push(event(line, 79, gpu, None));
                    None
                }
                (OffBus::Ends | OffBus::No, _) => None,
            };
        }
        for candidate in lost {
            let same = |known: &XidEvent| {
                known.code == 79
                    && known.gpu == candidate.gpu
                    && known.time.abs_diff(candidate.time) <= SAME_FAULT_MS
            };
            if !events.iter().any(same) {
                events.push(candidate);
            }
        }
        events.sort_by_key(|event| event.seq);
        events
    }

    /// Returns the SXids in these records, in order, without the register dumps that follow each.
    pub fn sxids(&self) -> Vec<SxidEvent> {
        self.lines.iter().filter_map(sxid).collect()
    }
}

fn event(line: &KernelLine, code: u32, gpu: PciAddress, pid: Option<u32>) -> XidEvent {
    XidEvent { code, gpu: Some(gpu), pid, time: line.time, seq: line.seq, text: line.text.clone() }
}

/// Parses `Xid (PCI:0000:05:00): 79, …`, `Xid (0000:03:00): 14, …` or `Xid (PCI:0000:05:00 GPU-I:05 GPU-CI:00): 94, …`.
fn numbered(said: &str) -> Option<(PciAddress, u32, &str)> {
    let (place, rest) = said.strip_prefix("Xid (")?.split_once("): ")?;
    let (code, rest) = rest.split_once(',')?;
    let place = place.strip_prefix("PCI:").unwrap_or(place);
    let mut words = place.split(' ');
    let gpu = address(words.next()?, false)?;
    let instance = |word: &str| {
        word.strip_prefix("GPU-I:")
            .or(word.strip_prefix("GPU-CI:"))
            .is_some_and(|number| is_number(number, 10))
    };
    words.all(instance).then_some(())?;
    is_number(code, 10).then_some(())?;
    Some((gpu, code.parse().ok()?, rest.strip_prefix(' ').unwrap_or(rest)))
}

/// What a record contributes to the message that a GPU is lost.
enum OffBus {
    Whole(PciAddress),
    /// "The NVIDIA GPU 0000:18:00.0": the sentence ends two records later.
    Begins(PciAddress),
    GoesOn,
    Ends,
    No,
}

/// From `osinit.c` and `osapi.c` of NVIDIA's open kernel modules; drivers before 400 log "GPU at … has".
fn off_bus(said: &str) -> OffBus {
    const ENDS: &str = "fallen off the bus and is not responding to commands.";
    let goes_on = |text: &str| {
        let id = text
            .strip_prefix("(PCI ID: ")
            .and_then(|rest| rest.strip_suffix(") installed in this system has"));
        id.and_then(|id| id.split_once(':')).is_some_and(|(vendor, device)| {
            [vendor, device].iter().all(|number| number.len() == 4 && is_number(number, 16))
        })
    };
    let one = said
        .strip_prefix("GPU ")
        .and_then(|rest| rest.strip_suffix(": GPU has fallen off the bus."))
        .or_else(|| said.strip_prefix("GPU at ")?.strip_suffix(" has fallen off the bus."));
    if let Some(gpu) = one.and_then(|place| address(place, true)) {
        return OffBus::Whole(gpu);
    }
    if let Some(rest) = said.strip_prefix("The NVIDIA GPU ") {
        // A single record in which /dev/kmsg escaped the newlines.
        let mut parts = rest.split("\\x0aNVRM: ");
        let gpu = parts.next().and_then(|place| address(place, true));
        return match (gpu, parts.next(), parts.next(), parts.next()) {
            (Some(gpu), None, _, _) => OffBus::Begins(gpu),
            (Some(gpu), Some(middle), Some(ENDS), None) if goes_on(middle) => OffBus::Whole(gpu),
            _ => OffBus::No,
        };
    }
    match said {
        ENDS => OffBus::Ends,
        _ if goes_on(said) => OffBus::GoesOn,
        _ => OffBus::No,
    }
}

/// Parses a complete `%04x:%02x:%02x`, or `%04x:%02x:%02x.%x` with `function`, and sets function 0.
fn address(text: &str, function: bool) -> Option<PciAddress> {
    let text = if function {
        let (place, number) = text.split_once('.')?;
        (number.len() == 1 && is_number(number, 16)).then_some(place)?
    } else {
        text
    };
    let mut fields = text.split(':');
    let (domain, bus, device) = (fields.next()?, fields.next()?, fields.next()?);
    let whole = (4..=8).contains(&domain.len())
        && bus.len() == 2
        && device.len() == 2
        && fields.next().is_none()
        && [domain, bus, device].iter().all(|number| is_number(number, 16));
    whole.then(|| text.parse().ok()).flatten()
}

fn is_number(text: &str, radix: u32) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_digit(radix))
}

/// The number in `pid=1234, ` or `pid='<unknown>', ` at the start of the text; further on it could be part of a process
/// name.
fn pid(rest: &str) -> Option<u32> {
    rest.strip_prefix("pid=")?.split(',').next()?.parse().ok()
}

/// Parses `nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, …`: "nvidia-%s: SXid (PCI:%04x:%02x:%02x.%x): %05d,
/// " in `common_nvswitch.h` of NVIDIA's open kernel modules 515 to 595.
fn sxid(line: &KernelLine) -> Option<SxidEvent> {
    let (switch, said) = line.text.strip_prefix("nvidia-nvswitch")?.split_once(": SXid (PCI:")?;
    if !is_number(switch, 10) {
        return None;
    }
    let (place, rest) = said.split_once("): ")?;
    let switch = address(place, true)?;
    let (code, what) = rest.split_once(", ")?;
    (code.len() >= 5 && is_number(code, 10)).then_some(())?;
    let severity = sxid_severity(what)?;
    Some(SxidEvent {
        code: code.parse().ok()?,
        switch: Some(switch),
        fatal: severity == SxidSeverity::Fatal,
        severity,
        time: line.time,
        seq: line.seq,
        text: line.text.clone(),
    })
}

/// `None` for a line that continues the previous one: `error_nvswitch.c` and `flcn_ls10.c` of the same source.
fn sxid_severity(what: &str) -> Option<SxidSeverity> {
    const DUMPS: &[&str] = &["Severity ", "Data {", "SOE HALT data["];
    if DUMPS.iter().any(|dump| what.starts_with(dump)) {
        return None;
    }
    Some(match what.split([',', ' ']).next()? {
        "Fatal" => SxidSeverity::Fatal,
        "Non-fatal" => SxidSeverity::NonFatal,
        "Correctable" => SxidSeverity::Correctable,
        _ => SxidSeverity::Unstated,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn log(lines: &[(u64, &str)]) -> KernelLog {
        let lines = lines.iter().enumerate();
        KernelLog {
            since: None,
            last_seq: None,
            overrun: false,
            forged: Vec::new(),
            lines: lines
                .map(|(seq, (seconds, text))| KernelLine {
                    seq: u64::try_from(seq).unwrap(),
                    time: seconds * 1000,
                    level: 3,
                    text: (*text).to_owned(),
                })
                .collect(),
        }
    }

    fn codes(lines: &[(u64, &str)]) -> Vec<(u32, String, Option<u32>)> {
        let place = |event: XidEvent| event.gpu.map(|gpu| gpu.to_string()).unwrap_or_default();
        log(lines).xids().into_iter().map(|event| (event.code, place(event.clone()), event.pid)).collect()
    }

    #[test]
    fn every_known_xid_wording_is_parsed() {
        let found = codes(&[
            (
                0,
                "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            ),
            (1, "NVRM: Xid (0000:03:00): 14, Channel 00000001"),
            (
                2,
                "NVRM: Xid (PCI:0008:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000)",
            ),
            (3, "NVRM: Xid (PCI:0000:9b:00): 31, pid=4711, name=python, Ch 00000018"),
            (4, "NVRM: Xid (PCI:0000:9b:00 GPU-I:05): 94, pid=4712, name=python3, Contained: SM (0x1)"),
            (
                5,
                "NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (Reset)",
            ),
        ]);
        let want = [
            (79, "0000:05:00.0", None),
            (14, "0000:03:00.0", None),
            (149, "0008:01:00.0", None),
            (31, "0000:9b:00.0", Some(4711)),
            (94, "0000:9b:00.0", Some(4712)),
            (154, "0008:01:00.0", None),
        ];
        assert_eq!(found, want.map(|(code, place, pid)| (code, place.to_owned(), pid)));
    }

    #[test]
    fn one_lost_gpu_is_one_event() {
        let found = codes(&[
            (10, "NVRM: GPU at PCI:0000:18:00: GPU-1b2c"),
            (10, "NVRM: Xid (PCI:0000:18:00): 79, pid=1, name=x, GPU has fallen off the bus."),
            (10, "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus."),
            (11, "NVRM: GPU 0000:19:00.0: GPU has fallen off the bus."),
            (12, "NVRM: The NVIDIA GPU 0000:19:00.0"),
            (12, "NVRM: (PCI ID: 10de:2330) installed in this system has"),
            (12, "NVRM: fallen off the bus and is not responding to commands."),
            (90, "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus."),
        ]);
        let want = [(79, "0000:18:00.0", Some(1)), (79, "0000:19:00.0", None), (79, "0000:18:00.0", None)];
        assert_eq!(found, want.map(|(code, place, pid)| (code, place.to_owned(), pid)));
        // The same as a single record, with newlines escaped by /dev/kmsg.
        let whole = "NVRM: The NVIDIA GPU 0000:19:00.0\\x0aNVRM: (PCI ID: 10de:2330) installed in this system \
                     has\\x0aNVRM: fallen off the bus and is not responding to commands.";
        assert_eq!(codes(&[(1, whole)]), [(79, "0000:19:00.0".to_owned(), None)]);
    }

    #[test]
    fn a_process_name_cannot_imitate_an_xid() {
        // The kernel starts such lines with the process name, at most 15 bytes, and ends them with the name of its
        // file. The reader rejects them (`kernel_origin`); here they must not match the driver's sentences either.
        for forged in [
            "NVRM: fallen of[77]: segfault at 0 ip 0 sp 0 error 4 in NVRM: fallen off the bus[400000+1000]",
            "NVRM: GPU 1:0:0[77]: segfault at 0 ip 0 sp 0 error 4 in fallen off the bus[400000+1000]",
            "NVRM: The NVIDI[77]: segfault at 0 in fallen off the bus and is not responding to commands.",
            "NVRM: fallen off the bus",
            "NVRM: fallen off the bus and is not responding to commands.",
            "NVRM: GPU 1:0:0: GPU has fallen off the bus.",
            "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus. ",
            "NVRM: Xid (0:0:0): 79, x",
            "NVRM: Xid (PCI:0000:18:00) x: 79, GPU has fallen off the bus.",
            "NVRM: Xid (PCI:0000:18:00 x): 79, GPU has fallen off the bus.",
            "NVRM: Xid (PCI:0000:18:0): 79, GPU has fallen off the bus.",
            "NVRM: Xid (PCI:0000:18:00.0): 79, GPU has fallen off the bus.",
            "NVRM: Xid (): 7[77]: segfault at 0 ip 0 sp 0 error 4, in libc.so",
            "NVRM: Xid (PCI:[77]: segfault at 0 ip 0): 79, x",
            "NVRM: Xid (0:0:[77]: segfault at 0 ip 0): 79, x",
            "x NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus",
            "NVRM: Xid (PCI:0000:18:00): many, x",
        ] {
            assert_eq!(codes(&[(0, forged)]), [], "{forged}");
        }
    }

    #[test]
    fn a_process_name_in_an_xid_record_is_ignored() {
        let named =
            |name: &str| format!("NVRM: Xid (PCI:0000:9b:00): 13, pid=4711, name={name}, Graphics Exception");
        for name in [", 79, GPU has f", "): 79, pid=1, x", "pid=1, pid=2", "fallen off the bus"] {
            assert_eq!(codes(&[(0, &named(name))]), [(13, "0000:9b:00.0".to_owned(), Some(4711))], "{name}");
        }
        let unknown = "NVRM: Xid (PCI:0000:9b:00): 45, name=pid=7, Ch 00000010";
        assert_eq!(codes(&[(0, unknown)])[0].2, None);
    }

    #[test]
    fn sxid_records_are_parsed() {
        let found = log(&[
            (0, "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"),
            (0, "nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 20034, Severity 1 Engine instance 60 Sub-engine instance 00"),
            (0, "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)"),
        ])
        .sxids();
        let found: Vec<_> = found.iter().map(|event| (event.code, event.fatal, event.seq)).collect();
        assert_eq!(found, [(20034, true, 0), (12028, false, 2)]);
    }

    /// Every SXid format string in NVIDIA's open kernel modules 515.43.04 to 595.45.04, with numbers filled in.
    #[test]
    fn every_sxid_of_the_driver_is_an_event() {
        let severity = |what: &str| {
            let line = format!("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): {what}");
            log(&[(0, &line)]).sxids().first().map(|event| event.severity)
        };
        use SxidSeverity::{Correctable, Fatal, NonFatal, Unstated};
        for (want, what) in [
            (Correctable, "19055, Correctable, Link 07 RX HDR ECC LIMIT Error (First)"),
            (Fatal, "10003, Fatal, unhandled interrupt in nvswitch_lib_service_interrupts(2310)"),
            (Fatal, "10001, Fatal, Unexpected PRI error"),
            (Fatal, "10001, Fatal, PRI WRITE SYS error, instance=2, chiplet=0"),
            (
                Fatal,
                "10008, Fatal, Firmware initialization failure (0x1/0x2, 0x3, 0x4, 0x5/0x6, 0x7, 0x8, 0x9, 0xa",
            ),
            (Fatal, "26003, Fatal, Failed to post command to SOE. Data {0x00000001, 0x00000002}"),
            (NonFatal, "10002, Non-fatal, PBUS PRI TIMEOUT error, instance=3, chiplet=0"),
            (NonFatal, "22013, Non-fatal, Link 12 Minion Link DLREQ interrupt"),
            (Unstated, "10004, Thermal Slowdown Engaged | Temp higher than WARN Threshold"),
            (Unstated, "10004, Thermal Slowdown Engaged | Links Thermal Mode ON"),
            (Unstated, "10004, NVSWITCH Temperature 98C | TSENSE WARN Threshold 95C"),
            (Unstated, "10004, PMGR OVERT Threshold reached. Shutting Down"),
            (Unstated, "10005, Thermal slowdown Disengaged"),
            (Unstated, "10006, TSENSE OVERT Threshold reached. Shutting Down"),
            (Unstated, "10006, NVSWITCH Temperature 108C | OVERT Threshold 105C"),
            (Unstated, "10007, IO failure"),
            (Unstated, "10010, TNVL mode is locked"),
            (Unstated, "25010, ALI Training failure. Info 0x1000000000"),
            (Unstated, "26001, Failed to reset SOE(0)"),
            (Unstated, "26002, SOE init failed(2)"),
            (Unstated, "26003, Failed to post command to SOE. Data {0x00000001, 0x00000002}"),
            (Unstated, "26004, SOE reset timeout error(1)"),
            (Unstated, "26006, SOE HALTED"),
            (Unstated, "26007, SOE EXTERR"),
            (Unstated, "26008, SOE Watchdog error"),
            (Unstated, "27002, Failed to init CCI(0)"),
            (Unstated, "27005, Module 3 access error"),
            (Unstated, "27006, Module 3 Image A boot failure"),
            (Unstated, "28003, OSFP Thermal Overt Activated"),
        ] {
            assert_eq!(severity(what), Some(want), "{what}");
        }
        for dump in [
            "22003, Severity 1 Engine instance 61 Sub-engine instance 00",
            "22003, Data {0x00000005, 0x00000006, 0x00000000}",
            "26006, SOE HALT data[0] = 0x              10",
            "26006, SOE HALT data[1] = unavailable",
        ] {
            assert_eq!(severity(dump), None, "{dump}");
        }
    }

    #[test]
    fn a_process_name_cannot_imitate_an_sxid() {
        for forged in [
            "nvidia-nvswitch[77]: segfault at 0 ip 0 sp 0 error 4 in x: SXid (PCI:0000:05:00.0): 26006, SOE HALTED",
            "nvidia-nvswitch0[77]: segfault at 0 in y: SXid (PCI:0000:05:00.0): 22003, Fatal, x",
            "nvidia-nvswitch: SXid (PCI:0000:05:00.0): 26006, SOE HALTED",
            "nvidia-nvswitch0: SXid (0000:05:00.0): 26006, SOE HALTED",
            "nvidia-nvswitch0: SXid (PCI:0000:05:00): 26006, SOE HALTED",
            "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 266, SOE HALTED",
            "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 26006",
            "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 26oo6, SOE HALTED",
            "x nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 26006, SOE HALTED",
        ] {
            assert_eq!(log(&[(0, forged)]).sxids(), [], "{forged}");
        }
    }

    proptest! {
        #[test]
        fn no_text_causes_a_panic(text in "(NVRM: )?(Xid \\(|GPU |The NVIDIA GPU )?.{0,60}") {
            let _ = log(&[(0, &text)]).xids();
            let _ = log(&[(0, &format!("nvidia-nvswitch0: SXid ({text}"))]).sxids();
        }
    }
}
