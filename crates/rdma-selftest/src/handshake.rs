//! Both ends prove that they know the key of the job before anything else.
//!
//! Each sends a nonce. The end that connects proves first: a client without the key gets no proof to learn from. The proof is
//! not bound to the lines that follow: a process that can change packets between the nodes can change them.

use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::key::{self, Key, Nonces, Role};
use crate::link::Link;
use crate::message::{Message, VERSION};

/// Interval between two attempts to accept or to connect.
const INTERVAL: Duration = Duration::from_millis(10);
/// Number of dropped connections that are printed, so that a hostile client cannot fill a log.
const PRINTED: usize = 8;

/// Limits of time. Parameters, so that tests do not wait.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// From the connection to the end of the proofs.
    pub(crate) handshake: Duration,
    /// The whole conversation.
    pub(crate) whole: Duration,
    /// How long to wait for a peer.
    pub(crate) deadline: Duration,
}

impl Limits {
    pub(crate) fn new(deadline: Duration) -> Limits {
        Limits { handshake: Duration::from_secs(5), whole: Duration::from_secs(20), deadline }
    }
}

/// Waits for a peer that knows the key. Every other connection is dropped after at most `limits.handshake`; they are served one
/// after the other.
pub(crate) fn accept(listener: &TcpListener, key: &Key, limits: Limits) -> Result<Link, String> {
    listener.set_nonblocking(true).map_err(|why| format!("socket: {why}"))?;
    let end = Instant::now() + limits.deadline;
    let mut dropped = 0;
    while Instant::now() < end {
        let Ok((stream, address)) = listener.accept() else {
            std::thread::sleep(INTERVAL);
            continue;
        };
        match prove(stream, Role::Serve, key, limits) {
            Ok(link) => return Ok(link),
            Err(why) if dropped < PRINTED => eprintln!("dropped {address}: {why}"),
            Err(_) => {}
        }
        dropped += 1;
    }
    let seconds = limits.deadline.as_secs();
    Err(format!("no peer with the key in {seconds} s; {dropped} other connections dropped"))
}

/// Connects to a peer and exchanges the proofs. While the port refuses, tries again: the peer may start later.
pub(crate) fn connect(peer: &str, key: &Key, limits: Limits) -> Result<Link, String> {
    let end = Instant::now() + limits.deadline;
    loop {
        let refused = match open(peer, limits.handshake) {
            Ok(stream) => return prove(stream, Role::Connect, key, limits),
            Err(why) if why.kind() == std::io::ErrorKind::ConnectionRefused => why,
            Err(why) => return Err(format!("connect to {peer}: {why}")),
        };
        if Instant::now() >= end {
            return Err(format!("connect to {peer}: {refused}"));
        }
        std::thread::sleep(INTERVAL);
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

/// Exchanges the proofs. The link that is returned ends with the whole conversation.
fn prove(stream: TcpStream, role: Role, key: &Key, limits: Limits) -> Result<Link, String> {
    let began = Instant::now();
    let mut link = Link::new(stream, began + limits.handshake)?;
    let own = key::random()?;
    let hello = Message::Hello { version: VERSION, nonce: key::to_hex(&own) };
    let nonces = match role {
        Role::Connect => {
            link.send(&hello)?;
            Nonces { connect: own, serve: nonce(&mut link)? }
        }
        Role::Serve => {
            let connect = nonce(&mut link)?;
            link.send(&hello)?;
            Nonces { connect, serve: own }
        }
    };
    let proof = Message::Proof { proof: key::to_hex(&key.prove(role, &nonces)?) };
    if role == Role::Connect {
        link.send(&proof)?;
    }
    let Message::Proof { proof: theirs } = Message::receive(&mut link)? else {
        return Err("the peer sent no proof of the key".to_owned());
    };
    let theirs = key::from_hex(&theirs).ok_or("the peer sent no proof of the key")?;
    if !key.verify(role.other(), &nonces, &theirs)? {
        return Err("the peer does not know the key".to_owned());
    }
    if role == Role::Serve {
        link.send(&proof)?;
    }
    link.extend(began + limits.whole);
    Ok(link)
}

fn nonce(link: &mut Link) -> Result<key::Bytes, String> {
    match Message::receive(link)? {
        Message::Hello { version: VERSION, nonce } => {
            key::from_hex(&nonce).ok_or_else(|| "the peer sent no nonce".to_owned())
        }
        Message::Hello { .. } => Err("the peer has another version of this program".to_owned()),
        _ => Err("the peer sent no nonce".to_owned()),
    }
}

#[cfg(test)]
mod tests;
