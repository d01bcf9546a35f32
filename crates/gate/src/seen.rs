use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use railgate_model::{
    BlockedProcess, Class, Finding, Fitness, Gpu, GpuInventory, Job, KnownGpu, MountProbe, Part, PartName,
    PciAddress, Phase, Profile, Severity, Snapshot, UnixMillis, Verdict,
};
use serde::{Deserialize, Serialize};

use crate::CHECKS;
use crate::gpu_counters::{self, KnownCounts};
use crate::links::{self, KnownLink};

/// The input of a judgement, besides the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The phase in which the gate runs.
    pub phase: Phase,
    /// The current snapshot of the node.
    pub now: &'a Snapshot,
    /// The snapshot before the job, in the epilog: the baseline for counters.
    pub before: Option<&'a Snapshot>,
    /// The job; `None` where the whole node is judged.
    pub job: Option<&'a Job>,
    /// The properties of a healthy machine of this type; `None` if no profile is chosen.
    pub profile: Option<&'a Profile>,
    /// The gate state that earlier check runs saved.
    pub memory: &'a Memory,
}

/// Gate state: what one check run saves for the next. The caller stores it; [`Memory::after`] creates the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// Boot in which the state was saved. `silent` and `silent_mounts` are valid in this boot only.
    pub boot_id: String,
    /// Parts that did not answer at the previous check run.
    pub silent: Vec<PartName>,
    /// Required mounts that did not answer at the previous check run.
    pub silent_mounts: Vec<PathBuf>,
    /// GPUs at the last check run that found the node fit, across boots.
    pub inventory: Vec<KnownGpu>,
    /// Boot of that check run. Empty in a state that an earlier version saved.
    pub inventory_boot_id: String,
    /// RDMA devices at the last check run that found the node fit, across boots.
    pub hcas: Vec<KnownHca>,
    /// Checks that have run on this node, by id. Empty on a new node.
    pub checks: BTreeMap<String, KnownCheck>,
    /// Sightings of transient findings, across boots.
    pub strikes: Vec<Strike>,
    /// Processes in uninterruptible sleep at the previous check run.
    pub blocked: Vec<KnownSleep>,
    /// History of the fabric ports, across boots.
    pub links: Vec<KnownLink>,
    /// Number of uncorrected memory errors since the driver was loaded that a check run found contained, by GPU UUID.
    /// Valid in this boot only.
    pub contained: BTreeMap<String, u64>,
    /// The last check run that read the GPUs found one without persistence mode, so every check run has to initialise
    /// it.
    pub cold_gpus: bool,
    /// History of the GPU counters, across boots.
    pub gpus: Vec<KnownCounts>,
}

/// A process in one uninterruptible sleep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownSleep {
    /// The process when it was last seen.
    pub process: BlockedProcess,
    /// Time when it was first seen in this sleep.
    pub since: UnixMillis,
}

/// One sighting of a transient finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strike {
    /// Check and part of the finding, for example `ib-rate@mlx5_2`.
    pub subject: String,
    /// Serial number, UUID or GUID of the part, if it has one. A replaced part starts without strikes.
    pub identity: String,
    /// Time of the sighting, Unix seconds.
    pub time: u64,
}

/// Sightings within this many seconds count as one, since two prologs can run on one node at the same moment.
const ONE_SIGHT: u64 = 30;

/// Seconds for which strikes are kept; no check has a longer window.
const STRIKES_KEPT: u64 = 7 * 24 * 3600;

/// Maximum number of records kept for one finding; two within a day are enough for most sites.
const MOST_RECORDS: usize = 10;

/// Maximum number of strikes kept. A node with more has other problems.
const MOST_STRIKES: usize = 256;

/// Since when a check runs on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownCheck {
    /// Time of the first check run with it, Unix seconds.
    pub since: u64,
    /// An upgrade brought the check to a node on which the gate had run before.
    pub new: bool,
}

/// An RDMA device of an earlier check run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownHca {
    /// Device name.
    pub name: String,
    /// PCI address, if it could be read.
    pub pci: Option<PciAddress>,
}

