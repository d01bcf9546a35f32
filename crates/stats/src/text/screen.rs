//! The report on one screen: what it was, what became of it, what it got out of its hardware, what to do.

use railgate_node::{Fitness, Reading};

use crate::diagnosis::{Analysis, Diagnosis};
use crate::plain::{energy, float, plain, plain_to, span, stamp};
use crate::{Attempt, EndKind, JobReport};

/// One line of the screen: `VERDICT` and what stands behind it.
pub(crate) type Line = (&'static str, String);

/// The attempt that says most of the numbers: the last one that has any.
pub(crate) fn telling(report: &JobReport) -> Option<(&Attempt, &Analysis)> {
    report.attempts.iter().rev().find_map(|attempt| Some((attempt, attempt.analysis.as_ref()?)))
}

/// The lines that have something to say, in their order; nothing where no part has any numbers.
pub(crate) fn lines(report: &JobReport) -> Vec<Line> {
    let Some((attempt, analysis)) = telling(report) else { return Vec::new() };
    let mut lines: Vec<Line> = vec![("RAN", ran(report)), ("VERDICT", verdict(report, analysis))];
    let many = report.attempts.len() > 1;
    let of = if many { format!("attempt {}: ", attempt.attempt) } else { String::new() };
    lines.push(("MODEL", format!("{of}{}", model(analysis))));
    if let Some(text) = hardware(analysis) {
        lines.push(("HW", text));
    }
    if let Some(text) = goodput(report, analysis) {
        lines.push(("GOODPUT", text));
    }
    if let Some(text) = shares(analysis) {
        lines.push(("TIME %", text));
    }
    lines.extend(nccl(attempt).map(|text| ("NCCL", text)));
    lines.extend(rails(attempt, analysis).map(|text| ("RAILS", text)));
    lines.extend(others(analysis).into_iter().map(|text| ("SLOW", text)));
    lines.extend(gate(attempt).map(|text| ("GATE", text)));
    lines.extend(environment(attempt).map(|text| ("ENV", text)));
    lines.extend(unknown(report, analysis).map(|text| ("UNKNOWN", text)));
    lines.extend(advice(report, analysis).map(|text| ("DO", text)));
    lines
}

fn ran(report: &JobReport) -> String {
    let start = report.attempts.first().and_then(|attempt| attempt.start);
    let end = report.attempts.last().and_then(|attempt| attempt.end);
    let lengths =
        report.attempts.iter().filter_map(|attempt| Some(attempt.end?.saturating_sub(attempt.start?)));
    let seconds = float(lengths.sum()) / 1000.0;
    let times = match (start, end) {
        (Some(start), Some(end)) => format!("{} to {}", stamp(start), stamp(end)),
        (Some(start), None) => format!("since {}", stamp(start)),
        _ => "when is not known".to_owned(),
    };
    let hours: f64 = report.attempts.iter().filter_map(gpu_hours).sum();
    let attempts = match report.attempts.len() {
        1 => "1 attempt".to_owned(),
        count => format!("{count} attempts"),
    };
    let hours = if hours > 0.0 { format!(", {} GPU-h", short(hours)) } else { String::new() };
    format!("{times}, {attempts}, ran {}{hours}", span(seconds))
}

/// Hours with two digits that say something.
fn short(hours: f64) -> String {
    if hours < 0.95 { format!("{hours:.3}") } else { format!("{hours:.1}") }
}

fn gpu_hours(attempt: &Attempt) -> Option<f64> {
    let seconds = float(attempt.end?.saturating_sub(attempt.start?)) / 1000.0;
    let gpus: usize =
        attempt.nodes.iter().map(|node| node.gpus.iter().filter(|gpu| gpu.own == Some(true)).count()).sum();
    Some(seconds / 3600.0 * float(u64::try_from(gpus).ok()?))
}

fn verdict(report: &JobReport, analysis: &Analysis) -> String {
    let died = report.attempts.iter().filter(|attempt| {
        matches!(attempt.ended.kind, EndKind::Hardware | EndKind::NodeDied | EndKind::MovedByGate)
    });
    let faults = died.count();
    let ended = report.ended.kind;
    let how = match (faults, ended) {
        (0, _) => ended.title().to_owned(),
        (_, EndKind::Completed) => format!("{faults} attempts lost to hardware, recovered"),
        (_, kind) => format!("{}; {faults} attempts lost to hardware", kind.title()),
    };
    match analysis.diagnoses.first() {
        Some(first) if first.costs.is_none() => format!("{how}. {}", first.what),
        Some(first) => format!("{how}. Biggest loss{}: {}", costs(first), first.what),
        None => match analysis.sentence() {
            Some(sentence) => format!("{how}. {sentence}"),
            None => how,
        },
    }
}

fn costs(diagnosis: &Diagnosis) -> String {
    match diagnosis.costs {
        Some(costs) if costs >= 0.005 => format!(", about {:.1} %", 100.0 * costs),
        _ => String::new(),
    }
}

/// `429k`
fn thousands(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{:.2}M", value / 1e6),
        value if value >= 1e4 => format!("{:.0}k", value / 1e3),
        value => format!("{value:.0}"),
    }
}

