use std::collections::BTreeSet;
use std::time::Duration;

use railgate_model::{
    Access, Allocation, ComputePorts, Fabric, Gpu, GpuId, GpuInventory, Hca, JobGpus, KnownGpu, Part,
    PartName, PciAddress, Phase, Port, PortState, Profile, Reading, Snapshot, XidEvent, compute_ports,
};

use crate::near::{Near, nearest};
use crate::plan::runs;
use crate::seen::known_hcas;
use crate::{CHECKS, GateConfig, Seen};

/// What is judged: the node as seen, narrowed to what the job got.
///
/// On a shared node only the job's GPUs and the ports nearest to them are judged. Without a job, and where
/// the job holds every GPU, the whole node is.
#[derive(Debug)]
pub(crate) struct Scene<'a> {
    pub(crate) now: &'a Snapshot,
    pub(crate) seen: Seen<'a>,
    /// The parts that the running checks read and that matter on this type of machine.
    pub(crate) needed: Vec<PartName>,
    /// The policy's required parts.
    pub(crate) required: &'a [PartName],
    /// Driver events since the kernel log was last settled.
    pub(crate) xids: Vec<XidEvent>,
    running: Vec<&'static str>,
    held: JobGpus,
    inventory: GpuInventory,
    boot_grace: Duration,
}

/// Whose GPU an address is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// To be judged; the text names it in findings: the index, or the address where no index is known.
    Judged(String),
    /// Another job's.
    Other,
    /// Not known.
    Unclear(String),
}

