//! The program on a machine that does not let it test: each reason is a clear `unknown`, in time.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod machine;

use machine::{Machine, of, other_process, why};
use railgate_model::{GpuSelfTested, LinkErrors, NvLink, PciAddress, Reading, ValueCheck};

/// All lines of a GPU that was not tested.
fn only<'a>(lines: &'a [GpuSelfTested], gpu: &PciAddress) -> &'a str {
    let of_gpu: Vec<&GpuSelfTested> =
        lines.iter().filter(|line| line.gpu == *gpu || line.to.as_ref() == Some(gpu)).collect();
    let [one] = of_gpu[..] else { panic!("{of_gpu:?}") };
    assert_eq!((one.test.as_str(), &one.values, one.measured.len()), ("start", &ValueCheck::None, 0));
    why(one)
}

#[test]
fn a_card_whose_memory_is_taken_is_unknown() {
    let mut machine = Machine::new(0x10);
    machine.cuda.devices[0].total_mib = 80 << 10;
    // A part of it: all tests but the pattern say as much as else.
    machine.cuda.devices[1].total_mib = 100;
    let (code, lines) = machine.lines(&[]);
    let [taken, part] = machine.addresses[..] else { panic!() };
    let started = of(&lines, &taken, "start");
    assert_eq!((code, why(started)), (0, "only 0.0 of 85.9 GB of its memory are free"));
    assert!(!lines.iter().any(|line| line.gpu == taken && line.test == GpuSelfTested::LAST));
    assert_eq!(of(&lines, &part, "gemm-bf16").unknown, None);
    let pattern = of(&lines, &part, "memory-pattern");
    assert_eq!(why(pattern), "only 0.0 of 0.1 GB were free and filled");
    assert!(matches!(pattern.values, ValueCheck::Right { .. }), "{pattern:?}");
}

/// The other process takes the memory after the test has begun.
#[test]
fn memory_that_runs_out_is_unknown_and_never_right() {
    let mut machine = Machine::new(0x14);
    machine.cuda.devices.truncate(1);
    machine.cuda.fail.insert("cuMemAlloc_v2".to_owned(), 2);
    let (code, lines) = machine.lines(&[]);
    assert_eq!(code, 0);
    for line in lines.iter().filter(|line| !line.test.starts_with("gemm-rate-")) {
        assert_eq!(why(line), "cuMemAlloc: out of memory (CUDA_ERROR_OUT_OF_MEMORY)", "{line:?}");
        assert_eq!((&line.values, line.measured.len()), (&ValueCheck::None, 0));
    }
    machine.cuda.fail.clear();
    machine.cuda.devices[0].free_mib = 0;
    let (_, lines) = machine.lines(&[]);
    assert!(lines.iter().all(|line| !matches!(line.values, ValueCheck::Right { .. })), "{lines:?}");
}

#[test]
fn a_card_with_mig_is_not_touched() {
    let mut machine = Machine::new(0x18);
    machine.nvml.gpus[1].mig = Reading::Known(true);
    let (code, lines) = machine.lines(&[]);
    assert_eq!((code, only(&lines, &machine.addresses[1])), (0, "MIG is on: its devices are not tested"));
    assert_eq!(of(&lines, &machine.addresses[0], "gemm-bf16").unknown, None);
    // Not with --shared either.
    let (_, lines) = machine.lines(&["--shared"]);
    assert_eq!(only(&lines, &machine.addresses[1]), "MIG is on: its devices are not tested");
}

#[test]
fn without_permission_nothing_is_touched() {
    let mut machine = Machine::new(0x20);
    machine.nvml.behaviour.returns = [("nvmlDeviceGetComputeRunningProcesses_v3".to_owned(), 4)].into();
    let (code, lines) = machine.lines(&[]);
    assert_eq!((code, lines.len()), (0, 2));
    for gpu in &machine.addresses {
        let why = only(&lines, gpu);
        assert!(why.starts_with("NVML: list of processes: ") && why.contains("permission"), "{why}");
    }
    machine.nvml.behaviour.returns = [("nvmlInit_v2".to_owned(), 4)].into();
    let (_, lines) = machine.lines(&[]);
    let why = only(&lines, &machine.addresses[0]);
    assert!(why.starts_with("NVML is not available (") && why.contains("permission"), "{why}");
    machine.cuda.fail.insert("cuInit".to_owned(), 304);
    let output = machine.run(&[]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(3), 0));
    assert!(
        said.starts_with("error: cuInit: OS call failed or operation not supported on this OS"),
        "{said}"
    );
}

/// Each hangs at another place; none is waited for longer than the deadline.
#[test]
fn whatever_hangs_costs_the_deadline() {
    for (number, symbol) in ["cuInit", "cuDeviceGetCount"].into_iter().enumerate() {
        let mut machine = Machine::new(0x24 + 2 * i32::try_from(number).unwrap());
        machine.cuda.hang.insert(symbol.to_owned());
        let output = machine.run(&["--deadline", "1"]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (output.status.code(), said.as_str()),
            (Some(3), "error: the driver: no answer within 1 s\n")
        );
    }
    let mut machine = Machine::new(0x28);
    machine.nvml.behaviour.hang.insert("nvmlInit_v2".to_owned());
    let output = machine.run(&["--deadline", "1"]);
    assert_eq!(output.status.code(), Some(3));
    let mut machine = Machine::new(0x2A);
    machine.nvml.behaviour.hang.insert("nvmlDeviceGetComputeRunningProcesses_v3".to_owned());
    let (code, lines) = machine.lines(&["--deadline", "2"]);
    assert_eq!((code, lines.len()), (0, 2));
    for gpu in &machine.addresses {
        assert_eq!(why(of(&lines, gpu, "end")), "no answer within 2 s");
    }
    let mut machine = Machine::new(0x2C);
    machine.cuda.hang.insert("cuMemcpyPeerAsync".to_owned());
    // Of a burn, whose deadline begins again with each result.
    let mut child = machine.start(&["--length", "burn", "--seconds", "86400", "--deadline", "15"]);
    let line: GpuSelfTested = serde_json::from_str(&machine::first_line(&mut child)).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!((line.test.as_str(), why(&line)), ("copies", "no answer for 15 s"));
}

