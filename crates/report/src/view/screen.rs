//! The report on one screen: the job, its end, its use of the hardware, the next steps.

mod gate;
mod hang;
mod kinds;
mod network;
mod phases;
mod why;

use railgate_diagnosis::{Analysis, Diagnosis, Goodput, HardwareUse, Line, trained_s};
use railgate_model::Reading;
use railgate_node_report::plain::{bytes, energy, float, plain, span, stamp};
use railgate_text::shorten;
#[cfg(test)]
use serde::{Serialize, Serializer, ser::SerializeStruct as _};

use super::counters::has_unclear_gpus;
use super::starts;
use crate::{Attempt, EndKind, JobReport};
pub(super) use hang::hang_evidence;

/// One row of the screen: a name such as `VERDICT`, and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Name of the row, or [`TABLE`] for a row in columns.
    pub(crate) name: &'static str,
    spans: Vec<Span>,
}

/// A part of a row's text.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Span {
    /// Readable for all users once identities are replaced.
    Open(String),
    /// A rate, a time of day, or a value set by the job's owner: omitted from a redacted report.
    Private(String),
}

impl Row {
    fn open_to_all(name: &'static str, text: String) -> Self {
        Row { name, spans: vec![Span::Open(text)] }
    }

    fn private(name: &'static str, text: String) -> Self {
        Row { name, spans: vec![Span::Private(text)] }
    }

    /// The complete text.
    pub(crate) fn text(&self) -> String {
        self.spans.iter().map(|(Span::Open(text) | Span::Private(text))| text.as_str()).collect()
    }

    /// The text without private spans; empty if all are private.
    pub(crate) fn open(&self) -> String {
        let open = |span: &Span| match span {
            Span::Open(text) => Some(text.clone()),
            Span::Private(_) => None,
        };
        self.spans.iter().filter_map(open).collect()
    }
}

/// A row of a table is not a sentence.
#[cfg(test)]
impl Serialize for Row {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut row = to.serialize_struct("Row", 2)?;
        row.serialize_field("name", self.name)?;
        let kind = if self.name == TABLE { "columns" } else { "sentence" };
        row.serialize_field(kind, &self.text())?;
        row.end()
    }
}

/// The last attempt that has figures.
pub(crate) fn telling(report: &JobReport) -> Option<(&Attempt, &Analysis)> {
    report.attempts.iter().rev().find_map(|attempt| Some((attempt, attempt.analysis.as_ref()?)))
}

/// The rows with content, in order; only the next steps if no node report has figures.
pub(crate) fn rows(report: &JobReport) -> Vec<Row> {
    let steps = Some(report.next_steps.join(" | ")).filter(|text| !text.is_empty());
    let steps = steps.map(|text| Row::open_to_all("DO", text));
    let Some((attempt, analysis)) = telling(report) else { return steps.into_iter().collect() };
    let open = Row::open_to_all;
    let mut rows = vec![ran(report), open("VERDICT", verdict(report, analysis))];
    rows.extend(why::rows(report));
    rows.extend(starts::rows(report).into_iter().map(start));
    let of = if report.attempts.len() > 1 { format!("{}: ", why::number(attempt)) } else { String::new() };
    rows.extend(hang::rows(&report.attempts));
    rows.extend(phases::line(&of, attempt, analysis).map(|text| open("PHASES", text)));
    rows.push(Row { name: "MODEL", spans: model(&of, analysis) });
    rows.extend(hardware(analysis).map(|text| open("HW", text)));
    rows.extend(goodput(report, analysis).map(|text| open("GOODPUT", text)));
    rows.extend(shares(analysis).map(|text| open("TIME %", text)));
    rows.extend(network::nccl(attempt).map(|text| Row::private("NCCL", text)));
    rows.extend(in_columns(&collectives(attempt)).into_iter().map(|text| Row::private(TABLE, text)));
    rows.extend(network::rails(report, attempt, analysis).map(|text| open("RAILS", text)));
    rows.extend(others(analysis).into_iter().map(|text| open("SLOW", text)));
    rows.extend(gate::line(report).map(|text| open("GATE", text)));
    rows.extend(environment(attempt).map(|text| Row::private("ENV", text)));
    rows.extend(unknown(report, analysis).map(|text| open("UNKNOWN", text)));
    rows.extend(steps);
    rows
}

/// The start names nodes and what launch said about them.
fn start(text: String) -> Row {
    Row::private("START", text)
}

