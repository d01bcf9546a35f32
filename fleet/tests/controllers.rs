//! Two controllers with one disk: host names of their own, and the lock of one host is not seen on the other.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod support;

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use railgate_fleet::Event;
use railgate_fleet_store::Reader;
use railgate_slurm::{Blamed, Entry, Event as Happened, Ledger};
use support::{Place, Running};

impl Place {
    /// What both controllers find: a ledger with one event, and an slurmctld that knows a node by the name of the host that asks.
    fn of_two_controllers() -> Option<Place> {
        // Host names and mounts of their own need root.
        if !nix::unistd::geteuid().is_root() {
            return None;
        }
        let place = Place::new();
        place.slurm("echo \"NodeName=seen-by-$(hostname) State=IDLE BootTime=2026-11-21T01:36:02\"");
        place.node_fails("n1");
        Some(place)
    }

    /// The program on a host: in a UTS namespace with its host name, and with a lock file of its own.
    fn on(&self, host: &str, words: &[&str]) -> Command {
        let lock = self.at(&format!("{host}.lock"));
        let at_host = "hostname \"$1\" && mount --bind \"$2\" \"$3\" && shift 3 && exec \"$@\"";
        let program = self.command(words);
        let shared = self.at("fleet/fleet.db.lock");
        fs::create_dir_all(self.at("fleet")).unwrap();
        for file in [&lock, &shared] {
            fs::OpenOptions::new().create(true).append(true).mode(0o600).open(file).unwrap();
        }
        let mut command = Command::new("unshare");
        command.args(["--uts", "--mount", "sh", "-c", at_host, "sh", host]).arg(lock).arg(shared);
        command.arg(program.get_program()).args(program.get_args());
        command.env_remove("SLURMD_NODENAME").stdin(Stdio::null());
        command
    }

    /// `once` on a host.
    fn once_on(&self, host: &str) -> Output {
        self.on(host, &["once"]).output().unwrap()
    }

    /// `run` on a host. Returns when the host has asked slurmctld.
    fn run_on(&self, host: &str) -> Running {
        let before = self.asked();
        let log = fs::File::create(self.at(&format!("{host}.log"))).unwrap();
        let running = Running(self.on(host, &["run", "--every", "60s"]).stderr(log).spawn().unwrap());
        wait(|| self.asked() > before);
        running
    }

    fn node_fails(&self, node: &str) {
        let entry = Entry {
            schema: 1,
            time: now() - 60_000,
            event: Happened::NodeFail,
            job: 8,
            name: "8".to_owned(),
            attempt: 0,
            ran_s: Some(60),
            blamed: vec![Blamed { node: node.to_owned(), subject: "down".to_owned(), part: String::new() }],
            why: String::new(),
            uid: Some(12_345),
        };
        Ledger::new(&self.at("state/controller")).append(&entry).unwrap();
    }

    fn events(&self) -> Vec<Event> {
        Reader::open(&self.at("fleet/fleet.db")).unwrap().events(0, u64::MAX).unwrap()
    }

    fn has(&self, id: &str) -> bool {
        self.events().iter().any(|event| event.id == id)
    }

    /// As if the time of the lease had passed.
    fn lease_runs_out(&self) {
        let database = rusqlite::Connection::open(self.at("fleet/fleet.db")).unwrap();
        database.busy_timeout(Duration::from_secs(5)).unwrap();
        let past = i64::try_from(now() - 1).unwrap();
        assert_eq!(database.execute("UPDATE lease SET until = ?1 WHERE until > ?1", [past]).unwrap(), 1);
    }
}

fn now() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

fn wait(mut is_true: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !is_true() {
        assert!(Instant::now() < end, "not after 30 s");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn signal(running: &Running, signal: Signal) {
    kill(Pid::from_raw(running.0.id().cast_signed()), signal).unwrap();
}

fn end_of(running: &mut Running) -> ExitStatus {
    let mut end = None;
    wait(|| {
        end = running.0.try_wait().unwrap();
        end.is_some()
    });
    end.unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The second controller is refused, by the name of the first, and has written nothing.
fn assert_refused(place: &Place) {
    let before = place.events();
    let refused = place.once_on("ctld2");
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(said(&refused).contains("fleet.db: ctld1 writes this history"), "{}", said(&refused));
    assert_eq!(place.events(), before);
}

/// The second controller takes over and reads on: each event is there once, also those that both have read.
fn assert_takes_over(place: &Place) {
    place.node_fails("n2");
    let done = place.once_on("ctld2");
    assert_eq!(done.status.code(), Some(0), "{}", said(&done));
    let mut ids: Vec<String> = place.events().into_iter().map(|event| event.id).collect();
    ids.sort();
    // The second one has the place of the sources from the history: slurmctld was asked less than a minute ago.
    assert_eq!(
        ids,
        [
            "known/seen-by-ctld1",
            "ledger/8/0/n1/down",
            "ledger/8/0/n2/down",
            "placed/n1/Leaf=leaf-1",
            "placed/n2/Leaf=leaf-1"
        ]
    );
}

#[test]
fn the_second_controller_takes_over_when_the_first_has_ended() {
    let Some(place) = Place::of_two_controllers() else { return };
    let mut first = place.run_on("ctld1");
    wait(|| place.has("known/seen-by-ctld1"));
    assert_refused(&place);
    signal(&first, Signal::SIGTERM);
    assert_eq!(end_of(&mut first).code(), Some(0));
    // It need not wait for the end of the lease.
    assert_takes_over(&place);
}

#[test]
fn the_second_controller_takes_over_when_the_first_was_killed_and_its_lease_has_run_out() {
    let Some(place) = Place::of_two_controllers() else { return };
    let mut first = place.run_on("ctld1");
    wait(|| place.has("known/seen-by-ctld1"));
    signal(&first, Signal::SIGKILL);
    assert_eq!(end_of(&mut first).signal(), Some(9));
    assert_refused(&place);
    place.lease_runs_out();
    assert_takes_over(&place);
}

#[test]
fn a_controller_that_was_stopped_past_its_lease_writes_nothing() {
    let Some(place) = Place::of_two_controllers() else { return };
    // The first controller is stopped in a pass, between the answer of slurmctld and its commit.
    place.slurm(&format!(
        "echo \"NodeName=seen-by-$(hostname) State=IDLE BootTime=2026-11-21T01:36:02\"\n\
         [ $(hostname) = ctld2 ] || until [ -e '{}' ]; do sleep 0.02; done",
        place.at("answer").display()
    ));
    let mut first = place.run_on("ctld1");
    signal(&first, Signal::SIGSTOP);
    let pid = Pid::from_raw(first.0.id().cast_signed());
    assert!(matches!(waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap(), WaitStatus::Stopped(..)));
    assert_refused(&place);
    place.lease_runs_out();
    assert_eq!(place.once_on("ctld2").status.code(), Some(0));
    let taken = place.events();
    assert!(place.has("known/seen-by-ctld2") && place.has("ledger/8/0/n1/down"));
    fs::write(place.at("answer"), "").unwrap();
    signal(&first, Signal::SIGCONT);
    // systemd starts it again, and then it is the second one.
    assert_eq!(end_of(&mut first).code(), Some(2));
    let log = fs::read_to_string(place.at("ctld1.log")).unwrap();
    assert!(log.contains("another controller writes this history now; nothing was written"), "{log}");
    assert_eq!(place.events(), taken);
    assert_eq!(place.once_on("ctld1").status.code(), Some(0));
}
