//! A recording: what a real job left behind, and the report that today's code makes of it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use railgate_joblog::{Log, first_error};
use railgate_model::{Reading, UnixMillis};
use railgate_node_report::application::read as read_rank;
use railgate_node_report::comm::{Communication, gather};
use railgate_node_report::usage::format::{Head, HeadGpu, Record};
use railgate_node_report::usage::{Field as _, GpuFigures, HostField, Sample, timeline};
use railgate_node_report::{Application, GpuUse, JobLog, NodeReport, SlurmView};
use railgate_rankfile::RankFile;
use railgate_report::{JobReport, text};
use railgate_store::{Parts, ReportConfig};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// What the program measured, one line for each rank.
#[derive(Debug, Deserialize)]
pub(crate) struct Truth {
    /// Seconds by the name of what was planted.
    lost: BTreeMap<String, f64>,
}

#[derive(Debug, Deserialize)]
struct Recorded {
    sampler_end: Option<UnixMillis>,
}

pub(crate) struct Recording(pub(crate) PathBuf);

/// First screen of a report, and what else is compared.
#[derive(Debug)]
pub(crate) struct Said {
    /// Kind of the end, as in JSON: `completed`.
    pub(crate) ended: String,
    /// The rows VERDICT and WHY.
    pub(crate) first: String,
    /// All sentences that lead to an act: these rows, DO, and every finding.
    pub(crate) advice: String,
    /// Rules of all findings, the first one first.
    pub(crate) rules: Vec<String>,
    /// Cost of the first finding, seconds.
    pub(crate) cost_s: Option<f64>,
}

fn optional<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    if !path.exists() {
        return Ok(None);
    }
    let bytes = fs::read(path)?;
    Ok(Some(serde_json::from_slice(&bytes).with_context(|| path.display().to_string())?))
}

/// A file of 64-bit words from its text: the size in bytes, then place and value of each word that is not zero.
fn from_words(text: &str) -> Result<Vec<u8>> {
    let mut lines = text.lines();
    let size: usize = lines.next().context("no size")?.parse()?;
    let mut bytes = vec![0_u8; size.next_multiple_of(8)];
    for line in lines {
        let (place, value) = line.split_once(' ').context("no value")?;
        let at = place.parse::<usize>()? * 8;
        let word = u64::from_str_radix(value, 16)?.to_le_bytes();
        bytes.get_mut(at..at + 8).context("beyond the end")?.copy_from_slice(&word);
    }
    bytes.truncate(size);
    Ok(bytes)
}

