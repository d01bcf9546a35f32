//! Machines of many types and railgate's output for each: `tests/machines/<name>.txt` holds the rail map, the environment of
//! jobs, and the topology file. `REWRITE=1 cargo test -p railgate-tests --test rails` writes the files again; review the diff
//! before committing it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;

use railgate_model::{
    Fabric, Host, JobGpus, LinkLayer, Net, Part, Pci, PciAddress, Port, Profile, Reading, Snapshot,
};
use railgate_rails::{JobShape, RailsConfig, env, environment, rail_map, table, topology, topology_wanted};
use railgate_simulate::recorded;
use railgate_simulate::{inject, simulated};
use railgate_topology_check::check_topology;

use super::{folder, same_as_stored};

struct Machine {
    name: &'static str,
    about: &'static str,
    snapshot: Snapshot,
    profile: Profile,
    config: RailsConfig,
    /// Jobs besides one that holds the whole node: GPU indices.
    jobs: Vec<Vec<u32>>,
}

impl Machine {
    /// A simulated machine of this type; faults follow a colon.
    fn of(name: &'static str, about: &'static str, text: &str) -> Machine {
        let (profile, faults) = railgate_simulate::parse(text, &[]).unwrap();
        Machine::with(name, about, simulated(&profile, &faults), profile)
    }

    fn with(name: &'static str, about: &'static str, snapshot: Snapshot, profile: Profile) -> Machine {
        Machine { name, about, snapshot, profile, config: RailsConfig::default(), jobs: Vec::new() }
    }

    /// The same type with a changed profile.
    fn bent(name: &'static str, about: &'static str, id: &str, bend: impl FnOnce(&mut Profile)) -> Machine {
        let mut profile = railgate_profiles::load(id, &[]).unwrap();
        bend(&mut profile);
        Machine::with(name, about, simulated(&profile, &[]), profile)
    }

    fn jobs(mut self, jobs: &[&[u32]]) -> Machine {
        self.jobs = jobs.iter().map(|gpus| gpus.to_vec()).collect();
        self
    }

    fn config(mut self, change: impl FnOnce(&mut RailsConfig)) -> Machine {
        change(&mut self.config);
        self
    }

    fn fabric(mut self, change: impl FnOnce(&mut Fabric)) -> Machine {
        change(read(&mut self.snapshot.fabric));
        self
    }

    fn pci(mut self, change: impl FnOnce(&mut Pci)) -> Machine {
        change(read(&mut self.snapshot.pci));
        self
    }

    fn host(mut self, change: impl FnOnce(&mut Host)) -> Machine {
        change(read(&mut self.snapshot.host));
        self
    }

    fn profile(mut self, change: impl FnOnce(&mut Profile)) -> Machine {
        change(&mut self.profile);
        self
    }

    /// Puts two GPUs and the HCA of the first one below each switch.
    fn two_to_a_switch(mut self) -> Machine {
        let gpus: Vec<PciAddress> =
            read(&mut self.snapshot.gpus).gpus.iter().filter_map(|gpu| gpu.pci.known().copied()).collect();
        self.pci(|pci| {
            for pair in gpus.chunks(2) {
                let first = pci.devices.iter().find(|device| device.address == pair[0]).unwrap().clone();
                let second = pci.devices.iter_mut().find(|device| device.address == pair[1]).unwrap();
                let mut own = *second.bridges.last().unwrap();
                own.bus = first.bridges.last().unwrap().bus;
                own.device = 3;
                second.bridges = first.bridges[..2].iter().copied().chain([own]).collect();
                second.root = first.root;
            }
        })
    }

