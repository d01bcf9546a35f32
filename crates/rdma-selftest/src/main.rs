//! `railgate-rdma-selftest DEVICE…`: measures a loopback transfer through each RDMA device.
//!
//! Prints one line of JSON per device, at once, so that a device that hangs only affects those after it:
//! `{"device": "mlx5_0", "gbps": 187.3, "bytes": 536870912, "error": null}`. The exit code is 0 if every device was tried; the gate
//! judges the results.

mod loopback;

use std::io::Write as _;
use std::process::ExitCode;

use serde::Serialize;

/// The result of one device.
#[derive(Debug, Serialize)]
struct Said {
    device: String,
    /// Throughput of the loopback, payload only, Gb/s.
    gbps: Option<f64>,
    /// Number of bytes sent.
    bytes: u64,
    /// Why the transfer failed.
    error: Option<String>,
}

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    if wanted.is_empty() || wanted.iter().any(|name| name.starts_with('-')) {
        eprintln!("usage: railgate-rdma-selftest DEVICE…");
        return ExitCode::from(2);
    }
    let devices = match ibverbs::devices() {
        Ok(devices) => devices,
        Err(why) => {
            eprintln!("error: list of devices: {why}");
            return ExitCode::from(3);
        }
    };
    for name in wanted {
        let found = devices
            .iter()
            .find(|device| device.name().is_some_and(|known| known.to_bytes() == name.as_bytes()));
        let outcome = match found {
            Some(device) => loopback::run(&device),
            None => Err("no such device".to_owned()),
        };
        let said = match outcome {
            Ok((bytes, gbps)) => Said { device: name, gbps: Some(gbps), bytes, error: None },
            Err(why) => Said { device: name, gbps: None, bytes: 0, error: Some(why) },
        };
        let line = serde_json::to_string(&said).unwrap_or_default();
        let mut out = std::io::stdout().lock();
        if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
            return ExitCode::from(3);
        }
    }
    ExitCode::SUCCESS
}
