//! The program against a report directory, a ledger and an slurmctld that the test makes.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use railgate_fleet::{Event, Source, What};
use railgate_fleet_store::{EnteredFile, Reader};
use railgate_model::{Class, Severity};
use railgate_node_report::testing::{finding, job, part};
use railgate_node_report::{EvidenceItem, NodeReport, SlurmEnd, SlurmView};
use railgate_slurm::{Blamed, Entry, Event as Happened, Ledger};
use support::{Place, Running};

const USER: u32 = 12_345;

/// What the history has, and what the report directory gets.
impl Place {
    fn events_of(&self, database: &str) -> Vec<Event> {
        Reader::open(&self.at(database)).unwrap().events(0, u64::MAX).unwrap()
    }

    fn events(&self) -> Vec<Event> {
        self.events_of("fleet/fleet.db")
    }

    fn ids(&self) -> Vec<String> {
        let mut ids: Vec<String> = self.events().into_iter().map(|event| event.id).collect();
        ids.sort();
        ids
    }

    /// Writes a file of attempt 0 of a job. The directories belong to `owner`, the file to `writer`.
    fn put(&self, job: u32, name: &str, content: &[u8], owner: u32, writer: u32) {
        let of_job = self.at(&format!("reports/alpha/{job}"));
        let attempt = of_job.join("0");
        fs::create_dir_all(&attempt).unwrap();
        fs::write(attempt.join(name), content).unwrap();
        if nix::unistd::geteuid().is_root() {
            for (path, uid) in [(&of_job, owner), (&attempt, owner), (&attempt.join(name), writer)] {
                chown(path, Some(uid), Some(uid)).unwrap();
            }
        }
    }
}

/// Not the first sight of a node or of a row of the site's table.
fn is_of_jobs(event: &Event) -> bool {
    !event.id.starts_with("placed/") && !event.id.starts_with("known/")
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap() / 1000 * 1000
}

fn end_of(job: u32, state: &str, end: u64) -> Vec<u8> {
    let slurm = SlurmView {
        state: state.to_owned(),
        start: Some(end - 3_600_000),
        end: Some(end),
        nodelist: "n[1-2]".to_owned(),
        ..SlurmView::default()
    };
    let end =
        SlurmEnd { schema: 1, cluster: "alpha".to_owned(), job, time: end, slurm, ..SlurmEnd::default() };
    serde_json::to_vec(&end).unwrap()
}

/// A report that blames its node.
fn report(node: &str, job_id: u32, uid: u32, end: u64) -> Vec<u8> {
    let mut of = job(0..8);
    (of.id, of.uid) = (job_id, uid);
    let fault = finding("gpu-lost", "0", Severity::Fail, Class::Node, "off bus");
    let report = NodeReport {
        cluster: "alpha".to_owned(),
        end: Some(end),
        evidence: vec![EvidenceItem { finding: fault, time: None, device: String::new(), own: Some(true) }],
        ..part(node, &of, "", Vec::new(), 0)
    };
    serde_json::to_vec(&report).unwrap()
}

fn death(job: u32, time: u64) -> Entry {
    Entry {
        schema: 1,
        time,
        event: Happened::NodeFail,
        job,
        name: job.to_string(),
        attempt: 0,
        ran_s: Some(60),
        blamed: vec![Blamed { node: "n2".to_owned(), subject: "down".to_owned(), part: String::new() }],
        why: String::new(),
        uid: Some(USER),
    }
}

#[test]
fn reading_the_same_sources_again_changes_nothing() {
    let place = Place::new();
    let ledger = Ledger::new(&place.at("state/controller"));
    ledger.append(&death(8, now() - 60_000)).unwrap();
    place.put(7, "slurm-end.json", &end_of(7, "COMPLETED", now() - 600_000), USER, 0);
    place.once();
    let first = place.ids();
    assert_eq!(
        first,
        [
            "end/7/0/2-slurm/000000",
            "known/n1",
            "ledger/8/0/n2/down",
            "placed/n1/Leaf=leaf-1",
            "placed/n2/Leaf=leaf-1"
        ]
    );
    let said = place.once();
    assert!(said.contains("0 new events"), "{said}");
    assert_eq!(place.asked(), 1, "one call a minute at most");
    assert_eq!(place.ids(), first);
    // A new database from the same sources, but for the times at which the site's table and the nodes were seen first.
    let mode = fs::metadata(place.at("fleet/fleet.db")).unwrap().mode() & 0o777;
    assert_eq!(mode, 0o600);
    let of_sources = |events: Vec<Event>| events.into_iter().filter(is_of_jobs).collect::<Vec<_>>();
    let before = of_sources(place.events());
    fs::remove_dir_all(place.at("fleet")).unwrap();
    place.once();
    assert_eq!(of_sources(place.events()), before);
}

