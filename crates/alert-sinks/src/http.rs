//! One POST, within limits.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use railgate_alerts::AlertsConfig;
use railgate_fsutil::read;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Error, Proxy};

use crate::sink::SinkError;

/// Most bytes of an answer.
const MAX_ANSWER: u64 = 64 << 10;
/// Most bytes of an answer's header.
const MAX_HEADER: usize = 16 << 10;
/// Most bytes of the file of certificates.
const MAX_CERTIFICATES: u64 = 16 << 20;

/// Where distributions keep the certificates of authorities: Debian and Ubuntu, RHEL, SUSE.
const SYSTEM_CERTIFICATES: &[&str] =
    &["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"];

/// An HTTP client with a deadline.
#[derive(Clone, Debug)]
pub(crate) struct Http {
    agent: Agent,
}

/// An answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// `Retry-After`, in seconds.
    pub(crate) wait: Option<Duration>,
    /// `None`: it did not arrive completely within the limits.
    pub(crate) body: Option<Vec<u8>>,
}

/// There is no answer. The text contains no address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoAnswer(pub(crate) String);

impl Http {
    /// A client as the configuration describes it. The certificates are read if `tls` is set.
    pub(crate) fn open(config: &AlertsConfig, tls: bool) -> Result<Http, SinkError> {
        let certificates = if tls { certificates(config.ca_file.as_deref())? } else { Vec::new() };
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::Specific(Arc::new(certificates)))
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build();
        let proxy = config.proxy.as_deref().map(Proxy::new).transpose();
        let proxy = proxy.map_err(|_| SinkError::new("alerts.proxy", "is not the address of a proxy"))?;
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            // Without this, the environment could name one.
            .proxy(proxy)
            .tls_config(tls)
            .timeout_global(Some(config.deadline))
            .max_response_header_size(MAX_HEADER)
            // A connection that the server closed meanwhile would make a message look undelivered.
            .max_idle_connections(0)
            .user_agent(concat!("railgate/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        Ok(Http { agent })
    }

    /// Posts a body.
    pub(crate) fn post(&self, url: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<Answer, NoAnswer> {
        let mut request = self.agent.post(url).header("Content-Type", "application/json; charset=utf-8");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut response = request.send(body).map_err(|why| NoAnswer(words(&why)))?;
        let wait = response.headers().get("Retry-After").and_then(|value| value.to_str().ok());
        let wait = wait.and_then(|value| value.trim().parse().ok()).map(Duration::from_secs);
        let status = response.status().as_u16();
        let body = response.body_mut().with_config().limit(MAX_ANSWER).read_to_vec().ok();
        Ok(Answer { status, wait, body })
    }
}

/// What went wrong. ureq's own text can contain the address, and with it a token.
fn words(why: &Error) -> String {
    match why {
        Error::Timeout(_) => "no answer within the deadline".to_owned(),
        Error::HostNotFound => "host not found".to_owned(),
        Error::ConnectionFailed => "no connection".to_owned(),
        Error::Io(why) => match why.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(why) => format!("TLS: {why}"),
            None => format!("connection: {}", why.kind()),
        },
        Error::Tls(what) => format!("TLS: {what}"),
        Error::Rustls(why) => format!("TLS: {why}"),
        Error::BadUri(_) | Error::Http(_) => "the address is not valid".to_owned(),
        Error::LargeResponseHeader(..) => "the header of the answer is too large".to_owned(),
        _ => "the answer is not HTTP".to_owned(),
    }
}

fn certificates(file: Option<&Path>) -> Result<Vec<Certificate<'static>>, SinkError> {
    let wrong = |why: String| SinkError::new("alerts.ca_file", why);
    let file: PathBuf = match file {
        Some(file) => railgate_fsutil::trusted(file).map_err(|why| wrong(why.to_string()))?,
        None => {
            let known = SYSTEM_CERTIFICATES.iter().map(Path::new).find(|file| file.exists());
            known
                .ok_or_else(|| wrong("is not set, and the system has no certificates".to_owned()))?
                .to_owned()
        }
    };
    let text = read::whole_bytes(&file, MAX_CERTIFICATES).map_err(|why| wrong(why.to_string()))?;
    let found: Vec<Certificate<'static>> = parse_pem(&text)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if found.is_empty() {
        return Err(wrong(format!("{} has no certificates", file.display())));
    }
    Ok(found)
}
