//! Lines of JSON over one TCP connection. Everything that a peer sends is bounded in length and in time.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Maximum length of a line, bytes.
pub(crate) const LINE: usize = 4096;

/// One end of the connection.
#[derive(Debug)]
pub(crate) struct Link {
    stream: TcpStream,
    until: Instant,
    /// Bytes received after the last line that was returned; less than a line and one read.
    pending: Vec<u8>,
}

impl Link {
    /// Takes over a connection. Every operation ends by `until`, also if the peer does not answer.
    pub(crate) fn new(stream: TcpStream, until: Instant) -> Result<Link, String> {
        stream.set_nonblocking(false).map_err(|why| format!("socket: {why}"))?;
        stream.set_nodelay(true).map_err(|why| format!("socket: {why}"))?;
        Ok(Link { stream, until, pending: Vec::new() })
    }

    /// The time by which every operation ends.
    pub(crate) fn until(&self) -> Instant {
        self.until
    }

    /// Sets the time by which every operation ends.
    pub(crate) fn extend(&mut self, until: Instant) {
        self.until = until;
    }

    /// Sends one line.
    pub(crate) fn send<T: Serialize>(&mut self, message: &T) -> Result<(), String> {
        let mut line = serde_json::to_vec(message).map_err(|why| format!("message: {why}"))?;
        line.push(b'\n');
        let mut rest = &line[..];
        while !rest.is_empty() {
            let limit = Some(self.left()?);
            self.stream.set_write_timeout(limit).map_err(|why| format!("socket: {why}"))?;
            match self.stream.write(rest) {
                Ok(0) => return Err(CLOSED.to_owned()),
                Ok(sent) => rest = rest.get(sent..).unwrap_or_default(),
                Err(why) => failed(&why)?,
            }
        }
        Ok(())
    }

    /// Receives one line. The error does not contain text of the peer.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> Result<T, String> {
        let line = self.line()?;
        serde_json::from_slice(&line).map_err(|_| "the peer sent a line that is no message".to_owned())
    }

    fn line(&mut self) -> Result<Vec<u8>, String> {
        loop {
            if let Some(end) = self.pending.iter().take(LINE).position(|byte| *byte == b'\n') {
                let rest = self.pending.split_off(end + 1);
                return Ok(std::mem::replace(&mut self.pending, rest));
            }
            if self.pending.len() >= LINE {
                return Err(format!("the peer sent a line of more than {LINE} bytes"));
            }
            let limit = Some(self.left()?);
            self.stream.set_read_timeout(limit).map_err(|why| format!("socket: {why}"))?;
            let mut chunk = [0; 1024];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(CLOSED.to_owned()),
                Ok(read) => self.pending.extend(chunk.iter().take(read)),
                Err(why) => failed(&why)?,
            }
        }
    }

    /// Time left; an error if there is none, since a timeout of zero means none to the kernel.
    fn left(&self) -> Result<Duration, String> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(LATE.to_owned()) } else { Ok(left) }
    }
}

/// Error of an operation that did not end in time.
pub(crate) const LATE: &str = "the peer did not answer in time";
const CLOSED: &str = "the peer closed the connection";

/// Ok for errors after which the operation is tried again: the next [`Link::left`] ends an operation that timed out.
fn failed(why: &std::io::Error) -> Result<(), String> {
    match why.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Ok(()),
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Err(CLOSED.to_owned()),
        _ => Err(format!("connection: {why}")),
    }
}
