//! Maps readings of a GPU to fields of a sample.

use railgate_model::{GpuSample, Reading, WatchedGpu};
use railgate_node_report::usage::format::HeadGpu;
use railgate_node_report::usage::{Field, GpuField, Values};

/// A GPU in the head of the files; its missing fields are known after the first sample.
pub(crate) fn head_gpu(gpu: &WatchedGpu) -> HeadGpu {
    HeadGpu {
        index: gpu.index.known().copied().unwrap_or(u32::MAX),
        uuid: gpu.uuid.known().cloned().unwrap_or_default(),
        model: gpu.name.known().cloned().unwrap_or_default(),
        instance: gpu.instance,
        instance_sms: gpu.instance_sms.known().copied(),
        memory_total_mib: gpu.memory_total_mib.known().copied(),
        lacking: Vec::new(),
    }
}

type Get = fn(&GpuSample) -> &Reading<f64>;

/// Mapping of readings to fields; the reasons for a low clock are one reading and several fields.
const GPU_VALUES: [(GpuField, Get); 26] = [
    (GpuField::Graphics, |gpu| &gpu.graphics),
    (GpuField::Sm, |gpu| &gpu.sm),
    (GpuField::Occupancy, |gpu| &gpu.occupancy),
    (GpuField::Tensor, |gpu| &gpu.tensor),
    (GpuField::Dfma, |gpu| &gpu.dfma),
    (GpuField::Hmma, |gpu| &gpu.hmma),
    (GpuField::Imma, |gpu| &gpu.imma),
    (GpuField::Dram, |gpu| &gpu.dram),
    (GpuField::Fp64, |gpu| &gpu.fp64),
    (GpuField::Fp32, |gpu| &gpu.fp32),
    (GpuField::Fp16, |gpu| &gpu.fp16),
    (GpuField::PcieTx, |gpu| &gpu.pcie_tx),
    (GpuField::PcieRx, |gpu| &gpu.pcie_rx),
    (GpuField::NvlinkTx, |gpu| &gpu.nvlink_tx),
    (GpuField::NvlinkRx, |gpu| &gpu.nvlink_rx),
    (GpuField::AnyKernel, |gpu| &gpu.any_kernel),
    (GpuField::MemoryBusy, |gpu| &gpu.memory_busy),
    (GpuField::SmClock, |gpu| &gpu.clock),
    (GpuField::SmWork, |gpu| &gpu.sm_work),
    (GpuField::TensorWork, |gpu| &gpu.tensor_work),
    (GpuField::TensorWorkSlowed, |gpu| &gpu.tensor_work_slowed),
    (GpuField::Fp32Work, |gpu| &gpu.fp32_work),
    (GpuField::Power, |gpu| &gpu.power),
    (GpuField::Energy, |gpu| &gpu.energy),
    (GpuField::Temperature, |gpu| &gpu.temperature),
    (GpuField::MemoryUsed, |gpu| &gpu.memory_used),
];

const REASONS: [GpuField; 5] = [
    GpuField::PowerCap,
    GpuField::HwSlowdown,
    GpuField::SwThermal,
    GpuField::HwThermal,
    GpuField::PowerBrake,
];

/// All fields as missing, with one reason.
pub(crate) fn all_lacking(why: &str) -> Vec<(String, String)> {
    let single = GPU_VALUES.iter().map(|(field, _)| field);
    single.chain(&REASONS).map(|field| (field.name().to_owned(), why.to_owned())).collect()
}

pub(crate) fn values(gpu: &GpuSample) -> Values<GpuField> {
    let mut values = Values::default();
    for (field, get) in GPU_VALUES {
        values.put(field, get(gpu).known().copied());
    }
    if let Reading::Known(shares) = &gpu.reasons {
        for (field, share) in REASONS.into_iter().zip(shares) {
            values.put(field, Some(*share));
        }
    }
    values
}

/// The missing fields of a sample, with the reason.
pub(crate) fn lacking(gpu: &GpuSample) -> Vec<(String, String)> {
    fn why<T>(reading: &Reading<T>) -> Option<String> {
        match reading {
            Reading::Known(_) => None,
            Reading::Unsupported => Some("unsupported".to_owned()),
            Reading::Failed(why) => Some(why.clone()),
        }
    }
    let single = GPU_VALUES.iter().filter_map(|(field, get)| Some((field.name().to_owned(), why(get(gpu))?)));
    let reasons = why(&gpu.reasons);
    single
        .chain(REASONS.iter().filter_map(|field| Some((field.name().to_owned(), reasons.clone()?))))
        .collect()
}
