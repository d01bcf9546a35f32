use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use railgate_model::duration_text;
use serde::{Deserialize, Serialize};

use crate::condition::Priority;
use crate::config::Span;

/// `[alerts.sinks.NAME]`: one receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SinkConfig {
    /// What it is.
    pub kind: SinkKind,
    /// Address of a receiver whose address is not a secret.
    pub url: Option<String>,
    /// File with the address: that of a robot contains its token.
    pub url_file: Option<PathBuf>,
    /// File with the secret for the signature (DingTalk, Feishu), or with a bearer token (Alertmanager, webhook).
    pub secret_file: Option<PathBuf>,
    /// Lowest priority that it gets.
    #[serde(default)]
    pub least: Priority,
    /// Whether it gets alerts. Otherwise only heartbeats.
    #[serde(default = "yes")]
    pub alerts: bool,
    /// Most messages in any 60 s.
    #[serde(default = "twenty")]
    pub per_minute: u32,
    /// Interval of the heartbeat; none: no heartbeat.
    pub heartbeat: Option<Span>,
    /// Body for a webhook, with `{field}`; none: the message as JSON.
    pub template: Option<String>,
    /// Recipients of mail.
    #[serde(default)]
    pub to: Vec<String>,
    /// Sender of mail.
    pub from: Option<String>,
    /// The program that sends mail.
    #[serde(default = "sendmail")]
    pub sendmail: PathBuf,
}

/// Kind of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SinkKind {
    /// Alertmanager, API v2.
    Alertmanager,
    /// Any service that takes JSON by HTTP POST.
    Webhook,
    /// Incoming webhook of Slack.
    Slack,
    /// Group robot of WeCom.
    Wecom,
    /// Custom robot of DingTalk.
    Dingtalk,
    /// Custom robot of Feishu or Lark.
    Feishu,
    /// E-mail through `sendmail`.
    Sendmail,
}

impl fmt::Display for SinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SinkKind::Alertmanager => "alertmanager",
            SinkKind::Webhook => "webhook",
            SinkKind::Slack => "slack",
            SinkKind::Wecom => "wecom",
            SinkKind::Dingtalk => "dingtalk",
            SinkKind::Feishu => "feishu",
            SinkKind::Sendmail => "sendmail",
        })
    }
}

impl SinkKind {
    /// Most messages a minute that the service takes. DingTalk mutes a robot for ten minutes that sends more.
    fn most_per_minute(self) -> u32 {
        match self {
            SinkKind::Dingtalk | SinkKind::Wecom => 20,
            SinkKind::Slack => 60,
            SinkKind::Feishu => 100,
            SinkKind::Alertmanager | SinkKind::Webhook | SinkKind::Sendmail => 600,
        }
    }

    /// Whether its address is a secret.
    fn is_robot(self) -> bool {
        matches!(self, SinkKind::Slack | SinkKind::Wecom | SinkKind::Dingtalk | SinkKind::Feishu)
    }

    /// Whether it gets the daily digest. Alertmanager knows only alerts.
    pub(crate) fn takes_digest(self) -> bool {
        self != SinkKind::Alertmanager
    }

    /// Whether it has open conditions in memory only. Alertmanager expects its clients to send them again every few minutes.
    pub(crate) fn forgets(self) -> bool {
        self == SinkKind::Alertmanager
    }
}

/// Fields of a template, `{id}` for example.
pub(crate) const TEMPLATE_FIELDS: &[&str] =
    &["id", "kind", "priority", "site", "time", "title", "text", "count", "nodes"];

fn yes() -> bool {
    true
}

fn twenty() -> u32 {
    20
}

fn sendmail() -> PathBuf {
    PathBuf::from("/usr/sbin/sendmail")
}

/// Whether an address of mail can stand in a header and as an argument. Stricter than RFC 5321: no quotes, no comments.
pub(crate) fn is_mail_address(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".!#$%&'*+/=?^_`{|}~-".contains(c);
    let Some((user, host)) = text.split_once('@') else {
        return !text.is_empty() && text.len() <= 64 && !text.starts_with('-') && text.chars().all(is_plain);
    };
    let is_host = |c: char| c.is_ascii_alphanumeric() || ".-".contains(c);
    !user.is_empty()
        && user.len() <= 64
        && !user.starts_with('-')
        && user.chars().all(is_plain)
        && !host.is_empty()
        && host.len() <= 255
        && host.chars().all(is_host)
}

