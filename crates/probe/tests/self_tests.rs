//! Runs the self-tests with small programs in place of the real ones: what counts of their output, and how they are started.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test without the standard harness")]

#[path = "../../child/tests/one_by_one/mod.rs"]
mod one_by_one;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use railgate_model::{
    FollowUp, GpuSelfTest, Origin, Part, PciAddress, SelfTestLength, SelfTested, Snapshot, ValueCheck,
};
use railgate_probe::{SourceConfig, dispatch, follow_up};

/// Enough for a program that ends.
const PATIENCE: Duration = Duration::from_secs(60);
/// The program gets a third of it.
const SHORT: Duration = Duration::from_secs(3);

const RIGHT: &str = r#"{"gpu":"0000:61:00.0","model":"NVIDIA H200","test":"host-copy","seconds":0.5,"values":{"right":{"compared":4}},"measured":{"host_to_device_gb_s":55.0}}"#;
const WRONG: &str = r#"{"gpu":"0000:61:00.0","model":"NVIDIA H200","test":"gemm-bf16","seconds":0.5,"values":{"wrong":{"compared":4,"wrong":1,"first":[]}},"measured":{}}"#;

struct Program {
    dir: tempfile::TempDir,
}

impl Program {
    fn new(body: &str) -> Program {
        let program = Program { dir: tempfile::tempdir().unwrap() };
        fs::write(program.path(), format!("#!/bin/sh\n{body}\n")).unwrap();
        program.mode(0o755)
    }

    fn mode(self, mode: u32) -> Program {
        fs::set_permissions(self.path(), fs::Permissions::from_mode(mode)).unwrap();
        self
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("selftest")
    }

    fn gpus(&self, gpus: &[&str], patience: Duration) -> Part<GpuSelfTest> {
        let gpus: Vec<PciAddress> = gpus.iter().map(|gpu| gpu.parse().unwrap()).collect();
        let length = SelfTestLength::Quick;
        let reading = FollowUp::GpuSelfTest { program: self.path(), gpus, length, shared: false };
        made(reading, patience).extras.gpu_self_test.unwrap()
    }

    fn rdma(&self, patience: Duration) -> Part<Vec<SelfTested>> {
        let devices = vec!["mlx5_0".to_owned()];
        let reading = FollowUp::RdmaSelfTest { program: self.path(), devices };
        made(reading, patience).extras.rdma_self_test.unwrap()
    }
}

fn made(reading: FollowUp, patience: Duration) -> Snapshot {
    let mut snapshot = Snapshot::unread("gn1", Origin::Live);
    follow_up(&SourceConfig::default(), &[reading], Instant::now() + patience, &mut snapshot);
    snapshot
}

fn read(part: Part<GpuSelfTest>) -> GpuSelfTest {
    match part {
        Part::Read { data, .. } => data,
        other => panic!("{other:?}"),
    }
}

const GPU: &str = "0000:61:00.0";

fn results_and_arguments_pass_through() {
    let program =
        Program::new(&format!("echo \"$@\" > ${{0}}.arguments; env > ${{0}}.environment; echo '{RIGHT}'"));
    let test = read(program.gpus(&[GPU, "0000:9b:00.0"], PATIENCE));
    assert_eq!(test.asked.len(), 2);
    assert_eq!((test.tests[0].test.as_str(), test.incomplete), ("host-copy", None));
    let arguments = fs::read_to_string(program.path().with_extension("arguments")).unwrap();
    assert!(arguments.starts_with("--length quick --deadline 5"), "{arguments}");
    assert!(arguments.ends_with(" --gpu 0000:61:00.0 --gpu 0000:9b:00.0\n"), "{arguments}");
    let environment = fs::read_to_string(program.path().with_extension("environment")).unwrap();
    assert!(environment.contains("LC_ALL=C\n") && !environment.contains("HOME="), "{environment}");
}

fn a_wrong_value_is_a_result_and_no_failure() {
    let test = read(Program::new(&format!("echo '{WRONG}'; exit 1")).gpus(&[GPU], PATIENCE));
    assert!(matches!(test.tests[0].values, ValueCheck::Wrong { wrong: 1, .. }));
    assert_eq!(test.incomplete, None);
}

fn results_before_a_hang_or_a_crash_count() {
    let hang = Program::new(&format!("echo '{WRONG}'; printf '{{\"gpu\":'; sleep 600 & wait"));
    let test = read(hang.gpus(&[GPU], SHORT));
    assert_eq!((test.tests.len(), test.asked.len()), (1, 1));
    assert!(test.incomplete.is_some_and(|why| why.starts_with("no answer in ")));
    let crash = Program::new(&format!("echo '{RIGHT}'; kill -SEGV $$"));
    let test = read(crash.gpus(&[GPU], PATIENCE));
    assert_eq!((test.tests.len(), test.incomplete.as_deref()), (1, Some("killed by signal 11")));
}

fn much_output_is_kept() {
    let much = Program::new(&format!("for n in $(seq 400); do echo '{RIGHT}'; done"));
    assert_eq!(read(much.gpus(&[GPU], PATIENCE)).tests.len(), 400);
}

fn a_program_that_cannot_run_is_named() {
    let why = |part: Part<GpuSelfTest>| part.missing().unwrap();
    let gone = Program::new("exit 0");
    fs::remove_file(gone.path()).unwrap();
    let place = gone.path().display().to_string();
    let told = why(gone.gpus(&[GPU], PATIENCE));
    assert!(told.contains(&format!("{place}: cannot be started: No such file")), "{told}");
    let open = why(Program::new("exit 0").mode(0o777).gpus(&[GPU], PATIENCE));
    assert!(open.contains("cannot be started"), "{open}");
    let usage = why(Program::new("echo usage >&2; exit 2").gpus(&[GPU], PATIENCE));
    assert!(usage.ends_with("exit code 2: usage"), "{usage}");
}

fn without_gpus_the_program_is_not_started() {
    let program = Program::new("touch ${0}.ran");
    assert_eq!(read(program.gpus(&[], PATIENCE)), GpuSelfTest::default());
    assert!(!program.path().with_extension("ran").exists());
}

fn rdma_devices_need_a_whole_answer() {
    let good = Program::new(r#"echo '{"device":"mlx5_0","gbps":190.5,"bytes":8,"error":null}'"#);
    assert_eq!(good.rdma(PATIENCE).data().unwrap()[0].gbps, Some(190.5));
    let failed = |body: &str, patience| Program::new(body).rdma(patience).missing().unwrap();
    assert!(failed("echo x", PATIENCE).contains("'x': expected value"));
    assert!(failed("echo no device >&2; exit 3", PATIENCE).ends_with("exit code 3: no device"));
    assert!(failed("sleep 600 & wait", SHORT).contains("no answer in "));
}

fn main() -> ExitCode {
    if let Some(code) = dispatch(&[]) {
        return code;
    }
    let tests: &[(&str, fn())] = &[
        ("results_and_arguments_pass_through", results_and_arguments_pass_through),
        ("a_wrong_value_is_a_result_and_no_failure", a_wrong_value_is_a_result_and_no_failure),
        ("results_before_a_hang_or_a_crash_count", results_before_a_hang_or_a_crash_count),
        ("much_output_is_kept", much_output_is_kept),
        ("a_program_that_cannot_run_is_named", a_program_that_cannot_run_is_named),
        ("without_gpus_the_program_is_not_started", without_gpus_the_program_is_not_started),
        ("rdma_devices_need_a_whole_answer", rdma_devices_need_a_whole_answer),
    ];
    one_by_one::run(tests)
}
