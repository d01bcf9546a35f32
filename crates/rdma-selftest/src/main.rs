//! `railgate-rdma-selftest DEVICE…`: measures a loopback transfer through each RDMA device.
//!
//! Prints one line of JSON per device, at once, so that a device that hangs only affects those after it:
//! `{"device": "mlx5_0", "gbps": 187.3, "bytes": 536870912, "error": null}`. The exit code is 0 if every device was tried; the gate
//! judges the results.
//!
//! `railgate-rdma-selftest serve DEVICE` and `connect DEVICE HOST:PORT`: test one device with that of another node, as the user of
//! a job. Both ends prove that they know the job's key, write and read the other's memory, compare it, and measure bandwidth and
//! latency in both directions. Each prints one line of JSON ([`railgate_pair::Outcome`]); exit code 3: nothing could be measured.

mod arguments;
mod loopback;
mod measure;
mod message;
mod pair;
mod pattern;
mod verbs;

use std::io::Write as _;
use std::process::ExitCode;

use serde::Serialize;

use arguments::Command;

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
    let words: Result<Vec<String>, _> = std::env::args_os().skip(1).map(|word| word.into_string()).collect();
    let command = match words {
        Ok(words) => arguments::parse(&words),
        Err(_) => Err("an argument is not UTF-8".to_owned()),
    };
    match command {
        Ok(Command::Loopback(wanted)) => loopbacks(wanted),
        Ok(Command::Pair(wanted)) => pair::run(&wanted),
        Ok(Command::Help) => {
            let text = format!("{}\n{}\n", arguments::USAGE, arguments::HELP);
            let printed = std::io::stdout().write_all(text.as_bytes());
            if printed.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(3) }
        }
        Err(why) => {
            eprintln!("{}\nerror: {why}", arguments::USAGE);
            ExitCode::from(2)
        }
    }
}

/// Tests each device with itself.
fn loopbacks(wanted: Vec<String>) -> ExitCode {
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
