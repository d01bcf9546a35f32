//! Tests of `railgate_probe::live` against the simulated driver: values arrive unchanged, and every fault is visible in the
//! snapshot.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test without the standard harness")]

#[path = "../../../crates/child/tests/one_by_one/mod.rs"]
mod one_by_one;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nvidia_ml::{Behaviour, EVENTS_FILE, LOADS, Scenario, Work, hide_symbol, install, work};
use railgate_child::{GRACE, Said};
use railgate_model::{
    Access, EccCounts, Extra, Gpu, GpuDetails, GpuFabric, GpuField, GpuId, GpuProcess, Gpus, LinkErrors,
    MemoryUse, NvLink, NvLinkErrors, Part, PartName, Peer, Plan, Reading, RecoveryAction, RetiredPages,
    RowRemap, Snapshot, SramEcc, Watched, XidEvent,
};
use railgate_probe::dispatch;
use railgate_probe::{GpuWatch, Request, SourceConfig, XidWatch, live};
use railgate_simulate::{FAULTS, FaultPart};

const SOON: Duration = Duration::from_secs(20);

fn known<T>(value: T) -> Reading<T> {
    Reading::Known(value)
}

fn healthy_gpu(index: u32) -> Gpu {
    Gpu {
        index,
        access: Access::Ok,
        pci: Reading::from_result(format!("0000:{:02x}:00.0", 0x1b + 0x10 * index).parse()),
        uuid: known(format!("GPU-00000000-0000-0000-0000-00000000000{index}")),
        serial: known(format!("165302300000{index}")),
        name: known("NVIDIA H100 80GB HBM3".to_owned()),
        minor: known(index),
        vbios: known("96.00.5E.00.01".to_owned()),
        recovery_action: known(RecoveryAction::None),
        ecc_enabled: known(true),
        ecc: EccCounts {
            volatile_uncorrected: known(0),
            aggregate_uncorrected: known(2),
            volatile_corrected: known(7 + u64::from(index)),
        },
        row_remap: known(RowRemap { correctable: 1, uncorrectable: 0, pending: false, failed: false }),
        nvlinks: (0..18).map(|link| NvLink { link, up: known(link != 5 || index != 2) }).collect(),
        processes: known(Vec::new()),
        memory: known(MemoryUse { total_mib: 81_559, used_mib: 4 }),
        temperature_c: known(31 + index),
        power_w: known(71.25),
        power_limit_w: known(700.0),
        energy_j: known(123_456.789),
        sm_clock_mhz: known(345),
        throttle_reasons: known(1),
        pcie_gen: known(5),
        pcie_width: known(16),
        pcie_replays: known(3),
        nvlink_tx_kib: known(1 << 40),
        nvlink_rx_kib: known(2 << 40),
        persistence: known(true),
        mig: known(false),
        details: details(index),
    }
}

/// Details with a different value in each field.
fn details(index: u32) -> GpuDetails {
    GpuDetails {
        inforom: known("G520.0200.00.05".to_owned()),
        gsp: known("580.159.04".to_owned()),
        ecc_pending: known(index != 1),
        sram: known(SramEcc {
            volatile_uncorrected: 1,
            aggregate_uncorrected: 2,
            over_threshold: index == 3,
        }),
        retired_pages: known(RetiredPages { single_bit: 3, double_bit: 4, pending: index == 4 }),
        margin_c: known(-5 + index.cast_signed()),
        slowdown_c: known(90),
        memory_c: known(41),
        memory_max_c: known(95),
        throttle_reasons_later: known(0x48),
        hw_thermal_ns: known(77),
        power_brake_ns: known(1 << 40),
        power_default_w: known(650.5),
        app_clock_mhz: known(1_980),
        app_clock_default_mhz: known(1_980 + index),
        pcie_max_gen: known(5),
        pcie_max_width: known(8),
        utilization: known(12),
        fabric: known(GpuFabric {
            state: 3,
            status: 6,
            clique: 9,
            cluster: "00112233445566778899aabbccddeeff".to_owned(),
            health: 2,
            health_mask: 0x101,
        }),
        nvlink_errors: NvLinkErrors {
            replays: known(10),
            recoveries: known(11),
            crc: known(12),
            links: links(),
        },
        peers: (index + 1..8).map(|other| Peer { index: other, status: known(other % 3) }).collect(),
    }
}

