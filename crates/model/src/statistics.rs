use serde::{Deserialize, Serialize};

use crate::{Fabric, Hca, Port, Reading};

/// Those statistics of one interface that checks use (`ethtool -S`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceStatistics {
    /// RDMA device, for example `mlx5_2`.
    pub device: String,
    /// Interface of the device.
    pub interface: String,
    /// Counters by the driver's names; unsupported if the driver has none.
    pub counters: Reading<Vec<(String, u64)>>,
}

impl Fabric {
    /// Adds the statistics of interfaces to the counters of the ports to which they belong.
    pub fn count_in(&mut self, statistics: &[InterfaceStatistics]) {
        for of in statistics {
            let Some(hca) = self.hcas.iter_mut().find(|hca| hca.name == of.device) else { continue };
            let (Reading::Known(counters), Some(port)) = (&of.counters, port_of(hca, &of.interface)) else {
                continue;
            };
            for (name, value) in counters {
                port.counters.entry(name.clone()).or_insert(Reading::Known(*value));
            }
        }
    }
}

/// The port of an interface, by its `dev_port`. A device with a single port does not need that value.
fn port_of<'a>(hca: &'a mut Hca, interface: &str) -> Option<&'a mut Port> {
    let known = hca.details.interfaces.iter().find(|known| known.name == interface);
    let number = known.and_then(|known| known.port.known()).map(|from_zero| from_zero + 1);
    match (hca.ports.len(), number) {
        (1, _) => hca.ports.first_mut(),
        (_, Some(number)) => hca.ports.iter_mut().find(|port| port.number == number),
        (_, None) => None,
    }
}
