//! Samples of GPUs, rails and the job's cgroup. Without readings of the GPUs, samples have only the rest.

use std::io::ErrorKind;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use railgate_metrics::JobFile;
use railgate_model::{
    Allocation, GpuId, GpuInventory, GpuSamples, JobGpus, SampledGpu, SampledGpus, UnixMillis, XidEvent,
};
use railgate_node_report::Hang;
use railgate_node_report::usage::format::{End, Head, HeadGpu, HeadRail};
use railgate_node_report::usage::{GpuField, Sample, State, Values};
use railgate_probe::{GpuWatch, JobGroup, job_is_stopped, own_memory_mib};
use railgate_runner::SAMPLER_GPUS;

use crate::clock::Clock;
use crate::fields::{all_lacking, head_gpu, lacking, values};
use crate::file::{Files, earlier};
use crate::gpus::{Gpus, Heard, Waits};
use crate::host::Host;
use crate::rails::Rails;
use crate::run::{Mine, PROC};
use crate::work::Work;

const CGROUPS: &str = "/sys/fs/cgroup";
/// Interval of the search for the job's cgroup, which does not exist before its first step.
const SEARCH: Duration = Duration::from_secs(30);
/// Maximum wait for the child's final reading.
const LAST_WORD: Duration = Duration::from_millis(700);
/// Below this activity a GPU counts as idle, percent.
const IDLE: f64 = 0.5;

#[derive(Debug)]
pub(crate) struct Counters {
    clock: Clock,
    head: Head,
    sampled: Vec<SampledGpu>,
    /// NVML has reported names and models; later errors do not remove them.
    named: bool,
    interval: Duration,
    files: Files,
    gpus: Gpus,
    last: f64,
    latest: Option<GpuSamples>,
    /// The last sample, until the guard takes it.
    seen: Option<Sample>,
    rails: Rails,
    group: Option<JobGroup>,
    search_at: Instant,
    host: Host,
    told: Vec<String>,
    before: Option<Before>,
    metrics: Option<JobFile>,
}

/// Previous state, to detect events.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Before {
    busy: bool,
    held_down: bool,
    state: State,
}

impl Counters {
    /// `xids`: the child that reads the GPUs also waits for Xids.
    pub(crate) fn new(mine: &Mine, clock: Clock, xids: bool) -> Self {
        let boot_s = clock.boot_s;
        let stats = &mine.config.stats;
        let source = &mine.config.source;
        let SampledGpus { gpus, problems } = sampled(mine);
        let interval = stats.sample;
        let watch = (!gpus.is_empty()).then(|| GpuWatch {
            library: source.nvml_library.clone(),
            gpus: gpus.iter().map(|gpu| gpu.id.clone()).collect(),
            interval_s: interval.as_secs_f64(),
            xids,
        });
        let rails: Vec<HeadRail> =
            mine.report.rail_map.iter().flat_map(|map| &map.rails).map(head_rail).collect();
        let dir = mine.dir.path();
        let mut head = Head::new(&mine.report.node, mine.job, mine.report.attempt);
        (head.start, head.boot_s) = ((clock.calendar)(), boot_s());
        head.boot_id.clone_from(&mine.report.boot_id);
        head.interval_s = interval.as_secs_f64();
        head.rails.clone_from(&rails);
        // A sampler that replaces a killed one continues its clock and counters.
        let before = earlier(dir).filter(|(before, _)| before.boot_id == head.boot_id);
        let (before, totals) = before.unzip();
        let totals = totals.unwrap_or_default();
        let mut named = false;
        if let Some(before) = before {
            (head.start, head.boot_s) = (before.start, before.boot_s);
            if watch.as_ref().is_some_and(|watch| watch.gpus.len() == before.gpus.len()) {
                named = before.gpus.iter().any(|gpu| !gpu.model.is_empty());
                head.gpus = before.gpus;
            }
        }
        let mut counters = Counters {
            clock,
            head,
            sampled: gpus,
            named,
            interval,
            files: Files::new(dir),
            gpus: Gpus::new(mine.job, watch, interval, totals.energy),
            last: boot_s(),
            latest: None,
            seen: None,
            rails: Rails::new(&source.sysfs, rails, &totals.rails),
            group: None,
            search_at: Instant::now(),
            host: Host::default(),
            told: Vec::new(),
            before: None,
            metrics: None,
        };
        match mine.metrics() {
            Ok(metrics) => counters.metrics = metrics,
            Err(why) => counters.note(format!("no metrics: {why}")),
        }
        if named {
            counters.files.head(counters.head.clone());
        } else {
            counters.without("nvml: no answer yet");
        }
        for problem in problems {
            counters.note(problem);
        }
        counters
    }