#[test]
fn work_that_admins_entered_is_taken_in_once() {
    let place = Place::new();
    place.once();
    let what = What::Maintained {
        node: "n1".to_owned(),
        repair: true,
        card: None,
        by: "alice".to_owned(),
        why: "new fans".to_owned(),
    };
    let event = Event { id: "repaired/n1//1".to_owned(), time: now() - 60_000, source: Source::Root, what };
    let file = EnteredFile::beside(&place.at("fleet/fleet.db"));
    file.add(std::slice::from_ref(&event)).unwrap();
    let said = place.once();
    assert!(said.contains("1 new events") && place.events().contains(&event), "{said}");
    assert!(place.once().contains("0 new events"));
    // A line that is not valid is named, and the others count.
    let path = place.at("fleet/entered.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("for ever\n{text}")).unwrap();
    let said = place.once();
    assert!(said.contains("entered.jsonl:1: ") && said.contains("; the line is ignored"), "{said}");
}

#[test]
fn figures_for_prometheus_are_written_after_a_reading() {
    let place = Place::new();
    let config = fs::read_to_string(place.at("railgate.toml")).unwrap();
    let metrics = place.at("metrics");
    fs::create_dir(&metrics).unwrap();
    fs::write(place.at("railgate.toml"), format!("{config}[metrics]\ndir = '{}'\n", metrics.display()))
        .unwrap();
    // One hour of work, without a wait: at least half an hour less a tenth was productive.
    place.put(7, "slurm-end.json", &end_of(7, "COMPLETED", now() - 600_000), USER, 0);
    place.once();
    let text = fs::read_to_string(metrics.join("railgate-fleet.prom")).unwrap();
    for line in [
        "railgate_fleet_open_incidents{kind=\"leaf-switch\"} 0",
        "railgate_fleet_lemons 0",
        "railgate_fleet_nodes_out_of_service 0",
        "railgate_fleet_ettr_ratio{bound=\"lower\"} 0.45",
        "railgate_fleet_ettr_ratio{bound=\"upper\"} 1",
        "# TYPE railgate_fleet_events_total counter",
    ] {
        assert!(text.lines().any(|have| have == line), "{line}\n{text}");
    }
    assert!(
        text.contains("\nrailgate_fleet_complete_timestamp_seconds ") && !text.contains("12345"),
        "{text}"
    );
    assert!(!text.contains("railgate_fleet_goodput_ratio"), "without a report of the number of GPUs: {text}");
    // Without its directory, the history is kept as before.
    fs::remove_dir_all(&metrics).unwrap();
    let said = place.once();
    assert!(said.contains("metrics: ") && said.contains("No such file or directory"), "{said}");
}

#[test]
fn files_of_a_user_count_for_nothing_but_the_cost_of_the_user() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let place = Place::new();
    let end = now() - 600_000;
    // Everything that the owner of a job can forge: a record by Slurm, findings, and a report in the name of another user.
    place.put(7, "slurm-end.json", &end_of(7, "NODE_FAIL", end), USER, USER);
    place.put(7, "n1.json", &report("n1", 7, USER, end), USER, USER);
    place.put(8, "slurm-end.json", &end_of(8, "COMPLETED", end), USER, 0);
    place.put(8, "n1.json", &report("n1", 8, USER, end), USER, USER);
    place.put(8, "n3.json", b"no report", USER, USER);
    place.put(8, "n2.json", &report("n2", 8, USER + 1, end), USER, USER + 1);
    let said = place.once();
    assert!(said.contains("alpha/8/0/n3.json: not a node report"), "{said}");
    let about_jobs: Vec<Event> = place.events().into_iter().filter(is_of_jobs).collect();
    let ids: Vec<&str> = about_jobs.iter().map(|event| event.id.as_str()).collect();
    assert_eq!(ids, ["end/8/0/2-slurm/000008"], "the GPUs of one own report");
    // The same report, kept by root.
    place.put(9, "n1.json", &report("n1", 9, USER, end), USER, 0);
    place.once();
    let is_finding = |event: &Event| matches!(&event.what, What::Finding(found) if found.node == "n1");
    assert!(place.events().iter().any(|event| is_finding(event) && event.source == Source::Root));
}

