//! A training that no GPU does, on simulated hardware: what it would be on H100s, and its program on a cluster.
//!
//! A model of 6.7e9 parameters in bf16, sharded over the GPUs of each node (FSDP) and repeated on each node: all-gathers of
//! each layer's parameters and reduce-scatters of its gradients over NVLink, all-reduces of gradients between the nodes, each
//! rank over its own rail. Layers are computed again on the way back. The program (`src/bin/training`) says so to the
//! simulated GPUs, plays the collectives to the profiler plugin that its environment names, and reports its steps. What
//! it plays is written down here once, so that a test can compare a report with it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nvidia_ml::{Work, work};

use crate::cluster::{Builder, CONTROLLER, Cluster, program_dir};

/// The program, as every machine sees it.
const PROGRAM: &str = "/shared/training";
/// What stands for NCCL in its processes, likewise.
pub const NCCL: &str = "/shared/libnccl.so.2";
/// NCCL's release that it plays, 2.28.9.
pub const NCCL_RELEASE: u64 = 22_809;

/// Parameters of the model.
pub const PARAMETERS: u64 = 6_738_415_616;
/// Its layers.
pub const LAYERS: u32 = 32;
/// Attention heads.
pub const HEADS: u32 = 32;
/// Width of a head.
pub const HEAD_DIM: u32 = 128;
/// Tokens of a sequence; each rank has one in each step.
pub const SEQUENCE: u32 = 4096;

/// How long a step takes, seconds.
pub const STEP_S: f64 = 0.48;
/// Steps in all.
pub const STEPS: u32 = 60;
/// After this one it saves a checkpoint.
pub const SAVE_AFTER: u32 = 30;
/// How long that takes, seconds.
pub const SAVE_S: f64 = 1.2;

/// Dense bf16 peak of an H100 SXM, TFLOP/s.
const PEAK_TFLOPS: f64 = 989.4;
/// Its SM clock at that peak, MHz.
const PEAK_MHZ: f64 = 1830.0;
/// SM clock under such a load, MHz.
const CLOCK_MHZ: u32 = 1755;
/// Tensor pipes at work in a step, percent.
const TENSOR_PERCENT: f64 = 52.0;

/// Model FLOP utilisation while steps run, 0 to 1: 6 N + 12 L H Q T FLOP for a token.
pub fn mfu() -> f64 {
    let attention = 12.0 * f64::from(LAYERS * HEADS * HEAD_DIM) * f64::from(SEQUENCE);
    #[expect(clippy::cast_precision_loss, reason = "exact")]
    let token = 6.0 * PARAMETERS as f64 + attention;
    token * f64::from(SEQUENCE) / STEP_S / (PEAK_TFLOPS * 1e12)
}

/// Hardware FLOP utilisation while steps run, 0 to 1: the pipes' cycles at the clock that they have.
pub fn hfu() -> f64 {
    TENSOR_PERCENT / 100.0 * f64::from(CLOCK_MHZ) / PEAK_MHZ
}

/// Which ranks meet in a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Those of a node, over NVLink.
    Node,
    /// The same GPU of each node, over its rail.
    Rail,
    /// All.
    World,
}

/// A kind of collective.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// NCCL's name.
    pub op: &'static str,
    /// Who.
    pub group: Group,
    /// Bytes of the whole buffer, as nccl-tests counts them.
    pub bytes: u64,
    /// What the wires carry meanwhile, GB/s (1e9), as nccl-tests counts it.
    pub busbw_gb_s: f64,
    /// Calls of each rank in a step.
    pub calls: u32,
}

/// Parameters of a layer in bf16.
const LAYER: u64 = PARAMETERS / LAYERS as u64 * 2;

/// All that a step has. With `per_node` ranks on a node a rank's gradients of a layer are that part of the layer.
pub fn kinds(per_node: u32) -> [Kind; 4] {
    let kind = |op, group, bytes, busbw_gb_s, calls| Kind { op, group, bytes, busbw_gb_s, calls };
    [
        kind("AllGather", Group::Node, LAYER, 345.0, 2 * LAYERS),
        kind("ReduceScatter", Group::Node, LAYER, 340.0, LAYERS),
        kind("AllReduce", Group::Rail, LAYER / u64::from(per_node), 46.0, LAYERS),
        // The norm of the gradients: one number.
        kind("AllReduce", Group::World, 4, 0.0001, 1),
    ]
}

impl Kind {
    /// Bytes that a rank of `ranks` sends meanwhile, and receives.
    #[expect(clippy::cast_precision_loss, reason = "bytes of a layer")]
    pub fn wire_bytes(&self, ranks: u32) -> f64 {
        let others = f64::from(ranks - 1) / f64::from(ranks);
        self.bytes as f64 * if self.op == "AllReduce" { 2.0 * others } else { others }
    }

