//! Xids from NVML, for nodes on which the kernel log cannot be read.

use railgate_child::{Said, Stream};
use railgate_model::{Allocation, XidEvent};
use railgate_probe::XidWatch;
use railgate_runner::SAMPLER_XIDS;

use crate::counters::Counters;
use crate::gpus::Waits;
use crate::run::Mine;

/// Maximum number of recorded Xids.
const MOST: usize = 200;

/// Records Xids received by the child that reads the GPUs, or by a child of its own while the other does not
/// wait: it hangs, is restarted only in some minutes, or the user asked it not to access the GPUs.
#[derive(Debug)]
pub(crate) struct Xids {
    wanted: bool,
    /// A child of its own.
    child: Option<Stream>,
    /// The own child ended by itself, so another one would fail too.
    failed: bool,
    seen: Vec<XidEvent>,
}

impl Xids {
    /// If the log can be opened, or the job has no GPU, Xids are not awaited.
    pub(crate) fn new(mine: &Mine) -> Self {
        let mut xids = Xids { wanted: false, child: None, failed: false, seen: Vec::new() };
        let source = &mine.config.source;
        let Err(why) = std::fs::File::open(&source.kmsg) else { return xids };
        if matches!(mine.report.job.allocation, Allocation::NoGpus) {
            return xids;
        }
        tracing::info!(
            job = mine.job,
            "sampler: {}: {why}; Xids are read from NVML, other kernel messages are not",
            source.kmsg.display()
        );
        xids.wanted = true;
        // A killed sampler has recorded Xids before.
        xids.seen = mine.dir.read_json(SAMPLER_XIDS).unwrap_or_default();
        xids
    }

    /// Whether Xids are to be received at all.
    pub(crate) fn wanted(&self) -> bool {
        self.wanted
    }

    /// The Xids so far; `None`: the kernel log has them.
    pub(crate) fn seen(&self) -> Option<&[XidEvent]> {
        self.wanted.then_some(self.seen.as_slice())
    }

    /// Records the Xids received since the last call.
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
        // The existence of the file shows that Xids are received.
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
