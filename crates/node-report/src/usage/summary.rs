use std::collections::{BTreeMap, BTreeSet};

use railgate_model::{GpuCounters, Reading, UnixMillis};

use super::fold::{Sum, Sums};
use super::format::{End, Head, HeadGpu, HeadRail, Record, Records};
use super::peaks::{Model, UNCALIBRATED_BAND};
use super::quiet::{RailSample, quiet};
use super::{
    Calibration, Coverage, Gap, GpuField, GpuFigures, GpuUsage, HardwareFlop, HostField, HostUsage, IdleTime,
    MigSlice, PeakUsed, RailField, RailUsage, Sample, SamplerCost, Spread, State, Throttled, Usage,
};
use crate::phases::{Cell, CellGpu, Phases, Training, TrainingGpu, TrainingHost, by_gpu, classify_starts};
use crate::tasks::StepStart;

/// Maximum number of gaps that are listed, the longest ones.
const MOST_GAPS: usize = 20;
const MOST_NOTES: usize = 50;
/// A shorter gap between two samples is normal.
const JITTER_MS: u64 = 1500;
/// A sample with kernels in at most this share of its time is idle: a display or a monitor may run for moments.
const IDLE_PERCENT: f64 = 1.0;

/// Sums up the files of a sampler, in any order. A minute in one file and its samples in another count once.
/// `end` is the end of the run by the sampler's own clock. `None` if no file has a head.
pub fn summarize(streams: &[&[u8]], end: UnixMillis, figures: &GpuFigures) -> Option<Usage> {
    let minutes = minutes_of(streams);
    let mut all = All::default();
    for stream in streams {
        all.read(stream, &minutes);
    }
    all.finish(end, figures)
}

/// Time of a sampler's clock at `boot_s` seconds after boot, if the boot is still the same.
pub fn moment(streams: &[&[u8]], boot_id: &str, boot_s: f64) -> Option<UnixMillis> {
    let head = streams.iter().find_map(|stream| match Records::new(stream).next()? {
        Record::Head(head) => Some(head),
        _ => None,
    })?;
    let passed = std::time::Duration::try_from_secs_f64(boot_s - head.boot_s).ok()?;
    let same = head.boot_id.is_empty() || boot_id.is_empty() || head.boot_id == boot_id;
    same.then(|| head.start.saturating_add(u64::try_from(passed.as_millis()).unwrap_or(u64::MAX)))
}

/// Joins the files of a sampler into one of at most `most` bytes. If they are larger, it has minutes only; if
/// those are larger too, returns `None`. A damaged tail is dropped.
pub fn joined(streams: &[&[u8]], most: usize) -> Option<Vec<u8>> {
    let whole = |streams: &[&[u8]]| {
        let mut all = Vec::new();
        for stream in streams {
            all.extend_from_slice(stream.get(..super::format::whole_bytes(stream)).unwrap_or_default());
        }
        Some(all).filter(|all| !all.is_empty() && all.len() <= most)
    };
    whole(streams).or_else(|| whole(streams.get(..1)?))
}

/// Every moment once, at the highest known resolution, for plots, with the last head.
pub fn timeline(stream: &[u8]) -> Option<(Head, Vec<Sample>)> {
    let mut head = None;
    let mut samples = Finest::default();
    for record in Records::new(stream) {
        match record {
            Record::Head(new) => head = Some(new),
            Record::Sample(sample) => samples.add(sample.start, sample.end(), sample.folded, sample),
            Record::Note(_) | Record::End(_) => {}
        }
    }
    head.map(|head| (head, samples.finish()))
}

/// Collects what was made of samples, and keeps every moment once, at the highest known resolution.
#[derive(Clone)]
struct Finest<T> {
    fine: BTreeMap<UnixMillis, (UnixMillis, T)>,
    folded: BTreeMap<UnixMillis, (UnixMillis, T)>,
}

impl<T> Default for Finest<T> {
    fn default() -> Self {
        Finest { fine: BTreeMap::new(), folded: BTreeMap::new() }
    }
}

impl<T> Finest<T> {
    fn add(&mut self, start: UnixMillis, end: UnixMillis, folded: u16, what: T) {
        let list = if folded > 1 { &mut self.folded } else { &mut self.fine };
        list.insert(start, (end, what));
    }