/// The rows of a job without figures, which the text format shows in its own lines: the job and its end.
pub(crate) fn whole(report: &JobReport) -> Vec<Row> {
    if telling(report).is_some() {
        return rows(report);
    }
    let mut all = vec![ran(report), Row::open_to_all("VERDICT", report.ended.why.clone())];
    all.extend(why::rows(report));
    all.extend(starts::rows(report).into_iter().map(start));
    all.extend(gate::line(report).map(|text| Row::open_to_all("GATE", text)));
    all.extend(rows(report));
    all
}

fn ran(report: &JobReport) -> Row {
    let start = report.attempts.first().and_then(|attempt| attempt.start);
    let end = report.attempts.last().and_then(|attempt| attempt.end);
    let lengths =
        report.attempts.iter().filter_map(|attempt| Some(attempt.end?.saturating_sub(attempt.start?)));
    let seconds = float(lengths.sum()) / 1000.0;
    let times = match (start, end) {
        (Some(start), Some(end)) => format!("{} to {}", stamp(start), stamp(end)),
        (Some(start), None) => format!("since {}", stamp(start)),
        _ => "time unknown".to_owned(),
    };
    // A sum without the attempts in which it is not known would be too small.
    let unclear = report.attempts.iter().flat_map(|attempt| &attempt.nodes).any(has_unclear_gpus);
    let hours: f64 = if unclear { 0.0 } else { report.attempts.iter().filter_map(gpu_hours).sum() };
    let attempts = match report.attempts.len() {
        1 => "1 attempt".to_owned(),
        count => format!("{count} attempts"),
    };
    let of_attempt = |attempt: &Attempt| attempt.analysis.as_ref().and_then(|analysis| analysis.starts);
    let again = report.attempts.iter().any(|attempt| of_attempt(attempt).is_some());
    let starts: u32 = report.attempts.iter().map(|attempt| of_attempt(attempt).unwrap_or(1)).sum();
    let attempts = if again { format!("{attempts} with {starts} starts") } else { attempts };
    let hours = if hours > 0.0 { format!(", {} GPU-h", short(hours)) } else { String::new() };
    let queued = queued(report).map(|wait| format!(", queued {}", span(wait))).unwrap_or_default();
    let when = Span::Private(format!("{times}, "));
    let ran = format!("{attempts}, ran {}{hours}{queued}", span(seconds));
    // The duration of earlier attempts of a waiting job is private.
    let ran = if report.ended.kind == EndKind::Waiting { Span::Private(ran) } else { Span::Open(ran) };
    Row { name: "RAN", spans: vec![when, ran] }
}

/// Seconds from submission to the first start. Slurm does not keep the first submission time of a requeued job.
fn queued(report: &JobReport) -> Option<f64> {
    let slurm = report.slurm.as_ref().filter(|slurm| slurm.restarts == Some(0))?;
    let start = report.attempts.first()?.start?;
    Some(float(start.checked_sub(slurm.submitted?)?) / 1000.0)
}

/// Hours with two significant digits.
fn short(hours: f64) -> String {
    if hours < 0.95 { format!("{hours:.3}") } else { format!("{hours:.1}") }
}

/// Nodes and GPUs, `64 nodes x 8 NVIDIA H100 80GB HBM3`, or `64 nodes, GPUs not known`; `None` if nodes differ or have no GPUs.
pub(crate) fn shape(report: &JobReport) -> Option<String> {
    let (attempt, _) = telling(report)?;
    let of = |node: &railgate_node_report::NodeReport| -> Option<(usize, String)> {
        let own: Vec<_> = node.gpus.iter().filter(|gpu| gpu.own == Some(true)).collect();
        Some((own.len(), own.first()?.name.known()?.clone()))
    };
    let nodes = match attempt.node_count.max(attempt.nodes.len()) {
        1 => "1 node".to_owned(),
        count => format!("{count} nodes"),
    };
    if attempt.nodes.iter().any(has_unclear_gpus) {
        return Some(format!("{nodes}, GPUs not known"));
    }
    let mut shapes: Vec<_> = attempt.nodes.iter().filter_map(of).collect();
    shapes.dedup();
    let [(gpus, name)] = shapes.as_slice() else { return None };
    Some(format!("{nodes} x {gpus} {}", shorten(name.trim_start_matches("NVIDIA "), 32)))
}

fn gpu_hours(attempt: &Attempt) -> Option<f64> {
    let seconds = float(attempt.end?.saturating_sub(attempt.start?)) / 1000.0;
    let gpus: usize =
        attempt.nodes.iter().map(|node| node.gpus.iter().filter(|gpu| gpu.own == Some(true)).count()).sum();
    Some(seconds / 3600.0 * float(u64::try_from(gpus).ok()?))
}

