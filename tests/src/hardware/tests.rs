use railgate_model::KernelMark;
use railgate_probe::readers::{fabric_read, host_read, kernel_log_read, pci_read};

use super::*;

fn machine(text: &str) -> (tempfile::TempDir, Hardware) {
    let dir = tempfile::tempdir().unwrap();
    let hardware = Hardware::create(dir.path(), text, "gn1").unwrap();
    (dir, hardware)
}

/// Replaces the messages of failed readings, which depend on the reader.
fn plain(pci: &Pci) -> Pci {
    let mut pci = pci.clone();
    for device in &mut pci.devices {
        if let Reading::Failed(why) = &mut device.link {
            why.clear();
        }
    }
    pci
}

fn plain_fabric(fabric: &Fabric) -> Fabric {
    let mut fabric = fabric.clone();
    for counter in
        fabric.hcas.iter_mut().flat_map(|hca| &mut hca.ports).flat_map(|port| port.counters.values_mut())
    {
        if let Reading::Failed(why) = counter {
            why.clear();
        }
    }
    fabric
}

/// Fields that a tree of files cannot show: they come from system calls, processes, or modules in ports.
const UNSEEN: [&str; 21] = [
    "boot-arg-missing",
    "clock-",
    "cloud-",
    "disk-full",
    "disk-inodes",
    "disk-read-only",
    "disk-unreadable",
    "fabric-manager-other",
    "gpu-self-test-",
    "machine-check",
    "memlock-low",
    "memory-missing",
    "optic-",
    "process-blocked",
    "rdma-self-test-",
    "services-unreadable",
    "shm-",
    "site-",
    "tmp-full",
    "topology-file-",
    "zombies",
];

fn agrees(hardware: &Hardware) {
    let (sysfs, now) = (hardware.dir().join("sysfs"), hardware.snapshot());
    if let Some(host) = now.host.data() {
        let (mut seen, mut want) = (
            tree::host::shown(&host_read(Path::new("/proc"), &sysfs).system),
            tree::host::shown(&host.system),
        );
        // The SMART log comes from a reader of its own.
        for system in [&mut seen, &mut want] {
            if let Reading::Known(drives) = &mut system.nvmes {
                drives.iter_mut().for_each(|drive| drive.health = Reading::Unsupported);
            }
        }
        assert_eq!(seen, want);
    }
    assert_eq!(plain_fabric(&fabric_read(&sysfs).unwrap()), plain_fabric(now.fabric.data().unwrap()));
    assert_eq!(plain(&pci_read(&sysfs).unwrap()), plain(now.pci.data().unwrap()));
    let scenario = Scenario::read(hardware.dir()).unwrap();
    assert_eq!(scenario.gpus, now.gpus.data().unwrap().gpus);
}

#[test]
fn the_interfaces_report_the_values_of_the_snapshot() {
    for id in railgate_profiles::builtin_ids() {
        let (_dir, hardware) = machine(id);
        agrees(&hardware);
        let log = kernel_log_read(&hardware.dir().join(KMSG), None, "this").unwrap();
        let want = hardware.snapshot().kernel_log.data().unwrap();
        assert_eq!((log.last_seq, log.overrun), (want.last_seq, false));
        let texts = |log: &railgate_model::KernelLog| {
            log.lines.iter().map(|line| line.text.clone()).collect::<Vec<_>>()
        };
        assert_eq!(texts(&log), texts(want));
    }
}

#[test]
fn every_fault_shows_and_heals() {
    let (_dir, mut hardware) = machine("h100-sxm");
    let healthy = hardware.snapshot().clone();
    for info in railgate_simulate::FAULTS {
        // A machine with InfiniBand has no GID table.
        if info.part == FaultPart::Mount || info.id == "nvml-stuck" || info.id.starts_with("roce-gid") {
            assert!(hardware.inject(info.id).is_err());
            continue;
        }
        let before = kernel_log_read(&hardware.dir().join(KMSG), None, "this").unwrap();
        match hardware.inject(&info.id.replace("<code>", "48")) {
            Err(why) if why.to_string().contains("does not show it") => {
                assert!(UNSEEN.iter().any(|unseen| info.id.starts_with(unseen)), "{why}");
                assert_eq!(*hardware.snapshot(), healthy);
                continue;
            }
            Err(_) if matches!(info.id, "host-silent" | "host-stuck") => {
                hardware.heal().unwrap();
                continue;
            }
            done => done.unwrap(),
        }
        agrees(&hardware);
        match info.id {
            "nvml-missing" => assert!(!hardware.dir().join(LIBRARY).exists()),
            "kmsg-unreadable" | "gpu-nvml-xid" => assert!(!hardware.dir().join(KMSG).exists()),
            "nvml-slow" | "nvml-silent" => {
                assert_ne!(Scenario::read(hardware.dir()).unwrap().behaviour, Behaviour::default());
            }
            "gpu-lost" | "gpu-xid-<code>" => {
                let mark = KernelMark { boot_id: "this".into(), seq: before.last_seq.unwrap() };
                let log = kernel_log_read(&hardware.dir().join(KMSG), Some(&mark), "this").unwrap();
                let code = if info.id == "gpu-lost" { 79 } else { 48 };
                assert_eq!(log.xids().iter().map(|xid| xid.code).collect::<Vec<_>>(), [code]);
                let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
                let age = u64::try_from(now.as_millis()).unwrap().abs_diff(log.lines[0].time);
                assert!(age < 600_000, "{age} ms");
            }
            _ => assert_ne!(*hardware.snapshot(), healthy, "{}", info.id),
        }
        hardware.heal().unwrap();
        assert_eq!(*hardware.snapshot(), healthy);
        agrees(&hardware);
    }
}