    fn finish(self) -> Vec<T> {
        let Finest { mut fine, folded } = self;
        for (start, minute) in folded {
            let inside: Vec<_> =
                fine.range(start..minute.0).map(|(at, (end, _))| (*at, end.saturating_sub(*at))).collect();
            let known: u64 = inside.iter().map(|(_, length)| length).sum();
            if 10 * known < 9 * minute.0.saturating_sub(start) {
                for (at, _) in inside {
                    fine.remove(&at);
                }
                fine.insert(start, minute);
            }
        }
        fine.into_values().map(|(_, what)| what).collect()
    }
}

/// The phases of a run, from the files of its sampler in any order, and the means of the time in which it trained.
/// `usage` is the summary of the same files; `others`: the job has more than one GPU; `starts`: when its step was started, if
/// more than once. `None` if no GPU was sampled.
pub fn phases(
    streams: &[&[u8]],
    usage: &Usage,
    others: bool,
    starts: &[StepStart],
    figures: &GpuFigures,
) -> Option<Phases> {
    let mut cells = Finest::default();
    for stream in streams {
        for record in Records::new(stream) {
            if let Record::Sample(sample) = record
                && sample.state == State::Running
            {
                cells.add(sample.start, sample.end(), sample.folded, (sample.folded > 1, cell(&sample)));
            }
        }
    }
    let (folded, cells): (Vec<bool>, Vec<Cell>) = cells.finish().into_iter().unzip();
    let course = classify_starts(&cells, others, starts);
    if course.list.is_empty() {
        return None;
    }
    let wanted: BTreeSet<UnixMillis> = course.training.iter().copied().collect();
    let wanted: BTreeSet<(UnixMillis, bool)> = cells
        .iter()
        .zip(folded)
        .filter(|(cell, _)| wanted.contains(&cell.start))
        .map(|(cell, folded)| (cell.start, folded))
        .collect();
    let gpus = by_gpu(&cells, usage.gpus.len(), others, starts, &course.list);
    Some(Phases { list: course.list, gpus, training: training(streams, &wanted, usage, figures) })
}

/// What the phases depend on.
pub(crate) fn cell(sample: &Sample) -> Cell {
    let gpu = |values: &super::Values<GpuField>| CellGpu {
        kernels: values.mean(GpuField::Graphics).or(values.mean(GpuField::AnyKernel)),
        sm: values.mean(GpuField::Sm),
        tensor: values.mean(GpuField::Tensor),
        dram: values.mean(GpuField::Dram),
        sent: values.mean(GpuField::PcieTx).unwrap_or(0.0),
        received: values.mean(GpuField::PcieRx).unwrap_or(0.0),
        memory_mib: values.mean(GpuField::MemoryUsed),
        went_on: match (values.mean(GpuField::Paused), values.mean(GpuField::Pauses)) {
            (Some(percent), Some(begun)) if begun <= 0.0 => percent / 100.0,
            _ => 0.0,
        },
    };
    Cell {
        start: sample.start,
        end: sample.end(),
        gpus: sample.gpus.iter().map(gpu).collect(),
        written: sample.host.mean(HostField::IoWrite).unwrap_or(0.0),
    }
}

/// Means over the samples in `wanted`: their start, and whether they are folded.
fn training(
    streams: &[&[u8]],
    wanted: &BTreeSet<(UnixMillis, bool)>,
    usage: &Usage,
    figures: &GpuFigures,
) -> Option<Training> {
    let mut all = All::default();
    for stream in streams {
        for record in Records::new(stream) {
            match record {
                Record::Head(head) => all.head(head),
                Record::Sample(sample)
                    if wanted.contains(&(sample.start, sample.folded > 1))
                        && all.seen.insert(sample.start) =>
                {
                    all.sample(&sample);
                }
                Record::Sample(_) | Record::Note(_) | Record::End(_) => {}
            }
        }
    }
    let [seconds, ..] = all.seconds;
    if seconds <= 0.0 {
        return None;
    }
    let mean = |reading: Reading<Spread>| reading.map(|spread| spread.mean);
    let host = host_usage(&all.host, None);
    let gpus = usage
        .gpus
        .iter()
        .filter_map(|gpu| {
            all.gpus.iter().find(|one| one.head.uuid == gpu.uuid && one.head.index == gpu.index)
        })
        .map(|one| gpu_usage(one, figures))
        .map(|gpu| TrainingGpu {
            tensor_fraction: gpu.flop.tensor_fraction,
            busy_clock_mhz: gpu.busy_clock_mhz,
            counters: gpu.counters.map(mean),
        });
    let gpus: Vec<TrainingGpu> = gpus.collect();
    (gpus.len() == usage.gpus.len()).then(|| Training {
        seconds,
        gpus,
        host: TrainingHost {
            cpu_cores: mean(host.cpu_cores),
            cpu_pressure_percent: mean(host.cpu_pressure_percent),
            memory_pressure_percent: mean(host.memory_pressure_percent),
            io_pressure_percent: mean(host.io_pressure_percent),
        },
    })
}