/// Errors of five links; the fifth answers like an old driver.
fn links() -> Vec<LinkErrors> {
    let count = |link: u32, more: u64| known(u64::from(link) * 100 + more);
    (0..18)
        .map(|link| LinkErrors {
            link,
            replays: if link == 5 { Reading::Unsupported } else { count(link, 1) },
            recoveries: count(link, 2),
            crc: count(link, 3),
        })
        .collect()
}

fn healthy() -> Gpus {
    Gpus {
        driver: known("580.159.04".to_owned()),
        nvml: known("13.580.159.04".to_owned()),
        count: known(8),
        gpus: (0..8).map(healthy_gpu).collect(),
    }
}

/// A folder with the library, a scenario and a small sysfs and proc tree.
struct Machine {
    dir: tempfile::TempDir,
    source: SourceConfig,
}

impl Machine {
    fn new(scenario: &Scenario) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let nvml_library = install(dir.path(), scenario).unwrap();
        let (sysfs, proc) = (dir.path().join("sys"), dir.path().join("proc"));
        for gpu in &scenario.gpus {
            if let Some(place) = gpu.pci.known() {
                pci_device(&sysfs, &place.to_string(), "0x10de", "0x030200");
            }
        }
        // Devices that are not GPUs: an NVSwitch, and a VGA adapter of another vendor.
        pci_device(&sysfs, "0000:05:00.0", "0x10de", "0x068000");
        pci_device(&sysfs, "0000:02:00.0", "0x1a03", "0x030000");
        fs::create_dir_all(&proc).unwrap();
        let kmsg = dir.path().join("kmsg");
        fs::write(&kmsg, "").unwrap();
        let source = SourceConfig { nvml_library, sysfs, proc, kmsg, test_node: true };
        Machine { dir, source }
    }

    fn with(behaviour: Behaviour) -> Self {
        Machine::new(&Scenario { behaviour, ..Scenario::of(&healthy()) })
    }

    fn probe(&self, deadline: Duration) -> Snapshot {
        let plan = Plan { parts: vec![PartName::Gpus], ..Plan::everything() };
        let request = Request { plan, ..Request::everything("n1", deadline) };
        live(&self.source, &request)
    }

    fn gpus(&self) -> Gpus {
        match self.probe(SOON).gpus {
            Part::Read { data, .. } => data,
            other => panic!("{other:?}"),
        }
    }
}

fn pci_device(sysfs: &Path, address: &str, vendor: &str, class: &str) {
    let real = sysfs.join("devices/pci0000:00").join(address);
    fs::create_dir_all(&real).unwrap();
    for (name, value) in [
        ("vendor", vendor),
        ("device", "0x2330"),
        ("class", class),
        ("numa_node", "0"),
        ("current_link_speed", "32.0 GT/s PCIe"),
        ("max_link_speed", "32.0 GT/s PCIe"),
        ("current_link_width", "16"),
        ("max_link_width", "16"),
    ] {
        fs::write(real.join(name), format!("{value}\n")).unwrap();
    }
    let all = sysfs.join("bus/pci/devices");
    fs::create_dir_all(&all).unwrap();
    let link = PathBuf::from("../../../devices/pci0000:00").join(address);
    std::os::unix::fs::symlink(link, all.join(address)).unwrap();
}

fn symbols(names: &[&str]) -> std::collections::BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn failed<T>(reading: &Reading<T>) -> &str {
    match reading {
        Reading::Failed(why) => why,
        _ => panic!("not failed"),
    }
}

fn a_healthy_machine_is_read_unchanged() {
    let machine = Machine::with(Behaviour::default());
    assert_eq!(machine.gpus(), healthy());
}

