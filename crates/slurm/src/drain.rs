//! Draining a node, with everything that can prevent it.
//!
//! A drain by others is never changed. Prolog, epilog and periodic check may run at once, so a drain holds a lock of
//! this node. It saves the reason as *pending*, reads the node's state, asks the breaker, then sends the drain. If
//! slurmctld does not answer, the pending reason stays, and [`DrainDesk::settle_pending`] sets it later, also in
//! place of the "Prolog error" that Slurm itself sets on a node whose prolog failed.
//!
//! The breaker's cap also holds when many nodes fail at once. slurmctld has no compare-and-swap, so every node
//! drains, waits until no later drain can have the same second, counts again, and reverts its drain if the cap was
//! reached by earlier ones. All nodes use the same order (time, then name), so exactly the oldest stay drained. If a
//! process is killed between the drain and the second count, its pending reason stays in the stage *sent*, and the
//! next railgate program on the node counts instead.
//!
//! The lock protects two read-modify-write cycles: the pending reason, and the job ids in the node's reason. If the
//! lock is not available in time, an unfit node is drained without it: the process then writes its own pending reason
//! (`pending-reason.PID.json`) and leaves it in the stage *done*. The next process with the lock restores job ids
//! that another process has overwritten.

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

/// Longest wait for the lock, which other railgate processes of the node hold.
const LOCK_WAIT: Duration = Duration::from_secs(10);

/// Deadline of all commands of one drain together. A slow controller must not make prolog or epilog exceed
/// PrologEpilogTimeout: Slurm would then drain the node with its own reason, without the breaker.
const PATIENCE: Duration = Duration::from_secs(40);

/// A pending reason drains a node that is in service only within this time, seconds: later the node may have been
/// repaired.
const PENDING_FRESH: u64 = 15 * 60;

/// Every check run ends within this time. A node that seems to have been resumed later than this after one has had
/// its clock set back.
const CHECK_RUN_MS: UnixMillis = 10 * 60 * 1000;

/// Most difference between the clocks of node and controller, seconds.
const CLOCK_SLACK: u64 = 5;

/// slurmctld records drains in whole seconds.
const STAMP: Duration = Duration::from_millis(1100);

/// Attempts to count the drained nodes after a drain.
const COUNTS: u32 = 3;

/// Least time left for sending a drain: it must be possible to count again.
const COUNT_TIME: Duration = Duration::from_secs(5);

/// Most pending reasons that are read. More exist only if as many processes were killed without the lock.
const MOST_PENDING: usize = 64;

/// Reasons that Slurm itself sets on a node whose prolog or epilog failed.
const SLURMS_OWN: [&str; 2] = ["Prolog error", "Epilog error"];

/// Whether anything may be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acting {
    /// Changes are allowed.
    Allowed,
    /// Changes are forbidden; the reason: report mode, the disable file, a pause, test directories.
    Forbidden(String),
}

/// Outcome of a drain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DrainOutcome {
    /// The node is drained with this reason.
    Drained {
        /// Its reason.
        reason: String,
    },
    /// railgate had drained the node already.
    AlreadyOurs {
        /// The reason now.
        reason: String,
        /// A job id was added to it.
        added: bool,
    },
    /// Another user or program drained the node, or it is in maintenance; nothing was changed.
    Foreign {
        /// Their reason.
        reason: String,
    },
    /// The cap is reached; railgate does not drain the node.
    BreakerOpen {
        /// `cluster`, or `partition main`.
        scope: String,
        /// Other nodes there that railgate keeps drained.
        held: usize,
        /// The limit.
        limit: usize,
    },
    /// slurmctld gave no usable answer (the text explains); the reason is kept for later.
    Pending(String),
    /// Nothing was sent; the reason.
    NotActing(String),
}

impl DrainOutcome {
    /// Whether the drain reason carries the job ids.
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
                let what = "nodes drained by railgate in the";
                write!(f, "not drained, the breaker is open: {what} {scope}: {held} (at most {limit})")
            }
            DrainOutcome::Pending(why) => write!(f, "reason kept for later: {why}"),
            DrainOutcome::NotActing(why) => write!(f, "nothing sent: {why}"),
        }
    }
}

/// Progress of a pending reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Nothing was sent.
    #[default]
    Waiting,
    /// The drain was sent, but it has not been counted whether it stays within the breaker's cap.
    Sent,
    /// The drain was made without the lock: another process may have overwritten the job ids.
    Done,
}

/// A drain reason that is not settled yet, as saved on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// Version of the file format.
    pub schema: u32,
    /// Slurm's name of the node.
    pub node: String,
    /// The boot in which the fault was seen.
    pub boot_id: String,
    /// When the first attempt was made.
    pub made: UnixSeconds,
    /// The reason's text.
    pub reason: String,
    /// Progress.
    #[serde(default)]
    pub stage: Stage,
}

/// The pending reasons of this node and boot, combined.
#[derive(Debug, Default)]
struct Earlier {
    /// When the first of them was made.
    made: Option<UnixSeconds>,
    /// The first reason, with the job ids of all.
    reason: Option<Reason>,
    /// One is not sent yet.
    waiting: bool,
    /// One was sent and not counted yet.
    sent: bool,
    /// All files, also those of another node or boot.
    files: Vec<PathBuf>,
}

