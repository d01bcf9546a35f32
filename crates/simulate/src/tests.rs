use std::collections::BTreeSet;

use railgate_model::{Access, Part, Reading};

use super::*;

fn parts(text: &str) -> Snapshot {
    let (profile, faults) = parse(text, &[]).unwrap();
    simulated(&profile, &faults)
}

#[test]
fn every_profile_gives_a_machine_that_agrees_with_it() {
    for id in railgate_profiles::builtin_ids() {
        let profile = railgate_profiles::load(id, &[]).unwrap();
        let snapshot = parts(id);
        let (gpus, fabric) = (snapshot.gpus.data().unwrap(), snapshot.fabric.data().unwrap());
        let facts = &profile.gpus;
        assert_eq!(gpus.gpus.len(), facts.count.unwrap_or(8) as usize, "{id}");
        for gpu in &gpus.gpus {
            let up = gpu.nvlinks.iter().filter(|link| link.up == Reading::Known(true)).count();
            assert_eq!(up, facts.nvlinks_up.unwrap_or(0) as usize, "{id}");
            assert_eq!(gpu.ecc_enabled.known().copied(), facts.ecc, "{id}");
            assert!(facts.names.is_empty() || facts.names.contains(gpu.name.known().unwrap()), "{id}");
        }
        let rails = fabric.hcas.iter().filter(|hca| !hca.name.starts_with("mlx5_bond_"));
        assert_eq!(rails.count(), profile.fabric.hcas.unwrap_or(0) as usize, "{id}");
    }
}

#[test]
fn every_rail_has_a_gpu_under_the_same_switch() {
    for id in ["h100-sxm", "a100-sxm", "b200"] {
        let snapshot = parts(id);
        let devices = &snapshot.pci.data().unwrap().devices;
        let bridges =
            |at| devices.iter().find(|device| device.address == at).map(|device| &device.bridges).unwrap();
        let hcas = &snapshot.fabric.data().unwrap().hcas;
        for (gpu, hca) in snapshot.gpus.data().unwrap().gpus.iter().zip(hcas) {
            let (gpu, hca) = (bridges(*gpu.pci.known().unwrap()), bridges(*hca.pci.known().unwrap()));
            assert_eq!(gpu[..2], hca[..2], "root port and switch");
            assert_ne!(gpu[2], hca[2], "ports of their own");
        }
        let addresses: BTreeSet<_> = devices.iter().map(|device| device.address).collect();
        assert_eq!(addresses.len(), devices.len());
        assert!(devices.iter().flat_map(|device| &device.bridges).all(|bridge| addresses.contains(bridge)));
    }
}

#[test]
fn every_fault_changes_the_snapshot() {
    let machine = |faults: &str, roce: bool| {
        let (mut profile, faults) = parse(&format!("h100-sxm{faults}"), &[]).unwrap();
        if roce {
            profile.fabric.link_layer = Some("ethernet".to_owned());
        }
        simulated(&profile, &faults)
    };
    for info in FAULTS {
        let id = info.id.replace("<code>", "48");
        // An InfiniBand port has no GID table.
        let roce = id.starts_with("roce-gid");
        assert_ne!(machine(&format!(":{id}"), roce), machine("", roce), "{id}");
        let fault: Fault = id.parse().unwrap();
        assert_eq!(fault.to_string().parse::<Fault>().unwrap(), fault);
    }
}

#[test]
fn a_lost_gpu_has_no_readings_and_an_xid_79() {
    let snapshot = parts("h100-sxm:gpu-lost@3");
    let gpus = snapshot.gpus.data().unwrap();
    assert_eq!(gpus.count, Reading::Known(8));
    assert!(matches!(&gpus.gpus[3].access, Access::Lost(why) if why.contains("GPU is lost (15)")));
    assert_eq!(gpus.gpus[3].pci.known().unwrap().to_string(), "0000:61:00.0");
    let xids = snapshot.kernel_log.data().unwrap().xids();
    assert_eq!(
        xids.iter().map(|xid| (xid.code, xid.gpu)).collect::<Vec<_>>(),
        [(79, gpus.gpus[3].pci.known().copied())]
    );
}