fn model(analysis: &Analysis) -> String {
    match &analysis.model {
        Reading::Known(model) => {
            let unit = if model.unit == "tokens" { "tok/s" } else { "samples/s" };
            format!(
                "{:.1} % MFU  {} {unit} ({}/GPU)  step {}  [{}, {} peak {:.1}]",
                100.0 * model.fraction,
                thousands(model.units_per_s),
                thousands(model.units_per_s / model.gpus.max(1.0)),
                step(model.step_s),
                model.convention,
                plain_to(&model.dtype, 8),
                model.peak_tflops
            )
        }
        Reading::Unsupported => "unknown".to_owned(),
        Reading::Failed(why) => format!("MFU unknown: {}", plain(why)),
    }
}

fn step(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.0} ms", 1000.0 * seconds) } else { format!("{seconds:.2} s") }
}

fn hardware(analysis: &Analysis) -> Option<String> {
    let hardware = match &analysis.hardware {
        Reading::Known(hardware) => hardware,
        _ => return Some("unknown: no sampler has reported".to_owned()),
    };
    let mut parts = Vec::new();
    match &hardware.tensor_fraction {
        Reading::Known(fraction) => {
            let how = if hardware.calibrated { "calibrated" } else { "not calibrated" };
            let band = 100.0 * hardware.band;
            parts.push(format!(
                "{:.1} % HFU of all time (GPM x clock, {how}, +-{band:.0} %)",
                100.0 * fraction
            ));
        }
        Reading::Unsupported => parts.push("HFU unknown: these GPUs do not count it".to_owned()),
        Reading::Failed(why) => parts.push(format!("HFU unknown: {}", plain(why))),
    }
    let mut add = |reading: &Reading<f64>, show: &dyn Fn(f64) -> String| {
        parts.extend(reading.known().map(|value| show(*value)));
    };
    add(&hardware.busy_percent, &|percent| format!("GPU {percent:.0} %"));
    add(&hardware.sm_clock_mhz, &|clock| format!("SM {clock:.0} MHz"));
    add(&hardware.power_w, &|power| format!("{power:.0} W/GPU"));
    add(&hardware.energy_j, &energy);
    Some(parts.join("  "))
}

fn goodput(report: &JobReport, analysis: &Analysis) -> Option<String> {
    let Reading::Known(last) = &analysis.goodput else { return None };
    let known: Vec<_> = report
        .attempts
        .iter()
        .filter_map(|attempt| attempt.analysis.as_ref()?.goodput.known())
        .filter(|good| good.allocated_s > 0.0)
        .collect();
    let gpu_s = |of: fn(&crate::diagnosis::Goodput) -> f64| -> f64 {
        known.iter().map(|good| of(good) * f64::from(good.gpus.max(1))).sum()
    };
    let allocated = gpu_s(|good| good.allocated_s);
    let fraction = gpu_s(|good| good.productive_s) / allocated;
    let hours = |seconds: f64| short(seconds / 3600.0);
    let unit = if last.gpus > 0 { "GPU-h" } else { "h" };
    let lost: Vec<String> = [
        ("redone", gpu_s(|good| good.redone_s)),
        ("start-up", gpu_s(|good| good.start_up_s)),
        ("checkpoint", gpu_s(|good| good.checkpoint_s)),
        ("after the last step", gpu_s(|good| good.tail_s)),
        ("other", gpu_s(|good| good.other_s)),
    ]
    .iter()
    .filter(|(_, seconds)| *seconds > 0.001 * allocated)
    .map(|(name, seconds)| format!("{name} {}", hours(*seconds)))
    .collect();
    let silent = report.attempts.len() - known.len();
    let silent = if silent > 0 { format!("; {silent} attempts without numbers") } else { String::new() };
    let lost = if lost.is_empty() { String::new() } else { format!("  lost {unit}: {}", lost.join(", ")) };
    Some(format!("{:.1} %{lost}{silent}", 100.0 * fraction))
}

