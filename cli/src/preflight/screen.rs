//! The results for people.

use std::collections::{BTreeMap, BTreeSet};

use railgate_model::ValueCheck;
use railgate_preflight::{Outcome, rate};
use railgate_slurm::hostlist::compress;
use railgate_text::{Lines, put};

use super::nccl::{Compared, Measured, Nccl};
use super::results::{Net, OfGpu, Results};
use crate::output::counted;

/// Most lines of a kind; the rest is counted.
const MOST: usize = 20;

pub(crate) fn text(results: &Results) -> Lines {
    let mut text = Lines::new();
    put!(text, "job {}: {}", results.job, counted(results.nodes.len(), "node"));
    gpus(results, &mut text);
    rails(results, &mut text);
    nccl(results, &mut text);
    for (number, verdict) in results.report.verdicts.iter().enumerate() {
        match number {
            MOST => put!(text, "BAD      {} more: --format json", results.report.verdicts.len() - MOST),
            0..MOST => put!(text, "BAD      {}", verdict.sentence(&results.nodes)),
            _ => {}
        }
    }
    for note in results.report.notes.iter().take(MOST) {
        put!(text, "NOTE     {}", note.sentence(&results.nodes));
    }
    unknown(results, &mut text);
    advice(results, &mut text);
    text
}

fn gpus(results: &Results, text: &mut Lines) {
    if results.gpus.is_empty() {
        return;
    }
    let cards: BTreeSet<_> = results.gpus.iter().map(|one| (&one.node, one.test.gpu)).collect();
    let wrong: Vec<&OfGpu> = results.wrong().collect();
    let compared =
        results.gpus.iter().filter(|one| matches!(one.test.values, ValueCheck::Right { .. })).count();
    let cards = counted(cards.len(), "GPU");
    let tests = counted(compared + wrong.len(), "test");
    if wrong.is_empty() && compared > 0 {
        put!(text, "GPUS     {cards}, {tests} that compare values: every value right");
    } else if !wrong.is_empty() {
        put!(text, "GPUS     {cards}, {tests} that compare values: {} with wrong values", wrong.len());
    }
    for one in wrong.iter().take(MOST) {
        let ValueCheck::Wrong { compared, wrong, first } = &one.test.values else { continue };
        let first = first
            .first()
            .map(|first| format!(", the first in {}: {} instead of {}", first.place, first.got, first.want));
        put!(
            text,
            "BAD      {} GPU {}: {}: {wrong} of {compared} values wrong{}",
            one.node,
            one.test.gpu,
            one.test.test,
            first.unwrap_or_default()
        );
    }
}

fn rails(results: &Results, text: &mut Lines) {
    let Some(net) = results.net else {
        if results.nodes.len() == 1 {
            put!(text, "RAILS    not tested: one node has no other one to test them with");
        } else {
            put!(text, "RAILS    not tested");
        }
        return;
    };
    let tested: Vec<_> = results.rounds.iter().flat_map(|round| &round.tested).collect();
    let mut rates: Vec<f64> = Vec::new();
    let mut latencies: Vec<f64> = Vec::new();
    for one in &tested {
        if let Outcome::Measured { gbps, latency_us } = one.outcome {
            rates.extend(gbps);
            latencies.push(latency_us);
        }
    }
    let by = match net {
        Net::Rdma => "RDMA",
        Net::Tcp => "TCP, one connection",
    };
    let rails: BTreeSet<usize> = tested.iter().map(|one| one.rail).collect();
    let figures = match (median(&mut rates), median(&mut latencies)) {
        (Some(gbps), Some(latency)) => format!("; median {} in each direction, {latency:.1} µs", rate(gbps)),
        _ => String::new(),
    };
    put!(
        text,
        "RAILS    {} by {by}, {}: {} of {} measured{figures}",
        counted(rails.len(), "rail"),
        counted(results.rounds.len(), "round"),
        latencies.len(),
        counted(tested.len(), "test")
    );
    again(results, text);
}

/// How many pairs were measured again, by round: a result on this screen may be the best of several.
fn again(results: &Results, text: &mut Lines) {
    let rounds = results.rounds.iter().enumerate().filter(|(_, round)| round.measured_again > 0);
    let counts: Vec<String> = rounds
        .map(|(number, round)| format!("{} in round {}", counted(round.measured_again, "time"), number + 1))
        .collect();
    if !counts.is_empty() {
        put!(
            text,
            "AGAIN    slow pairs were measured again, and the best measurement counts: {}",
            counts.join(", ")
        );
    }
}

/// NCCL's own test, with what it is compared with.
fn nccl(results: &Results, text: &mut Lines) {
    match &results.nccl {
        None => {}
        Some(Nccl::NotRun { why }) => put!(text, "NCCL     not run: {why}"),
        Some(Nccl::Failed { program, why }) => {
            put!(text, "UNKNOWN  {}: {why} (this names no node)", program.display());
        }
        Some(Nccl::Measured(measured)) => all_reduce(results, measured, text),
    }
}

