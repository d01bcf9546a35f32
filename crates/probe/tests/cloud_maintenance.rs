//! The metadata services of three providers, played on loopback, and services that are hostile or broken.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test without the standard harness")]

#[path = "../../child/tests/one_by_one/mod.rs"]
mod one_by_one;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use railgate_model::{CloudEvent, CloudProvider, CloudService, Extra, Plan, Reading};
use railgate_probe::{Request, SourceConfig, dispatch, live};

use CloudProvider::{Aws, Azure, Gcp};

/// A generous limit: each reading ends at its own deadline or at once.
const GATE: Duration = Duration::from_secs(30);

/// A request: method and path, and its headers in lower case.
struct Asked {
    line: String,
    headers: Vec<String>,
}

impl Asked {
    fn has(&self, header: &str) -> bool {
        self.headers.iter().any(|line| line == header)
    }
}

/// What a server does with a request.
enum Reply {
    /// A status, further header lines that end with `\r\n`, and a body.
    Answer(u16, String, String),
    /// These bytes, then the end of the connection.
    Raw(String),
    /// This beginning, then this text without an end.
    Endless(String, String),
    /// Nothing, until the client closes.
    Hang,
}

fn answer(status: u16, body: &str) -> Reply {
    Reply::Answer(status, String::new(), body.to_owned())
}

/// As Google marks its answers.
fn marked(status: u16, body: &str) -> Reply {
    Reply::Answer(status, "Metadata-Flavor: Google\r\n".to_owned(), body.to_owned())
}

struct Server {
    address: SocketAddrV4,
    lines: Arc<Mutex<Vec<String>>>,
    connections: Arc<AtomicUsize>,
}

impl Server {
    fn start(reply: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = Server {
            address: SocketAddrV4::new(Ipv4Addr::LOCALHOST, port),
            lines: Arc::default(),
            connections: Arc::default(),
        };
        let (lines, connections) = (server.lines.clone(), server.connections.clone());
        let reply = Arc::new(reply);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                connections.fetch_add(1, Ordering::SeqCst);
                let (lines, reply) = (lines.clone(), reply.clone());
                std::thread::spawn(move || {
                    let Some(asked) = read(&stream) else { return };
                    lines.lock().unwrap().push(asked.line.clone());
                    write(stream, reply(&asked));
                });
            }
        });
        server
    }

    fn ask(&self, provider: CloudProvider) -> Reading<Vec<CloudEvent>> {
        ask(provider, self.address)
    }

    /// The reason of a reading that failed.
    fn refuses(&self, provider: CloudProvider) -> String {
        match self.ask(provider) {
            Reading::Failed(why) => why,
            other => panic!("{provider}: {other:?}"),
        }
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }
}

fn read(stream: &TcpStream) -> Option<Asked> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
    let line = lines.next()?;
    let line = line.strip_suffix(" HTTP/1.1")?.to_owned();
    Some(Asked { line, headers: lines.map(|line| line.to_ascii_lowercase()).collect() })
}

/// The client may close at any time.
fn write(mut stream: TcpStream, reply: Reply) {
    let _ = match reply {
        Reply::Answer(status, headers, body) => {
            let length = body.len();
            write!(stream, "HTTP/1.1 {status} x\r\n{headers}Content-Length: {length}\r\n\r\n{body}")
        }
        Reply::Raw(text) => stream.write_all(text.as_bytes()),
        Reply::Endless(begin, text) => {
            let begun = stream.write_all(begin.as_bytes());
            while begun.is_ok() && stream.write_all(text.as_bytes()).is_ok() {}
            Ok(())
        }
        Reply::Hang => stream.read_to_end(&mut Vec::new()).map(drop),
    };
}

fn ask(provider: CloudProvider, address: SocketAddrV4) -> Reading<Vec<CloudEvent>> {
    let service = CloudService { provider, address };
    let plan = Plan { parts: Vec::new(), extras: vec![Extra::CloudMaintenance(service)] };
    let request = Request { plan, ..Request::everything("gn1", GATE) };
    live(&SourceConfig::default(), &request).extras.cloud_maintenance.unwrap()
}