impl Memory {
    /// Returns how often a finding was seen within `window` before `now`, including the sightings at `times`. All times
    /// are in Unix seconds. Sightings less than half a minute apart count as one.
    pub fn sights(&self, subject: &str, identity: &str, times: &[u64], now: u64, window: Duration) -> u32 {
        let same = |strike: &&Strike| strike.subject == subject && strike.identity == identity;
        let remembered = self.strikes.iter().filter(same).map(|strike| strike.time);
        let within = |time: &u64| now.checked_sub(*time).is_some_and(|ago| ago <= window.as_secs());
        let mut all: Vec<u64> = remembered.chain(times.iter().copied()).filter(within).collect();
        all.sort_unstable();
        let mut sights = 0;
        let mut last = None;
        for time in all {
            if last.is_none_or(|last| time >= last + ONE_SIGHT) {
                sights += 1;
                last = Some(time);
            }
        }
        sights.max(1)
    }

    /// Records the strikes of a check run.
    pub fn strike(&mut self, now: &Snapshot, verdict: &Verdict) {
        let time = now.taken / 1000;
        self.strikes.retain(|strike| strike.time.saturating_add(STRIKES_KEPT) >= time && strike.time <= time);
        let looks = verdict.strikes.iter().map(|subject| (subject, time));
        let written = verdict.signs.iter().flat_map(|sign| {
            let newest = sign.written.iter().rev().take(MOST_RECORDS);
            newest.map(|written| (&sign.subject, written / 1000))
        });
        for (subject, time) in looks.chain(written) {
            let part = subject.split_once('@').map_or("", |(_, part)| part);
            let strike = Strike { subject: subject.clone(), identity: now.identity(part), time };
            let again = |old: &Strike| {
                (&old.subject, &old.identity) == (&strike.subject, &strike.identity)
                    && time.abs_diff(old.time) < ONE_SIGHT
            };
            if !self.strikes.iter().any(again) {
                self.strikes.push(strike);
            }
        }
        let over = self.strikes.len().saturating_sub(MOST_STRIKES);
        self.strikes.drain(..over);
    }

    /// Whether an upgrade brought this check to the node. On a new node no check counts as new.
    pub fn is_new(&self, check: &str) -> bool {
        !self.checks.is_empty() && self.checks.get(check).is_none_or(|known| known.new)
    }

    /// Returns the state to save after a check run. `clean` is true if the whole node was judged and its [devices are
    /// well](devices_are_well); only then do its devices become the expected ones. Parts that were not read keep their
    /// state: after a job without GPUs, the gate must still know that NVML hangs.
    pub fn after(&self, now: &Snapshot, clean: bool) -> Memory {
        let mut silent = silent_parts(now);
        let mut silent_mounts = silent_mounts(now);
        if self.is_of(&now.boot_id) {
            silent.extend(self.silent.iter().filter(|part| skipped(now, **part)));
            silent_mounts.extend(self.silent_mounts.iter().filter(|path| !asked(now, path)).cloned());
        }
        let mut next = Memory {
            boot_id: now.boot_id.clone(),
            silent,
            silent_mounts,
            inventory: self.inventory.clone(),
            inventory_boot_id: self.inventory_boot_id().to_owned(),
            hcas: self.hcas.clone(),
            checks: self.checks.clone(),
            strikes: self.strikes.clone(),
            blocked: self.sleeps(now),
            links: links::after(&self.links, now),
            contained: if self.is_of(&now.boot_id) { self.contained.clone() } else { BTreeMap::new() },
            cold_gpus: now.gpus.data().map_or(self.cold_gpus, cold),
            gpus: gpu_counters::after(&self.gpus, now),
        };
        let known = KnownCheck { since: now.taken / 1000, new: !self.checks.is_empty() };
        for check in CHECKS {
            next.checks.entry(check.id.to_owned()).or_insert(known);
        }
        if clean {
            if let Some(gpus) = now.gpus.data() {
                next.inventory = KnownGpu::list(gpus);
                next.inventory_boot_id.clone_from(&now.boot_id);
            }
            if let Some(fabric) = now.fabric.data() {
                next.hcas = known_hcas(fabric);
            }
        }
        next
    }

