//! Statistics of network drivers (`ethtool -S`): pauses, discards, corrected errors.

use std::time::Duration;

use railgate_model::{InterfaceStatistics, Part, Reading};

use crate::{answer, ioctl};

pub(crate) const TASK: &str = "node-statistics";

/// Reads the statistics of these devices (RDMA device and interface) of this machine, within the deadline. Failures are
/// only logged, because an absent counter is not judged.
pub(crate) fn read_statistics(devices: &[(String, String)], deadline: Duration) -> Vec<InterfaceStatistics> {
    let part: Part<Vec<InterfaceStatistics>> = answer::asked(TASK, &devices, deadline);
    if let Some(why) = part.missing() {
        tracing::info!("statistics of interfaces: {why}");
    }
    let read = part.data().cloned().unwrap_or_default();
    for of in &read {
        if let Reading::Failed(why) = &of.counters {
            tracing::info!("{}: {why}", of.device);
        }
    }
    read
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

/// Whether a check uses this statistic; a driver has thousands.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_statistics_that_checks_use_are_kept() {
        for name in ["rx_prio3_pause_duration", "tx_prio0_pause_duration", "rx_corrected_bits_phy"] {
            assert!(is_judged(name), "{name}");
        }
        for name in ["rx_prio3_pause", "rx_prio_pause_duration", "rx_priox_pause_duration", "rx_packets", ""]
        {
            assert!(!is_judged(name), "{name}");
        }
    }

    #[test]
    fn a_missing_interface_of_this_kernel_has_no_statistics() {
        let asked = serde_json::to_vec(&[("mlx5_0", "no-such-nic")]).unwrap();
        let reply = task(&asked).unwrap();
        let said: Vec<InterfaceStatistics> = serde_json::from_slice(&reply).unwrap();
        assert_eq!((said.len(), &said[0].counters), (1, &Reading::Unsupported));
    }
}
