//! The program against a simulated libcuda and libnvidia-ml: what it prints of cards that are well, wrong, busy, slow to answer or
//! absent.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod machine;

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use cuda::Wrong;
use machine::{Machine, of, other_process, program, why};
use railgate_model::{GpuSelfTested, Reading, ValueCheck};

const TYPES: [&str; 6] = ["bf16", "fp16", "tf32", "fp8", "int8", "fp64"];
/// With a rate.
const RATED: [&str; 5] = ["bf16", "fp16", "tf32", "fp8", "fp32"];

#[test]
fn cards_that_are_well_have_one_digest_of_each_type() {
    let machine = Machine::new(0x10);
    let (code, lines) = machine.lines(&[]);
    assert_eq!(code, 0, "{lines:?}");
    let [one, other] = &machine.addresses[..] else { panic!() };
    for name in TYPES {
        let test = format!("gemm-{name}");
        let values = &of(&lines, one, &test).values;
        let ValueCheck::Right { compared, digest: Some(digest) } = values else { panic!("{values:?}") };
        assert_eq!((*compared, digest.len()), (512 * 512, 16));
        assert_eq!(values, &of(&lines, other, &test).values);
    }
    for gpu in &machine.addresses {
        for (test, figures) in [
            ("clock", &["sm_clock_mhz", "slowest_sm_clock_mhz", "nvml_sm_clock_mhz", "power_w"][..]),
            ("memory-bandwidth", &["copy_gb_s", "kernel_copy_gb_s", "fill_gb_s"]),
            ("memory-pattern", &["filled_gb", "read_gb_s", "write_gb_s"]),
            ("host-copy", &["host_to_device_gb_s", "device_to_host_gb_s"]),
            ("host-copy-alone", &["host_to_device_gb_s", "device_to_host_gb_s"]),
            ("peer-copy", &["peer_gb_s"]),
        ] {
            let line = of(&lines, gpu, test);
            assert_eq!(line.unknown, None);
            assert!(
                figures.iter().all(|name| line.measured.get(*name).is_some_and(|value| *value > 0.0)),
                "{line:?}"
            );
        }
        assert_eq!(of(&lines, gpu, "clock").measured["sm_clock_mhz"], 1980.0);
        assert_ne!(of(&lines, gpu, "peer-copy").to.as_ref(), Some(gpu));
        let uuid = of(&lines, gpu, "clock").uuid.as_deref().unwrap();
        assert!(machine.nvml.gpus.iter().any(|card| card.uuid.known().is_some_and(|known| known == uuid)));
    }
    assert_eq!(lines.len(), 2 * (TYPES.len() + 7 + RATED.len()));
}

/// What the library gets is checked by the simulated one.
#[test]
fn cublaslt_gives_the_rate_of_each_type() {
    let mut machine = Machine::new(0x90);
    machine.cuda.cublaslt = true;
    machine.cuda.devices.iter_mut().for_each(|device| device.free_mib = 100);
    machine.cuda.devices[1].capability = 80;
    let (code, lines) = machine.lines(&[]);
    assert_eq!(code, 0, "{lines:?}");
    let [new, old] = &machine.addresses[..] else { panic!() };
    let names = ["rate_tflops", "cublaslt_version", "sm_clock_mhz", "power_w", "temperature_c"];
    for (gpu, name) in [new, old].into_iter().flat_map(|gpu| RATED.map(|name| (gpu, name))) {
        let line = of(&lines, gpu, &format!("gemm-rate-{name}"));
        assert_eq!(line.values, ValueCheck::None);
        if (gpu, name) == (old, "fp8") {
            assert_eq!(line.not_applicable.as_deref(), Some("this card does not have the type"));
            continue;
        }
        assert_eq!(line.unknown, None);
        assert!(
            names.iter().all(|name| line.measured.get(*name).is_some_and(|value| *value > 0.0)),
            "{line:?}"
        );
        let [shown, counted, factor] =
            ["sm_clock_mhz", "counted_sm_clock_mhz", "clock_factor"].map(|name| line.measured[name]);
        assert!((counted - 1755.0).abs() < 1.0 && (factor - shown / counted).abs() < 1e-9, "{line:?}");
        // The simulated NVML does not know of the work: the card is idle.
        assert_eq!(line.measured["throttle_reasons_mask"], 1.0);
    }
}