impl<'a> Scene<'a> {
    pub(crate) fn new(config: &'a GateConfig, seen: &Seen<'a>) -> Scene<'a> {
        let seen = *seen;
        let now = seen.now;
        let running: Vec<_> =
            CHECKS.iter().filter(|check| runs(check, config, seen.phase, seen.job)).collect();
        let mut needed: Vec<PartName> = running.iter().flat_map(|check| check.parts).copied().collect();
        needed.sort_unstable();
        needed.dedup();
        let gpus = seen.profile.and_then(|profile| profile.gpus.count);
        let hcas = seen.profile.and_then(|profile| profile.fabric.hcas);
        needed.retain(|part| match part {
            PartName::Gpus => gpus != Some(0),
            // Where nothing says how many HCAs there are, there is nothing to judge in a fabric; that reading it hangs
            // is seen all the same.
            PartName::Fabric => match hcas {
                Some(hcas) => hcas > 0,
                None => matches!(now.fabric, Part::Silent { .. } | Part::Stuck { .. }),
            },
            PartName::Pci | PartName::KernelLog | PartName::Host => true,
        });
        Scene {
            now,
            seen,
            needed,
            required: &config.policy(seen.phase).required,
            xids: now.xids(),
            running: running.iter().map(|check| check.id).collect(),
            held: held(&seen),
            inventory: inventory(&seen),
            boot_grace: config.checks.ib_port.boot_grace,
        }
    }

    /// Whether a check judges in this scene; another one then need not say the same.
    pub(crate) fn runs(&self, check: &str) -> bool {
        self.running.contains(&check)
    }

    pub(crate) fn phase(&self) -> Phase {
        self.seen.phase
    }

    /// The node was booted so recently that its fabric may not be up yet.
    pub(crate) fn just_booted(&self) -> bool {
        let booted = self.now.host.data().and_then(|host| host.boot_time.known());
        let up = booted.and_then(|booted| (self.now.taken / 1000).checked_sub(*booted));
        up.is_some_and(|up| up < self.boot_grace.as_secs())
    }

    /// The Xids come from NVML's events, since the kernel log could not be read.
    pub(crate) fn reported_by_nvml(&self) -> bool {
        self.now.kernel_log.data().is_none()
    }

    /// Whether this is a virtual machine, if known.
    pub(crate) fn virtualised(&self) -> Option<bool> {
        self.now.host.data().and_then(|host| host.virtualised.known().copied())
    }

    pub(crate) fn profile(&self) -> Option<&'a Profile> {
        self.seen.profile
    }

    /// The whole node is judged: there is no job, or it holds every GPU.
    pub(crate) fn whole(&self) -> bool {
        matches!(self.held, JobGpus::All { .. })
    }

    /// The job's GPUs that NVML does not list any more, as earlier snapshots knew them.
    pub(crate) fn missing(&self) -> &[KnownGpu] {
        self.held.missing()
    }

    /// Why it is not known which GPUs the job got.
    pub(crate) fn unclear(&self) -> Option<&str> {
        match &self.held {
            JobGpus::Unclear(why) => Some(why),
            JobGpus::None | JobGpus::All { .. } | JobGpus::These { .. } => None,
        }
    }

    /// The job (or, without one, the case) is concerned with this GPU.
    pub(crate) fn judges(&self, gpu: &Gpu) -> bool {
        self.held.has(gpu.index) != Some(false)
    }

    /// Every GPU of the node that NVML lists.
    pub(crate) fn all_gpus(&self) -> &'a [Gpu] {
        self.now.gpus.data().map_or(&[], |gpus| gpus.gpus.as_slice())
    }

    /// The GPUs to be judged that answer. The others are the business of `gpu-lost`.
    pub(crate) fn answering(&self) -> impl Iterator<Item = &'a Gpu> {
        self.all_gpus().iter().filter(|gpu| self.judges(gpu) && gpu.access == Access::Ok)
    }

    /// The baseline of the GPUs: the node before the job, in the same boot.
    fn gpus_before(&self) -> Option<&'a [Gpu]> {
        let before = self.seen.before?;
        let same_boot = !before.boot_id.is_empty() && before.boot_id == self.now.boot_id;
        before.gpus.data().filter(|_| same_boot).map(|gpus| gpus.gpus.as_slice())
    }

    /// How many GPUs the baseline has.
    pub(crate) fn before_count(&self) -> Option<u32> {
        self.gpus_before().and_then(|gpus| u32::try_from(gpus.len()).ok())
    }

    /// The baseline of a GPU: itself before the job, in the same boot.
    pub(crate) fn before(&self, gpu: &Gpu) -> Option<&'a Gpu> {
        let gpus = self.gpus_before()?;
        match gpu.uuid.known() {
            Some(uuid) => gpus.iter().find(|old| old.uuid.known() == Some(uuid)),
            None => {
                let pci = gpu.pci.known()?;
                gpus.iter().find(|old| old.pci.known() == Some(pci))
            }
        }
    }

    /// What the node had at the job's start, or when it was last found fit.
    pub(crate) fn inventory(&self) -> Vec<KnownGpu> {
        self.inventory.most().to_vec()
    }

    /// The GPU with this number of Slurm's, where NVML does not list it.
    fn counted(&self, index: u32) -> Option<&KnownGpu> {
        self.inventory.counted().iter().find(|known| known.index == index)
    }

    /// Whose GPU the kernel log speaks of.
    pub(crate) fn whose(&self, at: Option<PciAddress>) -> Whose {
        let Some(at) = at else {
            return if self.whole() { Whose::Judged(String::new()) } else { Whose::Unclear(String::new()) };
        };
        let gpus = self.all_gpus();
        if let Some(gpu) = gpus.iter().find(|gpu| gpu.pci.known().is_some_and(|pci| same_gpu(*pci, at))) {
            return if self.judges(gpu) { Whose::Judged(gpu.index.to_string()) } else { Whose::Other };
        }
        let inventory = self.inventory();
        if let Some(known) = inventory.iter().find(|known| known.pci.is_some_and(|pci| same_gpu(pci, at))) {
            return match &self.held {
                JobGpus::None | JobGpus::All { .. } => Whose::Judged(known.index.to_string()),
                JobGpus::Unclear(_) => Whose::Unclear(known.index.to_string()),
                JobGpus::These { present, missing } => {
                    // An index of an earlier boot is no number of Slurm's.
                    if gpus.is_empty() && self.counted(known.index) != Some(known) {
                        return Whose::Unclear(known.index.to_string());
                    }
                    let unread = gpus.is_empty() && present.contains(&known.index);
                    if unread || missing.contains(known) {
                        Whose::Judged(known.index.to_string())
                    } else {
                        Whose::Other
                    }
                }
            };
        }
        match &self.held {
            JobGpus::None | JobGpus::All { .. } if self.all_accounted_for(&inventory) => {
                Whose::Unclear(at.to_string())
            }
            JobGpus::None | JobGpus::All { .. } => Whose::Judged(at.to_string()),
            JobGpus::Unclear(_) => Whose::Unclear(at.to_string()),
            JobGpus::These { present, missing } => {
                let placed =
                    |index: &u32| gpus.iter().any(|gpu| gpu.index == *index && gpu.pci.known().is_some());
                let all_placed =
                    present.iter().all(placed) && missing.iter().all(|known| known.pci.is_some());
                if all_placed { Whose::Other } else { Whose::Unclear(at.to_string()) }
            }
        }
    }

    /// Every GPU that this node should have, or had, is listed: an address that is none of theirs is another machine's as far
    /// as anybody can say. The kernel's log is that of the host, and a container is lent some of its GPUs.
    fn all_accounted_for(&self, inventory: &[KnownGpu]) -> bool {
        let Some(gpus) = self.now.gpus.data() else { return false };
        let expected = self.profile().and_then(|profile| profile.gpus.count).map(|count| count as usize);
        let known = expected.unwrap_or(inventory.len());
        !gpus.gpus.is_empty()
            && gpus.gpus.len() >= known
            && gpus.gpus.iter().all(|gpu| gpu.pci.known().is_some())
    }

    /// The profile leaves this device out of the compute fabric.
    pub(crate) fn excluded(&self, name: &str) -> bool {
        self.profile().is_some_and(|profile| profile.fabric.exclusion(name).is_some())
    }

    /// The compute ports of the node, as the rail map has them. A port that looks like storage counts where fewer ports than the
    /// profile expects would remain: its fault may make it look so.
    pub(crate) fn compute_ports(&self) -> Vec<(&'a Hca, &'a Port)> {
        let mut ports = self.sorted_ports().with_faulty();
        let hcas = self.now.fabric.data().map_or(&[][..], |fabric| &fabric.hcas);
        // In the order of the snapshot.
        let at = |hca: &Hca| hcas.iter().position(|other| other.name == hca.name);
        ports.sort_by_key(|(hca, port)| (at(hca), port.number));
        ports
    }

    /// How many compute ports a healthy node of this type has; `None` if the profile has no number.
    pub(crate) fn expected_ports(&self) -> Option<usize> {
        self.sorted_ports().expected
    }

    fn sorted_ports(&self) -> ComputePorts<'a> {
        let unknown = Profile::generic();
        compute_ports(self.now, self.profile().unwrap_or(&unknown))
    }

    /// The compute ports that this check run judges: all of them, or on a shared node those nearest to
    /// the job's GPUs.
    pub(crate) fn judged_ports(&self) -> Vec<JudgedPort<'a>> {
        let Some(fabric) = self.now.fabric.data() else { return Vec::new() };
        let expected = self.expected_ports();
        if expected == Some(0) {
            return Vec::new();
        }
        let all = self.compute_ports();
        let near = if self.whole() { None } else { self.nearest_hcas(fabric) };
        // Whether the job is concerned with a device, and whether that is certain.
        let concern = |name: &str| match &near {
            None => Some(self.whole()),
            Some(near) if near.names.contains(name) => Some(true),
            Some(near) if near.unclear.contains(name) => Some(false),
            Some(_) => None,
        };
        let wanted = expected.unwrap_or(0);
        let active = all.iter().filter(|(_, port)| port.state == Reading::Known(PortState::Active)).count();
        // A second port without a cable is no fault while the expected number of ports is active.
        let by_profile = wanted > 0 && (all.len() <= wanted || active < wanted);
        all.into_iter()
            .filter_map(|(hca, port)| {
                let certain = concern(&hca.name)?;
                Some(JudgedPort { hca, port, certain, by_profile, was_active: self.was_active(hca, port) })
            })
            .collect()
    }

    /// The port before the job, in the same boot, and how long ago that was.
    pub(crate) fn port_before(&self, judged: &JudgedPort<'_>) -> Option<(&'a Port, Duration)> {
        let before = self.seen.before?;
        let same_boot = !before.boot_id.is_empty() && before.boot_id == self.now.boot_id;
        let fabric = before.fabric.data().filter(|_| same_boot)?;
        let same = |old: &&Hca| old.name == judged.hca.name && old.node_guid == judged.hca.node_guid;
        let port =
            fabric.hcas.iter().find(same)?.ports.iter().find(|old| old.number == judged.port.number)?;
        Some((port, Duration::from_millis(self.now.taken.checked_sub(before.taken)?)))
    }

    /// The devices of the ports to be judged.
    pub(crate) fn judged_hcas(&self) -> Vec<&'a Hca> {
        let mut hcas: Vec<&Hca> = self.judged_ports().iter().map(|judged| judged.hca).collect();
        hcas.dedup_by_key(|hca| hca.name.clone());
        hcas
    }

    /// Those that have a network interface, each with its first: device and interface. `None` where there are none.
    pub(crate) fn judged_interfaces(&self) -> Option<Vec<(String, String)>> {
        let of = |hca: &Hca| Some((hca.name.clone(), hca.netdevs.first()?.clone()));
        let devices: Vec<_> = self.judged_hcas().into_iter().filter_map(of).collect();
        (!devices.is_empty()).then_some(devices)
    }

    fn was_active(&self, hca: &Hca, port: &Port) -> bool {
        let before = self.seen.before.filter(|before| before.boot_id == self.now.boot_id);
        before.and_then(|before| before.fabric.data()).is_some_and(|fabric| {
            fabric.hcas.iter().filter(|old| old.name == hca.name).any(|old| {
                old.ports
                    .iter()
                    .any(|old| old.number == port.number && old.state == Reading::Known(PortState::Active))
            })
        })
    }

    /// Names of the devices nearest to the job's GPUs, those of the last clean check run that are gone included;
    /// `None` where that cannot be told. Only asked where the node is shared.
    pub(crate) fn nearest_hcas(&self, fabric: &Fabric) -> Option<Near> {
        let JobGpus::These { present, missing } = &self.held else { return None };
        let mut hcas = known_hcas(fabric);
        let gone =
            self.seen.memory.hcas.iter().filter(|old| fabric.hcas.iter().all(|hca| hca.name != old.name));
        // Where devices were renamed, the old names are not gone devices.
        let gone: Vec<_> = gone.filter(|old| hcas.iter().all(|hca| hca.pci != old.pci)).cloned().collect();
        hcas.extend(gone);
        // A storage card beside a GPU must not hide its rail.
        let compute: BTreeSet<&str> = self.compute_ports().iter().map(|(hca, _)| hca.name.as_str()).collect();
        hcas.retain(|hca| {
            let there = fabric.hcas.iter().any(|there| there.name == hca.name);
            compute.contains(hca.name.as_str()) || !there && !self.excluded(&hca.name)
        });
        let pci = self.now.pci.data();
        let mut near = Near::default();
        for index in present {
            let listed = self.all_gpus().iter().find(|gpu| gpu.index == *index);
            let at = match listed {
                Some(gpu) => gpu.pci.known().copied(),
                None => self.counted(*index).and_then(|known| known.pci),
            };
            nearest(&mut near, *index, at, &hcas, pci, self.profile())?;
        }
        for known in missing {
            nearest(&mut near, known.index, known.pci, &hcas, pci, self.profile())?;
        }
        Some(near)
    }
}

