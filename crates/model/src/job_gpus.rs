//! Which GPUs of a node a job holds.
//!
//! Slurm numbers the GPUs of a node when slurmd starts, in the order of their PCI addresses (`AutoDetect=nvml`), and
//! keeps the numbers until slurmd restarts, a boot at the latest. NVML numbers them again in each process: if a GPU is gone, the GPUs behind
//! it move up by one. Under MIG, Slurm counts slices, and since 23.11 it puts whole cards before all slices.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{Allocation, Gpu, GpuId, Gpus, PciAddress};

/// A GPU of an earlier snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownGpu {
    /// NVML index.
    pub index: u32,
    /// PCI address, if it could be read.
    pub pci: Option<PciAddress>,
    /// UUID, if it could be read.
    pub uuid: Option<String>,
}

impl KnownGpu {
    /// Returns an inventory of the GPUs that NVML listed.
    pub fn list(gpus: &Gpus) -> Vec<KnownGpu> {
        gpus.gpus
            .iter()
            .map(|gpu| KnownGpu {
                index: gpu.index,
                pci: gpu.pci.known().copied(),
                uuid: gpu.uuid.known().cloned(),
            })
            .collect()
    }
}

/// The GPUs that a node had before a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuInventory {
    /// Their indices are Slurm's numbers.
    counted: Vec<KnownGpu>,
    /// Those of an earlier boot. After a boot slurmd counts again, so only their UUIDs and addresses say anything.
    earlier: Vec<KnownGpu>,
}

impl GpuInventory {
    /// The inventory of an earlier snapshot. `this_boot`: no boot has been since, so slurmd has not counted again.
    pub fn new(gpus: Vec<KnownGpu>, this_boot: bool) -> Self {
        if this_boot {
            GpuInventory { counted: gpus, earlier: Vec::new() }
        } else {
            GpuInventory { counted: Vec::new(), earlier: gpus }
        }
    }

    /// Adds the GPUs right before the job: those, if this inventory has no more in the same boot, are what slurmd counted.
    #[must_use]
    pub fn with(mut self, before: Option<&Gpus>) -> Self {
        if let Some(gpus) = before
            && gpus.gpus.len() >= self.counted.len()
        {
            self.counted = KnownGpu::list(gpus);
        }
        self
    }

    /// The GPUs whose indices are Slurm's numbers; empty if that is true of none.
    pub fn counted(&self) -> &[KnownGpu] {
        &self.counted
    }

    /// The most GPUs that the node is known to have had, under any numbers.
    pub fn most(&self) -> &[KnownGpu] {
        if self.earlier.len() > self.counted.len() { &self.earlier } else { &self.counted }
    }

    fn of_uuid(&self, uuid: &str) -> Option<&KnownGpu> {
        self.counted.iter().chain(&self.earlier).find(|known| known.uuid.as_deref() == Some(uuid))
    }
}

/// The GPUs of this node that a job holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobGpus {
    /// The job holds no GPU.
    None,
    /// The job holds every GPU.
    All {
        /// Those of them that NVML no longer lists.
        missing: Vec<KnownGpu>,
    },
    /// The job holds some of the GPUs.
    These {
        /// Those that are present, by NVML index in the same snapshot.
        present: BTreeSet<u32>,
        /// Those that NVML no longer lists.
        missing: Vec<KnownGpu>,
    },
    /// It cannot be determined which GPUs the job holds; the text gives the reason.
    Unclear(String),
}

impl Default for JobGpus {
    /// Every GPU, none missing.
    fn default() -> Self {
        JobGpus::All { missing: Vec::new() }
    }
}

impl JobGpus {
    /// Reason why an index cannot be resolved under MIG.
    pub const SLICES: &'static str = "MIG is on, and Slurm counts slices";