    /// Records which memory errors are contained, before their kernel records are passed over. Called for a check run
    /// of the whole node that was acted on.
    pub fn settle(&mut self, now: &Snapshot, verdict: &Verdict) {
        let Some(gpus) = now.gpus.data() else { return };
        self.contained.clear();
        for gpu in &gpus.gpus {
            let subject = format!("gpu-ecc@{}", gpu.index);
            let uncontained =
                |finding: &Finding| finding.severity == Severity::Fail && finding.subject() == subject;
            if let (Some(uuid), Some(count @ 1..)) = (gpu.uuid.known(), gpu.ecc.volatile_uncorrected.known())
                && !verdict.findings.iter().chain(&verdict.shadow).any(uncontained)
            {
                self.contained.insert(uuid.clone(), *count);
            }
        }
    }

    /// Number of this GPU's uncorrected errors since the driver was loaded that an earlier check run found contained.
    pub(crate) fn contained(&self, gpu: &Gpu, now: &Snapshot) -> u64 {
        let known = gpu.uuid.known().and_then(|uuid| self.contained.get(uuid)).copied();
        known.filter(|_| self.is_of(&now.boot_id)).unwrap_or(0)
    }

    /// The sleeping processes of this check run, each with the time when it was first seen.
    fn sleeps(&self, now: &Snapshot) -> Vec<KnownSleep> {
        let Some(host) = now.host.data() else {
            return if self.is_of(&now.boot_id) { self.blocked.clone() } else { Vec::new() };
        };
        let processes = host.system.processes.known();
        let known = |process: &BlockedProcess| {
            self.blocked.iter().find(|old| self.is_of(&now.boot_id) && old.process == *process)
        };
        let sleep = |process: &BlockedProcess| KnownSleep {
            process: process.clone(),
            since: known(process).map_or(now.taken, |old| old.since.min(now.taken)),
        };
        processes.map_or_else(Vec::new, |processes| processes.blocked.iter().map(sleep).collect())
    }

    /// How long earlier check runs of this boot have seen a process in the same sleep.
    pub(crate) fn blocked_for(&self, process: &BlockedProcess, now: &Snapshot) -> Option<Duration> {
        let known = self.blocked.iter().find(|old| self.is_of(&now.boot_id) && old.process == *process)?;
        Some(Duration::from_millis(now.taken.saturating_sub(known.since)))
    }

    /// Whether the part did not answer at the previous check run of the same boot.
    pub(crate) fn was_silent(&self, part: PartName, boot_id: &str) -> bool {
        self.is_of(boot_id) && self.silent.contains(&part)
    }

    /// Whether the mount did not answer at the previous check run of the same boot.
    pub(crate) fn mount_was_silent(&self, path: &Path, boot_id: &str) -> bool {
        self.is_of(boot_id) && self.silent_mounts.iter().any(|known| known == path)
    }

    fn is_of(&self, boot_id: &str) -> bool {
        !boot_id.is_empty() && self.boot_id == boot_id
    }

    /// The GPUs at the last check run that found the node fit, for a check run in this boot.
    pub fn inventory_in(&self, boot_id: &str) -> GpuInventory {
        let this_boot = !boot_id.is_empty() && self.inventory_boot_id() == boot_id;
        GpuInventory::new(self.inventory.clone(), this_boot)
    }

    /// An earlier version saved no boot with the inventory. It is then as old as the state: not of a later boot, and in
    /// the same boot the index of a GPU that an upgrade finds lost is still found.
    fn inventory_boot_id(&self) -> &str {
        if self.inventory_boot_id.is_empty() { &self.boot_id } else { &self.inventory_boot_id }
    }
}

fn cold(gpus: &railgate_model::Gpus) -> bool {
    gpus.gpus.iter().any(|gpu| gpu.persistence.known() == Some(&false))
}

/// The RDMA devices of a check run.
pub(crate) fn known_hcas(fabric: &railgate_model::Fabric) -> Vec<KnownHca> {
    fabric.hcas.iter().map(|hca| KnownHca { name: hca.name.clone(), pci: hca.pci.known().copied() }).collect()
}

fn silent_parts(now: &Snapshot) -> Vec<PartName> {
    fn silent<T>(part: &Part<T>) -> bool {
        matches!(part, Part::Silent { .. } | Part::Stuck { .. })
    }
    [
        (PartName::Gpus, silent(&now.gpus)),
        (PartName::Fabric, silent(&now.fabric)),
        (PartName::Pci, silent(&now.pci)),
        (PartName::KernelLog, silent(&now.kernel_log)),
        (PartName::Host, silent(&now.host)),
    ]
    .into_iter()
    .filter_map(|(name, silent)| silent.then_some(name))
    .collect()
}

