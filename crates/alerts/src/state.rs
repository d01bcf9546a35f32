use std::collections::{BTreeMap, BTreeSet};

use railgate_model::UnixMillis;
use serde::{Deserialize, Serialize};

use crate::condition::{Condition, Priority};
use crate::message::{Entry, EntryKind, Message, MessageKind};

/// The observations and messages so far. Plain data: the caller keeps it, and commits it before and after each message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// When it was used last.
    pub(crate) time: UnixMillis,
    /// Time of the last complete observation; of the first use, before there is one.
    pub(crate) complete: Option<UnixMillis>,
    /// Number of the last message.
    pub(crate) number: u64,
    /// Conditions that are not over, by key.
    pub(crate) open: BTreeMap<String, Tracked>,
    /// Since the last digest: conditions that began and that were over.
    pub(crate) began: usize,
    pub(crate) over: usize,
    /// When the last digest was made; of the first use, before there is one.
    pub(crate) digested: Option<UnixMillis>,
    /// Receivers by name.
    pub(crate) sinks: BTreeMap<String, SinkState>,
}

/// A condition that is not over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tracked {
    /// As it was observed last. Its nodes are those that no silence covers.
    pub(crate) condition: Condition,
    /// When it was observed first.
    pub(crate) first: UnixMillis,
    /// Since when complete observations are without it.
    pub(crate) absent: Option<UnixMillis>,
    /// Whether a silence covers all of it.
    pub(crate) silenced: bool,
    /// The last entry that was queued for receivers; `None` if none was.
    pub(crate) queued: Option<Queued>,
}

/// The last entry that was queued about a condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Queued {
    /// When.
    pub(crate) time: UnixMillis,
    /// The highest priority so far.
    pub(crate) priority: Priority,
    /// All nodes so far: a node that leaves and returns is not a change.
    pub(crate) nodes: BTreeSet<String>,
    /// Number of repeats since the last change.
    pub(crate) repeats: usize,
}

/// State of a receiver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SinkState {
    /// Entries that wait for the next message, by the key of the condition.
    pub(crate) waiting: BTreeMap<String, Waiting>,
    /// A digest that waits.
    pub(crate) digest: Option<(Vec<Entry>, [usize; 3])>,
    /// The message that was made last and is not yet accepted.
    pub(crate) in_flight: Option<Message>,
    /// Conditions that it regards as open, by key, with the priority of the last message.
    pub(crate) open: BTreeMap<String, Priority>,
    /// Ends of the attempts within the last minute; of one that has not ended, its start.
    pub(crate) attempts: Vec<UnixMillis>,
    /// When the last message was made.
    pub(crate) made: Option<UnixMillis>,
    /// When the last heartbeat was made.
    pub(crate) heartbeat: Option<UnixMillis>,
    /// When the last refresh was made; before the first one, since when it has open conditions. `None` while it has none.
    pub(crate) refreshed: Option<UnixMillis>,
    /// No attempt before this time.
    pub(crate) not_before: UnixMillis,
    /// Failed attempts in a row.
    pub failures: u32,
    /// How many of these it refused for good.
    pub refusals: u32,
    /// When it accepted the last message.
    pub accepted: Option<UnixMillis>,
    /// Why the last attempt failed; `None` after a success.
    pub problem: Option<String>,
}

/// An entry that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Waiting {
    /// Since when.
    pub(crate) since: UnixMillis,
    pub(crate) entry: Entry,
}

impl State {
    /// State of each receiver, by name.
    pub fn sinks(&self) -> impl Iterator<Item = (&str, &SinkState)> {
        self.sinks.iter().map(|(name, sink)| (name.as_str(), sink))
    }

    /// The conditions that are not over, and whether a silence covers all of each.
    pub fn conditions(&self) -> impl Iterator<Item = (&Condition, bool)> {
        self.open.values().map(|tracked| (&tracked.condition, tracked.silenced))
    }

    /// Takes over the time. If the clock was set back, times after it become it: otherwise everything would wait until the clock
    /// is where it was.
    pub(crate) fn advance(&mut self, now: UnixMillis) {
        if now < self.time {
            let earlier = |time: &mut UnixMillis| *time = (*time).min(now);
            let times = [&mut self.complete, &mut self.digested];
            times.into_iter().flatten().for_each(earlier);
            for tracked in self.open.values_mut() {
                earlier(&mut tracked.first);
                tracked.absent.iter_mut().for_each(earlier);
                tracked.queued.iter_mut().for_each(|queued| earlier(&mut queued.time));
            }
            for sink in self.sinks.values_mut() {
                sink.waiting.values_mut().for_each(|waiting| earlier(&mut waiting.since));
                sink.attempts.iter_mut().for_each(earlier);
                sink.made.iter_mut().for_each(earlier);
                sink.heartbeat.iter_mut().for_each(earlier);
                sink.refreshed.iter_mut().for_each(earlier);
                earlier(&mut sink.not_before);
            }
        }
        self.time = now;
    }
}

impl SinkState {
    /// Number of conditions that wait for a message, without those of the message that is under way.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether it regards a condition as open, or will when it has the message that is under way.
    pub(crate) fn will_regard_as_open(&self, key: &str) -> bool {
        // A digest opens nothing.
        let under_way = self.in_flight.iter().filter(|message| message.kind == MessageKind::Alerts);
        let entry = under_way.flat_map(|message| &message.entries).find(|entry| entry.key == key);
        entry.map_or_else(|| self.open.contains_key(key), |entry| !entry.kind.is_over())
    }

    /// Lets an entry wait, merged with an earlier one about the same condition.
    pub(crate) fn queue(&mut self, mut entry: Entry, now: UnixMillis) {
        use EntryKind::{Changed, New, Passed, Repeated, Resolved};
        let earlier = self.waiting.get(&entry.key).map(|waiting| (waiting.entry.kind, waiting.since));
        entry.kind = match (earlier.map(|(kind, _)| kind), entry.kind) {
            (Some(New | Passed), Resolved | Passed) => Passed,
            (Some(New | Passed), _) => New,
            // It regards the condition as open, and does not know that it was over.
            (Some(Resolved), New | Repeated) | (Some(Changed), Repeated) => Changed,
            (Some(_), Passed) => Resolved,
            (_, kind) => kind,
        };
        // An end that waits began to wait when it was over: a return is a fact of its own.
        let since = earlier.map_or(now, |(_, since)| since);
        self.waiting.insert(entry.key.clone(), Waiting { since, entry });
    }
}
