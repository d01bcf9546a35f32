//! Which rates are judged, and by what: a floor of the site, recorded rates of good cards, the node's median, a built-in floor.

use std::collections::BTreeMap;

use railgate_model::{Class, GpuProfile, GpuSelfTested, PciAddress, RecordedRate};

use super::{Settings, Tested, View, reasons_of, slowdowns};
use crate::gpu_counters::Kind;
use crate::report::{Found, Report};
use crate::scene::Scene;

/// A rate that is judged.
pub(super) struct Figure {
    /// The program's test, and the figure in its result.
    pub(super) of: (&'static str, &'static str),
    /// For messages.
    pub(super) text: &'static str,
    pub(super) unit: &'static str,
    floor: fn(&Settings) -> f64,
    /// Of a model; `None`: it has none.
    built_in: fn(&str, &GpuProfile) -> Option<f64>,
    fix: &'static str,
}

const fn memory(
    test: &'static str,
    name: &'static str,
    text: &'static str,
    floor: fn(&Settings) -> f64,
) -> Figure {
    let of = (test, name);
    Figure { of, text, unit: "GB/s", floor, built_in: no_floor, fix: "test again" }
}

const fn copy(
    of: (&'static str, &'static str),
    text: &'static str,
    floor: fn(&Settings) -> f64,
    built_in: fn(&str, &GpuProfile) -> Option<f64>,
) -> Figure {
    Figure { of, text, unit: "GB/s", floor, built_in, fix: "check slot, NVLink" }
}

const fn product(
    test: &'static str,
    text: &'static str,
    floor: fn(&Settings) -> f64,
    built_in: fn(&str, &GpuProfile) -> Option<f64>,
) -> Figure {
    let of = (test, "rate_tflops");
    Figure { of, text, unit: "TFLOP/s", floor, built_in, fix: "check cooling, power" }
}

fn no_floor(_: &str, _: &GpuProfile) -> Option<f64> {
    None
}

/// Azure's health checks (azurehpc-health-checks, `conf/`), for GPUs with all their NVLinks.
fn peer_floor(model: &str, profile: &GpuProfile) -> Option<f64> {
    let (links, floor) = match model {
        "NVIDIA H100 80GB HBM3" => (18, 335.0),
        "NVIDIA A100-SXM4-80GB" => (12, 238.0),
        _ => return None,
    };
    (profile.nvlinks_up == Some(links)).then_some(floor)
}

/// Half of the dense peak, for the models with published rates and at their full power limit only: healthy H100 and H200 reach two thirds
/// of it, A100 more.
fn bf16_floor(model: &str, profile: &GpuProfile) -> Option<f64> {
    let full_power_w = match model {
        "NVIDIA H100 80GB HBM3" | "NVIDIA H200" => 700.0,
        "NVIDIA A100-SXM4-80GB" | "NVIDIA A100-SXM4-40GB" => 400.0,
        _ => return None,
    };
    let is_full = profile.power_limit_w.is_some_and(|limit| limit >= full_power_w);
    profile.bf16_tflops.filter(|_| is_full).map(|peak| peak / 2.0)
}

pub(super) const FIGURES: [Figure; 11] = [
    memory("memory-bandwidth", "copy_gb_s", "memory copy", |set| set.min_memory_copy_gb_s),
    memory("memory-pattern", "read_gb_s", "memory read", |set| set.min_memory_read_gb_s),
    memory("memory-pattern", "write_gb_s", "memory write", |set| set.min_memory_write_gb_s),
    copy(
        ("host-copy-alone", "host_to_device_gb_s"),
        "host to device",
        |set| set.min_host_to_device_gb_s,
        no_floor,
    ),
    copy(
        ("host-copy-alone", "device_to_host_gb_s"),
        "device to host",
        |set| set.min_device_to_host_gb_s,
        no_floor,
    ),
    copy(("peer-copy", "peer_gb_s"), "copy to another GPU", |set| set.min_peer_gb_s, peer_floor),
    product("gemm-rate-bf16", "bf16 products", |set| set.min_bf16_tflops, bf16_floor),
    product("gemm-rate-fp16", "fp16 products", |_| 0.0, no_floor),
    product("gemm-rate-tf32", "tf32 products", |_| 0.0, no_floor),
    product("gemm-rate-fp8", "fp8 products", |_| 0.0, no_floor),
    product("gemm-rate-fp32", "fp32 products", |_| 0.0, no_floor),
];

impl Figure {
    /// Its key in a profile.
    fn key(&self) -> String {
        format!("{}.{}", self.of.0, self.of.1)
    }
}