    /// The view of a virtual machine: every device is directly below its own root port, with other bus ids.
    fn flattened(mut self) -> Machine {
        let moved = |old: PciAddress, gpus: &[PciAddress], hcas: &[PciAddress]| -> Option<PciAddress> {
            let place = |list: &[PciAddress]| list.iter().position(|at| *at == old);
            let domain = place(gpus).map(|k| 1 + k).or_else(|| place(hcas).map(|k| 0x101 + k))?;
            Some(format!("{domain:04x}:00:00.0").parse().unwrap())
        };
        let gpus: Vec<PciAddress> =
            read(&mut self.snapshot.gpus).gpus.iter().filter_map(|gpu| gpu.pci.known().copied()).collect();
        let hcas: Vec<PciAddress> =
            read(&mut self.snapshot.fabric).hcas.iter().filter_map(|hca| hca.pci.known().copied()).collect();
        for gpu in &mut read(&mut self.snapshot.gpus).gpus {
            gpu.pci = Reading::Known(moved(*gpu.pci.known().unwrap(), &gpus, &hcas).unwrap());
        }
        for hca in &mut read(&mut self.snapshot.fabric).hcas {
            hca.pci = Reading::Known(moved(*hca.pci.known().unwrap(), &gpus, &hcas).unwrap());
        }
        let devices = &mut read(&mut self.snapshot.pci).devices;
        devices.retain_mut(|device| {
            let Some(address) = moved(device.address, &gpus, &hcas) else { return false };
            device.address = address;
            device.bridges.clear();
            device.root = format!("pci{:04x}:00", address.domain);
            true
        });
        self.host(|host| host.virtualised = Reading::Known(true))
    }
}

fn read<T>(part: &mut Part<T>) -> &mut T {
    match part {
        Part::Read { data, .. } => data,
        _ => panic!("a part that was not read"),
    }
}

