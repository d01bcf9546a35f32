use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use railgate_fsutil::nofollow;
use railgate_model::UnixMillis;
use railgate_node_report::usage::format::{End, Head, Note, Record, Records, whole_bytes};
use railgate_node_report::usage::{Fold, GpuField, RailField, Sample};
use railgate_runner::{SAMPLER_FILES, SAMPLES_EVENTS, SAMPLES_FINE, SAMPLES_MINUTES};

/// Samples of this period are folded into one, seconds.
const MINUTE_S: f64 = 60.0;
/// Size of a file of samples: half an hour with eight GPUs. There are three such files, so the last hour is
/// always complete.
const SEGMENT_BYTES: u64 = 340 << 10;
/// Maximum duration of a file with fewer GPUs, seconds.
const SEGMENT_S: f64 = 1800.0;
/// Size limit of the file of events, per half day.
const EVENT_BYTES: u64 = 400 << 10;
/// Number of samples kept before an event, and after it.
const AROUND: usize = 24;
/// Minutes of four days with eight GPUs: above this size pairs of minutes are merged.
const MINUTES_BYTES: u64 = if cfg!(test) { 4 << 20 } else { 12 << 20 };
/// Maximum number of minutes held back while the disk is full.
const PENDING: usize = 60;

/// The sample files of a run. They are only appended to or replaced, so a killed sampler loses at most the
/// record being written. If the disk is full, a partial record is truncated.
#[derive(Debug)]
pub(crate) struct Files {
    dir: PathBuf,
    head: Bytes,
    minutes: Out,
    pending: VecDeque<(Bytes, Bytes)>,
    fold: Fold,
    segment: usize,
    segment_s: f64,
    fine: Out,
    events: Out,
    recent: VecDeque<Bytes>,
    after: usize,
    lost: u32,
    why_lost: String,
    /// No more minutes are written.
    stopped: bool,
}

type Bytes = Rc<[u8]>;

/// A file that consists of complete records.
#[derive(Debug)]
struct Out {
    path: PathBuf,
    file: Option<File>,
    length: u64,
    /// Head of its last records.
    head: Bytes,
}

impl Out {
    fn new(dir: &Path, name: &str) -> Self {
        Out { path: dir.join(name), file: None, length: 0, head: Bytes::default() }
    }

    /// Continues the file of a killed sampler; its incomplete record would hide all later ones.
    fn go_on(&mut self, left: &Left) {
        self.length = left.whole;
        self.head =
            left.head.as_ref().and_then(|head| encoded(&Record::Head(head.clone()))).unwrap_or_default();
        if left.whole < left.length
            && let Err(why) = open(&self.path).and_then(|file| file.set_len(left.whole))
        {
            tracing::info!("sampler: {}: {why}", self.path.display());
        }
    }

    /// Starts the file again from empty.
    fn clear(&mut self) {
        self.file = None;
        self.length = 0;
        self.head = Bytes::default();
        let _ = fs::remove_file(&self.path);
    }

    /// Appends a record, preceded by its head if the last head differs.
    fn append(&mut self, head: &Bytes, record: &[u8]) -> io::Result<()> {
        let other = self.head != *head;
        let bytes = if other { [head, record].concat() } else { record.to_vec() };
        if bytes.is_empty() {
            return Ok(());
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(open(&self.path)?),
        };
        let written = file.write_all(&bytes);
        if written.is_err() {
            let _ = file.set_len(self.length);
            return written;
        }
        self.length += bytes.len() as u64;
        if other {
            self.head = Rc::clone(head);
        }
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    nofollow::append(path, 0o600)
}

impl Files {
    /// Opens the files in the run's directory. Files of an earlier sampler of the run are continued.
    pub(crate) fn new(dir: &Path) -> Self {
        let mut files = Files {
            dir: dir.to_owned(),
            head: Bytes::default(),
            minutes: Out::new(dir, SAMPLES_MINUTES),
            pending: VecDeque::new(),
            fold: Fold::default(),
            segment: 0,
            segment_s: 0.0,
            fine: Out::new(dir, SAMPLES_FINE[0]),
            events: Out::new(dir, SAMPLES_EVENTS),
            recent: VecDeque::new(),
            after: 0,
            lost: 0,
            why_lost: String::new(),
            stopped: false,
        };
        for out in [&mut files.minutes, &mut files.events] {
            out.go_on(&Left::of(&out.path));
        }
        let mut latest = None;
        for (number, name) in SAMPLES_FINE.into_iter().enumerate() {
            let mut out = Out::new(dir, name);
            let left = Left::of(&out.path);
            out.go_on(&left);
            if left.last > latest {
                latest = left.last;
                (files.segment, files.segment_s, files.fine) = (number, left.seconds, out);
            }
        }
        files
    }

