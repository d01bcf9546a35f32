//! Nodes recorded on real hardware, with serials, UUIDs and addresses replaced: recorded snapshots must stay readable, and a
//! healthy machine must stay `fit` under its profile.

#![expect(clippy::unwrap_used, reason = "a fixture that cannot be read is a failed test")]

use std::path::Path;

use railgate_gate::{GateConfig, Memory, Seen, judge};
use railgate_model::{Fitness, Phase, Profile, Snapshot, Verdict};
use railgate_profiles::record;
use railgate_simulate::recorded;

fn snapshot(name: &str) -> Snapshot {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("snapshots").join(name);
    recorded(&path).unwrap()
}

fn verdict(snapshot: &Snapshot, profile: &Profile) -> Verdict {
    let memory = Memory::default();
    let seen = Seen {
        phase: Phase::Periodic,
        now: snapshot,
        before: None,
        job: None,
        profile: Some(profile),
        memory: &memory,
    };
    judge(&GateConfig::default(), &seen)
}

/// H200s of a virtual machine without InfiniBand. A single GPU has no NVLink either.
fn profile(gpus: u32) -> Profile {
    let mut profile = railgate_profiles::load("h200-sxm", &[]).unwrap();
    profile.gpus.count = Some(gpus);
    profile.gpus.nvlinks_up = Some(if gpus > 1 { 18 } else { 0 });
    profile.fabric.hcas = Some(0);
    profile
}

#[test]
fn real_h200s_are_fit_under_their_profile() {
    for (file, gpus) in [("h200-x1-vm.json", 1), ("h200-x4-vm.json", 4)] {
        let verdict = verdict(&snapshot(file), &profile(gpus));
        assert_eq!((verdict.fitness, verdict.findings), (Fitness::Fit, Vec::new()), "{file}");
    }
}

#[test]
fn the_same_machines_are_incomplete_as_a_whole_hgx() {
    let whole = railgate_profiles::load("h200-sxm", &[]).unwrap();
    for file in ["h200-x1-vm.json", "h200-x4-vm.json"] {
        let verdict = verdict(&snapshot(file), &whole);
        assert_eq!(verdict.fitness, Fitness::Unfit, "{file}");
        let found: Vec<&str> = verdict.findings.iter().map(|finding| finding.check.as_str()).collect();
        assert!(found.contains(&"gpu-count") && found.contains(&"ib-count"), "{file}: {found:?}");
    }
}

#[test]
fn every_reading_of_a_real_gpu_is_known() {
    for file in ["h200-x1-vm.json", "h200-x4-vm.json"] {
        let snapshot = snapshot(file);
        for gpu in &snapshot.gpus.data().unwrap().gpus {
            assert!(gpu.recovery_action.known().is_some(), "{file}");
            assert!(gpu.row_remap.known().is_some(), "{file}");
            assert!(gpu.ecc.volatile_uncorrected.known().is_some(), "{file}");
            assert!(gpu.energy_j.known().is_some_and(|joules| *joules > 0.0), "{file}");
        }
    }
}

/// A node of the same type recorded with all current readings. Its clock was not synchronised.
#[test]
fn a_real_node_with_all_current_readings_is_fit() {
    let node = snapshot("h200-x4-vm-full.json");
    let verdict = verdict(&node, &profile(4));
    let found: Vec<&str> = verdict.findings.iter().map(|finding| finding.check.as_str()).collect();
    assert_eq!((verdict.fitness, found), (Fitness::Fit, vec!["clock"]));
    let gpus = &node.gpus.data().unwrap().gpus;
    assert!(gpus.iter().all(|gpu| gpu.details.fabric.known().is_some()));
    assert_eq!(gpus.iter().map(|gpu| gpu.details.peers.len()).sum::<usize>(), 6, "each pair once");
}