fn machines() -> Vec<Machine> {
    let recording = |name: &'static str, about, file: &str, gpus| {
        let mut profile = railgate_profiles::load("h200-sxm", &[]).unwrap();
        profile.gpus.count = Some(gpus);
        profile.fabric.hcas = Some(0);
        Machine::with(name, about, recorded(&folder("snapshots").join(file)).unwrap(), profile)
    };
    vec![
        Machine::of(
            "hgx-h100",
            "HGX H100: eight GPUs, each with an HCA on its switch; one Ethernet bond for storage",
            "h100-sxm",
        )
        .jobs(&[&[0, 1, 2, 3], &[4, 5, 6, 7], &[6], &[1, 4]]),
        Machine::of(
            "hgx-h100-always",
            "the same for a site that wants a topology file on bare metal as well",
            "h100-sxm",
        )
        .config(|config| config.topology_file = railgate_rails::TopologyFile::Always),
        Machine::bent(
            "h100-roce",
            "HGX H100 with eight RoCE rails, traffic class and queue pairs set by the site",
            "h100-sxm",
            |profile| {
                profile.fabric.link_layer = Some("ethernet".to_owned());
            },
        )
        .config(|config| {
            config.traffic_class = Some(106);
            config.queue_pairs = Some(4);
        })
        .jobs(&[&[0, 1]]),
        Machine::of(
            "h200-vm",
            "H200 in a virtual machine that hides its switches; the profile knows the wiring",
            "h200-sxm",
        )
        .flattened()
        .profile(|profile| profile.rails.wiring = (0..8).map(|k| (k, format!("mlx5_{k}"))).collect())
        .jobs(&[&[2, 3], &[7]]),
        Machine::of(
            "h200-vm-unwired",
            "the same without a wiring: unknown, so no topology file is written",
            "h200-sxm",
        )
        .flattened(),
        recording(
            "h200-vm-gpus-only",
            "recorded: four H200s of a virtual machine, no RDMA",
            "h200-x4-vm.json",
            4,
        ),
        Machine::of("a100-8-hcas", "HGX A100 with eight HCAs", "a100-sxm").jobs(&[&[0, 1, 2, 3]]),
        Machine::bent("a100-4-hcas", "A100 with four HCAs: two GPUs share each", "a100-sxm", |profile| {
            profile.fabric.hcas = Some(4);
        })
        .two_to_a_switch()
        .jobs(&[&[0], &[0, 1], &[1, 2, 3], &[4, 5, 6, 7]]),
        Machine::bent("h100-dual-port", "four cards of two ports, each port a rail", "h100-sxm", |profile| {
            profile.fabric.hcas = Some(4);
            profile.fabric.rate_gbps = Some(200.0);
        })
        .two_to_a_switch()
        .profile(|profile| profile.fabric.hcas = Some(8))
        .fabric(|fabric| {
            for hca in fabric.hcas.iter_mut().take(4) {
                let second = Port { number: 2, ..hca.ports[0].clone() };
                hca.ports.push(second);
            }
        })
        .jobs(&[&[0, 1], &[5]]),
        Machine::of(
            "dgx-h100-storage",
            "DGX H100: two more InfiniBand HCAs for storage, under switches of their own",
            "h100-sxm",
        )
        .fabric(|fabric| {
            for (k, bus) in [(8, "0000:aa:00.0"), (9, "0000:2a:00.0")] {
                let mut hca = fabric.hcas[0].clone();
                hca.name = format!("mlx5_{k}");
                hca.pci = Reading::Known(bus.parse().unwrap());
                hca.numa_node = Reading::Known(u32::from(k == 8));
                fabric.hcas.push(hca);
            }
        })
        .pci(|pci| {
            for (bus, root, port, numa) in [
                ("0000:aa:00.0", "pci0000:a8", "0000:a8:01.0", 1),
                ("0000:2a:00.0", "pci0000:28", "0000:28:01.0", 0),
            ] {
                let mut device = pci.devices.iter().find(|device| device.class == 0x02_0700).unwrap().clone();
                device.address = bus.parse().unwrap();
                device.root = root.to_owned();
                device.bridges = vec![port.parse().unwrap()];
                device.numa_node = Reading::Known(numa);
                pci.devices.push(device);
            }
        })
        .jobs(&[&[0, 1, 2, 3]]),
        Machine::of("h100-amd", "H100 on an AMD host with eight NUMA nodes", "h100-sxm")
            .host(|host| {
                host.cpu = Reading::Known(("AuthenticAMD".to_owned(), 25, 17));
                host.numa_cpus = (0..8)
                    .map(|k| (k, format!("{}-{},{}-{}", k * 24, k * 24 + 23, 192 + k * 24, 215 + k * 24)))
                    .collect();
            })
            .pci(|pci| {
                // Distributes two slots of each half of the machine over the quarters of a socket.
                let buses: BTreeSet<String> =
                    pci.devices.iter().filter(|d| d.class == 0x03_0200).map(|d| d.root.clone()).collect();
                let buses: Vec<String> = buses.into_iter().collect();
                for device in &mut pci.devices {
                    if let Some(k) = buses.iter().position(|root| *root == device.root) {
                        device.numa_node = Reading::Known(u32::try_from(k).unwrap());
                    }
                }
            })
            .fabric(|fabric| {
                for (k, hca) in (0..).zip(fabric.hcas.iter_mut().take(8)) {
                    hca.numa_node = Reading::Known(k);
                }
            })
            .config(|config| config.topology_file = railgate_rails::TopologyFile::Always),
        Machine::of(
            "h100-hca-missing",
            "HGX H100 with a missing HCA: one rail is empty, none is renumbered",
            "h100-sxm:ib-missing@3",
        )
        .jobs(&[&[3], &[2, 3]]),
        Machine::of("h100-port-down", "HGX H100 with a port down", "h100-sxm:ib-port-down@6")
            .jobs(&[&[6, 7]]),
        Machine::of(
            "h100-renamed",
            "HGX H100 with other device names: the same rails in the same order",
            "h100-sxm",
        )
        .fabric(|fabric| {
            for (k, hca) in fabric.hcas.iter_mut().enumerate() {
                hca.name = format!("rocep{}s0", 90 - 7 * k);
                hca.ports[0].link_layer = Reading::Known(LinkLayer::InfiniBand);
            }
            fabric.hcas.sort_by(|a, b| a.name.cmp(&b.name));
        })
        .profile(|profile| profile.fabric.exclude = vec!["rocep34s0".to_owned()]),
        Machine::of("b200", "HGX B200", "b200").jobs(&[&[0]]),
        Machine::of("l40s", "PCIe cards without RDMA", "l40s").jobs(&[&[0, 1]]),
    ]
}

