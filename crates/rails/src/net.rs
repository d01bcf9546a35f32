use railgate_model::{LinkLayer, Net, RailMap, Reading, Snapshot};

use crate::RailsConfig;

/// Returns the network plugin of jobs that do not select one: the site's setting, or derived from the node's devices.
/// NCCL's own transport cannot use RDMA devices that are neither InfiniBand nor Ethernet (such as EFA); these are used
/// through libfabric.
pub fn net(config: &RailsConfig, map: &RailMap, snapshot: &Snapshot) -> Net {
    if let Some(net) = config.net {
        return net;
    }
    let hcas = snapshot.fabric.data().map_or(&[][..], |fabric| &fabric.hcas);
    let mut ports = hcas.iter().flat_map(|hca| &hca.ports).peekable();
    let foreign = map.rails.is_empty()
        && ports.peek().is_some()
        && ports.all(|port| matches!(port.link_layer, Reading::Known(LinkLayer::Other(_))));
    if foreign { Net::Ofi } else { Net::Ib }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rail_map;
    use crate::testing::machine;
    use railgate_model::Part;

    #[test]
    fn the_plugin_follows_from_the_setting_or_the_devices() {
        let mut snapshot = machine();
        let told =
            |snapshot: &Snapshot, config: &RailsConfig| net(config, &rail_map(snapshot, None), snapshot);
        assert_eq!(told(&snapshot, &RailsConfig::default()), Net::Ib);
        let said = RailsConfig { net: Some(Net::Sharp), ..RailsConfig::default() };
        assert_eq!(told(&snapshot, &said), Net::Sharp);
        if let Part::Read { data, .. } = &mut snapshot.fabric {
            for port in data.hcas.iter_mut().flat_map(|hca| &mut hca.ports) {
                port.link_layer = Reading::Known(LinkLayer::Other("Unspecified".to_owned()));
            }
        }
        assert_eq!(told(&snapshot, &RailsConfig::default()), Net::Ofi);
        if let Part::Read { data, .. } = &mut snapshot.fabric {
            data.hcas[0].ports[0].link_layer = Reading::Failed("I/O error".to_owned());
        }
        assert_eq!(told(&snapshot, &RailsConfig::default()), Net::Ib, "the link layer of one is unknown");
        if let Part::Read { data, .. } = &mut snapshot.fabric {
            data.hcas.clear();
        }
        assert_eq!(told(&snapshot, &RailsConfig::default()), Net::Ib);
    }
}
