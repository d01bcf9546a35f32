use railgate_model::{Gpu, MemoryUse, Part, PciAddress, Reading, RetiredPages, RowRemap, Snapshot};

use super::FaultKind;
use super::effect::say;
use super::xid_text::xid_text;

const HW_THERMAL: u64 = 0x40;
const POWER_BRAKE: u64 = 0x80;
const HW_SLOWDOWN: u64 = 0x8;
const TWENTY_MINUTES_NS: u64 = 20 * 60 * 1_000_000_000;

/// Applies faults that only affect the readings of one GPU.
pub(super) fn on_gpu(gpu: &mut Gpu, kind: FaultKind) {
    let details = &mut gpu.details;
    match kind {
        FaultKind::GpuEccContained => {
            gpu.ecc.volatile_uncorrected = Reading::Known(1);
            gpu.ecc.aggregate_uncorrected = Reading::Known(1);
        }
        FaultKind::GpuEccOff => {
            gpu.ecc_enabled = Reading::Known(false);
            details.ecc_pending = Reading::Known(false);
        }
        FaultKind::GpuEccModePending => details.ecc_pending = Reading::Known(false),
        FaultKind::GpuEccAggregate => gpu.ecc.aggregate_uncorrected = Reading::Known(600),
        FaultKind::GpuSramThreshold => {
            if let Reading::Known(sram) = &mut details.sram {
                sram.aggregate_uncorrected = 12;
                sram.over_threshold = true;
            }
        }
        FaultKind::GpuRemapMany => {
            gpu.row_remap = Reading::Known(RowRemap {
                correctable: 0,
                uncorrectable: 512,
                pending: false,
                failed: false,
            });
        }
        FaultKind::GpuPagesPending => {
            details.retired_pages =
                Reading::Known(RetiredPages { single_bit: 2, double_bit: 1, pending: true });
        }
        FaultKind::GpuPagesFull => {
            details.retired_pages =
                Reading::Known(RetiredPages { single_bit: 60, double_bit: 2, pending: false });
        }
        FaultKind::GpuThrottleThermal => throttle(gpu, HW_THERMAL),
        FaultKind::GpuThrottlePowerBrake => throttle(gpu, POWER_BRAKE),
        FaultKind::GpuThrottled => details.hw_thermal_ns = Reading::Known(TWENTY_MINUTES_NS),
        FaultKind::GpuHot => {
            details.margin_c = Reading::Known(-2);
            gpu.temperature_c = Reading::Known(89);
        }
        FaultKind::GpuMemoryHot => {
            details.memory_c = Reading::Known(99);
            details.memory_max_c = Reading::Known(95);
        }
        FaultKind::GpuPowerCapped => {
            gpu.power_limit_w = gpu.power_limit_w.clone().map(|watts| (watts / 2.0).round());
        }
        FaultKind::GpuPcieSlow => {
            gpu.pcie_gen = Reading::Known(1);
            details.utilization = Reading::Known(97);
            gpu.sm_clock_mhz = Reading::Known(1980);
            gpu.throttle_reasons = Reading::Known(0);
            details.throttle_reasons_later = Reading::Known(0);
        }
        FaultKind::GpuPcieReplays => gpu.pcie_replays = Reading::Known(100_000),
        FaultKind::GpuNvlinkErrors => {
            let errors = &mut details.nvlink_errors;
            let (replays, recoveries) = match errors.links.get_mut(7) {
                Some(link) => (&mut link.replays, &mut link.recoveries),
                None => (&mut errors.replays, &mut errors.recoveries),
            };
            (*replays, *recoveries) = (Reading::Known(5_000), Reading::Known(3));
        }
        FaultKind::GpuPersistenceOff => gpu.persistence = Reading::Known(false),
        FaultKind::GpuClocksLowered => {
            details.app_clock_default_mhz = Reading::Known(1980);
            details.app_clock_mhz = Reading::Known(1095);
        }
        FaultKind::GpuMigOn => gpu.mig = Reading::Known(true),
        FaultKind::GpuVbiosOther => gpu.vbios = Reading::Known("96.00.5E.00.01".to_owned()),
        FaultKind::GpuMemoryHeld => {
            if let Reading::Known(memory) = &mut gpu.memory {
                memory.used_mib += 30 * 1024;
            }
        }
        FaultKind::GpuMemoryShort => {
            gpu.memory = gpu
                .memory
                .clone()
                .map(|MemoryUse { total_mib, used_mib }| MemoryUse { total_mib: total_mib / 2, used_mib });
        }
        FaultKind::GpuForeign => gpu.name = Reading::Known("NVIDIA T400 4GB".to_owned()),
        _ => on_fabric(gpu, kind),
    }
}

