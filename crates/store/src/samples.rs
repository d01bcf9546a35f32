use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use railgate_child::ask;
use railgate_model::UnixMillis;
use railgate_node_report::usage::{GpuField, State, timeline};
use serde::{Deserialize, Serialize};

use super::dirs::{below, file_below, job_below, top};
use super::{SAMPLES, dir_name};
use crate::ReportConfig;

pub(super) const READ_SAMPLES: &str = "read-samples";

/// Columns of a plot; a page cannot show more.
const MOST_POINTS: u32 = 300;
const MOST_GPUS: usize = 64;

/// Activity of one node's GPUs over a run, for plots, from the samples file beside the report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Course {
    /// Node name.
    pub node: String,
    /// Start of the first column.
    pub start: UnixMillis,
    /// Length of a column, seconds.
    pub span_s: f64,
    /// Plots per GPU.
    pub gpus: Vec<GpuCourse>,
}

/// Columns of one GPU; `None` if there are no samples, or the value is not known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuCourse {
    /// NVML index.
    pub index: u32,
    /// Time with any kernel running, percent.
    pub busy: Vec<Option<f32>>,
    /// Tensor pipe activity, percent.
    pub tensor: Vec<Option<f32>>,
    /// SM clock, MHz.
    pub clock: Vec<Option<f32>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    dir: PathBuf,
    cluster: String,
    job: u32,
    uid: Option<u32>,
    attempt: u32,
    node: String,
    max_bytes: u64,
}

/// Reads the samples of one node and attempt, from the first directory that has them.
///
/// # Errors
/// Why there are none.
pub fn load_course(
    config: &ReportConfig,
    dirs: &[PathBuf],
    (cluster, job, attempt): (&str, u32, u32),
    uid: Option<u32>,
    node: &str,
) -> Result<Course, String> {
    let configured: Vec<PathBuf> = config.dir.iter().chain([&config.local_dir]).cloned().collect();
    let mut last = "no directory".to_owned();
    for dir in if dirs.is_empty() { &configured } else { dirs } {
        let order = Order {
            dir: dir.clone(),
            cluster: cluster.to_owned(),
            job,
            uid,
            attempt,
            node: node.to_owned(),
            max_bytes: config.max_bytes(),
        };
        let read = serde_json::to_vec(&order)
            .map_err(|why| why.to_string())
            .and_then(|order| ask(READ_SAMPLES, &order, config.deadline))
            .and_then(|reply| serde_json::from_slice(&reply).map_err(|why| why.to_string()));
        match read {
            Ok(course) => return Ok(course),
            Err(why) => last = why,
        }
    }
    Err(last)
}

/// Runs in the child, as the job's owner if the caller is root.
pub(super) fn task(input: &[u8]) -> Result<Vec<u8>, String> {
    let order: Order = serde_json::from_slice(input).map_err(|why| format!("order: {why}"))?;
    let course = read(&order)?;
    serde_json::to_vec(&course).map_err(|why| why.to_string())
}

fn read(order: &Order) -> Result<Course, String> {
    let text = |why: Errno| std::io::Error::from(why).to_string();
    let (Some(cluster), Some(node)) = (dir_name(&order.cluster), dir_name(&order.node)) else {
        return Err("not a directory name".to_owned());
    };
    let dir = top(Path::new(&order.dir)).map_err(text)?;
    let cluster = below(dir.as_fd(), cluster).map_err(text)?;
    let (job, owner) = job_below(cluster.as_fd(), order.job, order.uid)?.ok_or("no report of this job")?;
    let attempt = below(job.as_fd(), &order.attempt.to_string()).map_err(text)?;
    let name = format!("{node}{SAMPLES}");
    let (file, stat) = file_below(attempt.as_fd(), &name, order.max_bytes)?;
    if stat.st_uid != owner && stat.st_uid != 0 {
        return Err(format!("refused: it belongs to uid {}", stat.st_uid));
    }
    let mut content = Vec::new();
    file.take(order.max_bytes).read_to_end(&mut content).map_err(|why| why.to_string())?;
    course(&content, node).ok_or_else(|| "no samples in it".to_owned())
}

/// Samples in columns of equal length, each with the mean of the samples in it.
fn course(content: &[u8], node: &str) -> Option<Course> {
    let (head, samples) = timeline(content)?;
    let (first, last) = (samples.first()?, samples.last()?);
    let whole = railgate_node_report::plain::float(last.end().saturating_sub(first.start)) / 1000.0;
    let span_s = (whole / f64::from(MOST_POINTS)).max(head.interval_s).max(1.0);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "at most MOST_POINTS, not below 0"
    )]
    let place = |time: UnixMillis| {
        let at = railgate_node_report::plain::float(time.saturating_sub(first.start)) / 1000.0 / span_s;
        at.min(f64::from(MOST_POINTS)) as usize
    };
    let columns = place(last.end()) + 1;
    let of = |gpu: usize, field: GpuField| -> Vec<Option<f32>> {
        let mut sums = vec![(0.0_f32, 0.0_f32); columns];
        for sample in samples.iter().filter(|sample| sample.state == State::Running) {
            let Some(value) = sample.gpus.get(gpu).and_then(|values| values.get(field)) else { continue };
            for slot in sums.iter_mut().take(place(sample.end()) + 1).skip(place(sample.start)) {
                *slot = (slot.0 + value.mean * sample.seconds, slot.1 + sample.seconds);
            }
        }
        sums.into_iter().map(|(sum, seconds)| (seconds > 0.0).then(|| sum / seconds)).collect()
    };
    let gpus = head.gpus.iter().take(MOST_GPUS).enumerate();
    Some(Course {
        node: node.to_owned(),
        start: first.start,
        span_s,
        gpus: gpus
            .map(|(place, gpu)| {
                // As in diagnosis/facts.rs.
                let gpm = of(place, GpuField::Graphics);
                let busy = if gpm.iter().any(Option::is_some) { gpm } else { of(place, GpuField::AnyKernel) };
                let (tensor, clock) = (of(place, GpuField::Tensor), of(place, GpuField::SmClock));
                GpuCourse { index: gpu.index, busy, tensor, clock }
            })
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use railgate_node_report::usage::format::{Head, HeadGpu, Record};
    use railgate_node_report::usage::{Sample, Values};

    use super::*;

    #[test]
    fn samples_become_columns_and_gaps_stay_empty() {
        let mut head = Head::new("n1", 7, 0);
        head.interval_s = 5.0;
        head.gpus = vec![HeadGpu { index: 3, ..HeadGpu::default() }];
        let mut content = Vec::new();
        Record::Head(head).write(&mut content).unwrap();
        for number in 0..1000_u64 {
            let mut values = Values::default();
            let idle = (400..500).contains(&number);
            values.put(GpuField::AnyKernel, (!idle).then_some(90.0));
            values.put(GpuField::Tensor, Some(40.0));
            let sample = Sample {
                start: 1_000_000 + 5000 * number,
                seconds: 5.0,
                folded: 1,
                gpus: vec![values],
                ..Sample::default()
            };
            Record::Sample(sample).write(&mut content).unwrap();
        }
        let course = course(&content, "n1").unwrap();
        let gpu = &course.gpus[0];
        assert!(gpu.busy.len() <= 301 && (course.span_s * 300.0 - 5000.0).abs() < 60.0, "{}", course.span_s);
        assert_eq!(
            (gpu.index, gpu.busy[10], gpu.busy[135], gpu.tensor[135]),
            (3, Some(90.0), None, Some(40.0))
        );
        assert!(gpu.clock.iter().all(Option::is_none));
    }
}
