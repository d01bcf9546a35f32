//! Jobs on simulated machines, for the tests of this crate and of those above it.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use railgate_model::{
    Action, Allocation, Class, Finding, Fitness, GpuId, Job, JobRequest, KernelLog, KernelMark, Part, Phase,
    Port, Rail, RailGpu, RailMap, Reading, Setting, Severity, Snapshot, UnixMillis, Verdict,
};

use crate::comm::Collective;
use crate::usage::format::{Head, HeadGpu, Record};
use crate::usage::{GpuField, GpuFigures, Sample, Values, summarize};
use crate::{
    Act, ActKind, Budget, Decision, DecisionKind, DecisionNode, Exit, GateRun, NodeReport, Options, RunGpus,
    SetBy, StatsConfig, StepEnv, StepSetting, Window, evidence, gpu_uses, kernel_events, port_uses,
};
use crate::{Culprit, Hang, HangKind};

pub const START: u64 = 1_800_000_000_000;
pub const HOUR: u64 = 3_600_000;

/// Rank 2 is stopped and three GPUs wait, since this time; named 45 s later.
pub fn hang(since: u64) -> Hang {
    Hang {
        kind: HangKind::Stopped,
        since,
        named: since + 45_000,
        over: None,
        culprits: vec![Culprit { rank: 2, ..Culprit::default() }],
        waiting_gpus: 3,
        operation: None,
        signs: Vec::new(),
        ports_down: Vec::new(),
        gpu_errors: Vec::new(),
        act: None,
    }
}

pub fn machine(node: &str, faults: &str) -> Snapshot {
    let text = if faults.is_empty() { "h100-sxm".to_owned() } else { format!("h100-sxm:{faults}") };
    let (profile, faults) = railgate_simulate::parse(&text, &[]).unwrap();
    let mut snapshot = railgate_simulate::simulated_node(&profile, &faults, node);
    snapshot.taken = START;
    snapshot
}

/// The same machine after a run of an hour, with energy and traffic.
pub fn after(before: &Snapshot, faults: &str) -> Snapshot {
    let mut snapshot = before.clone();
    snapshot.taken = START + HOUR;
    if let Part::Read { data, .. } = &mut snapshot.kernel_log {
        data.since = Some(KernelMark { boot_id: before.boot_id.clone(), seq: 1 });
    }
    if let Part::Read { data, .. } = &mut snapshot.gpus {
        for gpu in &mut data.gpus {
            gpu.energy_j = gpu.energy_j.clone().map(|joules| joules + 600.0 * 3600.0);
            gpu.nvlink_tx_kib = gpu.nvlink_tx_kib.clone().map(|kib| kib + 1_000_000);
        }
    }
    if let Part::Read { data, .. } = &mut snapshot.fabric {
        for port in data.hcas.iter_mut().flat_map(|hca| &mut hca.ports) {
            add(port, "port_xmit_data", 9_000_000_000);
            add(port, "port_rcv_data", 9_000_000_000);
        }
    }
    for fault in faults.split(',').filter(|fault| !fault.is_empty()) {
        railgate_simulate::inject(&mut snapshot, &fault.parse().unwrap());
    }
    if let Part::Read { data: KernelLog { lines, .. }, .. } = &mut snapshot.kernel_log {
        for line in lines {
            line.time = START + HOUR - 60_000;
        }
    }
    snapshot
}

pub fn add(port: &mut Port, counter: &str, by: u64) {
    let value = port.counters.get(counter).and_then(|value| value.known().copied()).unwrap_or(0);
    port.counters.insert(counter.to_owned(), Reading::Known(value + by));
}

pub fn job(gpus: std::ops::Range<u32>) -> Job {
    Job {
        id: 48_213,
        uid: 1000,
        gid: 1000,
        user: "ann".to_owned(),
        restarts: 0,
        nodelist: "n[1-2]".to_owned(),
        het_leader: None,
        allocation: Allocation::Gpus(gpus.map(GpuId::Index).collect()),
        partition: "gpu".to_owned(),
    }
}

pub fn finding(check: &str, part: &str, severity: Severity, class: Class, what: &str) -> Finding {
    Finding {
        check: check.to_owned(),
        part: part.to_owned(),
        severity,
        class,
        what: what.to_owned(),
        fix: "reboot".to_owned(),
        evidence: vec![],
    }
}

