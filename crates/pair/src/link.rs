//! Lines of JSON over one TCP connection. Everything that a peer sends is bounded in length and in time.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::printable;

/// Maximum length of a line, bytes.
const LINE: usize = 4096;
/// How long to wait for what the peer reports last.
const LAST: Duration = Duration::from_millis(200);

/// A line of a conversation.
pub trait Message: Serialize + DeserializeOwned {
    /// The message with which an end gives up.
    fn failed(why: String) -> Self;

    /// Why the sender gives up, if it does.
    fn failure(&self) -> Option<&str>;

    /// Whether its numbers are possible ones.
    fn is_plausible(&self) -> bool;
}

/// One end of the connection.
#[derive(Debug)]
pub struct Link {
    stream: TcpStream,
    until: Instant,
    /// Bytes received after the last line that was returned; less than a line and one read.
    pending: Vec<u8>,
}

impl Link {
    /// Takes over a connection. Every operation ends by `until`, also if the peer does not answer.
    pub fn new(stream: TcpStream, until: Instant) -> Result<Link, String> {
        stream.set_nonblocking(false).map_err(|why| format!("socket: {why}"))?;
        stream.set_nodelay(true).map_err(|why| format!("socket: {why}"))?;
        Ok(Link { stream, until, pending: Vec::new() })
    }

    /// The time by which every operation ends.
    pub fn until(&self) -> Instant {
        self.until
    }

    /// Sets the time by which every operation ends.
    pub fn extend(&mut self, until: Instant) {
        self.until = until;
    }

    /// Sends one line.
    pub fn send<T: Serialize>(&mut self, message: &T) -> Result<(), String> {
        let mut line = serde_json::to_vec(message).map_err(|why| format!("message: {why}"))?;
        line.push(b'\n');
        self.write_all(&line)
    }

    /// Receives one message. That the peer gives up is an error. Of the peer's text an error contains only printable characters.
    pub fn receive<M: Message>(&mut self) -> Result<M, String> {
        let line = self.line()?;
        let message: M = serde_json::from_slice(&line)
            .map_err(|_| "the peer sent a line that is no message".to_owned())?;
        if let Some(why) = message.failure() {
            return Err(format!("the peer failed: {}", printable(why)));
        }
        if message.is_plausible() {
            Ok(message)
        } else {
            Err("the peer sent an impossible number".to_owned())
        }
    }

    /// Reports to the peer why this end gives up. Failures are ignored: the peer may be gone.
    pub fn give_up<M: Message>(&mut self, why: &str) {
        let _ = self.send(&M::failed(printable(why)));
    }

    /// What the peer reports, or that it closed the connection, after this end has given up. `None` if there is nothing within 0.2 s.
    pub fn last<M: Message>(&mut self) -> Option<String> {
        self.extend(Instant::now() + LAST);
        self.receive::<M>().err().filter(|why| why != LATE)
    }

    /// Sends bytes as they are.
    pub(crate) fn write_all(&mut self, mut rest: &[u8]) -> Result<(), String> {
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

    /// Fills the buffer with the bytes that follow.
    pub(crate) fn read_exact(&mut self, buffer: &mut [u8]) -> Result<(), String> {
        let early = self.pending.len().min(buffer.len());
        let (first, mut rest) = buffer.split_at_mut(early);
        first.copy_from_slice(self.pending.get(..early).unwrap_or_default());
        self.pending.drain(..early);
        while !rest.is_empty() {
            let limit = Some(self.left()?);
            self.stream.set_read_timeout(limit).map_err(|why| format!("socket: {why}"))?;
            match self.stream.read(rest) {
                Ok(0) => return Err(CLOSED.to_owned()),
                Ok(read) => rest = rest.get_mut(read..).unwrap_or_default(),
                Err(why) => failed(&why)?,
            }
        }
        Ok(())
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
const LATE: &str = "the peer did not answer in time";
const CLOSED: &str = "the peer closed the connection";

/// Ok for errors after which the operation is tried again: the next [`Link::left`] ends an operation that timed out.
fn failed(why: &std::io::Error) -> Result<(), String> {
    match why.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Ok(()),
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Err(CLOSED.to_owned()),
        _ => Err(format!("connection: {why}")),
    }
}
