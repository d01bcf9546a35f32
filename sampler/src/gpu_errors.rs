//! Errors (Xids) of the job's GPUs, read while its ranks wait.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use railgate_guard::SampledError;
use railgate_model::{KernelMark, PartName, PciAddress, Plan, UnixMillis, XidEvent};
use railgate_node_report::GpuError;
use railgate_probe::{Request, SourceConfig, live};
use railgate_rundir::Run;

use crate::counters::sampled;
use crate::run::Mine;

/// Interval of the readings.
const EVERY: Duration = Duration::from_secs(30);
const DEADLINE: Duration = Duration::from_secs(5);

/// What the driver has reported of the job's GPUs since the run began.
#[derive(Debug)]
pub(crate) struct GpuErrors {
    /// PCI addresses, in the order of the samples; `None`: not known, or a MIG instance.
    gpus: Vec<Option<PciAddress>>,
    /// The kernel log before the run.
    mark: Option<KernelMark>,
    start: UnixMillis,
    asked: Option<JoinHandle<Result<Vec<XidEvent>, String>>>,
    next: Option<Instant>,
    known: Vec<SampledError>,
    told: bool,
}

impl GpuErrors {
    pub(crate) fn new(mine: &Mine) -> Self {
        let run: Option<Run> = mine.dir.read_json("run.json").ok();
        let mark = run.and_then(|run| Some(KernelMark { seq: run.kernel_seq?, boot_id: run.boot_id }));
        GpuErrors {
            gpus: sampled(mine).gpus.iter().map(|gpu| gpu.pci).collect(),
            mark,
            start: mine.report.start,
            asked: None,
            next: None,
            known: Vec::new(),
            told: false,
        }
    }

    /// The errors, as of the last reading.
    pub(crate) fn known(&self) -> &[SampledError] {
        &self.known
    }

    /// Takes the result of a reading of the kernel log, and starts the next one if it is due. `from_nvml`: Xids from NVML, on a node
    /// whose kernel log cannot be read. `numbers`: NVML indices, in the order of the samples.
    pub(crate) fn step(&mut self, mine: &Mine, from_nvml: Option<&[XidEvent]>, numbers: &[u32]) {
        if self.gpus.iter().all(Option::is_none) {
            return;
        }
        if let Some(events) = from_nvml {
            self.known = self.of_job(events, numbers);
            return;
        }
        if self.asked.as_ref().is_some_and(JoinHandle::is_finished) {
            match self.asked.take().map(JoinHandle::join) {
                Some(Ok(Ok(events))) => self.known = self.of_job(&events, numbers),
                Some(Ok(Err(why))) if !self.told => {
                    self.told = true;
                    tracing::info!(
                        job = mine.job,
                        "sampler: errors of the GPUs are not known: kernel log: {why}"
                    );
                }
                _ => {}
            }
        }
        let now = Instant::now();
        if self.asked.is_some() || self.next.is_some_and(|next| now < next) {
            return;
        }
        self.next = Some(now + EVERY);
        let (source, node) = (mine.config.source.clone(), mine.report.node.clone());
        let mark = self.mark.clone();
        let read = move || kernel_xids(&source, &node, mark);
        self.asked = std::thread::Builder::new().stack_size(256 << 10).spawn(read).ok();
    }

    /// Those of the job's GPUs, since the run began.
    fn of_job(&self, events: &[XidEvent], numbers: &[u32]) -> Vec<SampledError> {
        let place_of =
            |pci: PciAddress| self.gpus.iter().position(|gpu| gpu.map(device) == Some(device(pci)));
        let error = |event: &XidEvent| {
            let place = place_of(event.gpu?)?;
            let number = numbers.get(place).copied()?;
            let error = GpuError::new(number, event.code, &event.text, event.time)?;
            Some(SampledError { place, pid: event.pid, error })
        };
        events.iter().filter(|event| event.time >= self.start).filter_map(error).collect()
    }
}

/// Records of the driver have no function number.
fn device(pci: PciAddress) -> (u32, u8, u8) {
    (pci.domain, pci.bus, pci.device)
}

fn kernel_xids(source: &SourceConfig, node: &str, mark: Option<KernelMark>) -> Result<Vec<XidEvent>, String> {
    let plan = Plan { parts: vec![PartName::KernelLog], extras: Vec::new() };
    let request = Request { plan, kernel_since: mark, ..Request::everything(node, DEADLINE) };
    let log = live(source, &request).kernel_log;
    log.data().map(|log| log.xids()).ok_or_else(|| log.missing().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: UnixMillis = 1_700_000_000_000;

    #[test]
    fn only_errors_of_the_jobs_gpus_since_its_start_count() {
        let place = tempfile::tempdir().unwrap();
        let mine = Mine::of_test(place.path());
        let mut errors = GpuErrors::new(&mine);
        let pci = |text: &str| text.parse::<PciAddress>().unwrap();
        errors.gpus = vec![Some(pci("0000:1b:00.0")), None, Some(pci("0000:61:00.0"))];
        let event = |gpu: &str, code, time| XidEvent {
            code,
            gpu: Some(pci(gpu)),
            pid: Some(40),
            time,
            seq: 1,
            text: String::new(),
        };
        let events = [
            event("0000:61:00.0", 79, START + 5_000),
            event("0000:61:00.0", 63, START + 5_000),
            event("0000:61:00.0", 79, START - 5_000),
            event("0000:9b:00.0", 79, START + 5_000),
            XidEvent { gpu: None, ..event("0000:61:00.0", 79, START + 5_000) },
        ];
        errors.step(&mine, Some(&events), &[0, 1, 6]);
        let [one] = errors.known() else { panic!("{:?}", errors.known()) };
        assert_eq!((one.place, one.pid, one.error.gpu, one.error.code), (2, Some(40), 6, 79));
        // The number of a GPU that NVML has not listed is not known.
        errors.step(&mine, Some(&events), &[]);
        assert_eq!(errors.known(), []);
    }
}
