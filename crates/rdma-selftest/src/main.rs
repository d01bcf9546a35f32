//! `railgate-rdma-selftest DEVICE…`: sends data through each RDMA device to itself and says how fast that went.
//!
//! One line of JSON per device, written as soon as it is known, so that a device that hangs silences only those behind
//! it: `{"device": "mlx5_0", "gbps": 187.3, "bytes": 536870912, "error": null}`. Exit code 0 whenever every device was
//! tried; what that means is the gate's to say.

mod loopback;

use std::io::Write as _;
use std::process::ExitCode;

use serde::Serialize;

/// What one device said.
#[derive(Debug, Serialize)]
struct Said {
    device: String,
    /// Gb/s through the device and back, payload only.
    gbps: Option<f64>,
    /// How much was sent.
    bytes: u64,
    /// Why it did not work.
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
