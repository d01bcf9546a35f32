use railgate_model::{Gid, HcaDetails, Interface, LinkLayer, Port, PortDetails, Reading};

/// Further values of a healthy device.
pub(super) fn of_hca(netdev: &str, port: &Port) -> HcaDetails {
    let ethernet = port.link_layer == Reading::Known(LinkLayer::Ethernet);
    HcaDetails {
        board: Reading::Known("MT_0000000838".to_owned()),
        interfaces: vec![Interface {
            name: netdev.to_owned(),
            state: Reading::Known("up".to_owned()),
            mtu: Reading::Known(if ethernet { 9000 } else { 4092 }),
            port: Reading::Known(0),
        }],
    }
}

/// Tables of a healthy port: full membership in the default partition, an address in 10.10.0.0/16.
pub(super) fn of_port(nth: u32, layer: &LinkLayer) -> PortDetails {
    let none = PortDetails::default();
    match layer {
        LinkLayer::InfiniBand => PortDetails { pkeys: Reading::Known(vec![0xffff]), ..none },
        LinkLayer::Ethernet => {
            let local = format!("fe80:0000:0000:0000:ba3f:d2ff:fe00:{nth:04x}");
            let routed = format!("0000:0000:0000:0000:0000:ffff:0a0a:{:04x}", 0x100 + nth);
            let gid = |index: u32, gid: &str, version: &str| Gid {
                index,
                gid: gid.to_owned(),
                kind: Reading::Known(version.to_owned()),
                interface: Reading::Unsupported,
            };
            let (v1, v2) = ("IB/RoCE v1", "RoCE v2");
            let table =
                vec![gid(0, &local, v1), gid(1, &local, v2), gid(2, &routed, v1), gid(3, &routed, v2)];
            PortDetails { gids: Reading::Known(table), ..none }
        }
        LinkLayer::Other(_) => none,
    }
}
