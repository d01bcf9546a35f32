//! The program as the gate starts it: by a probe, which reads what it prints.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test without the standard harness")]

mod machine;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use cuda::Wrong;
use machine::Machine;
use railgate_model::{
    FollowUp, GpuSelfTest, GpuSelfTested, Origin, Part, SelfTestLength, Snapshot, ValueCheck,
};
use railgate_probe::{SourceConfig, dispatch, follow_up};

/// The result of both cards.
fn tested(machine: &Machine, patience: Duration) -> GpuSelfTest {
    machine.install();
    // The probe gives the program an environment of its own.
    let program = machine.dir.path().join("selftest");
    let text = format!(
        "#!/bin/sh\nexport LD_LIBRARY_PATH={}\nexec {} --products 1 --tiles 4 \"$@\"\n",
        machine.dir.path().display(),
        env!("CARGO_BIN_EXE_railgate-gpu-selftest")
    );
    fs::write(&program, text).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let gpus = machine.addresses.clone();
    let reading = FollowUp::GpuSelfTest { program, gpus, length: SelfTestLength::Quick, shared: false };
    let mut snapshot = Snapshot::unread("gn1", Origin::Live);
    follow_up(&SourceConfig::default(), &[reading], Instant::now() + patience, &mut snapshot);
    match snapshot.extras.gpu_self_test {
        Some(Part::Read { data, .. }) => data,
        other => panic!("{other:?}"),
    }
}

fn values_of(result: &GpuSelfTest, card: usize, test: &str) -> Option<ValueCheck> {
    let gpu = result.asked[card];
    result.tests.iter().find(|line| line.gpu == gpu && line.test == test).map(|line| line.values.clone())
}

fn a_wrong_bit_reaches_the_snapshot() {
    let mut machine = Machine::new(0xB0);
    machine.cuda.wrong = vec![Wrong { device: 1, kernel: "gemm_bf16".to_owned(), word: 7, bit: 22 }];
    let result = tested(&machine, Duration::from_secs(120));
    assert_eq!((result.asked.len(), &result.incomplete), (2, &None));
    assert!(matches!(values_of(&result, 1, "gemm-bf16"), Some(ValueCheck::Wrong { wrong: 1, .. })));
    assert!(matches!(values_of(&result, 0, "gemm-bf16"), Some(ValueCheck::Right { .. })));
    assert!(values_of(&result, 0, GpuSelfTested::LAST).is_some());
}

fn a_driver_that_hangs_leaves_the_results_before_it() {
    let mut machine = Machine::new(0xB4);
    machine.cuda.hang.insert("cuMemHostAlloc".to_owned());
    // The program gets 12 s, and names the cards that do not answer after 10 s.
    let result = tested(&machine, Duration::from_secs(15));
    assert!(matches!(values_of(&result, 0, "gemm-bf16"), Some(ValueCheck::Right { .. })));
    assert_eq!((values_of(&result, 0, GpuSelfTested::LAST), &result.incomplete), (None, &None));
    let ends = result.tests.iter().filter(|line| line.test == "end" && line.unknown.is_some());
    assert_eq!(ends.count(), 2, "{result:?}");
}

fn main() -> ExitCode {
    if let Some(code) = dispatch(&[]) {
        return code;
    }
    a_wrong_bit_reaches_the_snapshot();
    a_driver_that_hangs_leaves_the_results_before_it();
    ExitCode::SUCCESS
}