    /// Finds the GPUs of a job among those that NVML lists in one snapshot.
    ///
    /// `now` is what NVML lists (`None`: not read), `inventory` the GPUs that the node had before, and `expected` how many
    /// GPUs the machine type has, if that is known.
    pub fn resolve(
        allocation: &Allocation,
        now: Option<&Gpus>,
        inventory: &GpuInventory,
        expected: Option<u32>,
    ) -> JobGpus {
        let ids = match allocation {
            Allocation::NoGpus => return JobGpus::None,
            Allocation::Unreadable(text) => {
                return JobGpus::Unclear(format!("Slurm's GPU list '{text}' is unreadable"));
            }
            Allocation::Gpus(ids) if ids.is_empty() => return JobGpus::None,
            Allocation::Gpus(ids) => ids,
        };
        // Slurm puts whole cards before slices, so only the cards before the first sliced one certainly keep their
        // numbers.
        let sliced = now.and_then(|gpus| gpus.gpus.iter().find(|gpu| gpu.mig.known() == Some(&true)));
        let is_slice = |id: &GpuId| {
            sliced.is_some_and(|first| matches!(id, GpuId::Index(index) if *index >= first.index))
        };
        if ids.iter().any(is_slice) {
            return JobGpus::Unclear(JobGpus::SLICES.to_owned());
        }
        let mut present = BTreeSet::new();
        let mut missing = Vec::new();
        for id in ids {
            match place(id, now, inventory) {
                Some(Place::At(index)) => {
                    present.insert(index);
                }
                Some(Place::Missing(known)) => {
                    if !missing.contains(&known) {
                        missing.push(known);
                    }
                }
                None => return JobGpus::Unclear(format!("no GPU is known as {}", name(id))),
            }
        }
        let all = expected
            .map_or(0, |count| usize::try_from(count).unwrap_or(usize::MAX))
            .max(now.map_or(0, |gpus| gpus.gpus.len()))
            .max(inventory.counted.len());
        if present.len() + missing.len() >= all {
            JobGpus::All { missing }
        } else {
            JobGpus::These { present, missing }
        }
    }

    /// The GPUs with these NVML indices, none missing.
    pub fn these(indices: impl IntoIterator<Item = u32>) -> JobGpus {
        JobGpus::These { present: indices.into_iter().collect(), missing: Vec::new() }
    }

    /// Returns whether the job holds the GPU with this NVML index; `None` if that cannot be determined.
    pub fn has(&self, index: u32) -> Option<bool> {
        match self {
            JobGpus::None => Some(false),
            JobGpus::All { .. } => Some(true),
            JobGpus::These { present, .. } => Some(present.contains(&index)),
            JobGpus::Unclear(_) => None,
        }
    }

    /// Returns the job's GPUs that NVML no longer lists.
    pub fn missing(&self) -> &[KnownGpu] {
        match self {
            JobGpus::All { missing } | JobGpus::These { missing, .. } => missing,
            JobGpus::None | JobGpus::Unclear(_) => &[],
        }
    }
}

/// The GPUs of a job that the sampler reads: found once, before the job, and named so that each process finds the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampledGpus {
    /// The GPUs.
    pub gpus: Vec<SampledGpu>,
    /// Why some of the job's GPUs, or all of them, are not sampled.
    pub problems: Vec<String>,
}

/// A GPU that the sampler reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampledGpu {
    /// Its name for NVML.
    pub id: GpuId,
    /// NVML index before the job, if it is known.
    pub index: Option<u32>,
    /// PCI address before the job; `None`: not known, or a MIG instance, whose errors the driver reports for the whole GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<PciAddress>,
}

