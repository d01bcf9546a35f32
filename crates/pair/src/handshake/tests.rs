//! The conversation over sockets of this machine, without RDMA.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::thread::JoinHandle;

use super::*;

const LIMITS: Limits = Limits {
    handshake: Duration::from_millis(300),
    whole: Duration::from_secs(20),
    deadline: Duration::from_secs(20),
};

fn key(digit: char) -> Key {
    use std::os::unix::fs::PermissionsExt as _;
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("railgate-pair-{}-{number}", std::process::id()));
    std::fs::write(&path, digit.to_string().repeat(64)).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let key = Key::read(Some(Path::new(&path))).unwrap();
    std::fs::remove_file(path).unwrap();
    key
}

fn meeting(key: &Key, limits: Limits) -> Meeting<'_> {
    Meeting { key, version: 1, limits, dropped: |_| {} }
}

/// Any message after the proofs.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Said {
    Number(u64),
    Failed { why: String },
}

impl Message for Said {
    fn failed(why: String) -> Self {
        Said::Failed { why }
    }

    fn failure(&self) -> Option<&str> {
        match self {
            Said::Failed { why } => Some(why),
            Said::Number(_) => None,
        }
    }

    fn is_plausible(&self) -> bool {
        *self != Said::Number(13)
    }
}

/// An end that waits for a peer with key `a`.
fn serving(limits: Limits) -> (SocketAddr, JoinHandle<Result<Link, String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (address, std::thread::spawn(move || meeting(&key('a'), limits).accept(&listener)))
}

/// What a client that sends these bytes gets, until it is dropped.
fn answer(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut client = TcpStream::connect(address).unwrap();
    // A client that is accepted by mistake is not dropped.
    client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let _ = client.write_all(bytes);
    let mut got = Vec::new();
    let _ = client.read_to_end(&mut got);
    got
}

#[test]
fn with_one_key_both_ends_talk() {
    let (address, server) = serving(LIMITS);
    let mut client = meeting(&key('a'), LIMITS).connect(&address.to_string()).unwrap();
    let mut server = server.join().unwrap().unwrap();
    for number in [u64::MAX, 13] {
        client.send(&Said::Number(number)).unwrap();
    }
    assert_eq!(server.receive(), Ok(Said::Number(u64::MAX)));
    assert_eq!(server.receive::<Said>().unwrap_err(), "the peer sent an impossible number");
    client.give_up::<Said>("no\u{1b} memory");
    let why = server.receive::<Said>().unwrap_err();
    assert_eq!(why, "the peer failed: no? memory");
    assert_eq!(server.last::<Said>(), None);
    drop(client);
    assert_eq!(server.last::<Said>().as_deref(), Some("the peer closed the connection"));
}

#[test]
fn another_key_is_refused_by_both_ends() {
    let (address, server) = serving(Limits { deadline: Duration::from_secs(1), ..LIMITS });
    let why = meeting(&key('b'), LIMITS).connect(&address.to_string()).unwrap_err();
    assert_eq!(why, "the peer closed the connection");
    let why = server.join().unwrap().unwrap_err();
    assert!(why.contains("1 other connections dropped"), "{why}");
}

/// A server that knows no key returns the client's own nonce and proof.
#[test]
fn a_server_that_repeats_the_client_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mirror = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut out = stream.try_clone().unwrap();
        let _ = std::io::copy(&mut stream, &mut out);
    });
    let why = meeting(&key('a'), LIMITS).connect(&address.to_string()).unwrap_err();
    assert_eq!(why, "the peer does not know the key");
    mirror.join().unwrap();
}

/// Each of these is dropped in time and learns nothing about the key; the peer that comes after them is served.
#[test]
fn hostile_clients_are_dropped_and_the_next_one_is_served() {
    let (address, server) = serving(LIMITS);
    let hello = format!("{{\"hello\":{{\"version\":1,\"nonce\":\"{}\"}}}}\n", "0".repeat(64));
    let deep = format!("{}\n", "[".repeat(4000));
    let forged = format!("{hello}{{\"proof\":{{\"proof\":\"{}\"}}}}\n", "0".repeat(64));
    for bytes in [
        "",
        "GET / HTTP/1.1\r\n\r\n",
        "\u{0}\u{1}\u{2}\n",
        "\n",
        "{\"hello\":{\"version\":99999999999999999999,\"nonce\":\"\"}}\n",
        "{\"hello\":{\"version\":2,\"nonce\":\"\"}}\n",
        "{\"hello\":{\"version\":1,\"nonce\":\"00\"}}\n",
        "{\"ready\":null}\n\"ready\"\n",
        &deep,
        &hello,
        &forged,
        &format!("{hello}{hello}"),
        &"x".repeat(1 << 20),
    ] {
        let got = answer(address, bytes.as_bytes());
        let text = String::from_utf8_lossy(&got);
        assert!(!text.contains("proof") && got.len() < 200, "{text}");
    }
    drop(TcpStream::connect(address).unwrap());
    meeting(&key('a'), LIMITS).connect(&address.to_string()).unwrap();
    server.join().unwrap().unwrap();
}

/// One byte at a time, each well within the limit of a single read.
#[test]
fn a_slow_client_is_dropped_at_the_deadline() {
    let (address, server) = serving(Limits { deadline: Duration::from_millis(600), ..LIMITS });
    let mut client = TcpStream::connect(address).unwrap();
    let mut sent = 0;
    while client.write_all(b"x").is_ok() {
        sent += 1;
        assert!(sent < 1000, "not dropped");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(server.join().unwrap().is_err());
}

#[test]
fn endless_bytes_without_a_newline_end_at_the_limit_of_a_line() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().unwrap();
    let writer = std::thread::spawn(move || while sender.write_all(&[b'x'; 4096]).is_ok() {});
    let mut link = Link::new(stream, Instant::now() + Duration::from_secs(20)).unwrap();
    let why = link.receive::<Said>().unwrap_err();
    assert_eq!(why, "the peer sent a line of more than 4096 bytes");
    drop(link);
    writer.join().unwrap();
}

#[test]
fn a_silent_server_ends_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let why = meeting(&key('a'), LIMITS).connect(&address).unwrap_err();
    assert_eq!(why, "the peer did not answer in time");
}

#[test]
fn a_port_that_refuses_is_tried_until_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let limits = Limits { deadline: Duration::from_millis(50), ..LIMITS };
    let why = meeting(&key('a'), limits).connect(&address);
    assert!(why.unwrap_err().contains("refused"));
}

/// A peer that does not receive: the send ends when the buffers of the kernel are full.
#[test]
fn sending_to_a_peer_that_does_not_receive_ends_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut link = Link::new(stream, Instant::now() + Duration::from_millis(300)).unwrap();
    let why = loop {
        if let Err(why) = link.send(&"x".repeat(4000)) {
            break why;
        }
    };
    assert_eq!(why, "the peer did not answer in time");
}