impl Recording {
    /// Names and contents of the binary files in a folder, in order of their names.
    fn files(&self, folder: &str) -> Result<Vec<(String, Vec<u8>)>> {
        let Ok(entries) = fs::read_dir(self.0.join(folder)) else { return Ok(Vec::new()) };
        let mut files = Vec::new();
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let bytes = from_words(&fs::read_to_string(entry.path())?).with_context(|| name.clone())?;
            files.push((name, bytes));
        }
        files.sort();
        Ok(files)
    }

    /// The node report, with what the epilog would make of the raw files today.
    pub(crate) fn node(&self) -> Result<NodeReport> {
        let mut node = self.node_without_files()?;
        self.add_files(&mut node)?;
        Ok(node)
    }

    /// The same with samples alone.
    fn node_without_files(&self) -> Result<NodeReport> {
        let mut node: NodeReport =
            optional(&self.0.join("node.json"))?.context("a recording has a node report")?;
        let recorded: Recorded = optional(&self.0.join("recorded.json"))?.context("recorded.json")?;
        if let (Ok(samples), Some(end)) = (fs::read(self.0.join("samples")), recorded.sampler_end) {
            node.add_usage(&[&samples], end, &GpuFigures::default());
        }
        Ok(node)
    }

    /// Adds what NCCL's plugin and the program wrote, as they left it at the end.
    fn add_files(&self, node: &mut NodeReport) -> Result<()> {
        let ranks = self.files("ranks")?;
        if !ranks.is_empty() {
            let read = |(name, bytes): &(String, Vec<u8>)| {
                RankFile::parse(bytes).map_err(|why| format!("{name}: {why}"))
            };
            let (files, unread): (Vec<_>, Vec<_>) = ranks.iter().map(read).partition(Result::is_ok);
            let unread = unread.into_iter().filter_map(Result::err).collect();
            let files: Vec<RankFile> = files.into_iter().filter_map(Result::ok).collect();
            let pauses = optional(&self.0.join("pauses.json"))?;
            node.communication = Some(Communication { pauses, ..gather(&files, unread) });
        }
        let app = self.files("app")?;
        if !app.is_empty() {
            let mut told = Application::default();
            for (name, bytes) in &app {
                match read_rank(name, bytes) {
                    Ok(rank) => told.ranks.push(rank),
                    Err(why) => told.problems.push(format!("{name}: {why}")),
                }
            }
            told.ranks.sort_by_key(|rank| (rank.rank.is_none(), rank.rank, rank.started));
            node.application = Some(told);
        }
        Ok(())
    }

    /// Whether it has such files.
    pub(crate) fn has_files(&self) -> bool {
        ["ranks", "app", "pauses.json"].iter().any(|name| self.0.join(name).exists())
    }

    /// What the epilog would find in the job's output.
    fn log(&self, node: &NodeReport) -> Result<Option<JobLog>> {
        let Ok(bytes) = fs::read(self.0.join("log")) else { return Ok(None) };
        let gpus = node.usage.as_ref().map_or(1, |usage| usage.gpus.len());
        // Each further program writes the same.
        let programs = self.timeline().0.map_or(1, |head| gpus / head.gpus.len().max(1)).max(1);
        let bytes = bytes.repeat(programs);
        let ranks = u32::try_from(gpus)?;
        let said = first_error(&[Log { bytes: &bytes, rank: None, cut: false }], ranks);
        let found = said.stored(1, |_| "job.log".to_owned());
        let (cluster, job, attempt) = (node.cluster.clone(), node.job.id, node.attempt);
        Ok(Some(JobLog { schema: node.schema, cluster, job, attempt, node: node.node.clone(), found }))
    }

    /// The first screen of the report that today's code makes.
    pub(crate) fn said(&self) -> Result<Said> {
        said(&self.report()?)
    }

    /// The report that today's code makes.
    pub(crate) fn report(&self) -> Result<JobReport> {
        self.report_with(self.node()?)
    }

    /// The same with another report of the node.
    fn report_with(&self, node: NodeReport) -> Result<JobReport> {
        self.merged(node, optional(&self.0.join("slurm.json"))?)
    }

    fn merged(&self, node: NodeReport, slurm: Option<SlurmView>) -> Result<JobReport> {
        self.merged_with(vec![node], slurm)
    }

    /// The first node is this recording's.
    fn merged_with(&self, nodes: Vec<NodeReport>, slurm: Option<SlurmView>) -> Result<JobReport> {
        let first = nodes.first().context("no node")?;
        let (cluster, job) = (first.cluster.clone(), first.job.id);
        let names: Vec<String> = nodes.iter().map(|node| node.node.clone()).collect();
        let parts = Parts {
            logs: self.log(first)?.into_iter().collect(),
            nodes,
            decisions: optional(&self.0.join("decision.json"))?.into_iter().collect(),
            ends: optional(&self.0.join("slurm-end.json"))?.into_iter().collect(),
            ..Parts::default()
        };
        let expand = |_: &str| Some(names.clone());
        Ok(JobReport::merge(&cluster, job, parts, slurm, &expand, &ReportConfig::default()))
    }

    /// What the report says if neither NCCL's plugin nor the program wrote anything.
    pub(crate) fn said_without_files(&self) -> Result<Said> {
        said(&self.report_with(self.node_without_files()?)?)
    }

    /// What the report says of a job on two nodes, of which the second one runs the program of another recording, or this one's.
    pub(crate) fn said_with_node(&self, other: &Recording) -> Result<Said> {
        let (mut first, mut second) = (self.node()?, other.node()?);
        first.job.nodelist = "gn[1-2]".to_owned();
        (second.node, second.job, second.attempt) = ("gn2".to_owned(), first.job.clone(), first.attempt);
        let mut slurm: Option<serde_json::Value> = optional(&self.0.join("slurm.json"))?;
        if let Some(slurm) = &mut slurm {
            slurm["nodelist"] = "gn[1-2]".into();
        }
        let slurm = slurm.map(serde_json::from_value).transpose()?;
        let report = self.merged_with(vec![first, second], slurm)?;
        let nodes = report.attempts.last().map_or(0, |attempt| attempt.nodes.len());
        ensure!(nodes == 2, "{nodes} nodes");
        said(&report)
    }

    /// What the report says if Slurm ended the job with this state; `None` if it did not end well.
    pub(crate) fn said_ended(&self, state: &str) -> Result<Option<Said>> {
        let slurm: Option<serde_json::Value> = optional(&self.0.join("slurm.json"))?;
        let Some(mut slurm) = slurm.filter(|slurm| slurm["state"] == "COMPLETED") else { return Ok(None) };
        slurm["state"] = state.into();
        let report = self.merged(self.node()?, Some(serde_json::from_value(slurm)?))?;
        Ok(Some(said(&report)?))
    }

    /// What the report says of a job with other samples than those of this recording, which `change` makes of them, and of another interval
    /// between them; `None` if it does not.
    pub(crate) fn said_of(
        &self,
        interval_s: f64,
        change: impl FnOnce(&[Sample]) -> Option<Vec<Sample>>,
    ) -> Result<Option<Said>> {
        let Ok(bytes) = fs::read(self.0.join("samples")) else { return Ok(None) };
        let (head, samples) = timeline(&bytes).context("no head")?;
        let Some(samples) = change(&samples) else { return Ok(None) };
        Ok(Some(said(&self.report_of(Head { interval_s, ..head }, samples, |_| ())?)?))
    }

    /// The report with other samples, and a change of the node report.
    fn report_of(
        &self,
        head: Head,
        samples: Vec<Sample>,
        change: impl FnOnce(&mut NodeReport),
    ) -> Result<JobReport> {
        let end = samples.last().context("no sample")?.end();
        // Written with the fields of today, which are more than those of old recordings.
        let now = Head::new(&head.node, head.job, head.attempt);
        let (gpu_fields, rail_fields, host_fields) = (now.gpu_fields, now.rail_fields, now.host_fields);
        let head = Head { gpu_fields, rail_fields, host_fields, ..head };
        let mut stream = Vec::new();
        for record in std::iter::once(Record::Head(head)).chain(samples.into_iter().map(Record::Sample)) {
            record.write(&mut stream).map_err(anyhow::Error::msg)?;
        }
        let mut node: NodeReport = optional(&self.0.join("node.json"))?.context("a node report")?;
        node.end = Some(end);
        change(&mut node);
        node.add_usage(&[&stream], end, &GpuFigures::default());
        self.add_files(&mut node)?;
        self.report_with(node)
    }

    /// What the report says of a job that has no more cores than it uses.
    pub(crate) fn said_with_few_cores(&self) -> Result<Said> {
        let mut node = self.node()?;
        if let Some(host) = node.usage.as_mut().map(|usage| &mut usage.host) {
            host.cpus_allowed = host.cpu_cores.clone().map(|cores| cores.mean.ceil().max(1.0));
        }
        said(&self.report_with(node)?)
    }

    /// What the report says of a job on one node whose further GPUs run the programs of other recordings, which begin so many samples
    /// later and know nothing of this one.
    pub(crate) fn said_beside(&self, others: &[&Recording], later: usize) -> Result<Option<Said>> {
        self.said_of_gpus(others, later, true)
    }

    /// What the report says of one process that drives a second GPU as well, a sample later.
    pub(crate) fn said_with_two_gpus(&self) -> Result<Option<Said>> {
        self.said_of_gpus(&[self], 1, false)
    }

    fn said_of_gpus(&self, others: &[&Recording], later: usize, apart: bool) -> Result<Option<Said>> {
        let mut parts = Vec::new();
        for (recording, wait) in std::iter::once((self, 0)).chain(others.iter().map(|other| (*other, later)))
        {
            let (Some(head), samples) = recording.timeline() else { return Ok(None) };
            // Before its first work, and after its end.
            let Some(idle) = samples.first().filter(|_| head.gpus.len() == 1).cloned() else {
                return Ok(None);
            };
            let samples: Vec<Sample> = std::iter::repeat_n(idle.clone(), wait).chain(samples).collect();
            parts.push((head, samples, idle));
        }
        let length = parts.iter().map(|(_, samples, _)| samples.len()).max().unwrap_or(0);
        parts.iter_mut().for_each(|(_, samples, idle)| samples.resize(length, idle.clone()));
        let mut parts = parts.into_iter();
        let Some((mut head, mut samples, _)) = parts.next() else { return Ok(None) };
        let mut clock = samples.first().context("no sample")?.start;
        for sample in &mut samples {
            sample.start = clock;
            clock = sample.end();
        }
        let mut added = Vec::new();
        for (index, (beside, further, _)) in (1..).zip(parts) {
            for (one, two) in samples.iter_mut().zip(further) {
                one.gpus.extend(two.gpus);
                for field in HostField::ALL.iter().copied().filter(|_| apart) {
                    let values = one.host.mean(field).zip(two.host.mean(field));
                    let is_share = field.name().ends_with("percent");
                    one.host.put(field, values.map(|(a, b)| if is_share { a.max(b) } else { a + b }));
                }
            }
            let uuid = format!("GPU-{index}");
            head.gpus.extend(beside.gpus.into_iter().map(|gpu| HeadGpu { index, uuid: uuid.clone(), ..gpu }));
            added.push((index, uuid));
        }
        let report = self.report_of(head, samples, |node| {
            let Some(gpu) = node.gpus.first().cloned() else { return };
            let more = added.into_iter().map(|(index, uuid)| GpuUse {
                index,
                uuid: Reading::Known(uuid),
                ..gpu.clone()
            });
            node.gpus.extend(more);
        })?;
        Ok(Some(said(&report)?))
    }

    /// The head and the samples of the recording; nothing if it has none.
    fn timeline(&self) -> (Option<Head>, Vec<Sample>) {
        let bytes = fs::read(self.0.join("samples")).unwrap_or_default();
        timeline(&bytes).map_or((None, Vec::new()), |(head, samples)| (Some(head), samples))
    }

    pub(crate) fn samples(&self) -> Vec<Sample> {
        self.timeline().1
    }

    /// Seconds that the program lost by what was planted: of the rank that lost most.
    pub(crate) fn lost(&self, name: &str) -> Result<f64> {
        let text = fs::read_to_string(self.0.join("truth.json"))?;
        let mut most: f64 = 0.0;
        for line in text.lines() {
            let truth: Truth = serde_json::from_str(line)?;
            most = most.max(truth.lost.get(name).copied().unwrap_or(0.0));
        }
        Ok(most)
    }
}

