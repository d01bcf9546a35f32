use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use railgate_fsutil::FileLock;
use railgate_model::UnixMillis;
use railgate_node_report::usage::format::Head;
use railgate_node_report::usage::{Fold, GpuField, GpuFigures, Sample};
use railgate_node_report::{Hang, HangKind, NodeReport};

use super::place::{TextfileDir, job_file};
use super::{GpuNow, HangNow, JobLabel, JobNow, WorkNow, job_page, shown};
use crate::MetricsConfig;

/// Metrics file of a job, from the first samples of its sampler to its end.
///
/// Jobs may share a GPU. Without the label `job` both files would contain the same series, which the collector
/// refuses, so the second sampler omits the GPU. A lock per GPU, released when its holder ends, decides which
/// sampler writes it.
#[derive(Debug)]
pub struct JobFile {
    dir: TextfileDir,
    config: MetricsConfig,
    figures: GpuFigures,
    locks: PathBuf,
    locked: BTreeMap<String, FileLock>,
    job: JobNow,
    start: UnixMillis,
    /// What keeps ranks waiting, and since when.
    hang: Option<(HangKind, UnixMillis)>,
    fold: Fold,
}

impl JobFile {
    /// Creates a job's file; returns `None` if the site has no metrics. Creates `locks`, a directory of root.
    ///
    /// # Errors
    /// The collector's directory or `locks` cannot be opened.
    pub fn open(
        config: &MetricsConfig,
        figures: &GpuFigures,
        locks: &Path,
        report: &NodeReport,
    ) -> io::Result<Option<Self>> {
        let Some(path) = &config.dir else { return Ok(None) };
        let dir = TextfileDir::open(path)?;
        std::fs::create_dir_all(locks)?;
        Ok(Some(JobFile {
            dir,
            config: config.clone(),
            figures: figures.clone(),
            locks: locks.to_owned(),
            locked: BTreeMap::new(),
            job: JobNow {
                job: report.job.id,
                user: report.job.user.clone(),
                partition: report.job.partition.clone(),
                ..JobNow::default()
            },
            start: report.start,
            hang: None,
            fold: Fold::default(),
        }))
    }

    /// Adds a sample, and writes the file if it is due.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(&mut self, head: &Head, sample: &Sample) -> io::Result<()> {
        if !self.fold.takes(sample.state, sample.gpus.len(), sample.rails.len()) {
            self.write(head)?;
        }
        self.fold.add(sample);
        if self.fold.seconds() >= self.config.interval.as_secs_f64() { self.write(head) } else { Ok(()) }
    }

    /// Sets the figures of the job's program and NCCL; `None` if they are not known.
    pub fn told(&mut self, work: Option<WorkNow>) {
        self.job.work = work;
    }

    /// Sets the hang that has not ended; `None` if there is none.
    pub fn hangs(&mut self, hang: Option<&Hang>) {
        self.hang = hang.map(|hang| (hang.kind, hang.since));
    }

    fn write(&mut self, head: &Head) -> io::Result<()> {
        let Some(sample) = self.fold.take() else { return Ok(()) };
        let labels = shown(&self.config.labels, &self.locks);
        let named = labels.contains(&JobLabel::Job);
        let end = sample.end().saturating_sub(self.start);
        let seconds = |milliseconds| std::time::Duration::from_millis(milliseconds).as_secs_f64();
        let mut job = self.job.clone();
        job.running_s = seconds(end);
        let hang = self.hang;
        job.hang =
            hang.map(|(kind, since)| HangNow { kind, seconds: seconds(sample.end().saturating_sub(since)) });
        job.host = sample.host;
        for (gpu, values) in head.gpus.iter().zip(sample.gpus) {
            if !self.may_write(&gpu.uuid, named) {
                continue;
            }
            let tensor_fraction = self.figures.of(&gpu.model, &gpu.uuid).and_then(|model| {
                let work = values.mean(GpuField::TensorWork)?;
                Some(model.tensor_fraction(work, values.mean(GpuField::TensorWorkSlowed)?))
            });
            job.gpus.push(GpuNow { index: gpu.index, uuid: gpu.uuid.clone(), values, tensor_fraction });
        }
        if job.gpus.is_empty() && !head.gpus.is_empty() {
            return self.dir.remove(&job_file(job.job));
        }
        self.dir.put(&job_file(job.job), &job_page(&job, &labels))
    }

    /// Whether no other job's file has this GPU, or labels distinguish the jobs.
    fn may_write(&mut self, uuid: &str, named: bool) -> bool {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '/' | '.');
        if named || self.locked.contains_key(uuid) {
            return true;
        }
        if uuid.is_empty() || !uuid.chars().all(plain) {
            return false;
        }
        let path = self.locks.join(format!("{}.lock", uuid.replace(['/', '.'], "-")));
        match FileLock::try_take(&path) {
            Ok(Some(lock)) => {
                self.locked.insert(uuid.to_owned(), lock);
                true
            }
            _ => false,
        }
    }
}

