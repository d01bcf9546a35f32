//! A live probe of simulated hardware, through its real interfaces and railgate's own child processes, reads the same values as
//! `--simulate` produces.

#![expect(clippy::panic, clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::mem::discriminant;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use railgate_child::Said;
use railgate_model::{Access, Gpu, GpuField, GpuId, GpuSample, Part, Reading, Snapshot, Watched, WatchedGpu};
use railgate_probe::dispatch;
use railgate_probe::{GpuWatch, Request, SourceConfig, live};
use railgate_simulate::{FAULTS, FaultPart};
use railgate_tests::hardware::Hardware;

fn probe(hardware: &Hardware, deadline: Duration) -> Snapshot {
    let table = hardware.source_table(hardware.dir());
    let source: SourceConfig = table.try_into().unwrap();
    live(&source, &Request::everything("gn1", deadline))
}

/// Removes the messages of failed readings, which may differ between the two.
fn plain(gpu: &Gpu) -> Gpu {
    let mut gpu = gpu.clone();
    match &mut gpu.access {
        Access::Ok => {}
        Access::Lost(why) | Access::ResetRequired(why) | Access::Failed(why) => why.clear(),
    }
    let text = serde_json::to_value(&gpu).unwrap();
    serde_json::from_value(without_reasons(text)).unwrap()
}

fn without_reasons(value: serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    match value {
        Value::Object(map) if map.len() == 1 && map.contains_key("failed") => {
            serde_json::json!({ "failed": "" })
        }
        Value::Object(map) => map.into_iter().map(|(key, value)| (key, without_reasons(value))).collect(),
        Value::Array(list) => Value::Array(list.into_iter().map(without_reasons).collect()),
        other => other,
    }
}

fn agrees(hardware: &Hardware, what: &str) {
    let (seen, want) = (probe(hardware, Duration::from_secs(30)), hardware.snapshot());
    let (Some(gpus), Some(wanted)) = (seen.gpus.data(), want.gpus.data()) else {
        panic!("{what}: {:?}", seen.gpus.missing());
    };
    assert_eq!(gpus.count, wanted.count, "{what}");
    for (gpu, wanted) in gpus.gpus.iter().zip(&wanted.gpus) {
        let (mut gpu, mut wanted) = (plain(gpu), plain(wanted));
        // The live list is joined with /proc of this machine, in which the simulated process does not exist.
        if what.starts_with("gpu-process") {
            let pids = |gpu: &Gpu| {
                gpu.processes.known().map(|list| list.iter().map(|process| process.pid).collect())
            };
            let (got, want): (Option<Vec<u32>>, _) = (pids(&gpu), pids(&wanted));
            assert_eq!(got, want, "{what}");
            gpu.processes = railgate_model::Reading::Unsupported;
            wanted.processes = railgate_model::Reading::Unsupported;
        }
        // A GPU that requires a reset answers no other call.
        if matches!(wanted.access, Access::ResetRequired(_) | Access::Failed(_)) {
            assert_eq!(discriminant(&gpu.access), discriminant(&wanted.access), "{what}");
        } else {
            assert_eq!(gpu, wanted, "{what}");
        }
    }
    let fabric = |snapshot: &Snapshot| without_reasons(serde_json::to_value(snapshot.fabric.data()).unwrap());
    assert_eq!(fabric(&seen), fabric(want), "{what}");
    let drives = |snapshot: &Snapshot| snapshot.host.data().map(|host| host.system.nvmes.clone());
    assert_eq!(drives(&seen), drives(want), "{what}");
    let devices = |snapshot: &Snapshot| snapshot.pci.data().map(|pci| pci.devices.len());
    assert_eq!(devices(&seen), devices(want), "{what}");
}

fn every_simulated_fault_is_read(dir: &Path) {
    let mut hardware = Hardware::create(dir, "h100-sxm", "gn1").unwrap();
    agrees(&hardware, "healthy");
    for info in FAULTS {
        // A machine with InfiniBand has no GID table.
        let no_part = info.part == FaultPart::Mount || info.id.starts_with("roce-gid");
        if no_part || info.id.starts_with("nvml-") {
            continue;
        }
        match hardware.inject(&info.id.replace("<code>", "94")) {
            Err(why) if why.to_string().contains("does not show it") => continue,
            Err(_) if matches!(info.id, "host-silent" | "host-stuck") => {
                hardware.heal().unwrap();
                continue;
            }
            done => done.unwrap(),
        }
        if info.id == "kmsg-unreadable" {
            assert!(matches!(probe(&hardware, Duration::from_secs(30)).kernel_log, Part::Failed { .. }));
        } else {
            agrees(&hardware, info.id);
        }
        hardware.heal().unwrap();
    }
    agrees(&hardware, "healed");
}

