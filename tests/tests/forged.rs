//! Property: no sequence of kernel log records that an unprivileged process can cause drains a node, or counts as evidence for a
//! requeue, if NVML reports no fault. Records pass through the real reader, in every phase, with the strictest configuration.

#![expect(clippy::unwrap_used, reason = "a failed step is a failed test")]

#[path = "../../fuzz/fuzz_targets/forged.rs"]
mod forged;

use proptest::prelude::*;
use railgate_gate::{GateConfig, Memory, Seen, judge};
use railgate_model::{Fitness, KernelLog, Part, Phase, Severity, Snapshot};
use railgate_probe::readers::kernel_log_read;

fn read(records: &str, boot_id: &str) -> KernelLog {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), records).unwrap();
    kernel_log_read(file.path(), None, boot_id).unwrap()
}

/// Judges a healthy machine with this log in each phase, one minute apart, and keeps the gate state between them.
fn judged(records: &str, config: &GateConfig) -> Result<(), TestCaseError> {
    let (profile, _) = railgate_simulate::parse("h100-sxm", &[]).unwrap();
    let healthy = railgate_simulate::simulated(&profile, &[]);
    let mut now = Snapshot {
        kernel_log: Part::Read { data: read(records, &healthy.boot_id), took_ms: 1.0 },
        ..healthy.clone()
    };
    let mut memory = Memory::default();
    for phase in [Phase::Prolog, Phase::Epilog, Phase::Periodic, Phase::Prolog] {
        let seen = Seen {
            phase,
            now: &now,
            before: Some(&healthy),
            job: None,
            profile: Some(&profile),
            memory: &memory,
        };
        let verdict = judge(config, &seen);
        let failed =
            verdict.findings.iter().chain(&verdict.shadow).find(|one| one.severity == Severity::Fail);
        prop_assert!(failed.is_none(), "{phase}: {failed:?}\n{records}");
        prop_assert!(verdict.fitness != Fitness::Unfit);
        memory.strike(&now, &verdict);
        now.taken += 60_000;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn records_that_a_process_can_cause_fail_nothing(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let strict = toml::from_str(forged::STRICT).unwrap();
        judged(&forged::log(&bytes, 1).0, &strict)?;
    }
}

#[test]
fn the_strictest_configuration_lists_every_kind_of_line() {
    for id in railgate_model::kernel_lines::ids() {
        assert!(forged::STRICT.contains(&format!("\"{id}\" = \"fail\"")), "{id}");
    }
    let strict: GateConfig = toml::from_str(forged::STRICT).unwrap();
    assert_eq!(strict.problems(), Vec::<String>::new());
}

/// Records of a process with a forged name, as x86 kernels printed them.
#[test]
fn segfault_records_with_driver_text_are_marked_forged() {
    let records = "\
6,1,1000000,-;NVRM: fallen of[10942]: segfault at 0 ip 00005652fc277132 sp 00007fff976ee370 error 6 in NVRM: fallen off the bus[1132,5652fc277000+1000] likely on CPU 1 (core 1, socket 0)
6,2,2000000,-;NVRM: GPU 1:0:0[10943]: segfault at 0 ip 00005652fc277132 sp 00007fff976ee370 error 6 in fallen off the bus[1132,5652fc277000+1000]
";
    for config in ["", forged::STRICT] {
        judged(records, &toml::from_str(config).unwrap()).unwrap();
    }
    let log = read(records, "this");
    assert_eq!((log.xids().len(), log.lines.len(), log.forged.len()), (0, 0, 2));
}

/// On this machine's kernel: a program whose name imitates the driver crashes, and the kernel's own record of it is read.
#[test]
fn a_real_crash_record_with_driver_text_is_marked_forged() {
    use std::os::unix::process::CommandExt;
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("NVRM: fallen off the bus");
    let source = place.path().join("crash.rs");
    std::fs::write(&source, "fn main() { unsafe { std::ptr::write_volatile(8 as *mut u8, 0) } }").unwrap();
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let built =
        std::process::Command::new(rustc).arg("--edition=2024").arg("-o").arg(&file).arg(&source).status();
    assert!(built.unwrap().success());
    let since = kernel_log_read("/dev/kmsg".as_ref(), None, "this");
    let mut child = std::process::Command::new(&file).arg0("NVRM: GPU 1:0:0").spawn().unwrap();
    let pid = child.id();
    let _ = child.wait();
    let Ok(since) = since else { return eprintln!("skipped: /dev/kmsg cannot be read here") };
    let log = kernel_log_read("/dev/kmsg".as_ref(), None, "this").unwrap();
    let traced =
        std::fs::read_to_string("/proc/sys/debug/exception-trace").is_ok_and(|text| text.trim() == "1");
    if !traced || log.last_seq == since.last_seq {
        return eprintln!("skipped: this kernel does not log crashes");
    }
    assert!(log.forged.iter().any(|forged| forged.pid == Some(pid)), "{:?}", log.forged);
    assert!(log.xids().iter().all(|xid| Some(xid.seq) <= since.last_seq), "{:?}", log.xids());
}
