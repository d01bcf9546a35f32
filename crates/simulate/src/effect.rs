use railgate_model::{
    Access, Fabric, ForgedLine, Gpu, GpuProcess, Gpus, Hca, KernelLine, MountProbe, Part, PciAddress,
    PhysState, Port, PortState, Reading, RecoveryAction, RowRemap, Snapshot, XidEvent,
};

use super::fabric_faults;
use super::gpu_effect;
use super::gpu_self_test;
use super::host_faults::{self, HostFault};
use super::machine::rate_text;
use super::xid_text::xid_text;
use super::{Fault, FaultKind};

const LOST: &str = "nvmlDeviceGetHandleByIndex_v2: GPU is lost (15)";
const DEADLINE_MS: f64 = 10_000.0;

/// Applies the faults. Those that remove a part come last, so that every index is that of the healthy machine.
pub(super) fn apply(snapshot: &mut Snapshot, faults: &[Fault]) {
    let mut ordered: Vec<&Fault> = faults.iter().collect();
    ordered.sort_by_key(|fault| match fault.kind {
        FaultKind::GpuMissing | FaultKind::IbMissing => (1, u32::MAX - fault.index),
        FaultKind::NvmlMissing
        | FaultKind::NvmlSlow
        | FaultKind::NvmlSilent
        | FaultKind::NvmlStuck
        | FaultKind::Host(HostFault::HostSilent | HostFault::HostStuck)
        | FaultKind::GpuXidByNvml
        | FaultKind::KmsgUnreadable => (2, 0),
        _ => (0, 0),
    });
    for fault in ordered {
        one(snapshot, *fault);
    }
}

fn one(snapshot: &mut Snapshot, Fault { kind, index }: Fault) {
    match kind {
        FaultKind::GpuLost => lose(snapshot, index),
        FaultKind::GpuMissing => remove(snapshot, index),
        FaultKind::GpuXid(code) => xid(snapshot, index, code),
        FaultKind::NvmlMissing => {
            let why =
                "libnvidia-ml.so.1: cannot open shared object file: No such file or directory".to_owned();
            snapshot.gpus = Part::Failed { why, took_ms: 2.0 };
        }
        FaultKind::NvmlSlow => {
            if let Part::Read { took_ms, .. } = &mut snapshot.gpus {
                *took_ms = 8_000.0;
            }
        }
        FaultKind::NvmlSilent => snapshot.gpus = Part::Silent { after_ms: DEADLINE_MS },
        FaultKind::NvmlStuck => snapshot.gpus = Part::Stuck { after_ms: DEADLINE_MS },
        FaultKind::KmsgUnreadable => no_log(snapshot),
        FaultKind::KmsgForged => forge(snapshot),
        FaultKind::GpuXidByNvml => {
            no_log(snapshot);
            let at = gpu(snapshot, index).and_then(|gpu| gpu.pci.known().copied());
            let time = snapshot.taken.saturating_sub(60_000);
            let text = "Xid 48, reported by NVML".to_owned();
            let event = XidEvent { code: 48, gpu: at, pid: None, time, seq: 0, text };
            snapshot.nvml_xids.get_or_insert_default().push(event);
        }
        FaultKind::GpuPcieNarrow => narrow(snapshot, index),
        FaultKind::IbMissing => {
            if let Some(fabric) = fabric(snapshot)
                && let Ok(place) = usize::try_from(index)
                && place < fabric.hcas.len()
            {
                fabric.hcas.remove(place);
            }
        }
        FaultKind::IbRenamed => rename(snapshot),
        FaultKind::Fabric(fault) => fabric_faults::apply(snapshot, fault, index),
        FaultKind::GpuSelfTest(fault) => gpu_self_test::apply(snapshot, fault, index),
        FaultKind::Host(fault) => {
            if let Some(text) = host_faults::apply(snapshot, fault) {
                say(snapshot, text);
            }
        }
        FaultKind::MountMissing => mount(snapshot, index, |_| MountProbe::NotMounted),
        FaultKind::MountStale => {
            mount(snapshot, index, |_| MountProbe::Failed("Stale file handle".to_owned()))
        }
        FaultKind::MountHang => {
            mount(snapshot, index, |_| MountProbe::Silent { stuck: false, after_ms: DEADLINE_MS });
        }
        FaultKind::MountReadOnly => mount(snapshot, index, |probe| match probe {
            MountProbe::Answered { fs_type, source, took_ms, .. } => {
                MountProbe::Answered { fs_type, source, writable: false, took_ms }
            }
            other => other,
        }),
        _ => {
            gpu_effect::on_node(snapshot, kind, index);
            if let Some(gpu) = gpu(snapshot, index) {
                on_gpu(gpu, kind);
                gpu_effect::on_gpu(gpu, kind);
            }
            if let Some(port) = port(snapshot, index) {
                on_port(port, kind);
            }
        }
    }
}

