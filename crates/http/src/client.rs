use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use railgate_fsutil::read;
use ureq::http::Response;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body, Error, Proxy};

use crate::Address;

/// Most bytes of an answer's header.
const MAX_HEADER: usize = 16 << 10;
/// Most bytes of the file of certificates.
const MAX_CERTIFICATES: u64 = 16 << 20;

/// Where distributions keep the certificates of authorities: Debian and Ubuntu, RHEL, SUSE.
const SYSTEM_CERTIFICATES: &[&str] =
    &["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"];

/// Limits and certificates of a client.
#[derive(Clone, Copy, Debug)]
pub struct HttpConfig<'a> {
    /// For all of a request: connection, request and answer.
    pub deadline: Duration,
    /// Most bytes of an answer.
    pub most: u64,
    /// Certificates of authorities, PEM; `None`: those of the system.
    pub ca_file: Option<&'a Path>,
    /// `http://proxy:3128`; `None`: no proxy. The environment's variables are not used.
    pub proxy: Option<&'a str>,
}

/// Why a client cannot be made. The texts follow the name of a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The certificates cannot be read.
    #[error("{0}")]
    Certificates(String),
    /// The proxy's address is not valid.
    #[error("is not the address of a proxy")]
    Proxy,
}

/// An HTTP client with a deadline.
#[derive(Clone, Debug)]
pub struct Http {
    agent: Agent,
    most: u64,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// `Retry-After`, in seconds.
    pub wait: Option<Duration>,
    /// `None`: it did not arrive completely within the limits.
    pub body: Option<Vec<u8>>,
}

/// There is no answer. The text contains no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoAnswer(pub String);

impl Http {
    /// Makes a client for addresses of this kind. The certificates are read for [`Address::Tls`].
    ///
    /// # Errors
    /// A certificate cannot be read, or the proxy's address is not valid.
    pub fn open(config: &HttpConfig<'_>, address: Address) -> Result<Http, OpenError> {
        let certificates = match address {
            Address::Tls => certificates(config.ca_file).map_err(OpenError::Certificates)?,
            Address::Plain => Vec::new(),
        };
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::Specific(Arc::new(certificates)))
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build();
        let proxy = config.proxy.map(Proxy::new).transpose().map_err(|_| OpenError::Proxy)?;
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
        Ok(Http { agent, most: config.most })
    }

    /// Posts JSON.
    ///
    /// # Errors
    /// No answer within the limits.
    pub fn post(&self, url: &str, headers: &[(&str, &str)], json: &[u8]) -> Result<Answer, NoAnswer> {
        let mut request = self.agent.post(url).header("Content-Type", "application/json; charset=utf-8");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.answer(request.send(json))
    }

    /// Gets a document.
    ///
    /// # Errors
    /// No answer within the limits.
    pub fn get(&self, url: &str, headers: &[(&str, &str)]) -> Result<Answer, NoAnswer> {
        let mut request = self.agent.get(url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.answer(request.call())
    }

    /// Gets a document from a service that marks its answers with a header. Any other answer is not the service's.
    ///
    /// # Errors
    /// No answer within the limits, or an answer without this mark.
    pub fn get_marked(
        &self,
        url: &str,
        headers: &[(&str, &str)],
        mark: (&str, &str),
    ) -> Result<Answer, NoAnswer> {
        let mut request = self.agent.get(url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.call().map_err(|why| NoAnswer(words(&why)))?;
        if response.headers().get(mark.0).is_none_or(|value| value.as_bytes() != mark.1.as_bytes()) {
            return Err(NoAnswer(format!("the answer has no header {}: {}", mark.0, mark.1)));
        }
        self.answer(Ok(response))
    }

    /// Puts nothing at an address: some services start a session this way.
    ///
    /// # Errors
    /// No answer within the limits.
    pub fn put_nothing(&self, url: &str, headers: &[(&str, &str)]) -> Result<Answer, NoAnswer> {
        let mut request = self.agent.put(url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.answer(request.send_empty())
    }

    fn answer(&self, sent: Result<Response<Body>, Error>) -> Result<Answer, NoAnswer> {
        let mut response = sent.map_err(|why| NoAnswer(words(&why)))?;
        let wait = response.headers().get("Retry-After").and_then(|value| value.to_str().ok());
        let wait = wait.and_then(|value| value.trim().parse().ok()).map(Duration::from_secs);
        let status = response.status().as_u16();
        let body = response.body_mut().with_config().limit(self.most).read_to_vec().ok();
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

fn certificates(file: Option<&Path>) -> Result<Vec<Certificate<'static>>, String> {
    let file: PathBuf = match file {
        Some(file) => railgate_fsutil::trusted(file).map_err(|why| why.to_string())?,
        None => {
            let known = SYSTEM_CERTIFICATES.iter().map(Path::new).find(|file| file.exists());
            known.ok_or("is not set, and the system has no certificates")?.to_owned()
        }
    };
    let text = read::whole_bytes(&file, MAX_CERTIFICATES).map_err(|why| why.to_string())?;
    let found: Vec<Certificate<'static>> = parse_pem(&text)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if found.is_empty() {
        return Err(format!("{} has no certificates", file.display()));
    }
    Ok(found)
}
