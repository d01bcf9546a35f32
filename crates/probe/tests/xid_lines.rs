//! Lines of NVIDIA's drivers, passed through the live reader and judged by the catalogue.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::io::Write as _;

use railgate_model::xid_catalogue::{Bucket, Owner, explain, lookup, nvlink5_line, sxid_name};
use railgate_model::{KernelLog, Severity, SxidSeverity};
use railgate_probe::readers::kernel_log_read;

/// A plain file in the format of `/dev/kmsg`, read by the live reader.
fn read(lines: &[&str]) -> KernelLog {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        writeln!(text, "3,{},{},-;{line}", number + 1, 1_000_000 * number).unwrap();
    }
    file.write_all(text.as_bytes()).unwrap();
    kernel_log_read(file.path(), None, "this boot").unwrap()
}

fn xid(code: u32, text: &str) -> String {
    format!("NVRM: Xid (PCI:0008:01:00): {code}, {text}")
}

/// The catalogue's immediate action for one line.
fn action(line: &str) -> Option<Bucket> {
    let events = read(&[line]).xids();
    assert_eq!(events.len(), 1, "{line}");
    let event = events.first()?;
    match nvlink5_line(event.code, &event.text) {
        Some(line) => line.decode().map(|row| row.immediate),
        None => lookup(event.code)?.immediate,
    }
}

#[test]
fn codes_of_newer_drivers_have_their_actions() {
    for (code, want) in [
        (60, Some(Bucket::RestartApp)),
        (78, Some(Bucket::UpdateSwfw)),
        (108, Some(Bucket::Ignore)),
        (109, Some(Bucket::ResetGpu)),
        (142, Some(Bucket::ContactSupport)),
        (157, Some(Bucket::Ignore)),
        (159, Some(Bucket::CheckUvm)),
        (166, None),
        (170, None),
    ] {
        assert_eq!(action(&xid(code, "pid=4711, name=python3, Ch 00000010")), want, "{code}");
    }
    let name = |code: u32| lookup(code).unwrap().name;
    assert!(name(82).contains("NVJPG") && name(83).contains("NVDEC") && name(84).contains("NVDEC"));
    assert!(name(139).contains("OFA"));
}

#[test]
fn every_code_of_the_catalogue_reaches_its_row() {
    let lines: Vec<String> = (1..=176).map(|code| xid(code, "pid=4711, name=python3, Ch 00000010")).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let codes: Vec<u32> = read(&lines).xids().iter().map(|event| event.code).collect();
    assert_eq!(codes, (1..=176).collect::<Vec<_>>());
    assert!(codes.iter().all(|code| lookup(*code).is_some()));
}

/// Lines of real nodes (some from the tests of leptonai/gpud and NVIDIA/NVSentinel), with numbers from the decode
/// table.
#[test]
fn nvlink_5_records_are_decoded() {
    for (code, text, want) in [
        (144, "SAW_MVB Nonfatal XC0 i0 Link 00 (0x00000021 0x00000001 0x00000000)", Bucket::Ignore),
        (144, "SAW_MVB Fatal XC0 i0 Link 00 (0x00000021 0x00000002 0x00000000)", Bucket::ResetGpu),
        (145, "RLW_REMAP Nonfatal XC1 i0 Link 10 (0x00000082 0x00000001)", Bucket::Xid154Eval),
        (145, "RLW_REMAP Fatal XC1 i0 Link 10 (0x00000082 0x00000040)", Bucket::ResetGpu),
        (
            145,
            "pid=11436, name=cache_mgr_main, RLW_SRC_TRACK Nonfatal XC1 i0 Link 03 (0x040868e2 0x00000008)",
            Bucket::Xid154Eval,
        ),
        (145, "RLW_SRC_TRACK Nonfatal XC1 i0 Link 10 (0x04082907 0x00000008)", Bucket::Xid154Eval),
        (145, "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001)", Bucket::Ignore),
        (145, "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a4c2 0x00000002 0x00000001)", Bucket::ResetGpu),
        (146, "TLW_RX Fatal XC0 i0 Link 02 (0x00000143 0x00000004)", Bucket::ResetGpu),
        (146, "TLW_RX_PIPE1 Nonfatal XC0 i0 Link 02 (0x0000000b 0x00000001)", Bucket::Ignore),
        (147, "TREX Nonfatal XC0 i0 Link 00 (0x0000000e 0x80000000)", Bucket::Ignore),
        (148, "NVLPW Nonfatal XC0 i0 Link 00 (0x0000000f 0x80000000)", Bucket::Ignore),
        (149, "NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000)", Bucket::ResetGpu),
        (149, "NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6 0x00000000)", Bucket::ResetGpu),
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x025001c6 0x00000000)", Bucket::ResetGpu),
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x00000000)", Bucket::Ignore),
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x028001c6 0x00000000)", Bucket::Ignore),
        (149, "NETIR_LINK_DOWN Fatal XC0 i0 Link 00 (0x02600011 0x00000000)", Bucket::Ignore),
        (149, "NETIR_LINK_DOWN Fatal XC0 i0 Link 00 (0x02500011 0x00000000)", Bucket::ResetGpu),
        (149, "NETIR_BER_EVENT Nonfatal XC0 i0 Link 01 (0x00082226 0x00000001)", Bucket::Ignore),
        (149, "NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000)", Bucket::ResetGpu),
        (149, "NETIR_MFDE_EVENT Fatal XC0 i0 Link 00 (0x00000014 0x00000001)", Bucket::ResetGpu),
        (150, "MSE_WATCHDOG Fatal XC0 i0 Link 00 (0x00000000 0x00000000)", Bucket::ResetGpu),
    ] {
        assert_eq!(action(&xid(code, text)), Some(want), "{text}");
    }
}

