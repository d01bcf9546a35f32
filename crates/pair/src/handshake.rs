//! Both ends prove that they know the key of the job before anything else.
//!
//! Each sends a nonce. The end that connects proves first: a client without the key gets no proof to learn from. The proof is
//! not bound to the lines that follow: a process that can change packets between the nodes can change them.

use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::key::{self, Key, Nonces, Role};
use crate::link::{Link, Message};

/// Interval between two attempts to accept or to connect.
const INTERVAL: Duration = Duration::from_millis(10);
/// Number of dropped connections that are reported, so that a hostile client cannot fill a log.
const REPORTED: usize = 8;

/// Limits of time. Parameters, so that tests do not wait.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// From the connection to the end of the proofs.
    pub handshake: Duration,
    /// The whole conversation.
    pub whole: Duration,
    /// How long to wait for a peer.
    pub deadline: Duration,
}

impl Limits {
    /// Limits for a peer that starts within `deadline`.
    pub fn new(deadline: Duration) -> Limits {
        Limits { handshake: Duration::from_secs(5), whole: Duration::from_secs(20), deadline }
    }
}

/// How two ends meet.
#[derive(Debug, Clone, Copy)]
pub struct Meeting<'k> {
    /// The job's key.
    pub key: &'k Key,
    /// Version of the conversation that follows. Both ends must have the same.
    pub version: u32,
    /// Limits of time.
    pub limits: Limits,
    /// Gets one line for each of the first connections that are dropped.
    pub dropped: fn(&str),
}

impl Meeting<'_> {
    /// Waits for a peer that knows the key. Every other connection is dropped after at most `limits.handshake`; they are served
    /// one after the other.
    pub fn accept(&self, listener: &TcpListener) -> Result<Link, String> {
        listener.set_nonblocking(true).map_err(|why| format!("socket: {why}"))?;
        let end = Instant::now() + self.limits.deadline;
        let mut dropped = 0;
        while Instant::now() < end {
            let Ok((stream, address)) = listener.accept() else {
                std::thread::sleep(INTERVAL);
                continue;
            };
            match self.prove(stream, Role::Serve) {
                Ok(link) => return Ok(link),
                Err(why) if dropped < REPORTED => (self.dropped)(&format!("dropped {address}: {why}")),
                Err(_) => {}
            }
            dropped += 1;
        }
        let seconds = self.limits.deadline.as_secs();
        Err(format!("no peer with the key in {seconds} s; {dropped} other connections dropped"))
    }

    /// Connects to a peer and exchanges the proofs. While the port refuses, tries again: the peer may start later.
    pub fn connect(&self, peer: &str) -> Result<Link, String> {
        let end = Instant::now() + self.limits.deadline;
        loop {
            let refused = match open(peer, self.limits.handshake) {
                Ok(stream) => return self.prove(stream, Role::Connect),
                Err(why) if why.kind() == std::io::ErrorKind::ConnectionRefused => why,
                Err(why) => return Err(format!("connect to {peer}: {why}")),
            };
            if Instant::now() >= end {
                return Err(format!("connect to {peer}: {refused}"));
            }
            std::thread::sleep(INTERVAL);
        }
    }

    /// Exchanges the proofs. The link that is returned ends with the whole conversation.
    fn prove(&self, stream: TcpStream, role: Role) -> Result<Link, String> {
        let began = Instant::now();
        let mut link = Link::new(stream, began + self.limits.handshake)?;
        let own = key::random()?;
        let hello = Opening::Hello { version: self.version, nonce: key::to_hex(&own) };
        let nonces = match role {
            Role::Connect => {
                link.send(&hello)?;
                Nonces { connect: own, serve: self.nonce(&mut link)? }
            }
            Role::Serve => {
                let connect = self.nonce(&mut link)?;
                link.send(&hello)?;
                Nonces { connect, serve: own }
            }
        };
        let proof = Opening::Proof { proof: key::to_hex(&self.key.prove(role, &nonces)?) };
        if role == Role::Connect {
            link.send(&proof)?;
        }
        let Opening::Proof { proof: theirs } = link.receive()? else {
            return Err("the peer sent no proof of the key".to_owned());
        };
        let theirs = key::from_hex(&theirs).ok_or("the peer sent no proof of the key")?;
        if !self.key.verify(role.other(), &nonces, &theirs)? {
            return Err("the peer does not know the key".to_owned());
        }
        if role == Role::Serve {
            link.send(&proof)?;
        }
        link.extend(began + self.limits.whole);
        Ok(link)
    }

    fn nonce(&self, link: &mut Link) -> Result<key::Bytes, String> {
        match link.receive()? {
            Opening::Hello { version, nonce } if version == self.version => {
                key::from_hex(&nonce).ok_or_else(|| "the peer sent no nonce".to_owned())
            }
            Opening::Hello { .. } => Err("the peer has another version of this program".to_owned()),
            _ => Err("the peer sent no nonce".to_owned()),
        }
    }
}

/// The first lines of both ends.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Opening {
    /// `nonce` has 64 hexadecimal digits.
    Hello { version: u32, nonce: String },
    /// The proof of the key, 64 hexadecimal digits.
    Proof { proof: String },
    /// The sender gives up.
    Failed { why: String },
}

impl Message for Opening {
    fn failed(why: String) -> Self {
        Opening::Failed { why }
    }

    fn failure(&self) -> Option<&str> {
        match self {
            Opening::Failed { why } => Some(why),
            _ => None,
        }
    }

    fn is_plausible(&self) -> bool {
        true
    }
}

/// Connects to the first address that accepts.
fn open(peer: &str, limit: Duration) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::other("no address");
    for address in std::net::ToSocketAddrs::to_socket_addrs(peer)? {
        match TcpStream::connect_timeout(&address, limit) {
            Ok(stream) => return Ok(stream),
            Err(why) => last = why,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests;