impl SampledGpus {
    /// Names the GPUs that were [resolved](JobGpus::resolve) from `allocation` among `now`. A GPU of the job that cannot
    /// be named is left out with the reason: no figures are better than those of another job's GPU.
    pub fn new(
        allocation: &Allocation,
        held: &JobGpus,
        now: Option<&Gpus>,
        inventory: &GpuInventory,
    ) -> SampledGpus {
        let ids = match allocation {
            Allocation::Gpus(ids) => ids.as_slice(),
            Allocation::NoGpus => &[],
            Allocation::Unreadable(list) => {
                let why = format!("the job's GPUs are not known: Slurm's list is '{list}'");
                return SampledGpus { gpus: Vec::new(), problems: vec![why] };
            }
        };
        let pci = |uuid: &String| {
            let listed = now.and_then(|gpus| gpus.gpus.iter().find(|gpu| gpu.uuid.known() == Some(uuid)));
            listed.filter(|gpu| gpu.mig.known() != Some(&true)).and_then(|gpu| gpu.pci.known().copied())
        };
        // A UUID of Slurm's names one device, also a MIG instance, which `held` does not know.
        let named = |ids: &[GpuId]| SampledGpus {
            gpus: ids
                .iter()
                .filter_map(|id| match id {
                    GpuId::Uuid(uuid) => Some(SampledGpu { id: id.clone(), index: None, pci: pci(uuid) }),
                    GpuId::Index(_) => None,
                })
                .collect(),
            problems: Vec::new(),
        };
        if ids.iter().all(|id| matches!(id, GpuId::Uuid(_))) {
            return named(ids);
        }
        let mut found = SampledGpus::default();
        let present: Vec<u32> = match held {
            JobGpus::None => Vec::new(),
            JobGpus::Unclear(why) => {
                let mut named = named(ids);
                named.problems.push(format!("it is not known which GPUs the job holds: {why}"));
                return named;
            }
            JobGpus::These { present, .. } => present.iter().copied().collect(),
            JobGpus::All { .. } => match now {
                Some(gpus) => gpus.gpus.iter().map(|gpu| gpu.index).collect(),
                None => ids.iter().filter_map(GpuId::index).collect(),
            },
        };
        for index in present {
            let uuid = match now {
                Some(gpus) => {
                    gpus.gpus.iter().find(|gpu| gpu.index == index).and_then(|gpu| gpu.uuid.known().cloned())
                }
                None => inventory
                    .counted()
                    .iter()
                    .find(|known| known.index == index)
                    .and_then(|known| known.uuid.clone()),
            };
            match uuid {
                Some(uuid) => {
                    let pci = pci(&uuid);
                    found.gpus.push(SampledGpu { id: GpuId::Uuid(uuid), index: Some(index), pci });
                }
                None => found
                    .problems
                    .push(format!("GPU {index} is not sampled: its UUID could not be read before the job")),
            }
        }
        for known in held.missing() {
            let name = known.pci.map_or_else(|| known.index.to_string(), |pci| pci.to_string());
            found.problems.push(format!("GPU {name} is not sampled: it was gone before the job"));
        }
        found
    }
}

enum Place {
    At(u32),
    Missing(KnownGpu),
}

fn place(id: &GpuId, now: Option<&Gpus>, inventory: &GpuInventory) -> Option<Place> {
    let listed = now.map_or(&[][..], |gpus| gpus.gpus.as_slice());
    let known = match id {
        GpuId::Index(index) => {
            let shifted = !listed.is_empty() && listed.len() < inventory.counted.len();
            if !shifted {
                let beyond = now.is_some() && listed.iter().all(|gpu| gpu.index != *index);
                return Some(if beyond {
                    Place::Missing(KnownGpu { index: *index, pci: None, uuid: None })
                } else {
                    Place::At(*index)
                });
            }
            inventory.counted.iter().find(|known| known.index == *index)?.clone()
        }
        GpuId::Uuid(text) => {
            let uuid = whole_gpu(text);
            if let Some(gpu) = listed.iter().find(|gpu| gpu.uuid.known().is_some_and(|known| known == uuid)) {
                return Some(Place::At(gpu.index));
            }
            inventory.of_uuid(uuid)?.clone()
        }
    };
    if now.is_none() {
        return Some(Place::At(known.index));
    }
    let same = |gpu: &&Gpu| match (gpu.uuid.known(), &known.uuid) {
        (Some(now), Some(then)) => now == then,
        _ => gpu.pci.known().is_some() && gpu.pci.known() == known.pci.as_ref(),
    };
    Some(match listed.iter().find(same) {
        Some(gpu) => Place::At(gpu.index),
        None => Place::Missing(known),
    })
}

/// The UUID of the whole GPU: `MIG-GPU-<uuid>/1/0` (before driver 470) contains it, `MIG-<uuid>` does not.
fn whole_gpu(text: &str) -> &str {
    let text = text.strip_prefix("MIG-").filter(|rest| rest.starts_with("GPU-")).unwrap_or(text);
    text.split('/').next().unwrap_or(text)
}

