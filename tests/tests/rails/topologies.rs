//! `tests/gpu/topologies/`: variants, made by `break.py`, of the file that railgate writes for a recorded machine with four H200s,
//! to which `plant.py` added an HCA for each GPU. `expected.txt` records what NCCL does with each; `tests/gpu` compares it with
//! a real NCCL.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use railgate_model::{Hca, LinkLayer, Part, PhysState, Port, PortState, RailMap, Reading, Snapshot};
use railgate_rails::{NcclVersion, rail_map, topology};
use railgate_simulate::recorded;
use railgate_topology_check::{Effect, check_topology};

use super::{folder, same_as_stored};

/// The recorded machine as `plant.py` changes it.
fn planted() -> (Snapshot, RailMap) {
    let mut snapshot = recorded(&folder("snapshots/h200-x4-vm.json")).unwrap();
    let hca = |k: u32| Hca {
        name: format!("mlx5_{k}"),
        pci: Reading::Known(format!("{:04x}:00:00.0", 0x101 + k).parse().unwrap()),
        node_guid: Reading::Unsupported,
        firmware: Reading::Unsupported,
        hca_type: Reading::Unsupported,
        numa_node: Reading::Unsupported,
        netdevs: vec![],
        ports: vec![Port {
            number: 1,
            link_layer: Reading::Known(LinkLayer::InfiniBand),
            state: Reading::Known(PortState::Active),
            phys_state: Reading::Known(PhysState::LinkUp),
            rate_gbps: Reading::Known(400.0),
            rate_text: Reading::Unsupported,
            lid: Reading::Unsupported,
            sm_lid: Reading::Unsupported,
            counters: Default::default(),
            details: Default::default(),
        }],
        details: Default::default(),
    };
    match &mut snapshot.fabric {
        Part::Read { data, .. } => data.hcas = (0..4).map(hca).collect(),
        other => panic!("{other:?}"),
    }
    let mut profile = railgate_profiles::load("h200-sxm", &[]).unwrap();
    profile.gpus.count = Some(4);
    profile.fabric.hcas = Some(4);
    profile.rails.wiring = (0..4).map(|k| (k, format!("mlx5_{k}"))).collect();
    let map = rail_map(&snapshot, &profile);
    (snapshot, map)
}

#[test]
fn the_good_file_equals_railgates_output() {
    let (snapshot, map) = planted();
    let text = topology(&map, &snapshot).unwrap();
    assert!(same_as_stored(&folder("gpu/topologies/good.xml"), &text));
}

#[test]
fn a_file_is_refused_if_and_only_if_nccl_refuses_it() {
    let (snapshot, map) = planted();
    let expected = fs::read_to_string(folder("gpu/topologies/expected.txt")).unwrap();
    let mut told = BTreeSet::new();
    let mut refused = 0;
    for line in expected.lines() {
        let mut fields = line.split('\t');
        let (name, verdict) = (fields.next().unwrap(), fields.next().unwrap());
        let text = fs::read(folder("gpu/topologies").join(format!("{name}.xml"))).unwrap();
        told.insert(format!("{name}.xml"));
        refused += usize::from(verdict == "refused");
        for machine in [None, Some((&snapshot, &map))] {
            let check = check_topology(&text, Some(NcclVersion::new(2, 28, 9)), machine);
            assert_eq!(check.accepted, verdict == "accepted", "{name}: {check:#?}");
            let worst = check.worst();
            let quiet =
                ["good", "comments", "single-quotes", "carriage-returns", "one-line", "value-of-253-bytes"];
            assert_eq!(
                worst.is_none(),
                quiet.contains(&name) || name == "wrong-bridge" && machine.is_none(),
                "{name}: {check:#?}"
            );
            if machine.is_some() && ["upper-case-gpu", "wrong-bridge", "unknown-speed"].contains(&name) {
                assert_eq!(worst, Some(Effect::Misled), "{name}: {check:#?}");
            }
        }
    }
    assert!(refused >= 10 && told.len() >= refused + 10);
    let there = fs::read_dir(folder("gpu/topologies")).unwrap().map(|entry| entry.unwrap().file_name());
    let there: BTreeSet<String> = there.map(|name| name.to_string_lossy().into_owned()).collect();
    let files: BTreeSet<String> = there.into_iter().filter(|name| name.ends_with(".xml")).collect();
    assert_eq!(files, told, "files and expected.txt name the same cases");
}

#[test]
fn the_files_equal_the_scripts_output() {
    let scratch = tempfile::tempdir().unwrap();
    let script = folder("gpu/topologies/break.py");
    let made = Command::new("python3")
        .arg(&script)
        .arg(folder("gpu/topologies/good.xml"))
        .arg(scratch.path())
        .output();
    let Ok(made) = made else {
        eprintln!("no python3 here");
        return;
    };
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    for entry in fs::read_dir(scratch.path()).unwrap() {
        let entry = entry.unwrap();
        let stored = folder("gpu/topologies").join(entry.file_name());
        if std::env::var_os("REWRITE").is_some() {
            fs::copy(entry.path(), &stored).unwrap();
        }
        assert!(fs::read(entry.path()).unwrap() == fs::read(&stored).unwrap_or_default(), "{stored:?}");
    }
}
