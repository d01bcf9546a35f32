//! The report on one screen: the job, its end, its use of the hardware, the next steps.

mod gate;
mod kinds;
mod network;
mod why;

use railgate_diagnosis::{Analysis, Diagnosis, Goodput, HardwareUse, Line};
use railgate_model::Reading;
use railgate_node_report::plain::{bytes, energy, float, plain, span, stamp};
use railgate_text::shorten;
#[cfg(test)]
use serde::{Serialize, Serializer, ser::SerializeStruct as _};

use super::counters::has_unclear_gpus;
use crate::{Attempt, EndKind, JobReport};

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
    let of = if report.attempts.len() > 1 { format!("{}: ", why::number(attempt)) } else { String::new() };
    rows.extend(phases(&of, analysis).map(|text| open("PHASES", text)));
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

/// The rows of a job without figures, which the text format shows in its own lines: the job and its end.
pub(crate) fn whole(report: &JobReport) -> Vec<Row> {
    if telling(report).is_some() {
        return rows(report);
    }
    let mut all = vec![ran(report), Row::open_to_all("VERDICT", report.ended.why.clone())];
    all.extend(why::rows(report));
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

fn verdict(report: &JobReport, analysis: &Analysis) -> String {
    let ended = report.ended.kind;
    // The last attempt's own end is the title.
    let (last, before) =
        report.attempts.split_last().map_or((None, &[][..]), |(last, all)| (Some(last), all));
    let before = || before.iter().chain(last.filter(|last| last.ended.kind != ended));
    let mut parts = vec![ended.title().to_owned()];
    for (kinds, what) in [
        (&[EndKind::Hardware, EndKind::NodeDied][..], "lost to hardware"),
        (&[EndKind::MovedByGate][..], "refused by the gate"),
    ] {
        match before().filter(|attempt| kinds.contains(&attempt.ended.kind)).count() {
            0 => {}
            1 => parts.push(format!("1 attempt {what}")),
            many => parts.push(format!("{many} attempts {what}")),
        }
    }
    let how = with_error(report, &parts.join("; "));
    match analysis.diagnoses.first() {
        Some(first) if first.costs.is_none() => format!("{how}. {} {}", first.what, learn_more(first)),
        Some(first) => {
            format!("{how}. Main finding{}: {} {}", costs(first), first.what, learn_more(first))
        }
        None => match analysis.sentence() {
            // Why a program failed is no question of its performance.
            Some(figures) if ended == EndKind::Completed => {
                // Without shares of time, most rules had nothing to judge.
                let found = match analysis.shares {
                    Reading::Known(_) => "no performance problem found",
                    Reading::Unsupported | Reading::Failed(_) => "no finding; some rules had no data",
                };
                format!("{how}. {figures}; {found}")
            }
            Some(figures) => format!("{how}. {figures}"),
            None => how,
        },
    }
}

/// How the job ended, with the first error of its log: that is what a failed job's owner searches for.
pub(crate) fn with_error(report: &JobReport, how: &str) -> String {
    match &report.first_error {
        Some(first) => format!("{how}: {}", plain(&first.what)),
        None => how.to_owned(),
    }
}

/// Command that explains the rule.
fn learn_more(diagnosis: &Diagnosis) -> String {
    format!("(railgate explain {})", diagnosis.rule)
}

fn costs(diagnosis: &Diagnosis) -> String {
    match diagnosis.costs {
        Some(costs) if costs >= 0.005 => format!(", about {:.1} %", 100.0 * costs),
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

/// How long the job did what; `None` if it is not known, or the job did only one thing.
fn phases(of: &str, analysis: &Analysis) -> Option<String> {
    let all: f64 = analysis.phases.iter().map(|one| one.seconds).sum();
    let shown = analysis.phases.iter().filter(|one| one.seconds >= 0.5);
    let parts: Vec<String> =
        shown.map(|one| format!("{} {}", one.kind.title(), whole_seconds(one.seconds))).collect();
    (parts.len() > 1).then(|| format!("{of}{}; of {}", parts.join(", "), whole_seconds(all)))
}

/// Samples resolve no fraction of a second.
fn whole_seconds(seconds: f64) -> String {
    if seconds < 59.5 { format!("{seconds:.0} s") } else { span(seconds) }
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
mod tests {
    use crate::testing::{large, merged};
    use crate::{brief, text};

    /// Compares the screen of a job of 64 nodes with `view/screen64.txt`.
    #[test]
    fn job_of_64_nodes_fits_one_screen() {
        let report = large(64);
        let said = text(&report, false);
        let want = include_str!("screen64.txt");
        assert!(*said == *want, "view/screen64.txt: it is now\n{said}");
        let lines: Vec<&str> = said.lines().collect();
        assert!(lines.len() <= 40, "{} lines", lines.len());
        assert!(lines.iter().all(|line| line.chars().count() <= 106), "too wide");
        assert!(lines[2].starts_with("VERDICT "), "{}", lines[2]);
        assert!(text(&report, true).lines().count() > 3 * lines.len());
        let few = brief(&report);
        assert!(few.starts_with(lines[0]) && few.lines().count() <= 6, "{few}");
        let names: Vec<&str> = few.lines().skip(1).filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(names.into_iter().filter(|name| !name.is_empty()).collect::<Vec<_>>(), ["VERDICT", "DO"]);
    }

    /// Shares, utilisation and figures of the first line are of the training, and the phases stand apart.
    #[test]
    fn figures_of_a_job_with_phases_are_of_its_training() {
        use railgate_node_report::phases::{Phase, PhaseKind, Phases, Training, TrainingGpu, TrainingHost};
        let mut node = railgate_diagnosis::simulator::healthy().swap_remove(0);
        node.application = None;
        let usage = node.usage.as_mut().unwrap();
        let start = usage.coverage.start;
        let end = |seconds: u64| start + 1000 * seconds;
        let list = [(PhaseKind::StartUp, 0, 28), (PhaseKind::Steady, 28, 45), (PhaseKind::Tail, 45, 49)];
        let list = list.map(|(kind, from, to)| Phase { kind, start: end(from), end: end(to) }).to_vec();
        let reading = |mean: f64| railgate_model::Reading::Known(mean);
        let host = TrainingHost {
            cpu_cores: reading(4.0),
            cpu_pressure_percent: reading(0.0),
            memory_pressure_percent: reading(0.0),
            io_pressure_percent: reading(0.0),
        };
        let gpu = |gpu: &railgate_node_report::usage::GpuUsage| TrainingGpu {
            counters: gpu.counters.clone().map(|_| reading(77.0)),
            busy_clock_mhz: reading(1755.0),
            tensor_fraction: reading(0.243),
        };
        let gpus = usage.gpus.iter().map(gpu).collect();
        usage.phases = Some(Phases { list, training: Some(Training { seconds: 15.0, gpus, host }) });
        let said = text(&merged(vec![node], vec![], None), false);
        assert!(
            said.contains("\nPHASES   start-up 28 s, training 17 s, after the last work 4 s; of 49 s\n"),
            "{said}"
        );
        assert!(said.contains("\nHW       24.3 % HFU while training ("), "{said}");
        assert!(said.contains("; 40.2 % of all time), GPU"), "{said}");
        assert!(said.contains("[of the training, confidence "), "{said}");
    }

    /// A job that the gate refused, that then lost a GPU and then completed; `story` in other tests.
    #[test]
    fn each_attempt_has_reason_and_decision() {
        let mut report = crate::testing::story();
        let lines = |report: &crate::JobReport| -> Vec<String> {
            super::why::rows(report).iter().map(super::Row::text).collect()
        };
        let all = lines(&report);
        assert_eq!(all.len(), 3, "{all:#?}");
        for (line, parts) in all.iter().zip([
            ["attempt 0: REFUSED BY THE GATE", "n2 gpu-lost@3: ", "; n2 drained"],
            [
                "attempt 1: 1 h 00 min HARDWARE FAULT, exit code 1; n1 ",
                " at 09:01:30Z; ",
                "requeued by railgate",
            ],
            ["attempt 2: 1 h 00 min COMPLETED", ", exit code 0", ""],
        ]) {
            assert!(parts.iter().all(|part| line.contains(part)), "{line}");
        }
        // A figure that was not reported is in no line.
        assert!(!all[2].contains("again") && !all[0].contains("restart "), "{all:#?}");
        let last = report.attempts[2].clone();
        report.attempts.extend([last.clone(), last.clone(), last]);
        let many = lines(&report);
        assert_eq!((many.len(), many[2].as_str()), (5, "… 2 attempts between them"));
        assert!(many[4].starts_with("attempt "), "{many:#?}");
    }

    #[test]
    fn verdict_counts_faults_and_refusals_apart() {
        let mut report = crate::testing::story();
        let mut analysis = super::telling(&large(2)).unwrap().1.clone();
        analysis.diagnoses.clear();
        let verdict = |report: &crate::JobReport| super::verdict(report, &analysis);
        let whole = verdict(&report);
        assert!(
            whole.starts_with("completed; 1 attempt lost to hardware; 1 attempt refused by the gate. "),
            "{whole}"
        );
        assert!(whole.ends_with("; no performance problem found"), "{whole}");
        let mut blind = analysis.clone();
        blind.shares = railgate_model::Reading::Failed("no counters".to_owned());
        let blind = super::verdict(&report, &blind);
        assert!(blind.ends_with("; no finding; some rules had no data"), "{blind}");
        // The last attempt's own end is the title and is not counted again.
        report.attempts.truncate(2);
        report.ended = report.attempts[1].ended.clone();
        let failed = verdict(&report);
        assert!(
            failed.starts_with("hardware fault during the run; 1 attempt refused by the gate. "),
            "{failed}"
        );
        assert!(!failed.contains("no performance problem"), "{failed}");
        report.attempts.truncate(1);
        report.ended = report.attempts[0].ended.clone();
        assert!(verdict(&report).starts_with("refused by the gate. "), "{}", verdict(&report));
    }

    #[test]
    fn queue_time_is_shown_for_the_first_attempt_only() {
        let mut report = large(2);
        report.attempts.truncate(1);
        let slurm = report.slurm.as_mut().unwrap();
        (slurm.restarts, slurm.submitted) =
            (Some(0), report.attempts[0].start.map(|start| start - 2_460_000));
        assert!(super::ran(&report).text().ends_with(", queued 41 min 00 s"), "{:?}", super::ran(&report));
        report.slurm.as_mut().unwrap().restarts = Some(1);
        assert!(!super::ran(&report).text().contains("queued"));
    }

    #[test]
    fn possible_nccl_time_is_unknown_in_every_format() {
        let mut report = large(2);
        let last = report.attempts.last_mut().and_then(|attempt| attempt.analysis.as_mut()).unwrap();
        let railgate_model::Reading::Known(shares) = &mut last.shares else { unreachable!() };
        assert_eq!(shares.unknown, 0.0);
        shares.unknown = 31.25;
        let said = " | unknown 31.2 (comm, launch or compute) | ";
        let page = text(&report, false).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(page.contains(said) && crate::html(&report).contains(said));
        let mut json = Vec::new();
        crate::json(&report, &mut json).unwrap();
        assert!(String::from_utf8(json).unwrap().contains("\"unknown\": 31.25"));
    }

    #[test]
    fn the_source_of_the_calibration_is_shown() {
        use std::collections::BTreeMap;
        let railgate_model::Reading::Known(mut hardware) =
            large(1).attempts.last().unwrap().analysis.clone().unwrap().hardware
        else {
            unreachable!()
        };
        let mut said = |counts: &[(&str, u32)]| {
            hardware.calibrations = counts.iter().map(|(from, count)| ((*from).to_owned(), *count)).collect();
            hardware.calibrated = !hardware.calibrations.contains_key("none");
            super::calibration(&hardware)
        };
        assert_eq!(said(&[("card", 8)]), "calibrated per card");
        assert_eq!(said(&[("card", 7), ("built-in", 1)]), "calibrated per card (7 of 8 GPUs), else built in");
        assert_eq!(said(&[("built-in", 6), ("none", 2)]), "calibration built in (6 of 8 GPUs), else not");
        assert_eq!(
            said(&[("card", 1), ("site", 1), ("built-in", 2)]),
            "calibrated per card (1 of 4 GPUs), else by the site or built in"
        );
        assert_eq!(said(&[("none", 8)]), "not calibrated");
        // Reports of earlier releases, and words that others wrote.
        assert_eq!(said(&[]), "calibrated");
        assert_eq!(said(&[("\u{1b}[31m", 8)]), "calibrated");
        let mut analysis = serde_json::to_value(&hardware).unwrap();
        analysis.as_object_mut().unwrap().remove("calibrations");
        let old: super::HardwareUse = serde_json::from_value(analysis).unwrap();
        assert_eq!(old.calibrations, BTreeMap::new());
    }

    /// Time between a fault and the last progress, from steps or collectives counted until then.
    #[test]
    fn fault_is_shown_with_the_last_step() {
        use railgate_node_report::application::{Application, RankApplication};
        use railgate_node_report::comm::{Communication, Communicator, LastOp};
        let fault = |report: &crate::JobReport| report.attempts[1].ended.proof[0].time.unwrap();
        let line = |report: &crate::JobReport| super::why::rows(report)[1].text();
        let mut report = crate::testing::story();
        let at = fault(&report);
        assert!(line(&report).contains(" at 09:01:30Z; "), "{}", line(&report));
        let stepped = |last| {
            let rank = |last_step| RankApplication { last_step, ..RankApplication::default() };
            Some(Application {
                ranks: vec![rank(None), rank(Some(last - 700)), rank(Some(last))],
                problems: vec![],
            })
        };
        let node = &mut report.attempts[1].nodes[0];
        let last = Some(LastOp { time: at - 1_500, ..LastOp::default() });
        let communicators = vec![Communicator { last, ..Communicator::default() }];
        node.communication = Some(Communication { communicators, ..Communication::default() });
        assert!(
            line(&report).contains(" at 09:01:30Z, 1.5 s after the last collective was launched; "),
            "{}",
            line(&report)
        );
        for (last, said) in [
            (at - 2_000, "Z, 2.0 s after the last step; "),
            (at + 90_000, "Z, steps continued for 1 min 30 s; "),
        ] {
            report.attempts[1].nodes[0].application = stepped(last);
            assert!(line(&report).contains(said), "{}", line(&report));
        }
        // A partial report is older than the end of the job.
        report.attempts[1].nodes[0].as_of = Some(at - 60_000);
        assert!(line(&report).contains(" at 09:01:30Z; "), "{}", line(&report));
    }

    #[test]
    fn gpudirect_is_off_only_if_there_is_evidence() {
        use railgate_model::{Class, Severity};
        use railgate_node_report::testing::finding;
        use railgate_node_report::{Applied, AppliedBy};
        let mut report = large(4);
        let line = |report: &crate::JobReport| super::network::nccl(report.attempts.last().unwrap()).unwrap();
        // Without evidence it is not reported as enabled either.
        assert!(!line(&report).contains("GPUDirect"));
        let no_way = finding("gpu-direct", "", Severity::Warn, Class::Site, "no nvidia_peermem");
        for (place, told) in [(1, "gn0002"), (2, "2 of 3 nodes")] {
            let Some(attempt) = report.attempts.last_mut() else { unreachable!() };
            let look = attempt.nodes[place].prolog.as_mut().unwrap();
            look.verdict.findings.push(no_way.clone());
            assert!(line(&report).contains(&format!("no GPUDirect on {told}")), "{}", line(&report));
        }
        let mut report = large(4);
        for (value, off) in [("PIX", false), ("LOC", true), ("0", true)] {
            report.attempts.last_mut().unwrap().nodes[0].applied = vec![Applied {
                name: "NCCL_NET_GDR_LEVEL".to_owned(),
                wanted: None,
                value: Some(value.to_owned()),
                by: AppliedBy::User,
                processes: 8,
                steps: vec![],
            }];
            let said = format!("GPUDirect off (NCCL_NET_GDR_LEVEL={value} by user)");
            assert_eq!(line(&report).contains(&said), off, "{}", line(&report));
        }
    }

    #[test]
    fn port_is_shown_with_its_leaf_from_the_cable_table() {
        let mut report = large(16);
        let rails = |report: &crate::JobReport| {
            super::rows(report).into_iter().find(|row| row.name == "RAILS").unwrap().text()
        };
        assert!(!rails(&report).contains("leaf"), "{}", rails(&report));
        let of = |port: &str, leaf: &str| (port.to_owned(), leaf.to_owned());
        let ports = [of("mlx5_2:1", "leaf-b2"), of("mlx5_3:1", "leaf-b3")];
        report.leafs.insert("gn0007".to_owned(), ports.into());
        // An entry for another port, and one without a name.
        report.leafs.insert("gn0012".to_owned(), [of("mlx5_5:1", "leaf-a6"), of("mlx5_6:1", "")].into());
        for part in ["gn0007 r2 (leaf-b2) xmit_wait 3.1x median", "gn0012 r6 link_downed +1"] {
            assert!(rails(&report).contains(part), "{}", rails(&report));
        }
        let covered = crate::redacted(&report);
        assert!(covered.contains("xmit_wait 3.1x") && !covered.contains("leaf-b"), "{covered}");
    }
}
