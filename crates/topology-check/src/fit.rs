//! Checks whether a file describes this machine: it has every GPU and every rail's HCA, each GPU nearest to its rail
//! and on the right NUMA node.

use std::collections::BTreeSet;

use railgate_model::{Hca, Host, PciAddress, Rail, RailMap, Snapshot};
use railgate_rails::nccl_devices::{as_nccl_finds_it, belong_together, busid_of, cpu_mask};
use railgate_rails::{BY_PROFILE, BY_TREE};

use super::grammar::{Era, Kind, Tree, printable};
use super::graph::{
    Asked, Devices, Placed, below, cpus, is_busid, looks_like_gpu, looks_like_hca, may_be_real, upwards,
};
use super::{Effect, Found};

/// A live machine with which a file is compared.
pub(super) struct Machine<'a> {
    snapshot: &'a Snapshot,
    map: &'a RailMap,
    /// Values that could not be compared, with the reasons.
    pub(super) untold: Vec<String>,
}

impl<'a> Machine<'a> {
    pub(super) fn new(snapshot: &'a Snapshot, map: &'a RailMap) -> Self {
        let mut untold = Vec::new();
        for (part, why) in [
            ("GPUs", snapshot.gpus.missing()),
            ("HCAs", snapshot.fabric.missing()),
            ("the PCI tree", snapshot.pci.missing()),
            ("the host", snapshot.host.missing()),
        ] {
            untold.extend(why.map(|why| format!("{part}: {why}")));
        }
        for gpu in &map.gpus {
            if gpu.pci.known().is_none() {
                untold.push(format!("PCI address of GPU {}: {}", gpu.index, gpu.pci));
            }
        }
        Machine { snapshot, map, untold }
    }