    /// Time until the next action without an event.
    pub(crate) fn due(&self) -> Duration {
        // The child that reads them sets the pace.
        let wait = if self.gpus.are_read() { self.interval.mul_f64(1.5) } else { self.interval };
        let due = Duration::try_from_secs_f64((self.clock.boot_s)() - self.last).unwrap_or_default();
        wait.saturating_sub(due)
    }

    /// Descriptor that becomes readable when the child reports.
    pub(crate) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.gpus.as_fd()
    }

    /// Processes everything that is due. `yielded`: the user asked the sampler not to access the GPUs.
    pub(crate) fn step(&mut self, job: u32, yielded: bool) {
        if yielded {
            self.gpus.stop();
            self.latest = None;
        } else if let Some(heard) = self.gpus.start() {
            self.hear(heard);
        }
        self.listen();
        if self.latest.is_some() || self.due() == Duration::ZERO {
            self.sample(job, yielded);
        }
    }

    /// Adds the self-reported figures of the job to its metrics, if metrics are enabled.
    pub(crate) fn told(&mut self, mine: &Mine, work: &mut Work) {
        if let Some(metrics) = &mut self.metrics
            && let Some(said) = work.ask_if_due(mine, &self.head)
        {
            metrics.told(said);
        }
    }

    /// Adds the hang that has not ended to the job's metrics, if metrics are enabled.
    pub(crate) fn hangs(&mut self, hang: Option<&Hang>) {
        if let Some(metrics) = &mut self.metrics {
            metrics.hangs(hang);
        }
    }

    /// Writes the last sample and the final record.
    pub(crate) fn end(&mut self, job: u32, yielded: bool) {
        self.gpus.finish();
        let until = Instant::now() + LAST_WORD;
        while self.gpus.are_read() && self.latest.is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
            self.listen();
        }
        self.sample(job, yielded);
        let own = getrusage(UsageWho::RUSAGE_SELF).ok();
        let own_cpu =
            own.as_ref().map_or(0.0, |own| [own.user_time(), own.system_time()].iter().map(seconds).sum());
        let own_memory = own_memory_mib().unwrap_or(0.0);
        let (gpus_cpu, gpus_memory) = self.gpus.cost();
        let group = self.group.as_ref().map(JobGroup::read);
        let group = group.as_ref();
        self.files.end(End {
            at: self.at((self.clock.boot_s)()),
            cpu_s: own_cpu + gpus_cpu,
            memory_mib: own_memory + gpus_memory,
            oom_kills: group.and_then(|group| group.oom_kills.known().copied()),
            memory_peak_mib: group.and_then(|group| group.memory_peak_mib.known().copied()),
            cpus_allowed: group.and_then(|group| group.cpus.known().copied().map(f64::from)),
        });
        self.gpus.stop();
    }

    /// See [`Gpus::xids`].
    pub(crate) fn xids(&mut self) -> (Waits, Vec<XidEvent>) {
        self.gpus.xids()
    }

    /// Reads reports of the child up to the next sample.
    fn listen(&mut self) {
        while self.latest.is_none()
            && let Some(heard) = self.gpus.listen()
        {
            self.hear(heard);
        }
    }

    fn hear(&mut self, heard: Heard) {
        match heard {
            Heard::Gpus(gpus) => {
                let mut gpus: Vec<HeadGpu> = gpus.iter().map(head_gpu).collect();
                if self.named {
                    for (gpu, before) in gpus.iter_mut().zip(&self.head.gpus) {
                        gpu.lacking.clone_from(&before.lacking);
                    }
                }
                (self.head.gpus, self.named) = (gpus, true);
            }
            Heard::Sample { sample, first } => {
                if first {
                    self.greet(&sample);
                }
                self.latest = Some(sample);
            }
            Heard::Failed { why, early } => {
                if early {
                    self.without(&why);
                }
                self.note(format!("GPUs are not read: {why}"));
            }
        }
    }

    /// Writes the head once the first sample shows which fields the GPUs lack.
    fn greet(&mut self, sample: &GpuSamples) {
        for (head, gpu) in self.head.gpus.iter_mut().zip(&sample.gpus) {
            head.lacking = lacking(gpu);
        }
        self.files.head(self.head.clone());
    }

    /// Writes a head for the job's GPUs while NVML does not respond.
    fn without(&mut self, why: &str) {
        let all = all_lacking(why);
        if self.named {
            for gpu in self.head.gpus.iter_mut().filter(|gpu| gpu.lacking.is_empty()) {
                gpu.lacking.clone_from(&all);
            }
        } else {
            let gpu = |gpu: &SampledGpu| {
                let uuid = match &gpu.id {
                    GpuId::Index(_) => String::new(),
                    GpuId::Uuid(uuid) => uuid.clone(),
                };
                let index = gpu.index.or(gpu.id.index()).unwrap_or_default();
                HeadGpu { index, uuid, lacking: all.clone(), ..HeadGpu::default() }
            };
            self.head.gpus = self.sampled.iter().map(gpu).collect();
        }
        self.files.head(self.head.clone());
    }

    fn at(&self, boot: f64) -> UnixMillis {
        let passed = Duration::try_from_secs_f64(boot - self.head.boot_s).unwrap_or_default();
        self.head.start.saturating_add(u64::try_from(passed.as_millis()).unwrap_or(u64::MAX))
    }

    fn note(&mut self, what: String) {
        if self.told.len() < 20 && !self.told.contains(&what) {
            tracing::info!(job = self.head.job, "sampler: {what}");
            self.told.push(what.clone());
            self.files.note(self.at((self.clock.boot_s)()), what);
        }
    }

    fn sample(&mut self, job: u32, yielded: bool) {
        let end = (self.clock.boot_s)();
        let seconds = end - self.last;
        if seconds <= 0.0 {
            return;
        }
        let frame = self.latest.take();
        if self.group.is_none() && Instant::now() >= self.search_at {
            self.group = JobGroup::find(PROC.as_ref(), Path::new(CGROUPS), job);
            self.search_at = Instant::now() + SEARCH;
        }
        let group = self.group.as_ref().map(JobGroup::read);
        let host = self.host.values(group.as_ref(), seconds);
        let (rails, problems) = self.rails.values(end, seconds);
        let gpus: Vec<Values<GpuField>> = match &frame {
            Some(frame) if frame.gpus.len() == self.head.gpus.len() => {
                frame.gpus.iter().map(values).collect()
            }
            _ => vec![Values::default(); self.head.gpus.len()],
        };
        for problem in problems {
            self.note(problem);
        }
        for (head, gpu) in self.head.gpus.clone().iter().zip(frame.iter().flat_map(|frame| &frame.gpus)) {
            for (name, why) in lacking(gpu) {
                // Other fields were missing from the beginning.
                if !head.lacking.iter().any(|(known, _)| *known == name) && name == "power_w" {
                    self.note(format!("GPU {}: {why}", head.index));
                }
            }
        }
        let frozen = group.as_ref().and_then(|group| group.frozen.known().copied()) == Some(true);
        let state = if frozen || (quiet(&gpus, &host) && job_is_stopped(PROC.as_ref(), job)) {
            State::Suspended
        } else if yielded {
            State::Yielded
        } else {
            State::Running
        };
        let now = Before { busy: busy(&gpus), held_down: held_down(&gpus), state };
        let event = self.before.replace(now).is_none_or(|before| before != now);
        #[expect(clippy::cast_possible_truncation, reason = "few digits")]
        let seconds = seconds as f32;
        let sample = Sample { start: self.at(self.last), seconds, folded: 1, state, gpus, rails, host };
        self.files.sample(&sample, event);
        self.last = end;
        if let Some(metrics) = &mut self.metrics
            && let Err(why) = metrics.add(&self.head, &sample)
        {
            self.note(format!("metrics: {why}"));
        }
        self.seen = Some(sample);
    }

    /// The job's GPUs, in the order of the samples.
    pub(crate) fn gpus(&self) -> &[HeadGpu] {
        &self.head.gpus
    }

    /// The sample since the last call, if there is one.
    pub(crate) fn take_seen(&mut self) -> Option<Sample> {
        self.seen.take()
    }
}

