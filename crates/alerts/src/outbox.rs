//! Entries that wait become a message, when the receiver's limits permit one.

use std::cmp::Reverse;
use std::time::Duration;

use railgate_model::UnixMillis;
use railgate_text::shorten;

use crate::condition::Priority;
use crate::config::AlertsConfig;
use crate::message::{Entry, EntryKind, Message, MessageKind};
use crate::observe::{entry, millis};
use crate::sink_config::SinkConfig;
use crate::state::{SinkState, State};

/// The window of [`SinkConfig::per_minute`].
const MINUTE: UnixMillis = 60_000;
/// How often a receiver that forgets is sent its open conditions. Alertmanager's documentation names 30 s to 3 min.
const REFRESH: UnixMillis = 3 * MINUTE;
/// Longest wait after failures.
const MAX_WAIT: UnixMillis = 15 * MINUTE;
/// The longest wait that a receiver may ask for.
const MAX_ASKED: Duration = Duration::from_secs(3600);
/// Refusals in a row after which only numbers are sent: the content may be the reason.
const BRIEF_AFTER: u32 = 3;
/// Longest reason of a failure that is kept, characters.
const MAX_PROBLEM: usize = 300;

/// What a receiver answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has the message.
    Accepted,
    /// It has not, or it is not known: the same message is sent again later.
    Later {
        /// Why.
        problem: String,
        /// How long the receiver asks to wait.
        wait: Option<Duration>,
    },
    /// The receiver refused this message. Its entries go into a new one.
    Rejected {
        /// Why.
        problem: String,
    },
}

/// Sorts entries: by priority, then by key.
pub(crate) fn sort(entries: &mut [Entry]) {
    entries.sort_by(|a, b| (Reverse(a.priority), &a.key).cmp(&(Reverse(b.priority), &b.key)));
}

impl State {
    /// Makes the message that a receiver gets now, if there is one and its limits permit it. A message that was not accepted comes
    /// again, with the same id and content.
    ///
    /// The attempt counts from now on. Commit the state before sending the message: otherwise a crash could send it again
    /// with another id, or exceed the receiver's limit.
    pub fn next(&mut self, policy: &AlertsConfig, sink: &str, now: UnixMillis) -> Option<Message> {
        self.advance(now);
        let config = policy.sinks.get(sink)?;
        let state = self.sinks.get_mut(sink)?;
        if !state.may_attempt(config, now) {
            return None;
        }
        if state.in_flight.is_none() {
            let number = self.number + 1;
            let mut message = Message {
                brief: state.refusals >= BRIEF_AFTER,
                ..message(policy, sink, (MessageKind::Alerts, longest_repeat(policy)), number, now)
            };
            if state.is_due(policy, now) {
                message.entries = state.take_waiting(policy, now);
            } else if let Some((entries, counts)) = state.digest.take() {
                message.kind = MessageKind::Digest;
                (message.entries, message.counts) = (entries, counts);
            } else {
                return None;
            }
            self.number = number;
            state.made = Some(now);
            state.in_flight = Some(message);
        }
        state.attempts.push(now);
        state.in_flight.clone()
    }

    /// Makes a heartbeat, if one is due. None is made while the observations are not current. A heartbeat that fails is not repeated:
    /// the next one follows after the interval.
    pub fn heartbeat(&mut self, policy: &AlertsConfig, sink: &str, now: UnixMillis) -> Option<Message> {
        self.advance(now);
        if self.is_blind(policy, now) {
            return None;
        }
        let config = policy.sinks.get(sink)?;
        let interval = millis(config.heartbeat?.0);
        let state = self.sinks.get_mut(sink)?;
        let is_due = state.heartbeat.is_none_or(|last| now.saturating_sub(last) >= interval);
        if !is_due || !state.is_below_limit(config, now) {
            return None;
        }
        state.heartbeat = Some(now);
        state.attempts.push(now);
        self.number += 1;
        Some(message(policy, sink, (MessageKind::Heartbeat, interval), self.number, now))
    }

    /// Makes a refresh, if one is due: a receiver that keeps conditions in memory only has them again after a restart. It has nothing new: a
    /// change waits for its own message. A refresh that fails is not repeated: the next one follows after the interval.
    pub fn refresh(&mut self, policy: &AlertsConfig, sink: &str, now: UnixMillis) -> Option<Message> {
        self.advance(now);
        let config = policy.sinks.get(sink)?;
        let state = self.sinks.get_mut(sink)?;
        let is_due = state.refreshed.is_some_and(|last| now.saturating_sub(last) >= REFRESH);
        if !config.kind.forgets() || !is_due || state.in_flight.is_some() || !state.may_attempt(config, now) {
            return None;
        }
        let lasts = |(key, priority): (&String, &Priority)| {
            let tracked = self.open.get(key).filter(|tracked| !tracked.silenced)?;
            Some(Entry { priority: *priority, ..entry(key, tracked, EntryKind::Repeated, None) })
        };
        let mut entries: Vec<Entry> = state.open.iter().filter_map(lasts).collect();
        if entries.is_empty() {
            return None;
        }
        sort(&mut entries);
        state.refreshed = Some(now);
        state.attempts.push(now);
        self.number += 1;
        let brief = state.refusals >= BRIEF_AFTER;
        let empty = message(policy, sink, (MessageKind::Refresh, longest_repeat(policy)), self.number, now);
        Some(Message { entries, brief, ..empty })
    }

