use std::collections::BTreeMap;

use railgate_alerts::{AlertsConfig, Message, MessageKind, Outcome, SinkConfig, SinkKind};
use railgate_http::{Address, Answer, Http, HttpConfig, OpenError, Peer, Secret};
use railgate_model::UnixMillis;
use railgate_text::Printable;

use crate::answer::{by_status, later};
use crate::delivery::Deliver;
use crate::mail::{Mailer, program};
use crate::{alertmanager, robots, webhook};

/// Most bytes of an answer.
const MAX_ANSWER: u64 = 64 << 10;
/// Path of Alertmanager's API.
const ALERTMANAGER: &str = "/api/v2/alerts";

/// A receiver that can be used.
#[derive(Debug)]
pub struct Sink(Way);

#[derive(Debug)]
enum Way {
    Http { kind: SinkKind, http: Http, url: Secret, secret: Option<Secret>, template: Option<String> },
    Mail(Mailer),
}

/// All receivers of a configuration. One that cannot be opened keeps its messages until it can.
#[derive(Debug, Default)]
pub struct Sinks(BTreeMap<String, Result<Sink, SinkError>>);

/// Why a receiver cannot be used. The message begins with the key, and contains no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {}", Printable(why))]
pub struct SinkError {
    key: String,
    why: String,
}

impl SinkError {
    pub(crate) fn new(key: impl Into<String>, why: impl Into<String>) -> SinkError {
        SinkError { key: key.into(), why: why.into() }
    }
}

impl Sinks {
    /// Opens all receivers: reads addresses, secrets and certificates.
    pub fn open(config: &AlertsConfig) -> Sinks {
        let open = |(name, sink): (&String, &SinkConfig)| (name.clone(), Sink::open(config, name, sink));
        Sinks(config.sinks.iter().map(open).collect())
    }

    /// Why each receiver that cannot be used was left out.
    pub fn problems(&self) -> impl Iterator<Item = &SinkError> {
        self.0.values().filter_map(|sink| sink.as_ref().err())
    }
}

impl Deliver for Sinks {
    fn send(&self, message: &Message, now: UnixMillis) -> Outcome {
        match self.0.get(&message.sink) {
            Some(Ok(sink)) => sink.send(message, now),
            Some(Err(why)) => later(why.to_string(), None),
            None => later("not in the configuration", None),
        }
    }
}

impl Sink {
    /// Opens the receiver `[alerts.sinks.NAME]`.
    ///
    /// # Errors
    /// A file cannot be read or is not root's alone, an address is not valid, or a certificate is missing.
    pub fn open(config: &AlertsConfig, name: &str, sink: &SinkConfig) -> Result<Sink, SinkError> {
        let at = |key: &str| format!("alerts.sinks.{name}.{key}");
        if sink.kind == SinkKind::Sendmail {
            let program = program(&sink.sendmail).map_err(|why| SinkError::new(at("sendmail"), why))?;
            let from = sink.from.clone().ok_or_else(|| SinkError::new(at("from"), "is missing"))?;
            let (to, deadline) = (sink.to.clone(), config.deadline);
            return Ok(Sink(Way::Mail(Mailer { program, from, to, deadline })));
        }
        let (key, url) = match (&sink.url_file, &sink.url) {
            (Some(file), _) => {
                let read = Secret::read(file);
                ("url_file", read.map_err(|why| SinkError::new(at("url_file"), why.to_string()))?)
            }
            (None, Some(url)) => ("url", Secret::new(url)),
            (None, None) => return Err(SinkError::new(at("url_file"), "is missing")),
        };
        let peer = match sink.kind {
            SinkKind::Alertmanager | SinkKind::Webhook => Peer::Internal,
            _ => Peer::Proved,
        };
        let address = Address::of(url.reveal(), peer).map_err(|why| SinkError::new(at(key), why))?;
        let secret = sink.secret_file.as_deref().map(Secret::read).transpose();
        let secret = secret.map_err(|why| SinkError::new(at("secret_file"), why.to_string()))?;
        let http = HttpConfig {
            deadline: config.deadline,
            most: MAX_ANSWER,
            ca_file: config.ca_file.as_deref(),
            proxy: config.proxy.as_deref(),
        };
        let http = Http::open(&http, address).map_err(|why| {
            let key = if why == OpenError::Proxy { "alerts.proxy" } else { "alerts.ca_file" };
            SinkError::new(key, why.to_string())
        })?;
        Ok(Sink(Way::Http { kind: sink.kind, http, url, secret, template: sink.template.clone() }))
    }

    /// Sends a message. `now` is the time for signatures.
    pub fn send(&self, message: &Message, now: UnixMillis) -> Outcome {
        match &self.0 {
            Way::Mail(mailer) => mailer.send(message),
            Way::Http { kind, http, url, secret, template } => {
                let secret = secret.as_ref();
                let outcome = post(*kind, http, url, secret, template.as_deref(), message, now);
                hidden(outcome, url, secret)
            }
        }
    }
}

fn post(
    kind: SinkKind,
    http: &Http,
    url: &Secret,
    secret: Option<&Secret>,
    template: Option<&str>,
    message: &Message,
    now: UnixMillis,
) -> Outcome {
    let address = match kind {
        SinkKind::Dingtalk => robots::dingtalk_url(url, secret, now),
        SinkKind::Alertmanager if !url.reveal().ends_with(ALERTMANAGER) => {
            format!("{}{ALERTMANAGER}", url.reveal().trim_end_matches('/'))
        }
        _ => url.reveal().to_owned(),
    };
    let body = match (kind, template) {
        (SinkKind::Alertmanager, _) if message.kind == MessageKind::Digest => return Outcome::Accepted,
        (SinkKind::Alertmanager, _) => alertmanager::body(message, now).to_string(),
        (SinkKind::Slack, _) => robots::slack_body(message).to_string(),
        (SinkKind::Wecom, _) => robots::wecom_body(message).to_string(),
        (SinkKind::Dingtalk, _) => robots::dingtalk_body(message).to_string(),
        (SinkKind::Feishu, _) => robots::feishu_body(message, secret, now).to_string(),
        (_, Some(template)) => webhook::fill(template, message),
        (_, None) => webhook::body(message).to_string(),
    };
    let bearer = secret.filter(|_| matches!(kind, SinkKind::Alertmanager | SinkKind::Webhook));
    let bearer = bearer.map(|secret| format!("Bearer {}", secret.reveal()));
    let mut headers = vec![("Idempotency-Key", message.id.as_str())];
    headers.extend(bearer.as_deref().map(|bearer| ("Authorization", bearer)));
    let answer: Answer = match http.post(&address, &headers, body.as_bytes()) {
        Ok(answer) => answer,
        Err(why) => return later(why.0, None),
    };
    match kind {
        SinkKind::Wecom => robots::wecom_outcome(&answer),
        SinkKind::Dingtalk => robots::dingtalk_outcome(&answer),
        SinkKind::Feishu => robots::feishu_outcome(&answer),
        _ => by_status(&answer),
    }
}

/// The outcome without the secrets, which a server may have repeated.
fn hidden(outcome: Outcome, url: &Secret, secret: Option<&Secret>) -> Outcome {
    let hide = |text: String| {
        let text = url.hide(&text);
        secret.map_or(text.clone(), |secret| secret.hide(&text))
    };
    match outcome {
        Outcome::Accepted => Outcome::Accepted,
        Outcome::Later { problem, wait } => Outcome::Later { problem: hide(problem), wait },
        Outcome::Rejected { problem } => Outcome::Rejected { problem: hide(problem) },
    }
}
