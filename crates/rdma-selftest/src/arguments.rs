//! The command line.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Printed on standard error for wrong arguments.
pub(crate) const USAGE: &str = "\
usage: railgate-rdma-selftest DEVICE…
       railgate-rdma-selftest serve DEVICE [--port N] [--listen ADDRESS] [OPTIONS]
       railgate-rdma-selftest connect DEVICE HOST:PORT [OPTIONS]";

/// Printed after [`USAGE`] with `--help`.
pub(crate) const HELP: &str = "
Tests RDMA devices: each with itself (DEVICE…), or one with a device of another node (serve, connect).

serve waits for one peer and prints 'listening on ADDRESS:PORT' on standard error. connect connects to it. Both ends
write and read the other's memory, compare each word, measure bandwidth and latency in both directions, and print
one line of JSON on standard output:

  gbps         bandwidth, payload only, Gb/s; out: started by this end, in: started by the peer
  latency_us   median and 99th percentile of 1,000 writes of 8 bytes, one way: half of the round trip, µs
  wrong_words  8-byte words that arrived different; out: sent by this end, in: sent by the peer
  first_wrong  offset of the first of them, bytes
  error        why the test ended early; values that are not null were measured before

Both ends need the same key: 32 bytes as 64 hexadecimal digits, in the variable RAILGATE_PAIR_KEY or in a file that
only its owner can read.

Options:
  --port N            serve: TCP port (default: a free one)
  --listen ADDRESS    serve: local address (default: 0.0.0.0, all of IPv4)
  --key-file PATH     file with the key, instead of RAILGATE_PAIR_KEY
  --deadline SECONDS  how long serve waits for a peer, and connect for a port that refuses (default: 60)
  --gid-index N       entry of the GID table on RoCE (default: the first of RoCE v2, IPv4 before IPv6)

Exit codes: 0 measured, with right or wrong values; 2 wrong arguments; 3 nothing could be measured.

Examples:
  railgate-rdma-selftest mlx5_0 mlx5_1
  export RAILGATE_PAIR_KEY=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')
  railgate-rdma-selftest serve mlx5_0 --port 18600
  railgate-rdma-selftest connect mlx5_0 node7:18600 --key-file ~/.railgate-pair-key";

/// Range of `--deadline`, s.
const DEADLINES: std::ops::RangeInclusive<u64> = 1..=3600;

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Test each of these devices with itself.
    Loopback(Vec<String>),
    /// Test one device with that of another node.
    Pair(Pair),
    Help,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) device: String,
    pub(crate) end: Side,
    /// None: the key is in the environment.
    pub(crate) key_file: Option<PathBuf>,
    /// How long to wait for the peer.
    pub(crate) deadline: Duration,
    pub(crate) gid_index: Option<u32>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Serve { listen: IpAddr, port: u16 },
    Connect { peer: String },
}

/// Parses the words after the program's name. An error names the wrong word.
pub(crate) fn parse(words: &[String]) -> Result<Command, String> {
    match words.first().map(String::as_str) {
        Some("--help" | "-h") => Ok(Command::Help),
        Some(end @ ("serve" | "connect")) => pair(end, words.get(1..).unwrap_or_default()),
        None => Err("no device".to_owned()),
        Some(_) => match words.iter().find(|word| word.starts_with('-')) {
            Some(word) => Err(format!("unknown option {word}")),
            None => Ok(Command::Loopback(words.to_vec())),
        },
    }
}

fn pair(end: &str, words: &[String]) -> Result<Command, String> {
    let serve = end == "serve";
    let (mut listen, mut port) = (IpAddr::from([0, 0, 0, 0]), 0);
    let (mut key_file, mut deadline, mut gid_index) = (None, Duration::from_secs(60), None);
    let mut plain = Vec::new();
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let (name, joined) = match word.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name, Some(value)),
            _ => (word.as_str(), None),
        };
        if matches!(name, "--help" | "-h") {
            return Ok(Command::Help);
        }
        if !name.starts_with('-') {
            plain.push(word.clone());
            continue;
        }
        let mut value = || {
            let next = joined.or_else(|| rest.next().map(String::as_str));
            next.ok_or_else(|| format!("{name} needs a value"))
        };
        match name {
            "--listen" if serve => listen = number(name, value()?)?,
            "--port" if serve => port = number(name, value()?)?,
            "--key-file" => key_file = Some(PathBuf::from(value()?)),
            "--gid-index" => gid_index = Some(number(name, value()?)?),
            "--deadline" => {
                let seconds = number(name, value()?)?;
                if !DEADLINES.contains(&seconds) {
                    return Err(format!("{name} takes 1 to {} seconds", DEADLINES.end()));
                }
                deadline = Duration::from_secs(seconds);
            }
            _ => return Err(format!("unknown option {name} of {end}")),
        }
    }
    let (device, end) = match <[String; 1]>::try_from(plain) {
        Ok([device]) if serve => (device, Side::Serve { listen, port }),
        Ok(_) => return Err("connect needs a device and HOST:PORT".to_owned()),
        Err(plain) => match <[String; 2]>::try_from(plain) {
            Ok([device, peer]) if !serve => (device, Side::Connect { peer }),
            _ if serve => return Err("serve needs one device".to_owned()),
            _ => return Err("connect needs a device and HOST:PORT".to_owned()),
        },
    };
    Ok(Command::Pair(Pair { device, end, key_file, deadline, gid_index }))
}

fn number<T: std::str::FromStr>(name: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{name} does not take '{text}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn devices_alone_are_tested_with_themselves() {
        let names = vec!["mlx5_0".to_owned(), "mlx5_1".to_owned()];
        assert_eq!(parsed("mlx5_0 mlx5_1"), Ok(Command::Loopback(names)));
        for wrong in ["", "mlx5_0 --port 1", "-x"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parsed("--help"), Ok(Command::Help));
        assert_eq!(parsed("serve --help"), Ok(Command::Help));
    }

    #[test]
    fn both_ends_of_a_pair() {
        let Ok(Command::Pair(pair)) = parsed("serve mlx5_0 --port 18600 --listen=::1 --deadline 5") else {
            panic!("serve");
        };
        assert_eq!((pair.device.as_str(), pair.deadline), ("mlx5_0", Duration::from_secs(5)));
        assert_eq!(pair.end, Side::Serve { listen: "::1".parse().unwrap(), port: 18600 });
        let Ok(Command::Pair(pair)) = parsed("connect mlx5_0 n7:18600 --key-file k --gid-index 3") else {
            panic!("connect");
        };
        assert_eq!((pair.key_file, pair.gid_index), (Some(PathBuf::from("k")), Some(3)));
        assert_eq!(pair.end, Side::Connect { peer: "n7:18600".to_owned() });
    }

    #[test]
    fn wrong_arguments_are_named() {
        for (line, why) in [
            ("serve", "serve needs one device"),
            ("serve a b", "serve needs one device"),
            ("connect a", "connect needs a device and HOST:PORT"),
            ("connect a b c", "connect needs a device and HOST:PORT"),
            ("connect a b --port 1", "unknown option --port of connect"),
            ("serve a --port 70000", "--port does not take '70000'"),
            ("serve a --port", "--port needs a value"),
            ("serve a --deadline 0", "--deadline takes 1 to 3600 seconds"),
            ("serve a --key 00", "unknown option --key of serve"),
        ] {
            assert_eq!(parsed(line), Err(why.to_owned()), "{line}");
        }
    }
}