    /// Describes the samples from now on.
    pub(crate) fn head(&mut self, head: Head) {
        self.flush();
        self.recent.clear();
        let Some(bytes) = encoded(&Record::Head(head)) else { return };
        self.head = bytes;
        // So that there is a head even if no minute is ever completed.
        self.put_minute(Bytes::default());
    }

    /// Adds a sample; `event`: the samples before and after it are kept.
    pub(crate) fn sample(&mut self, sample: &Sample, event: bool) {
        let (state, gpus, rails) = (sample.state, sample.gpus.len(), sample.rails.len());
        if !(self.fold.takes(state, gpus, rails) && self.fold.knows_as(sample)) {
            self.flush();
        }
        self.fold.add(sample);
        let Some(bytes) = encoded(&Record::Sample(sample.clone())) else { return };
        if self.fine.length + bytes.len() as u64 > SEGMENT_BYTES || self.segment_s >= SEGMENT_S {
            self.turn();
        }
        self.segment_s += f64::from(sample.seconds);
        if let Err(why) = self.fine.append(&self.head, &bytes) {
            self.lost += 1;
            self.why_lost = why.to_string();
        }
        if event {
            self.after = AROUND;
            while let Some(before) = self.recent.pop_front() {
                self.keep(&before);
            }
        }
        if self.after > 0 {
            self.after -= 1;
            self.keep(&bytes);
        } else {
            self.recent.push_back(bytes);
            if self.recent.len() > AROUND {
                self.recent.pop_front();
            }
        }
        if self.fold.seconds() >= MINUTE_S {
            self.flush();
        }
    }

    /// Adds a remark that the figures do not include.
    pub(crate) fn note(&mut self, at: UnixMillis, what: String) {
        if let Some(bytes) = encoded(&Record::Note(Note { at, what })) {
            self.put_minute(bytes);
        }
    }

    /// Writes the final record.
    pub(crate) fn end(&mut self, end: End) {
        self.flush();
        if self.lost > 0 {
            let what = format!("{} samples could not be written: {}", self.lost, self.why_lost);
            self.note(end.at, what);
        }
        if let Some(bytes) = encoded(&Record::End(end)) {
            self.put_minute(bytes);
        }
    }

    fn flush(&mut self) {
        let minute = self.fold.take();
        if self.stopped {
            self.lost += u32::from(minute.is_some());
            return;
        }
        if let Some(bytes) = minute.and_then(|minute| encoded(&Record::Sample(minute))) {
            self.put_minute(bytes);
        }
    }

    fn put_minute(&mut self, bytes: Bytes) {
        self.pending.push_back((Rc::clone(&self.head), bytes));
        if self.pending.len() > PENDING {
            self.pending.pop_front();
            self.lost += 1;
        }
        if self.minutes.length > MINUTES_BYTES {
            self.halve_or_stop();
        }
        while let Some((head, record)) = self.pending.front() {
            match self.minutes.append(head, record) {
                Ok(()) => drop(self.pending.pop_front()),
                Err(why) => {
                    self.why_lost = why.to_string();
                    return;
                }
            }
        }
    }

    /// If merging does not reduce the file, because the state changes with every sample, writing stops.
    fn halve_or_stop(&mut self) {
        if let Err(why) = self.halve() {
            tracing::info!("sampler: {}: {why}", self.minutes.path.display());
        }
        if self.minutes.length > MINUTES_BYTES / 4 * 3 {
            self.stopped = true;
            self.why_lost = format!("{} is full", self.minutes.path.display());
        }
    }

    /// Starts the oldest of the three files again.
    fn turn(&mut self) {
        self.segment = (self.segment + 1) % SAMPLES_FINE.len();
        self.segment_s = 0.0;
        let name = SAMPLES_FINE.get(self.segment).copied().unwrap_or(SAMPLES_FINE[0]);
        self.fine = Out::new(&self.dir, name);
        self.fine.clear();
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.events.length + (bytes.len() as u64) < EVENT_BYTES {
            // The record is in the other file too.
            let _ = self.events.append(&self.head, bytes);
        }
    }

