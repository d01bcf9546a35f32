//! One reading of all sources.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use railgate_alerts::{Condition, Observation, fleet_conditions};
use railgate_fleet::{Event, History, NodeRecord, Settings, judge};
use railgate_fleet_intake::Intake;
use railgate_fleet_store::{EnteredFile, StoreError, Taken, Writer};
use railgate_metrics::{FLEET_FILE, FleetNow, TextfileDir, fleet_page};
use railgate_model::UnixMillis;
use railgate_runner::Lemons;
use railgate_slurm::{Appended, NodeState};
use railgate_store::{Scanned, scan};
use railgate_text::Printable;

use crate::idle::IdleGpus;
use crate::lemons::LemonDrains;
use crate::places::Site;
use crate::queue::Queue;
use crate::storage::Storage;
use crate::ufm::Ufm;
use crate::{conditions, figures};

/// Deadline for reading the report directory in one pass, and for each child that reads it. The next pass reads the remaining attempts.
const REPORTS: Duration = Duration::from_secs(40);
const ONE_SCAN: Duration = Duration::from_secs(20);
/// slurmctld is asked once a minute at most. A timer of a minute can be some milliseconds early.
const ASK_EVERY: UnixMillis = 55_000;
/// How often old events are deleted.
const SWEEP_EVERY: UnixMillis = 6 * 3_600_000;
const DAY: UnixMillis = 24 * 3_600_000;
/// A judgement reads the whole history. The next one follows after this many times its duration: a large history
/// does not delay the reading of the sources by more than a tenth.
const JUDGE_PAUSE: u32 = 10;

/// Takes the sources into the history.
#[derive(Debug)]
pub(crate) struct Desk {
    site: Site,
    writer: Writer,
    intake: Intake,
    judged: Judged,
    lemons: LemonDrains,
    metrics: Metrics,
    queue: Queue,
    idle: IdleGpus,
    storage: Storage,
    ufm: Ufm,
    /// The reservation that each node is in, by the last answer of slurmctld.
    reservations: BTreeMap<String, String>,
    /// Size of the file of entered events whose events are in the history.
    entered: u64,
}

/// The last judgement.
#[derive(Debug, Default)]
struct Judged {
    conditions: Vec<Condition>,
    /// Nodes whose drain is proposed.
    proposed: Vec<NodeRecord>,
    /// `None`: the history could not be judged.
    figures: Option<FleetNow>,
    /// No further one before this time.
    not_before: Option<Instant>,
}

/// Figures of this program for Prometheus.
#[derive(Debug, Default)]
struct Metrics {
    /// Time of the last reading in which all sources answered.
    complete: Option<UnixMillis>,
    events: u64,
    /// Why the file could not be written: logged once while it holds.
    problem: Option<String>,
}

/// What a pass did.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    taken: Taken,
    /// Events of years ago, or of the future.
    left_out: usize,
    swept: usize,
    /// There are more reports than one pass reads.
    more: bool,
    /// Files and lines that were left out, one line each. A user can make such files at any time: they are no failure of a source.
    notes: Vec<String>,
    /// Sources that could not be read, one line each.
    pub(crate) problems: Vec<String>,
    /// States of all nodes; `None`: slurmctld was not asked, or did not answer.
    states: Option<Vec<NodeState>>,
}

impl Passed {
    pub(crate) fn log(&self) {
        for problem in self.problems.iter().chain(&self.notes) {
            tracing::warn!("{problem}");
        }
        let Taken { new, known, conflicting } = self.taken;
        if self.swept > 0 {
            tracing::info!("{} old events deleted", self.swept);
        }
        let more = if self.more { "; more reports follow in the next pass" } else { "" };
        let left_out = match self.left_out {
            0 => String::new(),
            left_out => format!(", {left_out} outside of the retention"),
        };
        tracing::info!("{new} new events, {known} known, {conflicting} changed{left_out}{more}");
    }
}

impl Passed {
    /// Whether all sources were read to their end: a condition that is missing now is over.
    fn is_complete(&self) -> bool {
        self.problems.is_empty() && !self.more && self.states.is_some()
    }
}

/// Whether the next pass may succeed after this error.
pub(crate) fn may_pass(why: &anyhow::Error) -> bool {
    matches!(why.downcast_ref::<StoreError>(), Some(StoreError::Full { .. } | StoreError::Held { .. }))
}

impl Desk {
    pub(crate) fn new(site: Site, writer: Writer) -> anyhow::Result<Desk> {
        // Without a readable place everything is read again, with the same result.
        let kept = writer.intake()?;
        let intake = kept.and_then(|kept| serde_json::from_str(&kept).ok()).unwrap_or_default();
        Ok(Desk {
            site,
            writer,
            intake,
            judged: Judged::default(),
            lemons: LemonDrains::default(),
            metrics: Metrics::default(),
            queue: Queue::default(),
            idle: IdleGpus::default(),
            storage: Storage::default(),
            ufm: Ufm::default(),
            reservations: BTreeMap::new(),
            entered: 0,
        })
    }