#[test]
fn a_missing_gpu_moves_the_others_up() {
    let snapshot = parts("h100-sxm:gpu-missing@3,gpu-missing@1,gpu-ecc-uncorrected@4");
    let gpus = snapshot.gpus.data().unwrap();
    assert_eq!(gpus.count, Reading::Known(6));
    let buses: Vec<u8> = gpus.gpus.iter().map(|gpu| gpu.pci.known().unwrap().bus).collect();
    assert_eq!(buses, [0x1b, 0x52, 0x9d, 0xc3, 0xd1, 0xdf]);
    assert!(gpus.gpus.iter().zip(0..).all(|(gpu, index)| gpu.index == index));
    // Indexes are those of the healthy machine, in any order of the faults.
    assert_eq!(gpus.gpus[2].ecc.volatile_uncorrected, Reading::Known(2));
    assert_eq!(
        snapshot.pci.data().unwrap().devices.iter().filter(|device| device.class >> 16 == 3).count(),
        6
    );
}

#[test]
fn every_simulated_xid_is_parsed() {
    for code in [13, 31, 43, 45, 48, 63, 64, 74, 79, 94, 95, 119, 120, 140, 154, 999] {
        let snapshot = parts(&format!("h100-sxm:gpu-xid-{code}@5"));
        let xids = snapshot.kernel_log.data().unwrap().xids();
        assert_eq!(xids.iter().map(|xid| xid.code).collect::<Vec<_>>(), [code]);
        assert_eq!(xids[0].gpu.unwrap().bus, 0xc3);
        assert_eq!(xids[0].pid, (code != 79).then_some(4711));
    }
}

#[test]
fn nodes_share_no_identity() {
    let (profile, _) = parse("h100-sxm", &[]).unwrap();
    let (one, two) = (simulated_node(&profile, &[], "gpu-01"), simulated_node(&profile, &[], "gpu-02"));
    assert_ne!(one.boot_id, two.boot_id);
    assert_ne!(one.gpus.data().unwrap().gpus[0].uuid, two.gpus.data().unwrap().gpus[0].uuid);
    assert_ne!(one.fabric.data().unwrap().hcas[0].node_guid, two.fabric.data().unwrap().hcas[0].node_guid);
    assert_eq!(simulated_node(&profile, &[], "gpu-01"), one);
}

#[test]
fn errors_name_the_known_profiles_and_the_nearest_fault() {
    let why = |text: &str| parse(text, &[]).unwrap_err().to_string();
    assert!(why("h300").contains("known: h100-sxm"));
    assert!(
        why("h100-sxm:gpu-melted").contains("no fault 'gpu-melted' (`railgate simulate --list` shows all)")
    );
    assert!(why("h100-sxm:gpu-throttle@1").contains("'gpu-throttle@1'; did you mean 'gpu-throttled'? ("));
    assert!(why("h100-sxm:gpu-xid-<code>").contains("no fault"));
    assert!(why("h100-sxm:gpu-lost@9").contains("'gpu-lost@9': a simulated h100-sxm has 0 to 7"));
    assert!(why("h100-sxm:gpu-lost@x").contains("not a number"));
    assert!(why("h100-sxm:nvml-missing@1").contains("takes no index"));
    assert!(why("rtx4090:ib-port-down").contains("has none"));
    assert!(why("h100-sxm:gpu-lost@mlx5_2").contains("not a number"));
    assert!(parse("h100-sxm:", &[]).unwrap().1.is_empty());
    assert_eq!("ib-port-down@mlx5_5".parse::<Fault>().unwrap().to_string(), "ib-port-down@5");
}

#[test]
fn nvml_faults_give_a_part_without_data() {
    assert!(matches!(parts("h100-sxm:nvml-stuck,gpu-lost").gpus, Part::Stuck { .. }));
    assert!(parts("h100-sxm:nvml-missing").gpus.missing().unwrap().contains("libnvidia-ml"));
}