#[test]
fn a_process_name_does_not_change_a_record() {
    let line =
        xid(145, "pid=1, name=RLW_REMAP Fatal, RLW_TAGSTATE Nonfatal XC1 i0 Link 00 (0x00000102 0x00000001)");
    assert_eq!(action(&line), Some(Bucket::Ignore));
    let line = xid(13, "pid=1, name=): 79, GPU has f, Graphics Exception");
    let event = read(&[&line]).xids().remove(0);
    assert_eq!((event.code, explain(event.code, &event.text).0), (13, Owner::Application));
}

#[test]
fn sxids_without_a_severity_are_events() {
    let log = read(&[
        "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 26006, SOE HALTED",
        "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 26006, SOE HALT data[0] = 0x              10",
        "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 26007, SOE EXTERR",
        "nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 26008, SOE Watchdog error",
        "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 10006, TSENSE OVERT Threshold reached. Shutting Down",
        "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 10004, Thermal Slowdown Engaged | Links Thermal Mode ON",
        "nvidia-nvswitch3: SXid (PCI:0000:08:00.0): 10007, IO failure",
        "nvidia-nvswitch3: SXid (PCI:0000:08:00.0): 25010, ALI Training failure. Info 0x10000000",
        "nvidia-nvswitch3: SXid (PCI:0000:08:00.0): 19055, Correctable, Link 07 RX HDR ECC LIMIT Error (First)",
        "nvidia-nvswitch3: SXid (PCI:0000:08:00.0): 19055, Severity 0 Engine instance 07 Sub-engine instance 00",
        "nvidia-nvswitch3: SXid (PCI:0000:08:00.0): 19055, Data {0x00000001, 0x00000000}",
        "nvidia-nvswitch3: SXid (PCI:0000:08:00.0): 22003, Fatal, Link 60 MINION HALT (First)",
        "nvidia-nvswitch3: SXid (PCI:0000:08:00.0): 22011, Fatal, Link 60 MINION EXTERR (First)",
    ]);
    use SxidSeverity::{Correctable, Fatal, Unstated};
    let found: Vec<_> = log.sxids().iter().map(|event| (event.code, event.severity)).collect();
    let want = [
        (26006, Unstated),
        (26007, Unstated),
        (26008, Unstated),
        (10006, Unstated),
        (10004, Unstated),
        (10007, Unstated),
        (25010, Unstated),
        (19055, Correctable),
        (22003, Fatal),
        (22011, Fatal),
    ];
    assert_eq!(found, want);
    assert_eq!(sxid_name(22003, Fatal), Some("Minion halt"));
    assert_eq!(sxid_name(22011, Fatal), Some("Minion EXTERR"));
}

/// A process called `nvidia-nvswitch` that crashes in a file with the name of a record.
#[test]
fn a_process_cannot_forge_a_record() {
    let log = read(&[
        "nvidia-nvswitch[77]: segfault at 0 ip 0 sp 0 error 4 in 0: SXid (PCI:0000:05:00.0): 26006, SOE HALTED",
        "NVRM: Xid (0:0:[77]: segfault at 0 ip 0): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000)",
        "NVRM: x (4711): 154, GPU recovery action 0x2 (OS Reboot)",
    ]);
    assert_eq!((log.xids(), log.sxids()), (vec![], vec![]));
    assert_eq!(log.forged.len(), 3);
}

/// No record that a program can cause fails by itself.
#[test]
fn codes_that_a_program_can_cause_are_raisable() {
    for code in [8, 11, 13, 25, 31, 32, 43, 45, 68, 69, 109, 137, 159] {
        let row = lookup(code).unwrap();
        assert!(row.raisable || row.judgement.severity < Severity::Fail, "{code}");
    }
}
