use railgate_fsutil::read_small;
use std::path::Path;

use railgate_model::Reading;

/// Counters of transmission errors.
const ERRORS: &[&str] = &[
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_xmit_discards",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "req_cqe_error",
    "resp_cqe_error",
];
/// Counters of packets sent again or requested again.
const RETRANSMITS: &[&str] = &[
    "packet_seq_err",
    "out_of_sequence",
    "local_ack_timeout_err",
    "implied_nak_seq_err",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
];
/// Counters of congestion notifications, sent and received.
const CONGESTION: &[&str] =
    &["np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled", "rp_cnp_ignored"];

/// Traffic counters of a port, since its driver was loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailTraffic {
    /// `port_xmit_data` × 4.
    pub tx_bytes: Reading<u64>,
    /// `port_rcv_data` × 4.
    pub rx_bytes: Reading<u64>,
    /// `port_xmit_wait`, ticks.
    pub xmit_wait: Reading<u64>,
}

/// Error counters of a port, since its driver was loaded. Each value is the sum over those counters that the device
/// has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailTrouble {
    /// Transmission errors.
    pub errors: Reading<u64>,
    /// Packets sent again or requested again.
    pub retransmits: Reading<u64>,
    /// Congestion notifications, sent and received.
    pub congestion: Reading<u64>,
}

/// Reads only these three counters of a port: each may cost a command to the firmware.
pub fn rail_traffic(sysfs: &Path, hca: &str, port: u32) -> RailTraffic {
    let dir = port_dir(sysfs, hca, port);
    let bytes = |name| counter(&dir, name).map(|words: u64| words.saturating_mul(4));
    RailTraffic {
        tx_bytes: bytes("port_xmit_data"),
        rx_bytes: bytes("port_rcv_data"),
        xmit_wait: counter(&dir, "port_xmit_wait"),
    }
}

/// Reads about twenty counters of a port; use it sparingly.
pub fn rail_trouble(sysfs: &Path, hca: &str, port: u32) -> RailTrouble {
    let dir = port_dir(sysfs, hca, port);
    RailTrouble {
        errors: sum(&dir, ERRORS),
        retransmits: sum(&dir, RETRANSMITS),
        congestion: sum(&dir, CONGESTION),
    }
}

/// State of a port as the kernel names it, `ACTIVE` or `DOWN`; `None` if it cannot be read.
pub fn port_state(sysfs: &Path, hca: &str, port: u32) -> Option<String> {
    let text = read_small(&port_dir(sysfs, hca, port).join("state")).ok()?;
    let text = String::from_utf8(text).ok()?;
    let (_, name) = text.trim().split_once(": ")?;
    Some(railgate_text::clip(name, 20))
}

fn port_dir(sysfs: &Path, hca: &str, port: u32) -> std::path::PathBuf {
    sysfs.join("class/infiniband").join(hca).join("ports").join(port.to_string())
}

fn counter(dir: &Path, name: &str) -> Reading<u64> {
    for folder in ["counters", "hw_counters"] {
        match crate::readers::counter(&dir.join(folder).join(name)) {
            Reading::Unsupported => {}
            other => return other,
        }
    }
    Reading::Unsupported
}

fn sum(dir: &Path, names: &[&str]) -> Reading<u64> {
    let mut sum = None;
    for name in names {
        match counter(dir, name) {
            Reading::Known(more) => sum = Some(sum.unwrap_or(0_u64).saturating_add(more)),
            Reading::Unsupported => {}
            Reading::Failed(why) => return Reading::Failed(why),
        }
    }
    sum.map_or(Reading::Unsupported, Reading::Known)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn counters_are_found_in_both_directories_and_may_be_absent() {
        let root = tempfile::tempdir().unwrap();
        let port = port_dir(root.path(), "mlx5_0", 1);
        for (file, text) in [
            ("counters/port_xmit_data", "1000\n"),
            ("counters/port_rcv_data", "N/A (no PMA)\n"),
            ("counters/symbol_error", "3\n"),
            ("hw_counters/req_cqe_error", "4\n"),
            ("hw_counters/out_of_sequence", "many\n"),
        ] {
            let path = port.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let traffic = rail_traffic(root.path(), "mlx5_0", 1);
        assert_eq!(traffic.tx_bytes, Reading::Known(4000));
        assert_eq!((traffic.rx_bytes, traffic.xmit_wait), (Reading::Unsupported, Reading::Unsupported));
        let trouble = rail_trouble(root.path(), "mlx5_0", 1);
        assert_eq!(trouble.errors, Reading::Known(7));
        assert!(matches!(trouble.retransmits, Reading::Failed(_)));
        assert_eq!(trouble.congestion, Reading::Unsupported);
    }
}