/// Every machine type and the real nodes: a node is fit under the profile recorded from it. Machines with more than GPUs also get
/// those requirements.
#[test]
fn a_node_is_fit_under_its_recorded_profile() {
    for id in railgate_profiles::builtin_ids() {
        for layer in ["infiniband", "ethernet"] {
            let mut like = railgate_profiles::load(id, &[]).unwrap();
            like.fabric.link_layer = like.fabric.hcas.map(|_| layer.to_owned());
            let node = railgate_simulate::simulated(&like, &[]);
            let mine = record(&node, "mine", Some(&like));
            let text = mine.to_toml().unwrap();
            let profile: Profile = toml::from_str(&text).unwrap();
            assert_eq!(profile.problems(), Vec::<String>::new(), "{id}");
            let verdict = verdict(&node, &profile);
            assert_eq!(
                (verdict.fitness, verdict.findings),
                (Fitness::Fit, Vec::new()),
                "{id} {layer}\n{text}"
            );
            let host = &profile.host;
            assert_eq!((host.nvmes, host.dimms, host.cpus), (Some(4), Some(16), Some(192)), "{id}");
            assert!(host.services.contains(&"nvidia-fabricmanager".to_owned()), "{id}");
            assert_eq!(host.boot_args, ["iommu=pt"], "{id}");
            if profile.fabric.hcas > Some(0) {
                let fabric = &profile.fabric;
                assert_eq!(fabric.slots.len(), fabric.hcas.unwrap() as usize, "{id}");
                assert_eq!((fabric.width, fabric.interfaces_up), (Some(4), Some(true)), "{id}");
                let tables = (fabric.pkeys.as_slice(), fabric.mtu);
                let want: (&[u16], _) =
                    if layer == "infiniband" { (&[0xffff], None) } else { (&[], Some(4096)) };
                assert_eq!(tables, want, "{id}");
                assert_eq!(fabric.distance.as_deref(), Some("switch"), "{id}");
            }
        }
    }
    for file in ["h200-x1-vm.json", "h200-x4-vm.json", "h200-x4-vm-full.json"] {
        let node = snapshot(file);
        let mine = record(&node, "mine", Some(&railgate_profiles::load("h200-sxm", &[]).unwrap()));
        let profile: Profile = toml::from_str(&mine.to_toml().unwrap()).unwrap();
        let verdict = verdict(&node, &profile);
        let found: Vec<&str> = verdict.findings.iter().map(|finding| finding.check.as_str()).collect();
        let known: &[&str] = if file.contains("full") { &["clock"] } else { &[] };
        assert_eq!((verdict.fitness, found.as_slice()), (Fitness::Fit, known), "{file}");
    }
}

/// A recorded profile detects missing devices.
#[test]
fn a_recorded_profile_detects_missing_devices() {
    let (like, _) = railgate_simulate::parse("h100-sxm", &[]).unwrap();
    let mine = record(&railgate_simulate::simulated(&like, &[]), "mine", Some(&like)).profile;
    for (fault, check) in [
        ("ib-firmware@2", "ib-firmware"),
        ("ib-swapped@2", "ib-slot"),
        ("ib-pkey-limited@2", "ib-pkey"),
        ("ib-interface-down@2", "ib-interface"),
        ("ib-lane-lost@2", "ib-width"),
        ("ib-far@2", "ib-distance"),
        ("gpu-vbios-other@3", "gpu-versions"),
        ("nvme-missing", "nvme"),
        ("dimm-missing", "memory"),
        ("memory-missing", "memory"),
        ("cpu-offline", "cpu"),
        ("cpu-governor", "cpu"),
        ("service-down", "service"),
        ("module-missing", "module"),
        ("boot-arg-missing", "boot-arg"),
    ] {
        let (_, faults) = railgate_simulate::parse(&format!("h100-sxm:{fault}"), &[]).unwrap();
        let verdict = verdict(&railgate_simulate::simulated(&like, &faults), &mine);
        assert!(
            verdict.findings.iter().any(|finding| finding.check == check),
            "{fault}: {:?}",
            verdict.findings
        );
    }
}
