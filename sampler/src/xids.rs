//! Xids as NVML tells them, where the kernel's log cannot be read.

use railgate_node::child::{Said, Stream};
use railgate_node::{Allocation, XidEvent, XidWatch};
use railgate_runner::SAMPLER_XIDS;

use crate::run::Mine;

/// More of them say nothing more.
const MOST: usize = 200;

/// Waits in a child, and writes down what it hears.
#[derive(Debug)]
pub(crate) struct Xids {
    child: Option<Stream>,
    seen: Vec<XidEvent>,
}

impl Xids {
    /// Where the log can be opened, or the job has no GPU, nobody waits.
    pub(crate) fn new(mine: &Mine) -> Self {
        let mut xids = Xids { child: None, seen: Vec::new() };
        let source = &mine.config.source;
        let none = matches!(mine.report.job.allocation, Allocation::NoGpus);
        let Err(why) = std::fs::File::open(&source.kmsg) else { return xids };
        if none {
            return xids;
        }
        tracing::info!(
            job = mine.job,
            "sampler: {}: {why}; Xids are NVML's, others unseen",
            source.kmsg.display()
        );
        // One that was killed has heard something before.
        xids.seen = mine.dir.read_json(SAMPLER_XIDS).unwrap_or_default();
        match (XidWatch { library: source.nvml_library.clone() }).start() {
            Ok(child) => {
                xids.child = Some(child);
                // Where the file is, somebody waits.
                xids.write(mine);
            }
            Err(why) => tracing::info!(job = mine.job, "sampler: {why}"),
        }
        xids
    }

    /// What has come since.
    pub(crate) fn hear(&mut self, mine: &Mine) {
        let Some(child) = &mut self.child else { return };
        let known = self.seen.len();
        let mut over = false;
        loop {
            match child.listen() {
                Said::Nothing => break,
                Said::This(text) => {
                    let events: Vec<XidEvent> = serde_json::from_slice(&text).unwrap_or_default();
                    let room = MOST.saturating_sub(self.seen.len());
                    self.seen.extend(events.into_iter().take(room));
                }
                Said::Ended(why) => {
                    tracing::info!(job = mine.job, "sampler: nobody waits for Xids: {why}");
                    over = true;
                    break;
                }
            }
        }
        if over {
            self.child = None;
        }
        if self.seen.len() > known {
            self.write(mine);
        } else if over && self.seen.is_empty() {
            let _ = std::fs::remove_file(mine.dir.file(SAMPLER_XIDS));
        }
    }

    fn write(&self, mine: &Mine) {
        if let Err(why) = mine.dir.write_json(SAMPLER_XIDS, &self.seen) {
            tracing::info!(job = mine.job, "sampler: {SAMPLER_XIDS}: {why}");
        }
    }
}