    fn host(&self) -> Option<&'a Host> {
        self.snapshot.host.data()
    }

    /// If the machine's GPUs or HCAs are unknown, every leaf of the tree may be one.
    pub(super) fn devices(&self, tree: &Tree) -> Devices {
        let vendor = self.host().and_then(|host| host.cpu.known()).map(|(vendor, ..)| vendor.clone());
        let whole = self.snapshot.gpus.data().is_some() && self.snapshot.fabric.data().is_some();
        let mut devices = match whole {
            true => Devices { asked: Asked::Whole, ..Devices::default() },
            false => Devices { asked: Asked::Partly, ..Devices::assumed(tree) },
        };
        if self.snapshot.pci.data().is_none() {
            devices.asked = Asked::Partly;
        }
        devices.vendor = vendor;
        for device in self.snapshot.pci.data().map_or(&[][..], |pci| &pci.devices) {
            devices.real.insert(device.address.to_string());
            devices.real.extend(device.bridges.iter().map(PciAddress::to_string));
        }
        for hca in self.hcas() {
            devices.real.extend(hca.pci.known().map(PciAddress::to_string));
        }
        devices.real.extend(self.gpus().map(|(_, address)| address.to_string()));
        if whole {
            for (index, address) in self.gpus() {
                match pci_at(tree, &address.to_string()) {
                    Some(at) => devices.placed.push(Placed { name: gpu_name(index), at, gpu: true }),
                    None => devices.hung.extend(self.bridge_of(tree, &address).map(|at| (at, true))),
                }
            }
            for hca in self.hcas() {
                let busid = busid_of(hca);
                match hca_at(tree, &hca.name, busid) {
                    Some(at) => devices.placed.push(Placed { name: hca.name.clone(), at, gpu: false }),
                    None => {
                        let at = hca.pci.known().and_then(|address| self.bridge_of(tree, address));
                        devices.hung.extend(at.map(|at| (at, false)));
                    }
                }
            }
        }
        devices
    }

    /// The bridge of the file under which NCCL puts a device that the file lacks. NCCL climbs the kernel's tree two
    /// levels at a time, from a device to the upstream port of its switch, until it reaches a port that is in the file.
    fn bridge_of(&self, tree: &Tree, address: &PciAddress) -> Option<usize> {
        let device = self.snapshot.pci.data()?.devices.iter().find(|device| device.address == *address)?;
        let ports = device.bridges.iter().rev().skip(1).step_by(2);
        ports.map(|port| pci_at(tree, &port.to_string())).find(Option::is_some).flatten()
    }

    fn hcas(&self) -> &'a [Hca] {
        self.snapshot.fabric.data().map_or(&[], |fabric| &fabric.hcas)
    }

    fn gpus(&self) -> impl Iterator<Item = (u32, PciAddress)> {
        self.map.gpus.iter().filter_map(|gpu| Some((gpu.index, *gpu.pci.known()?)))
    }

    /// Reports devices that the file lacks or has in the wrong place.
    pub(super) fn compare(
        &self,
        tree: &Tree,
        era: &Era,
        found: &mut Vec<Found>,
        untold: &mut BTreeSet<String>,
    ) {
        let mut say = |effect: Effect, at: Option<usize>, what: String, fix: &str| {
            found.push(Found { effect, at, what, fix: fix.to_owned() });
        };
        let mut known = BTreeSet::new();
        let mut absent = 0_usize;
        // NCCL puts a device that the file lacks under a bridge of the file if the kernel has it there.
        let unseen = self.snapshot.pci.data().is_none() && tree.elements.iter().any(|e| may_be_real(tree, e));
        let mut unplaced = |name: &str, address: &PciAddress| {
            untold.insert(format!(
                "{name} ({address}) is not in the file: where NCCL places it depends on the PCI tree"
            ));
        };
        let present = self.gpus().any(|(_, address)| pci_at(tree, &address.to_string()).is_some());
        for (index, address) in self.gpus() {
            known.insert(address.to_string());
            if pci_at(tree, &address.to_string()).is_none() {
                if let Some(bridge) = self.bridge_of(tree, &address) {
                    say(Effect::Note, None, hung(&gpu_name(index), &address, tree, bridge), "");
                    continue;
                }
                if unseen {
                    unplaced(&gpu_name(index), &address);
                    continue;
                }
                absent += 1;
                let (effect, then) = if era.splits_hosts && present && !self.has_its_cpu(tree, index) {
                    (Effect::Refused, "treats it as a GPU of another host and fails at start")
                } else {
                    (Effect::Misled, "places it by itself")
                };
                let what = format!("GPU {index} ({address}) is not in the file: NCCL {then}");
                say(effect, None, what, "generate the file again on this machine");
            }
        }
        for rail in &self.map.rails {
            let busid = rail.pci.known().map(as_nccl_finds_it);
            if hca_at(tree, &rail.hca, busid).is_none() {
                let Some(address) = busid else { continue };
                if let Some(bridge) = rail.pci.known().and_then(|address| self.bridge_of(tree, address)) {
                    say(Effect::Note, None, hung(&rail.hca, &address, tree, bridge), "");
                    continue;
                }
                if unseen {
                    unplaced(&rail.hca, &address);
                    continue;
                }
                absent += 1;
                let what = format!("{} ({address}) is not in the file: NCCL places it by itself", rail.hca);
                say(Effect::Misled, None, what, "generate the file again on this machine");
            }
        }
        known.extend(self.hcas().iter().filter_map(busid_of).map(|address| address.to_string()));
        let named: BTreeSet<usize> =
            self.hcas().iter().filter_map(|hca| hca_at(tree, &hca.name, None)).collect();
        for (at, element) in tree.elements.iter().enumerate().filter(|(_, element)| element.kind == Kind::Pci)
        {
            let Some(busid) = element.get("busid").filter(|busid| is_busid(busid)) else { continue };
            let leaf = below(tree, element, Kind::Pci).next().is_none();
            if !leaf || known.contains(busid) || named.contains(&at) {
                continue;
            }
            let (kind, asked) = match () {
                () if looks_like_gpu(tree, element) => ("GPU", self.snapshot.gpus.data().is_some()),
                () if looks_like_hca(tree, element) => ("HCA", self.snapshot.fabric.data().is_some()),
                () => continue,
            };
            if !asked {
                continue;
            }
            // If the file lacks devices of this machine, it is that of another machine; otherwise a device of the file
            // is broken.
            let effect = if absent > 0 { Effect::Misled } else { Effect::Note };
            say(effect, Some(element.at), format!("{kind} {busid} is not on this machine"), "");
        }
        self.bridges(tree, &mut say);
        self.numa(tree, &mut say);
        if let Some(host) = self.host() {
            for cpu in tree.elements.iter().filter(|element| element.kind == Kind::Cpu) {
                let (Some(id), Some(mask)) = (cpu.get("numaid"), cpu.get("affinity").and_then(cpus)) else {
                    continue;
                };
                let Some((_, list)) = host.numa_cpus.iter().find(|(node, _)| node.to_string() == id) else {
                    continue;
                };
                let Some(here) = cpu_mask(list).as_deref().and_then(cpus) else { continue };
                if mask.iter().all(|cpu| !here.contains(cpu)) {
                    let what = format!(
                        "affinity of <cpu> {} has no CPU of that NUMA node ({list})",
                        printable(id.as_bytes())
                    );
                    say(Effect::Misled, Some(cpu.at), what, "generate the file again on this machine");
                } else if mask != here {
                    let what =
                        format!("affinity of <cpu> {}: the machine has {list}", printable(id.as_bytes()));
                    say(Effect::Note, Some(cpu.at), what, "");
                }
            }
        }
    }

    /// Whether the file has the NUMA node to which the kernel assigns this GPU; NCCL puts the GPU there.
    fn has_its_cpu(&self, tree: &Tree, index: u32) -> bool {
        let gpu = self.map.gpus.iter().find(|gpu| gpu.index == index);
        gpu.and_then(|gpu| gpu.numa_node.known()).is_some_and(|node| {
            let node = node.to_string();
            tree.elements.iter().any(|e| e.kind == Kind::Cpu && e.get("numaid") == Some(node.as_str()))
        })
    }

    /// Each GPU must share a bridge with the HCA of its rail if it does so on the machine, and no other HCA may be
    /// nearer.
    fn bridges(&self, tree: &Tree, say: &mut impl FnMut(Effect, Option<usize>, String, &str)) {
        if self.map.method != BY_TREE && self.map.method != BY_PROFILE {
            return;
        }
        let places: Vec<Option<usize>> = self.map.rails.iter().map(|rail| rail_at(tree, rail)).collect();
        for gpu in &self.map.gpus {
            let (Some(own), Some(address)) = (gpu.rail, gpu.pci.known()) else { continue };
            let Some(from) = pci_at(tree, &address.to_string()) else { continue };
            let Some(to) = places.get(own).copied().flatten() else { continue };
            let rail = &self.map.rails[own];
            let (steps, shared) = way(tree, from, to);
            let near = places.iter().zip(&self.map.rails).filter_map(|(place, rail)| {
                let (steps, shared) = way(tree, from, (*place)?);
                (shared == Kind::Pci).then_some((steps, rail))
            });
            let nearest = near.min_by_key(|(steps, _)| *steps);
            let fix = "one bridge for each rail";
            let place = Some(tree.elements[from].at);
            if !belong_together(self.map, gpu) {
                if shared == Kind::Pci {
                    let what = format!(
                        "GPU {} and {} share a bridge in the file, but not on the machine: NCCL would use GPUDirect where it does not work",
                        gpu.index, rail.hca
                    );
                    say(Effect::Misled, place, what, "a bridge of its own for the GPU");
                }
                continue;
            }
            match nearest {
                Some((there, other)) if other.pci != rail.pci && (shared != Kind::Pci || there < steps) => {
                    let what = format!(
                        "GPU {} is nearer to {} than to {}, the HCA of its rail",
                        gpu.index, other.hca, rail.hca
                    );
                    say(Effect::Misled, place, what, fix);
                }
                _ if shared != Kind::Pci => {
                    let what = format!(
                        "GPU {} and {} share no bridge: NCCL does not use GPUDirect",
                        gpu.index, rail.hca
                    );
                    say(Effect::Misled, place, what, fix);
                }
                _ => {}
            }
        }
    }

    fn numa(&self, tree: &Tree, say: &mut impl FnMut(Effect, Option<usize>, String, &str)) {
        let gpus = self.map.gpus.iter().filter_map(|gpu| {
            Some((gpu_name(gpu.index), pci_at(tree, &gpu.pci.known()?.to_string())?, *gpu.numa_node.known()?))
        });
        let hcas = self
            .map
            .rails
            .iter()
            .filter_map(|rail| Some((rail.hca.clone(), rail_at(tree, rail)?, *rail.numa_node.known()?)));
        for (name, at, node) in gpus.chain(hcas).collect::<BTreeSet<_>>() {
            let cpu = upwards(tree, at).find(|up| tree.elements[*up].kind == Kind::Cpu);
            let Some(said) = cpu.and_then(|cpu| tree.elements[cpu].get("numaid")) else { continue };
            if said.trim() != node.to_string() {
                let what =
                    format!("{name} is on NUMA node {node}, the file has {}", printable(said.as_bytes()));
                say(
                    Effect::Misled,
                    Some(tree.elements[at].at),
                    what,
                    "generate the file again on this machine",
                );
            }
        }
    }
}