pub(crate) fn verdict(report: &JobReport, analysis: &Analysis) -> String {
    let ended = report.ended.kind;
    // The last attempt's own end is the title.
    let (last, before) =
        report.attempts.split_last().map_or((None, &[][..]), |(last, all)| (Some(last), all));
    let before = || before.iter().chain(last.filter(|last| last.ended.kind != ended));
    let mut parts = vec![ended.title().to_owned()];
    for (kinds, what) in [
        (&[EndKind::Hardware, EndKind::NodeDied][..], "lost to hardware"),
        (&[EndKind::Preflight][..], "stopped by its preflight"),
        (&[EndKind::Hung][..], "ended because it hung"),
        (&[EndKind::MovedByGate][..], "refused by the gate"),
    ] {
        match before().filter(|attempt| kinds.contains(&attempt.ended.kind)).count() {
            0 => {}
            1 => parts.push(format!("1 attempt {what}")),
            many => parts.push(format!("{many} attempts {what}")),
        }
    }
    // Self-reported by launch.
    let starts = report.attempts.iter().filter_map(Attempt::launched).flat_map(|launched| &launched.starts);
    for (cause, what) in [("node", "lost to a failed node"), ("hang", "ended because it hung")] {
        match starts.clone().filter(|start| start.cause.as_deref() == Some(cause)).count() {
            0 => {}
            1 => parts.push(format!("1 start {what}")),
            many => parts.push(format!("{many} starts {what}")),
        }
    }
    let how = with_error(report, &parts.join("; "));
    match analysis.diagnoses.first() {
        Some(first) => {
            let lead =
                if first.costs.is_none() { String::new() } else { format!("Main finding{}: ", costs(first)) };
            format!("{how}. {lead}{} {}{}", first.what, learn_more(first), idle_too(analysis))
        }
        None => match analysis.sentence() {
            // Why a program failed is no question of its performance.
            Some(figures) if ended == EndKind::Completed => {
                format!("{how}. {figures}; {}", none_found(analysis))
            }
            Some(figures) => format!("{how}. {figures}"),
            None => how,
        },
    }
}

/// GPUs that the job does not use, beside a finding that costs more or that ended it: who holds them can release them.
fn idle_too(analysis: &Analysis) -> String {
    let idle = analysis.diagnoses.iter().skip(1).find(|found| found.rule == IDLE_GPUS);
    idle.map(|idle| format!(". Idle GPUs{}: {} {}", costs(idle), idle.what, learn_more(idle)))
        .unwrap_or_default()
}

/// What it means that no rule found anything.
fn none_found(analysis: &Analysis) -> String {
    if let Some(least_s) = analysis.too_short_s {
        return match trained_s(&analysis.phases) {
            trained if trained < 1.0 => "its speed is not judged: no training was seen".to_owned(),
            trained => {
                format!(
                    "its speed is not judged: it trained for {:.0} s, and at least {least_s:.0} s are needed",
                    trained.floor()
                )
            }
        };
    }
    if analysis.in_turns {
        return "its speed is not judged: its programs trained at different times, or for too short a time each".to_owned();
    }
    // Without shares of time, most rules had nothing to judge.
    match analysis.shares {
        Reading::Known(_) => "no performance problem found".to_owned(),
        Reading::Unsupported | Reading::Failed(_) => "no finding; some rules had no data".to_owned(),
    }
}

/// How the job ended, with the first error of its log: that is what a failed job's owner searches for.
pub(crate) fn with_error(report: &JobReport, how: &str) -> String {
    match &report.first_error {
        Some(first) => format!("{how}: {}", plain(&first.what)),
        None => how.to_owned(),
    }
}

const IDLE_GPUS: &str = "idle-gpus";

/// Command that explains the rule.
fn learn_more(diagnosis: &Diagnosis) -> String {
    format!("(railgate explain {})", diagnosis.rule)
}

fn costs(diagnosis: &Diagnosis) -> String {
    match diagnosis.costs {
        Some(costs) if costs >= 0.005 => format!(", about {:.1} % of its GPU time", 100.0 * costs),
        _ => String::new(),
    }
}

/// Number in thousands, `429k`.
fn thousands(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{:.2}M", value / 1e6),
        value if value >= 1e4 => format!("{:.0}k", value / 1e3),
        value => format!("{value:.0}"),
    }
}

