use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use railgate_fsutil::nofollow;
use railgate_model::UnixMillis;
use railgate_runner::{SAMPLER_FILES, SAMPLES_EVENTS, SAMPLES_FINE, SAMPLES_MINUTES};
use railgate_stats::usage::format::{End, Head, Note, Record, Records, whole_bytes};
use railgate_stats::usage::{Fold, GpuField, RailField, Sample};

/// A minute is folded into one.
const MINUTE_S: f64 = 60.0;
/// Samples of eight GPUs take half an hour for this; there are three such files, so the last hour is always there.
const SEGMENT_BYTES: u64 = 340 << 10;
/// And fewer GPUs no longer than this.
const SEGMENT_S: f64 = 1800.0;
/// Half a day's budget for what happened.
const EVENT_BYTES: u64 = 400 << 10;
/// Samples kept before an event, and after it.
const AROUND: usize = 24;
/// Minutes of four days of eight GPUs: beyond that each two become one.
const MINUTES_BYTES: u64 = if cfg!(test) { 4 << 20 } else { 12 << 20 };
/// Minutes that wait while the disk is full.
const PENDING: usize = 60;

/// The files of a run's samples. All of them are only ever appended to or replaced, so whoever is killed has lost at
/// most the record being written; where the disk is full, what was written of a record is taken back.
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
    /// No minutes are written any more.
    stopped: bool,
}

type Bytes = Rc<[u8]>;

/// A file that holds whole records.
#[derive(Debug)]
struct Out {
    path: PathBuf,
    file: Option<File>,
    length: u64,
    /// What its last records are under.
    head: Bytes,
}

impl Out {
    fn new(dir: &Path, name: &str) -> Self {
        Out { path: dir.join(name), file: None, length: 0, head: Bytes::default() }
    }

    /// Goes on where an earlier sampler was killed: what that one could not finish would hide all that follows.
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

    /// Begins the file anew.
    fn clear(&mut self) {
        self.file = None;
        self.length = 0;
        self.head = Bytes::default();
        let _ = fs::remove_file(&self.path);
    }

    /// A record, and before it the head that it is under where another one stands there.
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
    /// In the run's directory. What an earlier sampler of the run left there stays: it is added to.
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

    /// What the samples from now on are of.
    pub(crate) fn head(&mut self, head: Head) {
        self.flush();
        self.recent.clear();
        let Some(bytes) = encoded(&Record::Head(head)) else { return };
        self.head = bytes;
        // So that there is one even if no minute ever gets full.
        self.put_minute(Bytes::default());
    }

    /// One sample; `event`: what was before and after it is worth keeping.
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

    /// Something that the numbers do not tell.
    pub(crate) fn note(&mut self, at: UnixMillis, what: String) {
        if let Some(bytes) = encoded(&Record::Note(Note { at, what })) {
            self.put_minute(bytes);
        }
    }

    /// The last word.
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

    /// Where nothing can be folded any more, a state that changes with every sample, the file is as long as it gets.
    fn halve_or_stop(&mut self) {
        if let Err(why) = self.halve() {
            tracing::info!("sampler: {}: {why}", self.minutes.path.display());
        }
        if self.minutes.length > MINUTES_BYTES / 4 * 3 {
            self.stopped = true;
            self.why_lost = format!("{} is full", self.minutes.path.display());
        }
    }

    /// The oldest of the three files is begun anew.
    fn turn(&mut self) {
        self.segment = (self.segment + 1) % SAMPLES_FINE.len();
        self.segment_s = 0.0;
        let name = SAMPLES_FINE.get(self.segment).copied().unwrap_or(SAMPLES_FINE[0]);
        self.fine = Out::new(&self.dir, name);
        self.fine.clear();
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.events.length + (bytes.len() as u64) < EVENT_BYTES {
            // It is in the other file, too.
            let _ = self.events.append(&self.head, bytes);
        }
    }

    /// Each two minutes become one.
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

/// What a sampler that was killed left in a file.
#[derive(Debug, Default)]
struct Left {
    length: u64,
    /// Up to the end of its last whole record.
    whole: u64,
    head: Option<Head>,
    /// Start of the last sample.
    last: Option<UnixMillis>,
    /// All samples together.
    seconds: f64,
    totals: Totals,
}

/// What only grows, as far as it was counted: in the head's order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Totals {
    /// Joules of each GPU.
    pub(crate) energy: Vec<f64>,
    /// Errors, packets sent again and marks of congestion of each port.
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

/// The fields of a port that only grow.
pub(crate) const RAIL_TOTALS: [RailField; 3] =
    [RailField::Errors, RailField::Retransmits, RailField::Congestion];

/// What an earlier sampler of this run has begun: its clock, its names and its counts go on.
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
