use railgate_model::{Access, Distance, Fabric, LinkLayer, Part, PciAddress, PciDevice, Port, PortState};
use railgate_simulate::simulated;

use super::*;
use crate::testing::{flat_machine, hca, machine, pci, profile, switches, wired_profile};

fn fabric(snapshot: &mut Snapshot) -> &mut Fabric {
    match &mut snapshot.fabric {
        Part::Read { data, .. } => data,
        other => panic!("{other:?}"),
    }
}

fn names(map: &RailMap) -> Vec<(usize, &str)> {
    map.rails.iter().map(|rail| (rail.number, rail.hca.as_str())).collect()
}

fn left_out<'a>(map: &'a RailMap, port: &str) -> &'a str {
    map.left_out.iter().find(|left| left.port == port).map_or("", |left| left.why.as_str())
}

#[test]
fn each_gpu_gets_the_hca_of_its_switch_and_storage_is_no_rail() {
    let map = rail_map(&machine(), &profile());
    assert_eq!(names(&map), [(0, "mlx5_0"), (1, "mlx5_1"), (2, "mlx5_2"), (3, "mlx5_3")]);
    for (index, gpu) in map.gpus.iter().enumerate() {
        assert_eq!((gpu.rail, gpu.distance), (Some(index), Some(Distance::Pix)));
    }
    assert!(left_out(&map, "mlx5_4:1").contains("no GPU is nearest"));
    assert_eq!(map.method, BY_TREE);
    assert!(map.notes.is_empty(), "{:?}", map.notes);
}

#[test]
fn a_port_that_is_down_leaves_a_gap_and_renumbers_nothing() {
    let mut snapshot = machine();
    fabric(&mut snapshot).hcas[1].ports[0].state = Reading::Known(PortState::Down);
    fabric(&mut snapshot).hcas[1].ports[0].rate_gbps = Reading::Known(10.0);
    let map = rail_map(&snapshot, &profile());
    assert_eq!(names(&map), [(0, "mlx5_0"), (2, "mlx5_2"), (3, "mlx5_3")]);
    assert_eq!(map.gpus[1].rail, None);
    assert_eq!(map.gpus[3].rail, Some(2), "an index into rails");
    assert!(left_out(&map, "mlx5_1:1").contains("rail 1: port is down"));
    assert!(map.notes.iter().any(|note| note.contains("rail 1 is missing")));
}

fn gpus(snapshot: &mut Snapshot) -> &mut Vec<Gpu> {
    match &mut snapshot.gpus {
        Part::Read { data, .. } => &mut data.gpus,
        other => panic!("{other:?}"),
    }
}

fn devices(snapshot: &mut Snapshot) -> &mut Vec<PciDevice> {
    match &mut snapshot.pci {
        Part::Read { data, .. } => &mut data.devices,
        other => panic!("{other:?}"),
    }
}

#[test]
fn eight_gpus_with_eight_hcas_make_eight_near_rails() {
    for id in ["h100-sxm", "h200-sxm", "b200"] {
        let profile = railgate_profiles::load(id, &[]).unwrap();
        let map = rail_map(&simulated(&profile, &[]), &profile);
        assert_eq!(map.rails.len(), 8, "{id}");
        for (index, gpu) in map.gpus.iter().enumerate() {
            assert_eq!((gpu.rail, gpu.distance), (Some(index), Some(Distance::Pix)), "{id}");
            assert_eq!(map.rails[index].number, index);
        }
        assert_eq!(map.method, BY_TREE);
        assert!(map.notes.is_empty(), "{id}: {:?}", map.notes);
    }
}

#[test]
fn a_lost_gpu_does_not_renumber_the_rails() {
    let all = [(0, "mlx5_0"), (1, "mlx5_1"), (2, "mlx5_2"), (3, "mlx5_3")];
    for lost in 0..4 {
        // The GPU is in NVML's list without an address; the PCI tree still has it.
        let mut snapshot = machine();
        gpus(&mut snapshot)[lost].access = Access::Lost("GPU is lost".to_owned());
        gpus(&mut snapshot)[lost].pci = Reading::Failed("GPU is lost".to_owned());
        let map = rail_map(&snapshot, &profile());
        assert_eq!(names(&map), all);
        assert_eq!(map.gpus[lost].rail, Some(lost));
        assert!(map.gpus[lost].pci.known().is_some());

        // NVML no longer counts it.
        gpus(&mut snapshot).remove(lost);
        let map = rail_map(&snapshot, &profile());
        assert_eq!(names(&map), all);
        assert_eq!(map.gpus.len(), 3);

        // The PCI tree no longer has it either; the HCA beside it is recognised by its rate.
        devices(&mut snapshot).remove(2 * lost + 1);
        assert_eq!(names(&rail_map(&snapshot, &profile())), all, "GPU {lost}");
        assert_eq!(rail_map(&snapshot, None).rails.len(), 3, "without a profile it is no known rail");
    }
}

