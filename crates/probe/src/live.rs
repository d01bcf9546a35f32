use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use railgate_child::Task;
use railgate_model::{
    Access, Extra, Fabric, FollowUp, Gpus, Host, KernelLog, KernelMark, Origin, Part, PartName, Pci,
    PciAddress, Plan, Reading, Snapshot,
};
use serde::{Deserialize, Serialize};

use crate::calls::{Calls, with_json};
use crate::extras::{Ask, Put, begin};
use crate::gpu_self_test::gpu_self_test;
use crate::optics::optics;
use crate::rdma_self_test::rdma_self_test;
use crate::statistics::read_statistics;
use crate::{
    SourceConfig, gpu_processes, gpu_self_test, gpu_watch, nvml, optics, rdma_self_test, readers, statistics,
    xid_watch,
};

/// What to look at, and how long that may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Slurm's name of the node where known, else the short host name.
    pub node: String,
    /// What to read.
    pub plan: Plan,
    /// Kernel log records after this mark; `None` reads all that is left.
    pub kernel_since: Option<KernelMark>,
    /// The file that [`Extra::TopologyFile`] reads.
    pub topology_file: PathBuf,
    /// For all parts together. A child that must be killed costs [`railgate_child::GRACE`] more.
    pub deadline: Duration,
}

impl Request {
    /// [`Plan::everything`], and the whole kernel log.
    pub fn everything(node: &str, deadline: Duration) -> Self {
        Request {
            node: node.to_owned(),
            plan: Plan::everything(),
            kernel_since: None,
            topology_file: PathBuf::new(),
            deadline,
        }
    }
}

/// Reads this machine, each part in a child of its own and all at the same time. Never fails as a whole:
/// each part carries its own outcome. The program must call [`crate::dispatch`] first in `main`.
pub fn live(source: &SourceConfig, request: &Request) -> Snapshot {
    let taken = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let boot_id = readers::boot_id_read(&source.proc).unwrap_or_default();
    let mut calls = Calls::new(request.deadline);
    let wants = |part| request.plan.parts.contains(&part);

    let gpus = wants(PartName::Gpus).then(|| {
        let library = source.nvml_library.clone();
        let proc = source.proc.clone();
        let nvlink_errors = request.plan.extras.contains(&Extra::NvLinkErrors);
        calls.add(GPUS, &GpusInput { library, proc, nvlink_errors })
    });
    let fabric = wants(PartName::Fabric).then(|| calls.add(FABRIC, source));
    let pci = (wants(PartName::Pci) || gpus.is_some()).then(|| calls.add(PCI, source));
    let kernel_log = wants(PartName::KernelLog).then(|| {
        let since = request.kernel_since.clone();
        calls.add(KERNEL_LOG, &KernelLogInput { kmsg: source.kmsg.clone(), since, boot_id: boot_id.clone() })
    });
    let host = wants(PartName::Host).then(|| calls.add(HOST, source));
    let mut ask = Ask { source, request, calls: &mut calls };
    let extras: Vec<Put> = request.plan.extras.iter().filter_map(|extra| begin(extra, &mut ask)).collect();

    let mut answers = calls.run();
    let mut snapshot = Snapshot {
        boot_id,
        taken: u64::try_from(taken.as_millis()).unwrap_or(u64::MAX),
        gpus: answers.part(gpus),
        fabric: answers.part(fabric),
        pci: answers.part(pci),
        kernel_log: answers.part(kernel_log),
        host: answers.part(host),
        ..Snapshot::unread(&request.node, Origin::Live)
    };
    for put in extras {
        put(&mut snapshot, &mut answers);
    }
    if let (Part::Read { data: gpus, .. }, Some(pci)) = (&mut snapshot.gpus, snapshot.pci.data()) {
        place_lost_gpus(gpus, pci);
    }
    snapshot
}

