use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use humantime::format_duration;
use railgate_model::{UnixMillis, duration_text, fits_pattern, parse_rfc3339, rfc3339};
use serde::{Deserialize, Serialize};

use crate::day::{DayTime, QuietHours, UtcOffset};
use crate::sink_config::SinkConfig;

/// Most receivers.
const MAX_SINKS: usize = 50;
/// Most silences.
const MAX_SILENCES: usize = 1000;

/// `[alerts]`: receivers, intervals and silences of messages about the fleet. Read on the controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AlertsConfig {
    /// Name of the cluster in messages; may be empty.
    pub site: String,
    /// How long the first condition waits for further ones, which go in the same message.
    #[serde(with = "duration_text")]
    pub group_wait: Duration,
    /// Least time between two messages to a receiver, unless a new P0 waits.
    #[serde(with = "duration_text")]
    pub group_interval: Duration,
    /// A condition is over after this time without it.
    #[serde(with = "duration_text")]
    pub resolve_after: Duration,
    /// Intervals after which a condition that lasts is repeated; the last one applies to all further repeats.
    pub repeat: Vec<Span>,
    /// When P1 and P2 wait.
    pub quiet_hours: Option<QuietHours>,
    /// Distance of the site's time from UTC, for quiet hours, the digest and times in messages.
    pub utc_offset: UtcOffset,
    /// When the daily digest is made.
    pub digest: Option<DayTime>,
    /// Without a complete observation for this long, the heartbeat stops and a condition of railgate itself begins.
    #[serde(with = "duration_text")]
    pub blind_after: Duration,
    /// For one message to one receiver.
    #[serde(with = "duration_text")]
    pub deadline: Duration,
    /// Certificates of authorities, PEM; none: those of the system.
    pub ca_file: Option<PathBuf>,
    /// HTTP proxy.
    pub proxy: Option<String>,
    /// Receivers by name.
    pub sinks: BTreeMap<String, SinkConfig>,
    /// Silences by name.
    pub silences: BTreeMap<String, Silence>,
}

/// A duration as text, `1h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// `[alerts.silences.NAME]`: of what no messages are sent until a time. All keys that are set must fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Silence {
    /// Nodes: names, or beginnings of names with a trailing `*`. Empty: all.
    #[serde(default)]
    pub nodes: Vec<String>,
    /// The check that found it.
    pub check: Option<String>,
    /// A reservation that the node is in.
    pub reservation: Option<String>,
    /// The end.
    pub until: Until,
    /// For people.
    pub reason: String,
}

/// A time, `2026-01-05T08:00:00Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Until(pub UnixMillis);

impl TryFrom<String> for Until {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        parse_rfc3339(&text)
            .map(Until)
            .ok_or_else(|| format!("'{text}' is not a time in UTC like 2026-01-05T08:00:00Z"))
    }
}

impl From<Until> for String {
    fn from(until: Until) -> String {
        rfc3339(until.0).unwrap_or_default()
    }
}

impl Silence {
    /// Whether it holds for a check on a node; without a node: for a condition that names none.
    pub(crate) fn covers(
        &self,
        check: Option<&str>,
        node: Option<(&str, &BTreeSet<String>)>,
        now: UnixMillis,
    ) -> bool {
        let is_of_node = !self.nodes.is_empty() || self.reservation.is_some();
        if now >= self.until.0 || (self.check.is_none() && !is_of_node) {
            return false;
        }
        if self.check.is_some() && self.check.as_deref() != check {
            return false;
        }
        match node {
            None => !is_of_node,
            Some((name, reservations)) => {
                (self.nodes.is_empty() || self.nodes.iter().any(|pattern| fits_pattern(pattern, name)))
                    && self.reservation.as_ref().is_none_or(|wanted| reservations.contains(wanted))
            }
        }
    }
}

impl Default for AlertsConfig {
    fn default() -> Self {
        let minutes = |count: u64| Duration::from_secs(count * 60);
        AlertsConfig {
            site: String::new(),
            group_wait: Duration::from_secs(15),
            group_interval: minutes(5),
            resolve_after: minutes(5),
            repeat: [15, 60, 240, 1440].map(|count| Span(minutes(count))).to_vec(),
            quiet_hours: None,
            utc_offset: UtcOffset::default(),
            digest: None,
            blind_after: minutes(10),
            deadline: Duration::from_secs(10),
            ca_file: None,
            proxy: None,
            sinks: BTreeMap::new(),
            silences: BTreeMap::new(),
        }
    }
}

/// A name that can stand in a key of the configuration, in a message id and in a label.
fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=40).contains(&text.len()) && text.bytes().all(is_plain)
}

impl AlertsConfig {
    /// Values out of range, one line each. Each line begins with the key.
    pub fn problems(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let limits = [
            ("group_wait", self.group_wait, 0, 600),
            ("group_interval", self.group_interval, 10, 3600),
            ("resolve_after", self.resolve_after, 0, 86_400),
            ("blind_after", self.blind_after, 60, 86_400),
            ("deadline", self.deadline, 1, 60),
        ];
        for (key, is, least, most) in limits {
            let (least, most) = (Duration::from_secs(least), Duration::from_secs(most));
            if !(least..=most).contains(&is) {
                let [is, least, most] = [is, least, most].map(format_duration);
                wrong.push(format!("alerts.{key}: {is} is not within {least} to {most}"));
            }
        }
        let span = Duration::from_secs(60)..=Duration::from_secs(7 * 86_400);
        let grows = self.repeat.is_sorted() && self.repeat.iter().all(|Span(is)| span.contains(is));
        if self.repeat.is_empty() || self.repeat.len() > 20 || !grows {
            wrong.push(
                "alerts.repeat: wants 1 to 20 intervals from 1m to 7days, none shorter than the one before it"
                    .to_owned(),
            );
        }
        if self.site.chars().count() > 60 || self.site.chars().any(char::is_control) {
            wrong.push("alerts.site: wants at most 60 printable characters".to_owned());
        }
        if let Some(file) = self.ca_file.as_ref().filter(|file| !file.is_absolute()) {
            wrong.push(format!("alerts.ca_file: {} is not an absolute path", file.display()));
        }
        if let Some(proxy) = self.proxy.as_ref().filter(|proxy| !proxy.starts_with("http://")) {
            let shown = if proxy.contains('@') { "the value" } else { proxy };
            wrong.push(format!("alerts.proxy: {shown} does not begin with http://"));
        }
        if self.sinks.len() > MAX_SINKS {
            wrong.push(format!("alerts.sinks: more than {MAX_SINKS}"));
        }
        for (name, sink) in &self.sinks {
            if !is_name(name) {
                wrong.push(format!(
                    "alerts.sinks.{name}.kind: the name wants 1 to 40 of a-z, A-Z, 0-9, - and _"
                ));
            }
            let problems = sink.problems().into_iter();
            wrong.extend(problems.map(|(key, what)| format!("alerts.sinks.{name}.{key}: {what}")));
        }
        if self.silences.len() > MAX_SILENCES {
            wrong.push(format!("alerts.silences: more than {MAX_SILENCES}"));
        }
        for (name, silence) in &self.silences {
            if silence.nodes.is_empty() && silence.check.is_none() && silence.reservation.is_none() {
                wrong.push(format!(
                    "alerts.silences.{name}.until: a silence needs `nodes`, `check` or `reservation`"
                ));
            }
        }
        wrong
    }
}