#[test]
fn without_cublaslt_no_rate_is_missing() {
    let machine = Machine::new(0xA0);
    let (code, lines) = machine.lines(&[]);
    assert_eq!(code, 0);
    for (gpu, name) in machine.addresses.iter().flat_map(|gpu| RATED.map(|name| (gpu, name))) {
        let line = of(&lines, gpu, &format!("gemm-rate-{name}"));
        let why = line.not_applicable.as_deref().unwrap_or_default();
        assert!(why.starts_with("libcublasLt is not installed: libcublasLt.so.13: "), "{line:?}");
        assert!(why.contains("; libcublasLt.so.12: ") && line.measured.is_empty(), "{line:?}");
        assert_eq!(line.unknown, None);
    }
}

#[test]
fn errors_of_cublaslt_are_unknown_with_their_names() {
    let mut machine = Machine::new(0xA8);
    machine.cuda.cublaslt = true;
    machine.cuda.devices.truncate(1);
    // A library that is too new for the driver.
    for (symbol, error, want) in [
        ("cublasLtCreate", 1, "libcublasLt.so.13: cublasLtCreate: CUBLAS_STATUS_NOT_INITIALIZED (1)"),
        (
            "cublasLtMatmulAlgoGetHeuristic",
            15,
            "cublasLtMatmulAlgoGetHeuristic: CUBLAS_STATUS_NOT_SUPPORTED (15)",
        ),
        ("cublasLtMatmul", 99, "cublasLtMatmul: unknown error (99)"),
    ] {
        machine.cuda.fail = [(symbol.to_owned(), error)].into();
        let (code, lines) = machine.lines(&[]);
        let line = of(&lines, &machine.addresses[0], "gemm-rate-bf16");
        assert_eq!((code, why(line), line.measured.len()), (0, want, 0));
    }
}

#[test]
fn a_wrong_bit_is_found_with_its_place() {
    let mut machine = Machine::new(0x20);
    let word = 402 * 512 + 190;
    machine.cuda.wrong = vec![Wrong { device: 1, kernel: "gemm_bf16".to_owned(), word, bit: 22 }];
    let (code, lines) = machine.lines(&[]);
    assert_eq!(code, 1);
    let ValueCheck::Wrong { wrong, first, .. } = &of(&lines, &machine.addresses[1], "gemm-bf16").values
    else {
        panic!("{lines:?}")
    };
    assert_eq!((*wrong, first[0].place.as_str()), (1, "tile 3,1, row 402, column 190"));
    let bits = |text: &str| u32::from_str_radix(text, 16).unwrap();
    assert_eq!(bits(&first[0].got) ^ bits(&first[0].want), 1 << 22);
    let well = |line: &&GpuSelfTested| !matches!(line.values, ValueCheck::Wrong { .. });
    assert_eq!(lines.iter().filter(well).count(), lines.len() - 1);
}

#[test]
fn a_wrong_bit_of_a_copy_inside_the_memory_is_found() {
    let mut machine = Machine::new(0x24);
    machine.cuda.wrong = vec![Wrong { device: 0, kernel: "cuMemcpyDtoDAsync".to_owned(), word: 9, bit: 3 }];
    let (code, lines) = machine.lines(&[]);
    let values = &of(&lines, &machine.addresses[0], "memory-bandwidth").values;
    let ValueCheck::Wrong { wrong: 1, first, .. } = values else { panic!("{values:?}") };
    assert_eq!((code, first[0].place.as_str()), (1, "byte 0x20"));
    let other = &of(&lines, &machine.addresses[1], "memory-bandwidth").values;
    assert!(matches!(other, ValueCheck::Right { compared: 1.., .. }), "{other:?}");
}

#[test]
fn a_card_that_another_process_uses_is_not_touched() {
    let mut machine = Machine::new(0x30);
    machine.nvml.gpus[0].processes = Reading::Known(vec![other_process(4711)]);
    let (code, lines) = machine.lines(&[]);
    let used = &machine.addresses[0];
    assert_eq!((code, why(of(&lines, used, "start"))), (0, "in use by process 4711"));
    assert_eq!(lines.iter().filter(|line| line.gpu == *used || line.to.as_ref() == Some(used)).count(), 1);
    assert_eq!(of(&lines, &machine.addresses[1], "gemm-bf16").unknown, None);
}

#[test]
fn two_tests_of_one_card_exclude_each_other() {
    let machine = Machine::new(0x40);
    let name = format!("railgate-gpu-selftest-{}", machine.addresses[1]);
    let held = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
    let (code, lines) = machine.lines(&[]);
    assert_eq!(
        (code, why(of(&lines, &machine.addresses[1], "start"))),
        (0, "another self-test of this GPU is running")
    );
    drop(held);
}

#[test]
fn a_driver_that_hangs_costs_the_deadline_and_is_unknown() {
    let mut machine = Machine::new(0x50);
    machine.cuda.hang.insert("cuMemHostAlloc".to_owned());
    let (code, lines) = machine.lines(&["--deadline", "6"]);
    assert_eq!(code, 0);
    for gpu in &machine.addresses {
        assert_eq!(why(of(&lines, gpu, "end")), "no answer within 6 s");
        assert_eq!(of(&lines, gpu, "gemm-bf16").unknown, None);
    }
}

