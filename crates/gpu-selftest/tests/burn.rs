//! A burn: rounds until its time is over or a signal ends it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod machine;

use std::io::Read as _;
use std::process::Child;
use std::time::Duration;

use cuda::Wrong;
use machine::{Machine, first_line, first_progress, of, other_process, why};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use railgate_model::{GpuSelfTested, Reading, ValueCheck};

/// Exit code, lines and progress of a program that ends.
fn ended(mut child: Child, before: &str) -> (i32, Vec<GpuSelfTested>, String) {
    let (mut out, mut told) = (before.to_owned(), String::new());
    child.stdout.as_mut().unwrap().read_to_string(&mut out).unwrap();
    child.stderr.as_mut().unwrap().read_to_string(&mut told).unwrap();
    let lines = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (child.wait().unwrap().code().unwrap(), lines, told)
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
}

/// Waits until a signal no longer ends the program by itself.
fn until_signals_are_taken(child: &Child) {
    let mask = 1 << (Signal::SIGTERM as u32 - 1);
    loop {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        if u64::from_str_radix(blocked.trim(), 16).unwrap() & mask != 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn rounds_end_with_one_line_of_each_test() {
    let mut machine = Machine::new(0x10);
    machine.cuda.devices.truncate(1);
    // Longer than a round of the simulated card.
    let child = machine.start(&["--length", "burn", "--seconds", "20"]);
    let (code, lines, told) = ended(child, "");
    let gpu = &machine.addresses[0];
    assert_eq!(code, 0, "{told}");
    let product = of(&lines, gpu, "gemm-bf16");
    let rounds = product.measured["rounds_count"];
    assert!(rounds >= 2.0, "{told}");
    let ValueCheck::Right { compared, digest: Some(_) } = &product.values else { panic!("{product:?}") };
    assert_eq!(f64::from(u32::try_from(*compared).unwrap()), rounds * 512.0 * 512.0);
    let clock = of(&lines, gpu, "clock");
    for name in ["sm_clock_mhz", "power_w", "temperature_c"] {
        let [least, middle, most, last] =
            ["min_", "", "max_", "last_"].map(|which| clock.measured[&format!("{which}{name}")]);
        assert!(least <= middle && middle <= most && last <= most, "{clock:?}");
    }
    assert_eq!(clock.measured["throttle_reasons_mask"], 1.0);
    assert!(told.lines().all(|line| line.starts_with("burn: ")), "{told}");
    assert!(told.contains(" of 20 s, ") && told.contains("; round 2, "), "{told}");
    assert!(told.contains("; 0 wrong values\n"), "{told}");
}

#[test]
fn a_signal_ends_a_burn_with_what_is_known() {
    for (bus, which, want) in [(0x14, Signal::SIGINT, 130), (0x16, Signal::SIGTERM, 143)] {
        let mut machine = Machine::new(bus);
        machine.nvml.gpus[1].processes = Reading::Known(vec![other_process(4711)]);
        let mut child = machine.start(&["--length", "burn", "--seconds", "86400"]);
        // The line about the GPU in use is printed immediately; the first progress line follows after one round or 10 s.
        let first = first_line(&mut child);
        assert!(first.contains("in use by process 4711"), "{first}");
        let progress = first_progress(&mut child);
        assert!(progress.starts_with("burn: "), "{progress}");
        signal(&child, which);
        let (code, lines, told) = ended(child, "");
        assert_eq!(code, want, "{told}");
        assert!(matches!(of(&lines, &machine.addresses[0], "gemm-bf16").values, ValueCheck::Right { .. }));
        let used = of(&lines, &machine.addresses[1], "start");
        assert_eq!(why(used), "in use by process 4711");
    }
}

#[test]
fn wrong_values_are_told_at_once_and_counted() {
    let mut machine = Machine::new(0x18);
    machine.cuda.devices.truncate(1);
    machine.cuda.wrong = vec![Wrong { device: 0, kernel: "gemm_fp16".to_owned(), word: 7, bit: 22 }];
    let mut child = machine.start(&["--length", "burn", "--seconds", "86400"]);
    let first: GpuSelfTested = serde_json::from_str(&first_line(&mut child)).unwrap();
    assert_eq!((first.test.as_str(), first.measured["round"]), ("gemm-fp16", 1.0));
    signal(&child, Signal::SIGTERM);
    let (code, lines, told) = ended(child, "");
    assert_eq!(code, 1, "a wrong value counts more than the signal");
    let all = lines.iter().rfind(|line| line.test == "gemm-fp16").unwrap();
    let ValueCheck::Wrong { wrong, .. } = all.values else { panic!("{all:?}") };
    assert_eq!(f64::from(u32::try_from(wrong).unwrap()), all.measured["rounds_count"]);
    assert!(told.contains(" wrong values") && !told.contains("; 0 wrong values"), "{told}");
}

/// The other GPU has further rounds.
#[test]
fn a_gpu_that_hangs_costs_a_burn_only_that_gpu() {
    let mut machine = Machine::new(0x1C);
    machine.nvml.behaviour.hang_gpus.insert(machine.nvml.gpus[1].index);
    let child = machine.start(&["--length", "burn", "--seconds", "25", "--deadline", "4"]);
    let (code, lines, told) = ended(child, "");
    assert_eq!(code, 0, "{told}");
    let silent: Vec<_> = lines.iter().filter(|line| line.gpu == machine.addresses[1]).collect();
    assert!(silent.iter().all(|line| why(line) == "no answer for 4 s"), "{silent:?}");
    assert!(of(&lines, &machine.addresses[0], "gemm-bf16").measured["rounds_count"] >= 2.0, "{told}");
}

/// Between two rounds no thread of a GPU is waited for.
#[test]
fn a_signal_between_two_rounds_ends_a_burn_with_its_exit_code() {
    let mut machine = Machine::new(0x22);
    for gpu in &mut machine.nvml.gpus {
        gpu.processes = Reading::Known(vec![other_process(4711)]);
    }
    let mut child = machine.start(&["--length", "burn", "--seconds", "86400"]);
    // Where each GPU is in use, a round takes no time, and the program sleeps after it.
    first_progress(&mut child);
    signal(&child, Signal::SIGTERM);
    assert_eq!(ended(child, "").0, 143);
}

#[test]
fn a_signal_ends_the_program_while_the_driver_hangs() {
    for (bus, length) in [(0x24, "quick"), (0x26, "burn")] {
        let mut machine = Machine::new(bus);
        machine.cuda.hang.insert("cuInit".to_owned());
        let child = machine.start(&["--length", length, "--deadline", "60"]);
        until_signals_are_taken(&child);
        signal(&child, Signal::SIGTERM);
        let (code, lines, told) = ended(child, "");
        assert_eq!((code, lines.len(), told.as_str()), (143, 0, "error: the driver: ended by SIGTERM\n"));
    }
}

#[test]
fn a_second_signal_does_not_hide_a_wrong_value() {
    let mut machine = Machine::new(0x28);
    machine.cuda.wrong = vec![Wrong { device: 0, kernel: "gemm_fp16".to_owned(), word: 7, bit: 22 }];
    // The first signal waits for this one.
    machine.nvml.behaviour.hang_gpus.insert(machine.nvml.gpus[1].index);
    let mut child = machine.start(&["--length", "burn", "--seconds", "86400"]);
    let first: GpuSelfTested = serde_json::from_str(&first_line(&mut child)).unwrap();
    assert_eq!(first.test, "gemm-fp16");
    signal(&child, Signal::SIGINT);
    signal(&child, Signal::SIGTERM);
    assert_eq!(ended(child, "").0, 1);
}

/// The driver takes longer to start than the burn is to last.
#[test]
fn the_time_of_a_burn_begins_when_the_driver_is_loaded() {
    let mut machine = Machine::new(0x2A);
    machine.cuda.devices.truncate(1);
    machine.nvml.behaviour.delay_ms.insert("nvmlInit_v2".to_owned(), 6_000);
    let child = machine.start(&["--length", "burn", "--seconds", "5"]);
    let (code, lines, told) = ended(child, "");
    assert_eq!(code, 0, "{told}");
    assert!(matches!(of(&lines, &machine.addresses[0], "gemm-bf16").values, ValueCheck::Right { .. }));
}

#[test]
fn a_burn_without_a_test_is_an_error() {
    let mut machine = Machine::new(0x2C);
    machine.nvml.behaviour.delay_ms.insert("nvmlDeviceGetComputeRunningProcesses_v3".to_owned(), 3_000);
    let child = machine.start(&["--length", "burn", "--seconds", "1"]);
    let (code, lines, told) = ended(child, "");
    assert_eq!((code, lines.len()), (3, 0), "{told}");
    assert!(told.ends_with("error: no test began within 1 s: give more --seconds\n"), "{told}");
}

#[test]
fn the_time_of_a_burn_is_an_error_without_one() {
    let machine = Machine::new(0x20);
    let output = machine.run(&["--seconds", "5"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(said.contains("--seconds is the length of a burn: add --length burn"), "{said}");
}