impl Drop for JobFile {
    fn drop(&mut self) {
        let _ = self.dir.remove(&job_file(self.job.job));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use railgate_node_report::testing::{job, part};
    use railgate_node_report::usage::format::HeadGpu;
    use railgate_node_report::usage::{State, Values};

    use super::*;
    use crate::PRIVATE_DATA;

    fn head() -> Head {
        let gpu = |index| HeadGpu {
            index,
            uuid: format!("GPU-{index}"),
            model: "NVIDIA H200".to_owned(),
            ..HeadGpu::default()
        };
        Head { gpus: vec![gpu(0), gpu(1)], ..Head::default() }
    }

    fn sample(start: u64, tensor: f64) -> Sample {
        let mut gpu = Values::default();
        gpu.put(GpuField::Tensor, Some(tensor));
        gpu.put(GpuField::TensorWork, Some(tensor * 1830.0));
        gpu.put(GpuField::TensorWorkSlowed, Some(tensor * 1830.0));
        Sample { start, seconds: 5.0, folded: 1, gpus: vec![gpu.clone(), gpu], ..Sample::default() }
    }

    struct Place(tempfile::TempDir);

    impl Place {
        fn open(&self, id: u32, labels: &[JobLabel]) -> JobFile {
            let config = MetricsConfig {
                dir: Some(self.0.path().to_owned()),
                labels: labels.to_vec(),
                ..MetricsConfig::default()
            };
            fs::create_dir_all(self.0.path().join("locks")).unwrap();
            fs::write(self.0.path().join("locks").join(PRIVATE_DATA), "none").unwrap();
            let mut report = part("n1", &job(0..2), "", vec![], 0);
            report.job.id = id;
            JobFile::open(&config, &GpuFigures::default(), &self.0.path().join("locks"), &report)
                .unwrap()
                .unwrap()
        }

        fn read(&self, id: u32) -> Option<String> {
            fs::read_to_string(self.0.path().join(job_file(id))).ok()
        }
    }

    #[test]
    fn job_file_is_written_at_its_interval_and_removed_with_its_sampler() {
        let place = Place(tempfile::tempdir().unwrap());
        let mut file = place.open(7, &[]);
        let start = file.start;
        for at in 0..2 {
            file.add(&head(), &sample(start + at * 5_000, 20.0)).unwrap();
            assert_eq!(place.read(7), None, "not yet fifteen seconds");
        }
        file.add(&head(), &sample(start + 10_000, 50.0)).unwrap();
        let text = place.read(7).unwrap();
        assert!(text.contains("railgate_gpu_tensor_active_ratio{gpu=\"1\",uuid=\"GPU-1\"} 0.3\n"), "{text}");
        assert!(text.contains("railgate_gpu_hardware_flop_ratio{gpu=\"1\""), "{text}");
        assert!(text.contains("railgate_job_running_seconds{gpus=\"0-1\"} 15\n"), "{text}");
        // On suspension the samples before it are written; afterwards there are none.
        file.add(&head(), &sample(start + 15_000, 80.0)).unwrap();
        let still = Sample {
            state: State::Suspended,
            gpus: vec![Values::default(); 2],
            ..sample(start + 20_000, 0.0)
        };
        file.add(&head(), &still).unwrap();
        assert!(place.read(7).unwrap().contains("uuid=\"GPU-1\"} 0.8\n"));
        file.add(&head(), &Sample { seconds: 15.0, ..still }).unwrap();
        assert!(!place.read(7).unwrap().contains("railgate_gpu_"), "{:?}", place.read(7));
        drop(file);
        assert_eq!(place.read(7), None);
    }

    /// Metrics of a running job and its report use one lookup: a calibrated card has the same figure in both.
    #[test]
    fn a_calibrated_card_has_the_figure_of_its_report() {
        use railgate_node_report::usage::format::Record;
        use railgate_node_report::usage::{Card, summarize};
        let place = Place(tempfile::tempdir().unwrap());
        let mut file = place.open(7, &[]);
        let card = Card {
            model: "NVIDIA H200".to_owned(),
            activity_per_work: 1.05,
            band: 0.034,
            driver: None,
            measured: 0,
            railgate: "0.1.0".to_owned(),
            by: "calibrate".to_owned(),
        };
        file.figures.cards.put("GPU-1", card);
        let long = Sample { seconds: 20.0, ..sample(file.start, 50.0) };
        file.add(&head(), &long).unwrap();
        let mut stream = Vec::new();
        for record in [
            Record::Head(Head { start: file.start, gpus: head().gpus, ..Head::new("n1", 7, 0) }),
            Record::Sample(long),
        ] {
            record.write(&mut stream).unwrap();
        }
        let report = summarize(&[&stream], 0, &file.figures).unwrap();
        let text = place.read(7).unwrap();
        for (gpu, from, divided_by) in [(0, "built-in", 1.103), (1, "card", 1.05)] {
            let name = format!("railgate_gpu_hardware_flop_ratio{{gpu=\"{gpu}\"");
            let line = text.lines().find(|line| line.starts_with(&name)).unwrap();
            let shown: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
            let flop = &report.gpus[gpu].flop;
            assert_eq!((flop.calibration.from.as_str(), flop.tensor_fraction.known()), (from, Some(&shown)));
            assert!((shown - 0.5 / divided_by).abs() < 1e-6, "{line}");
        }
    }

    #[test]
    fn two_jobs_on_one_gpu_do_not_write_the_same_series() {
        let place = Place(tempfile::tempdir().unwrap());
        let long = Sample { seconds: 20.0, ..sample(1_800_000_000_000, 20.0) };
        let (mut first, mut second) = (place.open(7, &[]), place.open(8, &[]));
        first.add(&head(), &long).unwrap();
        second.add(&head(), &long).unwrap();
        assert!(place.read(7).is_some() && place.read(8).is_none());
        drop(first);
        second.add(&head(), &long).unwrap();
        assert!(place.read(7).is_none() && place.read(8).is_some());
        // With job ids the series differ.
        let mut third = place.open(9, &[JobLabel::Job]);
        third.add(&head(), &long).unwrap();
        assert!(place.read(8).is_some() && place.read(9).unwrap().contains("job_id=\"9\""));
        // Unless Slurm keeps jobs private.
        fs::write(place.0.path().join("locks").join(PRIVATE_DATA), "jobs").unwrap();
        third.add(&head(), &long).unwrap();
        assert_eq!(place.read(9), None);
    }
}
