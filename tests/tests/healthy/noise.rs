//! Differences between two healthy machines.

use railgate_gate::Memory;
use railgate_model::{
    Allocation, BlockedProcess, Gpu, GpuId, GpuProcess, Host, Job, KernelLine, Part, Phase, Port, PortState,
    Profile, Reading, Snapshot,
};
use serde_json::Value;

use crate::Case;
use crate::rng::Rng;

/// Counters of work done, or of load on the fabric.
const BUSY: [&str; 16] = [
    "port_xmit_data",
    "port_rcv_data",
    "port_xmit_packets",
    "port_rcv_packets",
    "port_xmit_wait",
    "port_xmit_discards",
    "VL15_dropped",
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "rp_cnp_handled",
    "duplicate_request",
    "port_rcv_switch_relay_errors",
    "out_of_buffer",
    "rx_corrected_bits_phy",
    "rx_discards_phy",
    "rx_prio3_pause_duration",
];

/// Kernel log lines of healthy machines.
const CHATTER: [&str; 10] = [
    "mlx5_core 0000:1a:00.0: Port module event: module 0, Cable plugged",
    "mlx5_core 0000:1a:00.0: 252.048 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x8 link)",
    "nvme nvme0: Shutdown timeout set to 10 seconds",
    "nvme nvme1: 127/0/0 default/read/poll queues",
    "EXT4-fs (md0): mounted filesystem with ordered data mode. Quota mode: none.",
    "nvidia-nvswitch0: using MSI",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.159.04",
    "EDAC MC0: Giving out device to module i10nm_edac controller Intel_10nm Socket#0 IMC#0",
    "mce: CPU0: Thermal monitoring enabled (TM1)",
    "Memory cgroup out of memory: Killed process 4711 (python3) total-vm:1kB, anon-rss:1kB",
];

/// The same machine without some of its readings: unsupported, failed, or parts without an answer.
pub(crate) fn lacking(healthy: &Snapshot, rng: &mut Rng) -> Snapshot {
    let mut value = serde_json::to_value(healthy).unwrap();
    let one_in = *rng.pick(&[5, 30, 200]);
    take_away(&mut value, one_in, rng);
    let mut snapshot: Snapshot = serde_json::from_value(value).unwrap();
    let why = || "Input/output error".to_owned();
    if rng.one_in(8) {
        snapshot.gpus = Part::Failed { why: why(), took_ms: 3.0 };
    }
    if rng.one_in(8) {
        snapshot.fabric = Part::Silent { after_ms: 10_000.0 };
    }
    if rng.one_in(8) {
        snapshot.pci = Part::Failed { why: why(), took_ms: 3.0 };
    }
    if rng.one_in(8) {
        snapshot.kernel_log = Part::Failed { why: why(), took_ms: 3.0 };
    }
    if rng.one_in(8) {
        snapshot.host = Part::Silent { after_ms: 10_000.0 };
    }
    snapshot
}

/// Replaces readings at random. In JSON a reading is `{"known": …}`, at any place.
fn take_away(value: &mut Value, one_in: u64, rng: &mut Rng) {
    match value {
        Value::Object(fields) if fields.len() == 1 && fields.contains_key("known") => {
            if rng.one_in(one_in) {
                *value = match rng.below(2) {
                    0 => Value::from("unsupported"),
                    _ => serde_json::json!({ "failed": "nvmlDeviceGetX: unknown error (999)" }),
                };
            } else if let Some(inner) = fields.get_mut("known") {
                take_away(inner, one_in, rng);
            }
        }
        Value::Object(fields) => fields.values_mut().for_each(|inner| take_away(inner, one_in, rng)),
        Value::Array(items) => items.iter_mut().for_each(|inner| take_away(inner, one_in, rng)),
        _ => {}
    }
}