pub fn verdict(phase: Phase, findings: Vec<Finding>) -> Verdict {
    let unfit = findings.iter().any(|finding| finding.severity == Severity::Fail);
    Verdict {
        phase,
        fitness: if unfit { Fitness::Unfit } else { Fitness::Fit },
        action: if unfit { Action::Drain } else { Action::Off },
        deciding: unfit.then_some(0),
        findings,
        shadow: vec![],
        strikes: vec![],
        signs: vec![],
    }
}

pub fn look(phase: Phase, taken: u64, findings: Vec<Finding>) -> GateRun {
    GateRun { taken, took_ms: Some(310.0), verdict: verdict(phase, findings), missing: vec![] }
}

/// 800 calls of a collective by 8 of 16 ranks on a node of two, with this bus bandwidth in GB/s.
pub fn collective(op: &str, from_bytes: u64, busbw: Option<f64>) -> Collective {
    Collective {
        op: op.to_owned(),
        from_bytes,
        size: 16,
        nodes: 2,
        ranks: 8,
        calls: 800,
        gpu_s: 2.0,
        busbw_gb_s: busbw,
        ..Collective::default()
    }
}

pub fn rails(snapshot: &Snapshot) -> RailMap {
    let hcas = snapshot.fabric.data().unwrap().hcas.iter().filter(|hca| !hca.name.contains("bond"));
    let rails: Vec<Rail> = hcas
        .enumerate()
        .map(|(number, hca)| Rail {
            number,
            hca: hca.name.clone(),
            port: 1,
            pci: hca.pci.clone(),
            numa_node: hca.numa_node.clone(),
            link_layer: hca.ports[0].link_layer.clone(),
            rate_gbps: hca.ports[0].rate_gbps.clone(),
            state: hca.ports[0].state.clone(),
        })
        .collect();
    let gpus = &snapshot.gpus.data().unwrap().gpus;
    RailMap {
        gpus: gpus
            .iter()
            .zip(0..)
            .map(|(gpu, rail)| RailGpu {
                index: gpu.index,
                pci: gpu.pci.clone(),
                numa_node: Reading::Known(0),
                rail: Some(rail),
                distance: Some(railgate_model::Distance::Pix),
            })
            .collect(),
        rails,
        left_out: vec![],
        method: "pci tree".to_owned(),
        notes: vec![],
    }
}

/// Node report after a run of an hour that ended with `status`, with faults that occurred during the run.
pub fn part(node: &str, job: &Job, faults: &str, findings: Vec<Finding>, status: i32) -> NodeReport {
    let before = machine(node, "");
    let now = after(&before, faults);
    let mut report = NodeReport::new("alpha", node, job.clone(), job.restarts, START);
    let map = rails(&before);
    report.run = format!("{}-1800000000", job.restarts);
    report.boot_id.clone_from(&before.boot_id);
    report.end = Some(START + HOUR);
    report.options = Options { gate: "quick".to_owned(), requeue: "auto".to_owned(), ..Options::default() };
    report.prolog = Some(look(Phase::Prolog, START, vec![]));
    report.kernel = kernel_events(&now, START, job, &StatsConfig::default());
    let look = look(Phase::Epilog, START + HOUR, findings);
    let held =
        RunGpus::resolve(&job.allocation, Some(&before), &now, &railgate_model::GpuInventory::default());
    report.evidence = evidence(&look.verdict, Some(&before), &now, &report.kernel, &held, Some(&map));
    report.epilog = Some(look);
    report.window = Some(Window { start: before.taken, end: now.taken });
    report.gpus = gpu_uses(Some(&before), &now, &held);
    report.ports = port_uses(Some(&before), &now, Some(&map));
    report.rail_map = Some(map);
    report.settings = vec![Setting {
        name: "NCCL_IB_HCA".to_owned(),
        value: "=mlx5_0:1,mlx5_1:1".to_owned(),
        force: false,
        rule: "ib-hca".to_owned(),
        why: "compute ports in rail order".to_owned(),
        source: "NCCL".to_owned(),
        ..Setting::default()
    }];
    report.steps = vec![StepEnv {
        step: "0".to_owned(),
        settings: vec![StepSetting {
            name: "NCCL_IB_HCA".to_owned(),
            value: "mlx5_0".to_owned(),
            from: SetBy::User,
            instead_of: Some("=mlx5_0:1,mlx5_1:1".to_owned()),
        }],
    }];
    report.exit = Some(Exit { status, derived: Some(status) });
    report
}

