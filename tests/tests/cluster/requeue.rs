//! Jobs whose node fails are requeued without intervention.

use anyhow::Result;
use railgate_tests::cluster::{Builder, Cluster, Job};
use railgate_tests::poll;

use crate::training::{ALL_MAY_DRAIN, MINUTE, end, in_order, log, one_line, report, started, submit};

const LOST: &str = "gpu-lost@3: 0000:61:00.0 off bus, Xid 79";

/// The hardware is repaired, and the admin resumes the node.
fn repair(cluster: &Cluster, node: &str) -> Result<()> {
    cluster.hardware(node)?.heal()?;
    let node = format!("nodename={node}");
    cluster.root().run(&["scontrol", "update", &node, "state=resume"])?.ok().map(drop)
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_job_whose_gpu_dies_continues_elsewhere_and_its_dependents_wait() -> Result<()> {
    let builder = Builder::new(3).config(ALL_MAY_DRAIN)?;
    builder.config_of("ctl", "metrics = { dir = '/var/lib/prom' }")?.test(|cluster| {
        cluster.root().run(&["install", "-d", "-o", "slurm", "/var/lib/prom"])?.ok()?;
        let alice = cluster.alice();
        let id = submit(&alice, &["-N2", "--gres=gpu:8"])?;
        assert_eq!(started(cluster, id)?, "gn1");
        let follower = |when: &str, file: &str| {
            let words = ["-d", &format!("{when}:{id}"), "-o", "/dev/null"];
            alice.sbatch(&words, &format!("cp log.{id} {file}"))
        };
        let after_success = follower("afterok", "seen-by-afterok")?;
        let after_failure = follower("afternotok", "seen-by-afternotok")?;
        let after_end = follower("afterany", "seen-by-afterany")?;
        cluster.hardware("gn2")?.inject("gpu-lost@3")?;
        end(cluster, id, 3)?;

        let job = cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
        assert_eq!((job.nodes(), job.restarts()), ("gn[1,3]", 1));
        let node = cluster.node("gn2")?;
        assert!(node.drained());
        assert_eq!(node.reason(), format!("railgate: {LOST}; reboot [epilog job={id}]"));

        // Prometheus gets a count of it.
        let page = cluster.read("ctl", "/var/lib/prom/railgate-controller.prom")?;
        let series: Vec<&str> = page.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(series, ["railgate_job_decisions_total{event=\"requeued\",check=\"gpu-lost\"} 1"]);

        // The job's own log and its report explain it.
        let why = format!("railgate: attempt 0 left node gn2, which failed while it ran: {LOST}");
        let fault =
            format!("railgate: hardware fault on gn2, not your program: {LOST} (railgate report {id})");
        let whole = format!("attempt 0 on gn[1-2]\n{fault}\n{why}\nattempt 1 on gn[1,3]\n");
        assert_eq!(log(cluster, "rgalice", id), whole);
        let told = one_line(&report(&alice, id)?);
        in_order(
            &told,
            &[
                "completed, 2 attempts",
                "attempt 0: hardware fault during the run (gn2)",
                "WHAT HAPPENED",
                "Xid 79 on GPU 3 (0000:61:00.0)",
                "the job ended: hardware fault during the run, exit code 3",
                "drained (epilog): railgate: gpu-lost@3",
                "railgate requeued the job: gpu-lost@3 on gn2; restart 1 of 3",
                "the job ended: completed, exit code 0",
                "ATTEMPT 0",
                "First, on gn2: gpu-lost@3",
                "ATTEMPT 1",
            ],
        );

        // No dependent job started between the attempts.
        for (job, file) in [(after_success, "seen-by-afterok"), (after_end, "seen-by-afterany")] {
            cluster.wait_job(job, &["COMPLETED"], MINUTE)?;
            assert_eq!(cluster.output(&format!("/home/rgalice/{file}")), Some(whole.clone()));
        }
        // Slurm's scheduler sets this reason in its next cycle.
        let never = |job: &Job| job.reason() == "DependencyNeverSatisfied";
        let never = cluster.wait_job_until(after_failure, "never to start", MINUTE, never)?;
        assert_eq!(never.state(), "PENDING");
        assert_eq!(cluster.output("/home/rgalice/seen-by-afternotok"), None);
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_single_array_task_and_a_whole_het_job_are_requeued() -> Result<()> {
    Builder::new(4).config(ALL_MAY_DRAIN)?.test(|cluster| {
        let alice = cluster.alice();
        let array = submit(&alice, &["-N1", "--gres=gpu:8", "--array=1-3"])?;
        let mut members = Vec::new();
        for task in 1..=3 {
            let name = format!("{array}_{task}");
            // Until a task runs, its job id may still be that of the array.
            let job = cluster.wait_job(&name, &["RUNNING"], MINUTE)?;
            let id: u32 = job.field("JobId").parse()?;
            members.push((name, id, started(cluster, id)?));
        }
        // The task whose job id is that of the whole array.
        let (name, id, node) = members.iter().find(|(_, id, _)| *id == array).unwrap();
        cluster.hardware(node)?.inject("gpu-lost@3")?;
        end(cluster, *id, 3)?;
        let job = cluster.wait_job(name, &["COMPLETED"], MINUTE)?;
        assert_eq!(job.restarts(), 1);
        assert_ne!(job.nodes(), node);
        for (name, id, node) in members.iter().filter(|(_, id, _)| *id != array) {
            let other = cluster.job(name)?;
            assert_eq!((other.state(), other.restarts(), other.nodes()), ("RUNNING", 0, node.as_str()));
            end(cluster, *id, 0)?;
            assert_eq!(cluster.wait_job(name, &["COMPLETED"], MINUTE)?.restarts(), 0);
        }
        assert!(cluster.node(node)?.reason().ends_with(&format!("[epilog job={id}]")));
        repair(cluster, node)?;

        let leader = submit(&alice, &["-N1", "--gres=gpu:8", ":", "-N1", "--gres=gpu:8"])?;
        started(cluster, leader)?;
        let bad = cluster.job(format!("{leader}+1"))?.nodes().to_owned();
        // The script waits only for the gates of its own component.
        poll::until(MINUTE, "the other component's gate to be through", || {
            let run = format!("/run/railgate/jobs/{}/current/run.json", leader + 1);
            Ok(cluster.read(&bad, &run).is_ok().then_some(()))
        })?;
        cluster.hardware(&bad)?.inject("gpu-lost@3")?;
        end(cluster, leader, 3)?;
        for component in [format!("{leader}"), format!("{leader}+1")] {
            let job = cluster.wait_job(component, &["COMPLETED"], MINUTE)?;
            assert_eq!(job.restarts(), 1);
            assert_ne!(job.nodes(), bad);
        }
        // Either component leads to the same report: one job, and the node that ended it.
        for id in [leader, leader + 1] {
            let told = report(&alice, id)?;
            let head =
                format!("job {leader} 'sbatch' (heterogeneous: {leader}, {}) on test: completed", leader + 1);
            assert!(told.starts_with(&head), "{told}");
            in_order(
                &told,
                &[
                    &format!("attempt 0: hardware fault during the run ({bad})"),
                    "Xid 79 on GPU 3",
                    &format!("railgate requeued the job: gpu-lost@3 on {bad}; restart 1 of 3"),
                ],
            );
        }
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_job_is_requeued_only_if_its_log_is_appended() -> Result<()> {
    Builder::new(4).config(ALL_MAY_DRAIN)?.slurm_conf("JobFileAppend", "0").test(|cluster| {
        let alice = cluster.alice();
        let variable = cluster.alice().env("SBATCH_OPEN_MODE", "append");
        let one = ["-N1", "--gres=gpu:8"];
        let jobs = [
            submit(&alice, &[&one[..], &["--open-mode=append"]].concat())?,
            submit(&variable, &one)?,
            submit(&alice, &one)?,
        ];
        for id in jobs {
            let node = started(cluster, id)?;
            cluster.hardware(&node)?.inject("gpu-lost@3")?;
            end(cluster, id, 3)?;
        }
        let [line, variable, nothing] = jobs;
        for id in [line, variable] {
            let job = cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
            assert_eq!(job.restarts(), 1);
            let log = log(cluster, "rgalice", id);
            in_order(&log, &["attempt 0 on ", "attempt 1 on gn4"]);
        }
        let job = cluster.wait_job(nothing, &["FAILED"], MINUTE)?;
        assert_eq!(job.restarts(), 0);
        let why = "a restart would truncate its log (submit with --open-mode=append)";
        in_order(&one_line(&report(&alice, nothing)?), &["hardware fault during the run", why]);
        Ok(())
    })
}
