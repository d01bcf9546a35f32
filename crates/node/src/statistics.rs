//! What the drivers of network interfaces count by themselves (`ethtool -S`): pauses, discards, corrected errors.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Fabric, Hca, Part, Port, Reading, ioctl};

pub(crate) const TASK: &str = "node-statistics";

/// The statistics of one interface, those alone that somebody judges.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceStatistics {
    /// The RDMA device: `mlx5_2`.
    pub device: String,
    /// Its interface.
    pub interface: String,
    /// By the driver's names; unsupported where the driver has none.
    pub counters: Reading<Vec<(String, u64)>>,
}

/// Reads those of these devices (RDMA device and interface) of this machine, within the deadline.
pub fn interface_statistics(
    devices: &[(String, String)],
    deadline: Duration,
) -> Part<Vec<InterfaceStatistics>> {
    Part::asked(TASK, &devices, deadline)
}

pub(crate) fn task(input: &[u8]) -> Result<Vec<u8>, String> {
    let devices: Vec<(String, String)> =
        serde_json::from_slice(input).map_err(|why| format!("input: {why}"))?;
    let socket = ioctl::statistics_socket().map_err(|why| format!("socket: {why}"))?;
    let of = |(device, interface): (String, String)| {
        let counters = match ioctl::statistics(&socket, &interface) {
            Ok(all) => Reading::Known(all.into_iter().filter(|(name, _)| is_judged(name)).collect()),
            Err(why) => match why.raw_os_error() {
                Some(libc::EOPNOTSUPP | libc::ENODEV) => Reading::Unsupported,
                _ => Reading::Failed(format!("{interface}: statistics: {why}")),
            },
        };
        InterfaceStatistics { device, interface, counters }
    };
    let statistics: Vec<InterfaceStatistics> = devices.into_iter().map(of).collect();
    serde_json::to_vec(&statistics).map_err(|why| format!("reply: {why}"))
}

/// A driver has thousands.
fn is_judged(name: &str) -> bool {
    const WHOLE: [&str; 4] =
        ["rx_corrected_bits_phy", "rx_discards_phy", "rx_pcs_symbol_err_phy", "tx_pause_storm_error_events"];
    let of_priority = || {
        let rest = name.strip_prefix("rx_prio").or_else(|| name.strip_prefix("tx_prio"))?;
        let mut rest = rest.chars();
        Some(rest.next()?.is_ascii_digit() && rest.as_str() == "_pause_duration")
    };
    WHOLE.contains(&name) || of_priority() == Some(true)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate;

    #[test]
    fn what_is_judged() {
        for name in ["rx_prio3_pause_duration", "tx_prio0_pause_duration", "rx_corrected_bits_phy"] {
            assert!(is_judged(name), "{name}");
        }
        for name in ["rx_prio3_pause", "rx_prio_pause_duration", "rx_priox_pause_duration", "rx_packets", ""]
        {
            assert!(!is_judged(name), "{name}");
        }
    }

    #[test]
    fn this_kernel_answers_in_a_list() {
        let asked = serde_json::to_vec(&[("mlx5_0", "no-such-nic")]).unwrap();
        let reply = task(&asked).unwrap();
        let said: Vec<InterfaceStatistics> = serde_json::from_slice(&reply).unwrap();
        assert_eq!((said.len(), &said[0].counters), (1, &Reading::Unsupported));
    }

    #[test]
    fn they_come_to_their_port() {
        let (profile, _) = simulate::parse("h100-sxm", &[]).unwrap();
        let mut node = simulate::simulated(&profile, &[]);
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
        // Two ports: the interface says which.
        let mut second = fabric.hcas[3].ports[0].clone();
        second.number = 2;
        fabric.hcas[3].ports.push(second);
        let mine = fabric.hcas[3].netdevs[0].clone();
        fabric.hcas[3].details.interfaces[0].port = Reading::Known(1);
        fabric.count_in(&[InterfaceStatistics { interface: mine, ..of("mlx5_3") }]);
        let has = |port: usize| fabric.hcas[3].ports[port].counters.contains_key(name);
        assert_eq!((has(0), has(1)), (false, true));
    }
}