/// Periods covered by folded samples, in order.
fn minutes_of(streams: &[&[u8]]) -> Vec<(UnixMillis, UnixMillis)> {
    let of_record = |record| match record {
        Record::Sample(sample) if sample.folded > 1 => Some((sample.start, sample.end())),
        _ => None,
    };
    let mut minutes: Vec<_> =
        streams.iter().flat_map(|stream| Records::new(stream).filter_map(of_record)).collect();
    minutes.sort_unstable();
    minutes
}

fn within(minutes: &[(UnixMillis, UnixMillis)], sample: &Sample) -> bool {
    let middle = sample.start.midpoint(sample.end());
    let next = minutes.partition_point(|(start, _)| *start <= middle);
    next.checked_sub(1).and_then(|before| minutes.get(before)).is_some_and(|(_, end)| middle < *end)
}

#[derive(Default)]
struct All {
    head: Option<Head>,
    gpus: Vec<OneGpu>,
    /// Indices of the GPUs in the samples under this head.
    order: Vec<usize>,
    rails: BTreeMap<(String, u32), (HeadRail, Sums)>,
    /// Ports that are on a rail; their places are the numbers in `traffic`.
    ports: Vec<(String, u32)>,
    /// At the highest known resolution.
    traffic: Finest<RailSample>,
    host: Sums,
    covered: Vec<(UnixMillis, UnixMillis)>,
    seen: BTreeSet<UnixMillis>,
    seconds: [f64; 3],
    samples: u64,
    notes: Vec<String>,
    end: Option<End>,
}

struct OneGpu {
    head: HeadGpu,
    sums: Sums,
    seconds: f64,
    idle: Idle,
}

/// Samples of a GPU, at the highest known resolution: a minute is idle only if all of it is.
#[derive(Default)]
struct Idle(Finest<IdleSample>);

#[derive(Clone, Copy)]
struct IdleSample {
    start: UnixMillis,
    end: UnixMillis,
    seconds: f64,
    idle: bool,
}

/// Whether no kernel ran in a sample: from GPM, which covers all of it, else from the driver. `None` if neither is known.
pub fn is_idle(values: &super::Values<GpuField>) -> Option<bool> {
    let percent = values.mean(GpuField::Graphics).or_else(|| values.mean(GpuField::AnyKernel))?;
    Some(percent <= IDLE_PERCENT)
}

impl Idle {
    fn add(&mut self, sample: &Sample, values: &super::Values<GpuField>) {
        let Some(idle) = is_idle(values) else { return };
        let (start, end) = (sample.start, sample.end());
        let one = IdleSample { start, end, seconds: f64::from(sample.seconds), idle };
        self.0.add(start, end, sample.folded, one);
    }

    /// `None` if it was never known.
    fn told(&self) -> Option<IdleTime> {
        let samples = self.0.clone().finish();
        let (first, last) = (samples.first()?.start, samples.iter().map(|one| one.end).max()?);
        let last_busy = samples.iter().filter(|one| !one.idle).map(|one| one.end).max();
        let seconds = |samples: &mut dyn Iterator<Item = &IdleSample>| samples.map(|one| one.seconds).sum();
        Some(IdleTime {
            over_s: seconds(&mut samples.iter()),
            idle_s: seconds(&mut samples.iter().filter(|one| one.idle)),
            since: last_busy.is_none_or(|busy| busy < last).then_some(last_busy.unwrap_or(first)),
        })
    }
}