#[test]
fn errors_of_the_driver_are_unknown_with_its_words() {
    let mut machine = Machine::new(0x60);
    machine.cuda.devices[0].free_mib = 1;
    machine.cuda.devices[1].capability = 80;
    let (code, lines) = machine.lines(&[]);
    assert_eq!(code, 0);
    let [small, old] = machine.addresses[..] else { panic!() };
    let told = why(of(&lines, &small, "gemm-bf16"));
    assert_eq!(told, "cuMemAlloc: out of memory (CUDA_ERROR_OUT_OF_MEMORY)");
    let fp8 = of(&lines, &old, "gemm-fp8");
    assert_eq!(
        (fp8.not_applicable.as_deref(), &fp8.unknown),
        (Some("this card does not have the type"), &None)
    );
    machine.cuda.fail.insert("cuDevicePrimaryCtxRetain".to_owned(), 46);
    let (code, lines) = machine.lines(&["--gpu", &small.to_string()]);
    let told = why(of(&lines, &small, "start"));
    assert_eq!(code, 0);
    assert!(told.ends_with("busy or unavailable (CUDA_ERROR_DEVICE_UNAVAILABLE)"), "{told}");
    assert_eq!(why(of(&lines, &small, "host-copy-alone")), told);
    assert_eq!(lines.len(), 2);
}

#[test]
fn without_a_driver_or_a_gpu_nothing_is_tested() {
    let empty = tempfile::tempdir().unwrap();
    let output = program(empty.path(), &[]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(said, "error: libcuda.so.1 cannot be loaded: no NVIDIA driver is installed here\n");
    let mut machine = Machine::new(0x70);
    machine.cuda.fail.insert("cuInit".to_owned(), 100);
    let output = machine.run(&[]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(said, "error: cuInit: no CUDA-capable device is detected (CUDA_ERROR_NO_DEVICE)\n");
    machine.cuda.fail.clear();
    let output = machine.run(&["--gpu", "0000:99:00.0"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(said, "error: no GPU 0000:99:00.0 here; this process sees 0000:70:00.0, 0000:71:00.0\n");
}

#[test]
fn a_card_that_cuda_does_not_show_costs_the_others_nothing() {
    let machine = Machine::new(0x74);
    let gpu = machine.addresses[1].to_string();
    let (code, lines) = machine.lines(&["--gpu", "0000:99:00.0", "--gpu", &gpu]);
    let absent = "0000:99:00.0".parse().unwrap();
    assert_eq!(
        (code, why(of(&lines, &absent, "start"))),
        (0, "the driver does not show this GPU to CUDA programs")
    );
    assert_eq!(of(&lines, &machine.addresses[1], GpuSelfTested::LAST).unknown, None);
}

/// Without NVML it is not known whether another job uses the card.
#[test]
fn without_nvml_no_card_is_touched() {
    let machine = Machine::new(0x78);
    machine.cuda.install(machine.dir.path()).unwrap();
    let output = program(machine.dir.path(), &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    assert_eq!(text.lines().count(), 2, "{text}");
    assert_eq!(text.matches("whether another process uses the GPU is not known").count(), 2, "{text}");
}

/// `cargo test -p railgate-gpu-selftest --features plant`; on a card `tests/gpu` asks for the same.
#[cfg(feature = "plant")]
#[test]
fn planted_bits_are_found() {
    let machine = Machine::new(0x80);
    let gpu = machine.addresses[0].to_string();
    let wrong = |plant: &str, at: &str| {
        let (code, lines) = machine.lines(&["--gpu", &gpu, "--plant", plant, "--at", at, "--bit", "20"]);
        assert_eq!(code, 1, "{lines:?}");
        let found = lines.iter().filter_map(|line| match &line.values {
            ValueCheck::Wrong { first, .. } => Some((line.test.clone(), first[0].place.clone())),
            _ => None,
        });
        found.collect::<Vec<_>>()
    };
    let register = wrong("register", "37");
    assert_eq!(register.len(), TYPES.len());
    // Warp 5 of block 4: the second row of warps, the second column.
    assert_eq!(register[0], ("gemm-bf16".to_owned(), "tile 1,0, row 192, column 32".to_owned()));
    let memory = wrong("memory", "100000");
    assert_eq!(memory[0].1, "tile 1,1, row 195, column 160");
    assert_eq!(wrong("pattern", "7"), [("memory-pattern".to_owned(), "byte 0x18".to_owned())]);
}
