//! Simulates every machine type that railgate ships, and compares the wiring with the profile.

use railgate_rails::{BY_TREE, JobShape, RailsConfig, environment, rail_map, table};

#[test]
fn every_simulated_machine_is_wired_as_in_its_profile() {
    for id in railgate_profiles::builtin_ids() {
        let (profile, faults) = railgate_simulate::parse(id, &[]).expect("a built-in profile");
        let snapshot = railgate_simulate::simulated(&profile, &faults);
        let map = rail_map(&snapshot, &profile);
        let expected = profile.fabric.hcas.map_or(0, |count| count as usize);
        assert_eq!(map.rails.len(), expected, "{id}:\n{}", table(&map));
        let numbers: Vec<usize> = map.rails.iter().map(|rail| rail.number).collect();
        assert_eq!(numbers, (0..expected).collect::<Vec<_>>(), "{id}");
        assert!(map.notes.is_empty(), "{id}: {:?}", map.notes);
        if expected > 0 {
            assert_eq!(map.method, BY_TREE, "{id}:\n{}", table(&map));
            assert!(map.gpus.iter().all(|gpu| gpu.rail.is_some()), "{id}:\n{}", table(&map));
        }
        let settings = environment(&map, &snapshot, &RailsConfig::default(), &JobShape::default());
        let list = settings.iter().find(|setting| setting.name == "NCCL_IB_HCA");
        assert_eq!(list.is_some(), expected > 0, "{id}");
    }
}

#[test]
fn a_fault_does_not_renumber_the_rails() {
    for text in [
        "h100-sxm:gpu-lost@3",
        "h100-sxm:ib-port-down@2",
        "h100-sxm:gpu-missing@0",
        "h100-sxm:ib-missing@5",
        "a100-sxm:ib-missing@0",
        "h100-sxm:nvml-silent",
    ] {
        let (profile, faults) = railgate_simulate::parse(text, &[]).expect("a built-in profile and fault");
        let healthy = rail_map(&railgate_simulate::simulated(&profile, &[]), &profile);
        let map = rail_map(&railgate_simulate::simulated(&profile, &faults), &profile);
        for rail in &map.rails {
            let before = healthy.rails.iter().find(|other| other.hca == rail.hca);
            assert_eq!(before.map(|other| other.number), Some(rail.number), "{text}:\n{}", table(&map));
        }
    }
}