fn on_fabric(gpu: &mut Gpu, kind: FaultKind) {
    let Reading::Known(fabric) = &mut gpu.details.fabric else { return };
    match kind {
        FaultKind::GpuFabricNotStarted => fabric.state = 1,
        FaultKind::GpuFabricFailed => fabric.status = 999,
        FaultKind::GpuFabricUnhealthy => {
            fabric.health = 2;
            // Degraded bandwidth (bits 0 and 1): 1 is yes.
            fabric.health_mask = 1;
        }
        FaultKind::GpuFabricOtherClique => fabric.clique = 7,
        _ => {}
    }
}

fn throttle(gpu: &mut Gpu, why: u64) {
    let reasons = Reading::Known(HW_SLOWDOWN | why);
    gpu.throttle_reasons = reasons.clone();
    gpu.details.throttle_reasons_later = reasons;
}

/// Applies faults that affect other readings as well.
pub(super) fn on_node(snapshot: &mut Snapshot, kind: FaultKind, index: u32) {
    match kind {
        FaultKind::GpuEccContained => {
            if let Some(at) = address(snapshot, index) {
                say(snapshot, xid_text(94, at, Some(4711)));
            }
        }
        // Subcode 33: the other end of the link went down.
        FaultKind::GpuNvlink5Fatal => {
            nvlink5(snapshot, index, 149, "NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000");
        }
        FaultKind::GpuNvlink5Nonfatal => {
            nvlink5(snapshot, index, 145, "RLW_SRC_TRACK   Nonfatal XC1 i0 Link 03 (0x040868e2 0x00000008");
        }
        FaultKind::GpuAcsOn => acs(snapshot, index),
        FaultKind::GpuPeersBlocked => {
            if let Part::Read { data, .. } = &mut snapshot.gpus {
                for gpu in &mut data.gpus {
                    let own = gpu.index == index;
                    for peer in gpu.details.peers.iter_mut().filter(|peer| own || peer.index == index) {
                        peer.status = Reading::Known(1);
                    }
                }
            }
        }
        FaultKind::GpuUnreadable => forget_peer(snapshot, index),
        FaultKind::DriverOther => {
            if let Part::Read { data, .. } = &mut snapshot.gpus {
                data.driver = Reading::Known("535.183.01".to_owned());
                data.nvml = Reading::Known("12.535.183.01".to_owned());
            }
            // The fabric manager comes from the same release.
            if let Some(version) = &mut snapshot.extras.fabric_manager {
                *version = Reading::Known("535.183.01".to_owned());
            }
        }
        FaultKind::FabricManagerOther => {
            snapshot.extras.fabric_manager = Some(Reading::Known("535.183.01".to_owned()));
        }
        FaultKind::LibraryOther => {
            if let Part::Read { data, .. } = &mut snapshot.gpus {
                data.nvml = Reading::Known("13.580.95.05".to_owned());
            }
        }
        FaultKind::SwitchFatal => {
            say(snapshot, sxid("22003, Fatal, Link 61 MINION HALT (First)"));
            say(snapshot, sxid("22003, Severity 1 Engine instance 61 Sub-engine instance 00"));
        }
        FaultKind::SwitchLink => say(snapshot, sxid("20034, Fatal, Link 30 LTSSM Fault Up")),
        FaultKind::SwitchHalt => {
            say(snapshot, sxid("26006, SOE HALTED"));
            say(snapshot, sxid("26006, SOE HALT data[0] = 0x              10"));
        }
        FaultKind::SwitchNonfatal => {
            say(snapshot, sxid("12028, Non-fatal, Link 32 egress non-posted PRIV error (First)"));
        }
        _ => {}
    }
}

/// A GPU that cannot be opened is not listed as a peer.
pub(super) fn forget_peer(snapshot: &mut Snapshot, index: u32) {
    if let Part::Read { data, .. } = &mut snapshot.gpus {
        for gpu in &mut data.gpus {
            gpu.details.peers.retain(|peer| peer.index != index);
        }
    }
}

fn sxid(what: &str) -> String {
    format!("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): {what}")
}

fn nvlink5(snapshot: &mut Snapshot, index: u32, code: u32, what: &str) {
    if let Some(PciAddress { domain, bus, device, .. }) = address(snapshot, index) {
        let more = "0x00000000 0x00000000 0x00000000 0x00000000)";
        say(snapshot, format!("NVRM: Xid (PCI:{domain:04x}:{bus:02x}:{device:02x}): {code}, {what} {more}"));
    }
}

/// Enables ACS redirection on the switch port above the GPU, not on a root port.
fn acs(snapshot: &mut Snapshot, index: u32) {
    let Some(at) = address(snapshot, index) else { return };
    let Part::Read { data, .. } = &mut snapshot.pci else { return };
    let above = data.devices.iter().find(|device| device.address == at);
    let port = above.and_then(|device| device.bridges.get(1..)?.last().copied());
    for device in data.devices.iter_mut().filter(|device| Some(device.address) == port) {
        device.acs = Reading::Known(0x1d);
    }
}

fn address(snapshot: &Snapshot, index: u32) -> Option<PciAddress> {
    let gpus = snapshot.gpus.data()?;
    gpus.gpus.iter().find(|gpu| gpu.index == index)?.pci.known().copied()
}
