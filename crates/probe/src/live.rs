use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use railgate_child::program::Run;
use railgate_child::{Call, Ended, Task, run_all};
use railgate_model::{
    Access, DriveHealth, Extra, Fabric, FollowUp, Gpus, Host, KernelLog, KernelMark, Mount, MountProbe,
    Origin, Part, PartName, Pci, PciAddress, Plan, Reading, SiteCheck, SiteOutcome, SiteRequest, Snapshot,
    TopologyFile,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::answer::{answered, millis};
use crate::optics::optics;
use crate::rdma_self_test::rdma_self_test;
use crate::statistics::read_statistics;
use crate::{
    SourceConfig, drive_log, fabric_manager, gpu_processes, gpu_watch, nvml, optics, rdma_self_test, readers,
    site_check, statistics, topology_file, xid_watch,
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
    let mut asked = Asked { calls: Vec::new(), deadline: request.deadline };
    let wants = |part| request.plan.parts.contains(&part);

    let gpus = wants(PartName::Gpus).then(|| {
        let library = source.nvml_library.clone();
        let proc = source.proc.clone();
        let nvlink_errors = request.plan.extras.contains(&Extra::NvLinkErrors);
        asked.add(GPUS, &GpusInput { library, proc, nvlink_errors })
    });
    let fabric = wants(PartName::Fabric).then(|| asked.add(FABRIC, source));
    let pci = (wants(PartName::Pci) || gpus.is_some()).then(|| asked.add(PCI, source));
    let kernel_log = wants(PartName::KernelLog).then(|| {
        let since = request.kernel_since.clone();
        asked.add(KERNEL_LOG, &KernelLogInput { kmsg: source.kmsg.clone(), since, boot_id: boot_id.clone() })
    });
    let host = wants(PartName::Host).then(|| asked.add(HOST, source));
    let extras: Vec<Put<'_>> =
        request.plan.extras.iter().filter_map(|extra| begin(extra, source, request, &mut asked)).collect();

    let deadline = request.deadline;
    let mut ended: Vec<Option<Ended>> = run_all(asked.calls).into_iter().map(Some).collect();
    let mut take = |index: Option<usize>| match index {
        Some(index) => ended.get_mut(index).and_then(Option::take),
        None => None,
    };
    let mut snapshot = Snapshot {
        boot_id,
        taken: u64::try_from(taken.as_millis()).unwrap_or(u64::MAX),
        gpus: part(take(gpus), deadline),
        fabric: part(take(fabric), deadline),
        pci: part(take(pci), deadline),
        kernel_log: part(take(kernel_log), deadline),
        host: part(take(host), deadline),
        ..Snapshot::unread(&request.node, Origin::Live)
    };
    for put in extras {
        put(&mut snapshot, &mut take);
    }
    if let (Part::Read { data: gpus, .. }, Some(pci)) = (&mut snapshot.gpus, snapshot.pci.data()) {
        place_lost_gpus(gpus, pci);
    }
    snapshot
}

/// Stores the answers of one extra reading; the argument beside the snapshot takes the answer of a call.
type Put<'a> = Box<dyn FnOnce(&mut Snapshot, &mut dyn FnMut(Option<usize>) -> Option<Ended>) + 'a>;

/// Adds the calls of an extra reading; `None` where there are none, or the part that it belongs to is not read.
fn begin<'a>(
    extra: &Extra,
    source: &SourceConfig,
    request: &'a Request,
    asked: &mut Asked,
) -> Option<Put<'a>> {
    let deadline = request.deadline;
    let host = request.plan.parts.contains(&PartName::Host);
    Some(match extra {
        // An input of the GPUs' own call.
        Extra::NvLinkErrors => return None,
        Extra::DriveLogs | Extra::Mounts(_) if !host => return None,
        Extra::DriveLogs => {
            let index = asked.add(DRIVE_LOGS, source);
            Box::new(move |snapshot, take| {
                let Part::Read { data: host, .. } = &mut snapshot.host else { return };
                put_drive_logs(host, &part(take(Some(index)), deadline));
            })
        }
        Extra::Mounts(paths) => {
            let indices: Vec<(PathBuf, usize)> =
                paths.iter().map(|path| (path.clone(), asked.mount(path, source))).collect();
            Box::new(move |snapshot, take| {
                let Part::Read { data: host, .. } = &mut snapshot.host else { return };
                let mount = |(path, index)| Mount { path, probe: probe(take(Some(index)), deadline) };
                host.mounts = indices.into_iter().map(mount).collect();
            })
        }
        Extra::SiteChecks(site) => {
            let listed = listed(site, asked, &request.node);
            Box::new(move |snapshot, take| {
                for (mut check, index) in listed {
                    if let Some(ended) = take(index) {
                        check.took_ms = millis(ended.took);
                        check.outcome = site_outcome(part(Some(ended), deadline));
                    }
                    snapshot.site_checks.push(check);
                }
            })
        }
        Extra::TopologyFile => {
            let path = &request.topology_file;
            let index = asked.add(TOPOLOGY_FILE, path);
            Box::new(move |snapshot, take| {
                let text = reading(part(take(Some(index)), deadline));
                snapshot.topology_file = Some(TopologyFile { path: path.clone(), text, said: None });
            })
        }
        Extra::FabricManager(program) => {
            let index = asked.fabric_manager(program);
            Box::new(move |snapshot, take| {
                snapshot.fabric_manager = Some(reading(part(take(Some(index)), deadline)));
            })
        }
    })
}