impl All {
    fn read(&mut self, stream: &[u8], minutes: &[(UnixMillis, UnixMillis)]) {
        let mut records = Records::new(stream);
        for record in records.by_ref() {
            match record {
                Record::Head(head) => self.head(head),
                Record::Sample(sample) => {
                    self.idle(&sample);
                    self.traffic(&sample);
                    let counts = sample.folded > 1 || !within(minutes, &sample);
                    if counts && self.seen.insert(sample.start) {
                        self.sample(&sample);
                    }
                }
                Record::Note(note) => self.note(note.what),
                Record::End(end) => self.end = Some(end),
            }
        }
        if let Some(why) = records.damage() {
            self.note(format!("the end of a sample file is damaged ({why})"));
        }
    }

    fn note(&mut self, what: String) {
        if self.notes.len() < MOST_NOTES && !self.notes.contains(&what) {
            self.notes.push(what);
        }
    }

    fn head(&mut self, head: Head) {
        self.order.clear();
        for gpu in &head.gpus {
            let known = self.gpus.iter().position(|one| same(&one.head, gpu));
            let place = known.unwrap_or_else(|| {
                self.gpus.push(OneGpu {
                    head: gpu.clone(),
                    sums: Sums::default(),
                    seconds: 0.0,
                    idle: Idle::default(),
                });
                self.gpus.len() - 1
            });
            // A driver that stopped responding does not remove a known name.
            if let Some(one) = self.gpus.get_mut(place)
                && (one.head.model.is_empty() || !gpu.model.is_empty())
            {
                one.head.clone_from(gpu);
            }
            self.order.push(place);
        }
        for rail in &head.rails {
            let place = (rail.hca.clone(), rail.port);
            if rail.rail.is_some() && !self.ports.contains(&place) {
                self.ports.push(place.clone());
            }
            self.rails.entry(place).or_insert_with(|| (rail.clone(), Sums::default()));
        }
        self.head = Some(head);
    }

    fn sample(&mut self, sample: &Sample) {
        let Some(head) = &self.head else { return };
        let seconds = f64::from(sample.seconds);
        self.covered.push((sample.start, sample.end()));
        let place = match sample.state {
            State::Running => 0,
            State::Suspended => 1,
            State::Yielded => 2,
        };
        if let Some(sum) = self.seconds.get_mut(place) {
            *sum += seconds;
        }
        if sample.state == State::Suspended {
            return;
        }
        self.samples += u64::from(sample.folded);
        self.host.add(&sample.host, seconds);
        for (rail, values) in head.rails.iter().zip(&sample.rails) {
            if let Some((_, sums)) = self.rails.get_mut(&(rail.hca.clone(), rail.port)) {
                sums.add(values, seconds);
            }
        }
        for (place, values) in self.order.iter().zip(&sample.gpus).filter(|(_, values)| !values.is_empty()) {
            if let Some(one) = self.gpus.get_mut(*place) {
                one.sums.add(values, seconds);
                one.seconds += seconds;
            }
        }
    }

    fn idle(&mut self, sample: &Sample) {
        if sample.state == State::Suspended {
            return;
        }
        for (place, values) in self.order.iter().zip(&sample.gpus) {
            if let Some(one) = self.gpus.get_mut(*place) {
                one.idle.add(sample, values);
            }
        }
    }

    fn traffic(&mut self, sample: &Sample) {
        let Some(head) = self.head.as_ref().filter(|_| sample.state != State::Suspended) else { return };
        let rate = |(rail, values): (&HeadRail, &super::Values<RailField>)| {
            let port = self.ports.iter().position(|(hca, port)| *hca == rail.hca && *port == rail.port)?;
            Some((port, values.mean(RailField::Tx)? + values.mean(RailField::Rx)?))
        };
        let rates = head.rails.iter().zip(&sample.rails).filter_map(rate).collect();
        let one = RailSample { start: sample.start, seconds: f64::from(sample.seconds), rates };
        self.traffic.add(sample.start, sample.end(), sample.folded, one);
    }