    /// Returns the conditions after a pass, for alerts. A failed pass makes an observation that is not complete: a condition that is
    /// missing in it may last.
    pub(crate) fn observation(&mut self, passed: Option<&Passed>, now: UnixMillis) -> Observation {
        let judged = self.judge(now);
        let states = passed.and_then(|passed| passed.states.as_deref());
        if let Some(states) = states {
            self.reservations = conditions::reservations(states);
        }
        let states = states.unwrap_or_default();
        let of_slurm = conditions::of_nodes(states).into_iter().chain(conditions::of_hangs(states, now));
        let mut conditions: Vec<_> = self.judged.conditions.iter().cloned().chain(of_slurm).collect();
        let Site { config, client, .. } = &self.site;
        conditions.extend(self.storage.conditions(&config.fleet.storage));
        conditions.extend_from_slice(self.queue.conditions(&config.fleet, client, now));
        conditions.extend_from_slice(self.idle.conditions(config, || self.site.cluster(), now));
        conditions.extend_from_slice(self.ufm.conditions(config.fleet.ufm.as_ref()));
        let is_known = self.queue.is_known() && self.idle.is_known() && self.ufm.is_known();
        let complete = judged && passed.is_some_and(Passed::is_complete) && is_known;
        for condition in &mut conditions {
            condition.add_reservations(&self.reservations);
        }
        Observation { conditions, time: now, complete }
    }

    /// Judges the history again if that is due. Returns false if it could not be judged.
    fn judge(&mut self, now: UnixMillis) -> bool {
        if self.judged.not_before.is_some_and(|time| Instant::now() < time) {
            return self.judged.figures.is_some();
        }
        let begin = Instant::now();
        match self.writer.events(0, now) {
            Ok(events) => {
                let settings = Settings::default();
                let history = History::new(events, now);
                let judgement = judge(&history, &settings);
                self.judged.conditions = fleet_conditions(&judgement);
                self.judged.figures = Some(figures::of(&history, &judgement, &settings));
                self.judged.proposed =
                    judgement.nodes.into_iter().filter(NodeRecord::proposes_drain).collect();
            }
            Err(why) => {
                tracing::warn!("the history cannot be judged: {why}");
                self.judged.figures = None;
            }
        }
        self.judged.not_before = Some(Instant::now() + begin.elapsed() * JUDGE_PAUSE);
        self.judged.figures.is_some()
    }

    /// Drains the nodes whose drain is proposed, if the site wants that and all sources were read to their end.
    pub(crate) fn drain_lemons(&mut self, passed: &Passed, now: UnixMillis) {
        let is_wanted = self.site.config.fleet.lemons == Lemons::Drain;
        if !is_wanted || !passed.is_complete() || !self.judge(now) {
            return;
        }
        let states = passed.states.as_deref().unwrap_or_default();
        let drained = self.lemons.drain(&self.site, &self.judged.proposed, states);
        if drained.is_empty() {
            return;
        }
        // A node can be resumed before the next reading.
        let mut next = self.intake.clone();
        let events: Vec<Event> =
            drained.iter().map(|(node, reason)| next.lemon_drained(node, reason, now)).collect();
        if let Err(why) = self.keep(next, &events, now, &mut Passed::default()) {
            tracing::error!("the drains of lemons are not in the history yet: {why:#}");
        }
    }

    /// Writes the figures for Prometheus after a pass, if `[metrics] dir` is set. A failure is logged and has no other effect. Without a
    /// judgement nothing is written: the age of the file shows that.
    pub(crate) fn write_metrics(&mut self, passed: Option<&Passed>, now: UnixMillis) {
        let Some(dir) = self.site.config.metrics.dir.clone() else { return };
        if let Some(passed) = passed {
            self.metrics.events += u64::try_from(passed.taken.new).unwrap_or(0);
            self.metrics.complete = passed.is_complete().then_some(now).or(self.metrics.complete);
        }
        self.judge(now);
        let Some(figures) = &self.judged.figures else { return };
        let complete_s = self.metrics.complete.map(|time| time as f64 / 1000.0);
        let page = fleet_page(&FleetNow { complete_s, events: self.metrics.events, ..figures.clone() });
        let written = TextfileDir::open(&dir).and_then(|dir| dir.put(FLEET_FILE, &page));
        let problem = written.err().map(|why| format!("{}: {why}", Printable(dir.display())));
        if let Some(why) = problem.as_ref().filter(|_| problem != self.metrics.problem) {
            tracing::warn!("metrics: {why}");
        }
        self.metrics.problem = problem;
    }