/// The GPUs that the prolog found. A prolog of an earlier version left no file: then Slurm's numbers are taken as NVML's.
pub(crate) fn sampled(mine: &Mine) -> SampledGpus {
    let allocation = &mine.report.job.allocation;
    match mine.dir.read_json(SAMPLER_GPUS) {
        Ok(sampled) => sampled,
        Err(why) if why.kind() == ErrorKind::NotFound => match allocation {
            Allocation::Gpus(ids) => SampledGpus {
                gpus: ids
                    .iter()
                    .map(|id| SampledGpu { id: id.clone(), index: id.index(), pci: None })
                    .collect(),
                problems: Vec::new(),
            },
            other => SampledGpus::new(other, &JobGpus::None, None, &GpuInventory::default()),
        },
        Err(why) => SampledGpus {
            gpus: Vec::new(),
            problems: vec![format!("it is not known which GPUs the job holds: {SAMPLER_GPUS}: {why}")],
        },
    }
}

/// Whether GPUs and CPUs are idle: only then is it worth checking whether all processes are stopped.
fn quiet(gpus: &[Values<GpuField>], host: &Values<railgate_node_report::usage::HostField>) -> bool {
    let cores = host.mean(railgate_node_report::usage::HostField::Cpu);
    !busy(gpus) && cores.is_none_or(|cores| cores < 0.05)
}

