//! Power and temperature of GPUs between the rounds of a soak: how they begin a round, and how fast they cool down after it.

use std::collections::BTreeSet;

use railgate_model::{PciAddress, Reading};
use serde::{Deserialize, Serialize};

use super::{Command, Of, Program};
use crate::figures::{Better, Tolerance};
use crate::report::{Build, Samples};

/// What NVML reported about a GPU that computes nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuSample {
    /// Milliseconds since 1970.
    pub at: u64,
    /// The GPU.
    pub gpu: Reading<PciAddress>,
    /// Power, W.
    pub power_w: Reading<f64>,
    /// Temperature, °C.
    pub temperature_c: Reading<u32>,
}

impl GpuSample {
    /// Time between two samples of a command, seconds.
    pub const EVERY_S: u64 = 5;
}

/// Samples after the tests of a round, one at once.
const AFTER: usize = 4;
const SOURCE: &str = "NVML, read before the tests of each round and 0, 5, 10 and 15 s after them";
const BEFORE_TESTS: &str = "rest.before";
const AFTER_TESTS: &str = "rest.after";

pub(super) fn before() -> Command {
    command(BEFORE_TESTS, 1)
}

pub(super) fn after() -> Command {
    command(AFTER_TESTS, AFTER)
}

fn command(id: &str, samples: usize) -> Command {
    Command::new(id, Program::Railgate, &["accept", "--gpu-samples", &samples.to_string()], 120)
}

/// Makes figures and charts of the samples of all rounds.
pub(super) fn show(build: &mut Build<'_>, results: &[Of<'_>]) {
    if results.is_empty() {
        return;
    }
    let (mut power, mut temperature) = (Samples::default(), Samples::default());
    for of in results {
        let Some(node) = of.unit.nodes.first() else { continue };
        for (id, count) in [(BEFORE_TESTS, 1), (AFTER_TESTS, AFTER)] {
            let printed = of.result.output(id).map_or("", |output| output.stdout.as_str());
            let samples: Vec<GpuSample> =
                printed.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
            let times: BTreeSet<u64> = samples.iter().map(|sample| sample.at).collect();
            for _ in times.len()..count {
                power.add(node, 0, None);
                temperature.add(node, 0, None);
            }
            for sample in samples {
                let part = match sample.gpu {
                    Reading::Known(gpu) => format!("{node} {gpu}"),
                    _ => format!("{node} unknown GPU"),
                };
                let watts = sample.power_w.known().copied();
                let degrees = sample.temperature_c.known().map(|degrees| f64::from(*degrees));
                power.add(node, sample.at, watts);
                temperature.add(node, sample.at, degrees);
                for (name, unit, better, value) in [
                    ("rest_power_w", "W", Better::Neither, watts),
                    ("rest_temperature_c", "°C", Better::Lower, degrees),
                ] {
                    let Some(value) = value else { continue };
                    let (id, machine) = (format!("soak.between.{name}"), build.plan.machine(node));
                    let round = of.unit.repetition;
                    build.figures.add(&id, unit, better, Tolerance::None, machine, node, &part, round, value);
                }
            }
        }
    }
    build.charts.push(power.chart("Power of the cards between the rounds of the soak, W", SOURCE));
    build
        .charts
        .push(temperature.chart("Temperature of the cards between the rounds of the soak, °C", SOURCE));
}