fn missing_or_hanging_nvml_is_reported(dir: &Path) {
    let mut hardware = Hardware::create(dir, "l40s", "gn1").unwrap();
    hardware.inject("nvml-missing").unwrap();
    let seen = probe(&hardware, Duration::from_secs(30));
    assert!(seen.gpus.missing().is_some_and(|why| why.contains("libnvidia-ml.so.1")), "{:?}", seen.gpus);
    hardware.heal().unwrap();
    hardware.inject("nvml-silent").unwrap();
    assert!(matches!(probe(&hardware, Duration::from_secs(1)).gpus, Part::Silent { .. }));
    hardware.heal().unwrap();
    agrees(&hardware, "healed");
}

/// The first sample of a watching child process.
fn watched(hardware: &Hardware) -> (Vec<WatchedGpu>, GpuSample) {
    let source: SourceConfig = hardware.source_table(hardware.dir()).try_into().unwrap();
    let gpus = vec![GpuId::Index(1), GpuId::Index(7)];
    let mut child =
        GpuWatch { library: source.nvml_library, gpus, interval_s: 0.3, xids: false }.start().unwrap();
    let mut known = Vec::new();
    loop {
        match child.listen() {
            Said::This(what) => match serde_json::from_slice(&what).unwrap() {
                Watched::Gpus(gpus) => known = gpus,
                Watched::Sample(sample) => return (known, sample.gpus[1].clone()),
                Watched::Xids(_) | Watched::NoXids(_) => panic!("Xids were not requested"),
            },
            Said::Nothing => std::thread::sleep(Duration::from_millis(20)),
            Said::Ended(why) => panic!("{why}"),
        }
    }
}

/// GPUs before Hopper (no GPM): values of NVML are read, all others are unsupported and never zero.
fn a_gpu_without_gpm_has_the_readings_of_nvml(dir: &Path) {
    let mut hardware = Hardware::create(dir, "a100-sxm", "gn1").unwrap();
    let (known, sample) = watched(&hardware);
    assert_eq!((known.len(), &known[1].gpm), (2, &Reading::Known(false)));
    for metric in GpuField::GPM {
        assert_eq!(*sample.get(metric.field), Reading::Unsupported);
    }
    assert_eq!(*sample.get(GpuField::TensorWork), Reading::Unsupported);
    let said = [
        GpuField::SmClock,
        GpuField::Power,
        GpuField::Energy,
        GpuField::AnyKernel,
        GpuField::MemoryUsed,
        GpuField::PowerCap,
    ];
    assert!(said.iter().all(|field| sample.get(*field).known().is_some()), "{sample:?}");
    // A metric that the GPU lacks does not affect the others.
    hardware.works(&[(2, 90.0), (5, 50.0)]).unwrap();
    let (known, sample) = watched(&hardware);
    assert_eq!(known[1].gpm, Reading::Known(true));
    let readings = [GpuField::Tensor, GpuField::Dram].map(|field| sample.get(field).clone());
    assert_eq!(readings, [Reading::Known(50.0), Reading::Unsupported]);
    // If the driver refuses one call, only that reading fails.
    hardware.behave(|nvml| nvml.returns.insert("nvmlDeviceGetPowerUsage".to_owned(), 999)).unwrap();
    let (_, sample) = watched(&hardware);
    let power = sample.get(GpuField::Power);
    assert!(matches!(power, Reading::Failed(why) if why.contains("nvmlDeviceGetPowerUsage")));
    assert_eq!(*sample.get(GpuField::Sm), Reading::Known(90.0));
}

fn main() -> ExitCode {
    if let Some(code) = dispatch(&[]) {
        return code;
    }
    let tests = [
        ("every_simulated_fault_is_read", every_simulated_fault_is_read as fn(&Path)),
        ("missing_or_hanging_nvml_is_reported", missing_or_hanging_nvml_is_reported),
        ("a_gpu_without_gpm_has_the_readings_of_nvml", a_gpu_without_gpm_has_the_readings_of_nvml),
    ];
    // One test at a time, since they change state of the whole process.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    let trial = |(name, test): (&str, fn(&Path))| {
        Trial::test(name, move || {
            let dir = tempfile::tempdir()?;
            test(dir.path());
            Ok(())
        })
    };
    libtest_mimic::run(&arguments, tests.into_iter().map(trial).collect()).exit_code()
}