    /// Merges pairs of minutes.
    fn halve(&mut self) -> io::Result<()> {
        let bytes = fs::read(&self.minutes.path)?;
        let fresh = self.minutes.path.with_extension("next");
        let mut out = io::BufWriter::new(File::create(&fresh)?);
        let mut fold = Fold::default();
        let mut put = |record: &Record| {
            let mut bytes = Vec::new();
            record.write(&mut bytes).map_err(io::Error::other).and_then(|()| out.write_all(&bytes))
        };
        let mut in_fold = 0;
        for record in Records::new(&bytes) {
            let Record::Sample(sample) = record else {
                if let Some(sample) = fold.take() {
                    put(&Record::Sample(sample))?;
                }
                in_fold = 0;
                put(&record)?;
                continue;
            };
            if in_fold == 2 || !fold.takes(sample.state, sample.gpus.len(), sample.rails.len()) {
                in_fold = 0;
                if let Some(sample) = fold.take() {
                    put(&Record::Sample(sample))?;
                }
            }
            fold.add(&sample);
            in_fold += 1;
        }
        if let Some(sample) = fold.take() {
            put(&Record::Sample(sample))?;
        }
        out.flush()?;
        drop(out);
        fs::rename(&fresh, &self.minutes.path)?;
        self.minutes.file = None;
        self.minutes.length = fs::metadata(&self.minutes.path)?.len();
        Ok(())
    }
}

fn encoded(record: &Record) -> Option<Bytes> {
    let mut bytes = Vec::new();
    record.write(&mut bytes).ok().map(|()| bytes.into())
}

/// Content that a killed sampler left in a file.
#[derive(Debug, Default)]
struct Left {
    length: u64,
    /// Length up to its last complete record, bytes.
    whole: u64,
    head: Option<Head>,
    /// Start of the last sample.
    last: Option<UnixMillis>,
    /// Total duration of the samples, seconds.
    seconds: f64,
    totals: Totals,
}

/// Cumulative counters so far, in the order of the head.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Totals {
    /// Energy of each GPU, joules.
    pub(crate) energy: Vec<f64>,
    /// Errors, retransmitted packets and congestion marks of each port.
    pub(crate) rails: Vec<[f64; 3]>,
}

impl Left {
    fn of(path: &Path) -> Self {
        let mut bytes = Vec::new();
        let read = nofollow::read(path);
        if read.and_then(|file| file.take(2 * MINUTES_BYTES).read_to_end(&mut bytes)).is_err() {
            return Left::default();
        }
        let mut left = Left { length: bytes.len() as u64, ..Left::default() };
        left.whole = whole_bytes(&bytes) as u64;
        for record in Records::new(&bytes) {
            match record {
                Record::Head(head) => left.head = Some(head),
                Record::Sample(sample) => {
                    left.last = left.last.max(Some(sample.start));
                    left.seconds += f64::from(sample.seconds);
                    left.totals.add(&sample);
                }
                Record::Note(_) | Record::End(_) => {}
            }
        }
        left
    }
}

impl Totals {
    fn add(&mut self, sample: &Sample) {
        self.energy.resize(self.energy.len().max(sample.gpus.len()), 0.0);
        self.rails.resize(self.rails.len().max(sample.rails.len()), [0.0; 3]);
        for (total, gpu) in self.energy.iter_mut().zip(&sample.gpus) {
            *total = gpu.mean(GpuField::Energy).map_or(*total, |energy| energy.max(*total));
        }
        for (totals, rail) in self.rails.iter_mut().zip(&sample.rails) {
            for (total, field) in totals.iter_mut().zip(RAIL_TOTALS) {
                *total = rail.mean(field).map_or(*total, |value| value.max(*total));
            }
        }
    }

    fn merge(&mut self, other: &Totals) {
        self.energy.resize(self.energy.len().max(other.energy.len()), 0.0);
        self.rails.resize(self.rails.len().max(other.rails.len()), [0.0; 3]);
        for (total, more) in self.energy.iter_mut().zip(&other.energy) {
            *total = total.max(*more);
        }
        for (total, more) in self.rails.iter_mut().flatten().zip(other.rails.iter().flatten()) {
            *total = total.max(*more);
        }
    }
}

/// The cumulative fields of a port.
pub(crate) const RAIL_TOTALS: [RailField; 3] =
    [RailField::Errors, RailField::Retransmits, RailField::Congestion];

/// Head and totals of an earlier sampler of this run, whose clock, names and counters are continued.
pub(crate) fn earlier(dir: &Path) -> Option<(Head, Totals)> {
    let mut totals = Totals::default();
    let mut latest: Option<(Option<UnixMillis>, Head)> = None;
    for name in SAMPLER_FILES {
        let left = Left::of(&dir.join(name));
        totals.merge(&left.totals);
        let Some(head) = left.head else { continue };
        if latest.as_ref().is_none_or(|(last, _)| left.last > *last) {
            latest = Some((left.last, head));
        }
    }
    latest.map(|(_, head)| (head, totals))
}

#[cfg(test)]
mod tests;