    /// How long it takes, seconds.
    pub fn seconds(&self, ranks: u32) -> f64 {
        self.wire_bytes(ranks) / (self.busbw_gb_s * 1e9)
    }
}

/// What a GPU does while steps run, with `per_node` of them on a node.
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

/// What a GPU does when a program has its memory and nothing to do.
pub fn at_rest() -> Work {
    Work {
        metrics: BTreeMap::new(),
        clock_mhz: 1980,
        power_w: 118.0,
        temperature_c: 41,
        memory_mib: in_steps(1).memory_mib,
    }
}

/// What stands for PyTorch's launcher: shows what a node's task was given, and starts the program.
const TORCHRUN: &str = r#"#!/bin/bash
echo "$(hostname): node ${SLURM_PROCID:-?} of ${SLURM_NTASKS:-?}, attempt ${SLURM_RESTART_COUNT:-0}"
echo "$(hostname): NCCL_IB_HCA=${NCCL_IB_HCA:-(not set)}"
echo "$(hostname): set by railgate: ${RAILGATE_SET:-(nothing)}"
exec /shared/training "$@"
"#;

/// A sampler for a job of half a minute, and what the site would have measured with nccl-tests.
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

/// A cluster on which it can run: the templates for torchrun start it once [`put_on`] has put it there. Reports name the
/// cluster `simulated`.
///
/// # Errors
/// None that depends on the machine.
pub fn cluster(nodes: usize) -> Result<Builder> {
    let builder = Builder::new(nodes).slurm_conf("ClusterName", "simulated");
    Ok(builder.config(CONFIG)?.file("/usr/local/bin/torchrun", TORCHRUN))
}

/// Puts the program onto a running cluster, and gives its GPUs the activities (GPM) that H100s have.
///
/// # Errors
/// The program is not built, there is no C compiler, or the cluster is not whole.
pub fn put_on(cluster: &Cluster) -> Result<()> {
    let program = cluster.path(CONTROLLER, PROGRAM)?;
    let built = program_dir()?.join("training");
    fs::copy(&built, &program)
        .with_context(|| format!("{} is not built (cargo build -p railgate-tests)", built.display()))?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    played_nccl(&cluster.path(CONTROLLER, NCCL)?)?;
    // Those that a step counts; the others it leaves at zero.
    let gpm: Vec<(u32, f64)> =
        (1..=13).chain([20, 21, 60, 61]).filter(|id| *id != 4 && *id != 8).map(|id| (id, 0.0)).collect();
    for node in cluster.nodes() {
        let mut hardware = cluster.hardware(node)?;
        hardware.works(&gpm)?;
        // From now on their energy counts, which it does at rest, too.
        for gpu in 0..8 {
            work(hardware.dir(), gpu, &Work::default(), Duration::ZERO)?;
        }
        // What NCCL holds open where it uses InfiniBand; the devices behind are none.
        for device in 0..8 {
            cluster.write(node, &format!("/dev/infiniband/uverbs{device}"), "")?;
        }
    }
    Ok(())
}

/// Compiles what the profiler plugin sees of NCCL's library.
///
/// # Errors
/// There is no C compiler, or the place cannot be written.
pub fn played_nccl(place: &Path) -> Result<()> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nccl-profiler/tests/driver/nccl.c");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([place, &source]).status();
    let built = built.context("cc")?;
    ensure!(built.success(), "{}: {built}", source.display());
    Ok(())
}

/// From one step's begin to the next one's.
pub fn step() -> Duration {
    Duration::from_secs_f64(STEP_S)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a newcomer sees first has to be believed.
    #[test]
    fn it_is_what_h100s_do() {
        assert!((0.35..0.45).contains(&mfu()) && mfu() < hfu(), "{} {}", mfu(), hfu());
        let busy: f64 = kinds(8)
            .into_iter()
            .map(|kind| {
                let ranks = if kind.group == Group::Node { 8 } else { 2 };
                f64::from(kind.calls) * kind.seconds(ranks)
            })
            .sum();
        assert!((0.1..0.5).contains(&(busy / STEP_S)), "{busy}");
        // 900 GB/s of NVLink both ways, and a rail of 400 Gbit/s.
        let [gather, _, reduce, _] = kinds(8);
        assert!(gather.busbw_gb_s < 450.0 && reduce.busbw_gb_s < 50.0);
        assert_eq!(LAYER % 16, 0, "a rank's part is a whole number of bf16");
    }
}
