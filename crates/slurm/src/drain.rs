//! Draining a node, and everything that can stand in its way.
//!
//! A drain that is not ours is never touched. Under a lock of this node (prolog, epilog and periodic check may
//! come at once): the reason is written down first as *pending*, then the node's state is read, then the
//! breaker asked, then the drain sent. If slurmctld does not answer, the pending reason stays and
//! [`DrainDesk::settle_pending`] brings it to its place later, also onto the "Prolog error" that Slurm itself
//! puts on a node whose prolog failed.
//!
//! The breaker's cap holds in a storm too: slurmctld knows no compare-and-swap, so every node drains, waits
//! until no later drain can carry its own second, counts again, and takes its drain back if others were there
//! before it. All nodes see the same order (time, then name), so exactly the oldest stay. A process that is killed
//! between the drain and that count leaves its pending reason in the stage *sent*, and the next railgate program on
//! the node counts for it.
//!
//! The lock protects two things that each process reads, changes and writes back: the pending reason and the job ids in
//! the node's reason. An unfit node is drained without the lock, too, if it cannot be had in time: such a process writes
//! a pending reason of its own (`pending-reason.PID.json`) and leaves it behind in the stage *done*. The next process that
//! has the lock adds the job ids that another process has overwritten meanwhile.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use railgate_fsutil::{FileLock, read_small, write_whole};
use railgate_model::{Phase, UnixMillis};
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::answer::{SinfoLine, UnixSeconds};
use crate::breaker::{self, Cap};
use crate::{BreakerConfig, Client, NodeState, Reason, is_ours};

/// How long the node's other railgate processes may keep the lock.
const LOCK_WAIT: Duration = Duration::from_secs(10);

/// All commands of one drain together. A controller that answers each of them late must not carry prolog or
/// epilog beyond PrologEpilogTimeout: Slurm then drains the node in its own words, past the breaker.
const PATIENCE: Duration = Duration::from_secs(40);

/// A node that nobody drained is drained by a pending reason only within this time: later somebody may have
/// repaired it.
const PENDING_FRESH: u64 = 15 * 60;

/// Looks are over within this time. A node that was given back later than that after one has its clock set back.
const LOOK_MS: UnixMillis = 10 * 60 * 1000;

/// The clocks of node and controller differ by less than this.
const CLOCK_SLACK: u64 = 5;

/// slurmctld stamps drains in whole seconds.
const STAMP: Duration = Duration::from_millis(1100);

/// How often the nodes that are held are asked for after a drain, until there is an answer.
const COUNTS: u32 = 3;

/// A drain is not sent with less time left: there must be time to count again.
const COUNT_TIME: Duration = Duration::from_secs(5);

/// Pending reasons that are read. There are more only if as many processes were killed without the lock.
const MOST_PENDING: usize = 64;

/// What Slurm itself writes on a node whose prolog or epilog failed.
const SLURMS_OWN: [&str; 2] = ["Prolog error", "Epilog error"];

/// Whether anything may be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acting {
    /// Yes.
    Allowed,
    /// No, and why: report mode, the flag file, a pause, a test's roots.
    Forbidden(String),
}

/// What became of a drain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DrainOutcome {
    /// The node is drained with this reason.
    Drained {
        /// Its reason.
        reason: String,
    },
    /// It was ours already.
    AlreadyOurs {
        /// The reason that stands now.
        reason: String,
        /// A job id was added to it.
        added: bool,
    },
    /// Somebody else holds it, or it is being serviced; nothing was changed.
    Foreign {
        /// Their reason.
        reason: String,
    },
    /// The cap is reached; the node is not drained by us.
    BreakerOpen {
        /// `cluster`, or `partition main`.
        scope: String,
        /// Nodes that railgate holds there besides this one.
        held: usize,
        /// How many it may hold.
        limit: usize,
    },
    /// slurmctld gave no usable answer (the text says how); the reason is kept for later.
    Pending(String),
    /// Nothing was sent, and why.
    NotActing(String),
}

