use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use railgate_node::UnixMillis;
use railgate_runner::{SAMPLER_FILES, SAMPLES_EVENTS, SAMPLES_FINE, SAMPLES_MINUTES};
use railgate_stats::usage::format::{End, Head, Note, Record, Records};
use railgate_stats::usage::{Fold, Sample};

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
const MINUTES_BYTES: u64 = 12 << 20;
/// Minutes that wait while the disk is full.
const PENDING: usize = 60;

/// The files of a run's samples. All of them are only ever appended to or replaced, so whoever is killed has lost at
/// most the record being written; where the disk is full, what was written of a record is taken back.
#[derive(Debug)]
pub(crate) struct Files {
    dir: PathBuf,
    head: Option<Vec<u8>>,
    minutes: Out,
    pending: VecDeque<Vec<u8>>,
    fold: Fold,
    segment: usize,
    segment_s: f64,
    fine: Out,
    events: Out,
    recent: VecDeque<Vec<u8>>,
    after: usize,
    lost: u32,
    why_lost: String,
}

/// A file that holds whole records.
#[derive(Debug)]
struct Out {
    path: PathBuf,
    file: Option<File>,
    length: u64,
}

impl Out {
    fn new(dir: &Path, name: &str) -> Self {
        Out { path: dir.join(name), file: None, length: 0 }
    }

    /// Begins the file anew.
    fn clear(&mut self) {
        self.file = None;
        self.length = 0;
        let _ = fs::remove_file(&self.path);
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(
                File::options()
                    .create(true)
                    .append(true)
                    .mode(0o600)
                    .custom_flags(nix::libc::O_NOFOLLOW)
                    .open(&self.path)?,
            ),
        };
        let written = file.write_all(bytes);
        if written.is_ok() {
            self.length += bytes.len() as u64;
        } else {
            let _ = file.set_len(self.length);
        }
        written
    }
}

impl Files {
    /// In the run's directory. What an earlier sampler of the run left there stays: it is added to.
    pub(crate) fn new(dir: &Path) -> Self {
        let mut files = Files {
            dir: dir.to_owned(),
            head: None,
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
        };
        for out in [&mut files.minutes, &mut files.fine, &mut files.events] {
            out.length = fs::metadata(&out.path).map_or(0, |meta| meta.len());
        }
        files
    }

    /// What the samples from now on are of.
    pub(crate) fn head(&mut self, head: Head) {
        self.flush();
        self.recent.clear();
        let Some(bytes) = encoded(&Record::Head(head)) else { return };
        self.head = Some(bytes.clone());
        self.put_minute(bytes.clone());
        let written = self.fine.append(&bytes).and(self.events.append(&bytes));
        self.told(written);
    }

    /// One sample; `event`: what was before and after it is worth keeping.
    pub(crate) fn sample(&mut self, sample: &Sample, event: bool) {
        if !self.fold.takes(sample.state, sample.gpus.len(), sample.rails.len()) {
            self.flush();
        }
        self.fold.add(sample);
        let Some(bytes) = encoded(&Record::Sample(sample.clone())) else { return };
        if self.fine.length + bytes.len() as u64 > SEGMENT_BYTES || self.segment_s >= SEGMENT_S {
            self.turn();
        }
        self.segment_s += f64::from(sample.seconds);
        let written = self.fine.append(&bytes);
        self.told(written);
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
        if let Some(bytes) = minute.and_then(|minute| encoded(&Record::Sample(minute))) {
            self.put_minute(bytes);
        }
    }

    fn put_minute(&mut self, bytes: Vec<u8>) {
        self.pending.push_back(bytes);
        if self.pending.len() > PENDING {
            // The head stays: without it the rest says nothing.
            self.pending.remove(1);
            self.lost += 1;
        }
        while let Some(first) = self.pending.front() {
            match self.minutes.append(first) {
                Ok(()) => drop(self.pending.pop_front()),
                Err(why) => {
                    self.why_lost = why.to_string();
                    return;
                }
            }
        }
        if self.minutes.length > MINUTES_BYTES
            && let Err(why) = self.halve()
        {
            tracing::info!("sampler: {}: {why}", self.minutes.path.display());
        }
    }

