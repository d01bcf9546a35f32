//! A job of many nodes with figures, derived from the simulated job of two nodes: all ranks but one are
//! healthy.

use railgate_diagnosis::simulator::slow_clock;
use railgate_model::{Class, Reading, Severity};
use railgate_node_report::comm::{Collective, NcclProcess, Reference, refer};
use railgate_node_report::testing::{HOUR, START, decision, finding, job, lost_gpu, part};
use railgate_node_report::{
    Applied, AppliedBy, Counter, DecisionKind, NodeReport, Over, SlurmView, Sure, Transport,
};
use railgate_store::{Parts, ReportConfig};

use crate::JobReport;

/// GPUs per node.
const GPUS: u32 = 8;

/// Two attempts on `count` nodes of eight GPUs. The first loses a GPU of the second node. In the second one GPU
/// of the last node has a slow clock, and the report of the third node is missing.
pub(crate) fn large(count: u32) -> JobReport {
    let list = format!("gn[0001-{count:04}]");
    let names: Vec<String> = (1..=count).map(|number| format!("gn{number:04}")).collect();
    let (sample, odd) = slow_clock();
    let mut parts = Vec::new();
    for (place, name) in (0..).zip(&names) {
        let mut job = job(0..GPUS);
        job.nodelist.clone_from(&list);
        let (faults, found) = match place {
            1 => ("gpu-lost@3", vec![lost_gpu()]),
            _ => ("", vec![]),
        };
        parts.push(part(name, &job, faults, found, 256));
        job.restarts = 1;
        if place == 2 {
            continue;
        }
        let warned = match place {
            0 => vec![finding("optic-power", "mlx5_6:1", Severity::Warn, Class::Node, "-9.1 dBm")],
            _ => vec![],
        };
        let mut second = part(name, &job, "", warned, 0);
        (second.start, second.end) = (START + HOUR + 60_000, Some(START + 2 * HOUR));
        numbers(&mut second, &sample, odd, place, count);
        waits(&mut second, place);
        parts.push(second);
    }
    let mut requeued = decision(0, DecisionKind::Requeued, 256);
    requeued.why = "GPU 3 of gn0002 was lost before the job's first failure".to_owned();
    requeued.nodelist.clone_from(&list);
    let slurm = SlurmView {
        state: "COMPLETED".to_owned(),
        name: Some("llama70b-pt7".to_owned()),
        restarts: Some(1),
        ..SlurmView::default()
    };
    let expand = |text: &str| (text == list).then(|| names.clone());
    let parts = Parts { nodes: parts, decisions: vec![requeued], ..Parts::default() };
    JobReport::merge("alpha", 48_213, parts, Some(slurm), &expand, &ReportConfig::default())
}

/// Every rail waited a little, one much longer, and one lost its link.
fn waits(part: &mut NodeReport, place: u32) {
    for port in part.ports.iter_mut().filter(|port| port.rail.is_some()) {
        let ticks = if place == 6 && port.rail == Some(2) { 31_000 } else { 10_000 };
        let counter = Counter { delta: Reading::Known(ticks), ..port.tx_bytes.clone() };
        port.errors.insert("port_xmit_wait".to_owned(), counter);
        if place == 11 && port.rail == Some(6) {
            port.link_downed.delta = Reading::Known(1);
        }
    }
}

