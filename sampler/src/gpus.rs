//! The child that reads the GPUs.
//!
//! A call into a sick driver may hang for ever, also against SIGKILL, and must then hang nobody who has something else
//! to do: NVML lives in a child, whose word every few seconds is what makes a sample. Where it does not come for
//! [`Gpus::patience`] the child is killed and, a few times, started anew.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use railgate_child::{Said, Stream};
use railgate_model::{GpuId, GpuSamples, Reading, Watched, WatchedGpu, XidEvent};
use railgate_probe::GpuWatch;

/// After the first one; each costs a child that may be stuck for good.
const MOST_STARTS: u32 = 4;

#[derive(Debug)]
pub(crate) struct Gpus {
    job: u32,
    /// `None`: the job has no GPU.
    watch: Option<GpuWatch>,
    interval: Duration,
    child: Option<Stream>,
    starts: u32,
    start_at: Instant,
    /// Its first word, after NVML has begun.
    greeted: bool,
    /// Its latest word about the GPUs: Xids come also while a reading hangs.
    heard: Instant,
    /// It waits for Xids, where anybody wants them; from a word that says why not on, it does not.
    waits: Waits,
    xids: Vec<XidEvent>,
    /// CPU seconds of this child, and of those before it.
    cpu_s: (f64, f64),
    memory_mib: f64,
    /// Joules by GPU that earlier children have counted, and all so far.
    energy: Vec<(f64, f64)>,
}

/// Whether the child hears of Xids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// It does not, or there is none.
    No,
    /// It is still on its way.
    Soon,
    /// It does.
    Yes,
}

/// What came of listening.
#[derive(Debug)]
pub(crate) enum Heard {
    /// Which GPUs they are.
    Gpus(Vec<WatchedGpu>),
    /// Each GPU's energy counts on from earlier children's. The first of a child tells what its GPUs lack.
    Sample { sample: GpuSamples, first: bool },
    /// The child is gone. Early: before its first sample.
    Failed { why: String, early: bool },
}

impl Gpus {
    /// `energy`: joules that a sampler before this one has counted.
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

    /// The job's.
    pub(crate) fn ids(&self) -> &[GpuId] {
        self.watch.as_ref().map_or(&[], |watch| &watch.gpus)
    }

    /// Somebody reads them.
    pub(crate) fn are_read(&self) -> bool {
        self.child.is_some()
    }

    /// Readable when the child has said something.
    pub(crate) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.child.as_ref().and_then(Stream::as_fd)
    }

    /// A child, if there is none and it is time for one.
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

    /// Nobody reads them until the next start, which may be at once.
    pub(crate) fn stop(&mut self) {
        if self.child.is_some() {
            self.starts = self.starts.saturating_sub(1);
        }
        self.gone();
        self.start_at = Instant::now();
    }

    /// The next sample is the child's last.
    pub(crate) fn finish(&mut self) {
        if let Some(child) = &mut self.child {
            child.finish();
        }
    }

    /// The next thing that the child has said, if there is any.
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
                        tracing::info!(job = self.job, "sampler: no Xids beside the readings: {why}");
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

    /// Whether the child hears of Xids, and those that it has heard of since the last time.
    pub(crate) fn xids(&mut self) -> (Waits, Vec<XidEvent>) {
        (self.waits, std::mem::take(&mut self.xids))
    }

    /// CPU seconds of all children so far, and the most MiB that one held.
    pub(crate) fn cost(&self) -> (f64, f64) {
        (self.cpu_s.0 + self.cpu_s.1, self.memory_mib)
    }

    fn sampled(&mut self, mut sample: GpuSamples) -> Heard {
        self.heard = Instant::now();
        self.cpu_s.0 = sample.cpu_s;
        self.memory_mib = self.memory_mib.max(sample.memory_mib);
        self.energy.resize(sample.gpus.len(), (0.0, 0.0));
        for (gpu, (earlier, all)) in sample.gpus.iter_mut().zip(&mut self.energy) {
            if let Reading::Known(energy) = &mut gpu.energy {
                *energy += *earlier;
                *all = *energy;
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

    /// A cold driver needs its time before the first word.
    fn patience(&self) -> Duration {
        if self.greeted { (self.interval * 4).max(Duration::from_secs(20)) } else { Duration::from_secs(90) }
    }
}
