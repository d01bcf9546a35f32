//! Maps readings of a GPU to fields of a sample.

use railgate_model::{GpuField, GpuSample, Reading, WatchedGpu};
use railgate_node_report::usage::Values;
use railgate_node_report::usage::format::HeadGpu;

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

/// All fields as missing, with one reason.
pub(crate) fn all_lacking(why: &str) -> Vec<(String, String)> {
    GpuField::ALL.iter().map(|field| (field.name().to_owned(), why.to_owned())).collect()
}

pub(crate) fn values(gpu: &GpuSample) -> Values<GpuField> {
    let mut values = Values::default();
    for field in GpuField::ALL {
        values.put(*field, gpu.get(*field).known().copied());
    }
    values
}

/// The missing fields of a sample, with the reason.
pub(crate) fn lacking(gpu: &GpuSample) -> Vec<(String, String)> {
    let why = |field: &GpuField| match gpu.get(*field) {
        Reading::Known(_) => None,
        Reading::Unsupported => Some("unsupported".to_owned()),
        Reading::Failed(why) => Some(why.clone()),
    };
    GpuField::ALL.iter().filter_map(|field| Some((field.name().to_owned(), why(field)?))).collect()
}
