//! Local servers that speak as the services do, and messages to send to them.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use railgate_alert_sinks::Sink;
use railgate_alerts::{AlertsConfig, Condition, Message, Observation, Outcome, Priority, State};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// The authority of [`Server::start_tls`].
pub(crate) const AUTHORITY: &str = include_str!("../tls/ca.pem");
/// 2026-01-05 12:00 UTC.
pub(crate) const NOON: u64 = 1_767_614_400_000;

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// What a server does with a request.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// An answer with a status, further header lines, and a body.
    Answer(u16, String, String),
    /// These bytes, then the end of the connection.
    Raw(String),
    /// Nothing, until the client closes.
    Hang,
    /// This beginning, then bytes without an end.
    Endless(String),
}

pub(crate) fn ok(body: &str) -> Reply {
    Reply::Answer(200, String::new(), body.to_owned())
}

/// A server on a port of its own, until the end of the test program.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) port: u16,
    pub(crate) requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// `reply` gets the number of the request, from 0.
    pub(crate) fn start(reply: impl Fn(usize, &Request) -> Reply + Send + Sync + 'static) -> Server {
        Server::serve(reply, |stream| stream)
    }

    /// With TLS, as `localhost`; `tls/ca.pem` is its authority.
    pub(crate) fn start_tls(reply: impl Fn(usize, &Request) -> Reply + Send + Sync + 'static) -> Server {
        let certificate = CertificateDer::from_pem_slice(include_bytes!("../tls/server.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_slice(include_bytes!("../tls/server.key")).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let config = Arc::new(config);
        Server::serve(reply, move |stream| {
            StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), stream)
        })
    }

    fn serve<S: Read + Write>(
        reply: impl Fn(usize, &Request) -> Reply + Send + Sync + 'static,
        accepted: impl Fn(TcpStream) -> S + Send + Sync + 'static,
    ) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Server {
            port: listener.local_addr().unwrap().port(),
            requests: Arc::new(Mutex::new(Vec::new())),
        };
        let (requests, reply, accepted) = (server.requests.clone(), Arc::new(reply), Arc::new(accepted));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (requests, reply, accepted) = (requests.clone(), reply.clone(), accepted.clone());
                std::thread::spawn(move || {
                    let mut stream = accepted(stream);
                    let Some(request) = read(&mut stream) else { return };
                    let number = {
                        let mut requests = requests.lock().unwrap();
                        requests.push(request.clone());
                        requests.len() - 1
                    };
                    answer(&mut stream, &reply(number, &request));
                });
            }
        });
        server
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    pub(crate) fn count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }

    pub(crate) fn last(&self) -> Request {
        self.requests.lock().unwrap().last().unwrap().clone()
    }
}

/// Reads one request with its body.
pub(crate) fn read(stream: &mut impl Read) -> Option<Request> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 || head.len() > 1 << 16 {
            return None;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).ok()?;
    let mut lines = head.lines();
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    let length = headers.iter().find(|(key, _)| key.eq_ignore_ascii_case("content-length"));
    let mut body = vec![0; length.map_or(Some(0), |(_, length)| length.parse().ok())?];
    stream.read_exact(&mut body).ok()?;
    Some(Request { path, headers, body: String::from_utf8(body).ok()? })
}

pub(crate) fn text_of(status: u16, headers: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status} X\r\nContent-Length: {}\r\n{headers}Connection: close\r\n\r\n{body}",
        body.len()
    )
}

fn answer(stream: &mut (impl Read + Write), reply: &Reply) {
    let _ = match reply {
        Reply::Answer(status, headers, body) => {
            stream.write_all(text_of(*status, headers, body).as_bytes()).and_then(|()| stream.flush())
        }
        Reply::Raw(text) => stream.write_all(text.as_bytes()),
        Reply::Hang => stream.read(&mut [0]).map(drop),
        Reply::Endless(start) => {
            let mut written = stream.write_all(start.as_bytes());
            while written.is_ok() {
                written = stream.write_all(&[b'x'; 4096]);
            }
            written
        }
    };
}

/// A directory for secrets.
#[derive(Debug)]
pub(crate) struct Files(pub(crate) tempfile::TempDir);

impl Files {
    pub(crate) fn new() -> Files {
        Files(tempfile::tempdir().unwrap())
    }

    pub(crate) fn secret(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        path
    }

    pub(crate) fn program(&self, name: &str, text: &str) -> PathBuf {
        let path = self.secret(name, text);
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// A configuration with one receiver, `it`, of a kind; `more` is TOML of its table.
    pub(crate) fn config(&self, kind: &str, url: &str, more: &str) -> AlertsConfig {
        let file = self.secret("url", url);
        let text = format!(
            "deadline = '2s'\n[sinks.it]\nkind = '{kind}'\nurl_file = '{}'\n{more}\n",
            file.display()
        );
        let config: AlertsConfig = toml::from_str(&text).unwrap();
        assert_eq!(config.problems(), Vec::<String>::new());
        config
    }
}

pub(crate) fn condition(key: &str, priority: Priority, nodes: &[&str]) -> Condition {
    Condition {
        key: key.to_owned(),
        priority,
        title: format!("{key} failed"),
        details: String::new(),
        check: None,
        nodes: nodes.iter().map(|node| ((*node).to_owned(), Default::default())).collect(),
        since: Some(NOON - 60_000),
    }
}

/// The message that receiver `it` gets about conditions, and the state after it.
pub(crate) fn message_of(config: &AlertsConfig, conditions: Vec<Condition>) -> (State, Message) {
    let mut state = State::default();
    state.observe(config, &Observation { conditions, time: NOON, complete: true }, NOON);
    let message = state.next(config, "it", NOON + 60_000).unwrap();
    (state, message)
}

/// Sends one message about node `gn1`.
pub(crate) fn send(config: &AlertsConfig) -> Outcome {
    let (_, message) = message_of(config, vec![condition("node/gn1", Priority::P0, &["gn1"])]);
    Sink::open(config, "it", &config.sinks["it"]).unwrap().send(&message, NOON)
}