    fn finish(mut self, end: UnixMillis, figures: &GpuFigures) -> Option<Usage> {
        let head = self.head.take()?;
        self.covered.sort_unstable();
        let end = self.covered.last().map_or(end, |(_, last)| end.max(*last));
        let mut coverage = self.coverage(&head, end);
        if self.end.is_none()
            && let Some(gap) = coverage.gaps.iter_mut().find(|gap| gap.end == end)
        {
            gap.why = "the sampler was gone".to_owned();
        }
        // In NVML's order, with the instances of one GPU together.
        self.gpus.sort_by_key(|one| (one.head.index, one.head.instance));
        let gpus = self.gpus.iter().map(|one| gpu_usage(one, figures)).collect();
        let traffic = std::mem::take(&mut self.traffic).finish();
        let port =
            |rail: &HeadRail| self.ports.iter().position(|(hca, at)| *hca == rail.hca && *at == rail.port);
        let silent = |rail: &HeadRail| port(rail).map_or(Reading::Unsupported, |port| quiet(port, &traffic));
        let usage =
            |(rail, sums): &(HeadRail, Sums)| RailUsage { quiet: silent(rail), ..rail_usage(rail, sums) };
        let rails = self.rails.values().map(usage).collect();
        let last = self.end.as_ref();
        let host = host_usage(&self.host, last);
        let sampler = SamplerCost {
            samples: self.samples,
            cpu_s: last.map(|end| end.cpu_s),
            memory_mib: last.map(|end| end.memory_mib),
        };
        Some(Usage { coverage, gpus, rails, host, sampler, phases: None, file: None, notes: self.notes })
    }

    fn coverage(&self, head: &Head, end: UnixMillis) -> Coverage {
        let mut gaps = Vec::new();
        let mut known = head.start;
        for (start, until) in self.covered.iter().copied().chain([(end, end)]) {
            if start > known.saturating_add(JITTER_MS) {
                gaps.push(Gap { start: known, end: start, why: "no sample".to_owned() });
            }
            known = known.max(until);
        }
        let seconds = |from: UnixMillis, to: UnixMillis| {
            std::time::Duration::from_millis(to.saturating_sub(from)).as_secs_f64()
        };
        gaps.sort_by_key(|gap| std::cmp::Reverse(gap.end - gap.start));
        let more_gaps = gaps.len().saturating_sub(MOST_GAPS);
        gaps.truncate(MOST_GAPS);
        gaps.sort_by_key(|gap| gap.start);
        let [sampled_s, suspended_s, yielded_s] = self.seconds;
        let known = sampled_s + suspended_s + yielded_s;
        Coverage {
            start: head.start,
            end,
            interval_s: head.interval_s,
            sampled_s,
            suspended_s,
            yielded_s,
            missing_s: (seconds(head.start, end) - known).max(0.0),
            gaps,
            more_gaps,
        }
    }
}

/// Whether two entries are the same GPU: by UUID, or by index if NVML had not reported one yet.
fn same(one: &HeadGpu, other: &HeadGpu) -> bool {
    if one.uuid.is_empty() || other.uuid.is_empty() {
        one.index == other.index && one.instance == other.instance
    } else {
        one.uuid == other.uuid
    }
}

fn spread(sum: Sum) -> Option<Spread> {
    Some(Spread { mean: sum.mean()?, min: sum.min, max: sum.max, over_s: sum.seconds })
}

/// Reading of a field that was never sampled.
fn lacking<T>(lacking: &[(String, String)], field: &str) -> Reading<T> {
    match lacking.iter().find(|(name, _)| name == field) {
        Some((_, why)) if why == "unsupported" => Reading::Unsupported,
        Some((_, why)) => Reading::Failed(why.clone()),
        None => Reading::Failed("no sample has it".to_owned()),
    }
}

