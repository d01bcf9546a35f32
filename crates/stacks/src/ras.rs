//! What NCCL's RAS says about all ranks of a job: how often each has called each collective, and which one does not answer.
//!
//! A user could let another program listen on the port, so an answer counts only if its socket is of the job's own user. Only JSON
//! is asked for, which NCCL has from 2.28.7 on: earlier releases could crash when asked ([nccl#1718], [nccl#1762]), and the text of
//! 2.28.9 contains memory of the process if a rank is gone (measured).
//!
//! [nccl#1718]: https://github.com/NVIDIA/nccl/issues/1718
//! [nccl#1762]: https://github.com/NVIDIA/nccl/issues/1762

mod answer;
mod socket;

use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::resource::Resource;
use railgate_child::become_user;
use serde::{Deserialize, Serialize};

use crate::task::limit;
use answer::sentences;
use socket::uid_of;

pub(crate) const RAS: &str = "hang-ras";
/// For the child, and within it for the answer, so that the child can report why there is none. NCCL itself collects for five seconds.
const DEADLINE: Duration = Duration::from_secs(14);
const ANSWER_BY: Duration = Duration::from_secs(9);
const COLLECTS_S: u32 = 5;
/// Longest answer: some 500 bytes for each rank of each communicator.
const MOST_ANSWER: u64 = 64 << 20;
const MOST_LINE: u64 = 200;
const MOST_MEMORY: u64 = 1 << 30;
const MOST_CPU_S: u64 = 5;

/// Where NCCL's RAS of a job listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RasOrder {
    /// Root of the proc tree.
    pub proc: PathBuf,
    /// Port of `NCCL_RAS_ADDR`, on this node.
    pub port: u16,
    /// Owner of the job, not root.
    pub uid: u32,
    /// Group of the job.
    pub gid: u32,
}

/// Asks NCCL's RAS of a job, once. Returns at most [`railgate_node_report::stacks::MOST_RAS`] sentences, or one with the reason why there is no
/// answer.
pub fn ask_ras(order: &RasOrder) -> Vec<String> {
    let answer = serde_json::to_vec(order)
        .map_err(|why| why.to_string())
        .and_then(|order| railgate_child::ask(RAS, &order, DEADLINE))
        .and_then(|answer| serde_json::from_slice(&answer).map_err(|why| why.to_string()));
    answer.unwrap_or_else(|why| vec![format!("no answer: {why}")])
}

pub(crate) fn task(order: &RasOrder) -> Result<Vec<String>, String> {
    limit(&[(Resource::RLIMIT_AS, MOST_MEMORY), (Resource::RLIMIT_CPU, MOST_CPU_S)])?;
    become_user(order.uid, order.gid, &[]).map_err(|why| why.to_string())?;
    sentences(&ask(order, Instant::now() + ANSWER_BY)?)
}

/// The answer as it was received.
fn ask(order: &RasOrder, until: Instant) -> Result<String, String> {
    let stream = connect(order.port, until)?;
    let mut commands = stream.try_clone().map_err(|why| why.to_string())?;
    let mut reader = BufReader::new(&stream);
    let mut say = |command: &str| {
        stream.set_read_timeout(Some(left(until)?)).map_err(|why| why.to_string())?;
        commands.write_all(format!("{command}\n").as_bytes()).map_err(|why| why.to_string())?;
        let mut line = String::new();
        let read = reader.by_ref().take(MOST_LINE).read_line(&mut line);
        read.map_err(|why| missing(&format!("reply to {command}"), &why))?;
        Ok::<String, String>(line.trim().to_owned())
    };
    // The server's end exists only once it has accepted the connection, and then it has replied.
    say("CLIENT PROTOCOL 2")?;
    match uid_of(&order.proc, &stream)? {
        uid if uid == order.uid => {}
        uid => {
            return Err(format!(
                "the program on port {} is of user {uid}, not of the job's owner",
                order.port
            ));
        }
    }
    if say("SET FORMAT json")? != "OK" {
        return Err("this release of NCCL has no JSON (2.28.7 has); earlier ones are not asked".to_owned());
    }
    say(&format!("TIMEOUT {COLLECTS_S}"))?;
    commands.write_all(b"VERBOSE STATUS\n").map_err(|why| why.to_string())?;
    stream.set_read_timeout(Some(left(until)?)).map_err(|why| why.to_string())?;
    let mut text = Vec::new();
    reader.take(MOST_ANSWER).read_to_end(&mut text).map_err(|why| missing("status", &why))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn connect(port: u16, until: Instant) -> Result<TcpStream, String> {
    let local =
        [SocketAddr::from((Ipv4Addr::LOCALHOST, port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port))];
    let mut last = String::new();
    for address in local {
        match TcpStream::connect_timeout(&address, left(until)?) {
            Ok(stream) => return Ok(stream),
            Err(why) => last = format!("port {port}: {why}"),
        }
    }
    Err(last)
}

fn missing(what: &str, why: &io::Error) -> String {
    match why.kind() {
        ErrorKind::WouldBlock => format!("no {what} in time"),
        _ => format!("no {what}: {why}"),
    }
}

fn left(until: Instant) -> Result<Duration, String> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err("no reply in time".to_owned()) } else { Ok(left) }
}

#[cfg(test)]
mod tests;