impl DrainOutcome {
    /// The drain reason carries our job ids.
    pub fn carries_evidence(&self) -> bool {
        matches!(self, DrainOutcome::Drained { .. } | DrainOutcome::AlreadyOurs { .. })
    }
}

impl std::fmt::Display for DrainOutcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DrainOutcome::Drained { reason } => write!(f, "drained: {reason}"),
            DrainOutcome::AlreadyOurs { reason, .. } => write!(f, "drained before: {reason}"),
            DrainOutcome::Foreign { reason } => write!(f, "drained by others: {reason}"),
            DrainOutcome::BreakerOpen { scope, held, limit } => {
                let what = "nodes that railgate holds in the";
                write!(f, "not drained, the breaker is open: {what} {scope}: {held} (at most {limit})")
            }
            DrainOutcome::Pending(why) => write!(f, "reason kept for later: {why}"),
            DrainOutcome::NotActing(why) => write!(f, "nothing sent: {why}"),
        }
    }
}

/// How far a pending reason has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Nothing was sent.
    #[default]
    Waiting,
    /// The drain was sent. Whether it stays within the breaker's cap has not been counted.
    Sent,
    /// The drain stands, set without the lock: another process may have overwritten the job ids.
    Done,
}

/// The reason that could not be set yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// Layout of the file.
    pub schema: u32,
    /// Slurm's name of the node.
    pub node: String,
    /// The boot in which the fault was seen.
    pub boot_id: String,
    /// When the first try was made.
    pub made: UnixSeconds,
    /// The reason's text.
    pub reason: String,
    /// How far it has come.
    #[serde(default)]
    pub stage: Stage,
}

/// Pending reasons of this node and boot, put together.
#[derive(Debug, Default)]
struct Earlier {
    /// The first one's time.
    made: Option<UnixSeconds>,
    /// The first one's reason, with the job ids of all.
    reason: Option<Reason>,
    /// One waits to be sent.
    waiting: bool,
    /// One was sent and not counted.
    sent: bool,
    /// All files, also those of another node or boot.
    files: Vec<PathBuf>,
}

/// All that a drain needs besides the reason.
#[derive(Clone, Debug)]
pub struct DrainDesk {
    client: Client,
    breaker: BreakerConfig,
    lock: PathBuf,
    pending: PathBuf,
    given_back: PathBuf,
    looked: Option<UnixMillis>,
    until: Option<Instant>,
    acting: Acting,
    stamp: Duration,
}

impl DrainDesk {
    /// `run` is `/run/railgate` (the lock, when the node was given back), `state` is `/var/lib/railgate` (the pending
    /// reason).
    pub fn new(client: Client, breaker: BreakerConfig, run: &Path, state: &Path, acting: Acting) -> Self {
        DrainDesk {
            client,
            breaker,
            lock: run.join("drain.lock"),
            pending: state.join("pending-reason.json"),
            given_back: run.join("given-back"),
            looked: None,
            until: None,
            acting,
            stamp: STAMP,
        }
    }

    /// The same with another leave to act.
    #[must_use]
    pub fn acting(self, acting: Acting) -> Self {
        DrainDesk { acting, ..self }
    }

    /// The same for what a look found that began then. A node that was given back since is not drained by it: what it saw
    /// may be what was repaired.
    #[must_use]
    pub fn of_look(self, began: UnixMillis) -> Self {
        DrainDesk { looked: Some(began), ..self }
    }

    /// The same with a deadline for everything: lock waits, Slurm's commands, the count after a drain.
    #[must_use]
    pub fn until(self, until: Instant) -> Self {
        DrainDesk { until: Some(until), ..self }
    }

    /// Under the lock: whoever waits for it to drain must not undo this.
    pub(crate) fn was_given_back(&self) {
        if let Err(why) = fs::write(&self.given_back, now_ms().to_string()) {
            warn!("{}: {why}", self.given_back.display());
        }
    }