/// One check run on this healthy machine.
pub(crate) fn case(base: &Snapshot, profile: &Profile, whole: bool, rng: &mut Rng) -> Case {
    let mut now = base.clone();
    let phase = *rng.pick(&[Phase::Prolog, Phase::Epilog, Phase::Periodic]);
    let mut plain = whole;
    now.taken += rng.below(400 * 86_400_000);
    boot(&mut now, rng);
    let fresh = fresh(&now);
    plain &= !fresh;
    let job = job(&now, phase, rng);
    plain &= !job.as_ref().is_some_and(|job| matches!(job.allocation, Allocation::Unreadable(_)));
    let mut earlier = now.clone();
    plain &= devices(&mut earlier, &mut now, phase, job.as_ref(), fresh, rng);
    if let Part::Read { data, .. } = &mut now.host {
        plain &= host(data, rng);
    }
    plain &= kernel(&mut now, rng);
    earlier.taken = now.taken - 1_000 - rng.below(7 * 86_400_000);
    let restarted = rng.one_in(10);
    if restarted {
        earlier.boot_id = format!("{:016x}", rng.next());
    }
    let (memory, same_parts) = memory(&earlier, &now, profile, rng);
    plain &= same_parts;
    let before = (phase == Phase::Epilog && !rng.one_in(20) || rng.one_in(10)).then_some(earlier);
    Case { phase, now, before, job, memory, plain }
}

/// Sets an uptime between one minute and one year.
fn boot(now: &mut Snapshot, rng: &mut Rng) {
    let seconds = match rng.below(3) {
        0 => rng.within(20, 600),
        1 => rng.within(600, 86_400),
        _ => rng.within(86_400, 365 * 86_400),
    };
    let booted = now.taken / 1000 - seconds;
    if let Part::Read { data, .. } = &mut now.host {
        known(&mut data.boot_time, |time| *time = booted);
    }
}

/// Whether the fabric may still be coming up after a boot.
fn fresh(now: &Snapshot) -> bool {
    let booted = now.host.data().and_then(|host| host.boot_time.known());
    booted.is_some_and(|booted| now.taken / 1000 - booted < 290)
}

fn job(now: &Snapshot, phase: Phase, rng: &mut Rng) -> Option<Job> {
    if phase == Phase::Periodic {
        return None;
    }
    let gpus = now.gpus.data().map_or(&[][..], |gpus| gpus.gpus.as_slice());
    let allocation = match rng.below(8) {
        0 => Allocation::NoGpus,
        1 if rng.one_in(4) => Allocation::Unreadable("gpu:8(IDX:0-7)".to_owned()),
        1..=4 => Allocation::Gpus(gpus.iter().map(|gpu| GpuId::Index(gpu.index)).collect()),
        5 => {
            let uuids = gpus.iter().filter_map(|gpu| gpu.uuid.known().cloned()).filter(|_| rng.one_in(2));
            Allocation::Gpus(uuids.map(GpuId::Uuid).collect())
        }
        _ => {
            let mine = gpus.iter().map(|gpu| gpu.index).filter(|_| rng.one_in(2));
            Allocation::Gpus(mine.map(GpuId::Index).collect())
        }
    };
    Some(Job {
        id: 48_213,
        uid: 1000,
        gid: 1000,
        user: "alice".to_owned(),
        restarts: 0,
        nodelist: "n1".to_owned(),
        het_leader: None,
        allocation,
        partition: "gpu".to_owned(),
    })
}

fn known<T>(reading: &mut Reading<T>, change: impl FnOnce(&mut T)) {
    if let Reading::Known(value) = reading {
        change(value);
    }
}

fn devices(
    earlier: &mut Snapshot,
    now: &mut Snapshot,
    phase: Phase,
    job: Option<&Job>,
    fresh: bool,
    rng: &mut Rng,
) -> bool {
    let mut plain = true;
    if let (Part::Read { data: then, .. }, Part::Read { data: now, .. }) = (&mut earlier.gpus, &mut now.gpus)
    {
        for (then, now) in then.gpus.iter_mut().zip(&mut now.gpus) {
            gpu(then, now, rng);
            plain &= processes(now, phase, job, rng);
        }
    }
    if let (Part::Read { data: then, .. }, Part::Read { data: now, .. }) =
        (&mut earlier.fabric, &mut now.fabric)
    {
        let reloaded = rng.one_in(20);
        let ports = then.hcas.iter_mut().flat_map(|hca| &mut hca.ports);
        for (then, now) in ports.zip(now.hcas.iter_mut().flat_map(|hca| &mut hca.ports)) {
            plain &= port(then, now, reloaded, rng);
            if fresh && rng.one_in(3) {
                let states = [PortState::Down, PortState::Init, PortState::Armed];
                now.state = Reading::Known(rng.pick(&states).clone());
            }
        }
    }
    plain
}