fn shares(analysis: &Analysis) -> Option<String> {
    let Reading::Known(shares) = &analysis.shares else { return None };
    let known = |reading: &Reading<f64>| reading.known().copied();
    let mut parts = vec![format!("compute {:.1}", shares.compute)];
    match (known(&shares.comm_wait), known(&shares.comm_wire)) {
        (Some(wait), Some(wire)) if wait + wire >= 0.05 => {
            parts.push(format!("comm {:.1} (wait {wait:.1}, wire {wire:.1})", wait + wire));
        }
        (Some(_), Some(_)) => {}
        _ => parts.push("comm unknown (in compute)".to_owned()),
    }
    let mut add = |name: &str, value: Option<f64>| {
        parts.extend(value.filter(|value| *value >= 0.05).map(|value| format!("{name} {value:.1}")));
    };
    add("memory", Some(shares.memory));
    add("launch", Some(shares.launch));
    add("idle", Some(shares.idle));
    add("ckpt", known(&shares.checkpoint));
    add("input", known(&shares.input));
    let throttled = known(&shares.throttled).filter(|share| *share >= 0.05);
    let throttled = throttled.map(|share| format!("; throttled {share:.1}")).unwrap_or_default();
    Some(format!("{}{throttled}  [confidence {}]", parts.join(" | "), shares.confidence))
}

fn nccl(attempt: &Attempt) -> Option<String> {
    let all: Vec<_> = attempt.nodes.iter().filter_map(|node| node.communication.as_ref()).collect();
    let process = all.iter().flat_map(|comm| &comm.processes).next()?;
    let version = process.nccl.as_deref().unwrap_or("of unknown version");
    let mode = process.mode.as_deref().unwrap_or("unknown");
    let rows = all.iter().flat_map(|comm| &comm.collectives);
    let top = rows.filter(|row| row.busbw_gb_s.is_some()).max_by(|a, b| a.gpu_s.total_cmp(&b.gpu_s));
    let top = top.map_or_else(String::new, |row| {
        format!(
            "; most time in {} from {}: busbw {:.0} GB/s",
            plain_to(&row.op, 24),
            crate::plain::bytes(float(row.from_bytes)),
            row.busbw_gb_s.unwrap_or(0.0)
        )
    });
    Some(format!("{}, profiler {}{top}", plain_to(version, 16), plain_to(mode, 12)))
}

fn rails(attempt: &Attempt, analysis: &Analysis) -> Option<String> {
    let odd: Vec<&str> = analysis
        .diagnoses
        .iter()
        .filter(|one| one.rule == "rail-imbalance")
        .map(|one| one.what.as_str())
        .collect();
    let mut worst = None;
    for usage in attempt.nodes.iter().filter_map(|node| node.usage.as_ref()) {
        let of_rail = |rail: &crate::usage::RailUsage| {
            rail.rail?;
            Some(rail.tx_bytes_s.known()?.mean + rail.rx_bytes_s.known()?.mean)
        };
        let rates: Vec<f64> = usage.rails.iter().filter_map(of_rail).collect();
        let mean = rates.iter().sum::<f64>() / float(u64::try_from(rates.len()).unwrap_or(1)).max(1.0);
        // Below that, nobody uses them.
        if rates.len() > 1 && mean > 100e6 {
            let off = rates.iter().map(|rate| (rate / mean - 1.0).abs()).fold(0.0, f64::max);
            worst = Some(off.max(worst.unwrap_or(0.0)));
        }
    }
    let balance = worst.map(|worst: f64| format!("balance +-{:.1} %", 100.0 * worst));
    let parts: Vec<String> = balance.into_iter().chain(odd.iter().take(2).map(|what| plain(what))).collect();
    Some(parts.join("; ")).filter(|text| !text.is_empty())
}

fn others(analysis: &Analysis) -> Vec<String> {
    let slow = |rule: &str| matches!(rule, "slow-clock" | "sleeping-rank" | "uneven-work");
    let of = analysis.diagnoses.iter().filter(|one| slow(&one.rule)).take(3);
    of.map(|one| format!("{}{}", plain(&one.what), costs(one))).collect()
}

