//! Conditions become entries that wait for each receiver.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use railgate_model::UnixMillis;

use crate::condition::{Condition, Priority};
use crate::config::{AlertsConfig, Span};
use crate::message::{Entry, EntryKind};
use crate::state::{Queued, State, Tracked};

/// Key of the condition that railgate has no current data.
pub const BLIND: &str = "railgate/blind";

/// The conditions at one time, as the caller found them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// All conditions, in any order. Those with one key are merged.
    pub conditions: Vec<Condition>,
    /// Time of the data.
    pub time: UnixMillis,
    /// Whether all sources answered. Otherwise a condition that is missing may still last, and is not over.
    pub complete: bool,
}

/// A duration in milliseconds.
pub(crate) fn millis(span: Duration) -> UnixMillis {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

impl State {
    /// Records an observation. Queues an entry for each condition that begins, changes, ends, or is due for a repeat.
    ///
    /// Call it at least once a minute, with the last observation if there is no newer one: otherwise nothing is repeated, and
    /// blindness is not noticed.
    pub fn observe(&mut self, policy: &AlertsConfig, observation: &Observation, now: UnixMillis) {
        self.advance(now);
        let names: BTreeSet<&String> = policy.sinks.keys().collect();
        self.sinks.retain(|name, _| names.contains(name));
        for name in names {
            self.sinks.entry(name.clone()).or_default();
        }
        // A time in the future is that of a wrong clock.
        let data = observation.time.min(now);
        match &mut self.complete {
            Some(last) if observation.complete => *last = data.max(*last),
            Some(_) => {}
            last => *last = Some(if observation.complete { data } else { now }),
        }
        let is_blind = self.is_blind(policy, now);
        let mut current: BTreeMap<String, Condition> = BTreeMap::new();
        let blind = is_blind.then(|| blind(self.complete.unwrap_or_default()));
        for condition in observation.conditions.iter().map(Condition::within_limits).chain(blind) {
            match current.get_mut(&condition.key) {
                Some(known) => known.merge(condition),
                None => {
                    current.insert(condition.key.clone(), condition);
                }
            }
        }
        for (key, condition) in &current {
            self.present(policy, key, condition, now);
        }
        let is_known = !is_blind && observation.complete;
        let missing: Vec<String> =
            self.open.keys().filter(|key| !current.contains_key(*key)).cloned().collect();
        for key in missing {
            self.absent(policy, &key, is_known || key == BLIND, now);
        }
        self.repeat(policy, now);
        self.digest(policy, now);
    }

    /// Whether the last complete observation is too old.
    pub(crate) fn is_blind(&self, policy: &AlertsConfig, now: UnixMillis) -> bool {
        self.complete.is_none_or(|last| now.saturating_sub(last) > millis(policy.blind_after))
    }

    fn present(&mut self, policy: &AlertsConfig, key: &str, condition: &Condition, now: UnixMillis) {
        let left = not_silenced(policy, condition, now);
        let silenced = left.is_none();
        let condition = left.unwrap_or_else(|| condition.clone());
        let tracked = self.open.entry(key.to_owned()).or_insert_with(|| {
            self.began += 1;
            Tracked { condition: condition.clone(), first: now, absent: None, silenced, queued: None }
        });
        tracked.condition = condition;
        tracked.absent = None;
        tracked.silenced = silenced;
        if silenced {
            return;
        }
        let nodes: BTreeSet<String> = tracked.condition.nodes.keys().cloned().collect();
        let priority = tracked.condition.priority;
        let kind = match &mut tracked.queued {
            Some(queued) if priority <= queued.priority && nodes.is_subset(&queued.nodes) => return,
            Some(queued) => {
                queued.nodes.extend(nodes);
                queued.priority = queued.priority.max(priority);
                (queued.time, queued.repeats) = (now, 0);
                EntryKind::Changed
            }
            none => {
                *none = Some(Queued { time: now, priority, nodes, repeats: 0 });
                EntryKind::New
            }
        };
        let entry = entry(key, tracked, kind, None);
        self.queue(policy, &entry, now);
    }

    fn absent(&mut self, policy: &AlertsConfig, key: &str, is_known: bool, now: UnixMillis) {
        let Some(tracked) = self.open.get_mut(key) else { return };
        if !is_known {
            return;
        }
        let since = *tracked.absent.get_or_insert(now);
        if now.saturating_sub(since) < millis(policy.resolve_after) {
            return;
        }
        let Some(tracked) = self.open.remove(key) else { return };
        self.over += 1;
        if tracked.queued.is_some() {
            let entry = entry(key, &tracked, EntryKind::Resolved, Some(since));
            self.queue(policy, &entry, now);
        }
    }

    /// Queues repeats that are due, and with them those that will soon be: they go in one message.
    fn repeat(&mut self, policy: &AlertsConfig, now: UnixMillis) {
        let age = |queued: &Queued| now.saturating_sub(queued.time);
        let interval = |queued: &Queued| {
            let Span(interval) = policy.repeat.get(queued.repeats).or(policy.repeat.last())?;
            Some(millis(*interval))
        };
        let lasts = |tracked: &&Tracked| !tracked.silenced && tracked.absent.is_none();
        let queued = || self.open.values().filter(lasts).filter_map(|tracked| tracked.queued.as_ref());
        if !queued().any(|queued| interval(queued).is_some_and(|interval| age(queued) >= interval)) {
            return;
        }
        let mut entries = Vec::new();
        for (key, tracked) in &mut self.open {
            if !lasts(&&*tracked) {
                continue;
            }
            let soon = |queued: &&mut Queued| interval(queued).is_some_and(|all| age(queued) >= all / 4 * 3);
            let Some(queued) = tracked.queued.as_mut().filter(soon) else { continue };
            queued.time = now;
            queued.repeats = queued.repeats.saturating_add(1);
            entries.push(entry(key, tracked, EntryKind::Repeated, None));
        }
        for entry in entries {
            self.queue(policy, &entry, now);
        }
    }

    fn digest(&mut self, policy: &AlertsConfig, now: UnixMillis) {
        let first = self.digested.is_none();
        let last = *self.digested.get_or_insert(now);
        let due = policy.digest.map(|time| time.last(now, policy.utc_offset)).filter(|due| *due > last);
        if first || due.is_none() {
            return;
        }
        self.digested = Some(now);
        let silenced = self.open.values().filter(|tracked| tracked.silenced).count();
        let counts = [self.began, self.over, silenced];
        (self.began, self.over) = (0, 0);
        let lasting = self.open.iter().filter(|(_, tracked)| !tracked.silenced);
        let entries: Vec<Entry> =
            lasting.map(|(key, tracked)| entry(key, tracked, EntryKind::Repeated, None)).collect();
        if entries.is_empty() && counts == [0, 0, 0] {
            return;
        }
        for (name, sink) in &mut self.sinks {
            let Some(config) = policy.sinks.get(name) else { continue };
            if config.alerts && config.kind.takes_digest() {
                let entries = entries.iter().filter(|entry| entry.priority >= config.least);
                let mut entries: Vec<Entry> = entries.cloned().collect();
                crate::outbox::sort(&mut entries);
                sink.digest = Some((entries, counts));
            }
        }
    }

    /// Lets an entry wait for each receiver that wants it.
    fn queue(&mut self, policy: &AlertsConfig, entry: &Entry, now: UnixMillis) {
        for (name, sink) in &mut self.sinks {
            let Some(config) = policy.sinks.get(name).filter(|config| config.alerts) else { continue };
            let is_open = sink.will_regard_as_open(&entry.key);
            let waits = sink.waiting.contains_key(&entry.key);
            let mut entry = entry.clone();
            if entry.kind.is_over() {
                // It got a higher priority, or was not yet a receiver.
                if !is_open && !waits {
                    continue;
                }
            } else if entry.priority < config.least && !is_open {
                continue;
            } else if !is_open && !waits {
                entry.kind = EntryKind::New;
            }
            sink.queue(entry, now);
        }
    }
}

/// The condition with the nodes that no silence covers; `None` if nothing is left of it.
fn not_silenced(policy: &AlertsConfig, condition: &Condition, now: UnixMillis) -> Option<Condition> {
    let check = condition.check.as_deref();
    let is_silenced = |node: Option<(&str, &BTreeSet<String>)>| {
        policy.silences.values().any(|silence| silence.covers(check, node, now))
    };
    if condition.nodes.is_empty() {
        return (!is_silenced(None)).then(|| condition.clone());
    }
    let mut left = condition.clone();
    left.nodes.retain(|name, reservations| !is_silenced(Some((name, reservations))));
    (!left.nodes.is_empty()).then_some(left)
}

pub(crate) fn entry(key: &str, tracked: &Tracked, kind: EntryKind, ended: Option<UnixMillis>) -> Entry {
    let Tracked { condition, first, .. } = tracked;
    Entry {
        kind,
        key: key.to_owned(),
        priority: condition.priority,
        title: condition.title.clone(),
        details: condition.details.clone(),
        check: condition.check.clone(),
        nodes: condition.nodes.keys().cloned().collect(),
        since: condition.since.unwrap_or(*first),
        ended,
        known_by: None,
    }
}

fn blind(since: UnixMillis) -> Condition {
    Condition {
        key: BLIND.to_owned(),
        priority: Priority::P1,
        title: "railgate has no current data of this cluster".to_owned(),
        details: "Conditions that begin now are not reported. The log of railgate-fleet has the reason."
            .to_owned(),
        check: None,
        nodes: BTreeMap::new(),
        since: Some(since),
    }
}