fn on_gpu(gpu: &mut Gpu, kind: FaultKind) {
    match kind {
        FaultKind::GpuUnreadable => {
            let why = "nvmlDeviceGetHandleByIndex_v2: unknown error (999)".to_owned();
            silence(gpu, &why);
            gpu.access = Access::Failed(why);
        }
        FaultKind::GpuResetRequired => {
            gpu.access = Access::ResetRequired("nvmlDeviceGetMemoryInfo_v2: reset required (16)".to_owned());
        }
        FaultKind::GpuRecoveryAction => gpu.recovery_action = Reading::Known(RecoveryAction::GpuReset),
        FaultKind::GpuEccUncorrected => {
            gpu.ecc.volatile_uncorrected = Reading::Known(2);
            gpu.ecc.aggregate_uncorrected = Reading::Known(2);
        }
        FaultKind::GpuEccCorrected => gpu.ecc.volatile_corrected = Reading::Known(60_000_000),
        FaultKind::GpuRemapPending => {
            gpu.row_remap =
                Reading::Known(RowRemap { correctable: 0, uncorrectable: 1, pending: true, failed: false });
        }
        FaultKind::GpuRemapFailed => {
            gpu.row_remap =
                Reading::Known(RowRemap { correctable: 0, uncorrectable: 8, pending: false, failed: true });
        }
        FaultKind::GpuNvlinkDown => {
            if let Some(link) = gpu.nvlinks.last_mut() {
                link.up = Reading::Known(false);
            }
        }
        FaultKind::GpuProcessLeftover => hold(gpu, false),
        FaultKind::GpuProcessExiting => hold(gpu, true),
        _ => {}
    }
}

fn on_port(port: &mut Port, kind: FaultKind) {
    let mut state = |state, phys_state| {
        port.state = Reading::Known(state);
        port.phys_state = Reading::Known(phys_state);
    };
    match kind {
        FaultKind::IbPortDown => state(PortState::Down, PhysState::Disabled),
        FaultKind::IbPortPolling => state(PortState::Down, PhysState::Polling),
        FaultKind::IbPortInit => {
            state(PortState::Init, PhysState::LinkUp);
            port.sm_lid = Reading::Known(0);
        }
        FaultKind::IbRateLow => {
            if let Reading::Known(rate) = &mut port.rate_gbps {
                *rate /= 2.0;
                port.rate_text = Reading::Known(rate_text(*rate));
            }
        }
        FaultKind::IbLinkFlapping => {
            port.counters.insert("link_downed".to_owned(), Reading::Known(5));
        }
        FaultKind::IbSymbolErrors => {
            port.counters.insert("symbol_error".to_owned(), Reading::Known(50_000));
        }
        _ => {}
    }
}

fn hold(gpu: &mut Gpu, exiting: bool) {
    let process = GpuProcess {
        pid: 424_242,
        used_mib: Reading::Known(20_480),
        name: Reading::Known("python3".to_owned()),
        uid: Reading::Known(1000),
        exiting,
        slurm_job: Reading::Known(None),
    };
    if let Reading::Known(processes) = &mut gpu.processes {
        processes.push(process);
    }
    if let Reading::Known(memory) = &mut gpu.memory {
        memory.used_mib += 20_480;
    }
}

fn no_log(snapshot: &mut Snapshot) {
    let why = "/dev/kmsg: Operation not permitted (os error 1)".to_owned();
    snapshot.kernel_log = Part::Failed { why, took_ms: 1.0 };
}

/// A lost GPU does not respond, its link reads as all ones, and the driver logs Xid 79.
fn lose(snapshot: &mut Snapshot, index: u32) {
    let Some(gpu) = gpu(snapshot, index) else { return };
    silence(gpu, LOST);
    gpu.access = Access::Lost(LOST.to_owned());
    let address = gpu.pci.known().copied();
    gpu_effect::forget_peer(snapshot, index);
    let Some(address) = address else { return };
    if let Part::Read { data, .. } = &mut snapshot.pci {
        for device in data.devices.iter_mut().filter(|device| device.address == address) {
            device.link = Reading::Failed("current_link_speed: Unknown".to_owned());
        }
    }
    say(snapshot, xid_text(79, address, None));
    say(snapshot, format!("NVRM: GPU {address}: GPU has fallen off the bus."));
}

fn silence(gpu: &mut Gpu, why: &str) {
    let silent = Gpu::silent(gpu.index, gpu.access.clone(), why);
    // The live reader takes the address from the PCI tree.
    *gpu = Gpu { pci: gpu.pci.clone(), ..silent };
}