fn gpu_usage(one: &OneGpu, figures: &GpuFigures) -> GpuUsage {
    let OneGpu { head, sums, seconds, idle } = one;
    let without = |field: GpuField| -> Reading<f64> { lacking(&head.lacking, field.name()) };
    let over = |field: GpuField| match spread(sums.get(field)) {
        Some(spread) => Reading::Known(spread),
        None => without(field).map(|_| Spread { mean: 0.0, min: 0.0, max: 0.0, over_s: 0.0 }),
    };
    let mean = |field: GpuField| match sums.get(field).mean() {
        Some(mean) => Reading::Known(mean),
        None => without(field),
    };
    let energy = match sums.get(GpuField::Energy) {
        sum if sum.seconds > 0.0 => Reading::Known(sum.max),
        _ => without(GpuField::Energy),
    };
    let busy_clock_mhz = match (mean(GpuField::SmWork), sums.get(GpuField::Sm).mean()) {
        (Reading::Known(work), Some(sm)) if sm > 0.0 => Reading::Known(work / sm),
        (Reading::Known(_), _) => Reading::Failed("it was never busy".to_owned()),
        (other, _) => other,
    };
    let power = sums.get(GpuField::Power);
    let model = figures.of(&head.model, &head.uuid);
    let mig = head.instance.map(|instance| MigSlice {
        instance,
        sms: head.instance_sms.unwrap_or(0),
        of_sms: model.as_ref().and_then(|model| model.row).map_or(0, |row| row.sms),
    });
    GpuUsage {
        index: head.index,
        uuid: head.uuid.clone(),
        model: head.model.clone(),
        mig,
        sampled_s: *seconds,
        counters: GpuCounters::from_fn(over),
        idle: match idle.told() {
            Some(idle) => Reading::Known(idle),
            None => without(GpuField::AnyKernel).map(|_| IdleTime::default()),
        },
        busy_clock_mhz: busy_clock_mhz.clone(),
        energy_j: energy,
        energy_from_power_j: mean(GpuField::Power).map(|_| power.weighted),
        memory_total_mib: head.memory_total_mib.map_or(Reading::Unsupported, Reading::Known),
        throttled: throttled(sums, without(GpuField::PowerCap)),
        flop: flop(model.as_ref(), mig, &mean, &busy_clock_mhz),
    }
}

fn throttled(sums: &Sums, without: Reading<f64>) -> Reading<Throttled> {
    let over_s = sums.get(GpuField::PowerCap).seconds;
    if over_s <= 0.0 {
        return without.map(|_| Throttled::default());
    }
    let seconds = |field: GpuField| sums.get(field).weighted / 100.0;
    Reading::Known(Throttled {
        over_s,
        power_cap_s: seconds(GpuField::PowerCap),
        hw_slowdown_s: seconds(GpuField::HwSlowdown),
        sw_thermal_s: seconds(GpuField::SwThermal),
        hw_thermal_s: seconds(GpuField::HwThermal),
        power_brake_s: seconds(GpuField::PowerBrake),
    })
}