/// Output of the sampler, plugin and program of one node.
fn numbers(part: &mut NodeReport, sample: &[NodeReport], odd: u32, place: u32, count: u32) {
    let last = place + 1 == count;
    let shift = |time: u64| time + HOUR + 60_000;
    let healthy = if odd == 0 { 1 } else { 0 };
    // Ranks of the simulated job that are used for those of this node.
    let ranks: Vec<u32> = (0..GPUS).map(|gpu| if last && gpu == 5 { odd } else { healthy }).collect();
    let per_node = GPUS / 2;
    let of = |rank: u32| &sample[usize::try_from(rank / per_node).unwrap()];
    let slot = |rank: u32| usize::try_from(rank % per_node).unwrap();
    let mut usage = sample[0].usage.clone().unwrap();
    usage.coverage.start = shift(usage.coverage.start);
    usage.coverage.end = shift(usage.coverage.end);
    usage.file = Some(format!("{}.samples", part.node));
    usage.gpus = (0..)
        .zip(&ranks)
        .map(|(index, rank)| {
            let mut gpu = of(*rank).usage.as_ref().unwrap().gpus[slot(*rank)].clone();
            (gpu.index, gpu.uuid) = (index, format!("GPU-{place}-{index}"));
            gpu
        })
        .collect();
    let rail = usage.rails[0].clone();
    usage.rails = (0..GPUS)
        .map(|number| {
            let mut rail = rail.clone();
            (rail.hca, rail.rail) = (format!("mlx5_{number}"), usize::try_from(number).ok());
            rail
        })
        .collect();
    part.usage = Some(usage);
    let mut application = sample[0].application.clone().unwrap();
    application.ranks = (0..)
        .zip(&ranks)
        .map(|(local, rank)| {
            let mut told = of(*rank).application.as_ref().unwrap().ranks[slot(*rank)].clone();
            (told.rank, told.local_rank, told.world) =
                (Some(place * GPUS + local), Some(local), Some(count * GPUS));
            told.file = format!("0.{}", place * GPUS + local);
            (told.started, told.last_seen) = (shift(told.started), shift(told.last_seen));
            (told.first_step, told.last_step) = (told.first_step.map(shift), told.last_step.map(shift));
            told.events.iter_mut().for_each(|event| event.time = shift(event.time));
            told
        })
        .collect();
    part.application = Some(application);
    let mut told = sample[0].communication.clone().unwrap();
    let (one, row) = (told.communicators[0].clone(), told.collectives[0].clone());
    told.communicators = (0..)
        .zip(&ranks)
        .map(|(local, rank)| {
            let mut one = one.clone();
            let ops = of(*rank).communication.as_ref().unwrap().communicators[slot(*rank)].ops;
            (one.rank, one.size, one.nodes, one.ops) =
                (place * GPUS + local, count * GPUS, count.into(), ops);
            one.pid = 100 + u64::from(local);
            one
        })
        .collect();
    let by_rank: Vec<_> = (0..)
        .zip(&ranks)
        .map(|(local, rank)| {
            let mut time = of(*rank).communication.as_ref().unwrap().collectives[0].by_rank[slot(*rank)];
            time.rank = place * GPUS + local;
            time
        })
        .collect();
    let timed = by_rank.iter().map(|time| time.timed).sum();
    let whole = Collective {
        size: count * GPUS,
        nodes: count.into(),
        datatype: "Bfloat16".to_owned(),
        algorithm: "RING".to_owned(),
        protocol: "SIMPLE".to_owned(),
        ranks: GPUS,
        calls: by_rank.iter().map(|time| time.calls).sum(),
        timed,
        gpu_s: by_rank.iter().map(|time| time.gpu_s).sum(),
        busbw_gb_s: Some(338.0),
        error_percent: Some(1.2),
        back_to_back_error_percent: Some(1.5),
        by_rank,
        ..row
    };
    let small = Collective {
        op: "AllGather".to_owned(),
        from_bytes: 1 << 20,
        gpu_s: 0.4,
        busbw_gb_s: Some(61.0),
        by_rank: vec![],
        ..whole.clone()
    };
    told.collectives = vec![whole, small];
    told.processes = vec![NcclProcess {
        nccl: Some("2.28.9".to_owned()),
        mode: Some("sample".to_owned()),
        ..NcclProcess::default()
    }];
    let measured = Reference {
        op: "AllReduce".to_owned(),
        ranks: count * GPUS,
        nodes: count.into(),
        bytes: 1 << 30,
        busbw_gb_s: 352.0,
    };
    refer(&mut told, &[measured]);
    part.communication = Some(told);
    part.transport = Some(Transport {
        over: Over::Rails,
        sure: Sure::Likely,
        why: "open devices".to_owned(),
        cause: None,
    });
    part.applied = vec![Applied {
        name: "NCCL_IB_HCA".to_owned(),
        wanted: Some("=mlx5_0:1".to_owned()),
        value: Some("=mlx5_0:1".to_owned()),
        by: AppliedBy::Railgate,
        processes: GPUS,
        steps: vec!["0".to_owned()],
    }];
}
