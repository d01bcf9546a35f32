//! A process that sends alerts is killed with SIGKILL at many points: nothing is lost, and at most the message under way comes again.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use railgate_alert_sinks::{Deliver, Keep, Sinks, StateFile, deliver};
use railgate_alerts::{AlertsConfig, Condition, Message, Observation, Outcome, Priority, State};
use support::*;

/// Set in the process that is killed: the directory of the test.
const CHILD: &str = "RAILGATE_ALERTS_TEST_DIRECTORY";
const KILLS: usize = 50;
/// Observations, 20 s apart.
const TICKS: u64 = 420;

/// The conditions at a time. Nothing changes after tick 300.
fn conditions(tick: u64) -> Vec<Condition> {
    let lasts = |number: &u64| {
        let begin = number * 7;
        let end = if number.is_multiple_of(2) { begin + 60 + number * 3 } else { u64::MAX };
        (begin..end).contains(&tick)
    };
    (0..30).filter(lasts).map(|number| condition(&format!("c{number}"), Priority::P0, &["a"])).collect()
}

fn read_config(dir: &Path) -> AlertsConfig {
    toml::from_str(&fs::read_to_string(dir.join("config")).unwrap()).unwrap()
}

/// Reports a point of the work, and waits until the parent lets it continue.
fn point() {
    println!("\n@");
    std::io::stdout().flush().unwrap();
    let mut line = String::new();
    assert!(std::io::stdin().read_line(&mut line).unwrap() > 0, "the parent has ended");
}

struct Watched<T>(T);

impl Keep for Watched<StateFile> {
    fn commit(&mut self, state: &State) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        point();
        self.0.commit(state)?;
        point();
        Ok(())
    }
}

impl Deliver for Watched<Sinks> {
    fn send(&self, message: &Message, now: u64) -> Outcome {
        point();
        let outcome = self.0.send(message, now);
        point();
        outcome
    }
}

/// Not a test: the process that is killed.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let config = read_config(&dir);
    let opened = StateFile::open(&dir.join("state/alerts.json")).unwrap();
    assert_eq!(opened.damaged, None);
    let (mut file, mut state) = (Watched(opened.file), opened.state);
    let sinks = Watched(Sinks::open(&config));
    // The clock: one byte for each observation.
    let mut ticks = File::options().append(true).create(true).open(dir.join("ticks")).unwrap();
    loop {
        ticks.write_all(b".").unwrap();
        let tick = ticks.metadata().unwrap().len();
        if tick > TICKS {
            println!("\n@done");
            return;
        }
        let now = NOON + tick * 20_000;
        let observation = Observation { conditions: conditions(tick), time: now, complete: true };
        state.observe(&config, &observation, now);
        file.commit(&state).unwrap();
        let done = deliver(&mut state, &config, &sinks, &mut file, &|| now);
        assert_eq!((done.failed, done.not_stored), (Vec::new(), None));
    }
}

enum Event {
    /// The child waits at a point.
    Child,
    /// The server has a request, and waits before its answer.
    Server(Sender<()>),
    Done,
}

/// Runs the child up to a number of points, then kills it. Returns whether it ended by itself.
#[expect(
    clippy::zombie_processes,
    reason = "it is waited for on both ways out; a failed test ends it by its input"
)]
fn live(dir: &Path, events: &(Sender<Event>, Receiver<Event>), points: usize) -> bool {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["child", "--exact", "--nocapture"])
        .env(CHILD, dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let to = events.0.clone();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let _ = match line.as_str() {
                "@" => to.send(Event::Child),
                "@done" => to.send(Event::Done),
                _ => Ok(()),
            };
        }
    });
    for number in 1.. {
        let event = events.1.recv().unwrap();
        if matches!(event, Event::Done) {
            assert!(child.wait().unwrap().success());
            reader.join().unwrap();
            return true;
        }
        if number >= points {
            child.kill().unwrap();
            child.wait().unwrap();
            drop(event);
            break;
        }
        match event {
            Event::Server(next) => next.send(()).unwrap(),
            _ => writeln!(input).unwrap(),
        }
    }
    reader.join().unwrap();
    assert!(events.1.try_recv().is_err(), "one event at a time");
    false
}