    /// The oldest of the three files is begun anew.
    fn turn(&mut self) {
        self.segment = (self.segment + 1) % SAMPLES_FINE.len();
        self.segment_s = 0.0;
        let name = SAMPLES_FINE.get(self.segment).copied().unwrap_or(SAMPLES_FINE[0]);
        self.fine = Out::new(&self.dir, name);
        self.fine.clear();
        if let Some(head) = self.head.clone() {
            let written = self.fine.append(&head);
            self.told(written);
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.events.length + (bytes.len() as u64) < EVENT_BYTES {
            // It is in the other file, too.
            let _ = self.events.append(bytes);
        }
    }

    fn told(&mut self, written: io::Result<()>) {
        if let Err(why) = written {
            self.lost += 1;
            self.why_lost = why.to_string();
        }
    }

    /// Each two minutes become one.
    fn halve(&mut self) -> io::Result<()> {
        let bytes = fs::read(&self.minutes.path)?;
        let fresh = self.minutes.path.with_extension("next");
        let mut out = io::BufWriter::new(File::create(&fresh)?);
        let mut fold = Fold::default();
        let mut put = |record: &Record| out.write_all(&encoded(record).unwrap_or_default());
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

fn encoded(record: &Record) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    record.write(&mut bytes).is_ok().then_some(bytes)
}

/// What an earlier sampler of this run has begun: its clock goes on.
pub(crate) fn earlier_head(dir: &Path) -> Option<Head> {
    SAMPLER_FILES.iter().find_map(|name| {
        let mut bytes = Vec::new();
        File::open(dir.join(name)).ok()?.take(1 << 20).read_to_end(&mut bytes).ok()?;
        match Records::new(&bytes).next()? {
            Record::Head(head) => Some(head),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use railgate_stats::usage::format::HeadGpu;
    use railgate_stats::usage::{Field, GpuField, HostField, RailField, Values, summarize, timeline};

    const START: u64 = 1_700_000_000_000;

    fn head(gpus: usize, rails: usize) -> Head {
        let gpu = |index| HeadGpu { index, model: "NVIDIA H200".into(), ..HeadGpu::default() };
        Head {
            start: START,
            interval_s: 5.0,
            gpus: (0..u32::try_from(gpus).unwrap()).map(gpu).collect(),
            rails: vec![railgate_stats::usage::format::HeadRail::default(); rails],
            ..Head::new("n1", 7, 0)
        }
    }

    /// Everything that moves while a model is trained.
    fn sample(number: u64) -> Sample {
        let still = ["dfma", "imma", "fp64", "hw_", "sw_", "power_brake"];
        #[expect(clippy::cast_precision_loss, reason = "small")]
        let wave = |k: usize| 50.0 + ((number * 37 + k as u64 * 11) % 101) as f64 / 3.0;
        let mut gpu = Values::default();
        for (k, field) in GpuField::ALL.iter().enumerate() {
            let moves = still.iter().all(|name| !field.name().starts_with(name));
            gpu.put(*field, Some(if moves { wave(k) } else { 0.0 }));
        }
        let mut rail = Values::default();
        for (k, field) in RailField::ALL.iter().enumerate() {
            rail.put(*field, Some(if field.grows() { 0.0 } else { wave(k) }));
        }
        let mut host = Values::default();
        HostField::ALL.iter().for_each(|field| host.put(*field, Some(wave(field.place()))));
        Sample {
            start: START + number * 5000,
            seconds: 5.0,
            folded: 1,
            gpus: vec![gpu; 8],
            rails: vec![rail; 8],
            host,
            ..Sample::default()
        }
    }

    fn all(dir: &Path) -> Vec<Vec<u8>> {
        SAMPLER_FILES.iter().filter_map(|name| fs::read(dir.join(name)).ok()).collect()
    }

    #[test]
    fn a_day_of_eight_gpus_fits_and_its_last_hour_is_fine() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Files::new(dir.path());
        files.head(head(8, 8));
        let day = 24 * 720;
        for number in 0..day {
            files.sample(&sample(number), number % 4000 == 100);
        }
        let streams = all(dir.path());
        let bytes: usize = streams.iter().map(Vec::len).sum();
        assert!(bytes < 4 << 20, "{bytes}");
        let slices: Vec<&[u8]> = streams.iter().map(Vec::as_slice).collect();
        let usage = summarize(&slices, START + day * 5000, &std::collections::BTreeMap::new()).unwrap();
        assert!((usage.coverage.sampled_s - 86_400.0).abs() < 1e-6, "{}", usage.coverage.sampled_s);
        assert_eq!((usage.coverage.missing_s, usage.sampler.samples), (0.0, day));
        let (_, seen) = timeline(&slices.concat()).unwrap();
        let fine = |sample: &&Sample| sample.folded == 1;
        assert!(seen.iter().rev().take(720).all(|sample| sample.folded == 1));
        assert!(seen.iter().filter(fine).filter(|sample| sample.start < START + 8_000_000).count() >= 36);
    }

    #[test]
    fn years_stay_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Files::new(dir.path());
        files.head(head(8, 8));
        let mut minute = sample(0);
        minute.seconds = 60.0;
        for number in 0..9000 {
            minute.start = START + number * 60_000;
            files.sample(&minute, false);
        }
        assert!(files.minutes.length <= MINUTES_BYTES, "{}", files.minutes.length);
        let streams = all(dir.path());
        let slices: Vec<&[u8]> = streams.iter().map(Vec::as_slice).collect();
        let usage = summarize(&slices, START, &std::collections::BTreeMap::new()).unwrap();
        assert_eq!((usage.coverage.sampled_s, usage.sampler.samples), (540_000.0, 9000));
    }

    /// `/dev/full` takes nothing.
    #[test]
    fn what_a_full_disk_refused_is_said_and_comes_later_where_it_can() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Files::new(dir.path());
        files.head(head(8, 8));
        let full = || File::options().write(true).open("/dev/full").unwrap();
        (files.minutes.file, files.fine.file) = (Some(full()), Some(full()));
        for number in 0..25 {
            files.sample(&sample(number), false);
        }
        (files.minutes.file, files.fine.file) = (None, None);
        files.sample(&sample(25), false);
        let end = End {
            at: START,
            cpu_s: 0.0,
            memory_mib: 0.0,
            oom_kills: None,
            memory_peak_mib: None,
            cpus_allowed: None,
        };
        files.end(end);
        let streams = all(dir.path());
        let slices: Vec<&[u8]> = streams.iter().map(Vec::as_slice).collect();
        let usage = summarize(&slices, START + 130_000, &std::collections::BTreeMap::new()).unwrap();
        assert_eq!((usage.coverage.sampled_s, usage.coverage.missing_s), (130.0, 0.0));
        assert_eq!(usage.notes.len(), 1);
        assert!(usage.notes[0].starts_with("25 samples could not be written: No space"), "{:?}", usage.notes);
    }
}