    /// Reads all sources once. A source that cannot be read is named, and read from the same place the next time.
    ///
    /// # Errors
    /// The history cannot be written. The next pass reads the same records again.
    pub(crate) fn pass(&mut self, now: UnixMillis) -> anyhow::Result<Passed> {
        let mut passed = Passed::default();
        let until = Instant::now() + REPORTS;
        loop {
            let mut next = self.intake.clone();
            let more = self.read(&mut next, now, &mut passed)?;
            if !more || Instant::now() >= until {
                passed.more = more;
                break;
            }
        }
        let mut next = self.intake.clone();
        let mut events = self.nodes(&mut next, now, &mut passed);
        let (entered, size) = self.entered(&mut passed);
        events.extend(entered);
        self.keep(next, &events, now, &mut passed)?;
        self.entered = size;
        if now.saturating_sub(self.intake.swept) >= SWEEP_EVERY {
            passed.swept = self.writer.forget_before(self.from(now), now)?;
            let mut next = self.intake.clone();
            next.swept = now;
            self.keep(next, &[], now, &mut passed)?;
        }
        Ok(passed)
    }

    /// The beginning of the history.
    fn from(&self, now: UnixMillis) -> UnixMillis {
        now.saturating_sub(u64::from(self.site.config.fleet.retention_days) * DAY)
    }

    /// Reads the report directory and the ledger. Returns whether there is more to read now.
    fn read(&mut self, next: &mut Intake, now: UnixMillis, passed: &mut Passed) -> anyhow::Result<bool> {
        let scanned = self.scan(next).unwrap_or_else(|why| {
            passed.problems.push(why);
            Scanned::default()
        });
        passed.notes.extend(scanned.problems.iter().map(|problem| format!("reports: {problem}")));
        let appended = match self.site.ledger.read_after(&mut next.ledger) {
            Ok(appended) => appended,
            Err(why) => {
                passed.problems.push(format!("ledger: {why}"));
                // A decision has its start from the ledger: its attempt is read again.
                next.reports = self.intake.reports.clone();
                let nothing = next.clone();
                self.keep(nothing, &[], now, passed)?;
                return Ok(false);
            }
        };
        let Appended { unreadable, .. } = appended;
        if unreadable > 0 {
            passed.notes.push(format!("ledger: {unreadable} new lines cannot be read"));
        }
        let mut events = next.ledger(&appended);
        events.extend(next.attempts(&scanned, &self.site.trusted));
        self.keep(next.clone(), &events, now, passed)?;
        Ok(scanned.more)
    }

    fn scan(&self, next: &mut Intake) -> Result<Scanned, String> {
        let Some(cluster) = self.site.cluster()? else { return Ok(Scanned::default()) };
        scan(&self.site.config.report, &cluster, &mut next.reports, ONE_SCAN)
            .map_err(|why| format!("reports: {why}"))
    }

    /// The events that admins have entered, and the size of their file; none if the file has not grown.
    fn entered(&self, passed: &mut Passed) -> (Vec<Event>, u64) {
        let file = EnteredFile::beside(&self.site.config.fleet.database);
        let size = file.size();
        if size == self.entered {
            return (Vec::new(), size);
        }
        match file.read() {
            Ok(entered) => {
                passed.notes.extend(entered.problems);
                (entered.events, size)
            }
            Err(why) => {
                passed.problems.push(format!("entered events: {why}"));
                (Vec::new(), self.entered)
            }
        }
    }

    /// The site's table, and the nodes of Slurm if they are due.
    fn nodes(&self, next: &mut Intake, now: UnixMillis, passed: &mut Passed) -> Vec<Event> {
        let mut events = next.site(&self.site.shared, now, self.from(now));
        // A clock that was set back must not end the calls.
        if now >= next.asked && now - next.asked < ASK_EVERY {
            return events;
        }
        next.asked = now;
        match self.site.client.all_nodes() {
            Ok(states) => {
                events.extend(next.nodes(&states, now, self.from(now)));
                passed.states = Some(states);
            }
            // No answer says nothing about nodes.
            Err(why) => passed.problems.push(format!("nodes: could not tell: {why}")),
        }
        events
    }

    /// Commits events and the place of their sources together.
    fn keep(
        &mut self,
        next: Intake,
        events: &[Event],
        now: UnixMillis,
        passed: &mut Passed,
    ) -> anyhow::Result<()> {
        let span = self.from(now)..=now.saturating_add(DAY);
        let wanted: Vec<Event> = events.iter().filter(|event| span.contains(&event.time)).cloned().collect();
        passed.left_out += events.len() - wanted.len();
        let place = (next != self.intake).then(|| serde_json::to_string(&next)).transpose();
        let place = place.context("place of the sources")?;
        // Also without events: the lease is renewed.
        let taken = self.writer.take_in_from(&wanted, place.as_deref(), now)?;
        passed.taken.new += taken.new;
        passed.taken.known += taken.known;
        passed.taken.conflicting += taken.conflicting;
        self.intake = next;
        Ok(())
    }
}