/// A port to be judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JudgedPort<'a> {
    pub(crate) hca: &'a Hca,
    pub(crate) port: &'a Port,
    /// It is certain that the job is concerned with it.
    pub(crate) certain: bool,
    /// The profile says that this port is up on a healthy machine.
    pub(crate) by_profile: bool,
    /// It was active before the job.
    pub(crate) was_active: bool,
}

impl JudgedPort<'_> {
    /// `mlx5_0`, or `mlx5_0:2` for a further port.
    pub(crate) fn name(&self) -> String {
        if self.port.number == 1 {
            self.hca.name.clone()
        } else {
            format!("{}:{}", self.hca.name, self.port.number)
        }
    }

    /// A healthy node has it active.
    pub(crate) fn expected(&self) -> bool {
        self.by_profile || self.was_active
    }
}

/// Xid lines leave the function out.
fn same_gpu(a: PciAddress, b: PciAddress) -> bool {
    (a.domain, a.bus, a.device) == (b.domain, b.bus, b.device)
}

fn inventory(seen: &Seen<'_>) -> GpuInventory {
    let before = seen.before.and_then(|before| before.gpus.data());
    seen.memory.inventory_in(&seen.now.boot_id).with(before)
}

/// Whether a check run judges every GPU of the node: there is no job, or it holds all of them. A job without
/// GPUs has none of them judged, and several MIG devices may lie on one GPU.
pub fn covers_whole_node(seen: &Seen<'_>) -> bool {
    let Some(job) = seen.job else { return true };
    let whole_gpus = match &job.allocation {
        Allocation::Gpus(ids) => !ids.is_empty() && ids.iter().all(|id| matches!(id, GpuId::Index(_))),
        Allocation::NoGpus | Allocation::Unreadable(_) => false,
    };
    whole_gpus && seen.now.gpus.data().is_some() && matches!(held(seen), JobGpus::All { .. })
}

/// The job's GPUs. Without a job, and for one without GPUs, the whole node is judged.
fn held(seen: &Seen<'_>) -> JobGpus {
    let Some(job) = seen.job else { return JobGpus::default() };
    let expected = seen.profile.and_then(|profile| profile.gpus.count);
    match JobGpus::resolve(&job.allocation, seen.now.gpus.data(), &inventory(seen), expected) {
        JobGpus::None => JobGpus::default(),
        held => held,
    }
}