fn flop(
    model: Option<&Model>,
    mig: Option<MigSlice>,
    mean: &dyn Fn(GpuField) -> Reading<f64>,
    busy_clock_mhz: &Reading<f64>,
) -> HardwareFlop {
    let (band, from) = model
        .and_then(|model| model.calibration)
        .map_or((UNCALIBRATED_BAND, "none"), |(_, band, from)| (band, from));
    let factor = model.map_or(1.0, Model::clock_factor);
    let calibration = Calibration { factor, from: from.to_owned(), band };
    let Some(model) = model else {
        let why = || Reading::Failed("the peak of this model is not known: [stats.models]".to_owned());
        return HardwareFlop {
            tensor_fraction: why(),
            uncalibrated_fraction: why(),
            calibration,
            peak: None,
            tensor_tflops: BTreeMap::new(),
            fp32_tflops: why(),
            fp64_tflops: why(),
        };
    };
    // A slice of unknown size has no peak in TFLOP/s; its activity is still a fraction of that peak.
    let slice = match mig {
        None => Some(1.0),
        Some(mig) if mig.sms > 0 && mig.of_sms > 0 => Some(f64::from(mig.sms) / f64::from(mig.of_sms)),
        Some(_) => None,
    };
    let raw = mean(GpuField::TensorWork).map(|work| model.tensor_fraction(work, 0.0));
    let work = mean(GpuField::TensorWork).zip(mean(GpuField::TensorWorkSlowed));
    let fraction = work.clone().map(|(work, slowed)| model.tensor_fraction(work, slowed));
    // The clock is the same for all pipes.
    let fp32_work = mean(GpuField::Fp32Work).zip(work).map(|(fp32, (work, slowed))| {
        let share = if work > 0.0 { slowed / work } else { 0.0 };
        model.done(fp32, fp32 * share)
    });
    let mut tensor_tflops = BTreeMap::new();
    if let (Reading::Known(fraction), Some(slice)) = (&fraction, slice) {
        let bf16 = fraction * model.bf16 * slice;
        let (tf32, fp8) = model.row.map_or((0.0, 0.0), |row| (row.tf32, row.fp8));
        for (name, rate) in [("bf16", 1.0), ("fp16", 1.0), ("tf32", tf32), ("fp8", fp8)] {
            if rate > 0.0 {
                tensor_tflops.insert(name.to_owned(), bf16 * rate);
            }
        }
    }
    // Percent MHz times the number of SMs times operations per clock.
    let vector = |work: Reading<f64>, per_clock: f64| match (work, slice, model.row) {
        (Reading::Known(work), Some(slice), Some(row)) => {
            Reading::Known(work / 100.0 * 1e6 * per_clock * f64::from(row.sms) * slice / 1e12)
        }
        (Reading::Known(_), _, _) => Reading::Failed("what an SM can do is not known".to_owned()),
        (other, _, _) => other,
    };
    let fp64_work = match (mean(GpuField::Fp64), busy_clock_mhz) {
        (Reading::Known(percent), Reading::Known(clock)) => Reading::Known(percent * clock),
        (Reading::Known(0.0), _) => Reading::Known(0.0),
        (Reading::Known(_), other) => other.clone(),
        (other, _) => other,
    };
    let of_row = |with: fn(&super::peaks::Peak) -> f64| model.row.map_or(0.0, with);
    HardwareFlop {
        tensor_fraction: fraction,
        uncalibrated_fraction: raw,
        calibration,
        peak: slice.map(|slice| PeakUsed {
            model: model.id.clone(),
            bf16_tflops: model.bf16 * slice,
            clock_mhz: model.clock_mhz,
            memory_gbytes_s: match (model.memory_gbytes_s, mig) {
                (Some(rate), None) => Reading::Known(rate),
                // Memory is not divided in proportion to SMs.
                (Some(_), Some(_)) | (None, _) => Reading::Unsupported,
            },
            source: model.source.clone(),
        }),
        tensor_tflops,
        fp32_tflops: vector(fp32_work, of_row(|row| row.fp32_per_clock)),
        fp64_tflops: vector(fp64_work, of_row(|row| row.fp64_per_clock)),
    }
}

fn rail_usage(rail: &HeadRail, sums: &Sums) -> RailUsage {
    let over = |field: RailField| spread(sums.get(field)).map_or(Reading::Unsupported, Reading::Known);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
    let total = |field: RailField| match sums.get(field) {
        sum if sum.seconds > 0.0 => Reading::Known(sum.max.round() as u64),
        _ => Reading::Unsupported,
    };
    RailUsage {
        hca: rail.hca.clone(),
        port: rail.port,
        rail: rail.rail,
        tx_bytes_s: over(RailField::Tx),
        rx_bytes_s: over(RailField::Rx),
        errors: total(RailField::Errors),
        retransmits: total(RailField::Retransmits),
        congestion_marks: total(RailField::Congestion),
        xmit_wait_s: over(RailField::XmitWait),
        quiet: Reading::Unsupported,
    }
}

fn host_usage(sums: &Sums, end: Option<&End>) -> HostUsage {
    let over = |field: HostField| spread(sums.get(field)).map_or(Reading::Unsupported, Reading::Known);
    fn last<T>(value: Option<Option<T>>) -> Reading<T> {
        match value {
            Some(Some(value)) => Reading::Known(value),
            Some(None) => Reading::Unsupported,
            None => Reading::Failed("the sampler ended before it could report".to_owned()),
        }
    }
    HostUsage {
        cpu_cores: over(HostField::Cpu),
        cpus_allowed: last(end.map(|end| end.cpus_allowed)),
        memory_mib: over(HostField::Memory),
        memory_peak_mib: last(end.map(|end| end.memory_peak_mib)),
        oom_kills: last(end.map(|end| end.oom_kills)),
        cpu_pressure_percent: over(HostField::CpuPressure),
        memory_pressure_percent: over(HostField::MemoryPressure),
        io_pressure_percent: over(HostField::IoPressure),
        io_read_bytes_s: over(HostField::IoRead),
        io_write_bytes_s: over(HostField::IoWrite),
    }
}

#[cfg(test)]
mod tests;