/// Both readings are of the same GPU: idle, busy or in between.
fn gpu(then: &mut Gpu, now: &mut Gpu, rng: &mut Rng) {
    let errors = rng.below(200);
    let lifetime = rng.below(5);
    let (tx, rx) = (rng.counter(), rng.counter());
    let replays = rng.below(20);
    // Errors that links counted during training, and the few retransmissions that are normal.
    let trained: Vec<[u64; 3]> =
        (0..18).map(|_| [rng.below(5_000), rng.below(3), rng.below(100_000)]).collect();
    let again = rng.below(900);
    for (gpu, more) in [(then, 0), (now, 1)] {
        let limit = gpu.power_limit_w.known().copied().unwrap_or(400.0);
        known(&mut gpu.temperature_c, |degrees| *degrees = rng.within(20, 78) as u32);
        known(&mut gpu.power_w, |watts| *watts = limit * (0.05 + 0.95 * rng.share()));
        known(&mut gpu.sm_clock_mhz, |clock| *clock = rng.within(210, 1_980) as u32);
        // Idle, application clocks, power cap, sync boost.
        known(&mut gpu.throttle_reasons, |reasons| *reasons = rng.next() & 0x17);
        // An idle link reduces its speed.
        known(&mut gpu.pcie_gen, |generation| *generation = rng.within(1, u64::from(*generation)) as u32);
        known(&mut gpu.pcie_replays, |count| *count = replays + more * (again % 30));
        for (link, [replays, recoveries, crc]) in gpu.details.nvlink_errors.links.iter_mut().zip(&trained) {
            known(&mut link.replays, |count| *count = replays + more * again);
            known(&mut link.recoveries, |count| *count = *recoveries);
            known(&mut link.crc, |count| *count = crc + more * again * 100);
        }
        known(&mut gpu.energy_j, |joules| *joules = rng.share() * 1e12);
        known(&mut gpu.nvlink_tx_kib, |count| *count = tx);
        known(&mut gpu.nvlink_rx_kib, |count| *count = rx);
        known(&mut gpu.ecc.volatile_corrected, |count| *count = errors);
        known(&mut gpu.ecc.aggregate_uncorrected, |count| *count = lifetime);
        known(&mut gpu.row_remap, |rows| rows.correctable = lifetime as _);
        known(&mut gpu.persistence, |on| *on = *on || rng.one_in(2));
    }
}

/// Adds a process that may run on a GPU of a healthy node.
fn processes(gpu: &mut Gpu, phase: Phase, job: Option<&Job>, rng: &mut Rng) -> bool {
    let mine = match job.map(|job| &job.allocation) {
        Some(Allocation::Gpus(ids)) => ids.contains(&GpuId::Index(gpu.index)),
        _ => true,
    };
    let mut one = GpuProcess {
        pid: rng.within(100, 4_000_000) as u32,
        used_mib: Reading::Known(rng.below(70_000)),
        name: Reading::Known("python3".to_owned()),
        uid: Reading::Known(1000 + rng.below(50) as u32),
        exiting: false,
        slurm_job: Reading::Known(Some(rng.within(1, 48_000) as u32)),
    };
    match rng.below(4) {
        // A process of another job, which has its own GPU or shares this one.
        0 if phase == Phase::Periodic || !mine => {}
        1 => {
            one.name =
                Reading::Known((*rng.pick(&["nvidia-smi", "dcgm-exporter", "nv-hostengine"])).to_owned())
        }
        2 if rng.one_in(4) => (one.exiting, one.slurm_job) = (true, Reading::Known(Some(48_213))),
        _ => return true,
    }
    let plain = !one.exiting;
    known(&mut gpu.memory, |memory| memory.used_mib = one.used_mib.known().copied().unwrap_or(0));
    known(&mut gpu.processes, |processes| processes.push(one));
    plain
}

/// Errors of the past stay constant; counters of work grow, and restart at zero if the driver was reloaded.
fn port(then: &mut Port, now: &mut Port, reloaded: bool, rng: &mut Rng) -> bool {
    let mut plain = true;
    for (name, value) in &mut now.counters {
        let Reading::Known(value) = value else { continue };
        let old = match then.counters.get_mut(name) {
            Some(Reading::Known(old)) => old,
            _ => continue,
        };
        if BUSY.contains(&name.as_str()) {
            *old = rng.counter();
            *value = old.wrapping_add(rng.next() >> 24);
        } else {
            *old = if rng.one_in(3) { rng.below(1_000_000) } else { 0 };
            *value = *old;
        }
        if reloaded {
            *value = 0;
        }
        // The growth of a counter that wrapped is unknown.
        plain &= *value >= *old;
    }
    plain
}