/// Report of a prolog that refused the job.
pub fn refused(node: &str, job: &Job) -> NodeReport {
    let mut report = NodeReport::new("alpha", node, job.clone(), job.restarts, START);
    let cause = finding("gpu-lost", "3", Severity::Fail, Class::Node, "0000:9b:00.0 off bus, Xid 79");
    report.prolog = Some(look(Phase::Prolog, START + 900, vec![cause]));
    let act = |what, detail: &str| Act {
        what,
        time: START + 1_000,
        by: "prolog".to_owned(),
        detail: detail.to_owned(),
    };
    report.acts = vec![
        act(
            ActKind::Drained,
            "railgate: gpu-lost@3: 0000:9b:00.0 off bus, Xid 79; reboot [prolog job=48213]",
        ),
        act(ActKind::Refused, "gpu-lost@3"),
    ];
    report
}

pub fn lost_gpu() -> Finding {
    finding("gpu-lost", "3", Severity::Fail, Class::Node, "0000:61:00.0 off bus, Xid 79")
}

pub fn decision(attempt: u32, what: DecisionKind, status: i32) -> Decision {
    Decision {
        schema: 1,
        cluster: "alpha".to_owned(),
        job: 48_213,
        attempt,
        time: START + HOUR + 5_000,
        what,
        why: "GPU 3 of n1 was lost at 08:59:00, before the job's first failure".to_owned(),
        state: None,
        request: JobRequest::default(),
        discounted: Vec::new(),
        not_asked: false,
        exit_status: Some(status),
        consent: "auto".to_owned(),
        budget: Some(Budget { restarts: 1, max_restarts: 3, moves: 0, max_moves: 10 }),
        nodelist: "n[1-2]".to_owned(),
        nodes: vec![DecisionNode {
            node: "n1".to_owned(),
            state: "IDLE+DRAIN".to_owned(),
            reason: "railgate: gpu-lost@3: off bus".to_owned(),
            evidence: true,
            source: "drain reason".to_owned(),
        }],
        waited_ms: 1_250,
    }
}

/// Data of tasks in which every text is `text`.
pub fn evil_tasks(text: &str) -> crate::Tasks {
    let env = [("NCCL_IB_HCA".to_owned(), text.to_owned()), (format!("NCCL_{text}"), text.to_owned())];
    let group = crate::TaskGroup {
        step: text.to_owned(),
        processes: 1,
        nccl: 1,
        net_plugin: Some(text.to_owned()),
        env: env.into_iter().collect(),
        ..crate::TaskGroup::default()
    };
    crate::Tasks { looks: 1, groups: vec![group], problems: vec![text.to_owned()], ..crate::Tasks::default() }
}

pub fn evil_transport(text: &str) -> crate::Transport {
    crate::Transport {
        over: crate::Over::Sockets,
        sure: crate::Sure::Likely,
        why: text.to_owned(),
        cause: Some(text.to_owned()),
    }
}

/// Node `n1` of a running job with one GPU, an hour after `start`: busy for this share of each minute, percent.
pub fn running_for_an_hour(id: u32, uid: u32, start: UnixMillis, busy: f64) -> NodeReport {
    const MINUTE: UnixMillis = 60_000;
    let job = Job {
        id,
        uid,
        gid: uid,
        user: "mallory".to_owned(),
        restarts: 0,
        nodelist: "n1".to_owned(),
        het_leader: None,
        allocation: Allocation::NoGpus,
        partition: "gpu".to_owned(),
    };
    let mut part = NodeReport::new("alpha", "n1", job, 0, start);
    let gpu = HeadGpu { uuid: "GPU-1".to_owned(), model: "NVIDIA H200".to_owned(), ..HeadGpu::default() };
    let head = Head { start, gpus: vec![gpu], ..Head::new("n1", id, 0) };
    let mut stream = Vec::new();
    Record::Head(head).write(&mut stream).unwrap();
    for minute in 0..60 {
        let mut values = Values::default();
        values.put(GpuField::Graphics, Some(busy));
        let start = start + minute * MINUTE;
        let sample = Sample { start, seconds: 60.0, folded: 1, gpus: vec![values], ..Sample::default() };
        Record::Sample(sample).write(&mut stream).unwrap();
    }
    let now = start + 60 * MINUTE;
    part.usage = summarize(&[&stream], now, &GpuFigures::default());
    part.as_of = Some(now);
    part
}