fn gate(attempt: &Attempt) -> Option<String> {
    let looks: Vec<_> = attempt.nodes.iter().filter_map(|node| node.prolog.as_ref()).collect();
    if looks.is_empty() {
        return None;
    }
    let fit = looks.iter().filter(|look| look.verdict.fitness == Fitness::Fit).count();
    let mut checks: Vec<String> = attempt
        .nodes
        .iter()
        .flat_map(|node| node.prolog.iter().chain(&node.epilog).map(move |look| (node, look)))
        .flat_map(|(node, look)| look.verdict.findings.iter().map(move |found| (node, found)))
        .filter(|(_, found)| found.severity >= railgate_node::Severity::Warn)
        .map(|(node, found)| format!("{} {}", plain_to(&node.node, 24), found.subject()))
        .collect();
    checks.dedup();
    let more = checks.len().saturating_sub(3);
    checks.truncate(3);
    let found = if checks.is_empty() { String::new() } else { format!("; {}", checks.join(", ")) };
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Some(format!("{fit}/{} fit{found}{more}", attempt.node_count.max(attempt.nodes.len())))
}

fn environment(attempt: &Attempt) -> Option<String> {
    let node = attempt.nodes.iter().find(|node| !node.applied.is_empty())?;
    let shown: Vec<String> = node
        .applied
        .iter()
        .filter(|one| one.name.starts_with("NCCL_"))
        .take(4)
        .map(|one| {
            let value = one.value.as_deref().unwrap_or("not set");
            let by = serde_json::to_value(one.by).ok();
            let by = by.as_ref().and_then(|by| by.as_str()).unwrap_or("?").to_owned();
            format!("{}={} ({by})", plain_to(one.name.trim_start_matches("NCCL_"), 24), plain_to(value, 28))
        })
        .collect();
    Some(shown.join("  ")).filter(|text| !text.is_empty())
}

fn unknown(report: &JobReport, analysis: &Analysis) -> Option<String> {
    let mut parts = Vec::new();
    let silent: usize = report.attempts.iter().map(|attempt| attempt.silent_nodes.len()).sum();
    let all: usize = report.attempts.iter().map(|attempt| attempt.node_count).sum();
    if silent > 0 {
        parts.push(format!("{silent} of {all} node parts missing"));
    }
    if let Some(world) = analysis.world.filter(|world| analysis.ranks > 0 && analysis.ranks < *world) {
        parts.push(format!("{} of {world} ranks report", analysis.ranks));
    }
    if let Reading::Failed(why) = &analysis.goodput {
        parts.push(format!("goodput: {}", plain(why)));
    }
    if let Reading::Failed(why) = &analysis.shares {
        parts.push(format!("time: {}", plain(why)));
    }
    if let Reading::Known(hardware) = &analysis.hardware
        && hardware.coverage < 0.995
    {
        parts.push(format!("samples cover {:.1} % of the time", 100.0 * hardware.coverage));
    }
    Some(parts.join("; ")).filter(|text| !text.is_empty())
}

fn advice(report: &JobReport, analysis: &Analysis) -> Option<String> {
    let mut list: Vec<String> = Vec::new();
    for one in analysis.diagnoses.iter().take(3) {
        let text = match one.rule.as_str() {
            "slow-clock" => format!("exclude {}", one.part.split(' ').next().unwrap_or_default()),
            _ => one.fix.clone(),
        };
        if !list.contains(&text) {
            list.push(text);
        }
    }
    if !report.missing.is_empty() {
        list.push("collect the missing parts (below)".to_owned());
    }
    let list: Vec<String> = list.iter().map(|text| plain(text)).collect();
    Some(list.join(" | ")).filter(|text| !text.is_empty())
}

/// Names of nodes, one by one, become `node1`, `node2`, …: longer ones first, so that none is cut in two.
pub(crate) fn without_names(report: &JobReport, text: &str) -> String {
    let mut names: Vec<&str> = report
        .attempts
        .iter()
        .flat_map(|attempt| {
            attempt
                .nodes
                .iter()
                .map(|node| node.node.as_str())
                .chain(attempt.silent_nodes.iter().map(String::as_str))
        })
        .filter(|name| !name.is_empty())
        .collect();
    names.sort_unstable();
    names.dedup();
    let mut numbered: Vec<(usize, &str)> = names.into_iter().enumerate().collect();
    numbered.sort_by_key(|(_, name)| std::cmp::Reverse(name.len()));
    let mut out = String::new();
    let mut rest = text;
    let whole = |c: Option<char>| !c.is_some_and(|c| c.is_alphanumeric() || c == '-' || c == '_');
    while let Some(first) = rest.chars().next() {
        let hit = numbered.iter().find(|(_, name)| {
            rest.starts_with(name)
                && whole(out.chars().next_back())
                && whole(rest[name.len()..].chars().next())
        });
        match hit {
            Some((number, name)) => {
                out.push_str(&format!("node{}", number + 1));
                rest = &rest[name.len()..];
            }
            None => {
                out.push(first);
                rest = &rest[first.len_utf8()..];
            }
        }
    }
    out
}
