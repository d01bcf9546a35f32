//! Tests functions of the model with simulated machines.

use railgate_model::{InterfaceStatistics, Part, Reading};
use railgate_simulate::{parse, simulated};

#[test]
fn parts_are_identified_by_uuid_serial_number_or_guid() {
    let (profile, faults) = parse("h100-sxm:gpu-lost@3", &[]).unwrap();
    let (node, sick) = (simulated(&profile, &[]), simulated(&profile, &faults));
    assert!(node.identity("3").starts_with("GPU-"), "{}", node.identity("3"));
    assert_eq!(node.identity("mlx5_2:2"), node.identity("mlx5_2"));
    assert!(node.identity("mlx5_2").contains(':'));
    assert_eq!((node.identity(""), node.identity("/home"), node.identity("9")), Default::default());
    assert_eq!(sick.identity("3"), "");
    assert_eq!(node.identities().len(), 8 + node.fabric.data().unwrap().hcas.len());
}

#[test]
fn interface_statistics_are_added_to_their_port() {
    let (profile, _) = parse("h100-sxm", &[]).unwrap();
    let mut node = simulated(&profile, &[]);
    let Part::Read { data: fabric, .. } = &mut node.fabric else { panic!("no fabric") };
    let name = "rx_prio9_pause_duration";
    let interface = fabric.hcas[2].netdevs[0].clone();
    let of = |device: &str| InterfaceStatistics {
        device: device.to_owned(),
        interface: interface.clone(),
        counters: Reading::Known(vec![(name.to_owned(), 7), ("symbol_error".to_owned(), 9)]),
    };
    fabric.count_in(&[of("mlx5_2"), of("mlx5_77")]);
    let counters = &fabric.hcas[2].ports[0].counters;
    assert_eq!((&counters[name], &counters["symbol_error"]), (&Reading::Known(7), &Reading::Known(0)));
    // With two ports, the interface's `dev_port` determines the port.
    let mut second = fabric.hcas[3].ports[0].clone();
    second.number = 2;
    fabric.hcas[3].ports.push(second);
    let mine = fabric.hcas[3].netdevs[0].clone();
    fabric.hcas[3].details.interfaces[0].port = Reading::Known(1);
    fabric.count_in(&[InterfaceStatistics { interface: mine, ..of("mlx5_3") }]);
    let has = |port: usize| fabric.hcas[3].ports[port].counters.contains_key(name);
    assert_eq!((has(0), has(1)), (false, true));
}