#[test]
fn sequence_numbers_never_repeat() {
    let (_dir, mut hardware) = machine("h100-sxm");
    for _ in 0..3 {
        hardware.inject("gpu-lost@3").unwrap();
        hardware.heal().unwrap();
        hardware.inject("kmsg-unreadable").unwrap();
        hardware.xid(5, 63, None).unwrap();
        hardware.heal().unwrap();
    }
    let log = kernel_log_read(&hardware.dir().join(KMSG), None, "this").unwrap();
    let seqs: Vec<u64> = log.lines.iter().map(|line| line.seq).collect();
    assert!(seqs.windows(2).all(|pair| pair[0] < pair[1]), "{seqs:?}");
    assert_eq!(log.xids().iter().filter(|xid| xid.code == 63).count(), 3);
}

#[test]
fn a_lost_gpu_cannot_be_lost_again_and_unknown_parts_are_errors() {
    let (_dir, mut hardware) = machine("rtx4090");
    assert!(hardware.inject("ib-port-down").is_err());
    assert!(hardware.inject("gpu-lost@8").is_err());
    assert!(hardware.inject("gpu-melted").is_err());
    assert!(hardware.xid(8, 79, None).is_err());
}

#[test]
fn processes_and_counters_can_be_changed() {
    let (_dir, mut hardware) = machine("h100-sxm");
    hardware.hold(2, 77, 1024).unwrap();
    let pids = |hardware: &Hardware| {
        let gpus = Scenario::read(hardware.dir()).unwrap().gpus;
        gpus[2].processes.known().unwrap().iter().map(|process| process.pid).collect::<Vec<_>>()
    };
    assert_eq!(pids(&hardware), [77]);
    hardware.release(77).unwrap();
    assert!(pids(&hardware).is_empty());
    hardware.count("mlx5_4", "port_xmit_data", 500).unwrap();
    let fabric = fabric_read(&hardware.dir().join("sysfs")).unwrap();
    assert_eq!(fabric.hcas[4].ports[0].counters["port_xmit_data"], Reading::Known(1_000_500));
}

#[test]
fn traffic_counted_by_programs_survives_faults() {
    let (_dir, mut hardware) = machine("h100-sxm");
    let sent = |hardware: &Hardware| {
        let fabric = fabric_read(&hardware.dir().join("sysfs")).unwrap();
        let port = &fabric.hcas[2].ports[0];
        assert_eq!(port.counters["port_xmit_data"], port.counters["port_rcv_data"]);
        port.counters["port_xmit_data"].known().copied().unwrap()
    };
    let before = sent(&hardware);
    move_bytes(hardware.dir(), "mlx5_2", 1, 4000).unwrap();
    assert_eq!(sent(&hardware), before + 1000);
    if nix::unistd::geteuid().is_root() {
        let counters = hardware.dir().join("sysfs/class/infiniband/mlx5_2/ports/1/counters");
        for name in ["port_xmit_data", "port_rcv_data"] {
            std::os::unix::fs::chown(counters.join(name), Some(5001), None).unwrap();
        }
        hardware.inject("gpu-lost@3").unwrap();
        assert_eq!(sent(&hardware), before + 1000);
    }
    assert!(move_bytes(hardware.dir(), "mlx5_99", 1, 4000).is_err());
}

#[test]
fn the_source_table_is_valid_configuration() {
    let (_dir, hardware) = machine("h100-sxm");
    let text = hardware.source(Path::new("/hardware"));
    let table: toml::Table = text.parse().unwrap();
    let source: railgate_probe::SourceConfig = table["source"].clone().try_into().unwrap();
    assert_eq!(source.sysfs, Path::new("/hardware/sysfs"));
    assert!(source.test_node && !source.is_system() && source.problems().is_empty());
}