#[test]
fn an_slurmctld_that_does_not_answer_says_nothing_about_nodes() {
    let place = Place::new();
    place.slurm("echo 'slurm_load_node error: Unable to contact slurm controller' >&2; exit 1");
    let done = place.run(&["once"]);
    let said = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(3), "{said}");
    assert!(said.contains("nodes: could not tell: ") && said.contains("Unable to contact"), "{said}");
    assert!(place.ids().iter().all(|id| id.starts_with("placed/")));
}

#[test]
fn reports_of_several_clusters_need_the_key() {
    let place = Place::new();
    fs::create_dir_all(place.at("reports/alpha")).unwrap();
    fs::create_dir_all(place.at("reports/beta")).unwrap();
    let done = place.run(&["once"]);
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(done.status.code() == Some(3) && said.contains("set `cluster` in [fleet]"), "{said}");
}

fn wait_for(path: &Path) {
    while !path.exists() {
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_backup_is_written_while_the_program_runs_and_a_signal_ends_it() {
    let place = Place::new();
    place.put(7, "slurm-end.json", &end_of(7, "COMPLETED", now() - 600_000), USER, 0);
    let mut running =
        Running(place.command(&["run", "--every", "60s"]).stderr(Stdio::null()).spawn().unwrap());
    wait_for(&place.at("asked"));
    let second = place.run(&["once"]);
    assert_eq!(second.status.code(), Some(2), "one writer");
    assert!(String::from_utf8(second.stderr).unwrap().contains("another process of this machine"));
    let copy = place.at("copy.db");
    let done = place.run(&["backup", copy.to_str().unwrap()]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    kill(Pid::from_raw(running.0.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert_eq!(running.0.wait().unwrap().code(), Some(0));
    assert!(place.events_of("copy.db").iter().any(|event| event.id.starts_with("end/7/")));
}

#[test]
fn a_wrong_pause_and_hostile_arguments_are_refused() {
    let place = Place::new();
    for (words, wanted) in [
        (&["run", "--every", "5s"][..], "5s is not within 60s to 240s"),
        (&["once", "\u{1b}[2Jx\u{202e}"][..], "unexpected argument"),
    ] {
        let done = place.run(words);
        let said = String::from_utf8(done.stderr).unwrap();
        assert!(done.status.code() == Some(2) && said.contains(wanted), "{said}");
        assert!(!said.contains('\u{1b}') && !said.contains('\u{202e}'), "{said:?}");
    }
}

/// Ends of jobs in ten minutes at 2,000 a minute.
const ENDS: u32 = 20_000;

#[test]
#[ignore = "a measurement"]
#[expect(clippy::disallowed_macros, reason = "the figures are its result")]
fn how_fast_ends_of_jobs_are_taken_in() {
    let place = Place::new();
    let begin = now() - 3_600_000;
    for job in 1..=ENDS {
        let end = begin + u64::from(job) * 600_000 / u64::from(ENDS);
        place.put(job, "slurm-end.json", &end_of(job, "COMPLETED", end), USER, 0);
        place.put(job, "n1.json", &report("n1", job, USER, end), USER, USER);
    }
    let begin = std::time::Instant::now();
    let mut passes = 0;
    loop {
        passes += 1;
        let words = ["--config", "railgate.toml", "--state", "state", "once"];
        let program = env!("CARGO_BIN_EXE_railgate-fleet");
        let mut one_core = std::process::Command::new("taskset");
        one_core.args(["-c", "0", program]).args(words);
        let done = one_core.current_dir(place.dir.path()).output().unwrap();
        let said = String::from_utf8(done.stderr).unwrap();
        println!("pass {passes}, after {:.1} s: {}", begin.elapsed().as_secs_f64(), said.trim());
        if said.contains(" 0 new events") {
            break;
        }
    }
    let ended = place.events().iter().filter(|event| matches!(event.what, What::JobEnded(_))).count();
    let minutes = begin.elapsed().as_secs_f64() / 60.0;
    println!(
        "{ended} ends of jobs on one core: {:.0} a minute; slurmctld was asked {} times in {minutes:.1} min",
        f64::from(ENDS) / minutes,
        place.asked()
    );
    assert_eq!(ended, usize::try_from(ENDS).unwrap());
}