fn model(of: &str, analysis: &Analysis) -> Vec<Span> {
    match &analysis.model {
        Reading::Known(model) => {
            let unit = if model.unit == "tokens" { "tok/s" } else { "samples/s" };
            let (rate, per_gpu) = (model.units_per_s, model.units_per_s / model.gpus.max(1.0));
            let (rate, per_gpu, step) = (thousands(rate), thousands(per_gpu), step(model.step_s));
            let (dtype, peak) = (shorten(&model.dtype, 8), model.peak_tflops);
            vec![
                Span::Open(format!("{of}{:.1} % MFU", 100.0 * model.fraction)),
                Span::Private(format!(", {rate} {unit} ({per_gpu}/GPU), step {step}")),
                Span::Open(format!(" [{}, {dtype} peak {peak:.1} TFLOP/s]", model.convention)),
            ]
        }
        Reading::Unsupported => vec![Span::Open(format!("{of}unknown"))],
        Reading::Failed(why) => vec![Span::Open(format!("{of}MFU unknown: {}", plain(why)))],
    }
}

fn step(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.0} ms", 1000.0 * seconds) } else { format!("{seconds:.2} s") }
}

fn hardware(analysis: &Analysis) -> Option<String> {
    let whole = match &analysis.hardware {
        Reading::Known(hardware) => hardware,
        _ => return Some("unknown: no sampler has reported".to_owned()),
    };
    // While the job trained, and in parentheses of all time.
    let hardware = analysis.training.as_ref().unwrap_or(whole);
    let when = if analysis.training.is_some() { "while training" } else { "of all time" };
    let mut parts = Vec::new();
    match &hardware.tensor_fraction {
        Reading::Known(fraction) => {
            let how = calibration(hardware);
            let band = 100.0 * hardware.band;
            let all = analysis.training.as_ref().and(whole.tensor_fraction.known());
            let all = all.map(|all| format!("; {:.1} % of all time", 100.0 * all)).unwrap_or_default();
            parts.push(format!(
                "{:.1} % HFU {when} (GPM x clock, {how}, +-{band:.0} %{all})",
                100.0 * fraction
            ));
        }
        Reading::Unsupported => parts.push("HFU unknown: these GPUs have no counter for it".to_owned()),
        Reading::Failed(why) => parts.push(format!("HFU unknown: {}", plain(why))),
    }
    let mut add = |reading: &Reading<f64>, show: &dyn Fn(f64) -> String| {
        parts.extend(reading.known().map(|value| show(*value)));
    };
    add(&hardware.busy_percent, &|percent| format!("GPU utilisation {percent:.0} %"));
    add(&hardware.sm_clock_mhz, &|clock| format!("SM {clock:.0} MHz"));
    add(&hardware.power_w, &|power| format!("{power:.0} W/GPU"));
    add(&whole.energy_j, &energy);
    Some(parts.join(", "))
}

/// Where the factor of the clock is from: "calibrated per card (7 of 8 GPUs), else built in".
fn calibration(hardware: &HardwareUse) -> String {
    const SOURCES: [(&str, &str, &str); 4] = [
        ("card", "calibrated per card", "per card"),
        ("site", "calibrated by the site", "by the site"),
        ("built-in", "calibration built in", "built in"),
        ("none", "not calibrated", "not"),
    ];
    let count = |from: &str| hardware.calibrations.get(from).copied().unwrap_or(0);
    let all: u32 = hardware.calibrations.values().sum();
    let mut used = SOURCES.iter().filter(|(from, ..)| count(from) > 0);
    let Some((from, whole, _)) = used.next() else {
        return if hardware.calibrated { "calibrated" } else { "not calibrated" }.to_owned();
    };
    let rest: Vec<&str> = used.map(|(.., short)| *short).collect();
    if rest.is_empty() {
        return (*whole).to_owned();
    }
    format!("{whole} ({} of {all} GPUs), else {}", count(from), rest.join(" or "))
}

