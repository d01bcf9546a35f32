//! The program sends alerts: nodes that Slurm reports, receivers that answer, hang and are missing, kills and silences.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../../crates/alert-sinks/tests/support/mod.rs"]
mod sinks;
mod support;

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::process::{ChildStderr, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use railgate_fleet::{Event, Source, What};
use railgate_fleet_store::Writer;
use railgate_node_report::testing::running_for_an_hour;
use railgate_runner::{NewSilence, SilenceFile};
use serde_json::Value;
use sinks::{AUTHORITY, Reply, Request, Server, ok};
use support::{Place, Running};

const MINUTE: u64 = 60_000;
const DOWN: &str = "Reason=Not responding [slurm@2026-11-27T01:00:00]";

/// A configuration with one webhook, `hook`.
fn config(place: &Place, server: &Server, alerts: &str) {
    let path = place.at("railgate.toml");
    let before = fs::read_to_string(&path).unwrap();
    let text = format!(
        "{before}[alerts]\nsite = 'alpha'\ngroup_wait = '0s'\n{alerts}\n[alerts.sinks.hook]\nkind = 'webhook'\nurl = '{}'\n",
        server.url("/hook")
    );
    fs::write(path, text).unwrap();
}

/// Nodes as Slurm reports them: name, state and further fields.
fn nodes(place: &Place, nodes: &[(&str, &str, &str)]) {
    let line = |(name, state, more): &(&str, &str, &str)| {
        format!("echo 'NodeName={name} State={state} BootTime=2026-11-21T01:36:02 {more}'\n")
    };
    place.slurm(&nodes.iter().map(line).collect::<String>());
}

fn pass(place: &Place, minutes: u64) {
    support::pass(place, minutes * MINUTE);
}

/// Kind and key of the entries of a message.
fn entries(request: &Request) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let message = request.json();
    let entries = message["entries"].as_array().unwrap().iter();
    entries.map(|entry| (text(&entry["kind"]), text(&entry["key"]))).collect()
}

fn entry(kind: &str, key: &str) -> (String, String) {
    (kind.to_owned(), key.to_owned())
}

fn accepting() -> Server {
    Server::start(|_, _| ok(""))
}

/// A server that reports each request, and answers when the test lets it.
fn held() -> (Server, Receiver<Sender<()>>) {
    let (arrived, requests) = channel();
    let arrived = Mutex::new(arrived);
    let server = Server::start(move |_, _| {
        let (answer, wait) = channel();
        let _ = arrived.lock().unwrap().send(answer);
        // An error: the test ends.
        let _ = wait.recv();
        ok("")
    });
    (server, requests)
}

fn start(place: &Place) -> Running {
    Running(place.command(&["run", "--every", "60s"]).stderr(Stdio::piped()).spawn().unwrap())
}

