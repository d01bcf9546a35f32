//! The test of one device with the peer's: addresses are exchanged, then each end in turn measures while the other follows.

use std::io::Write as _;
use std::net::TcpListener;
use std::process::ExitCode;

use railgate_pair::{Key, Limits, Link, Meeting, Outcome, Role, Wrong, random_number};

use crate::arguments::{Pair, Side};
use crate::measure;
use crate::message::{Message, VERSION};
use crate::pattern;
use crate::verbs::{End, Operation};

/// Runs one end, prints its result as one line of JSON, and returns the exit code.
pub(crate) fn run(wanted: &Pair) -> ExitCode {
    let key = match Key::read(wanted.key_file.as_deref()) {
        Ok(key) => key,
        Err(why) => {
            eprintln!("error: {why}");
            return ExitCode::from(2);
        }
    };
    let mut outcome = Outcome { device: wanted.device.clone(), ..Outcome::default() };
    if let Err(why) = measured(wanted, &key, &mut outcome) {
        eprintln!("error: {why}");
        outcome.error = Some(why);
    }
    let line = serde_json::to_string(&outcome).unwrap_or_default();
    let mut out = std::io::stdout().lock();
    let printed = writeln!(out, "{line}").and_then(|()| out.flush()).is_ok();
    if printed && outcome.measured() { ExitCode::SUCCESS } else { ExitCode::from(3) }
}

fn measured(wanted: &Pair, key: &Key, outcome: &mut Outcome) -> Result<(), String> {
    // Before there is a peer, so that a device that cannot be used costs the peer no time.
    let mut end = End::open(&wanted.device, wanted.gid_index)?;
    let meeting = Meeting {
        key,
        version: VERSION,
        limits: Limits::new(wanted.deadline),
        dropped: |why| eprintln!("{why}"),
    };
    let (mut link, role) = match &wanted.end {
        Side::Serve { listen, port } => {
            let listener = TcpListener::bind((*listen, *port)).map_err(|why| format!("listen: {why}"))?;
            let address = listener.local_addr().map_err(|why| format!("listen: {why}"))?;
            eprintln!("listening on {address}");
            (meeting.accept(&listener)?, Role::Serve)
        }
        Side::Connect { peer } => (meeting.connect(peer)?, Role::Connect),
    };
    let why = match converse(&mut link, &mut end, role, outcome) {
        Ok(()) => return Ok(()),
        Err(why) => why,
    };
    // A device that does not answer accuses the path only if the peer's program still runs.
    link.give_up::<Message>(&why);
    Err(match link.last::<Message>() {
        Some(theirs) if theirs != why => format!("{why}; {theirs}"),
        _ => why,
    })
}

fn converse(link: &mut Link, end: &mut End, role: Role, outcome: &mut Outcome) -> Result<(), String> {
    link.send(&Message::Place(end.place()))?;
    let Message::Place(peer) = link.receive()? else {
        return Err(unexpected());
    };
    peer.check()?;
    eprintln!("testing {} with {} of the peer", outcome.device, peer.device);
    outcome.peer_device = Some(peer.device.clone());
    end.connect(peer)?;
    link.send(&Message::Ready)?;
    ready(link)?;
    match role {
        Role::Connect => {
            drive(link, end, outcome)?;
            follow(link, end, outcome)
        }
        Role::Serve => {
            follow(link, end, outcome)?;
            drive(link, end, outcome)
        }
    }
}

/// Measures from this end.
fn drive(link: &mut Link, end: &mut End, outcome: &mut Outcome) -> Result<(), String> {
    let seed = random_number()?;
    pattern::fill(end.source(), seed);
    let written = measure::stream(end, Operation::Write, link.until())?;
    outcome.gbps.write_out = Some(written.gbps);
    link.send(&Message::Written { seed, blocks: written.blocks as u64, gbps: written.gbps })?;
    let Message::Checked { words, first } = link.receive()? else {
        return Err(unexpected());
    };
    outcome.sent(Wrong { words, first });

    let seed = random_number()?;
    link.send(&Message::Fill { seed })?;
    ready(link)?;
    let read = measure::stream(end, Operation::Read, link.until())?;
    let Wrong { words, first } = pattern::compare(end.sink(), seed, read.blocks);
    outcome.gbps.read_out = Some(read.gbps);
    outcome.received(Wrong { words, first });
    link.send(&Message::Read { gbps: read.gbps, words, first })?;

    measure::clear(end);
    link.send(&Message::Ping)?;
    ready(link)?;
    let latency = measure::ping(end, link.until())?;
    outcome.latency_us.median_out = Some(latency.median);
    outcome.latency_us.p99_out = Some(latency.p99);
    link.send(&Message::Latency { median: latency.median, p99: latency.p99 })
}

/// Answers while the peer measures.
fn follow(link: &mut Link, end: &mut End, outcome: &mut Outcome) -> Result<(), String> {
    let Message::Written { seed, blocks, gbps } = link.receive()? else {
        return Err(unexpected());
    };
    let blocks = usize::try_from(blocks).map_err(|why| why.to_string())?;
    let Wrong { words, first } = pattern::compare(end.sink(), seed, blocks);
    outcome.gbps.write_in = Some(gbps);
    outcome.received(Wrong { words, first });
    link.send(&Message::Checked { words, first })?;

    let Message::Fill { seed } = link.receive()? else {
        return Err(unexpected());
    };
    pattern::fill(end.source(), seed);
    link.send(&Message::Ready)?;
    let Message::Read { gbps, words, first } = link.receive()? else {
        return Err(unexpected());
    };
    outcome.gbps.read_in = Some(gbps);
    outcome.sent(Wrong { words, first });

    let Message::Ping = link.receive()? else {
        return Err(unexpected());
    };
    measure::clear(end);
    link.send(&Message::Ready)?;
    measure::echo(end, link.until())?;
    let Message::Latency { median, p99 } = link.receive()? else {
        return Err(unexpected());
    };
    outcome.latency_us.median_in = Some(median);
    outcome.latency_us.p99_in = Some(p99);
    Ok(())
}

fn ready(link: &mut Link) -> Result<(), String> {
    match link.receive()? {
        Message::Ready => Ok(()),
        _ => Err(unexpected()),
    }
}

fn unexpected() -> String {
    "the peer sent another message than the one expected".to_owned()
}