/// Removes the GPU from NVML and from the bus; the GPUs behind it move up.
fn remove(snapshot: &mut Snapshot, index: u32) {
    let Part::Read { data: Gpus { count, gpus, .. }, .. } = &mut snapshot.gpus else { return };
    let Some(place) = gpus.iter().position(|gpu| gpu.index == index) else { return };
    let gone = gpus.remove(place);
    for gpu in gpus.iter_mut() {
        gpu.details.peers.retain(|peer| peer.index != index);
        for peer in gpu.details.peers.iter_mut().filter(|peer| peer.index > index) {
            peer.index -= 1;
        }
    }
    for gpu in gpus.iter_mut().skip(place) {
        gpu.index -= 1;
        gpu.minor = gpu.minor.clone().map(|minor| minor.saturating_sub(1));
    }
    if let Reading::Known(count) = count {
        *count = count.saturating_sub(1);
    }
    let (Some(address), Part::Read { data, .. }) = (gone.pci.known(), &mut snapshot.pci) else { return };
    // Bridges that only this GPU used are removed with it.
    data.devices.retain(|device| device.address != *address);
    let needed: Vec<PciAddress> = data
        .devices
        .iter()
        .filter(|device| device.class >> 16 != 0x06)
        .flat_map(|device| device.bridges.clone())
        .collect();
    data.devices.retain(|device| device.class >> 8 != 0x0604 || needed.contains(&device.address));
}

fn narrow(snapshot: &mut Snapshot, index: u32) {
    let Some(gpu) = gpu(snapshot, index) else { return };
    gpu.pcie_width = gpu.pcie_width.clone().map(|width| width / 2);
    let address = gpu.pci.known().copied();
    if let Part::Read { data, .. } = &mut snapshot.pci {
        for device in data.devices.iter_mut().filter(|device| Some(device.address) == address) {
            if let Reading::Known(link) = &mut device.link {
                link.width = link.max_width / 2;
            }
        }
    }
}

/// Renames devices as after another probing order: `mlx5_0` becomes `mlx5_4`, and so on.
fn rename(snapshot: &mut Snapshot) {
    let Some(fabric) = fabric(snapshot) else { return };
    for hca in &mut fabric.hcas {
        if let Some(number) = hca.name.strip_prefix("mlx5_").and_then(|rest| rest.parse::<u32>().ok()) {
            hca.name = format!("mlx5_{}", number + 4);
        }
    }
}

/// Adds the driver's record, and the NVML reading of such a fault with a driver that has field 230.
fn xid(snapshot: &mut Snapshot, index: u32, code: u32) {
    let Some(gpu) = gpu(snapshot, index) else { return };
    match code {
        48 | 94 | 95 | 140 | 171 | 172 => {
            for count in [&mut gpu.ecc.volatile_uncorrected, &mut gpu.ecc.aggregate_uncorrected] {
                *count = count.clone().map(|errors| errors + 1);
            }
        }
        46 | 62 | 64 | 110 | 119 | 120 | 143 | 151 | 156 | 158 | 167..=169 | 173 => {
            gpu.recovery_action = gpu.recovery_action.clone().map(|_| RecoveryAction::GpuReset);
        }
        _ => {}
    }
    if let Some(address) = gpu.pci.known().copied() {
        say(snapshot, xid_text(code, address, (code != 79).then_some(4711)));
    }
}

/// Adds a crash record of x86, which has the name of the process and of its executable.
fn forge(snapshot: &mut Snapshot) {
    let time = snapshot.taken.saturating_sub(60_000);
    if let Part::Read { data, .. } = &mut snapshot.kernel_log {
        let seq = data.last_seq.map_or(0, |seq| seq + 1);
        data.last_seq = Some(seq);
        let text =
            "NVRM: GPU 1:0:0[4711]: segfault at 0 ip 0000000000401136 sp 00007ffd5c1e0000 error 4 in fallen \
                    off the bus[401000+1000]"
                .to_owned();
        data.forged.push(ForgedLine { seq, time, pid: Some(4711), uid: None, text });
    }
}

/// Adds a line to the kernel log, one minute before the check run.
pub(super) fn say(snapshot: &mut Snapshot, text: String) {
    let time = snapshot.taken.saturating_sub(60_000);
    if let Part::Read { data, .. } = &mut snapshot.kernel_log {
        let seq = data.last_seq.map_or(0, |seq| seq + 1);
        data.last_seq = Some(seq);
        data.lines.push(KernelLine { seq, time, level: 3, text });
    }
}

fn mount(snapshot: &mut Snapshot, index: u32, change: impl FnOnce(MountProbe) -> MountProbe) {
    if let Part::Read { data, .. } = &mut snapshot.host
        && let Some(mount) = usize::try_from(index).ok().and_then(|index| data.mounts.get_mut(index))
    {
        mount.probe = change(mount.probe.clone());
    }
}

fn gpu(snapshot: &mut Snapshot, index: u32) -> Option<&mut Gpu> {
    match &mut snapshot.gpus {
        Part::Read { data, .. } => data.gpus.iter_mut().find(|gpu| gpu.index == index),
        _ => None,
    }
}

fn fabric(snapshot: &mut Snapshot) -> Option<&mut Fabric> {
    match &mut snapshot.fabric {
        Part::Read { data, .. } => Some(data),
        _ => None,
    }
}

fn port(snapshot: &mut Snapshot, index: u32) -> Option<&mut Port> {
    let hca: &mut Hca = fabric(snapshot)?.hcas.get_mut(usize::try_from(index).ok()?)?;
    hca.ports.first_mut()
}