/// Fewer have no median that one slow GPU does not move.
const ENOUGH: usize = 3;

/// The lowest of the figures of a test, of which there is one for each copy to another GPU. A rate that is not above zero is none.
pub(super) fn lowest<'a>(
    tests: impl Iterator<Item = &'a GpuSelfTested>,
    (test, name): (&str, &str),
) -> Option<f64> {
    let figures =
        tests.filter(|result| result.test == test).filter_map(|one| one.measured.get(name).copied());
    figures.filter(|rate| rate.is_finite() && *rate > 0.0).reduce(f64::min)
}

/// Rates of good cards, for a profile: those that the check judges, from results of the self-test on any number of nodes. The second value
/// has the reasons why a card was left out.
pub fn baseline(nodes: &[Vec<GpuSelfTested>]) -> (BTreeMap<String, RecordedRate>, Vec<String>) {
    let mut cards: BTreeMap<(usize, PciAddress), Vec<&GpuSelfTested>> = BTreeMap::new();
    for (node, line) in
        nodes.iter().enumerate().flat_map(|(node, lines)| lines.iter().map(move |line| (node, line)))
    {
        cards.entry((node, line.gpu)).or_default().push(line);
    }
    let mut left_out = Vec::new();
    cards.retain(|(_, gpu), lines| {
        let why = lines.iter().find_map(|line| not_good(line));
        left_out.extend(why.as_ref().map(|why| format!("{gpu}: {why}")));
        why.is_none()
    });
    let mut rates = BTreeMap::new();
    for figure in &FIGURES {
        let of_cards: Vec<f64> =
            cards.values().filter_map(|lines| lowest(lines.iter().copied(), figure.of)).collect();
        if let (Some(median), Some(lowest), Some(highest)) = (
            median(of_cards.clone()),
            of_cards.iter().copied().reduce(f64::min),
            of_cards.iter().copied().reduce(f64::max),
        ) {
            let gpus = u32::try_from(of_cards.len()).unwrap_or(u32::MAX);
            rates.insert(figure.key(), RecordedRate { median, lowest, highest, gpus });
        }
    }
    (rates, left_out)
}

/// Why the card of this result is no example of a good one.
fn not_good(line: &GpuSelfTested) -> Option<String> {
    if matches!(line.values, railgate_model::ValueCheck::Wrong { .. }) {
        return Some(format!("wrong values in {}", line.test));
    }
    if let Some(why) = &line.unknown {
        return Some(format!("no result of {}: {why}", line.test));
    }
    let shared = line.measured.get("other_processes_count").is_some_and(|count| *count > 0.0);
    shared.then(|| "other processes used it".to_owned())
}

/// What a rate must reach, and why.
struct Limit {
    least: f64,
    why: String,
}