fn goodput(report: &JobReport, analysis: &Analysis) -> Option<String> {
    let Reading::Known(last) = &analysis.goodput else { return None };
    let known: Vec<_> = report
        .attempts
        .iter()
        .filter_map(|attempt| attempt.analysis.as_ref()?.goodput.known())
        .filter(|good| good.allocated_s > 0.0)
        .collect();
    let gpu_s = |of: fn(&Goodput) -> f64| -> f64 {
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
    let silent = if silent > 0 {
        format!("; {silent} of {} attempts without numbers", report.attempts.len())
    } else {
        String::new()
    };
    let lost = if lost.is_empty() { String::new() } else { format!("; lost {unit}: {}", lost.join(", ")) };
    let between = why::between(report, last.gpus).map(|text| format!("; {text}")).unwrap_or_default();
    Some(format!("{:.1} %{lost}{between}{silent}", 100.0 * fraction))
}

fn shares(analysis: &Analysis) -> Option<String> {
    let Reading::Known(shares) = &analysis.shares else { return None };
    let known = |reading: &Reading<f64>| reading.known().copied();
    let mut parts = vec![format!("compute {:.1}", shares.compute)];
    match (known(&shares.comm_wait), known(&shares.comm_wire)) {
        (Some(wait), Some(wire)) if wait + wire >= 0.05 => {
            parts.push(format!("comm {:.1} (wait {wait:.1}, transfer {wire:.1})", wait + wire));
        }
        _ => {}
    }
    // Not included in the other three: from outside, waiting in NCCL cannot be distinguished from small
    // kernels.
    if shares.unknown >= 0.05 {
        parts.push(format!("unknown {:.1} (comm, launch or compute)", shares.unknown));
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
    let of = if analysis.training.is_some() { "of the training, " } else { "" };
    Some(format!("{}{throttled}  [{of}confidence {}]", parts.join(" | "), shares.confidence))
}

/// Name of a row that is part of a table and keeps its columns.
pub(crate) const TABLE: &str = "";

/// The columns of [`collectives`].
pub(crate) const COLLECTIVES: [&str; 6] = ["op", "size from", "calls/rank", "busbw GB/s", "ref", "% of ref"];

/// The costliest collective signatures over all nodes of an attempt.
pub(crate) fn collectives(attempt: &Attempt) -> Vec<[String; 6]> {
    const MOST: usize = 3;
    let kinds = kinds::kinds(attempt.nodes.iter().filter_map(|node| node.communication.as_ref()));
    let number = |value: Option<f64>| match value {
        None => "-".to_owned(),
        // A small share is not zero.
        Some(value) if value < 0.05 => "<0.1".to_owned(),
        Some(value) if value < 9.95 => format!("{value:.1}"),
        Some(value) => format!("{value:.0}"),
    };
    let shown = kinds.iter().filter(|kind| kind.busbw_gb_s.is_some()).take(MOST);
    let cells = shown.map(|kind| {
        [
            shorten(&kind.op, 14),
            bytes(float(kind.from_bytes)),
            thousands(float(kind.calls_per_rank())),
            number(kind.busbw_gb_s),
            number(kind.reference_gb_s),
            number(kind.percent()),
        ]
    });
    cells.collect()
}

/// The same as lines of text with a heading.
fn in_columns(rows: &[[String; 6]]) -> Vec<String> {
    let line = |[op, size, calls, reached, possible, share]: [&str; 6]| {
        let line = format!("{op:<14} {size:>9}  {calls:>10}  {reached:>10}  {possible:>5}  {share:>8}");
        line.trim_end().to_owned()
    };
    let head = (!rows.is_empty()).then_some(COLLECTIVES);
    head.into_iter().chain(rows.iter().map(|row| row.each_ref().map(String::as_str))).map(line).collect()
}

fn others(analysis: &Analysis) -> Vec<String> {
    analysis.on_line(Line::Slow).take(3).map(|one| format!("{}{}", plain(&one.what), costs(one))).collect()
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
            let by = one.by.as_str();
            let wanted = one.wanted.as_deref().filter(|_| one.overruled());
            let wanted = wanted.map(|wanted| format!("; railgate wanted {}", shorten(wanted, 28)));
            let name = one.name.trim_start_matches("NCCL_");
            let wanted = wanted.unwrap_or_default();
            format!("{}={} ({by}{wanted})", shorten(name, 24), shorten(value, 28))
        })
        .collect();
    Some(shown.join("  ")).filter(|text| !text.is_empty())
}

fn unknown(report: &JobReport, analysis: &Analysis) -> Option<String> {
    let mut parts = Vec::new();
    let silent: usize = report.attempts.iter().map(|attempt| attempt.silent_nodes.len()).sum();
    let all: usize = report.attempts.iter().map(|attempt| attempt.node_count).sum();
    if silent > 0 {
        parts.push(format!("{silent} of {all} node reports missing ({})", missing(report)));
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

/// Nodes without a report, `gn0003 in attempt 1, gn0388 died in attempt 0`.
fn missing(report: &JobReport) -> String {
    const MOST: usize = 3;
    let of = |attempt: &Attempt| -> Vec<String> {
        let died = if attempt.ended.kind == EndKind::NodeDied { " died" } else { "" };
        let number =
            if report.attempts.len() > 1 { format!(" in {}", why::number(attempt)) } else { String::new() };
        let names = attempt.silent_nodes.iter().take(MOST);
        names.map(|name| format!("{}{died}{number}", shorten(name, 24))).collect()
    };
    let mut names: Vec<String> = report.attempts.iter().flat_map(of).collect();
    names.truncate(MOST);
    names.join(", ")
}

#[cfg(test)]
mod tests;