fn host(host: &mut Host, rng: &mut Rng) -> bool {
    let system = &mut host.system;
    known(&mut host.memory_mib, |mib| *mib -= rng.below(*mib / 100));
    known(&mut system.file_systems, |all| {
        for one in all {
            one.read_only = rng.one_in(20);
            known(&mut one.space, |space| {
                // At most 90 % full, or a large file system that may be fuller.
                space.free_mib = space.size_mib / 10 + rng.below(space.size_mib * 9 / 10);
                if rng.one_in(4) {
                    space.free_mib = rng.within(12 * 1024, 40 * 1024).min(space.size_mib);
                }
                space.inodes_free = space.inodes / 10 + rng.below(space.inodes * 9 / 10);
            });
        }
    });
    known(&mut system.nvmes, |drives| {
        for drive in drives {
            let critical = drive.critical_c.known().copied().unwrap_or(80.0);
            known(&mut drive.health, |health| {
                health.used_percent = rng.below(99) as u8;
                health.spare_percent = rng.within(u64::from(health.spare_threshold_percent), 100) as u8;
                health.media_errors = rng.below(20);
            });
            known(&mut drive.temperature_c, |degrees| *degrees = 20.0 + (critical - 25.0) * rng.share());
        }
    });
    known(&mut system.memory, |controllers| {
        for controller in controllers {
            known(&mut controller.corrected, |count| *count = rng.below(40));
        }
    });
    known(&mut system.cpus, |cpus| *cpus = rng.within(8, 512) as u32);
    known(&mut system.processes, |processes| {
        processes.zombies = rng.below(900) as u32;
        for _ in 0..rng.below(4) {
            let (pid, started) = (rng.below(4_000_000) as u32, rng.next());
            let name = "python3".to_owned();
            processes.blocked.push(BlockedProcess { pid, started, name, switches: rng.below(1_000) });
        }
    });
    known(&mut system.clock, |clock| {
        clock.synchronised = !rng.one_in(5);
        clock.max_error_us = if clock.synchronised { rng.below(900_000) } else { 16_000_000 };
    });
    known(&mut system.memlock, |bytes| *bytes = *rng.pick(&[8 << 20, 64 << 30, u64::MAX]));
    true
}

/// Adds ordinary kernel messages and Xids that users' programs cause.
fn kernel(now: &mut Snapshot, rng: &mut Rng) -> bool {
    let gpu = now.gpus.data().and_then(|gpus| Some(*gpus.gpus.first()?.pci.known()?));
    let taken = now.taken;
    let Part::Read { data, .. } = &mut now.kernel_log else { return true };
    let mut seq = if rng.one_in(10) { u64::MAX - 100 } else { data.last_seq.unwrap_or(0) };
    let mut texts: Vec<String> = (0..rng.below(4)).map(|_| (*rng.pick(&CHATTER)).to_owned()).collect();
    let mut plain = true;
    if let Some(at) = gpu
        && rng.one_in(10)
    {
        let code = *rng.pick(&[13, 31, 43, 45]);
        texts.push(railgate_simulate::xid_text(code, at, Some(4711)));
        plain = false;
    }
    if rng.one_in(20) {
        data.overrun = true;
    }
    for text in texts {
        seq += 1;
        data.lines.push(KernelLine { seq, time: taken - rng.below(3_600_000), level: 4, text });
    }
    data.last_seq = Some(seq);
    plain
}

/// State of a node without earlier check runs, or with one, in this boot or another.
fn memory(earlier: &Snapshot, now: &Snapshot, profile: &Profile, rng: &mut Rng) -> (Memory, bool) {
    if rng.one_in(4) {
        return (Memory::default(), true);
    }
    let mut then = earlier.clone();
    let repaired = rng.one_in(4);
    if repaired {
        // Hardware was replaced since.
        then = railgate_simulate::simulated_node(profile, &[], "before-the-repair");
    }
    if !rng.one_in(5) {
        then.boot_id.clone_from(&now.boot_id);
    }
    // A part silent in two consecutive check runs is a fault, so silent parts are cleared: this node is healthy.
    let mut memory = Memory::default().after(&then, true);
    memory.silent.clear();
    if rng.one_in(3) {
        memory = memory.after(&then, false);
        memory.silent.clear();
    }
    (memory, !repaired)
}
