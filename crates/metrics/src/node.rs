use railgate_model::{Access, Class, Fitness, Gpu, Part, Reading, Severity, Snapshot, UnixMillis, Verdict};

use super::page::{Kind, Metric, Series, count, flag, page};

/// State of the gate on a node after a check run.
#[derive(Debug)]
pub struct NodeState {
    /// Snapshot of the check run.
    pub snapshot: Snapshot,
    /// Verdict of the gate.
    pub verdict: Verdict,
    /// Duration of check run and judgement, milliseconds.
    pub took_ms: f64,
    /// Time of the snapshot.
    pub taken: UnixMillis,
    /// Whether the gate drains: enforcing, not paused, not disabled.
    pub acting: bool,
    /// Whether railgate has drained the node; `None` if not known.
    pub held: Option<bool>,
    /// A drain reason waits for slurmctld.
    pub pending: bool,
    /// Open findings: found, and not found to be resolved since.
    pub open: Vec<OpenFinding>,
    /// Counts of findings since counting began.
    pub checks: Vec<CheckCounts>,
}

/// Open findings of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenFinding {
    /// Check id.
    pub check: String,
    /// Severity.
    pub severity: Severity,
    /// Class: part that is at fault.
    pub class: Class,
    /// The check is in shadow mode, so findings have no consequences.
    pub shadow: bool,
}

/// Counts of the findings of one check on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckCounts {
    /// Check id.
    pub check: String,
    /// Number of findings; a finding that persists counts once.
    pub seen: u64,
    /// Findings that would have drained the node if the check had been allowed to.
    pub would_drain: u64,
    /// Findings that drained the node.
    pub drained: u64,
    /// Strikes: occurrences of transient findings within their window.
    pub strikes: u64,
}

/// Contents of `railgate.prom`.
pub fn node_page(state: &NodeState) -> String {
    page(NODE_METRICS, state, &[])
}

fn gpus(state: &NodeState) -> &[Gpu] {
    state.snapshot.gpus.data().map_or(&[], |gpus| &gpus.gpus)
}

fn each_gpu(state: &NodeState, mut put: impl FnMut(&Gpu, &[&str])) {
    for gpu in gpus(state) {
        let uuid = gpu.uuid.known().map_or("", String::as_str);
        put(gpu, &[&gpu.index.to_string(), uuid]);
    }
}

fn gpu_count(state: &NodeState, series: &mut Series, value: impl Fn(&Gpu) -> Reading<u64>) {
    each_gpu(state, |gpu, labels| series.put_known(labels, &value(gpu), count));
}

fn per_check(state: &NodeState, series: &mut Series, value: impl Fn(&CheckCounts) -> u64) {
    for check in &state.checks {
        series.put(&[&check.check], count(value(check)));
    }
}

fn part(series: &mut Series, name: &str, answered: bool, asked: bool) {
    if asked {
        series.put(&[name], flag(answered));
    }
}

fn parts(state: &NodeState, series: &mut Series) {
    fn state_of<T>(part: &Part<T>) -> (bool, bool) {
        (part.data().is_some(), !matches!(part, Part::Skipped))
    }
    let Snapshot { gpus, fabric, pci, kernel_log, host, .. } = &state.snapshot;
    for (name, (answered, asked)) in [
        ("gpus", state_of(gpus)),
        ("fabric", state_of(fabric)),
        ("pci", state_of(pci)),
        ("kernel-log", state_of(kernel_log)),
        ("host", state_of(host)),
    ] {
        part(series, name, answered, asked);
    }
}

const GPU: &[&str] = &["gpu", "uuid"];

