//! State of the GPUs of a job that hangs.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use railgate_model::GpuField;
use serde::{Deserialize, Serialize};

use super::RankLine;
use super::groups::grouped;
use crate::phases::GpuActivity;
use crate::usage::Values;

/// Maximum number of GPUs of a group that are named.
const MOST_NAMES: usize = 4;
/// Higher values are no figures of a GPU, in any of the units.
const MOST_VALUE: f64 = 100_000.0;

/// State of one GPU, in the last sample before the stacks were taken. Figures are means over the sample; absent: not known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuState {
    /// NVML index.
    pub gpu: u32,
    /// What it did.
    pub activity: GpuActivity,
    /// [`GpuField::Sm`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_percent: Option<f64>,
    /// [`GpuField::Tensor`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensor_percent: Option<f64>,
    /// [`GpuField::Dram`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dram_percent: Option<f64>,
    /// [`GpuField::Power`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_w: Option<f64>,
    /// [`GpuField::SmClock`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_clock_mhz: Option<f64>,
    /// [`GpuField::Temperature`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_c: Option<f64>,
}

impl GpuState {
    /// From a sample.
    pub fn new(gpu: u32, activity: GpuActivity, values: &Values<GpuField>) -> Self {
        let tenth = |field| values.mean(field).map(|value| (value * 10.0).round() / 10.0);
        GpuState {
            gpu,
            activity,
            sm_percent: tenth(GpuField::Sm),
            tensor_percent: tenth(GpuField::Tensor),
            dram_percent: tenth(GpuField::Dram),
            power_w: values.mean(GpuField::Power).map(f64::round),
            sm_clock_mhz: values.mean(GpuField::SmClock).map(f64::round),
            temperature_c: values.mean(GpuField::Temperature).map(f64::round),
        }
    }
}

impl GpuState {
    /// Removes values that no GPU has: for input that a user could have written.
    pub(super) fn bound(&mut self) {
        for value in [
            &mut self.sm_percent,
            &mut self.tensor_percent,
            &mut self.dram_percent,
            &mut self.power_w,
            &mut self.sm_clock_mhz,
            &mut self.temperature_c,
        ] {
            *value = value.filter(|value| (0.0..=MOST_VALUE).contains(value));
        }
    }
}

/// GPUs that did the same.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuGroup {
    /// What they did.
    pub activity: GpuActivity,
    /// How many.
    pub count: usize,
    /// The first ones, at most 4: node and NVML index.
    pub gpus: Vec<(String, u32)>,
    /// The least and the most of each [`GpuState::sm_percent`]; absent: known of none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_percent: Option<(f64, f64)>,
    /// The same of [`GpuState::tensor_percent`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensor_percent: Option<(f64, f64)>,
    /// The same of [`GpuState::dram_percent`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dram_percent: Option<(f64, f64)>,
    /// The same of [`GpuState::power_w`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_w: Option<(f64, f64)>,
    /// The same of [`GpuState::sm_clock_mhz`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_clock_mhz: Option<(f64, f64)>,
    /// The same of [`GpuState::temperature_c`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_c: Option<(f64, f64)>,
}

/// Groups the GPUs of these lines by what they did, the largest group first. Lines without a GPU are left out.
pub fn gpu_groups<'a>(lines: impl IntoIterator<Item = &'a RankLine>) -> Vec<GpuGroup> {
    let mut groups: BTreeMap<GpuActivity, GpuGroup> = BTreeMap::new();
    for (line, state) in lines.into_iter().filter_map(|line| Some((line, line.gpu.as_ref()?))) {
        groups.entry(state.activity).or_default().add(&line.node, state);
    }
    let mut groups: Vec<GpuGroup> = groups.into_values().collect();
    groups.sort_by_key(|group| Reverse(group.count));
    groups
}

impl GpuGroup {
    fn add(&mut self, node: &str, state: &GpuState) {
        self.activity = state.activity;
        self.count += 1;
        if self.gpus.len() < MOST_NAMES {
            self.gpus.push((node.to_owned(), state.gpu));
        }
        for (range, value) in [
            (&mut self.sm_percent, state.sm_percent),
            (&mut self.tensor_percent, state.tensor_percent),
            (&mut self.dram_percent, state.dram_percent),
            (&mut self.power_w, state.power_w),
            (&mut self.sm_clock_mhz, state.sm_clock_mhz),
            (&mut self.temperature_c, state.temperature_c),
        ] {
            let Some(value) = value else { continue };
            let (least, most) = range.get_or_insert((value, value));
            (*least, *most) = (least.min(value), most.max(value));
        }
    }

