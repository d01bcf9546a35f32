use std::collections::BTreeMap;

use railgate_model::UnixMillis;
use serde::{Deserialize, Serialize};

use railgate_diagnosis::said_so_far;
use railgate_node_report::usage::format::{Head, Record};
use railgate_node_report::usage::{GpuFigures, summarize};
use railgate_node_report::{Application, Communication, NodeReport};

/// NCCL's operation names. The job's files could contain any text, so all other names become one series,
/// `other`.
const OPS: &[&str] = &[
    "AllGather",
    "AllReduce",
    "AlltoAll",
    "Broadcast",
    "Gather",
    "P2pGroup",
    "Recv",
    "Reduce",
    "ReduceScatter",
    "Scatter",
    "Send",
];

/// Self-reported figures of the job's program and of NCCL on this node so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkNow {
    /// Model FLOP utilisation of the ranks on this node while steps ran, 0 to 1.
    pub model_flop_ratio: Option<f64>,
    /// Productive time over the time since the prolog, 0 to 1.
    pub goodput_ratio: Option<f64>,
    /// Number of steps, of the rank with the most.
    pub steps: Option<u64>,
    /// Mean duration of a step, seconds, over the ranks on this node.
    pub step_s: Option<f64>,
    /// Figures per operation.
    pub collectives: Vec<CollectiveNow>,
}

/// One NCCL operation, over all communicators and sizes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CollectiveNow {
    /// NCCL's name, or `other`.
    pub op: String,
    /// Calls of all ranks on this node.
    pub calls: u64,
    /// Bytes of these calls.
    pub bytes: u64,
    /// Bus bandwidth, bytes per second: mean over the GPU time of the timed calls.
    pub bus_bytes_s: Option<f64>,
}

impl WorkNow {
    /// Derives the figures from the job's files. `head` has the GPUs, and `figures` their peaks.
    pub fn of(
        part: &NodeReport,
        head: &Head,
        figures: &GpuFigures,
        told: (Option<Application>, Option<Communication>),
        now: UnixMillis,
    ) -> Self {
        let mut part = part.clone();
        let mut stream = Vec::new();
        let written = Record::Head(head.clone()).write(&mut stream);
        part.usage = written.ok().and_then(|()| summarize(&[&stream], now, figures));
        (part.application, part.communication) = told;
        let collectives = part.communication.as_ref().map(collectives).unwrap_or_default();
        let ranks = part.application.as_ref().map_or(&[][..], |told| &told.ranks);
        let times: Vec<f64> = ranks.iter().filter_map(|rank| Some(rank.step_s?.mean)).collect();
        let steps = ranks.iter().map(|rank| rank.steps).max();
        let count = f64::from(u32::try_from(times.len()).unwrap_or(u32::MAX));
        let step_s = (count > 0.0).then(|| times.iter().sum::<f64>() / count);
        let (model_flop_ratio, goodput_ratio) = said_so_far(&part, now);
        WorkNow { model_flop_ratio, goodput_ratio, steps, step_s, collectives }
    }
}

fn collectives(counted: &Communication) -> Vec<CollectiveNow> {
    let mut by_op: BTreeMap<&str, (CollectiveNow, f64, f64)> = BTreeMap::new();
    for row in &counted.collectives {
        let op = OPS.iter().find(|op| **op == row.op).copied().unwrap_or("other");
        let (sum, weighted, gpu_s) = by_op.entry(op).or_default();
        sum.calls = sum.calls.saturating_add(row.calls);
        sum.bytes = sum.bytes.saturating_add(row.bytes);
        if let Some(busbw) = row.busbw_gb_s.filter(|_| row.gpu_s > 0.0) {
            *weighted += busbw * 1e9 * row.gpu_s;
            *gpu_s += row.gpu_s;
        }
    }
    let one = |(op, (sum, weighted, gpu_s)): (&str, (CollectiveNow, f64, f64))| CollectiveNow {
        op: op.to_owned(),
        bus_bytes_s: (gpu_s > 0.0).then(|| weighted / gpu_s),
        ..sum
    };
    by_op.into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use railgate_node_report::application::{Model, RankApplication, StepTimes};
    use railgate_node_report::comm::Collective;
    use railgate_node_report::testing::{job, part};
    use railgate_node_report::usage::format::HeadGpu;

    use super::*;

    fn row(op: &str, bytes: u64, gpu_s: f64, busbw_gb_s: Option<f64>) -> Collective {
        Collective { op: op.to_owned(), calls: 10, bytes, gpu_s, busbw_gb_s, ..Collective::default() }
    }

    #[test]
    fn job_cannot_create_series_names() {
        let counted = Communication {
            collectives: vec![
                row("AllReduce", 100, 3.0, Some(300.0)),
                row("AllReduce", 50, 1.0, Some(100.0)),
                row("AllReduce", 8, 0.0, None),
                row("evil\"} 1", 7, 1.0, None),
                row("other one", 7, 1.0, None),
            ],
            ..Communication::default()
        };
        let said = collectives(&counted);
        let all_reduce =
            CollectiveNow { op: "AllReduce".to_owned(), calls: 30, bytes: 158, bus_bytes_s: Some(250e9) };
        let other = CollectiveNow { op: "other".to_owned(), calls: 20, bytes: 14, bus_bytes_s: None };
        assert_eq!(said, [all_reduce, other]);
    }

    #[test]
    fn reported_flop_are_divided_by_the_gpus_peak_and_unknown_without_one() {
        let part = part("n1", &job(0..1), "", vec![], 0);
        let head = Head {
            gpus: vec![HeadGpu { model: "NVIDIA H200".to_owned(), ..HeadGpu::default() }],
            ..Head::new("n1", 7, 0)
        };
        let now = part.start + 100_000;
        let none = WorkNow::of(&part, &head, &GpuFigures::default(), (None, None), now);
        assert_eq!(none, WorkNow::default());
        let model: Model = serde_json::from_value(serde_json::json!({
            "convention": "explicit", "flops_per_token": 1e9, "dtype": "bf16"
        }))
        .unwrap();
        // Steps of one second with 494,700 tokens for half of the time: half of an H200's peak.
        let rank = RankApplication {
            rank: Some(0),
            local_rank: Some(0),
            model: Some(model),
            started: part.start,
            last_seen: now,
            steps: 51,
            step_s: Some(StepTimes { count: 50, total: 50.0, mean: 1.0, ..StepTimes::default() }),
            timed_tokens: Some(50.0 * 494_700.0),
            ..RankApplication::default()
        };
        let told = Application { ranks: vec![rank], problems: vec![] };
        let said = WorkNow::of(&part, &head, &GpuFigures::default(), (Some(told), None), now);
        assert!((said.model_flop_ratio.unwrap() - 0.5).abs() < 1e-3, "{said:?}");
        assert_eq!((said.goodput_ratio, said.steps, said.step_s), (Some(0.5), Some(51), Some(1.0)));
    }
}