fn busy(gpus: &[Values<GpuField>]) -> bool {
    let above = |gpu: &Values<GpuField>, field| gpu.mean(field).is_some_and(|percent| percent > IDLE);
    gpus.iter().any(|gpu| match gpu.mean(GpuField::Graphics) {
        Some(percent) => percent > IDLE,
        None => above(gpu, GpuField::AnyKernel),
    })
}

fn held_down(gpus: &[Values<GpuField>]) -> bool {
    let fields = [GpuField::HwSlowdown, GpuField::SwThermal, GpuField::HwThermal, GpuField::PowerBrake];
    gpus.iter().any(|gpu| fields.iter().any(|field| gpu.mean(*field).is_some_and(|percent| percent > 0.0)))
}

#[expect(clippy::cast_precision_loss, reason = "a process lives no 285 years")]
fn seconds(time: &nix::sys::time::TimeVal) -> f64 {
    use nix::sys::time::TimeValLike as _;
    time.num_microseconds() as f64 / 1e6
}

fn head_rail(rail: &railgate_model::Rail) -> HeadRail {
    HeadRail { hca: rail.hca.clone(), port: rail.port, rail: Some(rail.number) }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use railgate_node_report::usage::{Usage, summarize};
    use railgate_runner::SAMPLER_FILES;

    use super::*;

    thread_local! {
        static CALENDAR: Cell<u64> = const { Cell::new(1_700_000_000_000) };
        static BOOT_S: Cell<f64> = const { Cell::new(1000.0) };
    }

    const CLOCK: Clock = Clock { calendar: || CALENDAR.get(), boot_s: || BOOT_S.get() };

    fn pass(counters: &mut Counters, samples: u32) {
        for _ in 0..samples {
            BOOT_S.set(BOOT_S.get() + 5.0);
            counters.step(7, false);
        }
    }

    fn usage(mine: &Mine, end: u64) -> Usage {
        let streams: Vec<_> = SAMPLER_FILES.iter().filter_map(|name| mine.dir.read(name).ok()).collect();
        let slices: Vec<&[u8]> = streams.iter().map(Vec::as_slice).collect();
        summarize(&slices, end, &Default::default()).unwrap()
    }

    /// The clock is set an hour forwards and a day back, and a sampler is restarted with the wrong date.
    #[test]
    fn clock_changes_affect_no_duration_and_no_order() {
        let place = tempfile::tempdir().unwrap();
        let mine = Mine::of_test(place.path());
        let start = CALENDAR.get();
        let mut counters = Counters::new(&mine, CLOCK, false);
        pass(&mut counters, 30);
        CALENDAR.set(start + 3_600_000);
        pass(&mut counters, 30);
        CALENDAR.set(start - 86_400_000);
        pass(&mut counters, 30);
        drop(counters);
        BOOT_S.set(BOOT_S.get() + 60.0);
        let mut counters = Counters::new(&mine, CLOCK, false);
        CALENDAR.set(start + 1);
        pass(&mut counters, 30);
        counters.end(7, false);
        let coverage = usage(&mine, start + 660_000).coverage;
        assert_eq!((coverage.start, coverage.end), (start, start + 660_000));
        assert_eq!((coverage.sampled_s, coverage.missing_s), (600.0, 60.0), "{coverage:?}");
        let gaps: Vec<_> = coverage.gaps.iter().map(|gap| (gap.start - start, gap.end - start)).collect();
        assert_eq!(gaps, [(450_000, 510_000)]);
    }

    #[test]
    fn the_gpus_are_those_that_the_prolog_found_not_slurms_numbers() {
        let place = tempfile::tempdir().unwrap();
        let mut mine = Mine::of_test(place.path());
        let index = |index| GpuId::Index(index);
        mine.report.job.allocation = Allocation::Gpus(vec![index(5)]);
        let ids = |mine: &Mine| sampled(mine).gpus.into_iter().map(|gpu| gpu.id).collect::<Vec<_>>();
        assert_eq!(ids(&mine), [index(5)], "an earlier version's prolog left no file");
        // GPU 1 was gone before the job, so Slurm's GPU 5 is NVML's GPU 4.
        let uuid = GpuId::Uuid("GPU-5".to_owned());
        let found = SampledGpus {
            gpus: vec![SampledGpu { id: uuid.clone(), index: Some(4), pci: None }],
            problems: Vec::new(),
        };
        mine.dir.write_json(SAMPLER_GPUS, &found).unwrap();
        assert_eq!(ids(&mine), [uuid]);
        let counters = Counters::new(&mine, CLOCK, false);
        let gpu = counters.head.gpus.first().unwrap();
        assert_eq!((gpu.index, gpu.uuid.as_str()), (4, "GPU-5"));
        // Not known, or not readable: none are better than another job's.
        let place = tempfile::tempdir().unwrap();
        let mut mine = Mine::of_test(place.path());
        mine.report.job.allocation = Allocation::Gpus(vec![index(5)]);
        let why = "it is not known which GPUs the job holds: MIG is on, and Slurm counts slices";
        let unclear = SampledGpus { gpus: Vec::new(), problems: vec![why.to_owned()] };
        mine.dir.write_json(SAMPLER_GPUS, &unclear).unwrap();
        let mut counters = Counters::new(&mine, CLOCK, false);
        pass(&mut counters, 30);
        counters.end(7, false);
        let usage = usage(&mine, mine.report.start + 60_000);
        assert!(usage.gpus.is_empty() && usage.notes.iter().any(|note| note == why), "{:?}", usage.notes);
        mine.dir.write(SAMPLER_GPUS, b"{").unwrap();
        assert!(sampled(&mine).gpus.is_empty() && !sampled(&mine).problems.is_empty());
    }
}
