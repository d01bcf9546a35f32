use std::collections::BTreeMap;

use railgate_model::{
    GpuSelfTest, GpuSelfTested, Part, PciAddress, Reading, Snapshot, ValueCheck, WrongValue,
};

/// Outcomes of the GPU self-test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is explained to people in FAULTS")]
pub enum GpuSelfTestFault {
    Wrong,
    Silent,
    Slow,
    NvLink,
    Missing,
}

/// Values of a product of 4096 × 4096.
const COMPARED: u64 = 4096 * 4096;
const COPIES: &[(&str, f64)] = &[("host_to_device_gb_s", 55.0), ("device_to_host_gb_s", 55.1)];

/// Adds the results of a self-test in which the GPU with this index has the fault.
pub(super) fn apply(snapshot: &mut Snapshot, fault: GpuSelfTestFault, index: u32) {
    if fault == GpuSelfTestFault::Missing {
        let why = "/usr/libexec/railgate/railgate-gpu-selftest: cannot be started: No such file or directory";
        snapshot.extras.gpu_self_test = Some(Part::Failed { why: why.to_owned(), took_ms: 2.0 });
        return;
    }
    let Some(gpus) = snapshot.gpus.data() else { return };
    let mut data = GpuSelfTest::default();
    for gpu in &gpus.gpus {
        let Reading::Known(at) = gpu.pci else { continue };
        let model = gpu.name.known().cloned().unwrap_or_default();
        data.asked.push(at);
        data.tests.extend(results(at, &model, (gpu.index == index).then_some(fault)));
    }
    if fault == GpuSelfTestFault::Silent {
        data.incomplete = Some("no answer in 22000 ms".to_owned());
    }
    snapshot.extras.gpu_self_test = Some(Part::Read { data, took_ms: 9_000.0 });
}

fn results(gpu: PciAddress, model: &str, fault: Option<GpuSelfTestFault>) -> Vec<GpuSelfTested> {
    let line = |test: &str, values: ValueCheck, figures: &[(&str, f64)]| GpuSelfTested {
        gpu,
        uuid: None,
        to: None,
        model: model.to_owned(),
        test: test.to_owned(),
        seconds: 0.7,
        values,
        measured: figures
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect::<BTreeMap<_, _>>(),
        unknown: None,
        not_applicable: None,
    };
    let right = |compared| ValueCheck::Right { compared, digest: None };
    let product = match fault {
        Some(GpuSelfTestFault::Wrong) => ValueCheck::Wrong {
            compared: COMPARED,
            wrong: 1,
            first: vec![WrongValue {
                place: "tile 3,17, row 402, column 2190".to_owned(),
                got: "43f60000".to_owned(),
                want: "43b60000".to_owned(),
            }],
        },
        _ => right(50 * COMPARED),
    };
    let read = if fault == Some(GpuSelfTestFault::Slow) { 2_140.0 } else { 3_060.0 };
    let mut lines = vec![line("gemm-bf16", product, &[("simple_kernel_tflops", 133.0)])];
    if fault == Some(GpuSelfTestFault::Silent) {
        return lines;
    }
    lines.extend([
        line("memory-bandwidth", ValueCheck::None, &[("copy_gb_s", 2_830.0)]),
        line("memory-pattern", right(19_400_000_000), &[("read_gb_s", read), ("write_gb_s", 3_180.0)]),
        line(GpuSelfTested::LAST, right(33_554_432), COPIES),
        line("host-copy-alone", right(8_388_608), COPIES),
    ]);
    if fault == Some(GpuSelfTestFault::NvLink) {
        let errors = [("links_count", 18.0), ("recoveries_count", 2.0), ("link_7_recoveries_count", 2.0)];
        lines.push(line("nvlink-errors", ValueCheck::None, &errors));
    }
    lines
}