const AZURE_EVENTS: &str = "GET /metadata/scheduledevents?api-version=2020-07-01";
const AZURE_NAME: &str = "GET /metadata/instance/compute/name?api-version=2021-02-01&format=text";
const AWS_TOKEN: &str = "PUT /latest/api/token";
const AWS_EVENTS: &str = "GET /latest/meta-data/events/maintenance/scheduled";
const GCP_UPCOMING: &str = "GET /computeMetadata/v1/instance/upcoming-maintenance?alt=json";
const GCP_NOTICE: &str = "GET /computeMetadata/v1/instance/maintenance-event";

const NOTHING_YET: &str = r#"{ "error": "no notifications have been received yet, try again later" }"#;
const NO_EVENTS: &str = r#"{"DocumentIncarnation":1,"Events":[]}"#;

/// Azure, of which this machine is `gn1`.
fn azure(document: &'static str) -> Server {
    Server::start(move |asked| match asked.line.as_str() {
        _ if !asked.has("metadata: true") => answer(400, "Bad request"),
        AZURE_EVENTS => answer(200, document),
        AZURE_NAME => answer(200, "gn1"),
        _ => answer(404, ""),
    })
}

/// AWS, with tokens.
fn aws(status: u16, document: &'static str) -> Server {
    Server::start(move |asked| match asked.line.as_str() {
        AWS_TOKEN if asked.has("x-aws-ec2-metadata-token-ttl-seconds: 60") => answer(200, "AQAAAtoken=="),
        AWS_TOKEN => answer(400, ""),
        _ if !asked.has("x-aws-ec2-metadata-token: aqaaatoken==") => answer(401, ""),
        AWS_EVENTS => answer(status, document),
        _ => answer(404, ""),
    })
}

/// Google.
fn gcp(upcoming: (u16, &'static str), notice: (u16, &'static str)) -> Server {
    Server::start(move |asked| match asked.line.as_str() {
        _ if !asked.has("metadata-flavor: google") => answer(403, ""),
        GCP_UPCOMING => marked(upcoming.0, upcoming.1),
        GCP_NOTICE => marked(notice.0, notice.1),
        _ => marked(404, ""),
    })
}

fn kinds(reading: &Reading<Vec<CloudEvent>>) -> Vec<&str> {
    match reading {
        Reading::Known(events) => events.iter().map(|event| event.kind.as_str()).collect(),
        other => panic!("{other:?}"),
    }
}

fn azure_announces_its_own_events() {
    let server = azure(
        r#"{"DocumentIncarnation":3,"Events":[
        {"EventId":"A","EventType":"Freeze","ResourceType":"VirtualMachine","Resources":["gn2"],"EventStatus":"Scheduled",
         "NotBefore":"Tue, 01 Dec 2026 10:00:00 GMT","Description":"","EventSource":"Platform","DurationInSeconds":9},
        {"EventId":"B","EventType":"Reboot","ResourceType":"VirtualMachine","Resources":["gn2","GN1"],"EventStatus":"Scheduled",
         "NotBefore":"Tue, 01 Dec 2026 10:00:00 GMT","Description":"Host server is undergoing maintenance.","EventSource":"Platform",
         "DurationInSeconds":-1}]}"#,
    );
    let expected = CloudEvent {
        kind: "Reboot".to_owned(),
        started: false,
        start: Reading::Known(1_796_119_200_000),
        end: None,
        text: "Host server is undergoing maintenance.".to_owned(),
    };
    assert_eq!(server.ask(Azure), Reading::Known(vec![expected]));
    assert_eq!(server.lines(), [AZURE_EVENTS, AZURE_NAME]);
    let none = azure(NO_EVENTS);
    assert_eq!(none.ask(Azure), Reading::Known(Vec::new()));
    assert_eq!(none.lines(), [AZURE_EVENTS], "the name is not needed");
}

fn aws_gets_a_token_first() {
    let document = r#"[{"NotBefore":"1 Dec 2026 10:00:00 GMT","Code":"instance-stop","Description":"The instance is running on degraded hardware",
        "EventId":"instance-event-0","NotAfter":"","State":"active"}]"#;
    let server = aws(200, document);
    let found = server.ask(Aws);
    assert_eq!(kinds(&found), ["instance-stop"]);
    assert_eq!(found.known().unwrap()[0].start, Reading::Known(1_796_119_200_000));
    assert_eq!(server.lines(), [AWS_TOKEN, AWS_EVENTS]);
    for none in [aws(200, "[]"), aws(404, "<html>")] {
        assert_eq!(none.ask(Aws), Reading::Known(Vec::new()));
    }
}

