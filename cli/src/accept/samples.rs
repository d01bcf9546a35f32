//! Power and temperature of the GPUs of a node, now and a few times more.

use std::time::Duration;

use railgate_accept::GpuSample;
use railgate_model::{PartName, Plan};
use railgate_probe::{Request, live};

use super::dir::now;
use crate::output::{complain, say};
use crate::{Site, exit};

/// Longest time for one reading.
const READING: Duration = Duration::from_secs(15);

/// Prints a line for each GPU and sample.
pub(super) fn run(site: &Site, count: u32) -> anyhow::Result<u8> {
    let config = site.config()?;
    let plan = Plan { parts: vec![PartName::Gpus], extras: Vec::new() };
    let request = Request { plan, ..Request::everything(&site.node, READING) };
    let mut code = exit::OK;
    for number in 0..count {
        if number > 0 {
            std::thread::sleep(Duration::from_secs(GpuSample::EVERY_S));
        }
        let at = now();
        let snapshot = live(&config.source, &request);
        let Some(gpus) = snapshot.gpus.data() else {
            complain!("GPUs: {}", snapshot.gpus.missing().unwrap_or_default());
            code = exit::UNKNOWN;
            continue;
        };
        for gpu in &gpus.gpus {
            let sample = GpuSample {
                at,
                gpu: gpu.pci.clone(),
                power_w: gpu.power_w.clone(),
                temperature_c: gpu.temperature_c.clone(),
            };
            say!("{}", serde_json::to_string(&sample)?)?;
        }
    }
    Ok(code)
}