/// Makes readings of devices that the snapshot already lists, one after the other, and puts them into it. What belongs to
/// this machine alone is left out where the source is another one.
pub fn follow_up(source: &SourceConfig, readings: &[FollowUp], until: Instant, snapshot: &mut Snapshot) {
    for reading in readings {
        let left = until.saturating_duration_since(Instant::now());
        match reading {
            FollowUp::RdmaSelfTest { program, devices } => {
                snapshot.extras.rdma_self_test = Some(rdma_self_test(program, devices, left));
            }
            FollowUp::GpuSelfTest { program, gpus, length, shared } => {
                snapshot.extras.gpu_self_test = Some(gpu_self_test(program, gpus, (*length, *shared), left));
            }
            // A file tree has no network interfaces.
            FollowUp::Optics(_) | FollowUp::Statistics(_) if !source.is_system() => {}
            FollowUp::Optics(devices) => snapshot.extras.optics = Some(optics(devices, left)),
            FollowUp::Statistics(devices) => {
                if let Part::Read { data: fabric, .. } = &mut snapshot.fabric {
                    fabric.count_in(&read_statistics(devices, left));
                }
            }
        }
    }
}

/// The tasks of this crate, known to every program that dispatches.
pub(crate) const TASKS: &[Task] = &[
    Task::new(GPUS, gpus_task),
    Task::new(FABRIC, fabric_task),
    Task::new(PCI, pci_task),
    Task::new(KERNEL_LOG, kernel_log_task),
    Task::new(HOST, host_task),
    Task::new(rdma_self_test::TASK, rdma_self_test::task),
    Task::new(gpu_self_test::TASK, gpu_self_test::task),
    Task::new(optics::TASK, optics::task),
    gpu_watch::TASK,
    xid_watch::TASK,
    Task::new(statistics::TASK, statistics::task),
];

const GPUS: &str = "node-gpus";
const FABRIC: &str = "node-fabric";
const PCI: &str = "node-pci";
const KERNEL_LOG: &str = "node-kernel-log";
const HOST: &str = "node-host";

#[derive(Debug, Serialize, Deserialize)]
struct KernelLogInput {
    kmsg: PathBuf,
    since: Option<KernelMark>,
    boot_id: String,
}

#[derive(Serialize, Deserialize)]
struct GpusInput {
    library: PathBuf,
    proc: PathBuf,
    nvlink_errors: bool,
}

fn gpus_task(input: &[u8]) -> Result<Vec<u8>, String> {
    with_json(input, |input: GpusInput| {
        let mut gpus = nvml::gpus_read(&input.library, input.nvlink_errors)?;
        gpu_processes::join(&mut gpus, &input.proc);
        Ok(gpus)
    })
}

fn fabric_task(input: &[u8]) -> Result<Vec<u8>, String> {
    with_json::<_, Fabric>(input, |source: SourceConfig| {
        readers::fabric_read(&source.sysfs).map_err(|why| why.to_string())
    })
}

fn pci_task(input: &[u8]) -> Result<Vec<u8>, String> {
    with_json::<_, Pci>(input, |source: SourceConfig| {
        readers::pci_read(&source.sysfs).map_err(|why| why.to_string())
    })
}

fn kernel_log_task(input: &[u8]) -> Result<Vec<u8>, String> {
    with_json::<_, KernelLog>(input, |input: KernelLogInput| {
        readers::kernel_log_read(&input.kmsg, input.since.as_ref(), &input.boot_id)
            .map_err(|why| why.to_string())
    })
}

fn host_task(input: &[u8]) -> Result<Vec<u8>, String> {
    with_json::<_, Host>(input, |source: SourceConfig| Ok(readers::host_read(&source.proc, &source.sysfs)))
}

/// NVML orders GPUs by PCI address and does not tell a lost one's. As long as both sides count the same
/// GPUs, the address at the same rank is its own.
fn place_lost_gpus(gpus: &mut Gpus, pci: &Pci) {
    let mut places: Vec<PciAddress> =
        pci.devices.iter().filter(|device| device.is_nvidia_gpu()).map(|device| device.address).collect();
    places.sort_unstable();
    if places.len() != gpus.gpus.len() {
        return;
    }
    // Where a GPU that answers sits elsewhere than its rank says, the order is not what we think.
    let agrees = gpus.gpus.iter().zip(&places).all(|(gpu, place)| match &gpu.pci {
        Reading::Known(known) => known == place,
        Reading::Unsupported | Reading::Failed(_) => true,
    });
    if !agrees {
        return;
    }
    for (gpu, place) in gpus.gpus.iter_mut().zip(places) {
        if gpu.access != Access::Ok && gpu.pci.known().is_none() {
            gpu.pci = Reading::Known(place);
        }
    }
}
