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
//! before it. All nodes see the same order (time, then name), so exactly the oldest stay.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::libc::O_NOFOLLOW;
use railgate_node::{FileLock, Phase, UnixMillis};
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::answer::UnixSeconds;
use crate::breaker::{self, Open};
use crate::{BreakerConfig, Client, NodeState, Reason, is_ours};

/// How long the node's other railgate processes may keep the lock.
const LOCK_WAIT: Duration = Duration::from_secs(10);

/// All commands of one drain together. A controller that answers each of them late must not carry prolog or
/// epilog beyond PrologEpilogTimeout: Slurm then drains the node in its own words, past the breaker.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);

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
            DrainOutcome::Foreign { reason } => write!(f, "held by somebody else: {reason}"),
            DrainOutcome::BreakerOpen { scope, held, limit } => {
                let what = "nodes that railgate holds in the";
                write!(f, "not drained, the breaker is open: {what} {scope}: {held} (at most {limit})")
            }
            DrainOutcome::Pending(why) => write!(f, "reason kept for later: {why}"),
            DrainOutcome::NotActing(why) => write!(f, "nothing sent: {why}"),
        }
    }
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

    /// Under the lock: whoever waits for it to drain must not undo this.
    pub(crate) fn was_given_back(&self) {
        if let Err(why) = fs::write(&self.given_back, now_ms().to_string()) {
            warn!("{}: {why}", self.given_back.display());
        }
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
        let _held = match self.lock() {
            Ok(held) => held,
            Err(why) => return self.locked_out(node, boot_id, why),
        };
        if self.looked_before_that() {
            return DrainOutcome::NotActing("the node was given back after this look began".to_owned());
        }
        let client = self.client.until(Instant::now() + PATIENCE);
        let before = self.read_pending(node, boot_id);
        let mut reason = reason.clone();
        if let Some(earlier) = before.as_ref().and_then(|pending| Reason::parse(&pending.reason)) {
            for job in earlier.jobs {
                reason.add_job(job);
            }
        }
        let made = before.as_ref().map_or_else(now, |pending| pending.made);
        // Before anything is sent: whoever kills us at a deadline then loses nothing.
        let pending = Pending {
            schema: 1,
            node: node.to_owned(),
            boot_id: boot_id.to_owned(),
            made,
            reason: reason.to_string(),
        };
        if let Err(why) = self.write_pending(&pending) {
            warn!("{}: {why}", self.pending.display());
        }
        let outcome = self.settle(&client, node, &reason, before.map(|pending| pending.made), true);
        if !matches!(outcome, DrainOutcome::Pending(_)) {
            self.drop_pending();
        }
        outcome
    }

    /// Brings a pending reason to its place, if there is one; the periodic check calls it before it looks.
    pub fn settle_pending(&self, node: &str, boot_id: &str) -> Option<DrainOutcome> {
        if !self.pending.exists() {
            return None;
        }
        if let Acting::Forbidden(why) = &self.acting {
            return Some(DrainOutcome::NotActing(why.clone()));
        }
        let _held = match self.lock() {
            Ok(held) => held,
            Err(why) => return Some(self.locked_out(node, boot_id, why)),
        };
        let client = self.client.until(Instant::now() + PATIENCE);
        let pending = self.read_pending(node, boot_id);
        let Some((pending, reason)) =
            pending.and_then(|p| Reason::parse(&p.reason).map(|reason| (p, reason)))
        else {
            // Of another boot, or not to be read: a reboot may have cured it, and the gate will look anyway.
            self.drop_pending();
            return None;
        };
        let fresh = now().saturating_sub(pending.made) <= PENDING_FRESH;
        let outcome = self.settle(&client, node, &reason, Some(pending.made), fresh);
        if !matches!(outcome, DrainOutcome::Pending(_)) {
            self.drop_pending();
        }
        Some(outcome)
    }

    /// `pending`: since when a reason of ours waits, so that a drain by Slurm itself from then on is ours.
    fn settle(
        &self,
        client: &Client,
        node: &str,
        reason: &Reason,
        pending: Option<UnixSeconds>,
        may_drain: bool,
    ) -> DrainOutcome {
        let state = match client.node(node) {
            Ok(state) => state,
            Err(why) => return DrainOutcome::Pending(why.to_string()),
        };
        if state.held() {
            return self.held(client, node, &state, reason, pending);
        }
        if let Some(service) = state.serviced().filter(|service| leaves_alone(service, reason.phase)) {
            return DrainOutcome::Foreign { reason: service.to_ascii_lowercase() };
        }
        if !may_drain {
            return DrainOutcome::NotActing(
                "the finding is too old to drain a node that is in service".to_owned(),
            );
        }
        let counted = client.cluster().map_err(|why| why.to_string()).and_then(|cluster| {
            // Whoever is not in the answer cannot be counted against the caps of its partitions.
            let listed = cluster.iter().any(|line| line.node == node);
            if listed { Ok(cluster) } else { Err(format!("sinfo does not list {node}")) }
        });
        match counted {
            Ok(cluster) => {
                if let Err(open) = breaker::allows(&self.breaker, &cluster, node) {
                    return open.into();
                }
            }
            Err(why) if reason.lost() => warn!("how many nodes are held is not known, draining: {why}"),
            Err(why) => return DrainOutcome::Pending(why),
        }
        let text = reason.to_string();
        if let Err(why) = client.drain_node(node, &text) {
            return DrainOutcome::Pending(why.to_string());
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

    fn count_again(&self, client: &Client, node: &str, text: String) -> DrainOutcome {
        // In a storm slurmctld is slow, and that is when the cap matters.
        let counted = (0..COUNTS).find_map(|_| {
            std::thread::sleep(self.stamp);
            client.cluster().map_err(|why| warn!("could not count again after draining: {why}")).ok()
        });
        let Some(Err(open)) = counted.map(|cluster| breaker::allows(&self.breaker, &cluster, node)) else {
            return DrainOutcome::Drained { reason: text };
        };
        // Only what we ourselves have just set: an admin's words may stand there by now.
        match client.node(node) {
            Ok(state) => match state
                .reason
                .filter(|reason| state_is_drained(&state.flags) && reason.text != text)
            {
                Some(other) if !is_ours(&other.text) => return DrainOutcome::Foreign { reason: other.text },
                Some(other) => return DrainOutcome::AlreadyOurs { reason: other.text, added: false },
                None => {}
            },
            Err(why) => {
                warn!("over the cap, and the drain cannot be taken back: {why}");
                return DrainOutcome::Drained { reason: text };
            }
        }
        match client.undrain_node(node) {
            Ok(()) => {
                warn!("{node}: drained a moment ago and taken back, other nodes were first");
                open.into()
            }
            Err(why) => {
                warn!("over the cap, and the drain cannot be taken back: {why}");
                DrainOutcome::Drained { reason: text }
            }
        }
    }

    /// Makes our directories too: after a boot the periodic check may come before any job.
    pub(crate) fn lock(&self) -> Result<FileLock, String> {
        for place in [self.lock.parent(), self.pending.parent()].into_iter().flatten() {
            if let Err(why) = fs::DirBuilder::new().recursive(true).mode(0o755).create(place) {
                warn!("{}: {why}", place.display());
            }
        }
        FileLock::take(&self.lock, LOCK_WAIT).map_err(|why| format!("{}: {why}", self.lock.display()))
    }

    /// Somebody else drains this very node at the moment and has not come to an end; their reason is written down
    /// before they ask Slurm, and stands for ours. Without one, something is wrong with our own files.
    fn locked_out(&self, node: &str, boot_id: &str, why: String) -> DrainOutcome {
        if self.read_pending(node, boot_id).is_some() {
            DrainOutcome::Pending(why)
        } else {
            DrainOutcome::NotActing(why)
        }
    }

    fn read_pending(&self, node: &str, boot_id: &str) -> Option<Pending> {
        let file = File::options().read(true).custom_flags(O_NOFOLLOW).open(&self.pending).ok()?;
        let mut content = Vec::new();
        file.take(64 << 10).read_to_end(&mut content).ok()?;
        serde_json::from_slice::<Pending>(&content)
            .ok()
            .filter(|pending| pending.node == node && pending.boot_id == boot_id && !boot_id.is_empty())
    }

    fn write_pending(&self, pending: &Pending) -> io::Result<()> {
        let fresh = self.pending.with_extension("json.tmp");
        let mut file = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o644)
            .custom_flags(O_NOFOLLOW)
            .open(&fresh)?;
        file.write_all(&serde_json::to_vec(pending)?)?;
        fs::rename(&fresh, &self.pending)
    }

    pub(crate) fn drop_pending(&self) {
        match fs::remove_file(&self.pending) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => warn!("{}: {why}", self.pending.display()),
            _ => {}
        }
    }
}

impl From<Open> for DrainOutcome {
    fn from(open: Open) -> Self {
        DrainOutcome::BreakerOpen { scope: open.scope, held: open.held, limit: open.limit }
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
