//! No sequence of kernel log records that an unprivileged process can cause gives `fail` on a machine on which NVML
//! reports no fault.

#![no_main]

#[path = "forged.rs"]
mod forged;

use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use railgate_gate::{GateConfig, Memory, Seen, judge};
use railgate_probe::readers::kernel_log_read;
use railgate_simulate::{parse, simulated};
use railgate_model::{Part, Phase, Profile, Severity, Snapshot};

static MACHINE: LazyLock<(Profile, Snapshot)> = LazyLock::new(|| {
    let (profile, _) = parse("h100-sxm", &[]).expect("a profile that is built in");
    let snapshot = simulated(&profile, &[]);
    (profile, snapshot)
});

static STRICT: LazyLock<GateConfig> =
    LazyLock::new(|| toml::from_str(forged::STRICT).expect("a configuration"));

static FILE: LazyLock<PathBuf> =
    LazyLock::new(|| PathBuf::from(format!("/dev/shm/railgate-fuzz-forged-{}", std::process::id())));

fuzz_target!(|bytes: &[u8]| {
    let (profile, healthy) = &*MACHINE;
    let (log, _) = forged::log(bytes, 1);
    std::fs::write(&*FILE, log).expect("memory");
    let log = kernel_log_read(&FILE, None, &healthy.boot_id).expect("printable");
    let mut now = healthy.clone();
    now.kernel_log = Part::Read { data: log, took_ms: 1.0 };
    let mut memory = Memory::default();
    for phase in [Phase::Prolog, Phase::Periodic, Phase::Epilog] {
        let seen = Seen {
            phase,
            now: &now,
            before: Some(healthy),
            job: None,
            profile: Some(profile),
            memory: &memory,
        };
        let verdict = judge(&STRICT, &seen);
        let failed = verdict.findings.iter().find(|finding| finding.severity == Severity::Fail);
        assert!(failed.is_none(), "{failed:?}");
        memory.strike(&now, &verdict);
        now.taken += 60_000;
    }
});