    /// Records a receiver's answer. An answer to another message than the one under way only counts towards the limit.
    pub fn finished(&mut self, sink: &str, id: &str, outcome: &Outcome, now: UnixMillis) {
        self.advance(now);
        let Some(state) = self.sinks.get_mut(sink) else { return };
        // The receiver got it at some time up to now: its own minute may begin here.
        if let Some(last) = state.attempts.last_mut() {
            *last = now;
        }
        let Some(message) = state.in_flight.take_if(|message| message.id == id) else { return };
        match outcome {
            Outcome::Accepted => {
                for entry in message.entries.iter().filter(|_| message.kind == MessageKind::Alerts) {
                    if entry.kind.is_over() {
                        state.open.remove(&entry.key);
                    } else {
                        state.open.insert(entry.key.clone(), entry.priority);
                    }
                }
                state.refreshed = (!state.open.is_empty()).then(|| state.refreshed.unwrap_or(now));
                (state.failures, state.refusals, state.problem) = (0, 0, None);
                state.accepted = Some(now);
                state.not_before = now;
            }
            Outcome::Later { problem, wait } => {
                state.in_flight = Some(message);
                let wait = wait.map_or(0, |wait| millis(wait.min(MAX_ASKED)));
                state.failed(problem, wait, now);
            }
            Outcome::Rejected { problem } => {
                state.refusals = state.refusals.saturating_add(1);
                state.thaw(message);
                state.failed(problem, MINUTE, now);
            }
        }
    }
}

/// A message without entries, which is valid for twice the interval until the next one of its kind.
fn message(
    policy: &AlertsConfig,
    sink: &str,
    (kind, interval): (MessageKind, UnixMillis),
    number: u64,
    now: UnixMillis,
) -> Message {
    Message {
        // The time makes ids differ also after a loss of the state.
        id: format!("railgate-{sink}-{now:x}-{number}"),
        sink: sink.to_owned(),
        kind,
        site: policy.site.clone(),
        time: now,
        valid_until: now.saturating_add(interval.saturating_mul(2)),
        utc_offset: policy.utc_offset,
        entries: Vec::new(),
        counts: [0; 3],
        brief: false,
    }
}

fn longest_repeat(policy: &AlertsConfig) -> UnixMillis {
    policy.repeat.iter().map(|span| millis(span.0)).max().unwrap_or_default()
}

impl SinkState {
    fn is_below_limit(&mut self, config: &SinkConfig, now: UnixMillis) -> bool {
        self.attempts.retain(|attempt| now.saturating_sub(*attempt) <= MINUTE);
        u32::try_from(self.attempts.len()).is_ok_and(|count| count < config.per_minute)
    }

    fn may_attempt(&mut self, config: &SinkConfig, now: UnixMillis) -> bool {
        now >= self.not_before && self.is_below_limit(config, now)
    }

    /// Whether entries that wait make a message now.
    fn is_due(&self, policy: &AlertsConfig, now: UnixMillis) -> bool {
        let (mut oldest, mut urgent) = (None, false);
        for waiting in self.waiting.values().filter(|waiting| may_go(policy, waiting.entry.priority, now)) {
            oldest = Some(oldest.map_or(waiting.since, |known: UnixMillis| known.min(waiting.since)));
            let begins = matches!(waiting.entry.kind, EntryKind::New | EntryKind::Changed);
            urgent |= begins && waiting.entry.priority == Priority::P0;
        }
        let gap = if urgent { policy.group_wait } else { policy.group_interval };
        let passed = |since: UnixMillis, span| now.saturating_sub(since) >= millis(span);
        oldest.is_some_and(|oldest| passed(oldest, policy.group_wait))
            && self.made.is_none_or(|made| passed(made, gap))
    }

    fn take_waiting(&mut self, policy: &AlertsConfig, now: UnixMillis) -> Vec<Entry> {
        let taken = self.waiting.extract_if(.., |_, waiting| may_go(policy, waiting.entry.priority, now));
        let mut entries: Vec<Entry> = taken.map(|(_, waiting)| waiting.entry).collect();
        for entry in &mut entries {
            entry.known_by = self.open.get(&entry.key).copied().filter(|known| *known != entry.priority);
        }
        sort(&mut entries);
        entries
    }

    /// Puts the content of a refused message back before what waits.
    fn thaw(&mut self, message: Message) {
        if message.kind == MessageKind::Digest {
            self.digest.get_or_insert((message.entries, message.counts));
            return;
        }
        for entry in message.entries {
            let later = self.waiting.remove(&entry.key);
            self.queue(entry, message.time);
            if let Some(later) = later {
                self.queue(later.entry, message.time);
            }
        }
    }

    fn failed(&mut self, problem: &str, wait: UnixMillis, now: UnixMillis) {
        self.failures = self.failures.saturating_add(1);
        self.problem = Some(shorten(problem, MAX_PROBLEM));
        let doubled = 5_000_u64.saturating_mul(1 << self.failures.min(20));
        self.not_before = now.saturating_add(wait.max(doubled.min(MAX_WAIT)));
    }
}

/// Whether a message with this priority may be made now.
fn may_go(policy: &AlertsConfig, priority: Priority, now: UnixMillis) -> bool {
    priority == Priority::P0 || !policy.quiet_hours.is_some_and(|quiet| quiet.cover(now, policy.utc_offset))
}
