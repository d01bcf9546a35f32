//! Whether a file describes this machine: every GPU and every rail's HCA in it, each GPU nearest to its own
//! rail, on its own NUMA node.

use std::collections::BTreeSet;

use railgate_node::{Host, PciAddress, RailMap, Reading, Snapshot};

use super::grammar::{Era, Kind, Tree, printable};
use super::graph::{Devices, Placed, below, cpus, is_busid, looks_like_gpu, looks_like_hca, upwards};
use super::{Effect, Found};
use crate::map::{BY_PROFILE, BY_TREE};
use crate::topology::{as_nccl_finds_it, belong_together, cpu_mask};

/// A live machine to hold a file against.
pub(super) struct Machine<'a> {
    snapshot: &'a Snapshot,
    map: &'a RailMap,
    /// What could not be compared, and why.
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

    /// `None` where the machine did not say which devices it has.
    pub(super) fn devices(&self, tree: &Tree) -> Option<Devices> {
        if self.snapshot.gpus.data().is_none() || self.snapshot.fabric.data().is_none() {
            return None;
        }
        let mut devices = Devices {
            vendor: self.host().and_then(|host| host.cpu.known()).map(|(vendor, ..)| vendor.clone()),
            ..Devices::default()
        };
        for device in self.snapshot.pci.data().map_or(&[][..], |pci| &pci.devices) {
            devices.real.insert(device.address.to_string());
            devices.real.extend(device.bridges.iter().map(PciAddress::to_string));
        }
        for (index, address) in self.gpus() {
            devices.real.insert(address.to_string());
            let placed = pci_at(tree, &address.to_string());
            devices.placed.extend(placed.map(|at| Placed { name: gpu_name(index), at, gpu: true }));
        }
        for hca in self.snapshot.fabric.data().map_or(&[][..], |fabric| &fabric.hcas) {
            devices.real.extend(hca.pci.known().map(PciAddress::to_string));
            let at = hca_at(tree, &hca.name, &hca.pci);
            devices.placed.extend(at.map(|at| Placed { name: hca.name.clone(), at, gpu: false }));
        }
        Some(devices)
    }

    fn gpus(&self) -> impl Iterator<Item = (u32, PciAddress)> {
        self.map.gpus.iter().filter_map(|gpu| Some((gpu.index, *gpu.pci.known()?)))
    }

    /// Says what of the machine is not in the file, or elsewhere in it.
    pub(super) fn compare(&self, tree: &Tree, era: &Era, found: &mut Vec<Found>) {
        let mut say = |effect: Effect, at: Option<usize>, what: String, fix: &str| {
            found.push(Found { effect, at, what, fix: fix.to_owned() });
        };
        let mut known = BTreeSet::new();
        let mut absent = 0_usize;
        let present = self.gpus().any(|(_, address)| pci_at(tree, &address.to_string()).is_some());
        for (index, address) in self.gpus() {
            known.insert(address.to_string());
            if pci_at(tree, &address.to_string()).is_none() {
                absent += 1;
                let (effect, then) = if era.splits_hosts && present && !self.has_its_cpu(tree, index) {
                    (Effect::Refused, "takes it for another host's, and comes up with neither")
                } else {
                    (Effect::Misled, "places it by itself")
                };
                let what = format!("GPU {index} ({address}) is not in the file: NCCL {then}");
                say(effect, None, what, "make the file anew on this machine");
            }
        }
        for rail in &self.map.rails {
            if hca_at(tree, &rail.hca, &rail.pci).is_none() {
                let Some(address) = rail.pci.known() else { continue };
                absent += 1;
                let what = format!(
                    "{} ({}) is not in the file: NCCL places it by itself",
                    rail.hca,
                    as_nccl_finds_it(address)
                );
                say(Effect::Misled, None, what, "make the file anew on this machine");
            }
        }
        for hca in self.snapshot.fabric.data().map_or(&[][..], |fabric| &fabric.hcas) {
            known.extend(hca.pci.known().map(|address| as_nccl_finds_it(address).to_string()));
        }
        for element in tree.elements.iter().filter(|element| element.kind == Kind::Pci) {
            let Some(busid) = element.get("busid").filter(|busid| is_busid(busid)) else { continue };
            let leaf = below(tree, element, Kind::Pci).next().is_none();
            if !leaf || known.contains(busid) {
                continue;
            }
            let kind = match () {
                () if looks_like_gpu(tree, element) => "GPU",
                () if looks_like_hca(tree, element) => "HCA",
                () => continue,
            };
            // With devices of the machine missing from the file, it is another machine's; else one is broken.
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
                    say(Effect::Misled, Some(cpu.at), what, "make the file anew on this machine");
                } else if mask != here {
                    let what =
                        format!("affinity of <cpu> {}: the machine says {list}", printable(id.as_bytes()));
                    say(Effect::Note, Some(cpu.at), what, "");
                }
            }
        }
    }

    /// The file has the NUMA node that the kernel gives this GPU: NCCL puts it there.
    fn has_its_cpu(&self, tree: &Tree, index: u32) -> bool {
        let gpu = self.map.gpus.iter().find(|gpu| gpu.index == index);
        gpu.and_then(|gpu| gpu.numa_node.known()).is_some_and(|node| {
            let node = node.to_string();
            tree.elements.iter().any(|e| e.kind == Kind::Cpu && e.get("numaid") == Some(node.as_str()))
        })
    }

    /// Each GPU shares a bridge with its own rail's HCA where it does so on the machine, and none stands nearer.
    fn bridges(&self, tree: &Tree, say: &mut impl FnMut(Effect, Option<usize>, String, &str)) {
        if self.map.method != BY_TREE && self.map.method != BY_PROFILE {
            return;
        }
        let places: Vec<Option<usize>> =
            self.map.rails.iter().map(|rail| hca_at(tree, &rail.hca, &rail.pci)).collect();
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
                        "GPU {} and {} share a bridge in the file, and not on the machine: GPUDirect where it cannot be",
                        gpu.index, rail.hca
                    );
                    say(Effect::Misled, place, what, "a bridge of its own for the GPU");
                }
                continue;
            }
            match nearest {
                Some((there, other)) if other.pci != rail.pci && (shared != Kind::Pci || there < steps) => {
                    let what = format!(
                        "GPU {} stands nearer to {} than to {}, its own rail's",
                        gpu.index, other.hca, rail.hca
                    );
                    say(Effect::Misled, place, what, fix);
                }
                _ if shared != Kind::Pci => {
                    let what = format!(
                        "GPU {} and {} share no bridge: NCCL goes without GPUDirect",
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
        let hcas = self.map.rails.iter().filter_map(|rail| {
            Some((rail.hca.clone(), hca_at(tree, &rail.hca, &rail.pci)?, *rail.numa_node.known()?))
        });
        for (name, at, node) in gpus.chain(hcas).collect::<BTreeSet<_>>() {
            let cpu = upwards(tree, at).find(|up| tree.elements[*up].kind == Kind::Cpu);
            let Some(said) = cpu.and_then(|cpu| tree.elements[cpu].get("numaid")) else { continue };
            if said.trim() != node.to_string() {
                let what =
                    format!("{name} is on NUMA node {node}, the file says {}", printable(said.as_bytes()));
                say(Effect::Misled, Some(tree.elements[at].at), what, "make the file anew on this machine");
            }
        }
    }
}

fn gpu_name(index: u32) -> String {
    format!("GPU {index}")
}

/// NCCL takes the first of a bus id, wherever it stands.
fn pci_at(tree: &Tree, busid: &str) -> Option<usize> {
    tree.elements.iter().position(|element| element.kind == Kind::Pci && element.get("busid") == Some(busid))
}

/// By the name of a `<net>` first, then by its bus id.
fn hca_at(tree: &Tree, name: &str, pci: &Reading<PciAddress>) -> Option<usize> {
    let net = tree
        .elements
        .iter()
        .position(|element| element.kind == Kind::Net && element.get("name") == Some(name));
    let holder = |at| upwards(tree, at).find(|up| matches!(tree.elements[*up].kind, Kind::Pci | Kind::Cpu));
    net.and_then(holder).or_else(|| pci_at(tree, &as_nccl_finds_it(pci.known()?).to_string()))
}

/// How many elements up from `from` the first is that holds `to` as well, and what it is.
fn way(tree: &Tree, from: usize, to: usize) -> (usize, Kind) {
    let holders: Vec<usize> = upwards(tree, to).collect();
    let shared = upwards(tree, from).enumerate().find(|(_, at)| holders.contains(at));
    shared.map_or((usize::MAX, Kind::System), |(steps, at)| (steps, tree.elements[at].kind))
}