/// The first `{name}` of a template that is not a field. Other braces stand for themselves.
pub(crate) fn unknown_field(template: &str) -> Option<&str> {
    template.split('{').skip(1).find_map(|rest| {
        let (name, _) = rest.split_once('}')?;
        let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        (is_name && !TEMPLATE_FIELDS.contains(&name)).then_some(name)
    })
}

impl SinkConfig {
    /// Problems, each with the key that it is about, below `[alerts.sinks.NAME]`.
    pub(crate) fn problems(&self) -> Vec<(&'static str, String)> {
        let mut wrong = Vec::new();
        let is_mail = self.kind == SinkKind::Sendmail;
        if is_mail {
            if self.to.is_empty() {
                wrong.push(("kind", "sendmail needs `to`".to_owned()));
            }
            if self.from.is_none() {
                wrong.push(("kind", "sendmail needs `from`".to_owned()));
            }
            let addresses =
                self.to.iter().map(|to| ("to", to)).chain(self.from.iter().map(|from| ("from", from)));
            for (key, address) in addresses.filter(|(_, address)| !is_mail_address(address)) {
                wrong.push((key, format!("'{address}' is not an address of mail")));
            }
            if !self.sendmail.is_absolute() {
                wrong.push(("sendmail", "is not an absolute path".to_owned()));
            }
        } else {
            for (key, is_set) in [("to", !self.to.is_empty()), ("from", self.from.is_some())] {
                if is_set {
                    wrong.push((key, format!("{} takes no mail", self.kind)));
                }
            }
        }
        match (&self.url, &self.url_file) {
            (None, None) if !is_mail => {
                wrong.push(("kind", format!("{} needs `url_file` or `url`", self.kind)))
            }
            (Some(_), Some(_)) => wrong.push(("url", "`url_file` is set as well".to_owned())),
            (Some(_), _) if is_mail => wrong.push(("url", "sendmail has no address".to_owned())),
            (_, Some(_)) if is_mail => wrong.push(("url_file", "sendmail has no address".to_owned())),
            (Some(_), None) if self.kind.is_robot() => wrong.push((
                "url",
                format!("the address of a {} robot is a secret: put it into `url_file`", self.kind),
            )),
            (Some(url), None) if !(url.starts_with("https://") || url.starts_with("http://")) => {
                wrong.push(("url", "does not begin with https:// or http://".to_owned()));
            }
            _ => {}
        }
        for (key, file) in [("url_file", &self.url_file), ("secret_file", &self.secret_file)] {
            if file.as_ref().is_some_and(|file| !file.is_absolute()) {
                wrong.push((key, "is not an absolute path".to_owned()));
            }
        }
        if self.secret_file.is_some()
            && matches!(self.kind, SinkKind::Slack | SinkKind::Wecom | SinkKind::Sendmail)
        {
            wrong.push(("secret_file", format!("{} has no secret besides its address", self.kind)));
        }
        let most = self.kind.most_per_minute();
        if !(1..=most).contains(&self.per_minute) {
            let is = self.per_minute;
            wrong.push(("per_minute", format!("{is} is not within 1 to {most}, for {}", self.kind)));
        }
        if let Some(Span(is)) = self.heartbeat
            && !(Duration::from_secs(10)..=Duration::from_secs(86_400)).contains(&is)
        {
            let is = humantime::format_duration(is);
            wrong.push(("heartbeat", format!("{is} is not within 10s to 1day")));
        }
        if !self.alerts && self.heartbeat.is_none() {
            wrong.push(("alerts", "a receiver without alerts needs `heartbeat`".to_owned()));
        }
        match &self.template {
            Some(_) if self.kind != SinkKind::Webhook => {
                wrong.push(("template", format!("only for webhook, not for {}", self.kind)));
            }
            Some(template) if template.len() > MAX_TEMPLATE => {
                wrong.push(("template", format!("longer than {MAX_TEMPLATE} bytes")));
            }
            Some(template) => {
                if let Some(name) = unknown_field(template) {
                    let known = TEMPLATE_FIELDS.join(", ");
                    wrong.push(("template", format!("`{{{name}}}` is not a field; the fields are {known}")));
                }
            }
            None => {}
        }
        wrong
    }
}

/// Longest template, bytes.
const MAX_TEMPLATE: usize = 16 << 10;

/// How the intervals of a sink are written.
impl Serialize for Span {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        duration_text::serialize(&self.0, to)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        duration_text::deserialize(from).map(Span)
    }
}
