//! An arbitrary machine, within what a snapshot can describe: every NCCL release must accept the topology file
//! written for it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use railgate_simulate::{parse, simulated};
use railgate_model::{Distance, Part, PciAddress, PortState, Reading};
use railgate_rails::{rail_map, table, topology};
use railgate_topology_check::check_topology;

/// A source of decisions; returns 0 after the end of the input.
struct Dice<'a>(std::slice::Iter<'a, u8>);

impl Dice<'_> {
    fn byte(&mut self) -> u8 {
        self.0.next().copied().unwrap_or(0)
    }

    fn upto(&mut self, count: usize) -> usize {
        usize::from(self.byte()) % count.max(1)
    }

    fn text(&mut self) -> String {
        let length = self.upto(24);
        let bytes: Vec<u8> = (0..length).map(|_| self.byte()).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn address(&mut self) -> PciAddress {
        let domain = match self.byte() {
            0..200 => u32::from(self.byte()),
            _ => 0xffff_u32.rotate_left(u32::from(self.byte())),
        };
        PciAddress { domain, bus: self.byte(), device: self.byte() % 32, function: self.byte() % 8 }
    }

    fn reading<T>(&mut self, value: T) -> Reading<T> {
        match self.byte() % 8 {
            0 => Reading::Unsupported,
            1 => Reading::Failed(self.text()),
            _ => Reading::Known(value),
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut dice = Dice(bytes.iter());
    let kinds = ["h100-sxm", "h200-sxm", "a100-sxm", "b200", "l40s"];
    let Ok((mut profile, _)) = parse(kinds[dice.upto(kinds.len())], &[]) else { return };
    profile.gpus.count = Some(u32::from(dice.byte() % 33));
    profile.fabric.hcas = Some(u32::from(dice.byte() % 33));
    let mut snapshot = simulated(&profile, &[]);
    let (mut gpus, mut hcas) = (0, 0);
    if let Part::Read { data, .. } = &mut snapshot.gpus {
        gpus = data.gpus.len();
        for gpu in &mut data.gpus {
            match dice.byte() % 8 {
                0 => gpu.pci = Reading::Known(dice.address()),
                1 => gpu.pci = Reading::Failed(String::new()),
                _ => {}
            }
        }
    }
    if let Part::Read { data, .. } = &mut snapshot.fabric {
        hcas = data.hcas.len();
        for hca in &mut data.hcas {
            match dice.byte() % 8 {
                0 => hca.pci = Reading::Known(dice.address()),
                1 => hca.name = dice.text(),
                2 => {
                    let node = u32::from(dice.byte());
                    hca.numa_node = dice.reading(node);
                }
                3 => hca.ports[0].state = Reading::Known(PortState::Down),
                4 => hca.ports[0].rate_gbps = Reading::Known(f64::from(dice.byte()) * 10.0 - 10.0),
                5 => {
                    let second =
                        railgate_model::Port { number: u32::from(dice.byte()), ..hca.ports[0].clone() };
                    hca.ports.push(second);
                }
                _ => {}
            }
        }
    }
    if let Part::Read { data, .. } = &mut snapshot.pci {
        for device in &mut data.devices {
            match dice.byte() % 16 {
                0 => device.class = u32::from_le_bytes([dice.byte(), dice.byte(), dice.byte(), dice.byte()]),
                1 => device.bridges.clear(),
                2 => {
                    let node = u32::from(dice.byte());
                    device.numa_node = dice.reading(node);
                }
                3 => device.address = dice.address(),
                4 => {
                    if let Reading::Known(link) = &mut device.link {
                        link.max_width = u32::from(dice.byte());
                        link.max_speed_gts = f64::from(dice.byte()) / 2.0;
                    }
                }
                _ => {}
            }
        }
    }
    if let Part::Read { data, .. } = &mut snapshot.host {
        for _ in 0..dice.upto(4) {
            let (node, list) = (u32::from(dice.byte() % 4), dice.text());
            data.numa_cpus.push((node, list));
        }
        if dice.byte() % 2 == 0 {
            data.cpu = Reading::Known((dice.text(), u32::from(dice.byte()), u32::from(dice.byte())));
        }
    }
    if dice.byte() % 2 == 0 {
        profile.rails.wiring = (0..gpus)
            .filter_map(|gpu| Some((u32::try_from(gpu).ok()?, format!("mlx5_{}", dice.upto(hcas + 1)))))
            .collect();
    }
    let map = rail_map(&snapshot, &profile);
    let _ = table(&map);
    assert!(map.gpus.iter().all(|gpu| gpu.distance.is_none_or(|distance| distance <= Distance::Sys)));
    let Ok(text) = topology(&map, &snapshot) else { return };
    assert_eq!(topology(&map, &snapshot).ok().as_deref(), Some(text.as_str()));
    for machine in [None, Some((&snapshot, &map))] {
        let check = check_topology(text.as_bytes(), None, machine);
        assert!(check.accepted, "{:#?}\n{text}", check.problems);
    }
});
