//! Xids as NVML tells them, where the kernel's log cannot be read.

use railgate_child::{Said, Stream};
use railgate_model::{Allocation, XidEvent};
use railgate_probe::XidWatch;
use railgate_runner::SAMPLER_XIDS;

use crate::counters::Counters;
use crate::gpus::Waits;
use crate::run::Mine;

/// More of them say nothing more.
const MOST: usize = 200;

/// Writes down what is heard, by the child that reads the GPUs, or by one of its own while that one does not wait: it
/// hangs, is to be started anew only in some minutes, or its user wants the GPUs left alone.
#[derive(Debug)]
pub(crate) struct Xids {
    wanted: bool,
    /// A child of its own.
    child: Option<Stream>,
    /// That ended by itself: another one would fare no better.
    failed: bool,
    seen: Vec<XidEvent>,
}

impl Xids {
    /// Where the log can be opened, or the job has no GPU, nobody waits.
    pub(crate) fn new(mine: &Mine) -> Self {
        let mut xids = Xids { wanted: false, child: None, failed: false, seen: Vec::new() };
        let source = &mine.config.source;
        let Err(why) = std::fs::File::open(&source.kmsg) else { return xids };
        if matches!(mine.report.job.allocation, Allocation::NoGpus) {
            return xids;
        }
        tracing::info!(
            job = mine.job,
            "sampler: {}: {why}; Xids are NVML's, others unseen",
            source.kmsg.display()
        );
        xids.wanted = true;
        // One that was killed has heard something before.
        xids.seen = mine.dir.read_json(SAMPLER_XIDS).unwrap_or_default();
        xids
    }

    /// Whether anybody is to wait.
    pub(crate) fn wanted(&self) -> bool {
        self.wanted
    }

    /// What has come since.
    pub(crate) fn hear(&mut self, mine: &Mine, counters: &mut Counters) {
        if !self.wanted {
            return;
        }
        let known = self.seen.len();
        let (waits, heard) = counters.xids();
        self.add(heard);
        self.listen(mine);
        match waits {
            Waits::Yes => self.child = None,
            Waits::Soon => {}
            Waits::No => self.start(mine),
        }
        let nobody = waits == Waits::No && self.child.is_none();
        // Where the file is, somebody waits.
        if self.seen.len() > known || !(nobody || mine.dir.file(SAMPLER_XIDS).exists()) {
            self.write(mine);
        } else if nobody && self.seen.is_empty() {
            let _ = std::fs::remove_file(mine.dir.file(SAMPLER_XIDS));
        }
    }

    fn add(&mut self, events: Vec<XidEvent>) {
        let room = MOST.saturating_sub(self.seen.len());
        self.seen.extend(events.into_iter().take(room));
    }

    fn start(&mut self, mine: &Mine) {
        if self.child.is_some() || self.failed {
            return;
        }
        match (XidWatch { library: mine.config.source.nvml_library.clone() }).start() {
            Ok(child) => self.child = Some(child),
            Err(why) => {
                self.failed = true;
                tracing::info!(job = mine.job, "sampler: {why}");
            }
        }
    }

    fn listen(&mut self, mine: &Mine) {
        while let Some(child) = &mut self.child {
            match child.listen() {
                Said::Nothing => break,
                Said::This(text) => self.add(serde_json::from_slice(&text).unwrap_or_default()),
                Said::Ended(why) => {
                    tracing::info!(job = mine.job, "sampler: cannot wait for Xids: {why}");
                    (self.child, self.failed) = (None, true);
                }
            }
        }
    }

    fn write(&self, mine: &Mine) {
        if let Err(why) = mine.dir.write_json(SAMPLER_XIDS, &self.seen) {
            tracing::info!(job = mine.job, "sampler: {SAMPLER_XIDS}: {why}");
        }
    }
}