#[test]
fn a_lost_gpu_does_not_change_the_pair_of_another_on_its_switch() {
    let mut fitting = profile();
    let whole = rail_map(&switches(2, 2, 2), &fitting);
    for lost in 0..4 {
        let mut snapshot = switches(2, 2, 2);
        gpus(&mut snapshot).remove(lost);
        let map = rail_map(&snapshot, &fitting);
        assert_eq!(names(&map), names(&whole));
        for gpu in &map.gpus {
            assert_eq!(gpu.rail, whole.gpus[gpu.index as usize].rail);
        }
    }
    fitting.gpus.count = None;
    assert_eq!(names(&rail_map(&switches(2, 2, 2), &fitting)), names(&whole));
}

#[test]
fn without_nvml_the_rails_follow_from_the_pci_tree() {
    let mut snapshot = machine();
    snapshot.gpus = Part::Silent { after_ms: 8000.0 };
    let map = rail_map(&snapshot, &profile());
    assert!(map.gpus.is_empty() && map.notes[0].contains("no answer in 8.0 s"));
    assert_eq!(map.rails.len(), 4);
    assert!(left_out(&map, "mlx5_4:1").contains("no GPU is nearest"));
}

#[test]
fn the_order_does_not_depend_on_names() {
    let profile = railgate_profiles::load("h200-sxm", &[]).unwrap();
    let straight = simulated(&profile, &[]);
    let mut shuffled = straight.clone();
    let hcas = &mut fabric(&mut shuffled).hcas;
    let count = hcas.len();
    for (place, hca) in hcas.iter_mut().enumerate() {
        hca.name = format!("mlx5_{}", (place * 3 + 5) % (count + 2));
    }
    hcas.sort_by(|a, b| a.name.cmp(&b.name));
    let (straight, shuffled) = (rail_map(&straight, &profile), rail_map(&shuffled, &profile));
    assert_ne!(names(&straight), names(&shuffled));
    let places =
        |map: &RailMap| map.rails.iter().map(|rail| (rail.number, rail.pci.clone())).collect::<Vec<_>>();
    assert_eq!(places(&straight), places(&shuffled));
    let rails = |map: &RailMap| map.gpus.iter().map(|gpu| gpu.rail).collect::<Vec<_>>();
    assert_eq!(rails(&straight), rails(&shuffled));
}

#[test]
fn a_storage_port_is_recognised_by_its_rate_and_a_slow_rail_is_kept() {
    let mut snapshot = machine();
    let beside = pci(
        "0000:15:01.0",
        0x02_0700,
        Reading::Known(0),
        "pci0000:10",
        &["0000:10:01.0", "0000:11:00.0", "0000:12:03.0"],
    );
    if let Part::Read { data, .. } = &mut snapshot.pci {
        data.devices.push(beside);
    }
    fabric(&mut snapshot).hcas.push(hca("mlx5_9", "0000:15:01.0", Reading::Known(0), 200.0));
    let map = rail_map(&snapshot, &profile());
    assert_eq!(map.rails.len(), 4);
    assert!(left_out(&map, "mlx5_9:1").contains("200 Gb/s"));

    let mut slow = machine();
    fabric(&mut slow).hcas[2].ports[0].rate_gbps = Reading::Known(200.0);
    let map = rail_map(&slow, &profile());
    assert_eq!(map.rails.len(), 4);
    assert!(map.notes.iter().any(|note| note.contains("mlx5_2:1 runs at 200 Gb/s")));
}

#[test]
fn excluded_ports_and_foreign_link_layers_are_left_out() {
    let mut fitting = profile();
    fitting.fabric.exclude = vec!["mlx5_4".to_owned(), "mlx5_bond*".to_owned()];
    let mut snapshot = machine();
    fabric(&mut snapshot).hcas[3].ports[0].link_layer = Reading::Known(LinkLayer::Ethernet);
    let map = rail_map(&snapshot, &fitting);
    assert!(left_out(&map, "mlx5_4:1").contains("'mlx5_4'"));
    assert!(left_out(&map, "mlx5_3:1").contains("Ethernet"));
    assert_eq!(map.rails.len(), 3);
    assert_eq!(fitting.fabric.exclusion("mlx5_bond_0"), Some("mlx5_bond*"));
    assert_eq!(fitting.fabric.exclusion("mlx5_40"), None);
}