    pub(crate) fn is_acting(&self) -> &Acting {
        &self.acting
    }

    /// `/run/railgate`.
    pub(crate) fn run(&self) -> &Path {
        self.lock.parent().unwrap_or(Path::new("/run/railgate"))
    }

    fn looked_before_that(&self) -> bool {
        let given = || fs::read_to_string(&self.given_back).ok()?.parse::<UnixMillis>().ok();
        let since = self.looked.and_then(|looked| given()?.checked_sub(looked));
        since.is_some_and(|since| since <= LOOK_MS)
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Drains this node, or adds the reason's jobs to our drain of it.
    pub fn drain(&self, node: &str, boot_id: &str, reason: &Reason) -> DrainOutcome {
        if let Acting::Forbidden(why) = &self.acting {
            return DrainOutcome::NotActing(why.clone());
        }
        let lock = self.lock();
        if let Err(why) = &lock {
            warn!("{why}: draining {node} without the lock");
        }
        if self.looked_before_that() {
            return DrainOutcome::NotActing("the node was resumed after this check began".to_owned());
        }
        let earlier = self.earlier(node, boot_id);
        let mut reason = reason.clone();
        for &job in earlier.reason.iter().flat_map(|earlier| &earlier.jobs) {
            reason.add_job(job);
        }
        self.bring(node, boot_id, &reason, &earlier, lock.is_ok(), true)
    }

    /// Brings a pending reason to its place, if there is one; the periodic check calls it before it looks.
    pub fn settle_pending(&self, node: &str, boot_id: &str) -> Option<DrainOutcome> {
        if self.pending_files().is_empty() {
            return None;
        }
        if let Acting::Forbidden(why) = &self.acting {
            return Some(DrainOutcome::NotActing(why.clone()));
        }
        let lock = match self.lock_or_why() {
            Ok(lock) => Some(lock),
            // Another process is at this very reason.
            Err(why) if why.kind() == io::ErrorKind::TimedOut => {
                return Some(DrainOutcome::Pending(self.not_locked(&why)));
            }
            Err(why) => {
                warn!("{}: the pending reason is settled without the lock", self.not_locked(&why));
                None
            }
        };
        let earlier = self.earlier(node, boot_id);
        let (Some(made), Some(reason)) = (earlier.made, earlier.reason.clone()) else {
            // Of another boot, or not to be read: a reboot may have cured it, and the gate will look anyway.
            self.drop_pending();
            return None;
        };
        let may_drain = earlier.waiting && now().saturating_sub(made) <= PENDING_FRESH;
        Some(self.bring(node, boot_id, &reason, &earlier, lock.is_some(), may_drain))
    }

    /// As [`DrainDesk::settle_pending`], but only for a drain that was sent and then not finished. For prolog and epilog,
    /// which ask slurmctld nothing otherwise.
    pub fn settle_unfinished(&self, node: &str, boot_id: &str) -> Option<DrainOutcome> {
        let unfinished = self
            .pending_files()
            .iter()
            .any(|file| read_pending(file).is_some_and(|pending| pending.stage != Stage::Waiting));
        unfinished.then(|| self.settle_pending(node, boot_id)).flatten()
    }

    /// Writes the reason down, sends it, and forgets it once nothing is left to do.
    fn bring(
        &self,
        node: &str,
        boot_id: &str,
        reason: &Reason,
        earlier: &Earlier,
        locked: bool,
        may_drain: bool,
    ) -> DrainOutcome {
        // Before anything is sent: a process that is killed at a deadline then loses nothing.
        let mut mark = Mark {
            file: if locked { self.pending.clone() } else { self.own_pending() },
            pending: Pending {
                schema: 1,
                node: node.to_owned(),
                boot_id: boot_id.to_owned(),
                made: earlier.made.unwrap_or_else(now),
                reason: reason.to_string(),
                stage: match (earlier.sent, may_drain) {
                    (true, _) => Stage::Sent,
                    (false, true) => Stage::Waiting,
                    (false, false) => Stage::Done,
                },
            },
        };
        if mark.write().is_ok() && locked {
            for file in earlier.files.iter().filter(|file| **file != mark.file) {
                remove(file);
            }
        }
        let (outcome, counted) = self.settle(node, reason, earlier, &mut mark, may_drain);
        match outcome {
            DrainOutcome::Pending(_) => {}
            _ if !counted => {}
            _ if locked => self.drop_pending(),
            _ if outcome.carries_evidence() && !reason.jobs.is_empty() => {
                mark.pending.stage = Stage::Done;
                let _ = mark.write();
            }
            _ => remove(&mark.file),
        }
        if outcome.carries_evidence() && self.let_through(node, false).is_some() {
            self.take_back_let_through(node);
        }
        outcome
    }

    /// What became of the reason, and whether the cap is known to hold.
    fn settle(
        &self,
        node: &str,
        reason: &Reason,
        earlier: &Earlier,
        mark: &mut Mark,
        may_drain: bool,
    ) -> (DrainOutcome, bool) {
        let until = self.patience();
        let client = &self.client.until(until);
        let state = match client.node(node) {
            Ok(state) => state,
            Err(why) => return (DrainOutcome::Pending(why.to_string()), true),
        };
        if state.held() {
            if earlier.sent && sent_by_us(&state, earlier.made) {
                let text = state.reason.as_ref().map(|reason| reason.text.clone()).unwrap_or_default();
                let (outcome, counted) = self.count_again(client, node, text);
                if !counted || !matches!(outcome, DrainOutcome::Drained { .. }) {
                    return (outcome, counted);
                }
            }
            return (self.held(client, node, &state, reason, earlier.made), true);
        }
        if let Some(service) = state.serviced().filter(|service| leaves_alone(service, reason.phase)) {
            return (DrainOutcome::Foreign { reason: service.to_ascii_lowercase() }, true);
        }
        if !may_drain {
            let why = "the node is in service, and the finding is too old or was acted on before";
            return (DrainOutcome::NotActing(why.to_owned()), true);
        }
        match listed(client, node) {
            Ok(cluster) => {
                if let Err(open) = breaker::allows(&self.breaker, &cluster, node) {
                    self.note_let_through(client, node, reason, &state.comment, now());
                    return (open.into(), true);
                }
            }
            Err(why) if reason.lost() => warn!("drain count unavailable, draining: {why}"),
            Err(why) => return (DrainOutcome::Pending(why), true),
        }
        if until.saturating_duration_since(Instant::now()) < self.stamp + COUNT_TIME {
            let why = "slurmctld answers late: no time left to count drained nodes after a drain";
            return (DrainOutcome::Pending(why.to_owned()), true);
        }
        mark.pending.stage = Stage::Sent;
        let _ = mark.write();
        let text = reason.to_string();
        if let Err(why) = client.drain_node(node, &text) {
            return (DrainOutcome::Pending(why.to_string()), true);
        }
        self.count_again(client, node, text)
    }

    fn held(
        &self,
        client: &Client,
        node: &str,
        state: &NodeState,
        reason: &Reason,
        pending: Option<UnixSeconds>,
    ) -> DrainOutcome {
        let (text, since) =
            state.reason.as_ref().map_or(("", None), |reason| (reason.text.as_str(), reason.since));
        if is_ours(text) {
            // An admin may have put words of their own behind our leader: those stay.
            let Some(mut standing) = Reason::parse(text) else {
                return DrainOutcome::AlreadyOurs { reason: text.to_owned(), added: false };
            };
            let mut added = false;
            for &job in &reason.jobs {
                added |= standing.add_job(job);
            }
            if !added {
                return DrainOutcome::AlreadyOurs { reason: text.to_owned(), added };
            }
            if reason.phase == Phase::Epilog {
                standing.phase = Phase::Epilog;
            }
            let text = standing.to_string();
            return match client.set_reason(node, &text) {
                Ok(()) => DrainOutcome::AlreadyOurs { reason: text, added },
                Err(why) => DrainOutcome::Pending(why.to_string()),
            };
        }
        let slurms_own = SLURMS_OWN.contains(&text)
            && pending.is_some_and(|made| since.is_some_and(|since| since + CLOCK_SLACK >= made));
        if !slurms_own {
            let reason = if text.is_empty() { state.state().to_ascii_lowercase() } else { text.to_owned() };
            return DrainOutcome::Foreign { reason };
        }
        let text = reason.to_string();
        match client.set_reason(node, &text) {
            Ok(()) => DrainOutcome::Drained { reason: text },
            Err(why) => DrainOutcome::Pending(why.to_string()),
        }
    }

    /// Takes our drain back if other nodes were first; also whether that could be told.
    fn count_again(&self, client: &Client, node: &str, text: String) -> (DrainOutcome, bool) {
        let drained = |text: String, counted: bool| (DrainOutcome::Drained { reason: text }, counted);
        // In a storm slurmctld is slow, and that is when the cap matters.
        let counted = (0..COUNTS).find_map(|_| {
            std::thread::sleep(self.stamp);
            listed(client, node).map_err(|why| warn!("could not count again after draining: {why}")).ok()
        });
        let Some(cluster) = counted else { return drained(text, false) };
        let Err(open) = breaker::allows(&self.breaker, &cluster, node) else { return drained(text, true) };
        // Only what we ourselves have just set: an admin's words may stand there by now.
        let comment = match client.node(node) {
            Ok(state) => {
                match state.reason.filter(|reason| state_is_drained(&state.flags) && reason.text != text) {
                    Some(other) if !is_ours(&other.text) => {
                        return (DrainOutcome::Foreign { reason: other.text }, true);
                    }
                    Some(other) => {
                        return (DrainOutcome::AlreadyOurs { reason: other.text, added: false }, true);
                    }
                    None => {}
                }
                state.comment
            }
            Err(why) => {
                warn!("over the cap, and the drain cannot be taken back: {why}");
                return drained(text, false);
            }
        };
        match client.undrain_node(node) {
            Ok(()) => {
                warn!("{node}: drained a moment ago and taken back, other nodes were first");
                if let Some(reason) = Reason::parse(&text) {
                    self.note_let_through(client, node, &reason, &comment, now());
                }
                (open.into(), true)
            }
            Err(why) => {
                warn!("over the cap, and the drain cannot be taken back: {why}");
                drained(text, false)
            }
        }
    }

    /// All commands end by then.
    pub(crate) fn patience(&self) -> Instant {
        let patience = Instant::now() + PATIENCE;
        self.until.map_or(patience, |until| until.min(patience))
    }

    pub(crate) fn lock(&self) -> Result<FileLock, String> {
        self.lock_or_why().map_err(|why| self.not_locked(&why))
    }

    fn not_locked(&self, why: &io::Error) -> String {
        format!("{}: {why}", self.lock.display())
    }

    /// Makes our directories too: after a boot the periodic check may come before any job.
    fn lock_or_why(&self) -> io::Result<FileLock> {
        for place in [self.lock.parent(), self.pending.parent()].into_iter().flatten() {
            if let Err(why) = fs::DirBuilder::new().recursive(true).mode(0o755).create(place) {
                warn!("{}: {why}", place.display());
            }
        }
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        // Half of what is left: the drain needs the rest.
        FileLock::take(&self.lock, left.map_or(LOCK_WAIT, |left| LOCK_WAIT.min(left / 2)))
    }

    /// Of a process without the lock.
    fn own_pending(&self) -> PathBuf {
        self.pending.with_extension(format!("{}.json", std::process::id()))
    }

    fn pending_files(&self) -> Vec<PathBuf> {
        let is_one = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with("pending-reason.") && name.ends_with(".json")
        };
        let entries = self.pending.parent().map(fs::read_dir).into_iter().flatten().flatten().flatten();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_one).collect();
        files.sort_unstable();
        files.truncate(MOST_PENDING);
        files
    }

    fn earlier(&self, node: &str, boot_id: &str) -> Earlier {
        let mut earlier = Earlier { files: self.pending_files(), ..Earlier::default() };
        for pending in earlier.files.iter().filter_map(|file| read_pending(file)) {
            let of_this = pending.node == node && pending.boot_id == boot_id && !boot_id.is_empty();
            let Some(reason) = Reason::parse(&pending.reason).filter(|_| of_this) else { continue };
            earlier.made = Some(earlier.made.map_or(pending.made, |made| made.min(pending.made)));
            earlier.waiting |= pending.stage == Stage::Waiting;
            earlier.sent |= pending.stage == Stage::Sent;
            match &mut earlier.reason {
                None => earlier.reason = Some(reason),
                Some(first) => {
                    for job in reason.jobs {
                        first.add_job(job);
                    }
                }
            }
        }
        earlier
    }

    pub(crate) fn drop_pending(&self) {
        for file in self.pending_files() {
            remove(&file);
        }
    }
}

