//! The child that reads the GPUs.
//!
//! A call into a faulty driver may hang forever, even against SIGKILL, and must not block anything else. NVML
//! therefore runs in a child, which reports every few seconds; each report becomes a sample. If no report
//! arrives for [`Gpus::patience`], the child is killed and, a few times, restarted.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use railgate_child::{Said, Stream};
use railgate_model::{GpuField, GpuSamples, Reading, Watched, WatchedGpu, XidEvent};
use railgate_probe::GpuWatch;

/// Maximum number of restarts; each may leave a process that hangs permanently.
const MOST_STARTS: u32 = 4;

#[derive(Debug)]
pub(crate) struct Gpus {
    job: u32,
    /// `None` if the job has no GPU.
    watch: Option<GpuWatch>,
    interval: Duration,
    child: Option<Stream>,
    starts: u32,
    start_at: Instant,
    /// The child has reported since NVML was initialized.
    greeted: bool,
    /// Time of its latest report about the GPUs; Xids also arrive while a reading hangs.
    heard: Instant,
    /// Whether it waits for Xids, if that was requested; `No` after an error.
    waits: Waits,
    xids: Vec<XidEvent>,
    /// CPU seconds of this child, and of earlier ones.
    cpu_s: (f64, f64),
    memory_mib: f64,
    /// Energy by GPU, joules: counted by earlier children, and the total so far.
    energy: Vec<(f64, f64)>,
}

/// Whether the child receives Xids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// No, or there is no child.
    No,
    /// Not yet.
    Soon,
    /// Yes.
    Yes,
}

/// A report of the child.
#[derive(Debug)]
pub(crate) enum Heard {
    /// The GPUs that it reads.
    Gpus(Vec<WatchedGpu>),
    /// A sample; the energy of each GPU continues that of earlier children. `first`: the first sample of a
    /// child shows which fields its GPUs lack.
    Sample { sample: GpuSamples, first: bool },
    /// The child ended. `early`: before its first sample.
    Failed { why: String, early: bool },
}

impl Gpus {
    /// `energy`: joules counted by an earlier sampler.
    pub(crate) fn new(job: u32, watch: Option<GpuWatch>, interval: Duration, energy: Vec<f64>) -> Self {
        let now = Instant::now();
        Gpus {
            job,
            watch,
            interval,
            child: None,
            starts: 0,
            start_at: now,
            greeted: false,
            heard: now,
            waits: Waits::No,
            xids: Vec::new(),
            cpu_s: (0.0, 0.0),
            memory_mib: 0.0,
            energy: energy.into_iter().map(|energy| (energy, energy)).collect(),
        }
    }

    /// Whether a child reads the GPUs.
    pub(crate) fn are_read(&self) -> bool {
        self.child.is_some()
    }

    /// Descriptor that becomes readable when the child reports.
    pub(crate) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.child.as_ref().and_then(Stream::as_fd)
    }

    /// Starts a child if there is none and it is time for one.
    pub(crate) fn start(&mut self) -> Option<Heard> {
        let watch = self.watch.as_ref()?;
        if self.child.is_some() || self.starts > MOST_STARTS || Instant::now() < self.start_at {
            return None;
        }
        self.starts += 1;
        self.greeted = false;
        for (earlier, all) in &mut self.energy {
            *earlier = *all;
        }
        match watch.start() {
            Ok(child) => {
                self.child = Some(child);
                self.heard = Instant::now();
                self.waits = if watch.xids { Waits::Soon } else { Waits::No };
                None
            }
            Err(why) => Some(self.failed(&why)),
        }
    }

    /// Stops the child until the next start, which may follow at once.
    pub(crate) fn stop(&mut self) {
        if self.child.is_some() {
            self.starts = self.starts.saturating_sub(1);
        }
        self.gone();
        self.start_at = Instant::now();
    }

    /// Requests a last sample from the child.
    pub(crate) fn finish(&mut self) {
        if let Some(child) = &mut self.child {
            child.finish();
        }
    }

    /// Returns the next report of the child, if there is one.
    pub(crate) fn listen(&mut self) -> Option<Heard> {
        loop {
            match self.child.as_mut()?.listen() {
                Said::Nothing => {
                    let silent = self.heard.elapsed();
                    if silent <= self.patience() {
                        return None;
                    }
                    let waited = humantime::format_duration(Duration::from_secs(silent.as_secs()));
                    return Some(self.failed(&format!("NVML did not answer for {waited}")));
                }
                Said::This(what) => match serde_json::from_slice(&what) {
                    Ok(Watched::Gpus(gpus)) => {
                        self.heard = Instant::now();
                        return Some(Heard::Gpus(gpus));
                    }
                    Ok(Watched::Sample(sample)) => return Some(self.sampled(sample)),
                    Ok(Watched::Xids(events)) => {
                        self.waits = Waits::Yes;
                        self.xids.extend(events);
                    }
                    Ok(Watched::NoXids(why)) => {
                        self.waits = Waits::No;
                        tracing::info!(job = self.job, "sampler: the GPU reader receives no Xids: {why}");
                    }
                    Err(why) => {
                        return Some(
                            self.failed(&format!("the GPU reader's answer cannot be parsed: {why}")),
                        );
                    }
                },
                Said::Ended(why) => return Some(self.failed(&why)),
            }
        }
    }

    /// Whether the child receives Xids, and those received since the last call.
    pub(crate) fn xids(&mut self) -> (Waits, Vec<XidEvent>) {
        (self.waits, std::mem::take(&mut self.xids))
    }

    /// CPU seconds of all children so far, and the peak memory of one, MiB.
    pub(crate) fn cost(&self) -> (f64, f64) {
        (self.cpu_s.0 + self.cpu_s.1, self.memory_mib)
    }

    fn sampled(&mut self, mut sample: GpuSamples) -> Heard {
        self.heard = Instant::now();
        self.cpu_s.0 = sample.cpu_s;
        self.memory_mib = self.memory_mib.max(sample.memory_mib);
        self.energy.resize(sample.gpus.len(), (0.0, 0.0));
        for (gpu, (earlier, all)) in sample.gpus.iter_mut().zip(&mut self.energy) {
            if let Reading::Known(energy) = *gpu.get(GpuField::Energy) {
                *all = energy + *earlier;
                gpu.set(GpuField::Energy, Reading::Known(*all));
            }
        }
        let first = !std::mem::replace(&mut self.greeted, true);
        Heard::Sample { sample, first }
    }

    fn failed(&mut self, why: &str) -> Heard {
        self.gone();
        self.start_at = Instant::now() + Duration::from_secs(60) * 2_u32.saturating_pow(self.starts.min(8));
        let why = if why.is_empty() { "the GPU reader ended" } else { why };
        Heard::Failed { why: why.to_owned(), early: !self.greeted }
    }

    fn gone(&mut self) {
        self.child = None;
        self.waits = Waits::No;
        self.cpu_s.1 += std::mem::take(&mut self.cpu_s.0);
    }

    /// A driver that is not initialized needs more time for the first report.
    fn patience(&self) -> Duration {
        if self.greeted { (self.interval * 4).max(Duration::from_secs(20)) } else { Duration::from_secs(90) }
    }
}