fn text(machine: &Machine) -> String {
    let Machine { about, snapshot, profile, config, jobs, .. } = machine;
    let map = rail_map(snapshot, profile);
    let mut text = format!("{about}\n\n== rail map\n{}", table(&map));
    let whole = std::iter::once(("the whole node".to_owned(), JobGpus::default()));
    let parts = jobs.iter().map(|gpus| {
        let names: Vec<String> = gpus.iter().map(u32::to_string).collect();
        (format!("GPUs {}", names.join(", ")), JobGpus::these(gpus.clone()))
    });
    for (who, gpus) in whole.chain(parts) {
        let shape = JobShape { gpus, job_id: 4242, nodes: Some(2), ..JobShape::default() };
        let settings = environment(&map, snapshot, config, &shape);
        let _ = write!(
            text,
            "\n== environment of a job of two nodes with {who}\n{}",
            env(&settings, Net::Ib, None)
        );
    }
    let wanted = if topology_wanted(config, &map, snapshot) { "is made" } else { "would be" };
    let _ = match topology(&map, snapshot) {
        Ok(xml) => write!(text, "\n== topology file ({wanted})\n{xml}"),
        Err(why) => writeln!(text, "\n== no topology file: {why}"),
    };
    text
}

#[test]
fn every_machine_has_the_stored_output() {
    let mut names = BTreeSet::new();
    let mut wrong = Vec::new();
    for machine in machines() {
        let path = folder("machines").join(format!("{}.txt", machine.name));
        if !same_as_stored(&path, &text(&machine)) {
            wrong.push(machine.name);
        }
        assert!(names.insert(format!("{}.txt", machine.name)), "{} twice", machine.name);
    }
    assert!(wrong.is_empty(), "{wrong:?}: see above; REWRITE=1 stores the current output");
    assert!(names.len() >= 10);
    let stored = fs::read_dir(folder("machines")).unwrap().map(|entry| entry.unwrap().file_name());
    let stored: BTreeSet<String> = stored.map(|name| name.to_string_lossy().into_owned()).collect();
    assert_eq!(stored, names, "every file belongs to a machine");
}

#[test]
fn topology_files_match_their_machine_and_no_other_type() {
    let machines = machines();
    let mut files = 0;
    for machine in &machines {
        let map = rail_map(&machine.snapshot, &machine.profile);
        let Ok(xml) = topology(&map, &machine.snapshot) else { continue };
        files += 1;
        let check = check_topology(xml.as_bytes(), None, Some((&machine.snapshot, &map)));
        assert!(check.right() && check.unknown.is_empty(), "{}: {check:#?}", machine.name);
        assert!(check.problems.is_empty(), "{}: {check:#?}", machine.name);
        // The bus ids of this machine are unique.
        if machine.name == "h200-vm" {
            for other in machines.iter().filter(|other| other.name.starts_with("hgx") || other.name == "b200")
            {
                let map = rail_map(&other.snapshot, &other.profile);
                let stale = check_topology(xml.as_bytes(), None, Some((&other.snapshot, &map)));
                assert!(stale.accepted && !stale.right(), "{}: {stale:#?}", other.name);
            }
        }
    }
    assert!(files >= 8, "{files}");
}

#[test]
fn the_topology_file_stays_valid_after_a_fault() {
    let (profile, _) = railgate_simulate::parse("h100-sxm", &[]).unwrap();
    for fault in ["ib-missing@3", "ib-port-down@0", "gpu-lost@5"] {
        let healthy = simulated(&profile, &[]);
        let file = topology(&rail_map(&healthy, &profile), &healthy).unwrap();
        let mut broken = healthy.clone();
        inject(&mut broken, &fault.parse().unwrap());
        let map = rail_map(&broken, &profile);
        // The file of the healthy machine still describes it: a fault does not make the file stale.
        let check = check_topology(file.as_bytes(), None, Some((&broken, &map)));
        assert!(check.accepted && check.right(), "{fault}: {check:#?}");
    }
}
