//! A training job that uses no GPU, on simulated hardware: the figures it would have on H100s, and its program on a cluster.
//!
//! The model has 6.7e9 parameters in bf16. It is sharded over the GPUs of each node (FSDP) and replicated on each node:
//! all-gathers of each layer's parameters and reduce-scatters of its gradients over NVLink, all-reduces of gradients between
//! the nodes, each rank over its own rail. Activations are recomputed in the backward pass. The program (`src/bin/training`)
//! reports this load to the simulated GPUs, plays the collectives to the profiler plugin named in its environment, and reports
//! its steps. All figures are defined here, so that a test can compare a report with them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nvidia_ml::{Work, work};

use crate::cluster::{Builder, CONTROLLER, Cluster, program_dir};

/// Path of the program on every machine.
const PROGRAM: &str = "/shared/training";
/// Path of the library that stands in for NCCL in its processes.
pub const NCCL: &str = "/shared/libnccl.so.2";
/// Release of NCCL that the stand-in reports: 2.28.9.
pub const NCCL_RELEASE: u64 = 22_809;

/// Number of parameters of the model.
pub const PARAMETERS: u64 = 6_738_415_616;
/// Number of layers.
pub const LAYERS: u32 = 32;
/// Attention heads.
pub const HEADS: u32 = 32;
/// Dimension of an attention head.
pub const HEAD_DIM: u32 = 128;
/// Tokens of a sequence; each rank processes one sequence in a step.
pub const SEQUENCE: u32 = 4096;

/// Duration of a step in seconds.
pub const STEP_S: f64 = 0.48;
/// Number of steps.
pub const STEPS: u32 = 60;
/// The step after which a checkpoint is saved.
pub const SAVE_AFTER: u32 = 30;
/// Duration of the checkpoint in seconds.
pub const SAVE_S: f64 = 1.2;

/// Dense bf16 peak of an H100 SXM, TFLOP/s.
const PEAK_TFLOPS: f64 = 989.4;
/// SM clock at that peak, MHz.
const PEAK_MHZ: f64 = 1830.0;
/// SM clock under this load, MHz.
const CLOCK_MHZ: u32 = 1755;
/// Tensor pipe activity during a step, percent.
const TENSOR_PERCENT: f64 = 52.0;

/// Model FLOP utilisation while steps run, 0 to 1: 6 N + 12 L H Q T FLOP for each token.
pub fn mfu() -> f64 {
    let attention = 12.0 * f64::from(LAYERS * HEADS * HEAD_DIM) * f64::from(SEQUENCE);
    #[expect(clippy::cast_precision_loss, reason = "exact")]
    let token = 6.0 * PARAMETERS as f64 + attention;
    token * f64::from(SEQUENCE) / STEP_S / (PEAK_TFLOPS * 1e12)
}

/// Hardware FLOP utilisation while steps run, 0 to 1: active tensor cycles at the actual clock.
pub fn hfu() -> f64 {
    TENSOR_PERCENT / 100.0 * f64::from(CLOCK_MHZ) / PEAK_MHZ
}

/// The ranks that take part in a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// All ranks of a node, over NVLink.
    Node,
    /// The ranks with the same GPU index on each node, over its rail.
    Rail,
    /// All ranks.
    World,
}

/// A collective of the training, with its size and bandwidth.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// NCCL's name of the operation.
    pub op: &'static str,
    /// Participating ranks.
    pub group: Group,
    /// Size of the whole buffer in bytes, as nccl-tests counts it.
    pub bytes: u64,
    /// Bus bandwidth in GB/s (1e9), as nccl-tests counts it.
    pub busbw_gb_s: f64,
    /// Calls of each rank in a step.
    pub calls: u32,
}

/// Bytes of a layer's parameters in bf16.
const LAYER: u64 = PARAMETERS / LAYERS as u64 * 2;

/// All collectives of a step. With `per_node` ranks on a node each rank holds that fraction of a layer's gradients.
pub fn kinds(per_node: u32) -> [Kind; 4] {
    let kind = |op, group, bytes, busbw_gb_s, calls| Kind { op, group, bytes, busbw_gb_s, calls };
    [
        kind("AllGather", Group::Node, LAYER, 345.0, 2 * LAYERS),
        kind("ReduceScatter", Group::Node, LAYER, 340.0, LAYERS),
        kind("AllReduce", Group::Rail, LAYER / u64::from(per_node), 46.0, LAYERS),
        // The gradients' norm: one number.
        kind("AllReduce", Group::World, 4, 0.0001, 1),
    ]
}

impl Kind {
    /// Bytes that a rank of `ranks` sends, and receives, in one call.
    #[expect(clippy::cast_precision_loss, reason = "bytes of a layer")]
    pub fn wire_bytes(&self, ranks: u32) -> f64 {
        let others = f64::from(ranks - 1) / f64::from(ranks);
        self.bytes as f64 * if self.op == "AllReduce" { 2.0 * others } else { others }
    }

    /// Duration of one call in seconds.
    pub fn seconds(&self, ranks: u32) -> f64 {
        self.wire_bytes(ranks) / (self.busbw_gb_s * 1e9)
    }
}

