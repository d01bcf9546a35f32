//! Alerts: conditions become messages, which are sent to the receivers of `[alerts]`.
//!
//! A thread of its own owns the state and sends. So a receiver that hangs up to its deadline does not delay the next
//! reading of the sources.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use railgate_alert_sinks::{Deliver, Keep, Sinks, StateFile, deliver};
use railgate_alerts::{AlertsConfig, Message, Observation, Outcome, State};
use railgate_model::UnixMillis;
use railgate_runner::{Config, FleetSilences, SilenceFile, now};

/// Pause between two deliveries: messages that wait for their interval or for a retry are sent that late at most.
const TICK: Duration = Duration::from_secs(5);
/// Without a new observation, the last one is observed again after this time: conditions that last are repeated, and old data is noticed.
const AGAIN: Duration = Duration::from_secs(60);
/// How long the end of the program waits for the message under way, beyond its deadline.
const BEYOND: Duration = Duration::from_secs(1);

/// The receivers, their state, and what was logged about them.
pub(crate) struct Alerts {
    config: AlertsConfig,
    silences: SilenceFile,
    file: StateFile,
    state: State,
    receivers: Receivers,
    logged: Logged,
}

/// The texts of the last observation by subject: each one is logged once while it holds.
#[derive(Debug, Default)]
struct Logged(BTreeMap<&'static str, BTreeSet<String>>);

impl Logged {
    fn warn(&mut self, about: &'static str, texts: impl IntoIterator<Item = String>) {
        for text in self.fresh(about, texts) {
            tracing::warn!("{about}: {text}");
        }
    }

    /// Takes over the texts that hold now. Returns those that did not hold the last time.
    fn fresh(&mut self, about: &'static str, texts: impl IntoIterator<Item = String>) -> Vec<String> {
        let texts: BTreeSet<String> = texts.into_iter().collect();
        let known = self.0.insert(about, texts.clone()).unwrap_or_default();
        texts.difference(&known).cloned().collect()
    }
}

/// The receivers, which log a problem when it begins and when it is over.
struct Receivers {
    sinks: Sinks,
    /// The last problem by receiver, and by whether the message is sent again.
    problems: RefCell<BTreeMap<(String, bool), String>>,
}

impl Receivers {
    fn open(config: &AlertsConfig) -> Receivers {
        Receivers { sinks: Sinks::open(config), problems: RefCell::default() }
    }
}

impl Deliver for Receivers {
    fn send(&self, message: &Message, now: UnixMillis) -> Outcome {
        let outcome = self.sinks.send(message, now);
        let Message { id, sink, kind, .. } = message;
        let key = (sink.clone(), kind.is_sent_again());
        let mut problems = self.problems.borrow_mut();
        match &outcome {
            Outcome::Accepted => {
                if problems.remove(&key).is_some() {
                    tracing::info!("alerts: {sink}: accepts messages again");
                }
                if kind.is_sent_again() {
                    tracing::info!(
                        "alerts: {sink}: accepted message {id}, {} conditions",
                        message.entries.len()
                    );
                }
            }
            Outcome::Later { problem, .. } | Outcome::Rejected { problem } => {
                if problems.insert(key, problem.clone()).as_ref() != Some(problem) {
                    let what = if kind.is_sent_again() { "message, which waits," } else { kind.name() };
                    tracing::warn!("alerts: {sink}: {what} not accepted: {problem}");
                }
            }
        }
        outcome
    }
}

impl Alerts {
    /// Opens the state and the receivers. `None` if the configuration has no receiver.
    ///
    /// # Errors
    /// The state cannot be used: others can change its directory, another process has it, or it cannot be read.
    pub(crate) fn open(config: &Config) -> anyhow::Result<Option<Alerts>> {
        if config.alerts.sinks.is_empty() {
            return Ok(None);
        }
        let database = &config.fleet.database;
        let opened = StateFile::open(&state_file(database)).context("state of alerts")?;
        if let Some(why) = &opened.damaged {
            tracing::warn!("alerts: the state was damaged, and all open conditions are sent again: {why}");
        }
        Ok(Some(Alerts {
            receivers: Receivers::open(&config.alerts),
            config: config.alerts.clone(),
            silences: SilenceFile::beside(database),
            file: opened.file,
            state: opened.state,
            logged: Logged::default(),
        }))
    }

    /// Takes over an observation, and stores the state.
    pub(crate) fn observe(&mut self, observation: &Observation) {
        let time = now();
        let silences = self.silences.read(time).unwrap_or_else(|why| FleetSilences {
            problems: vec![format!("{why}; no silence of this file holds")],
            ..FleetSilences::default()
        });
        self.logged.warn("silences", silences.problems.iter().cloned());
        self.state.observe(&silences.with(&self.config), observation, time);
        let stored = self.file.commit(&self.state).err().map(|why| why.to_string());
        self.logged.warn("state of alerts", stored);
        // A missing secret may be there now.
        if self.receivers.sinks.problems().next().is_some() {
            self.receivers.sinks = Sinks::open(&self.config);
        }
        let problems = self.receivers.sinks.problems().map(ToString::to_string);
        self.logged.warn("receivers", problems);
    }

    /// Sends all that is due.
    pub(crate) fn deliver(&mut self) {
        let done = deliver(&mut self.state, &self.config, &self.receivers, &mut self.file, &now);
        self.logged.warn(
            "messages",
            done.not_stored.map(|why| {
                format!("the state cannot be stored ({why}): after a restart, messages can be repeated")
            }),
        );
    }
}

fn state_file(database: &std::path::Path) -> PathBuf {
    database.with_file_name("alerts.json")
}

/// The thread that sends alerts.
pub(crate) struct AlertsThread {
    observations: Sender<Observation>,
    ended: Receiver<()>,
    deadline: Duration,
}

impl AlertsThread {
    /// Starts it. The signals of the program must be blocked before.
    pub(crate) fn start(alerts: Alerts) -> anyhow::Result<AlertsThread> {
        let deadline = alerts.config.deadline;
        let (observations, new) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let run = move || {
            work(alerts, &new);
            // Dropped, not sent: this also reports a panic.
            drop(end);
        };
        std::thread::Builder::new().name("alerts".to_owned()).spawn(run).context("the thread for alerts")?;
        Ok(AlertsThread { observations, ended, deadline })
    }

    /// Passes an observation to the thread, without a wait.
    ///
    /// # Errors
    /// The thread has ended.
    pub(crate) fn observed(&self, observation: Observation) -> anyhow::Result<()> {
        self.observations.send(observation).ok().context("the thread that sends alerts has ended")
    }

    /// Ends the thread after the message under way. One that takes longer than its deadline is sent again at the next start.
    pub(crate) fn end(self) {
        drop(self.observations);
        if let Err(RecvTimeoutError::Timeout) = self.ended.recv_timeout(self.deadline + BEYOND) {
            tracing::warn!("alerts: further messages wait, and are sent at the next start");
        }
    }
}

fn work(mut alerts: Alerts, new: &Receiver<Observation>) {
    let mut last: Option<(Observation, Instant)> = None;
    loop {
        match new.recv_timeout(TICK) {
            Ok(observation) => {
                alerts.observe(&observation);
                last = Some((observation, Instant::now()));
                // Those that came during a long delivery come before the next one.
                while let Ok(observation) = new.try_recv() {
                    alerts.observe(&observation);
                    last = Some((observation, Instant::now()));
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Some((observation, at)) = &mut last
                    && at.elapsed() >= AGAIN
                {
                    alerts.observe(observation);
                    *at = Instant::now();
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
        alerts.deliver();
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use railgate_alerts::{Condition, Priority};

    use super::*;

    #[test]
    fn a_problem_is_logged_once_while_it_lasts() {
        let mut logged = Logged::default();
        let mut fresh =
            |texts: &[&str]| logged.fresh("receivers", texts.iter().map(|text| (*text).to_owned()));
        assert_eq!(fresh(&["no secret"]), ["no secret"]);
        assert_eq!(fresh(&["no secret", "no address"]), ["no address"]);
        assert_eq!(fresh(&["no address"]), Vec::<String>::new());
        assert_eq!(fresh(&["no secret"]), ["no secret"], "it is back");
    }

    #[test]
    fn an_observation_does_not_wait_for_a_receiver_that_hangs() {
        let dir = tempfile::tempdir().unwrap();
        let receiver = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut config = Config::default();
        config.fleet.database = dir.path().join("fleet.db");
        let text = format!(
            "group_wait = '0s'\ndeadline = '1m'\n[sinks.hook]\nkind = 'webhook'\nurl = 'http://{}/'\n",
            receiver.local_addr().unwrap()
        );
        config.alerts = toml::from_str(&text).unwrap();
        let thread = AlertsThread::start(Alerts::open(&config).unwrap().unwrap()).unwrap();
        let down = Condition {
            key: "node/gn1".to_owned(),
            priority: Priority::P1,
            title: "gn1 is down".to_owned(),
            details: String::new(),
            check: None,
            nodes: BTreeMap::new(),
            since: None,
        };
        let observation = Observation { conditions: vec![down], time: now(), complete: true };
        thread.observed(observation.clone()).unwrap();
        let (connection, _) = receiver.accept().unwrap();
        thread.observed(observation).unwrap();
        // The message is still under way, and its attempt has not failed.
        let state: serde_json::Value =
            serde_json::from_slice(&std::fs::read(dir.path().join("alerts.json")).unwrap()).unwrap();
        let hook = &state["sinks"]["hook"];
        assert!(hook["in_flight"].is_object() && hook["failures"] == 0, "{state}");
        drop(connection);
        thread.end();
    }
}