/// Makes readings of devices that the snapshot already lists, one after the other, and puts them into it. What belongs to
/// this machine alone is left out where the source is another one.
pub fn follow_up(source: &SourceConfig, readings: &[FollowUp], until: Instant, snapshot: &mut Snapshot) {
    for reading in readings {
        let left = until.saturating_duration_since(Instant::now());
        match reading {
            FollowUp::RdmaSelfTest { program, devices } => {
                snapshot.rdma_self_test = Some(rdma_self_test(program, devices, left));
            }
            // A file tree has no network interfaces.
            FollowUp::Optics(_) | FollowUp::Statistics(_) if !source.is_system() => {}
            FollowUp::Optics(devices) => snapshot.optics = Some(optics(devices, left)),
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
    Task::new(MOUNT, mount_task),
    Task::new(SITE_CHECK, site_check_task),
    Task::new(TOPOLOGY_FILE, topology_file_task),
    Task::new(rdma_self_test::TASK, rdma_self_test::task),
    Task::new(optics::TASK, optics::task),
    gpu_watch::TASK,
    xid_watch::TASK,
    Task::new(statistics::TASK, statistics::task),
    Task::new(FABRIC_MANAGER, fabric_manager_task),
    Task::new(DRIVE_LOGS, drive_logs_task),
];

const GPUS: &str = "node-gpus";
const FABRIC: &str = "node-fabric";
const PCI: &str = "node-pci";
const KERNEL_LOG: &str = "node-kernel-log";
const HOST: &str = "node-host";
const MOUNT: &str = "node-mount";
const SITE_CHECK: &str = "node-site-check";
const TOPOLOGY_FILE: &str = "node-topology-file";

const FABRIC_MANAGER: &str = "node-fabric-manager";
const DRIVE_LOGS: &str = "node-drive-logs";

/// What a child needs to end a site's check that does not end by itself.
const SITE_CHECK_GRACE: Duration = Duration::from_secs(3);

#[derive(Debug, Serialize, Deserialize)]
struct KernelLogInput {
    kmsg: PathBuf,
    since: Option<KernelMark>,
    boot_id: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct MountInput {
    path: PathBuf,
    proc: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
struct FabricManagerInput {
    program: PathBuf,
    deadline_ms: u64,
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

fn mount_task(input: &[u8]) -> Result<Vec<u8>, String> {
    with_json(input, |input: MountInput| Ok(readers::mount_probe(&input.path, &input.proc)))
}

fn site_check_task(input: &[u8]) -> Result<Vec<u8>, String> {
    with_json(input, |input: Run| Ok(site_check::run(&input)))
}

fn topology_file_task(input: &[u8]) -> Result<Vec<u8>, String> {
    with_json(input, |path: PathBuf| Ok(topology_file::topology_text(&path)))
}

fn fabric_manager_task(input: &[u8]) -> Result<Vec<u8>, String> {
    with_json(input, |input: FabricManagerInput| {
        Ok(fabric_manager::version(&input.program, input.deadline_ms))
    })
}

fn drive_logs_task(input: &[u8]) -> Result<Vec<u8>, String> {
    with_json(input, |source: SourceConfig| Ok(drive_log::drive_logs(&source)))
}

fn with_json<I: DeserializeOwned, O: Serialize>(
    input: &[u8],
    task: impl FnOnce(I) -> Result<O, String>,
) -> Result<Vec<u8>, String> {
    let input = serde_json::from_slice(input).map_err(|why| format!("input: {why}"))?;
    serde_json::to_vec(&task(input)?).map_err(|why| format!("reply: {why}"))
}

/// The calls so far; `add` gives the place of the answer.
struct Asked {
    calls: Vec<Call>,
    deadline: Duration,
}

impl Asked {
    fn add(&mut self, task: &str, input: &impl Serialize) -> usize {
        // A path that is no text is the one thing that cannot be written; the task then refuses its input.
        let input = serde_json::to_vec(input).unwrap_or_default();
        self.calls.push(Call { task: task.to_owned(), input, deadline: self.deadline });
        self.calls.len() - 1
    }

    /// The child gets all of the time and gives the program less of it, so that it can say how that ended.
    fn site_check(
        &mut self,
        request: &SiteRequest,
        check: &SiteCheck,
        deadline: Duration,
        node: &str,
    ) -> usize {
        let within = self.deadline.saturating_sub(SITE_CHECK_GRACE).max(self.deadline / 2);
        let mut environment = BTreeMap::new();
        let mut set = |name: &str, value: &str| environment.insert(name.to_owned(), value.to_owned());
        set("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        set("LC_ALL", "C");
        set("RAILGATE_NODE", node);
        set("RAILGATE_PHASE", request.phase.as_str());
        if let Some(job) = request.job {
            set("RAILGATE_JOB_ID", &job.to_string());
        }
        let deadline_ms = u64::try_from(deadline.min(within).as_millis()).unwrap_or(u64::MAX);
        self.add(
            SITE_CHECK,
            &Run { path: check.path.clone(), arguments: Vec::new(), environment, deadline_ms },
        )
    }

    /// As with a site's check, the program gets less time than its child.
    fn fabric_manager(&mut self, program: &Path) -> usize {
        let within = self.deadline.saturating_sub(SITE_CHECK_GRACE).max(self.deadline / 2);
        let deadline_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
        self.add(FABRIC_MANAGER, &FabricManagerInput { program: program.to_owned(), deadline_ms })
    }

    fn mount(&mut self, path: &Path, source: &SourceConfig) -> usize {
        self.add(MOUNT, &MountInput { path: path.to_owned(), proc: source.proc.clone() })
    }
}

/// The answer of a child whose whole reply is one reading.
fn reading<T: Clone>(part: Part<Reading<T>>) -> Reading<T> {
    match part.data() {
        Some(reading) => reading.clone(),
        None => Reading::Failed(part.missing().unwrap_or_default()),
    }
}

fn part<T: DeserializeOwned>(ended: Option<Ended>, deadline: Duration) -> Part<T> {
    ended.map_or(Part::Skipped, |ended| answered(ended, deadline))
}

/// The site's checks as they lie there, and where the answers of those come that are run.
fn listed(request: &SiteRequest, asked: &mut Asked, node: &str) -> Vec<(SiteCheck, Option<usize>)> {
    let mut checks = Vec::new();
    for check in site_check::site_checks(&request.directory) {
        let to_run = check.outcome == SiteOutcome::Said(Vec::new());
        let Some(deadline) = request.deadline_of(&check.name) else { continue };
        let index = to_run.then(|| asked.site_check(request, &check, deadline, node));
        checks.push((check, index));
    }
    checks
}

fn site_outcome(part: Part<SiteOutcome>) -> SiteOutcome {
    match part {
        Part::Read { data, .. } => data,
        Part::Skipped => SiteOutcome::NotRun("not requested".to_owned()),
        Part::Failed { why, .. } => SiteOutcome::Failed(why),
        Part::Silent { after_ms } => SiteOutcome::Silent { stuck: false, after_ms },
        Part::Stuck { after_ms } => SiteOutcome::Silent { stuck: true, after_ms },
    }
}

fn probe(ended: Option<Ended>, deadline: Duration) -> MountProbe {
    match part(ended, deadline) {
        Part::Read { data, .. } => data,
        Part::Skipped => MountProbe::Failed("not queried".to_owned()),
        Part::Failed { why, .. } => MountProbe::Failed(why),
        Part::Silent { after_ms } => MountProbe::Silent { stuck: false, after_ms },
        Part::Stuck { after_ms } => MountProbe::Silent { stuck: true, after_ms },
    }
}

/// Drives that the host's reader has found; if no child answered, none of them did.
fn put_drive_logs(host: &mut Host, logs: &Part<Vec<(String, Reading<DriveHealth>)>>) {
    let Reading::Known(drives) = &mut host.system.nvmes else { return };
    for drive in drives {
        let log = logs.data().map(|logs| logs.iter().find(|(name, _)| *name == drive.name));
        drive.health = match log {
            Some(log) => log.map_or(Reading::Unsupported, |(_, health)| health.clone()),
            None => Reading::Failed(logs.missing().unwrap_or_default()),
        };
    }
}

/// NVML orders GPUs by PCI address and does not tell a lost one's. As long as both sides count the same
/// GPUs, the address at the same rank is its own.
fn place_lost_gpus(gpus: &mut Gpus, pci: &Pci) {
    const NVIDIA: u32 = 0x10de;
    // VGA and 3D controllers.
    let is_gpu = |class: u32| matches!(class >> 8, 0x0300 | 0x0302);
    let mut places: Vec<PciAddress> = pci
        .devices
        .iter()
        .filter(|device| device.vendor == NVIDIA && is_gpu(device.class))
        .map(|device| device.address)
        .collect();
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