impl View<'_> {
    pub(super) fn rates(&self, scene: &Scene<'_>, out: &mut Report<'_>) {
        let unknown = GpuProfile::default();
        let profile = scene.profile().map_or(&unknown, |profile| &profile.gpus);
        for figure in &FIGURES {
            let rates: Vec<(&Tested<'_>, f64)> =
                self.tested.iter().filter_map(|gpu| Some((gpu, gpu.figure(figure.of)?))).collect();
            let median = median(rates.iter().map(|(_, rate)| *rate).collect());
            let median =
                median.filter(|_| GpuSelfTested::COMPARABLE.contains(&figure.of) && rates.len() >= ENOUGH);
            for (gpu, rate) in &rates {
                let floor = (figure.floor)(self.set);
                let least = if *rate < floor {
                    Some(Limit { least: floor, why: format!("less than {floor}") })
                } else {
                    self.limit(figure, gpu, *rate, (profile, median, rates.len()))
                };
                if let Some(limit) = least.filter(|limit| *rate < limit.least) {
                    self.slow(figure, gpu, *rate, &limit, out);
                }
            }
        }
    }

    /// What a rate is compared with besides the site's floor: the first that exists.
    fn limit(
        &self,
        figure: &Figure,
        gpu: &Tested<'_>,
        rate: f64,
        (profile, median, of): (&GpuProfile, Option<f64>, usize),
    ) -> Option<Limit> {
        let part = 1.0 - self.set.below_median_percent / 100.0;
        let is_judged = self.set.below_median_percent > 0.0;
        let below = |median: f64| (1.0 - rate / median) * 100.0;
        if let Some(known) = profile.self_test.get(&figure.key()) {
            let RecordedRate { median, lowest, gpus, .. } = *known;
            let why = format!("{:.0} % below the recorded median of {gpus} GPUs", below(median));
            return is_judged.then_some(Limit { least: (median * part).min(lowest), why });
        }
        if let Some(median) = median {
            let why = format!("{:.0} % below the median of {of} GPUs", below(median));
            return is_judged.then_some(Limit { least: median * part, why });
        }
        let model = gpu.tests.first().map_or("", |test| test.model.as_str());
        let floor = (figure.built_in)(model, profile).filter(|_| (figure.floor)(self.set) <= 0.0)?;
        Some(Limit { least: floor, why: format!("less than {floor:.0} (built-in floor)") })
    }

    fn slow(&self, figure: &Figure, gpu: &Tested<'_>, rate: f64, limit: &Limit, out: &mut Report<'_>) {
        let Figure { text, unit, .. } = figure;
        let what = format!("{}: {text} {rate:.1} {unit}, {}{}", gpu.pci, limit.why, meanwhile(gpu, figure));
        let found = Found::warn(Class::Node, &gpu.part, what).fix(figure.fix);
        let (got, want) = (format!("{rate:.1} {unit}"), format!("at least {:.1} {unit}", limit.least));
        out.add(found.row(format!("gpu {} {text}", gpu.part), got, want, self.program));
    }

    /// Errors of NVLinks during the copies between GPUs: of each kind one finding, about the worst link.
    pub(super) fn links(&self, out: &mut Report<'_>) {
        for (gpu, test) in self.tested.iter().flat_map(|gpu| gpu.tests.iter().map(move |test| (gpu, test))) {
            if test.test != "nvlink-errors" {
                continue;
            }
            for kind in Kind::ALL {
                let (figure, allowed) = match kind {
                    Kind::Recoveries => ("recoveries_count", self.set.max_nvlink_recoveries),
                    Kind::Replays => ("replays_count", self.set.max_nvlink_replays),
                    Kind::Crc => ("crc_errors_count", self.set.max_nvlink_crc),
                };
                let Some((link, count)) = worst_link(test, figure) else { continue };
                #[expect(clippy::cast_precision_loss, reason = "a setting of a few digits")]
                if count <= allowed as f64 {
                    continue;
                }
                let (text, place) =
                    (kind.text(), link.map_or_else(String::new, |link| format!(" link {link}")));
                let what =
                    format!("{}: NVLink{place}: {count:.0} {text} during copies between GPUs", gpu.pci);
                let found = Found::warn(Class::Node, &gpu.part, what).fix("test again, check NVLink");
                let name = format!("gpu {} NVLink{place} {text}", gpu.part);
                out.add(found.row(name, format!("{count:.0}"), format!("at most {allowed}"), self.program));
            }
        }
    }
}

/// The link with the most errors of a kind. `None` for the link: the driver counts only the sum over all links.
fn worst_link(test: &GpuSelfTested, figure: &str) -> Option<(Option<u32>, f64)> {
    let of_links = test.measured.iter().filter_map(|(name, count)| {
        let link = name.strip_prefix("link_")?.strip_suffix(figure)?.strip_suffix('_')?;
        Some((Some(link.parse().ok()?), *count))
    });
    let worst = of_links.max_by(|one, other| one.1.total_cmp(&other.1));
    worst.or_else(|| Some((None, *test.measured.get(figure)?)))
}

/// What explains a slow rate: the clock, slowdowns and other processes in the slowest result.
fn meanwhile(gpu: &Tested<'_>, figure: &Figure) -> String {
    let of_test = gpu.tests.iter().filter(|test| test.test == figure.of.0);
    let rate = |test: &GpuSelfTested| test.measured.get(figure.of.1).copied().unwrap_or(f64::INFINITY);
    let Some(test) = of_test.min_by(|one, other| rate(one).total_cmp(&rate(other))) else {
        return String::new();
    };
    let mut text = String::new();
    if let Some(clock) = test.measured.get("sm_clock_mhz") {
        text.push_str(&format!("; SM clock {clock:.0} MHz"));
    }
    let named = slowdowns(reasons_of(test));
    if !named.is_empty() {
        text.push_str(&format!("; slowed by {}", named.join(", ")));
    }
    match test.measured.get("other_processes_count") {
        Some(count) if *count == 1.0 => text.push_str("; another process uses the GPU"),
        Some(count) if *count > 1.0 => text.push_str(&format!("; {count:.0} other processes use the GPU")),
        _ => {}
    }
    text
}

pub(super) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = values.get(values.len() / 2)?;
    let lower = values.get(values.len().saturating_sub(1) / 2)?;
    Some(f64::midpoint(*lower, *upper))
}
