use serde::{Deserialize, Serialize};

use crate::{Fabric, Hca, Port, Reading};

/// The statistics of one interface that a check judges.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceStatistics {
    /// The RDMA device: `mlx5_2`.
    pub device: String,
    /// Its interface.
    pub interface: String,
    /// By the driver's names; unsupported where the driver has none.
    pub counters: Reading<Vec<(String, u64)>>,
}

impl Fabric {
    /// Puts the statistics of interfaces beside the counters of the ports that they belong to.
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

/// An interface says which port of its device it belongs to; a device with one port needs no word.
fn port_of<'a>(hca: &'a mut Hca, interface: &str) -> Option<&'a mut Port> {
    let known = hca.details.interfaces.iter().find(|known| known.name == interface);
    let number = known.and_then(|known| known.port.known()).map(|from_zero| from_zero + 1);
    match (hca.ports.len(), number) {
        (1, _) => hca.ports.first_mut(),
        (_, Some(number)) => hca.ports.iter_mut().find(|port| port.number == number),
        (_, None) => None,
    }
}