/// Load of a GPU while steps run, with `per_node` GPUs on a node.
pub fn in_steps(per_node: u32) -> Work {
    let node = kinds(per_node).into_iter().filter(|kind| kind.group == Group::Node);
    let sent: f64 = node.map(|kind| f64::from(kind.calls) * kind.wire_bytes(per_node)).sum();
    let nvlink = sent / STEP_S / f64::from(1 << 20);
    let metrics = BTreeMap::from([
        (1, 99.0),
        (2, 88.0),
        (3, 23.0),
        (5, TENSOR_PERCENT),
        (7, TENSOR_PERCENT),
        (10, 44.0),
        (12, 7.0),
        (13, 2.0),
        (20, 310.0),
        (21, 520.0),
        (60, nvlink),
        (61, nvlink),
    ]);
    Work { metrics, clock_mhz: CLOCK_MHZ, power_w: 645.0, temperature_c: 63, memory_mib: 61_440 }
}

/// Load of a GPU when a program holds its memory and computes nothing.
pub fn at_rest() -> Work {
    Work {
        metrics: BTreeMap::new(),
        clock_mhz: 1980,
        power_w: 118.0,
        temperature_c: 41,
        memory_mib: in_steps(1).memory_mib,
    }
}

/// Stand-in for PyTorch's launcher: prints the settings that a node's task received, and starts the program.
const TORCHRUN: &str = r#"#!/bin/bash
echo "$(hostname): node ${SLURM_PROCID:-?} of ${SLURM_NTASKS:-?}, attempt ${SLURM_RESTART_COUNT:-0}"
echo "$(hostname): NCCL_IB_HCA=${NCCL_IB_HCA:-(not set)}"
echo "$(hostname): set by railgate: ${RAILGATE_SET:-(nothing)}"
exec /shared/training "$@"
"#;

/// A sampling rate that suits a job of half a minute, and the bandwidths a site would have measured with nccl-tests.
const CONFIG: &str = "
[stats]
sample = '1s'
task_look = '5s'
references = [
    { op = 'AllGather', ranks = 8, nodes = 1, bytes = 268435456, busbw_gb_s = 350.0 },
    { op = 'ReduceScatter', ranks = 8, nodes = 1, bytes = 268435456, busbw_gb_s = 350.0 },
    { op = 'AllReduce', ranks = 2, nodes = 2, bytes = 33554432, busbw_gb_s = 48.0 },
]
";

/// A cluster that can run the training: the torchrun templates start it once [`put_on`] has installed it. Reports name the cluster
/// `simulated`.
///
/// # Errors
/// Only for invalid configuration, thus none in practice.
pub fn cluster(nodes: usize) -> Result<Builder> {
    let builder = Builder::new(nodes).slurm_conf("ClusterName", "simulated");
    Ok(builder.config(CONFIG)?.file("/usr/local/bin/torchrun", TORCHRUN))
}

/// Installs the program on a running cluster and gives its GPUs the GPM metrics that H100s have.
///
/// # Errors
/// The program is not built, there is no C compiler, or a machine of the cluster is down.
pub fn put_on(cluster: &Cluster) -> Result<()> {
    let program = cluster.path(CONTROLLER, PROGRAM)?;
    let built = program_dir()?.join("training");
    fs::copy(&built, &program)
        .with_context(|| format!("{} is not built (cargo build -p railgate-tests)", built.display()))?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    played_nccl(&cluster.path(CONTROLLER, NCCL)?)?;
    // The metrics that a step raises; all others stay zero.
    let gpm: Vec<(u32, f64)> =
        (1..=13).chain([20, 21, 60, 61]).filter(|id| *id != 4 && *id != 8).map(|id| (id, 0.0)).collect();
    for node in cluster.nodes() {
        let mut hardware = cluster.hardware(node)?;
        hardware.works(&gpm)?;
        // From here on GPUs consume energy, at rest as well.
        for gpu in 0..8 {
            work(hardware.dir(), gpu, &Work::default(), Duration::ZERO)?;
        }
        // NCCL holds these open where it uses InfiniBand; here they are ordinary files.
        for device in 0..8 {
            cluster.write(node, &format!("/dev/infiniband/uverbs{device}"), "")?;
        }
    }
    Ok(())
}

/// Compiles the stand-in for NCCL's library that the profiler plugin inspects.
///
/// # Errors
/// There is no C compiler, or `place` cannot be written.
pub fn played_nccl(place: &Path) -> Result<()> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nccl-profiler/tests/driver/nccl.c");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([place, &source]).status();
    let built = built.context("cc")?;
    ensure!(built.success(), "{}: {built}", source.display());
    Ok(())
}

/// Time from the start of a step to the start of the next one.
pub fn step() -> Duration {
    Duration::from_secs_f64(STEP_S)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// New users see these figures first, in the demo, so they must be plausible.
    #[test]
    fn the_figures_are_those_of_h100s() {
        assert!((0.35..0.45).contains(&mfu()) && mfu() < hfu(), "{} {}", mfu(), hfu());
        let busy: f64 = kinds(8)
            .into_iter()
            .map(|kind| {
                let ranks = if kind.group == Group::Node { 8 } else { 2 };
                f64::from(kind.calls) * kind.seconds(ranks)
            })
            .sum();
        assert!((0.1..0.5).contains(&(busy / STEP_S)), "{busy}");
        // NVLink: 900 GB/s, both directions together. Rail: 400 Gbit/s.
        let [gather, _, reduce, _] = kinds(8);
        assert!(gather.busbw_gb_s < 450.0 && reduce.busbw_gb_s < 50.0);
        assert_eq!(LAYER % 16, 0, "a rank's part is a whole number of bf16");
    }
}
