//! Nodes that die under their jobs, and jobs that meet several unfit nodes.

use anyhow::Result;
use railgate_tests::cluster::{Builder, Job};
use railgate_tests::poll;

use crate::training::{ALL_MAY_DRAIN, MINUTE, end, in_order, one_line, report, started, submit_as};

/// Runs in every attempt until the test ends it.
const WORK: &str = "\
attempt=${SLURM_RESTART_COUNT:-0}
echo attempt $attempt on $SLURM_JOB_NODELIST
until [ -s end.$SLURM_JOB_ID ]; do sleep 0.1; done
exit $(cat end.$SLURM_JOB_ID)
";

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_job_survives_a_dead_node_and_one_whose_nodes_keep_dying_is_held() -> Result<()> {
    let builder = Builder::new(5)
        .config(ALL_MAY_DRAIN)?
        .config("requeue = { max_restarts = 1 }")?
        // Short enough to notice dead nodes soon, long enough for busy ones.
        .slurm_conf("SlurmdTimeout", "10")
        .slurm_conf("MessageTimeout", "5");
    builder.test(|cluster| {
        let alice = cluster.alice();
        let small = submit_as(&alice, &["-N1", "--gres=gpu:8"], WORK)?;
        let large = submit_as(&alice, &["-N2", "--gres=gpu:8"], WORK)?;
        let alone = started(cluster, small)?;
        started(cluster, large)?;
        assert_eq!((alone.as_str(), cluster.job(large)?.nodes()), ("gn1", "gn[2-3]"));
        cluster.kill_node("gn1")?;
        cluster.cut_link("gn3")?;

        // Known at once: Slurm has requeued the jobs, and which node has been silent since.
        for (id, dead) in [(small, "gn1"), (large, "gn3")] {
            let again = |job: &Job| job.state() == "RUNNING" && job.restarts() == 1;
            cluster.wait_job_until(id, "running again", MINUTE, again)?;
            let told = one_line(&report(&alice, id)?);
            // In 22.05 the controller knows no more; later releases notify it of the death at once.
            let died = format!("no epilog report from {dead}");
            in_order(&told, &[": running, 2 attempts", &format!("attempt 0: a node died ({dead})"), &died]);
        }
        // At the end of the next attempt the controller adds what it knows.
        end(cluster, small, 0)?;
        cluster.wait_job(small, &["COMPLETED"], MINUTE)?;
        in_order(
            &one_line(&report(&alice, small)?),
            &[
                ": completed, 2 attempts",
                "Slurm requeued the job: gn1 went down (Not responding)",
                "no epilog report from gn1 (Not responding)",
            ],
        );

        // One restart is allowed: the second death holds the job, and its owner finds the reason.
        let second = cluster.job(large)?.field("BatchHost").to_owned();
        cluster.kill_node(&second)?;
        // The job is held before its reason is set; until then the comment is that of the first death.
        let is_held = |job: &Job| job.reason() == "JobHeldUser" && job.field("AdminComment").contains("held");
        let held = cluster.wait_job_until(large, "held", MINUTE, is_held)?;
        let why = format!(
            "{second} went down (Not responding), and the job was restarted once already (at most 1)"
        );
        assert_eq!(
            held.field("AdminComment"),
            format!("railgate: held: {why}, `scontrol release` lets it continue;")
        );
        // The controller writes the report last; the job is completing until the epilog of its other node has ended.
        let told = poll::until(MINUTE, "the decision in the report", || {
            let told = one_line(&report(&alice, large)?);
            Ok((told.contains("railgate held the job") && told.contains("waiting to start")).then_some(told))
        })?;
        in_order(
            &told,
            &[
                ": waiting to start, 3 attempts",
                &format!("It is held: {why}; `scontrol release` lets it continue."),
                &format!("attempt 0: a node died (gn3); attempt 1: a node died ({second})"),
                "Slurm requeued the job: gn3 went down (Not responding)",
                &format!("railgate held the job: {why}"),
                "failures during a run: 2 (restarts allowed: 1); refusals by the gate: 0",
            ],
        );

        alice.run(&["scontrol", "release", &large.to_string()])?.ok()?;
        end(cluster, large, 0)?;
        let job = cluster.wait_job(large, &["COMPLETED"], MINUTE)?;
        // The job runs on the two nodes that are still up.
        let living = match second.as_str() {
            "gn2" => "gn[4-5]",
            "gn4" => "gn[2,5]",
            _ => "gn[2,4]",
        };
        assert_eq!((job.restarts(), job.nodes()), (2, living));
        Ok(())
    })
}