fn google_has_two_documents() {
    let planned = r#"{"maintenanceStatus":"PENDING","type":"SCHEDULED","windowStartTime":"2026-12-01T10:00:00Z","windowEndTime":"2026-12-01T14:00:00Z"}"#;
    let server = gcp((200, planned), (200, "NONE"));
    assert_eq!(kinds(&server.ask(Gcp)), ["SCHEDULED"]);
    assert_eq!(server.lines(), [GCP_UPCOMING, GCP_NOTICE]);
    for upcoming in [(404, ""), (503, NOTHING_YET), (200, NOTHING_YET), (200, "{ }")] {
        assert_eq!(gcp(upcoming, (200, "NONE")).ask(Gcp), Reading::Known(Vec::new()), "{upcoming:?}");
        let noticed = gcp(upcoming, (200, "TERMINATE_ON_HOST_MAINTENANCE")).ask(Gcp);
        assert_eq!(kinds(&noticed), ["TERMINATE_ON_HOST_MAINTENANCE"], "{upcoming:?}");
    }
    // An announcement counts also if the other document is unreadable. Without one, both must be readable.
    assert_eq!(kinds(&gcp((200, planned), (500, "")).ask(Gcp)), ["SCHEDULED"]);
    let noticed = gcp((500, ""), (200, "TERMINATE_ON_HOST_MAINTENANCE")).ask(Gcp);
    assert_eq!(kinds(&noticed), ["TERMINATE_ON_HOST_MAINTENANCE"]);
    for (upcoming, notice) in
        [((503, "busy"), (200, "NONE")), ((200, "{}"), (404, "")), ((500, ""), (500, ""))]
    {
        assert!(gcp(upcoming, notice).refuses(Gcp).contains(": status "), "{upcoming:?} {notice:?}");
    }
}

fn a_service_without_googles_mark_is_another_one() {
    let server = Server::start(|_| answer(404, ""));
    assert!(server.refuses(Gcp).contains("the answer has no header Metadata-Flavor: Google"));
}

fn other_answers_are_failures() {
    for status in [201, 204, 400, 401, 403, 429, 500, 503] {
        let server = Server::start(move |_| marked(status, "[]"));
        for provider in [Azure, Aws, Gcp] {
            let why = server.refuses(provider);
            assert!(why.ends_with(&format!("status {status}")), "{provider}: {why}");
        }
    }
    // Only AWS has no document without events.
    assert!(
        Server::start(|_| answer(404, "")).refuses(Azure).ends_with("/metadata/scheduledevents: status 404")
    );
    assert!(Server::start(|_| answer(404, "")).refuses(Aws).ends_with("/latest/api/token: status 404"));
    for odd in ["", "<html>", "{\"Events\":7}", "\u{1b}]0;owned\u{7}", "[{}]"] {
        let server = Server::start(move |asked| match asked.line.as_str() {
            AWS_TOKEN => answer(200, "token"),
            _ => marked(200, odd),
        });
        for provider in [Azure, Aws, Gcp] {
            let why = server.refuses(provider);
            assert!(!why.contains("owned") && why.chars().all(is_plain), "{provider}: {why}");
        }
    }
}

fn is_plain(c: char) -> bool {
    (' '..='~').contains(&c)
}

fn a_token_that_could_end_the_header_is_refused() {
    for token in ["", "two words", "a\r\nHost: evil", "t\u{f6}ken", &"x".repeat(5000)] {
        let token = token.to_owned();
        let server = Server::start(move |_| answer(200, &token));
        assert!(server.refuses(Aws).ends_with("/latest/api/token: the answer is not a token"));
        assert_eq!(server.lines(), [AWS_TOKEN]);
    }
}

fn redirects_are_not_followed() {
    let other = Server::start(|_| marked(200, NO_EVENTS));
    for status in [301, 302, 307, 308] {
        let location = format!("Metadata-Flavor: Google\r\nLocation: http://{}/\r\n", other.address);
        let server = Server::start(move |_| Reply::Answer(status, location.clone(), String::new()));
        for provider in [Azure, Aws, Gcp] {
            assert!(server.refuses(provider).ends_with(&format!("status {status}")));
        }
    }
    assert_eq!(other.connections.load(Ordering::SeqCst), 0);
}