/// A probe reads what each simulated fault changes in a GPU that still answers.
fn every_simulated_gpu_fault_is_read() {
    let silences = ["gpu-lost", "gpu-missing", "gpu-unreadable", "gpu-reset-required"];
    for info in FAULTS.iter().filter(|info| info.part == FaultPart::Gpu || info.id == "driver-other") {
        // Simulated processes do not exist in this test's /proc.
        if silences.contains(&info.id) || info.id.starts_with("gpu-process") {
            continue;
        }
        let fault = format!("h100-sxm:{}", info.id.replace("<code>", "48"));
        let (profile, faults) = railgate_simulate::parse(&fault, &[]).unwrap();
        let want = railgate_simulate::simulated(&profile, &faults).gpus.data().unwrap().clone();
        assert_eq!(Machine::new(&Scenario::of(&want)).gpus(), want, "{fault}");
    }
}

fn only_planned_parts_are_read() {
    let snapshot = Machine::with(Behaviour::default()).probe(SOON);
    assert_eq!(snapshot.host, Part::Skipped);
    assert_eq!(snapshot.fabric, Part::Skipped);
    assert_eq!(snapshot.kernel_log, Part::Skipped);
    assert_eq!(snapshot.node, "n1");
}

fn a_lost_gpu_keeps_its_place() {
    let mut gpus = healthy();
    gpus.gpus[3].access = Access::Lost("gone".to_owned());
    let seen = Machine::new(&Scenario::of(&gpus)).gpus();
    assert_eq!(seen.count, known(8));
    let lost = &seen.gpus[3];
    let Access::Lost(why) = &lost.access else { panic!("{:?}", lost.access) };
    assert_eq!(why, "nvmlDeviceGetHandleByIndex_v2: GPU is lost (15)");
    // From the PCI tree, since NVML does not return the address of a lost GPU.
    assert_eq!(lost.pci, healthy().gpus[3].pci);
    assert!(failed(&lost.uuid).contains("GPU is lost"));
    assert_eq!(seen.gpus[4], healthy().gpus[4]);
}

fn a_lost_gpu_has_no_address_if_nvml_and_pci_counts_differ() {
    let mut gpus = healthy();
    gpus.gpus[3].access = Access::Lost("gone".to_owned());
    // The GPU is missing on the PCI bus as well: seven devices for eight GPUs.
    gpus.gpus[3].pci = Reading::Unsupported;
    let seen = Machine::new(&Scenario::of(&gpus)).gpus();
    assert!(matches!(seen.gpus[3].access, Access::Lost(_)));
    assert!(matches!(seen.gpus[3].pci, Reading::Failed(_)));

    // One device more than NVML counts: the known addresses match in order, but the last device could be either GPU.
    let mut gpus = healthy();
    gpus.gpus[7].access = Access::Lost("gone".to_owned());
    let machine = Machine::new(&Scenario::of(&gpus));
    pci_device(&machine.source.sysfs, "0000:f0:00.0", "0x10de", "0x030200");
    assert!(matches!(machine.gpus().gpus[7].pci, Reading::Failed(_)));
}

fn a_gpu_lost_between_two_calls_is_reported_lost() {
    let machine = Machine::with(Behaviour { lost_after_calls: [(6, 9)].into(), ..Behaviour::default() });
    let seen = machine.gpus();
    let lost = &seen.gpus[6];
    assert!(matches!(lost.access, Access::Lost(_)), "{:?}", lost.access);
    // Values read before the loss are kept; all later ones are failed readings.
    assert_eq!(lost.uuid, healthy().gpus[6].uuid);
    assert!(failed(&lost.energy_j).contains("GPU is lost"));
    assert!(matches!(lost.nvlinks.first().map(|link| &link.up), Some(Reading::Failed(_))));
    assert_eq!(seen.gpus[5].access, Access::Ok);
}

fn reset_required_by_any_call_marks_the_gpu() {
    let mut gpus = healthy();
    gpus.gpus[1].access = Access::ResetRequired(String::new());
    let seen = Machine::new(&Scenario::of(&gpus)).gpus();
    let Access::ResetRequired(why) = &seen.gpus[1].access else { panic!("{:?}", seen.gpus[1].access) };
    assert_eq!(why, "nvmlDeviceGetMemoryInfo_v2: GPU requires a reset (16)");
    // The other values are still read.
    assert_eq!(seen.gpus[1].row_remap, healthy().gpus[1].row_remap);
}

