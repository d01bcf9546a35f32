//! Debian's Alertmanager as the receiver: 500 nodes fail, and it notifies a webhook of this test.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

#[path = "../../crates/alert-sinks/tests/support/mod.rs"]
mod sinks;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use sinks::{Server, ok};
use support::{Place, Running, pass};

const PROGRAM: &str = "prometheus-alertmanager";
const SECOND: u64 = 1000;
const MINUTE: u64 = 60 * SECOND;
const NODES: usize = 500;

#[expect(clippy::disallowed_macros, reason = "the text is a constant")]
fn is_installed() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|dir| dir.join(PROGRAM).exists());
    if !found {
        println!("skipped: {PROGRAM} is not installed (cargo xtask test installs it)");
    }
    found
}

/// Asks until there is an answer.
fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    // Three minutes in all, for a machine that runs other tests at the same time.
    for _ in 0..9000 {
        if let Some(answer) = ask() {
            return answer;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("no {what}")
}

/// An Alertmanager on a port of its own. Its notification log is kept over a restart; its alerts are only in its memory.
struct Alertmanager {
    port: u16,
    running: Option<Running>,
}

impl Alertmanager {
    /// Writes its configuration; it does not run yet. All of a site's alerts are one group, which is notified of a first alert after 5 s,
    /// and of changes at most once a second. The same alerts are not repeated within the test.
    fn new(place: &Place, webhook: &str) -> Alertmanager {
        fs::write(
            place.at("alertmanager.yml"),
            format!(
                "route: {{receiver: hook, group_by: [alertname, site], group_wait: 5s, group_interval: 1s, repeat_interval: 4h}}\n\
                 receivers: [{{name: hook, webhook_configs: [{{url: '{webhook}', send_resolved: true}}]}}]\n"
            ),
        )
        .unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Alertmanager { port, running: None }
    }

    fn start(&mut self, place: &Place) {
        let log = File::options().create(true).append(true).open(place.at("alertmanager.log")).unwrap();
        let child = Command::new(PROGRAM)
            .arg(format!("--config.file={}", place.at("alertmanager.yml").display()))
            .arg(format!("--storage.path={}", place.at("alertmanager").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{}", self.port))
            // Without other instances.
            .arg("--cluster.listen-address=")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.running = Some(Running(child));
        until("answer of Alertmanager", || self.get("/-/ready").ok().filter(|(status, _)| *status == 200));
    }

    fn signal(&self, signal: Signal) {
        let pid = self.running.as_ref().unwrap().0.id();
        kill(Pid::from_raw(pid.cast_signed()), signal).unwrap();
    }

    fn stop(&mut self) {
        self.signal(Signal::SIGTERM);
        self.running.take().unwrap().0.wait().unwrap();
    }

    fn get(&self, path: &str) -> io::Result<(u16, String)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        // HTTP/1.0: its answer has no chunks.
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        Ok((status.unwrap_or_default(), body.to_owned()))
    }

    /// The alerts that fire, by their label `incident`.
    fn alerts(&self) -> BTreeMap<String, Value> {
        let (status, body) = self.get("/api/v2/alerts").unwrap();
        assert_eq!(status, 200, "{body}");
        let alerts: Vec<Value> = serde_json::from_str(&body).unwrap();
        let count = alerts.len();
        let by_incident: BTreeMap<String, Value> = alerts
            .into_iter()
            .map(|alert| (alert["labels"]["incident"].as_str().unwrap().to_owned(), alert))
            .collect();
        assert_eq!(by_incident.len(), count, "two alerts of one incident");
        by_incident
    }
}

/// Incidents of a status, `firing` or `resolved`, over all notifications. All are of the priority P1.
fn notified(webhook: &Server, status: &str) -> BTreeSet<String> {
    let requests = webhook.requests.lock().unwrap();
    let mut incidents = BTreeSet::new();
    for request in requests.iter() {
        let body = request.json();
        for alert in body["alerts"].as_array().unwrap().iter().filter(|alert| alert["status"] == status) {
            assert_eq!(alert["labels"]["severity"], "P1");
            incidents.insert(alert["labels"]["incident"].as_str().unwrap().to_owned());
        }
    }
    incidents
}

/// `scontrol` reports nodes of which the first ones are down: a tenth of all nodes failed in each second from `began`.
fn down(place: &Place, nodes: usize, began: u64) {
    let mut script = String::new();
    for second in 0..10 {
        let (first, last) = (second * NODES / 10 + 1, (second + 1) * NODES / 10);
        let at = began / SECOND + second as u64;
        script.push_str(&format!(
            "at=$(date -d @{at} +%Y-%m-%dT%H:%M:%S)
            for n in $(seq {first} {last}); do
                if [ $n -le {nodes} ]; then state=\"DOWN Reason=Not responding [slurm@$at]\"; else state=IDLE; fi
                echo \"NodeName=n$n BootTime=2026-11-21T01:36:02 State=$state\"
            done\n"
        ));
    }
    place.slurm(&script);
}

/// What two passes log: one after some time, and one after the 15 s in which a message waits for further conditions.
fn later(place: &Place, time: u64) -> String {
    pass(place, time);
    let mut said = place.once();
    pass(place, 20 * SECOND);
    said.push_str(&place.once());
    said
}

#[test]
fn five_hundred_nodes_that_fail_within_ten_seconds_are_at_most_three_notifications_of_alertmanager() {
    if !is_installed() {
        return;
    }
    let place = Place::new();
    let webhook = Server::start(|_, _| ok(""));
    let mut alertmanager = Alertmanager::new(&place, &webhook.url("/"));
    let path = place.at("railgate.toml");
    let config = format!(
        "{}[alerts]\nsite = 'alpha'\ndeadline = '2s'\n[alerts.sinks.am]\nkind = 'alertmanager'\nurl = 'http://127.0.0.1:{}'\n",
        fs::read_to_string(&path).unwrap(),
        alertmanager.port
    );
    fs::write(&path, config).unwrap();
    let all: BTreeSet<String> = (1..=NODES).map(|n| format!("node/n{n}")).collect();
    let is_sent = |said: &str| said.contains("accepted message");

    // Slurm is asked in the middle of the failures, and again after the last one. While Alertmanager does not run, the message waits.
    let began = railgate_runner::now() - 10 * SECOND;
    down(&place, 200, began);
    place.once();
    down(&place, NODES, began);
    pass(&place, 10 * SECOND);
    let said = place.once();
    assert!(!said.contains("alerts: am: "), "the first condition waits 15 s for further ones: {said}");
    pass(&place, 10 * SECOND);
    let said = place.once();
    assert!(said.contains("alerts: am: message, which waits, not accepted: "), "{said}");
    alertmanager.start(&place);
    pass(&place, MINUTE);
    let said = place.once();
    assert!(said.contains(&format!(", {NODES} conditions")) && is_sent(&said), "{said}");

    let alerts = alertmanager.alerts();
    assert!(alerts.keys().eq(all.iter()), "{:?}", alerts.keys());
    for (incident, alert) in &alerts {
        let node = incident.strip_prefix("node/").unwrap();
        let labels =
            json!({"alertname": "Railgate", "incident": incident, "severity": "P1", "site": "alpha"});
        assert_eq!(alert["labels"], labels);
        let annotations = &alert["annotations"];
        assert_eq!(annotations["summary"], format!("{node} is down: Not responding"));
        assert_eq!(annotations["description"], "State in Slurm: DOWN.");
        assert_eq!(annotations["nodes"], node);
        assert!(annotations["message_id"].as_str().unwrap().starts_with("railgate-am-"), "{annotations}");
    }
    until("notification of all nodes", || (notified(&webhook, "firing") == all).then_some(()));
    let of_failures = webhook.count();
    assert_eq!(of_failures, 1, "all nodes are in the first notification");

    // Further passes send no message. A restart of Alertmanager loses its alerts, and the refresh after 3 min restores them.
    let said = later(&place, MINUTE);
    assert!(!is_sent(&said), "{said}");
    alertmanager.stop();
    alertmanager.start(&place);
    assert_eq!(alertmanager.alerts().len(), 0);
    let said = later(&place, 3 * MINUTE);
    assert!(!is_sent(&said), "{said}");
    assert!(alertmanager.alerts().keys().eq(all.iter()));
    // The repeat after 15 min is a message.
    let said = later(&place, 14 * MINUTE);
    assert!(is_sent(&said), "{said}");
    assert!(alertmanager.alerts().keys().eq(all.iter()));

    // The end of all conditions, after five minutes without them, while Alertmanager does not answer.
    down(&place, 0, began);
    pass(&place, MINUTE);
    place.once();
    alertmanager.signal(Signal::SIGSTOP);
    let said = later(&place, 6 * MINUTE);
    assert!(said.contains("alerts: am: message, which waits, not accepted: "), "{said}");
    alertmanager.signal(Signal::SIGCONT);
    pass(&place, MINUTE);
    let said = place.once();
    assert!(is_sent(&said), "{said}");
    assert_eq!(alertmanager.alerts().len(), 0);
    until("notification of all ends", || (notified(&webhook, "resolved") == all).then_some(()));
    let requests = webhook.requests.lock().unwrap();
    let of_ends = &requests[of_failures..];
    assert!(of_ends.len() <= 3, "{} notifications of ends", of_ends.len());
    for request in of_ends {
        let body = request.json();
        let has_end = body["alerts"].as_array().unwrap().iter().any(|alert| alert["status"] == "resolved");
        assert!(has_end, "repeats what is known: {body}");
    }
}