/// What sinfo says of the cluster. A node that is not listed cannot be counted against the caps of its partitions.
fn listed(client: &Client, node: &str) -> Result<Vec<SinfoLine>, String> {
    let cluster = client.cluster().map_err(|why| why.to_string())?;
    let listed = cluster.iter().any(|line| line.node == node);
    if listed { Ok(cluster) } else { Err(format!("sinfo does not list {node}")) }
}

/// A pending reason and its file.
#[derive(Debug)]
struct Mark {
    file: PathBuf,
    pending: Pending,
}

impl Mark {
    fn write(&self) -> io::Result<()> {
        let written = write_whole(&self.file, &serde_json::to_vec(&self.pending)?, 0o644);
        if let Err(why) = &written {
            warn!("{}: {why}: the reason is lost if this process is killed", self.file.display());
        }
        written
    }
}

fn read_pending(file: &Path) -> Option<Pending> {
    serde_json::from_slice(&read_small(file).ok()?).ok()
}

fn remove(file: &Path) {
    match fs::remove_file(file) {
        Err(why) if why.kind() != io::ErrorKind::NotFound => warn!("{}: {why}", file.display()),
        _ => {}
    }
}

/// The drain is the one that a process of ours sent since then.
fn sent_by_us(state: &NodeState, made: Option<UnixSeconds>) -> bool {
    state.reason.as_ref().is_some_and(|reason| {
        is_ours(&reason.text)
            && made.zip(reason.since).is_none_or(|(made, since)| since + CLOCK_SLACK >= made)
    })
}

impl From<Cap> for DrainOutcome {
    fn from(cap: Cap) -> Self {
        DrainOutcome::BreakerOpen { scope: cap.scope, held: cap.held, limit: cap.limit }
    }
}

/// In a maintenance reservation, and while a reboot waits for the node's jobs, the periodic check only reports:
/// what it saw may be what is being mended. A job that Slurm starts there all the same is protected as anywhere. Its
/// prolog must fail, and without a drain of ours Slurm would write its own "Prolog error", which no reboot takes away;
/// a drain leaves the reboot that was asked for as it is. A node that goes down at this moment is nobody's.
fn leaves_alone(service: &str, phase: Phase) -> bool {
    phase == Phase::Periodic || !(service.starts_with("MAINT") || service == "REBOOT_REQUESTED")
}

fn state_is_drained(flags: &[String]) -> bool {
    flags.iter().any(|flag| flag.starts_with("DRAIN"))
}

fn now() -> UnixSeconds {
    now_ms() / 1000
}

fn now_ms() -> UnixMillis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
