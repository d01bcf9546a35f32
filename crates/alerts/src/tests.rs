//! A fleet's conditions over time, receivers that accept, refuse and hang, and crashes.

mod configuration;
mod plays;
mod properties;

use std::collections::{BTreeMap, BTreeSet};

use railgate_model::UnixMillis;

use crate::*;

const SECOND: UnixMillis = 1000;
const MINUTE: UnixMillis = 60 * SECOND;
const HOUR: UnixMillis = 60 * MINUTE;
/// 2026-01-05 12:00 UTC.
const NOON: UnixMillis = 1_767_614_400_000;

fn condition(key: &str, priority: Priority, nodes: &[&str]) -> Condition {
    Condition {
        key: key.to_owned(),
        priority,
        title: format!("{key} failed"),
        details: String::new(),
        check: Some("gpu-lost".to_owned()),
        nodes: nodes.iter().map(|node| ((*node).to_owned(), BTreeSet::new())).collect(),
        since: None,
    }
}

fn policy(text: &str) -> AlertsConfig {
    toml::from_str(text).unwrap()
}

/// One receiver for everything.
fn one() -> AlertsConfig {
    policy("[sinks.chat]\nkind = \"dingtalk\"\nurl_file = \"/x\"\n")
}

/// Plays time against one policy; every receiver accepts everything, unless a test answers for it.
struct Play {
    policy: AlertsConfig,
    state: State,
    now: UnixMillis,
    conditions: BTreeMap<String, Condition>,
    complete: bool,
    sent: Vec<(UnixMillis, Message)>,
}

impl Play {
    fn new(policy: AlertsConfig) -> Play {
        assert_eq!(policy.problems(), Vec::<String>::new());
        Play {
            policy,
            state: State::default(),
            now: NOON,
            conditions: BTreeMap::new(),
            complete: true,
            sent: Vec::new(),
        }
    }

    fn begin(&mut self, condition: Condition) {
        self.conditions.insert(condition.key.clone(), condition);
    }

    fn end(&mut self, key: &str) {
        self.conditions.remove(key);
    }

    fn observe(&mut self) {
        let conditions = self.conditions.values().cloned().collect();
        let observation = Observation { conditions, time: self.now, complete: self.complete };
        self.state.observe(&self.policy, &observation, self.now);
    }

    fn names(&self) -> Vec<String> {
        self.policy.sinks.keys().cloned().collect()
    }

    /// One round: observation, then each receiver gets its due messages.
    fn round(&mut self, answer: &mut dyn FnMut(&Message) -> Outcome) {
        self.observe();
        for sink in self.names() {
            while let Some(message) = self.state.next(&self.policy, &sink, self.now) {
                let outcome = answer(&message);
                if outcome == Outcome::Accepted {
                    self.sent.push((self.now, message.clone()));
                }
                self.state.finished(&sink, &message.id, &outcome, self.now);
            }
            if let Some(message) = self.state.refresh(&self.policy, &sink, self.now) {
                let outcome = answer(&message);
                if outcome == Outcome::Accepted {
                    self.sent.push((self.now, message.clone()));
                }
                self.state.finished(&sink, &message.id, &outcome, self.now);
            }
        }
    }

    /// Rounds of five seconds.
    fn run(&mut self, span: UnixMillis) -> Vec<Message> {
        let before = self.sent.len();
        let until = self.now + span;
        while self.now < until {
            self.now += 5 * SECOND;
            self.round(&mut |_| Outcome::Accepted);
        }
        self.sent[before..].iter().map(|(_, message)| message.clone()).collect()
    }
}

/// The entries of messages: kind and key.
fn entries(messages: &[Message]) -> Vec<(EntryKind, &str)> {
    messages
        .iter()
        .flat_map(|message| &message.entries)
        .map(|entry| (entry.kind, entry.key.as_str()))
        .collect()
}