/// The rows of `railgate.prom`.
pub const NODE_METRICS: &[Metric<NodeState>] = &[
    Metric {
        name: "railgate_build_info",
        kind: Kind::Gauge,
        labels: &["version"],
        help: "Version of railgate that wrote this file; always 1.",
        read: |_, series| series.put(&[env!("CARGO_PKG_VERSION")], 1.0),
    },
    Metric {
        name: "railgate_gate_verdict",
        kind: Kind::Gauge,
        labels: &["verdict"],
        help: "1 for the verdict of the gate's last check run (fit, degraded, unfit, unknown), 0 for the others.",
        read: |state, series| {
            for fitness in [Fitness::Fit, Fitness::Degraded, Fitness::Unfit, Fitness::Unknown] {
                series.put(&[&fitness.to_string()], flag(state.verdict.fitness == fitness));
            }
        },
    },
    Metric {
        name: "railgate_gate_look_timestamp_seconds",
        kind: Kind::Gauge,
        labels: &["phase"],
        help: "Start of the last check run, Unix time.",
        read: |state, series| series.put(&[&state.verdict.phase.to_string()], count(state.taken) / 1000.0),
    },
    Metric {
        name: "railgate_gate_look_duration_seconds",
        kind: Kind::Gauge,
        labels: &[],
        help: "Duration of the last check run, reading and judging.",
        read: |state, series| series.put(&[], state.took_ms / 1000.0),
    },
    Metric {
        name: "railgate_gate_acting",
        kind: Kind::Gauge,
        labels: &[],
        help: "1 if railgate may drain this node, 0 in report mode, while paused, or if disabled.",
        read: |state, series| series.put(&[], flag(state.acting)),
    },
    Metric {
        name: "railgate_node_held",
        kind: Kind::Gauge,
        labels: &[],
        help: "1 while the node is drained by railgate.",
        read: |state, series| series.put_some(&[], state.held.map(flag)),
    },
    Metric {
        name: "railgate_node_drain_pending",
        kind: Kind::Gauge,
        labels: &[],
        help: "1 while a drain reason waits for slurmctld to answer.",
        read: |state, series| series.put(&[], flag(state.pending)),
    },
    Metric {
        name: "railgate_gate_part_answered",
        kind: Kind::Gauge,
        labels: &["part"],
        help: "1 if this part of the machine answered the last check run that read it, 0 if it did not.",
        read: parts,
    },
    Metric {
        name: "railgate_gate_findings",
        kind: Kind::Gauge,
        labels: &["check", "severity", "class", "shadow"],
        help: "Open findings: no later check run of the whole node has found them resolved.",
        read: |state, series| {
            for (index, open) in state.open.iter().enumerate() {
                if state.open.iter().take(index).any(|earlier| earlier == open) {
                    continue;
                }
                let same = state.open.iter().filter(|other| *other == open).count();
                let shadow = if open.shadow { "true" } else { "false" };
                let labels: [&str; 4] =
                    [&open.check, &open.severity.to_string(), &open.class.to_string(), shadow];
                series.put(&labels, count(u64::try_from(same).unwrap_or(u64::MAX)));
            }
        },
    },
    Metric {
        name: "railgate_gate_findings_total",
        kind: Kind::Counter,
        labels: &["check"],
        help: "Findings since counting began on this node, each counted once regardless of its duration.",
        read: |state, series| per_check(state, series, |check| check.seen),
    },
    Metric {
        name: "railgate_gate_would_drain_total",
        kind: Kind::Counter,
        labels: &["check"],
        help: "Of these, findings that would have drained the node if the check had been allowed to.",
        read: |state, series| per_check(state, series, |check| check.would_drain),
    },
    Metric {
        name: "railgate_gate_drains_total",
        kind: Kind::Counter,
        labels: &["check"],
        help: "Drains that railgate made because of the check.",
        read: |state, series| per_check(state, series, |check| check.drained),
    },
    Metric {
        name: "railgate_gate_strikes",
        kind: Kind::Gauge,
        labels: &["check"],
        help: "Strikes: occurrences of transient findings in the last seven days.",
        read: |state, series| per_check(state, series, |check| check.strikes),
    },
    Metric {
        name: "railgate_gpu_up",
        kind: Kind::Gauge,
        labels: GPU,
        help: "1 if the GPU answers, 0 if it is lost, needs a reset or cannot be opened.",
        read: |state, series| {
            each_gpu(state, |gpu, labels| series.put(labels, flag(gpu.access == Access::Ok)));
        },
    },
    Metric {
        name: "railgate_gpu_ecc_uncorrected_total",
        kind: Kind::Counter,
        labels: GPU,
        help: "Uncorrected memory errors since the driver was loaded.",
        read: |state, series| gpu_count(state, series, |gpu| gpu.ecc.volatile_uncorrected.clone()),
    },
    Metric {
        name: "railgate_gpu_ecc_corrected_total",
        kind: Kind::Counter,
        labels: GPU,
        help: "Corrected memory errors since the driver was loaded.",
        read: |state, series| gpu_count(state, series, |gpu| gpu.ecc.volatile_corrected.clone()),
    },
    Metric {
        name: "railgate_gpu_rows_remapped",
        kind: Kind::Gauge,
        labels: GPU,
        help: "Memory rows remapped over the life of the card.",
        read: |state, series| {
            gpu_count(state, series, |gpu| {
                gpu.row_remap.clone().map(|rows| u64::from(rows.correctable) + u64::from(rows.uncorrectable))
            });
        },
    },
    Metric {
        name: "railgate_gpu_row_remap_pending",
        kind: Kind::Gauge,
        labels: GPU,
        help: "1 while a remapped row waits for a reset of the GPU.",
        read: |state, series| {
            gpu_count(state, series, |gpu| gpu.row_remap.clone().map(|rows| u64::from(rows.pending)));
        },
    },
    Metric {
        name: "railgate_gpu_pcie_replays_total",
        kind: Kind::Counter,
        labels: GPU,
        help: "PCIe packets sent again since the driver was loaded.",
        read: |state, series| gpu_count(state, series, |gpu| gpu.pcie_replays.clone()),
    },
    Metric {
        name: "railgate_gpu_nvlinks_up",
        kind: Kind::Gauge,
        labels: GPU,
        help: "NVLinks of the GPU that are up.",
        read: |state, series| {
            each_gpu(state, |gpu, labels| {
                let told = gpu.nvlinks.iter().all(|link| !matches!(link.up, Reading::Failed(_)));
                let up = gpu.nvlinks.iter().filter(|link| link.up == Reading::Known(true)).count();
                if told && !gpu.nvlinks.is_empty() {
                    series.put(labels, count(u64::try_from(up).unwrap_or(u64::MAX)));
                }
            });
        },
    },
];