/// The controller's program, delayed until the test removes a file.
const LATE: &str = "#!/bin/sh\nwhile [ -e /shared/hold ]; do sleep 0.1; done\nexec /usr/libexec/railgate/railgate-epilog-ctld\n";

/// The restart count has already grown when the controller's program runs, as after a node's death, but no node died.
#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_job_requeued_while_it_ends_lost_no_node() -> Result<()> {
    let builder = Builder::new(2).file("/etc/railgate/late.sh", LATE);
    builder.slurm_conf("EpilogSlurmctld", "/etc/railgate/late.sh").test(|cluster| {
        let alice = cluster.alice();
        let id = submit_as(&alice, &["-n1", "--requeue"], WORK)?;
        started(cluster, id)?;
        let requeue = ["scontrol", "requeue", &id.to_string()];
        alice.run(&requeue)?.ok()?;
        let again = |job: &Job| job.state() == "RUNNING" && job.restarts() == 1;
        cluster.wait_job_until(id, "running again", MINUTE, again)?;
        cluster.write("ctl", "/shared/hold", "")?;
        end(cluster, id, 0)?;
        cluster.wait_job_until(id, "completing", MINUTE, |job| job.state().contains("COMPLETING"))?;
        alice.run(&requeue)?.ok()?;
        cluster.root().run(&["rm", "/shared/hold"])?.ok()?;
        let job = cluster
            .wait_job_until(id, "over", MINUTE, |job| job.state() == "COMPLETED" && job.restarts() == 2)?;
        assert_eq!(job.restarts(), 2);
        let ledger = cluster.read("ctl", "/var/lib/railgate/controller/ledger.jsonl")?;
        assert!(!ledger.contains("node-fail") && ledger.matches("\"requeued\"").count() == 2, "{ledger}");
        let told = report(&alice, id)?;
        assert!(told.contains(": completed, 3 attempts") && !told.contains("a node died"), "{told}");
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_job_moved_ten_times_by_the_gate_is_not_held() -> Result<()> {
    let builder = Builder::new(2)
        .config(ALL_MAY_DRAIN)?
        .config("requeue = { max_restarts = 1, move_backoff = '0s' }")?
        .hardware("h100-sxm:gpu-lost@3");
    builder.test(|cluster| {
        let (alice, root) = (cluster.alice(), cluster.root());
        // Else the job would start there while the first refusal is being looked at.
        root.run(&["scontrol", "update", "nodename=gn2", "state=drain", "reason=later"])?.ok()?;
        let id = submit_as(&alice, &["--gres=gpu:8"], WORK)?;
        end(cluster, id, 0)?;
        let nodes = ["gn1", "gn2"];
        for moves in 1..=10 {
            let moved = |job: &Job| job.state() == "PENDING" && job.restarts() == moves;
            let job = cluster.wait_job_until(id, &format!("moved {moves} times"), MINUTE, moved)?;
            assert!(!job.reason().contains("Held") && job.field("Priority") != "0", "{job:?}");
            let turn = usize::try_from(moves)? % 2;
            let (refused, next) = (nodes[1 - turn], nodes[turn]);
            cluster.wait_node(refused, "drained", MINUTE, |node| node.state() == "IDLE+DRAIN")?;
            if moves == 10 {
                cluster.hardware(next)?.heal()?;
            }
            // Resumed, it stands for yet another node. Not the node just left: Slurm could skip its prolog.
            root.run(&["scontrol", "update", &format!("nodename={next}"), "state=resume"])?;
            // Skips Slurm's delay; refused if it is over and the job has started.
            alice.run(&["scontrol", "update", &format!("jobid={id}"), "StartTime=now"])?;
        }
        assert_eq!(cluster.wait_job(id, &["COMPLETED"], MINUTE)?.restarts(), 10);
        let told = one_line(&report(&alice, id)?);
        in_order(
            &told,
            &[
                ": completed, 11 attempts",
                "Slurm requeued the job: the gate refused the job because of gpu-lost@3 on gn1 (refusal 1)",
                "Slurm requeued the job: the gate refused the job because of gpu-lost@3 on gn2 (refusal 10)",
                "failures during a run: 0 (restarts allowed: 1); refusals by the gate: 10",
            ],
        );
        Ok(())
    })
}