#[test]
fn with_fewer_hcas_two_gpus_share_one() {
    let snapshot = switches(4, 2, 1);
    let mut fitting = profile();
    fitting.gpus.count = Some(8);
    for map in [rail_map(&snapshot, &fitting), rail_map(&snapshot, None)] {
        assert_eq!(map.rails.len(), 4);
        let rails: Vec<Option<usize>> = map.gpus.iter().map(|gpu| gpu.rail).collect();
        assert_eq!(rails, [0, 0, 1, 1, 2, 2, 3, 3].map(Some));
        assert!(map.gpus.iter().all(|gpu| gpu.distance == Some(Distance::Pix)));
        assert!(left_out(&map, "mlx5_4:1").contains("no GPU is nearest"));
        assert_eq!(map.method, BY_TREE);
    }
}

#[test]
fn gpus_of_a_socket_without_hcas_share_the_far_ones_evenly() {
    let mut snapshot = machine();
    fabric(&mut snapshot).hcas.truncate(2);
    let map = rail_map(&snapshot, None);
    let rails: Vec<_> = map.gpus.iter().map(|gpu| (gpu.rail, gpu.distance)).collect();
    assert_eq!(
        rails,
        [
            (Some(0), Some(Distance::Pix)),
            (Some(1), Some(Distance::Pix)),
            (Some(0), Some(Distance::Sys)),
            (Some(1), Some(Distance::Sys)),
        ]
    );
    assert_eq!(map.method, BY_ORDER);
}

#[test]
fn both_ports_of_a_card_are_adjacent_rails() {
    let mut snapshot = machine();
    for hca in &mut fabric(&mut snapshot).hcas[..4] {
        let second = Port { number: 2, ..hca.ports[0].clone() };
        hca.ports.push(second);
    }
    let mut fitting = profile();
    fitting.fabric.hcas = Some(8);
    let map = rail_map(&snapshot, &fitting);
    let ports: Vec<String> = map.rails.iter().map(|rail| format!("{}:{}", rail.hca, rail.port)).collect();
    assert_eq!(ports[..4], ["mlx5_0:1", "mlx5_0:2", "mlx5_1:1", "mlx5_1:2"]);
    assert_eq!(map.gpus[3].rail, Some(6));

    // A second port without a cable is not a rail, and does not count as missing.
    for hca in &mut fabric(&mut snapshot).hcas[..4] {
        hca.ports[1].state = Reading::Known(PortState::Down);
    }
    for map in [rail_map(&snapshot, &profile()), rail_map(&snapshot, None)] {
        assert_eq!(map.rails.len(), 4);
        assert!(map.notes.is_empty(), "{:?}", map.notes);
        assert!(left_out(&map, "mlx5_2:2").contains("there are enough rails without it"));
    }
}

#[test]
fn a_port_with_an_unreadable_state_stays_a_rail() {
    let mut snapshot = machine();
    fabric(&mut snapshot).hcas[2].ports[0].state = Reading::Failed("I/O error".to_owned());
    let map = rail_map(&snapshot, &profile());
    assert_eq!(map.rails.len(), 4);
    assert!(map.notes[0].contains("mlx5_2:1: port is in an unknown state (I/O error)"));
}

#[test]
fn two_hcas_and_two_gpus_of_one_switch_pair_up() {
    let map = rail_map(&switches(2, 2, 2), &profile());
    let rails: Vec<Option<usize>> = map.gpus.iter().map(|gpu| gpu.rail).collect();
    assert_eq!(rails, [Some(0), Some(1), Some(2), Some(3)]);
}

#[test]
fn a_flat_tree_is_wired_by_the_profile_or_in_order() {
    let map = rail_map(&flat_machine(), &wired_profile());
    assert_eq!(names(&map), [(0, "mlx5_3"), (1, "mlx5_2"), (2, "mlx5_1"), (3, "mlx5_0")]);
    assert_eq!(map.gpus[0].rail, Some(0));
    assert_eq!(map.method, BY_PROFILE);

    let map = rail_map(&flat_machine(), &profile());
    assert_eq!(map.method, BY_ORDER);
    let rails: Vec<_> = map.gpus.iter().map(|gpu| (gpu.rail, gpu.distance)).collect();
    assert_eq!(rails, [0, 1, 2, 3].map(|rail| (Some(rail), Some(Distance::Phb))));
    assert!(map.notes.iter().any(|note| note.contains("wiring")));
}