#[test]
fn a_kill_repeats_at_most_the_message_under_way() {
    let files = Files::new();
    let dir = files.0.path();
    let events = channel();
    let to = Mutex::new(events.0.clone());
    let server = Server::start(move |_, _| {
        let (next, wait) = channel();
        let _ = to.lock().unwrap().send(Event::Server(next));
        // An error: the child was killed.
        let _ = wait.recv();
        ok("")
    });
    let config = format!(
        "group_wait = '0s'\ngroup_interval = '10s'\nresolve_after = '1m'\nrepeat = ['5m']\ndeadline = '1m'\n\
         [sinks.it]\nkind = 'webhook'\nurl = '{}'\n",
        server.url("/")
    );
    fs::write(dir.join("config"), config).unwrap();
    fs::create_dir(dir.join("state")).unwrap();
    for kill in 0..KILLS {
        // Each kind of point comes up, also right after the start.
        assert!(!live(dir, &events, 1 + kill * 5 % 17), "it ended before it was killed");
    }
    assert!(live(dir, &events, usize::MAX));

    let requests = server.requests.lock().unwrap();
    let mut bodies: BTreeMap<&str, &str> = BTreeMap::new();
    let (mut repeats, mut last) = (0, "");
    let mut open: BTreeSet<String> = BTreeSet::new();
    let mut begun: BTreeSet<String> = BTreeSet::new();
    for request in requests.iter() {
        let id = request.header("idempotency-key").unwrap();
        if let Some(body) = bodies.insert(id, &request.body) {
            assert_eq!(body, request.body, "the same id has the same content");
            assert_eq!(id, last, "only the message under way comes again");
            repeats += 1;
            continue;
        }
        last = id;
        for entry in request.json()["entries"].as_array().unwrap() {
            let key = entry["key"].as_str().unwrap().to_owned();
            match entry["kind"].as_str().unwrap() {
                "new" => assert!(open.insert(key.clone()), "{key} is new twice"),
                "resolved" => assert!(open.remove(&key), "{key} was not open"),
                kind => assert!(open.contains(&key), "{key} is {kind} without a beginning"),
            }
            begun.insert(key);
        }
    }
    assert!(repeats <= KILLS, "{repeats} repeats");
    assert!(repeats >= 3, "{repeats} repeats: no kill hit a message under way");
    assert_eq!(begun.len(), 30, "each condition was notified");
    let last: BTreeSet<String> = conditions(TICKS).into_iter().map(|condition| condition.key).collect();
    assert_eq!(open, last, "the receiver has the open conditions at the end");
    let left: Vec<String> = fs::read_dir(dir.join("state"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(
        left.iter().collect::<BTreeSet<_>>(),
        BTreeSet::from([&"alerts.json".to_owned(), &"alerts.json.lock".to_owned()])
    );
}

#[test]
fn a_damaged_state_is_moved_away_and_a_second_process_is_refused() {
    let files = Files::new();
    let path = files.secret("alerts.json", "{\"time\": ");
    // Of a process that was killed while it wrote.
    let leftover = files.secret(".alerts.json.4711", "{");
    let other = files.secret(".alerts.json.bak", "{");
    let opened = StateFile::open(&path).unwrap();
    assert_eq!(opened.state, State::default());
    assert!(opened.damaged.unwrap().contains("alerts.json.damaged"));
    assert_eq!(fs::read_to_string(files.0.path().join("alerts.json.damaged")).unwrap(), "{\"time\": ");
    assert!(!leftover.exists() && other.exists());
    let second = StateFile::open(&path).unwrap_err().to_string();
    assert!(second.contains("another process sends alerts"), "{second}");
}
