//! Probes this machine as railgate's programs do and prints how long each part took.
//!
//! Usage: `probe_times [TIMES] [SOURCE.json]`. Prints the last snapshot to stdout and the times to stderr.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use railgate_model::Part;
use railgate_probe::dispatch;
use railgate_probe::{Request, SourceConfig, live};

fn took<T>(part: &Part<T>) -> String {
    match part {
        Part::Read { took_ms, .. } => format!("{took_ms:.1}"),
        other => other.missing().unwrap_or_default(),
    }
}

fn main() -> ExitCode {
    if let Some(code) = dispatch(&[]) {
        return code;
    }
    let mut args = std::env::args().skip(1);
    let times: u32 = args.next().and_then(|times| times.parse().ok()).unwrap_or(1);
    let source = match args.next().map(std::fs::read).transpose() {
        Ok(text) => text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default(),
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::from(2);
        }
    };
    let source: SourceConfig = source;
    for left in (0..times).rev() {
        let begin = Instant::now();
        let seen = live(&source, &Request::everything("here", Duration::from_secs(30)));
        eprintln!(
            "total {:.1} ms: gpus {}, fabric {}, pci {}, kernel log {}, host {}",
            begin.elapsed().as_secs_f64() * 1000.0,
            took(&seen.gpus),
            took(&seen.fabric),
            took(&seen.pci),
            took(&seen.kernel_log),
            took(&seen.host),
        );
        if left == 0 {
            match serde_json::to_string_pretty(&seen) {
                Ok(text) => println!("{text}"),
                Err(why) => eprintln!("{why}"),
            }
        }
    }
    ExitCode::SUCCESS
}