/// Two at once: the second names the reason, and neither measures half a card.
#[test]
fn a_second_test_of_a_card_is_refused() {
    let mut machine = Machine::new(0x30);
    machine.cuda.devices.truncate(1);
    machine.cuda.hang.insert("cuMemHostAlloc".to_owned());
    let mut first = machine.start(&["--deadline", "300"]);
    let gpu = machine.addresses[0].to_string();
    // It has the card once it prints.
    let begun = machine::first_line(&mut first);
    assert!(begun.contains("gemm-bf16"), "{begun}");
    let (code, lines) = machine.more_lines(&["--gpu", &gpu]);
    assert_eq!(
        (code, why(of(&lines, &machine.addresses[0], "start"))),
        (0, "another self-test of this GPU is running")
    );
    first.kill().unwrap();
    first.wait().unwrap();
}

#[test]
fn a_shared_card_is_tested_only_when_asked_and_says_so() {
    let mut machine = Machine::new(0x34);
    machine.nvml.gpus[0].processes = Reading::Known(vec![other_process(4711)]);
    let (_, lines) = machine.lines(&[]);
    assert_eq!(only(&lines, &machine.addresses[0]), "in use by process 4711");
    let (code, lines) = machine.lines(&["--shared"]);
    let [used, free] = machine.addresses[..] else { panic!() };
    assert_eq!(code, 0);
    let count = |gpu| of(&lines, gpu, "gemm-bf16").measured.get("other_processes_count").copied();
    assert_eq!((count(&used), count(&free)), (Some(1.0), None));
    assert!(matches!(of(&lines, &used, "gemm-bf16").values, ValueCheck::Right { .. }));
}

/// Links 0 and 1 of both cards, with counters; those of the first grow.
fn with_links(machine: &mut Machine) {
    for gpu in &mut machine.nvml.gpus {
        gpu.nvlinks = (0..2).map(|link| NvLink { link, up: Reading::Known(true) }).collect();
        let count = || Reading::Known(41);
        gpu.details.nvlink_errors.links = (0..2)
            .map(|link| LinkErrors { link, replays: count(), recoveries: count(), crc: count() })
            .collect();
    }
}

#[test]
fn errors_of_nvlinks_are_counted_during_the_copies() {
    let mut machine = Machine::new(0x38);
    with_links(&mut machine);
    machine.nvml.behaviour.nvlink_errors_grow.insert(machine.nvml.gpus[0].index, 3);
    let (code, lines) = machine.lines(&[]);
    assert_eq!(code, 0);
    let [bad, good] = machine.addresses[..] else { panic!() };
    let figures = |gpu| {
        let measured = &of(&lines, gpu, "nvlink-errors").measured;
        measured.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(
        figures(&bad),
        "crc_errors_count 6, link_0_crc_errors_count 3, link_0_recoveries_count 3, link_0_replays_count 3, link_1_crc_errors_count 3, \
         link_1_recoveries_count 3, link_1_replays_count 3, links_count 2, recoveries_count 6, replays_count 6"
    );
    assert_eq!(figures(&good), "crc_errors_count 0, links_count 2, recoveries_count 0, replays_count 0");
}

/// Never zero.
#[test]
fn nvlinks_without_counters_or_answers_have_no_count() {
    let mut machine = Machine::new(0x3C);
    with_links(&mut machine);
    machine.nvml.gpus[0].nvlinks.clear();
    machine.nvml.gpus[1].details.nvlink_errors.links.clear();
    machine.nvml.gpus[1].details.nvlink_errors.crc = Reading::Unsupported;
    machine.nvml.gpus[1].details.nvlink_errors.replays = Reading::Unsupported;
    machine.nvml.gpus[1].details.nvlink_errors.recoveries = Reading::Unsupported;
    let (_, lines) = machine.lines(&[]);
    let absent = |gpu| {
        let line = of(&lines, gpu, "nvlink-errors");
        assert_eq!((&line.unknown, line.measured.len()), (&None, 0));
        line.not_applicable.clone().unwrap()
    };
    let [none, old] = machine.addresses[..] else { panic!() };
    assert_eq!(absent(&none), "this card has no NVLink");
    assert_eq!(absent(&old), "this driver counts no errors of NVLinks");
    with_links(&mut machine);
    machine.nvml.gpus[1].details.nvlink_errors.links[1].crc = Reading::Failed("lost".to_owned());
    let (_, lines) = machine.lines(&[]);
    let line = of(&lines, &old, "nvlink-errors");
    assert_eq!((why(line), line.measured.len()), ("nvmlDeviceGetFieldValues: NVML error 999", 0));
}