fn skipped(now: &Snapshot, part: PartName) -> bool {
    match part {
        PartName::Gpus => now.gpus == Part::Skipped,
        PartName::Fabric => now.fabric == Part::Skipped,
        PartName::Pci => now.pci == Part::Skipped,
        PartName::KernelLog => now.kernel_log == Part::Skipped,
        PartName::Host => now.host == Part::Skipped,
    }
}

fn asked(now: &Snapshot, path: &Path) -> bool {
    now.host.data().is_some_and(|host| host.mounts.iter().any(|mount| mount.path == path))
}

fn silent_mounts(now: &Snapshot) -> Vec<PathBuf> {
    now.host.data().map_or_else(Vec::new, |host| {
        host.mounts
            .iter()
            .filter(|mount| matches!(mount.probe, MountProbe::Silent { .. }))
            .map(|mount| mount.path.clone())
            .collect()
    })
}

/// Whether there is no finding about the GPUs and HCAs themselves. Other findings do not matter: a full disk or an old
/// driver must not prevent the gate from recording the node's devices.
pub fn devices_are_well(verdict: &Verdict) -> bool {
    let about_devices = |finding: &Finding| {
        CHECKS.iter().find(|check| check.id == finding.check).is_some_and(|check| {
            check.parts.iter().any(|part| matches!(part, PartName::Gpus | PartName::Fabric | PartName::Pci))
        })
    };
    let wrong = |finding: &&Finding| {
        finding.severity > Severity::Note && matches!(finding.class, Class::Node | Class::Fabric)
    };
    let mut wrong = verdict.findings.iter().chain(&verdict.shadow).filter(wrong);
    verdict.fitness != Fitness::Unknown && !wrong.any(about_devices)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::case;

    #[test]
    fn only_a_clean_check_run_updates_the_expected_devices() {
        let healthy = case("h100-sxm").now;
        let broken = case("h100-sxm:gpu-missing@3,ib-missing@2").now;
        let first = Memory::default().after(&healthy, true);
        assert_eq!((first.inventory.len(), first.hcas.len()), (8, 9));
        assert!(first.inventory.iter().all(|gpu| gpu.pci.is_some() && gpu.uuid.is_some()));
        let second = first.after(&broken, false);
        assert_eq!((&second.inventory, &second.hcas), (&first.inventory, &first.hcas));
        assert_eq!(second.after(&broken, true).inventory.len(), 7);
    }

    #[test]
    fn the_expected_gpus_have_slurms_numbers_only_in_the_boot_of_their_check_run() {
        let now = case("h100-sxm").now;
        let mut booted = now.clone();
        booted.boot_id = "the next".to_owned();
        let numbered = |memory: &Memory, now: &Snapshot| memory.inventory_in(&now.boot_id).counted().len();
        let first = Memory::default().after(&now, true);
        assert_eq!((numbered(&first, &now), numbered(&first, &booted)), (8, 0));
        assert_eq!(first.inventory_in("the next").most().len(), 8);
        let later = first.after(&booted, false);
        assert_eq!((numbered(&later, &booted), numbered(&first.after(&booted, true), &booted)), (0, 8));
        // A state of an earlier version is as old as its last check run.
        let old = Memory { inventory_boot_id: String::new(), ..first };
        assert_eq!((numbered(&old, &now), numbered(&old, &booted)), (8, 0));
        assert_eq!(numbered(&old.after(&booted, false), &booted), 0);
    }

    #[test]
    fn with_a_full_disk_the_devices_are_well() {
        let well = |node: &str| devices_are_well(&case(node).judge());
        assert!(well("h100-sxm") && well("h100-sxm:disk-full"));
        for fault in ["gpu-lost@3", "gpu-missing@3", "ib-missing@2", "ib-port-down@2", "nvml-silent"] {
            assert!(!well(&format!("h100-sxm:{fault}")), "{fault}");
        }
    }

    #[test]
    fn the_state_survives_json_and_unknown_fields_are_accepted() {
        let memory = Memory::default().after(&case("h100-sxm:nvml-silent").now, false);
        let text = serde_json::to_string(&memory).unwrap();
        assert_eq!(serde_json::from_str::<Memory>(&text).unwrap(), memory);
        assert_eq!(serde_json::from_str::<Memory>("{\"newer\": 1}").unwrap(), Memory::default());
    }
}
