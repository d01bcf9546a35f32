//! Drains against a fake controller.
#![expect(clippy::unwrap_used, reason = "a helper of tests")]

mod fake;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fake::Cluster;
use railgate_fsutil::FileLock;
use railgate_model::Phase;
use railgate_slurm::{Acting, DrainOutcome, Reason, Standing};

fn reason(jobs: &[u32]) -> Reason {
    Reason {
        subject: "gpu-lost@3".to_owned(),
        what: "0000:9b:00.0 off bus, Xid 79".to_owned(),
        fix: "reboot".to_owned(),
        phase: Phase::Epilog,
        jobs: jobs.to_vec(),
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

const OURS: &str = "railgate: gpu-lost@3: 0000:9b:00.0 off bus, Xid 79; reboot [epilog job=7]";

#[test]
fn a_free_node_is_drained_with_our_reason() {
    let cluster = Cluster::new(&["n1", "n2"]);
    let outcome = cluster.desk("n1", 1, Acting::Allowed).drain("n1", "boot", &reason(&[7]));
    assert_eq!(outcome, DrainOutcome::Drained { reason: OURS.to_owned() });
    assert_eq!(cluster.get("n1"), ("IDLE+DRAIN".to_owned(), OURS.to_owned()));
    assert_eq!(cluster.pending("n1"), None);
}

#[test]
fn a_drain_by_others_is_not_changed() {
    let cluster = Cluster::new(&["n1"]);
    for (state, words) in [
        ("IDLE+DRAIN", "bad dimm, see ticket 9"),
        ("IDLE+DRAIN", ""),
        ("IDLE+DRAIN", "Prolog error"),
        ("IDLE+DRAIN", "Prolog error, looking at it"),
        ("DOWN", "Not responding"),
        ("IDLE+DRAIN+REBOOT_REQUESTED", "Reboot ASAP"),
        ("IDLE+REBOOT_ISSUED", ""),
    ] {
        cluster.set("n1", state, words, now());
        let outcome = cluster.desk("n1", 9, Acting::Allowed).drain("n1", "boot", &reason(&[7]));
        assert!(matches!(outcome, DrainOutcome::Foreign { .. }), "{state} {words}: {outcome:?}");
        assert_eq!(cluster.get("n1"), (state.to_owned(), words.to_owned()));
    }
    assert!(!cluster.calls().contains("update"));
}

#[test]
fn a_node_in_maintenance_is_drained_for_a_job_only() {
    for state in ["IDLE+REBOOT_REQUESTED", "IDLE+MAINT"] {
        let cluster = Cluster::new(&["n1"]);
        cluster.set("n1", state, "", now());
        let desk = cluster.desk("n1", 1, Acting::Allowed);
        let beside = Reason { phase: Phase::Periodic, jobs: Vec::new(), ..reason(&[]) };
        let outcome = desk.drain("n1", "boot", &beside);
        assert!(matches!(outcome, DrainOutcome::Foreign { .. }), "{state}: {outcome:?}");
        // Without a drain by railgate Slurm's own "Prolog error" would stay on the node.
        let outcome = desk.drain("n1", "boot", &Reason { phase: Phase::Prolog, ..reason(&[7]) });
        assert!(matches!(outcome, DrainOutcome::Drained { .. }), "{state}: {outcome:?}");
    }
}

#[test]
fn the_ids_of_failed_jobs_are_added_to_our_drain() {
    let cluster = Cluster::new(&["n1"]);
    cluster.set("n1", "IDLE+DRAIN", "railgate: gpu-lost@3: off bus; reboot [periodic]", now());
    let desk = cluster.desk("n1", 1, Acting::Allowed);
    for (job, expected) in [(7, "[epilog job=7]"), (8, "[epilog job=7,8]"), (8, "[epilog job=7,8]")] {
        let outcome = desk.drain("n1", "boot", &reason(&[job]));
        let DrainOutcome::AlreadyOurs { reason, .. } = outcome else { panic!("{outcome:?}") };
        assert!(reason.ends_with(expected), "{reason}");
        assert_eq!(cluster.get("n1").1, reason);
    }
    cluster.set("n1", "IDLE+DRAIN", "railgate: keep for vendor", now());
    let outcome = desk.drain("n1", "boot", &reason(&[9]));
    assert!(matches!(outcome, DrainOutcome::AlreadyOurs { added: false, .. }));
    assert_eq!(cluster.get("n1").1, "railgate: keep for vendor");
}

#[test]
fn only_an_unchanged_drain_by_railgate_is_resumed() {
    let cluster = Cluster::new(&["n1"]);
    let desk = cluster.desk("n1", 1, Acting::Forbidden("paused".to_owned()));
    for (state, words, is) in [
        ("IDLE", "", Standing::InService),
        ("IDLE", OURS, Standing::InService),
        ("IDLE+DRAIN", "bad dimm", Standing::Others("drained by others: bad dimm".to_owned())),
        (
            "IDLE+DRAIN+MAINTENANCE",
            OURS,
            Standing::Others("in a maintenance reservation (IDLE+DRAIN+MAINTENANCE)".to_owned()),
        ),
    ] {
        cluster.set("n1", state, words, now());
        assert_eq!(desk.standing("n1").unwrap(), is, "{state} {words}");
        assert!(desk.resume("n1", OURS).is_err(), "{state} {words}");
    }
    assert!(!cluster.calls().contains("update"));
    cluster.set("n1", "DOWN+DRAIN+NOT_RESPONDING", OURS, now());
    assert!(matches!(desk.standing("n1").unwrap(), Standing::Others(why) if why.contains("slurmd")));
    cluster.set("n1", "IDLE+DRAIN", OURS, now());
    let other = desk.resume("n1", "railgate: gpu-ecc@1: 3 uncorrected; reset GPU [epilog]").unwrap_err();
    assert!(other.to_string().contains(OURS), "{other}");
    desk.resume("n1", OURS).unwrap();
    assert_eq!(cluster.get("n1"), ("IDLE".to_owned(), String::new()));
}

#[test]
fn a_check_run_before_the_resume_does_not_drain_the_node() {
    const MINUTE_MS: u64 = 60_000;
    let cluster = Cluster::new(&["n1"]);
    let desk = cluster.desk("n1", 1, Acting::Allowed);
    cluster.set("n1", "IDLE+DRAIN", OURS, now());
    desk.resume("n1", OURS).unwrap();
    let looked = |ago: u64| desk.clone().of_check_run(now() * 1000 - ago).drain("n1", "boot", &reason(&[7]));
    assert!(matches!(looked(MINUTE_MS), DrainOutcome::NotActing(why) if why.contains("was resumed")));
    assert_eq!(cluster.get("n1"), ("IDLE".to_owned(), String::new()));
    // No check run takes that long: the clock was set back.
    assert!(matches!(looked(11 * MINUTE_MS), DrainOutcome::Drained { .. }));
    cluster.set("n1", "IDLE", "", now());
    let later = desk.clone().of_check_run((now() + 60) * 1000).drain("n1", "boot", &reason(&[7]));
    assert!(matches!(later, DrainOutcome::Drained { .. }), "{later:?}");
}

#[test]
fn a_forbidden_drain_sends_no_command() {
    let cluster = Cluster::new(&["n1"]);
    let desk = cluster.desk("n1", 1, Acting::Forbidden("report mode".to_owned()));
    assert_eq!(desk.drain("n1", "boot", &reason(&[7])), DrainOutcome::NotActing("report mode".to_owned()));
    assert_eq!((cluster.calls().as_str(), cluster.pending("n1")), ("", None));
}

#[test]
fn an_unfit_node_is_drained_if_the_lock_is_unavailable() {
    let cluster = Cluster::new(&["n1"]);
    let run = cluster.path("run").join("n1");
    std::fs::remove_dir(&run).unwrap();
    std::fs::write(&run, "not a directory").unwrap();
    let outcome = cluster.desk("n1", 1, Acting::Allowed).drain("n1", "boot", &reason(&[7]));
    assert_eq!(outcome, DrainOutcome::Drained { reason: OURS.to_owned() });
    assert_eq!(cluster.get("n1"), ("IDLE+DRAIN".to_owned(), OURS.to_owned()));
}

#[test]
fn a_held_lock_delays_a_drain_but_loses_no_job_id() {
    let cluster = Cluster::new(&["n1"]);
    let desk = cluster.desk("n1", 1, Acting::Allowed);
    let lock = FileLock::try_take(&cluster.path("run").join("n1/drain.lock")).unwrap();
    let outcome = desk.drain("n1", "boot", &reason(&[7]));
    assert_eq!(outcome, DrainOutcome::Drained { reason: OURS.to_owned() });
    // The process with the lock read the reason before ours was set, and overwrites it.
    let overwritten = OURS.replace("job=7", "job=9");
    cluster.set("n1", "IDLE+DRAIN", &overwritten, now());
    drop(lock);
    let settled = desk.settle_unfinished("n1", "boot").unwrap();
    let both = OURS.replace("job=7", "job=9,7");
    assert_eq!(settled, DrainOutcome::AlreadyOurs { reason: both.clone(), added: true });
    assert_eq!(cluster.get("n1").1, both);
    assert_eq!(desk.settle_unfinished("n1", "boot"), None);
}

/// State left by a process that was killed after it had sent a drain.
fn killed_after_drain(cluster: &Cluster) {
    let mark = format!(
        r#"{{"schema":1,"node":"n1","boot_id":"boot","made":{},"reason":"{OURS}","stage":"sent"}}"#,
        now()
    );
    std::fs::write(cluster.path("state").join("n1/pending-reason.json"), mark).unwrap();
    cluster.set("n1", "IDLE+DRAIN", OURS, now());
}

#[test]
fn the_next_program_counts_a_drain_whose_process_was_killed() {
    let cluster = Cluster::new(&["n1", "n2"]);
    cluster.set("n2", "IDLE+DRAIN", OURS, now() - 60);
    killed_after_drain(&cluster);
    let outcome = cluster.desk("n1", 1, Acting::Allowed).settle_pending("n1", "boot");
    assert!(matches!(outcome, Some(DrainOutcome::BreakerOpen { held: 1, limit: 1, .. })), "{outcome:?}");
    assert_eq!((cluster.get("n1").0.as_str(), cluster.pending("n1")), ("IDLE", None));
    assert_eq!(cluster.get("n2").0, "IDLE+DRAIN");
    // Within the cap the drain stays.
    killed_after_drain(&cluster);
    cluster.desk("n1", 2, Acting::Allowed).settle_pending("n1", "boot").unwrap();
    assert_eq!((cluster.get("n1").0.as_str(), cluster.pending("n1")), ("IDLE+DRAIN", None));
    // An admin has resumed the node meanwhile.
    killed_after_drain(&cluster);
    cluster.set("n1", "IDLE", "", 0);
    let outcome = cluster.desk("n1", 2, Acting::Allowed).settle_pending("n1", "boot");
    assert!(matches!(outcome, Some(DrainOutcome::NotActing(_))), "{outcome:?}");
    assert_eq!((cluster.get("n1").0.as_str(), cluster.pending("n1")), ("IDLE", None));
}

#[test]
fn a_drain_is_not_sent_without_time_for_the_second_count() {
    let cluster = Cluster::new(&["n1"]);
    let desk = cluster.desk("n1", 1, Acting::Allowed).until(Instant::now() + Duration::from_secs(4));
    let outcome = desk.drain("n1", "boot", &reason(&[7]));
    assert!(matches!(&outcome, DrainOutcome::Pending(_)), "{outcome:?}");
    assert_eq!(cluster.get("n1").0, "IDLE");
    assert!(cluster.pending("n1").unwrap().contains("\"waiting\""));
    assert!(!cluster.calls().contains("update"));
}

#[test]
fn without_an_answer_the_reason_stays_pending_until_slurm_drains() {
    let cluster = Cluster::new(&["n1"]);
    let desk = cluster.desk("n1", 1, Acting::Allowed);
    cluster.flag("dead", true);
    let outcome = desk.drain("n1", "boot", &reason(&[7]));
    assert!(
        matches!(&outcome, DrainOutcome::Pending(why) if why.contains("Unable to contact")),
        "{outcome:?}"
    );
    assert!(matches!(desk.settle_pending("n1", "boot"), Some(DrainOutcome::Pending(_))));
    cluster.flag("dead", false);
    cluster.set("n1", "IDLE+DRAIN", "Prolog error", now());
    assert_eq!(desk.settle_pending("n1", "boot"), Some(DrainOutcome::Drained { reason: OURS.to_owned() }));
    assert_eq!(cluster.get("n1").1, OURS);
    assert_eq!(desk.settle_pending("n1", "boot"), None);
}

#[test]
fn a_pending_reason_of_another_boot_or_an_old_one_changes_nothing() {
    let cluster = Cluster::new(&["n1"]);
    let desk = cluster.desk("n1", 1, Acting::Allowed);
    cluster.flag("dead", true);
    desk.drain("n1", "boot", &reason(&[7]));
    cluster.flag("dead", false);
    cluster.set("n1", "IDLE+DRAIN", "Prolog error", now() - 3600);
    assert!(matches!(desk.settle_pending("n1", "boot"), Some(DrainOutcome::Foreign { .. })));
    assert_eq!(cluster.get("n1").1, "Prolog error");
    cluster.flag("dead", true);
    desk.drain("n1", "boot", &reason(&[7]));
    cluster.flag("dead", false);
    cluster.set("n1", "IDLE+DRAIN", "Prolog error", now());
    assert_eq!(desk.settle_pending("n1", "next boot"), None);
    assert_eq!((cluster.get("n1").1.as_str(), cluster.pending("n1")), ("Prolog error", None));
}

#[test]
fn a_later_drain_keeps_the_jobs_of_a_pending_reason() {
    let cluster = Cluster::new(&["n1"]);
    let desk = cluster.desk("n1", 1, Acting::Allowed);
    cluster.flag("dead", true);
    desk.drain("n1", "boot", &reason(&[7]));
    cluster.flag("dead", false);
    desk.drain("n1", "boot", &reason(&[8]));
    assert_eq!(Reason::parse(&cluster.get("n1").1).unwrap().jobs, [8, 7]);
}

#[test]
fn the_breaker_is_asked_before_a_drain() {
    let cluster = Cluster::new(&["n1", "n2"]);
    cluster.set("n2", "IDLE+DRAIN", OURS, now());
    let outcome = cluster.desk("n1", 1, Acting::Allowed).drain("n1", "boot", &reason(&[7]));
    assert_eq!(outcome, DrainOutcome::BreakerOpen { scope: "cluster".to_owned(), held: 1, limit: 1 });
    assert_eq!(cluster.get("n1").0, "IDLE");
    assert_eq!(cluster.pending("n1"), None);
}

#[test]
fn a_drain_forbidden_by_the_breaker_is_noted_once_in_a_free_comment() {
    let cluster = Cluster::new(&["n1", "n2"]);
    cluster.set("n2", "IDLE+DRAIN", OURS, now());
    let file = cluster.path("nodes").join("n1/comment");
    let comment = || std::fs::read_to_string(&file).unwrap_or_default();
    let updates = || cluster.calls().matches("Comment=").count();
    let desk = |max, acting| cluster.desk("n1", max, acting);
    // No command is sent in report mode.
    desk(1, Acting::Forbidden("report mode".to_owned())).drain("n1", "boot", &reason(&[7]));
    assert_eq!(comment(), "");
    std::fs::write(&file, "railgate: rack 7").unwrap();
    desk(1, Acting::Allowed).drain("n1", "boot", &reason(&[7]));
    assert_eq!((comment().as_str(), updates()), ("railgate: rack 7", 0));
    std::fs::write(&file, "").unwrap();
    for job in [7, 8] {
        desk(1, Acting::Allowed).drain("n1", "boot", &reason(&[job]));
    }
    let lead = "railgate: unfit, not drained (breaker): gpu-lost@3: 0000:9b:00.0 off bus, Xid 79; reboot [epilog] since 20";
    assert!(comment().starts_with(lead), "{}", comment());
    assert_eq!(updates(), 1);
    // A different fault gives a different comment.
    let other = Reason { subject: "ib-rate@mlx5_2".to_owned(), ..reason(&[7]) };
    desk(1, Acting::Allowed).drain("n1", "boot", &other);
    assert!(comment().contains("(breaker): ib-rate@mlx5_2: "), "{}", comment());
    // A drain clears the comment, but not one that others have changed.
    desk(2, Acting::Allowed).drain("n1", "boot", &reason(&[7]));
    assert_eq!((comment().as_str(), desk(2, Acting::Allowed).let_through("n1", true)), ("", None));
    std::fs::write(&file, "rack 8").unwrap();
    desk(2, Acting::Allowed).take_back_let_through("n1");
    assert_eq!(comment(), "rack 8");
}

#[test]
fn without_an_answer_of_sinfo_only_a_lost_part_drains() {
    for answer in ["", "n2|main*|idle|Unknown|none"] {
        let cluster = Cluster::new(&["n1", "n2"]);
        cluster.answer("sinfo", answer);
        let desk = cluster.desk("n1", 1, Acting::Allowed);
        let slow = Reason { subject: "ib-rate@mlx5_2".to_owned(), ..reason(&[7]) };
        let outcome = desk.drain("n1", "boot", &slow);
        assert!(
            matches!(&outcome, DrainOutcome::Pending(why) if why.contains("sinfo")),
            "{answer}: {outcome:?}"
        );
        assert_eq!(cluster.get("n1").0, "IDLE");
        // Any job on a node without its GPU would fail.
        let outcome = desk.drain("n1", "boot", &reason(&[7]));
        assert!(matches!(&outcome, DrainOutcome::Drained { .. }), "{answer}: {outcome:?}");
        // The count against the cap is still pending.
        assert!(cluster.pending("n1").unwrap().contains("\"sent\""), "{answer}");
    }
}

#[test]
fn a_drain_is_pending_while_another_process_has_the_lock() {
    let cluster = Cluster::new(&["n1"]);
    let desk = cluster.desk("n1", 1, Acting::Allowed);
    cluster.flag("dead", true);
    desk.drain("n1", "boot", &reason(&[7]));
    let _held = FileLock::try_take(&cluster.path("run").join("n1/drain.lock")).unwrap();
    let outcome = desk.drain("n1", "boot", &reason(&[8]));
    assert!(matches!(outcome, DrainOutcome::Pending(_)), "{outcome:?}");
}

#[test]
fn many_simultaneous_drains_end_within_the_cap() {
    let names = ["n1", "n2", "n3", "n4", "n5"];
    let cluster = Cluster::new(&names);
    let outcomes: Vec<DrainOutcome> = std::thread::scope(|scope| {
        let running: Vec<_> = names
            .iter()
            .map(|node| {
                let desk = cluster.desk(node, 2, Acting::Allowed);
                scope.spawn(move || desk.drain(node, "boot", &reason(&[7])))
            })
            .collect();
        running.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let drained: Vec<bool> = outcomes.iter().map(|o| matches!(o, DrainOutcome::Drained { .. })).collect();
    assert_eq!(drained.iter().filter(|drained| **drained).count(), 2, "{outcomes:?}");
    for (node, drained) in names.iter().zip(drained) {
        assert_eq!(cluster.get(node).0.contains("DRAIN"), drained, "{node}");
    }
}

#[test]
fn a_slow_controller_is_asked_again_after_the_drain() {
    let cluster = Cluster::new(&["n1", "n2"]);
    std::fs::write(cluster.path("storm"), OURS).unwrap();
    let outcome = cluster.desk("n1", 1, Acting::Allowed).drain("n1", "boot", &reason(&[7]));
    assert!(matches!(outcome, DrainOutcome::BreakerOpen { held: 1, .. }), "{outcome:?}");
    assert_eq!(cluster.get("n1").0, "IDLE");
}

#[test]
fn a_hanging_controller_is_abandoned_at_the_deadline() {
    let cluster = Cluster::new(&["n1"]);
    cluster.flag("silent", true);
    let client = cluster.client(std::time::Duration::from_millis(300));
    assert!(client.node("n1").unwrap_err().no_answer());
}