/// Everything that a drain needs besides the reason.
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
    /// `run` is `/run/railgate` (the lock, the time of the last resume); `state` is `/var/lib/railgate` (the pending
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

    /// The same desk with a different permission to act.
    #[must_use]
    pub fn acting(self, acting: Acting) -> Self {
        DrainDesk { acting, ..self }
    }

    /// The same desk for findings of a check run that began at this time. They do not drain a node that was resumed
    /// since: the fault may have been repaired.
    #[must_use]
    pub fn of_check_run(self, began: UnixMillis) -> Self {
        DrainDesk { looked: Some(began), ..self }
    }

    /// The same desk with a deadline for everything: lock waits, Slurm's commands, the count after a drain.
    #[must_use]
    pub fn until(self, until: Instant) -> Self {
        DrainDesk { until: Some(until), ..self }
    }

    /// Records that the node was resumed. Called under the lock: a process that waits for it to drain must not undo
    /// the resume.
    pub(crate) fn note_resume(&self) {
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
        since.is_some_and(|since| since <= CHECK_RUN_MS)
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Drains this node, or adds the reason's jobs to an existing drain by railgate.
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

    /// Settles a pending reason, if there is one; the periodic check calls this before it runs its checks.
    pub fn settle_pending(&self, node: &str, boot_id: &str) -> Option<DrainOutcome> {
        if self.pending_files().is_empty() {
            return None;
        }
        if let Acting::Forbidden(why) = &self.acting {
            return Some(DrainOutcome::NotActing(why.clone()));
        }
        let lock = match self.lock_or_why() {
            Ok(lock) => Some(lock),
            // Another process is settling this reason.
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
            // From another boot, or unreadable: a reboot may have cured the fault, and the gate will check again
            // anyway.
            self.drop_pending();
            return None;
        };
        let may_drain = earlier.waiting && now().saturating_sub(made) <= PENDING_FRESH;
        Some(self.bring(node, boot_id, &reason, &earlier, lock.is_some(), may_drain))
    }

    /// As [`DrainDesk::settle_pending`], but only for a drain that was sent and not finished. For prolog and epilog,
    /// which otherwise send slurmctld nothing here.
    pub fn settle_unfinished(&self, node: &str, boot_id: &str) -> Option<DrainOutcome> {
        let unfinished = self
            .pending_files()
            .iter()
            .any(|file| read_pending(file).is_some_and(|pending| pending.stage != Stage::Waiting));
        unfinished.then(|| self.settle_pending(node, boot_id)).flatten()
    }

    /// Saves the reason, sends it, and removes it from disk once it is settled.
    fn bring(
        &self,
        node: &str,
        boot_id: &str,
        reason: &Reason,
        earlier: &Earlier,
        locked: bool,
        may_drain: bool,
    ) -> DrainOutcome {
        // Saved before anything is sent: a process that is killed at a deadline then loses nothing.
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

    /// Returns the outcome, and whether the node is known to be within the cap.
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
            let why =
                "slurmctld is slow: not drained, as no time is left to count the drained nodes afterwards";
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
            // An admin may have written their own text after our leader: it stays.
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

    /// Reverts our drain if the cap was reached by earlier ones. Also returns whether this could be determined.
    fn count_again(&self, client: &Client, node: &str, text: String) -> (DrainOutcome, bool) {
        let drained = |text: String, counted: bool| (DrainOutcome::Drained { reason: text }, counted);
        // slurmctld is slow when many nodes drain at once, which is when the cap matters.
        let counted = (0..COUNTS).find_map(|_| {
            std::thread::sleep(self.stamp);
            listed(client, node).map_err(|why| warn!("could not count again after draining: {why}")).ok()
        });
        let Some(cluster) = counted else { return drained(text, false) };
        let Err(open) = breaker::allows(&self.breaker, &cluster, node) else { return drained(text, true) };
        // Revert only the reason that was just set: an admin may have replaced it meanwhile.
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
                warn!("over the cap, but the drain cannot be reverted: {why}");
                return drained(text, false);
            }
        };
        match client.undrain_node(node) {
            Ok(()) => {
                warn!("{node}: drain reverted: the cap was reached by earlier drains");
                if let Some(reason) = Reason::parse(&text) {
                    self.note_let_through(client, node, &reason, &comment, now());
                }
                (open.into(), true)
            }
            Err(why) => {
                warn!("over the cap, but the drain cannot be reverted: {why}");
                drained(text, false)
            }
        }
    }

    /// Deadline of all commands.
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

    /// Also creates the directories: after a boot the periodic check may run before any job.
    fn lock_or_why(&self) -> io::Result<FileLock> {
        for place in [self.lock.parent(), self.pending.parent()].into_iter().flatten() {
            if let Err(why) = fs::DirBuilder::new().recursive(true).mode(0o755).create(place) {
                warn!("{}: {why}", place.display());
            }
        }
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        // Half of the remaining time: the drain needs the rest.
        FileLock::take(&self.lock, left.map_or(LOCK_WAIT, |left| LOCK_WAIT.min(left / 2)))
    }

    /// The pending reason of a process without the lock.
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

/// The output of sinfo. Without a line of this node the caps of its partitions cannot be applied, which is an error.
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

/// Whether the drain is one that a railgate process of this node sent since `made`.
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

/// In a maintenance reservation, or while a reboot waits for the node's jobs, the periodic check only reports, since
/// the repair may be in progress. A job that Slurm starts there nevertheless is protected as usual: its prolog must
/// fail, and without a drain by railgate Slurm would set its own "Prolog error", which no reboot clears. A drain does
/// not cancel the requested reboot. A node that is going down now is left alone.
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