fn name(id: &GpuId) -> String {
    match id {
        GpuId::Index(index) => index.to_string(),
        GpuId::Uuid(uuid) => uuid.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, Reading};

    fn machine(uuids: &[u32]) -> Gpus {
        let gpu = |(index, uuid): (usize, &u32)| Gpu {
            uuid: Reading::Known(format!("GPU-{uuid}")),
            ..Gpu::silent(u32::try_from(index).unwrap(), Access::Ok, "not read")
        };
        Gpus {
            driver: Reading::Unsupported,
            nvml: Reading::Unsupported,
            count: Reading::Unsupported,
            gpus: uuids.iter().enumerate().map(gpu).collect(),
        }
    }

    fn indices(indices: &[u32]) -> Allocation {
        Allocation::Gpus(indices.iter().copied().map(GpuId::Index).collect())
    }

    #[test]
    fn a_lost_gpu_shifts_nvml_indices_but_not_slurms() {
        let full = machine(&[0, 1, 2, 3]);
        let known = KnownGpu::list(&full);
        let inventory = GpuInventory::new(known.clone(), true);
        assert_eq!(JobGpus::resolve(&indices(&[2]), Some(&full), &inventory, None), JobGpus::these([2]));
        let lost = machine(&[0, 2, 3]);
        let of = |ids: &[u32]| JobGpus::resolve(&indices(ids), Some(&lost), &inventory, None);
        assert_eq!(of(&[2, 3]), JobGpus::these([1, 2]), "those behind GPU 1 have moved up");
        let JobGpus::These { present, missing } = of(&[0, 1]) else { panic!() };
        assert_eq!((present, missing), (BTreeSet::from([0]), vec![known[1].clone()]));
        assert_eq!(of(&[0, 1, 2, 3]), JobGpus::All { missing: vec![known[1].clone()] });
    }

    #[test]
    fn after_a_boot_an_earlier_inventory_tells_uuids_and_no_numbers() {
        let known = KnownGpu::list(&machine(&[0, 1, 2, 3]));
        let back = machine(&[0, 2, 3]);
        let earlier = GpuInventory::new(known.clone(), false);
        let of = |allocation: &Allocation| JobGpus::resolve(allocation, Some(&back), &earlier, None);
        assert_eq!(of(&indices(&[1, 2])), JobGpus::these([1, 2]), "slurmd counted the three that came back");
        assert_eq!(of(&indices(&[0, 1, 2])), JobGpus::default());
        let lost = Allocation::Gpus(vec![GpuId::Uuid("GPU-1".to_owned())]);
        assert_eq!(of(&lost).missing(), [known[1].clone()]);
        assert_eq!(earlier.most(), known);
        // A GPU was lost after the job had started: the snapshot before the job has what slurmd counted.
        let before = earlier.with(Some(&back));
        let lost = machine(&[0, 3]);
        assert_eq!(JobGpus::resolve(&indices(&[2]), Some(&lost), &before, None), JobGpus::these([1]));
        // Or before the job, in the same boot: the longer list has it.
        let before = GpuInventory::new(known, true).with(Some(&back));
        assert_eq!(JobGpus::resolve(&indices(&[3]), Some(&back), &before, None), JobGpus::these([2]));
    }

    #[test]
    fn the_sampled_gpus_are_named_by_uuid_behind_a_lost_gpu() {
        let inventory = GpuInventory::new(KnownGpu::list(&machine(&[0, 1, 2, 3])), true);
        let lost = machine(&[0, 2, 3]);
        let sampled = |allocation: &Allocation, now: Option<&Gpus>, inventory: &GpuInventory| {
            let held = JobGpus::resolve(allocation, now, inventory, None);
            let found = SampledGpus::new(allocation, &held, now, inventory);
            let name = |gpu: &SampledGpu| match (&gpu.id, gpu.index) {
                (GpuId::Uuid(uuid), index) => format!("{uuid} at {index:?}"),
                (GpuId::Index(index), _) => format!("index {index}"),
            };
            (found.gpus.iter().map(name).collect::<Vec<_>>().join(", "), found.problems.join("; "))
        };
        let pair = |gpus: &str, problems: &str| (gpus.to_owned(), problems.to_owned());
        // Slurm's GPU 3 is NVML's GPU 2.
        assert_eq!(sampled(&indices(&[3]), Some(&lost), &inventory), pair("GPU-3 at Some(2)", ""));
        let gone = "GPU 1 is not sampled: it was gone before the job";
        assert_eq!(sampled(&indices(&[0, 1]), Some(&lost), &inventory), pair("GPU-0 at Some(0)", gone));
        let all = "GPU-0 at Some(0), GPU-2 at Some(1), GPU-3 at Some(2)";
        assert_eq!(sampled(&indices(&[0, 1, 2, 3]), Some(&lost), &inventory), pair(all, gone));
        // Under MIG a number counts slices, and a UUID names one.
        let mut mig = machine(&[0, 1]);
        mig.gpus[0].mig = Reading::Known(true);
        let none = GpuInventory::default();
        let unclear = "it is not known which GPUs the job holds: MIG is on, and Slurm counts slices";
        assert_eq!(sampled(&indices(&[1]), Some(&mig), &none), pair("", unclear));
        let slice = Allocation::Gpus(vec![GpuId::Uuid("MIG-7".to_owned())]);
        assert_eq!(sampled(&slice, Some(&mig), &none), pair("MIG-7 at None", ""));
        // NVML did not answer before the job: only an inventory of this boot has names.
        let unread = "GPU 3 is not sampled: its UUID could not be read before the job";
        assert_eq!(sampled(&indices(&[3]), None, &none), pair("", unread));
        assert_eq!(sampled(&indices(&[3]), None, &inventory), pair("GPU-3 at Some(3)", ""));
    }

    #[test]
    fn under_mig_only_cards_before_the_first_sliced_one_keep_their_numbers() {
        let mut gpus = machine(&[0, 1, 2, 3]);
        gpus.gpus[1].mig = Reading::Known(true);
        let of = |id: GpuId| {
            JobGpus::resolve(&Allocation::Gpus(vec![id]), Some(&gpus), &GpuInventory::default(), None)
        };
        assert_eq!(of(GpuId::Index(0)), JobGpus::these([0]));
        // Slurm puts cards 2 and 3 before the slices: index 1 is card 2, not card 1.
        for index in [1, 2, 9] {
            assert_eq!(of(GpuId::Index(index)), JobGpus::Unclear(JobGpus::SLICES.to_owned()), "{index}");
        }
        assert_eq!(of(GpuId::Uuid("GPU-3".to_owned())), JobGpus::these([3]));
        assert_eq!(of(GpuId::Uuid("MIG-GPU-1/7/0".to_owned())), JobGpus::these([1]));
        assert!(matches!(of(GpuId::Uuid("MIG-1".to_owned())), JobGpus::Unclear(_)));
    }

    #[test]
    fn no_gpus_all_gpus_and_unclear_lists_are_told_apart() {
        let gpus = machine(&[0, 1]);
        let of = |allocation: &Allocation| {
            JobGpus::resolve(allocation, Some(&gpus), &GpuInventory::default(), None)
        };
        assert_eq!(of(&Allocation::NoGpus), JobGpus::None);
        assert_eq!(of(&indices(&[])), JobGpus::None);
        assert_eq!(of(&indices(&[0, 1])), JobGpus::default());
        assert!(matches!(of(&Allocation::Unreadable("gpu:?".to_owned())), JobGpus::Unclear(_)));
        assert_eq!(JobGpus::these([1]).has(1), Some(true));
        assert_eq!(JobGpus::these([1]).has(0), Some(false));
        assert_eq!(JobGpus::Unclear(String::new()).has(0), None);
        let unread = JobGpus::resolve(&indices(&[1]), None, &GpuInventory::default(), Some(8));
        assert_eq!(unread, JobGpus::these([1]), "without NVML an index is taken as it is");
    }
}