/// Ends the program with SIGTERM. Returns what it logged.
fn end(mut running: Running) -> String {
    kill(Pid::from_raw(running.0.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert_eq!(running.0.wait().unwrap().code(), Some(0));
    let mut said = String::new();
    let mut log: ChildStderr = running.0.stderr.take().unwrap();
    log.read_to_string(&mut said).unwrap();
    said
}

/// The message that is under way, in the state on the disk.
fn under_way(place: &Place) -> Option<Value> {
    let state: Value = serde_json::from_slice(&fs::read(place.at("fleet/alerts.json")).ok()?).unwrap();
    Some(state["sinks"]["hook"]["in_flight"].clone())
}

#[test]
fn a_node_that_goes_down_is_one_message_and_is_resolved_after_five_minutes_without_it() {
    let place = Place::new();
    let server = accepting();
    config(&place, &server, "");
    place.once();
    assert_eq!(server.count(), 0, "no condition, no message");
    pass(&place, 2);
    nodes(&place, &[("n1", "DOWN", DOWN), ("n2", "IDLE", "")]);
    let said = place.once();
    assert!(said.contains("alerts: hook: accepted message railgate-hook-"), "{said}");
    assert_eq!(entries(&server.last()), [entry("new", "node/n1")]);
    let message = server.last().json();
    assert_eq!(message["title"], "[P1] railgate alpha: NEW n1 is down: Not responding");
    assert_eq!(message["entries"][0]["details"], "State in Slurm: DOWN.");
    pass(&place, 1);
    place.once();
    assert_eq!(server.count(), 1, "it lasts");
    nodes(&place, &[("n1", "IDLE", ""), ("n2", "IDLE", "")]);
    pass(&place, 1);
    place.once();
    pass(&place, 4);
    place.once();
    assert_eq!(server.count(), 1, "four minutes are not five");
    pass(&place, 2);
    place.once();
    assert_eq!((server.count(), entries(&server.last())), (2, vec![entry("resolved", "node/n1")]));
    pass(&place, 1);
    place.once();
    assert_eq!(server.count(), 2);
}

#[test]
fn a_leaf_switch_that_takes_its_nodes_with_it_is_one_urgent_message() {
    let place = Place::new();
    let server = accepting();
    config(&place, &server, "");
    let path = place.at("railgate.toml");
    let text = fs::read_to_string(&path).unwrap();
    let leafs = "leaf-1 = 'n[1-8]'\nleaf-2 = 'n[9-32]'\n";
    fs::write(&path, text.replace("leaf-1 = 'n[1-2]'\n", leafs)).unwrap();
    // The nodes are known for 30 days.
    fs::create_dir(place.at("fleet")).unwrap();
    fs::set_permissions(place.at("fleet"), fs::Permissions::from_mode(0o700)).unwrap();
    let begin = railgate_runner::now() - 30 * 24 * 60 * MINUTE;
    let known = |node: u32| Event {
        id: format!("known/{node}"),
        time: begin,
        source: Source::Root,
        what: What::Placed { node: format!("n{node}"), shares: Vec::new() },
    };
    let mut writer = Writer::open(&place.at("fleet/fleet.db"), "test", begin).unwrap();
    writer.take_in(&(1..=32).map(known).collect::<Vec<Event>>(), begin).unwrap();
    drop(writer);
    // Two minutes ago, railgate drained all nodes below the first leaf switch.
    let script = "for n in $(seq 1 32); do
        if [ $n -le 8 ]; then
            state=\"IDLE+DRAIN Reason=railgate: rdma-self-test@mlx5_0: no answer; check the switch [prolog job=7] [root@$(date -d '-2 minutes' +%Y-%m-%dT%H:%M:%S)]\"
        else
            state=IDLE
        fi
        echo \"NodeName=n$n State=$state\"
    done";
    place.slurm(script);
    place.once();
    let found = entries(&server.last());
    assert_eq!((server.count(), found.len()), (1, 9), "{found:?}");
    assert_eq!(found[0], entry("new", "incident/leaf-switch/leaf-1"));
    let first = &server.last().json()["entries"][0];
    assert_eq!(first["priority"], "P0");
    assert_eq!(first["nodes"].as_array().unwrap().len(), 8);
}

#[test]
fn a_kill_repeats_only_the_message_under_way() {
    let place = Place::new();
    let (server, requests) = held();
    config(&place, &server, "deadline = '1m'");
    nodes(&place, &[("n1", "DOWN", DOWN)]);
    let mut running = start(&place);
    let first = requests.recv().unwrap();
    running.0.kill().unwrap();
    running.0.wait().unwrap();
    drop(first);
    let running = start(&place);
    // The same message again; this time its answer is received.
    drop(requests.recv().unwrap());
    while under_way(&place).is_none_or(|message| !message.is_null()) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let said = end(running);
    assert!(said.contains("SIGTERM: ended"), "{said}");
    // What was accepted is not sent again.
    pass(&place, 6);
    nodes(&place, &[("n1", "DOWN", DOWN), ("n2", "DOWN", DOWN)]);
    let answers = std::thread::spawn(move || drop(requests.recv().unwrap()));
    place.once();
    answers.join().unwrap();
    let all = server.requests.lock().unwrap();
    let id = |at: usize| all[at].header("idempotency-key").unwrap().to_owned();
    assert_eq!(all.len(), 3, "{all:?}");
    assert!(id(0) == id(1) && all[0].body == all[1].body && id(1) != id(2));
    assert_eq!(entries(&all[2]), [entry("new", "node/n2")]);
}

#[test]
fn a_signal_during_a_delivery_ends_the_program_and_the_message_is_sent_again() {
    let place = Place::new();
    // The first request gets no answer.
    let server = Server::start(|number, _| if number == 0 { Reply::Hang } else { ok("") });
    config(&place, &server, "deadline = '1s'");
    nodes(&place, &[("n1", "DOWN", DOWN)]);
    let running = start(&place);
    while server.count() == 0 {
        std::thread::sleep(Duration::from_millis(20));
    }
    let id = server.last().header("idempotency-key").unwrap().to_owned();
    let said = end(running);
    assert!(said.contains("new events") && said.contains("SIGTERM: ended"), "{said}");
    pass(&place, 1);
    place.once();
    assert_eq!(server.last().header("idempotency-key"), Some(id.as_str()));
    assert_eq!(server.count(), 2);
}

#[test]
fn a_silenced_node_is_no_message_until_the_silence_ends() {
    let place = Place::new();
    let server = accepting();
    config(&place, &server, "");
    place.once();
    let silences = SilenceFile::beside(&place.at("fleet/fleet.db"));
    let new = NewSilence {
        nodes: vec!["n1".to_owned()],
        check: None,
        reservation: None,
        length: Duration::from_secs(3600),
        by: "alice".to_owned(),
        reason: "new fans".to_owned(),
    };
    let now = railgate_runner::now();
    let made = silences.add(new.clone(), now).unwrap();
    // One that has ended, and a line that is not valid.
    silences.add(NewSilence { nodes: vec!["n2".to_owned()], ..new }, now - 2 * 60 * MINUTE).unwrap();
    let file = place.at("fleet/silences.jsonl");
    let lines = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{lines}n2 for ever\n")).unwrap();
    nodes(&place, &[("n1", "DOWN", DOWN), ("n2", "DOWN", DOWN)]);
    pass(&place, 1);
    let said = place.once();
    assert_eq!(entries(&server.last()), [entry("new", "node/n2")]);
    assert!(said.contains("silences.jsonl:3: ") && said.contains("; the line is ignored"), "{said}");
    silences.remove(&made.id, now).unwrap().unwrap();
    pass(&place, 6);
    place.once();
    assert_eq!((server.count(), entries(&server.last())), (2, vec![entry("new", "node/n1")]));
}

#[test]
fn a_silence_of_a_reservation_covers_the_nodes_in_it() {
    let place = Place::new();
    let server = accepting();
    let silence = "[alerts.silences.driver]\nreservation = 'maint-7'\nuntil = '2099-01-01T00:00:00Z'\nreason = 'driver 580'\n";
    config(&place, &server, "");
    let path = place.at("railgate.toml");
    fs::write(&path, format!("{}{silence}", fs::read_to_string(&path).unwrap())).unwrap();
    place.once();
    // As Slurm 23.02 and later print it; the comment of another node imitates it.
    let of = |more: &str| format!("{DOWN} {more}");
    let (inside, other) = (of("Comment=x ReservationName=maint-7"), of("ReservationName=maint-8"));
    let imitates = of("Comment=ReservationName=maint-7 Extra=y");
    nodes(&place, &[("n1", "DOWN", &inside), ("n2", "DOWN", &other), ("n3", "DOWN", &imitates)]);
    pass(&place, 1);
    place.once();
    assert_eq!(entries(&server.last()), [entry("new", "node/n2"), entry("new", "node/n3")]);
    nodes(&place, &[("n1", "DOWN", DOWN), ("n2", "DOWN", &other), ("n3", "DOWN", &imitates)]);
    pass(&place, 6);
    place.once();
    assert_eq!(entries(&server.last()), [entry("new", "node/n1")]);
}

#[test]
fn without_current_data_the_heartbeats_stop_and_a_message_reports_it() {
    let place = Place::new();
    let server = accepting();
    config(&place, &server, "");
    let watchdog = accepting();
    let mut text = fs::read_to_string(place.at("railgate.toml")).unwrap();
    let url = watchdog.url("/");
    text.push_str(&format!(
        "[alerts.sinks.watchdog]\nkind = 'webhook'\nurl = '{url}'\nalerts = false\nheartbeat = '30s'\n"
    ));
    fs::write(place.at("railgate.toml"), text).unwrap();
    place.once();
    assert_eq!((watchdog.count(), server.count()), (1, 0));
    place.slurm("exit 1");
    for (minutes, blind) in [(9, 0), (2, 1)] {
        pass(&place, minutes);
        assert_eq!(place.run(&["once"]).status.code(), Some(3), "a source could not be read");
        assert_eq!(server.count(), blind);
    }
    assert_eq!(watchdog.count(), 2, "nine minutes are not ten");
    assert_eq!(entries(&server.last()), [entry("new", "railgate/blind")]);
    nodes(&place, &[("n1", "IDLE", "")]);
    pass(&place, 1);
    place.once();
    assert_eq!(watchdog.count(), 3, "there is current data");
}

#[test]
fn problems_of_receivers_and_a_damaged_state_are_logged_and_stop_nothing() {
    let place = Place::new();
    let server = accepting();
    config(&place, &server, "");
    let mut text = fs::read_to_string(place.at("railgate.toml")).unwrap();
    text.push_str("[alerts.sinks.absent]\nkind = 'slack'\nurl_file = '/no/such/secret'\n");
    fs::write(place.at("railgate.toml"), text).unwrap();
    place.once();
    fs::write(place.at("fleet/alerts.json"), "{\"time\": ").unwrap();
    for file in ["fleet.db", "fleet.db-wal", "fleet.db-shm"] {
        let _ = fs::remove_file(place.at("fleet").join(file));
    }
    nodes(&place, &[("n1", "DOWN", DOWN)]);
    let said = place.once();
    for part in [
        "the state was damaged, and all open conditions are sent again: ",
        "alerts.json.damaged",
        "receivers: alerts.sinks.absent.url_file: /no",
    ] {
        assert_eq!(said.matches(part).count(), 1, "{part}: {said}");
    }
    assert_eq!(entries(&server.last()), [entry("new", "node/n1")]);
}

#[test]
fn a_wrong_key_is_named_with_its_file_and_line() {
    let place = Place::new();
    config(&place, &accepting(), "deadline = '2h'");
    let done = place.run(&["once"]);
    let said = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(2), "{said}");
    assert!(said.contains("railgate.toml:12:1: alerts.deadline: 2h is not within 1s to 1m"), "{said}");
}

#[test]
fn without_receivers_there_is_no_state() {
    let place = Place::new();
    place.once();
    assert!(!place.at("fleet/alerts.json").exists());
}

#[test]
fn a_long_wait_in_the_queue_and_a_file_system_that_is_not_mounted_are_messages() {
    let place = Place::new();
    let server = accepting();
    config(&place, &server, "");
    let path = place.at("railgate.toml");
    let text = fs::read_to_string(&path).unwrap();
    // /proc is another file system than /, and is never full.
    let watched = "[fleet.storage.scratch]\npath = '/'\n[fleet.storage.home]\npath = '/proc'\n[alerts]\n";
    let text = text.replace("[fleet]\n", "[fleet]\nqueue_wait = '1day'\n").replace("[alerts]\n", watched);
    fs::write(&path, text).unwrap();
    let squeue = |does: &str| {
        let path = place.at("bin/squeue");
        fs::write(&path, format!("#!/bin/sh\n{does}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    let waits = |id: u32, reason: &str| {
        format!("printf '%-12s%-12s%-20s%-24s%s\\n' {id} 64 2026-11-20T01:36:02 {reason} gpu")
    };
    squeue(&format!("{}\n{}", waits(7, "Resources"), waits(8, "Dependency")));
    place.once();
    let wanted = [entry("new", "queue/gpu"), entry("new", "storage/scratch/not-mounted")];
    let mut found = entries(&server.last());
    found.sort();
    assert_eq!(found, wanted, "{}", server.last().json());
    let message = server.last().json().to_string();
    assert!(message.contains("Jobs: 7 (64 nodes, ") && !message.contains("8 (64 nodes"), "{message}");

    // No answer is no empty queue.
    squeue("echo 'slurm_load_jobs error: down' >&2; exit 1");
    for _ in 0..2 {
        pass(&place, 4);
        let said = place.once();
        assert!(said.contains("queue: could not tell how long jobs wait: "), "{said}");
    }
    assert_eq!(server.count(), 1, "{}", server.last().json());
    squeue("true");
    for _ in 0..2 {
        pass(&place, 6);
        place.once();
    }
    assert!(entries(&server.last()).contains(&entry("resolved", "queue/gpu")));
}

#[test]
fn a_running_job_whose_gpus_are_idle_is_a_message_until_it_works() {
    let place = Place::new();
    let server = accepting();
    config(&place, &server, "");
    let path = place.at("railgate.toml");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("[fleet]\n", "[fleet]\nidle_gpus = '30m'\n")).unwrap();
    let report = |job: u32, busy: f64| {
        const HOUR: u64 = 3_600_000;
        let owner = nix::unistd::geteuid().as_raw();
        let part = running_for_an_hour(job, owner, railgate_runner::now() - HOUR, busy);
        let attempt = place.at(&format!("reports/alpha/{job}/0"));
        fs::create_dir_all(&attempt).unwrap();
        fs::write(attempt.join("n1.live"), serde_json::to_vec(&part).unwrap()).unwrap();
    };
    report(7, 0.0);
    report(8, 90.0);
    place.once();
    assert_eq!(entries(&server.last()), [entry("new", "idle-gpus")], "{}", server.last().json());
    let message = server.last().json().to_string();
    assert!(message.contains("Jobs: 7 (1 GPU, 1 h). `railgate report --idle`"), "{message}");

    // Without an answer nothing ends.
    let hidden = place.at("hidden");
    fs::rename(place.at("reports"), &hidden).unwrap();
    fs::write(place.at("reports"), "").unwrap();
    for _ in 0..2 {
        pass(&place, 4);
        place.run(&["once"]);
    }
    assert_eq!(server.count(), 1, "{}", server.last().json());
    fs::remove_file(place.at("reports")).unwrap();
    fs::rename(&hidden, place.at("reports")).unwrap();
    report(7, 90.0);
    for _ in 0..2 {
        pass(&place, 6);
        place.once();
    }
    assert_eq!(entries(&server.last()), [entry("resolved", "idle-gpus")], "{}", server.last().json());
}

/// An alarm as UFM 6.19 reports it.
const ALARM: &str = r#"[{"id": 2, "type": "Switch", "name": "System Module Error", "description": "Module status FAULT", "event_type": 394,
    "duration": "0 s", "reason": "Module PS 1 on sw7(10.0.0.7) status is fatal", "severity": "Critical", "timestamp": "2026-11-28 08:23:10",
    "counter": "N/A", "event_count": 459, "object_name": "0c42a1030079a66c", "object_path": "Switch: sw7"}]"#;

