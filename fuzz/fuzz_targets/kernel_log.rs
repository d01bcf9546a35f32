//! Arbitrary bytes as the kernel log: no panic, no line break in a finding, and a verdict.

#![no_main]

#[path = "judged.rs"]
mod judged;

use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use railgate_probe::readers::kernel_log_read;
use railgate_simulate::{parse, simulated};
use railgate_model::{KernelMark, Part, Profile, Snapshot};

static MACHINE: LazyLock<(Profile, Snapshot)> = LazyLock::new(|| {
    let (profile, _) = parse("h100-sxm", &[]).expect("a profile that is built in");
    let snapshot = simulated(&profile, &[]);
    (profile, snapshot)
});

static FILE: LazyLock<PathBuf> =
    LazyLock::new(|| PathBuf::from(format!("/dev/shm/railgate-fuzz-kmsg-{}", std::process::id())));

fuzz_target!(|bytes: &[u8]| {
    let (profile, healthy) = &*MACHINE;
    std::fs::write(&*FILE, bytes).expect("memory");
    let mark = KernelMark { boot_id: healthy.boot_id.clone(), seq: 3 };
    let all = kernel_log_read(&FILE, None, &healthy.boot_id);
    let later = kernel_log_read(&FILE, Some(&mark), &healthy.boot_id);
    let (Ok(all), Ok(later)) = (all, later) else {
        // Only invalid UTF-8 is refused.
        assert!(std::str::from_utf8(bytes).is_err());
        return;
    };
    assert!(later.lines.iter().all(|line| line.seq > 3));
    assert!(later.lines.len() <= all.lines.len());
    for line in &all.lines {
        assert!(!line.text.chars().any(char::is_control), "{:?}", line.text);
    }
    let (xids, sxids) = (all.xids(), all.sxids());
    assert!(xids.len() <= all.lines.len() && sxids.len() <= all.lines.len());
    assert!(xids.is_sorted_by_key(|event| event.seq));
    let mut snapshot = healthy.clone();
    snapshot.kernel_log = Part::Read { data: all, took_ms: 1.0 };
    judged::judged(&snapshot, None, profile);
});