fn all_reduce(results: &Results, measured: &Measured, text: &mut Lines) {
    let version = measured.nccl.as_ref().map_or_else(String::new, |version| format!(" (NCCL {version})"));
    let compared = match measured.compared {
        Some(Compared::Reference { busbw_gb_s }) => {
            let percent = measured.share().unwrap_or_default() * 100.0;
            format!("{percent:.0} % of {busbw_gb_s:.2} GB/s, the site's reference")
        }
        Some(Compared::Rails { gb_s, .. }) => {
            format!("the rails of a node carry {gb_s:.2} GB/s in each direction")
        }
        None => "nothing to compare it with".to_owned(),
    };
    put!(
        text,
        "NCCL     all_reduce_perf, {} MiB, {} ranks on {}: {:.2} GB/s bus bandwidth{version}; {compared}",
        measured.bytes >> 20,
        measured.ranks,
        counted(results.nodes.len(), "node"),
        measured.busbw_gb_s
    );
    match measured.wrong {
        Some(0) => {}
        Some(wrong) => put!(text, "BAD      all_reduce_perf: {wrong} values wrong (this names no node)"),
        None => put!(text, "NOTE     all_reduce_perf did not compare its values"),
    }
    if measured.is_low() {
        put!(text, "NOTE     all_reduce_perf is slow although nothing else is named (this names no node)");
    }
}

/// What has no result, by its reason.
fn unknown(results: &Results, text: &mut Lines) {
    let mut reasons: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for problem in &results.problems {
        reasons.entry(problem.why.clone()).or_default().insert(&problem.node);
    }
    for (one, why) in results.without_result() {
        let why = format!("GPU {}: {}: {why}", one.test.gpu, one.test.test);
        reasons.entry(why).or_default().insert(&one.node);
    }
    for end in &results.report.unknown {
        let Some(node) = results.nodes.get(end.node) else { continue };
        let tests = results.rounds.iter().flat_map(|round| &round.tested);
        let why = tests.filter(|one| one.rail == end.rail && one.pair.partner(end.node).is_some()).find_map(
            |one| {
                let Outcome::Unknown { why } = &one.outcome else { return None };
                Some(why.as_str())
            },
        );
        let why = format!("rail {}: {}", end.rail, why.unwrap_or("no task of the node printed a result"));
        reasons.entry(why).or_default().insert(node);
    }
    let more = reasons.len().saturating_sub(MOST);
    for (why, nodes) in reasons.iter().take(MOST) {
        let names: Vec<String> = nodes.iter().map(|name| (*name).to_owned()).collect();
        put!(text, "UNKNOWN  {}: {why}", compress(&names));
    }
    if more > 0 {
        put!(text, "UNKNOWN  {more} more reasons: --format json");
    }
}

fn advice(results: &Results, text: &mut Lines) {
    let bad: Vec<String> = results.bad_nodes().into_iter().map(str::to_owned).collect();
    if !bad.is_empty() {
        let list = compress(&bad);
        put!(
            text,
            "DO       submit the job again with --exclude={list}; an admin: railgate check --full on {list}"
        );
    } else if results.names_something() {
        put!(
            text,
            "DO       no single node explains it: show this to your admin, who finds switches and cables with railgate fabric"
        );
    } else if !results.is_incomplete() {
        put!(text, "ANSWER   nothing is wrong with the nodes of this job, as far as these tests see");
    } else {
        put!(text, "ANSWER   nothing wrong was found, but a part was not tested");
    }
}

fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_has_its_line() {
        let mut results = Results::new("48213".to_owned(), ["gn1", "gn2", "gn3"].map(str::to_owned).to_vec());
        for text in [
            r#"{"gpu":{"node":"gn1","test":{"gpu":"0000:61:00.0","model":"H","test":"gemm-bf16","seconds":0.1,
            "values":{"right":{"compared":100}},"measured":{}}}}"#,
            r#"{"gpu":{"node":"gn2","test":{"gpu":"0000:61:00.0","model":"H","test":"gemm-bf16","seconds":0.1,
            "values":{"wrong":{"compared":100,"wrong":2,"first":[{"place":"tile 3,17","got":"1","want":"2"}]}},"measured":{}}}}"#,
            r#"{"problem":{"node":"gn3","why":"libcuda.so.1 cannot be loaded"}}"#,
        ] {
            results.hear(serde_json::from_str(text).unwrap());
        }
        assert_eq!(
            &*text(&results),
            "job 48213: 3 nodes\n\
             GPUS     2 GPUs, 2 tests that compare values: 1 with wrong values\n\
             BAD      gn2 GPU 0000:61:00.0: gemm-bf16: 2 of 100 values wrong, the first in tile 3,17: 1 instead of 2\n\
             RAILS    not tested\n\
             UNKNOWN  gn3: libcuda.so.1 cannot be loaded\n\
             DO       submit the job again with --exclude=gn2; an admin: railgate check --full on gn2\n"
        );
    }
}