#[test]
fn the_pci_tree_takes_precedence_over_the_profile() {
    let map = rail_map(&machine(), &wired_profile());
    assert_eq!(map.method, BY_TREE);
    assert_eq!(map.gpus[0].rail, Some(0));
    assert_eq!(map.rails[0].hca, "mlx5_0");
}

#[test]
fn a_machine_without_hcas_has_no_rails_and_no_note() {
    let mut snapshot = machine();
    fabric(&mut snapshot).hcas.clear();
    let mut fitting = profile();
    fitting.fabric.hcas = Some(0);
    let map = rail_map(&snapshot, &fitting);
    assert!(map.rails.is_empty() && map.left_out.is_empty() && map.notes.is_empty());
    assert_eq!(map.gpus.len(), 4);
}

#[test]
fn a_missing_hca_leaves_a_gap_and_its_gpu_without_a_rail() {
    let mut snapshot = machine();
    fabric(&mut snapshot).hcas.remove(1);
    devices(&mut snapshot).remove(2);
    let map = rail_map(&snapshot, &profile());
    assert_eq!(names(&map), [(0, "mlx5_0"), (2, "mlx5_2"), (3, "mlx5_3")]);
    assert_eq!(map.gpus.iter().map(|gpu| gpu.rail).collect::<Vec<_>>(), [Some(0), None, Some(1), Some(2)]);
    assert_eq!(map.method, BY_TREE);
    assert!(map.notes.iter().any(|note| note == "3 rails, the machine type has 4"));

    let mut shared = switches(4, 2, 1);
    fabric(&mut shared).hcas.remove(2);
    let mut fitting = profile();
    fitting.gpus.count = Some(8);
    let map = rail_map(&shared, &fitting);
    assert_eq!(names(&map), [(0, "mlx5_0"), (1, "mlx5_1"), (3, "mlx5_3")]);
    assert_eq!(map.gpus[5].rail, None);

    // The two HCAs of a switch are alike, so the missing one cannot be identified.
    let mut alike = switches(2, 2, 2);
    fabric(&mut alike).hcas.remove(0);
    assert_eq!(names(&rail_map(&alike, &profile())), [(0, "mlx5_1"), (1, "mlx5_2"), (2, "mlx5_3")]);

    let mut wired = flat_machine();
    fabric(&mut wired).hcas.remove(1);
    let map = rail_map(&wired, &wired_profile());
    assert_eq!(names(&map), [(0, "mlx5_3"), (1, "mlx5_2"), (3, "mlx5_0")]);
}

#[test]
fn an_hca_without_a_switch_is_a_rail_if_there_are_fewer_hcas_than_gpus() {
    let mut snapshot = switches(2, 2, 1);
    fabric(&mut snapshot).hcas[2].ports[0].rate_gbps = Reading::Known(400.0);
    fabric(&mut snapshot).hcas.remove(1);
    let mut fitting = profile();
    for (hcas, rails) in [(2, 2), (1, 1), (4, 1)] {
        fitting.fabric.hcas = Some(hcas);
        let map = rail_map(&snapshot, &fitting);
        assert_eq!(map.rails.len(), rails, "{hcas}: {map:?}");
    }
    fitting.fabric.hcas = Some(2);
    let map = rail_map(&snapshot, &fitting);
    assert_eq!(map.gpus[2].distance, Some(Distance::Sys));
    assert_eq!(map.method, BY_ORDER);
}

#[test]
fn rails_follow_the_order_of_the_gpus_rather_than_of_the_hcas() {
    let mut snapshot = switches(1, 2, 2);
    // GPU 0 and mlx5_1 are below a switch of their own, mlx5_0 and GPU 1 above it.
    for (device, slot) in [(1, 0), (2, 1)] {
        let below = ["0000:12:00.0", "0000:17:00.0", ["0000:18:00.0", "0000:18:01.0"][slot]];
        let bridges = &mut devices(&mut snapshot)[device].bridges;
        bridges.truncate(2);
        bridges.extend(below.iter().map(|bridge| bridge.parse::<PciAddress>().unwrap()));
    }
    let map = rail_map(&snapshot, None);
    assert_eq!(names(&map), [(0, "mlx5_1"), (1, "mlx5_0")]);
    assert_eq!(map.gpus.iter().map(|gpu| gpu.rail).collect::<Vec<_>>(), [Some(0), Some(1)]);
}