fn not_supported_becomes_an_unsupported_reading() {
    let machine = Machine::with(Behaviour {
        not_supported: symbols(&[
            "nvmlDeviceGetNvLinkState",
            "nvmlDeviceGetEccMode",
            "nvmlDeviceGetFieldValues",
        ]),
        ..Behaviour::default()
    });
    let seen = machine.gpus();
    assert_eq!(seen.gpus[0].access, Access::Ok);
    assert_eq!(seen.gpus[0].ecc_enabled, Reading::Unsupported);
    assert_eq!(seen.gpus[0].recovery_action, Reading::Unsupported);
    assert!(seen.gpus[0].nvlinks.iter().all(|link| link.up == Reading::Unsupported));
    assert_eq!(seen.gpus[0].uuid, healthy().gpus[0].uuid);
}

fn unusual_return_codes_are_named() {
    let returns = [
        ("nvmlDeviceGetRemappedRows".to_owned(), 25),
        ("nvmlDeviceGetSerial".to_owned(), 29),
        ("nvmlDeviceGetPowerUsage".to_owned(), 77),
        ("nvmlDeviceGetMigMode".to_owned(), 28),
    ];
    let seen = Machine::with(Behaviour { returns: returns.into(), ..Behaviour::default() }).gpus();
    assert_eq!(seen.gpus[0].row_remap, Reading::Unsupported);
    assert_eq!(failed(&seen.gpus[0].serial), "nvmlDeviceGetSerial: invalid state (29)");
    assert_eq!(failed(&seen.gpus[0].power_w), "nvmlDeviceGetPowerUsage: NVML error 77 (77)");
    assert!(matches!(seen.gpus[0].access, Access::Lost(_)), "28 is a lost GPU");
}

fn symbols_missing_in_an_old_driver_are_failed_readings() {
    let machine = Machine::with(Behaviour::default());
    for name in [
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlSystemGetDriverVersion",
        "nvmlShutdown",
        "nvmlDeviceGetMarginTemperature",
        "nvmlDeviceGetGpuFabricInfoV",
        "nvmlDeviceGetGspFirmwareVersion",
        "nvmlDeviceGetP2PStatus",
    ] {
        hide_symbol(&machine.source.nvml_library, name).unwrap();
    }
    let seen = machine.gpus();
    assert_eq!(failed(&seen.driver), "nvmlSystemGetDriverVersion: not in this driver's NVML");
    assert_eq!(failed(&seen.gpus[0].row_remap), "nvmlDeviceGetRemappedRows: not in this driver's NVML");
    assert_eq!(failed(&seen.gpus[7].memory), "nvmlDeviceGetMemoryInfo_v2: not in this driver's NVML");
    assert_eq!(seen.gpus[7].access, Access::Ok);
    assert_eq!(seen.gpus[7].ecc, healthy().gpus[7].ecc);
    // Symbols of later drivers are no failure on this one.
    let details = &seen.gpus[0].details;
    assert_eq!((&details.margin_c, &details.fabric), (&Reading::Unsupported, &Reading::Unsupported));
    assert_eq!((&details.gsp, details.peers.len()), (&Reading::Unsupported, 0));
    assert_eq!(details.inforom, healthy().gpus[0].details.inforom);

    hide_symbol(&machine.source.nvml_library, "nvmlDeviceGetCount_v2").unwrap();
    let Part::Failed { why, .. } = machine.probe(SOON).gpus else { panic!() };
    assert!(why.contains("nvmlDeviceGetCount_v2"), "{why}");
}

fn a_hanging_call_makes_the_part_silent() {
    let machine =
        Machine::with(Behaviour { hang: symbols(&["nvmlDeviceGetNvLinkState"]), ..Behaviour::default() });
    let snapshot = machine.probe(Duration::from_millis(700));
    assert_eq!(snapshot.gpus, Part::Silent { after_ms: 700.0 });
    // The other parts are read without delay.
    assert!(snapshot.pci.data().is_some());
    let machine = Machine::with(Behaviour { hang: symbols(&["nvmlInit_v2"]), ..Behaviour::default() });
    assert!(matches!(machine.probe(Duration::from_millis(300)).gpus, Part::Silent { .. }));
}