#[test]
fn a_critical_alarm_of_ufm_is_a_message_until_ufm_has_none() {
    let place = Place::new();
    let server = accepting();
    config(&place, &server, "");
    let answer: Arc<Mutex<Reply>> = Arc::new(Mutex::new(ok(ALARM)));
    let replies = answer.clone();
    let ufm = Server::start_tls(move |_, _| replies.lock().unwrap().clone());
    let file = |name: &str, content: &str| {
        fs::write(place.at(name), content).unwrap();
        fs::set_permissions(place.at(name), fs::Permissions::from_mode(0o600)).unwrap();
        place.at(name).display().to_string()
    };
    let (token, ca) = (file("token", "tOken-0123456789"), file("ca.pem", AUTHORITY));
    let of_ufm = |host: &str| {
        let table = format!(
            "[fleet.ufm]\nurl = 'https://{host}:{}'\ntoken_file = '{token}'\nca_file = '{ca}'\n[alerts]\n",
            ufm.port
        );
        let path = place.at("railgate.toml");
        let text = fs::read_to_string(&path).unwrap();
        let (before, after) = (text.split("[fleet.ufm]").next().unwrap(), text.split("[alerts]\n").nth(1));
        let before = before.split("[alerts]\n").next().unwrap();
        fs::write(&path, format!("{before}{table}{}", after.unwrap())).unwrap();
    };
    of_ufm("localhost");
    place.once();
    assert_eq!(entries(&server.last()), [entry("new", "ufm/394")], "{}", server.last().json());
    assert!(
        server.last().json().to_string().contains("UFM: Module status FAULT (event 394) on sw7"),
        "{}",
        server.last().json()
    );
    let request = ufm.last();
    assert_eq!(request.path, "/ufmRestV3/app/alarms");
    assert_eq!(request.header("authorization"), Some("Basic tOken-0123456789"));

    // Without a list of alarms nothing ends, and neither token nor answer is logged.
    let hidden = |text: &str| text.replace("X", "tOken-0123456789");
    for (reply, why) in [
        (
            Reply::Answer(401, String::new(), hidden("X is wrong")),
            "it refused the token of fleet.ufm.token_file",
        ),
        (Reply::Answer(302, "Location: /login\r\n".to_owned(), String::new()), "redirects are not followed"),
        (Reply::Answer(500, String::new(), hidden("X")), "status 500"),
        (ok(&hidden("<html>X</html>")), "its answer is not a list of alarms"),
        (
            Reply::Endless("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n[".to_owned()),
            "did not arrive within 16 MiB",
        ),
        (Reply::Raw(String::new()), "connection: unexpected end of file"),
    ] {
        *answer.lock().unwrap() = reply;
        pass(&place, 1);
        let said = place.once();
        assert!(
            said.contains("UFM: could not tell which alarms it has: ") && said.contains(why),
            "{why}: {said}"
        );
        assert!(!said.contains("tOken"), "{said}");
    }
    *answer.lock().unwrap() = ok("[]");
    of_ufm("127.0.0.1");
    let said = place.once();
    assert!(said.contains("TLS: "), "a server that does not prove its name: {said}");
    assert_eq!(server.count(), 1, "{}", server.last().json());
    of_ufm("localhost");
    for _ in 0..2 {
        pass(&place, 6);
        place.once();
    }
    assert_eq!(entries(&server.last()), [entry("resolved", "ufm/394")], "{}", server.last().json());

    // A token that others can read is not sent.
    fs::set_permissions(place.at("token"), fs::Permissions::from_mode(0o644)).unwrap();
    let before = ufm.count();
    let said = place.once();
    assert!(said.contains("fleet.ufm.token_file: ") && said.contains("others may read it"), "{said}");
    assert_eq!(ufm.count(), before);
}