fn hung(name: &str, address: &PciAddress, tree: &Tree, bridge: usize) -> String {
    let bridge = tree.elements[bridge].get("busid").unwrap_or_default();
    let bridge = printable(bridge.as_bytes());
    format!("{name} ({address}) is not in the file: NCCL places it under {bridge}, as the kernel does")
}

fn gpu_name(index: u32) -> String {
    format!("GPU {index}")
}

/// NCCL takes the first element with a bus id, at any place.
fn pci_at(tree: &Tree, busid: &str) -> Option<usize> {
    tree.elements.iter().position(|element| element.kind == Kind::Pci && element.get("busid") == Some(busid))
}

/// Searches for a `<net>` with this name first, then for the bus id.
fn hca_at(tree: &Tree, name: &str, busid: Option<PciAddress>) -> Option<usize> {
    let net = tree
        .elements
        .iter()
        .position(|element| element.kind == Kind::Net && element.get("name") == Some(name));
    let holder = |at| upwards(tree, at).find(|up| matches!(tree.elements[*up].kind, Kind::Pci | Kind::Cpu));
    net.and_then(holder).or_else(|| pci_at(tree, &busid?.to_string()))
}

fn rail_at(tree: &Tree, rail: &Rail) -> Option<usize> {
    hca_at(tree, &rail.hca, rail.pci.known().map(as_nccl_finds_it))
}

/// The number of levels from `from` up to the first element that also contains `to`, and the kind of that element.
fn way(tree: &Tree, from: usize, to: usize) -> (usize, Kind) {
    let holders: Vec<usize> = upwards(tree, to).collect();
    let shared = upwards(tree, from).enumerate().find(|(_, at)| holders.contains(at));
    shared.map_or((usize::MAX, Kind::System), |(steps, at)| (steps, tree.elements[at].kind))
}