/// A small file system on a loop device. While it is frozen, a process that writes to it hangs in the kernel.
struct Freezer(tempfile::TempDir);

impl Freezer {
    fn new() -> Option<Self> {
        let freezer = Freezer(tempfile::tempdir().unwrap());
        let image = freezer.0.path().join("image");
        fs::File::create(&image).and_then(|file| file.set_len(16 << 20)).unwrap();
        fs::create_dir(freezer.mount()).unwrap();
        let made = command("mkfs.ext4", &["-q".as_ref(), image.as_path()])
            && command("mount", &["-o".as_ref(), "loop".as_ref(), &image, &freezer.mount()]);
        made.then_some(freezer)
    }

    fn mount(&self) -> PathBuf {
        self.0.path().join("mount")
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        command("fsfreeze", &["-u".as_ref(), &self.mount()]);
        // The killed child exits as soon as the file system is thawed.
        for _ in 0..100 {
            if command("umount", &[&self.mount()]) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn command(program: &str, args: &[&Path]) -> bool {
    let path = "/usr/sbin:/usr/bin:/sbin:/bin";
    let run = std::process::Command::new(program).args(args).env("PATH", path).output();
    run.is_ok_and(|output| output.status.success())
}

fn a_call_hanging_in_the_kernel_makes_the_part_stuck() {
    let Some(freezer) = Freezer::new() else {
        println!("     (skipped: no loop file system available)");
        return;
    };
    let write_to = [("nvmlInit_v2".to_owned(), freezer.mount().join("file"))].into();
    let machine = Machine::with(Behaviour { write_to, ..Behaviour::default() });
    assert_eq!(machine.gpus(), healthy());
    assert!(command("fsfreeze", &["-f".as_ref(), &freezer.mount()]));
    let begin = Instant::now();
    let snapshot = machine.probe(Duration::from_millis(300));
    let waited = begin.elapsed();
    drop(freezer);
    assert_eq!(snapshot.gpus, Part::Stuck { after_ms: 300.0 });
    assert!(waited >= Duration::from_millis(300) + GRACE, "{waited:?}");
    assert!(snapshot.pci.data().is_some());
}

fn slow_calls_are_read_completely() {
    let delay_ms = [("nvmlInit_v2".to_owned(), 300), ("nvmlDeviceGetPowerUsage".to_owned(), 20)];
    let machine = Machine::with(Behaviour { delay_ms: delay_ms.into(), ..Behaviour::default() });
    let Part::Read { data, took_ms } = machine.probe(SOON).gpus else { panic!() };
    assert_eq!(data, healthy());
    assert!(took_ms >= 320.0, "{took_ms}");
}

fn a_missing_library_is_a_failure_not_zero_gpus() {
    let mut machine = Machine::with(Behaviour::default());
    machine.source.nvml_library = machine.dir.path().join("none.so");
    let Part::Failed { why, .. } = machine.probe(SOON).gpus else { panic!() };
    assert!(why.contains("none.so") && why.contains("No such file"), "{why}");
}

fn a_driver_not_loaded_is_a_failure_not_zero_gpus() {
    let machine =
        Machine::with(Behaviour { returns: [("nvmlInit_v2".to_owned(), 9)].into(), ..Behaviour::default() });
    let Part::Failed { why, .. } = machine.probe(SOON).gpus else { panic!() };
    assert!(why.contains("libnvidia-ml.so.1"), "{why}");
}

fn a_machine_without_gpus_has_an_empty_list() {
    let gpus = Gpus { count: known(0), gpus: Vec::new(), ..healthy() };
    assert_eq!(Machine::new(&Scenario::of(&gpus)).gpus(), gpus);
}

fn scenario_changes_apply_to_a_loaded_library() {
    let machine = Machine::with(Behaviour::default());
    assert_eq!(machine.gpus().gpus[0].temperature_c, known(31));
    let mut hot = healthy();
    hot.gpus[0].temperature_c = known(91);
    Scenario::of(&hot).write(machine.dir.path()).unwrap();
    assert_eq!(machine.gpus().gpus[0].temperature_c, known(91));
}

fn nvml_processes_are_joined_with_proc() {
    let process = |pid| GpuProcess {
        pid,
        used_mib: known(1024),
        name: Reading::Unsupported,
        uid: Reading::Unsupported,
        exiting: false,
        slurm_job: Reading::Unsupported,
    };
    let mut gpus = healthy();
    // More than the first buffer holds, so the list has to be requested twice.
    gpus.gpus[0].processes = known((1..=100).map(|n| process(50_000 + n)).collect());
    gpus.gpus[1].processes = known(vec![process(4711)]);
    let machine = Machine::new(&Scenario::of(&gpus));
    let dir = machine.source.proc.join("4711");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("stat"), "4711 (python) R 1 1 1 0 -1 4194304 0").unwrap();
    fs::write(dir.join("status"), "Name:\tpython\nUid:\t1000\t1000\t1000\t1000\n").unwrap();
    fs::write(dir.join("cgroup"), "0::/system.slice/slurmstepd.scope/job_48213/step_0/user/task_0\n")
        .unwrap();

    let seen = machine.gpus();
    let many = seen.gpus[0].processes.known().unwrap();
    assert_eq!(many.len(), 100);
    assert!(many.iter().all(|process| process.exiting), "processes without a /proc entry count as exiting");
    let one = &seen.gpus[1].processes.known().unwrap()[0];
    assert_eq!((one.pid, &one.used_mib, one.exiting), (4711, &known(1024), false));
    assert_eq!((&one.name, &one.uid), (&known("python".to_owned()), &known(1000)));
    assert_eq!(one.slurm_job, known(Some(48213)));
}

fn all_parts_of_this_machine_are_read() {
    // /proc is real; GPUs and PCI are simulated.
    let machine = Machine::with(Behaviour::default());
    let source = SourceConfig { proc: PathBuf::from("/proc"), ..machine.source.clone() };
    let mut request = Request::everything("n1", SOON);
    let mounts = vec![PathBuf::from("/proc"), machine.dir.path().to_owned()];
    request.plan.extras.push(Extra::Mounts(mounts.clone()));
    fs::create_dir_all(source.sysfs.join("class")).unwrap();
    let snapshot = live(&source, &request);
    for missing in [
        snapshot.gpus.missing(),
        snapshot.fabric.missing(),
        snapshot.pci.missing(),
        snapshot.kernel_log.missing(),
        snapshot.host.missing(),
    ] {
        assert_eq!(missing, None);
    }
    assert!(!snapshot.boot_id.is_empty());
    let asked = &snapshot.host.data().unwrap().mounts;
    assert_eq!(asked.iter().map(|mount| &mount.path).collect::<Vec<_>>(), mounts.iter().collect::<Vec<_>>());
}

/// Xids before the start of the watch are not delivered; all later ones are.
fn a_watch_receives_xids_written_after_its_start() {
    let machine = Machine::new(&Scenario::of(&healthy()));
    let file = machine.dir.path().join(EVENTS_FILE);
    fs::write(&file, "2 31\n").unwrap();
    let mut child = XidWatch { library: machine.source.nvml_library.clone() }.start().unwrap();
    let mut heard: Vec<XidEvent> = Vec::new();
    let begun = Instant::now();
    let mut lines = String::from("2 31\n");
    while heard.len() < 2 && begun.elapsed() < SOON {
        // The child misses lines written before it waits, so one is written until it answers.
        if heard.is_empty() {
            lines.push_str("3 79\n");
            fs::write(&file, &lines).unwrap();
        }
        std::thread::sleep(Duration::from_millis(100));
        while let Said::This(text) = child.listen() {
            heard.extend(serde_json::from_slice::<Vec<XidEvent>>(&text).unwrap());
        }
        if heard.len() == 1 {
            lines.push_str("0 48\n");
            fs::write(&file, &lines).unwrap();
        }
    }
    let at = |index: usize| healthy().gpus[index].pci.known().copied();
    assert!(heard.iter().all(|event| event.code != 31), "{heard:?}");
    assert_eq!((heard[0].code, heard[0].gpu), (79, at(3)));
    child.finish();
    while !matches!(child.listen(), Said::Ended(_)) {
        assert!(begun.elapsed() < 2 * SOON);
        std::thread::sleep(Duration::from_millis(20));
    }
    let missing = XidWatch { library: "/no/such/library.so".into() };
    let mut child = missing.start().unwrap();
    let why = loop {
        match child.listen() {
            Said::Ended(why) => break why,
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    assert!(why.contains("/no/such/library.so"), "{why}");
}

/// One child process reads GPUs and waits for Xids; a hanging reading does not delay Xids.
fn xids_arrive_beside_readings_and_while_one_hangs() {
    let machine = Machine::new(&Scenario::of(&healthy()));
    let gpus = vec![GpuId::Index(0), GpuId::Index(3)];
    let library = machine.source.nvml_library.clone();
    let mut child = GpuWatch { library, gpus, interval_s: 0.2, xids: true }.start().unwrap();
    let begun = Instant::now();
    let mut next = || loop {
        assert!(begun.elapsed() < 2 * SOON, "nothing comes");
        match child.listen() {
            Said::This(text) => return serde_json::from_slice::<Watched>(&text).unwrap(),
            Said::Nothing => std::thread::sleep(Duration::from_millis(20)),
            Said::Ended(why) => panic!("it ended: {why}"),
        }
    };
    assert!(matches!(next(), Watched::Gpus(gpus) if gpus.len() == 2));
    assert_eq!(next(), Watched::Xids(vec![]));
    assert!(matches!(next(), Watched::Sample(_)));
    let file = machine.dir.path().join(EVENTS_FILE);
    fs::write(&file, "3 48\n").unwrap();
    let mut heard = || loop {
        if let Watched::Xids(events) = next() {
            return events.iter().map(|event| (event.code, event.gpu)).collect::<Vec<_>>();
        }
    };
    let at = |index: usize| healthy().gpus[index].pci.known().copied();
    assert_eq!(heard(), [(48, at(3))]);
    let mut hangs = Scenario::of(&healthy());
    hangs.behaviour.hang.insert("nvmlDeviceGetPowerUsage".to_owned());
    hangs.write(machine.dir.path()).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    // A GPU of the node that is not among those being read.
    fs::write(&file, "3 48\n5 79\n").unwrap();
    assert_eq!(heard(), [(79, at(5))]);
}

/// A driver without Xid events can still be read.
fn a_driver_without_events_can_still_be_read() {
    let mut scenario = Scenario::of(&healthy());
    scenario.behaviour.not_supported.insert("nvmlDeviceRegisterEvents".to_owned());
    let machine = Machine::new(&scenario);
    let library = machine.source.nvml_library.clone();
    let mut child =
        GpuWatch { library, gpus: vec![GpuId::Index(0)], interval_s: 0.2, xids: true }.start().unwrap();
    let begun = Instant::now();
    let mut said = Vec::new();
    while said.len() < 3 {
        assert!(begun.elapsed() < 2 * SOON, "{said:?}");
        match child.listen() {
            Said::This(text) => said.push(serde_json::from_slice::<Watched>(&text).unwrap()),
            Said::Nothing => std::thread::sleep(Duration::from_millis(20)),
            Said::Ended(why) => panic!("it ended: {why}"),
        }
    }
    assert!(matches!(&said[1], Watched::NoXids(why) if why.contains("nvmlDeviceRegisterEvents")), "{said:?}");
    assert!(matches!(said[2], Watched::Sample(_)));
}

/// Activities, clock, power and energy follow from the load that a program reports; the other GPU is idle.
fn gpu_figures_follow_from_the_reported_load() {
    let mut scenario = Scenario::of(&healthy());
    scenario.gpm = [1, 2, 5].map(|metric| (metric, 0.0)).into();
    let machine = Machine::new(&scenario);
    fs::create_dir(machine.dir.path().join(LOADS)).unwrap();
    let metrics = [(1, 99.0), (2, 80.0), (5, 50.0)].into();
    let doing = Work { metrics, clock_mhz: 1755, power_w: 640.0, ..Work::default() };
    work(machine.dir.path(), 3, &doing, 10 * SOON).unwrap();
    let gpus = vec![GpuId::Index(0), GpuId::Index(3)];
    let library = machine.source.nvml_library.clone();
    let mut child = GpuWatch { library, gpus, interval_s: 0.5, xids: false }.start().unwrap();
    let begun = Instant::now();
    let sample = loop {
        assert!(begun.elapsed() < 2 * SOON, "nothing comes");
        match child.listen() {
            Said::This(text) => match serde_json::from_slice(&text).unwrap() {
                Watched::Sample(sample) => break sample,
                _ => continue,
            },
            Said::Nothing => std::thread::sleep(Duration::from_millis(20)),
            Said::Ended(why) => panic!("it ended: {why}"),
        }
    };
    let said = |gpu: usize| {
        let gpu = &sample.gpus[gpu];
        [GpuField::Tensor, GpuField::Sm, GpuField::SmClock, GpuField::Power]
            .map(|field| gpu.get(field).known().unwrap().round())
    };
    let [_, _, clock, power] = said(0);
    assert_eq!(said(1), [50.0, 80.0, 1755.0, 640.0]);
    assert!(said(0)[..2] == [0.0, 0.0] && clock != 1755.0 && power != 640.0, "{:?}", said(0));
}

fn main() -> ExitCode {
    if let Some(code) = dispatch(&[]) {
        return code;
    }
    let tests: &[(&str, fn())] = &[
        ("a_healthy_machine_is_read_unchanged", a_healthy_machine_is_read_unchanged),
        ("every_simulated_gpu_fault_is_read", every_simulated_gpu_fault_is_read),
        ("only_planned_parts_are_read", only_planned_parts_are_read),
        ("a_lost_gpu_keeps_its_place", a_lost_gpu_keeps_its_place),
        (
            "a_lost_gpu_has_no_address_if_nvml_and_pci_counts_differ",
            a_lost_gpu_has_no_address_if_nvml_and_pci_counts_differ,
        ),
        ("a_gpu_lost_between_two_calls_is_reported_lost", a_gpu_lost_between_two_calls_is_reported_lost),
        ("reset_required_by_any_call_marks_the_gpu", reset_required_by_any_call_marks_the_gpu),
        ("a_watch_receives_xids_written_after_its_start", a_watch_receives_xids_written_after_its_start),
        ("xids_arrive_beside_readings_and_while_one_hangs", xids_arrive_beside_readings_and_while_one_hangs),
        ("gpu_figures_follow_from_the_reported_load", gpu_figures_follow_from_the_reported_load),
        ("a_driver_without_events_can_still_be_read", a_driver_without_events_can_still_be_read),
        ("not_supported_becomes_an_unsupported_reading", not_supported_becomes_an_unsupported_reading),
        ("unusual_return_codes_are_named", unusual_return_codes_are_named),
        (
            "symbols_missing_in_an_old_driver_are_failed_readings",
            symbols_missing_in_an_old_driver_are_failed_readings,
        ),
        ("a_hanging_call_makes_the_part_silent", a_hanging_call_makes_the_part_silent),
        (
            "a_call_hanging_in_the_kernel_makes_the_part_stuck",
            a_call_hanging_in_the_kernel_makes_the_part_stuck,
        ),
        ("slow_calls_are_read_completely", slow_calls_are_read_completely),
        ("a_missing_library_is_a_failure_not_zero_gpus", a_missing_library_is_a_failure_not_zero_gpus),
        ("a_driver_not_loaded_is_a_failure_not_zero_gpus", a_driver_not_loaded_is_a_failure_not_zero_gpus),
        ("a_machine_without_gpus_has_an_empty_list", a_machine_without_gpus_has_an_empty_list),
        ("scenario_changes_apply_to_a_loaded_library", scenario_changes_apply_to_a_loaded_library),
        ("nvml_processes_are_joined_with_proc", nvml_processes_are_joined_with_proc),
        ("all_parts_of_this_machine_are_read", all_parts_of_this_machine_are_read),
    ];
    one_by_one::run(tests)
}