    /// `GPU 3 on gn4 was idle: SMs 0 % active, tensor 0 %, memory 0 %, 75 W, 345 MHz, 31 °C`
    fn text(&self, largest: bool) -> String {
        let (one, many) = match self.activity {
            GpuActivity::Works => ("worked", "worked"),
            GpuActivity::Waits => ("waited", "waited"),
            GpuActivity::Idle => ("was idle", "were idle"),
            GpuActivity::Unknown => ("was not sampled", "were not sampled"),
        };
        let who = match self.gpus.as_slice() {
            [(node, gpu)] => format!("GPU {gpu} on {node} {one}"),
            few if !largest && self.count == few.len() => {
                let names: Vec<String> = few.iter().map(|(node, gpu)| format!("{gpu} on {node}")).collect();
                format!("GPUs {} {many}", names.join(", "))
            }
            _ => format!("{} GPUs {many}", grouped(self.count)),
        };
        let range = |name: &str, range: Option<(f64, f64)>, unit: &str| {
            let (least, most) = range?;
            Some(match (number(least), number(most)) {
                (least, most) if least == most => format!("{name}{least} {unit}"),
                (least, most) => format!("{name}{least} to {most} {unit}"),
            })
        };
        let figures: Vec<String> = [
            range("SMs ", self.sm_percent, "% active"),
            range("tensor ", self.tensor_percent, "%"),
            range("memory ", self.dram_percent, "%"),
            range("", self.power_w, "W"),
            range("", self.sm_clock_mhz, "MHz"),
            range("", self.temperature_c, "°C"),
        ]
        .into_iter()
        .flatten()
        .collect();
        if figures.is_empty() { who } else { format!("{who}: {}", figures.join(", ")) }
    }
}

fn number(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

/// The groups as one line.
///
/// `7 GPUs waited: SMs 12 % active, tensor 0 %, memory 0.1 %, 118 to 131 W, 1980 MHz, 40 °C; GPU 3 on gn4 was idle: SMs 0 % active, …`
pub fn gpu_text(groups: &[GpuGroup]) -> String {
    let parts: Vec<String> = groups.iter().enumerate().map(|(at, group)| group.text(at == 0)).collect();
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stacks::Stacks;

    fn state(gpu: u32, activity: GpuActivity, sm: f64, watts: f64) -> GpuState {
        let mut values = Values::<GpuField>::default();
        for (field, value) in [
            (GpuField::Sm, sm),
            (GpuField::Tensor, 0.04),
            (GpuField::Dram, 0.12),
            (GpuField::Power, watts),
            (GpuField::SmClock, 1980.0),
        ] {
            values.put(field, Some(value));
        }
        GpuState::new(gpu, activity, &values)
    }

    fn lines(node: &str, gpus: Vec<GpuState>) -> Vec<RankLine> {
        RankLine::all(0, node, Stacks { gpus, ..Stacks::default() })
    }

    #[test]
    fn gpus_that_did_the_same_are_one_group_with_the_range_of_its_figures() {
        let mut all = lines(
            "gn4",
            (0..8)
                .map(|gpu| match gpu {
                    3 => state(gpu, GpuActivity::Idle, 0.0, 75.2),
                    _ => state(gpu, GpuActivity::Waits, 12.03, 118.0 + f64::from(gpu)),
                })
                .collect(),
        );
        assert_eq!(
            gpu_text(&gpu_groups(&all)),
            "7 GPUs waited: SMs 12 % active, tensor 0 %, memory 0.1 %, 118 to 125 W, 1980 MHz; GPU 3 on gn4 was idle: SMs 0 % \
             active, tensor 0 %, memory 0.1 %, 75 W, 1980 MHz"
        );
        all.extend(lines("gn5", vec![GpuState { activity: GpuActivity::Idle, ..GpuState::default() }]));
        let text = gpu_text(&gpu_groups(&all));
        assert!(text.contains("; GPUs 3 on gn4, 0 on gn5 were idle: SMs 0 % active"), "{text}");
        let unknown = GpuState { gpu: 2, activity: GpuActivity::Unknown, ..GpuState::default() };
        assert_eq!(gpu_text(&gpu_groups(&lines("gn6", vec![unknown]))), "GPU 2 on gn6 was not sampled");
        assert_eq!(gpu_text(&gpu_groups(&[])), "");
    }
}