fn said(report: &JobReport) -> Result<Said> {
    let screen = text(report, false);
    let rows = rows(&screen);
    let row = |name: &str| {
        let of = rows.iter().filter(|(row, _)| row == name).map(|(_, text)| text.as_str());
        of.collect::<Vec<_>>().join("; ")
    };
    let first = format!("{}; {}", row("VERDICT"), row("WHY"));
    let attempt = report.attempts.last().context("a job has an attempt")?;
    let found = attempt.analysis.as_ref().map_or(&[][..], |analysis| &analysis.diagnoses);
    let mut advice = vec![first.clone(), report.next_steps.join("; ")];
    advice.extend(found.iter().map(|one| format!("{}. {}", one.what, one.fix)));
    let seconds = attempt.end.zip(attempt.start).map(|(end, start)| {
        let millis = u32::try_from(end.saturating_sub(start)).unwrap_or(u32::MAX);
        f64::from(millis) / 1000.0
    });
    let cost = found.first().and_then(|one| one.costs);
    Ok(Said {
        ended: serde_json::to_value(report.ended.kind)?.as_str().unwrap_or_default().to_owned(),
        first,
        advice: advice.join("; "),
        rules: found.iter().map(|one| one.rule.clone()).collect(),
        cost_s: cost.zip(seconds).map(|(cost, seconds)| cost * seconds),
    })
}

/// Rows of the first screen: a name at the margin, and indented lines that continue it.
fn rows(screen: &str) -> Vec<(String, String)> {
    let mut rows: Vec<(String, String)> = Vec::new();
    for line in screen.lines().skip(1).take_while(|line| !line.is_empty()) {
        match (line.starts_with(' '), rows.last_mut()) {
            (true, Some((_, text))) => {
                text.push(' ');
                text.push_str(line.trim());
            }
            _ => {
                let (name, text) = line.split_once(' ').unwrap_or((line, ""));
                rows.push((name.to_owned(), text.trim().to_owned()));
            }
        }
    }
    rows
}