fn a_service_that_hangs_costs_the_deadline() {
    let silent = Server::start(|_| Reply::Hang);
    let dripping = Server::start(|_| Reply::Endless("HTTP/1.1 200 x\r\n".to_owned(), "X: y\r\n".to_owned()));
    let body = Server::start(|_| Reply::Raw("HTTP/1.1 200 x\r\nContent-Length: 99\r\n\r\n{".to_owned()));
    for provider in [Azure, Aws, Gcp] {
        assert!(silent.refuses(provider).ends_with("no answer within the deadline"));
        dripping.refuses(provider);
        body.refuses(provider);
    }
    // The name is not known: whether an event is about this machine is not, either.
    let unnamed = Server::start(|asked| match asked.line.as_str() {
        AZURE_EVENTS => answer(
            200,
            r#"{"Events":[{"EventType":"Reboot","Resources":["gn1"],"EventStatus":"Scheduled","NotBefore":""}]}"#,
        ),
        _ => Reply::Hang,
    });
    assert!(unnamed.refuses(Azure).ends_with("/compute/name: no answer within the deadline"));
}

fn answers_are_bounded() {
    let endless = |begin: &'static str| {
        Server::start(move |_| {
            let head = "HTTP/1.1 200 x\r\nMetadata-Flavor: Google\r\n\r\n";
            Reply::Endless(format!("{head}{begin}"), " ".repeat(4096))
        })
    };
    for provider in [Azure, Aws, Gcp] {
        assert!(endless("[").refuses(provider).ends_with("no complete answer within the limits"));
    }
    let large = Server::start(|_| marked(200, &format!("{NO_EVENTS}{}", " ".repeat(300 << 10))));
    assert!(large.refuses(Azure).ends_with("no complete answer within the limits"));
}

fn no_service_is_a_failure() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, closed);
    for provider in [Azure, Aws, Gcp] {
        let Reading::Failed(why) = ask(provider, address) else { panic!("{provider}") };
        assert!(why.starts_with(&format!("{address}: ")), "{why}");
    }
}

/// Runs other tests of this program with a proxy in the environment.
fn the_environments_proxy_is_not_used() {
    let proxy = Server::start(|_| Reply::Hang);
    let url = format!("http://{}", proxy.address);
    let names = ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];
    for test in ["azure_announces_its_own_events", "aws_gets_a_token_first", "google_has_two_documents"] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test])
            .envs(names.map(|name| (name, &url)))
            .env_remove("no_proxy")
            .env_remove("NO_PROXY")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }
    assert_eq!(proxy.connections.load(Ordering::SeqCst), 0);
}

/// A tree of files shows another machine.
fn a_recorded_machine_is_not_asked_about() {
    let server = azure(NO_EVENTS);
    let service = CloudService { provider: Azure, address: server.address };
    let plan = Plan { parts: Vec::new(), extras: vec![Extra::CloudMaintenance(service)] };
    let request = Request { plan, ..Request::everything("gn1", GATE) };
    let source = SourceConfig { sysfs: "/srv/tree/sys".into(), ..SourceConfig::default() };
    assert_eq!(live(&source, &request).extras.cloud_maintenance, None);
    assert_eq!(server.connections.load(Ordering::SeqCst), 0);
}

fn main() -> ExitCode {
    if let Some(code) = dispatch(&[]) {
        return code;
    }
    let tests: &[(&str, fn())] = &[
        ("azure_announces_its_own_events", azure_announces_its_own_events),
        ("aws_gets_a_token_first", aws_gets_a_token_first),
        ("google_has_two_documents", google_has_two_documents),
        ("a_service_without_googles_mark_is_another_one", a_service_without_googles_mark_is_another_one),
        ("other_answers_are_failures", other_answers_are_failures),
        ("a_token_that_could_end_the_header_is_refused", a_token_that_could_end_the_header_is_refused),
        ("redirects_are_not_followed", redirects_are_not_followed),
        ("a_service_that_hangs_costs_the_deadline", a_service_that_hangs_costs_the_deadline),
        ("answers_are_bounded", answers_are_bounded),
        ("no_service_is_a_failure", no_service_is_a_failure),
        ("the_environments_proxy_is_not_used", the_environments_proxy_is_not_used),
        ("a_recorded_machine_is_not_asked_about", a_recorded_machine_is_not_asked_about),
    ];
    one_by_one::run(tests)
}
