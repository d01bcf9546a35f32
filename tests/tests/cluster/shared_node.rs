//! Jobs that share a node: each is requeued only for faults of its own devices.

use anyhow::Result;
use railgate_tests::cluster::{Builder, Cluster, Session};

use crate::training::{ALL_MAY_DRAIN, MINUTE, end, in_order, log, one_line, report, started, submit};

const ADMINS: &str = "bad DIMM, ticket 4711";

/// Submits a job on four GPUs; returns its id and node.
fn half_a_node(cluster: &Cluster, user: &Session<'_>) -> Result<(u32, String)> {
    let id = submit(user, &["-N1", "--gres=gpu:4"])?;
    Ok((id, started(cluster, id)?))
}

/// Two jobs that fill a node, the first one on GPUs 0 to 3.
fn pair(cluster: &Cluster) -> Result<(u32, u32, String)> {
    let (first, node) = half_a_node(cluster, &cluster.alice())?;
    let (second, other) = half_a_node(cluster, &cluster.bob())?;
    assert_eq!(node, other);
    Ok((first, second, node))
}

fn came_back_from(cluster: &Cluster, id: u32, node: &str) -> Result<()> {
    let job = cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
    assert_eq!(job.restarts(), 1);
    assert_ne!(job.nodes(), node);
    Ok(())
}

fn stayed(cluster: &Cluster, id: u32, state: &str, node: &str) -> Result<()> {
    let job = cluster.wait_job(id, &[state], MINUTE)?;
    assert_eq!((job.restarts(), job.nodes()), (0, node));
    Ok(())
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_fault_requeues_only_the_jobs_it_affected() -> Result<()> {
    Builder::new(6).config(ALL_MAY_DRAIN)?.test(|cluster| {
        let (alice, bob) = (cluster.alice(), cluster.bob());
        let (one, two, both_hit) = pair(cluster)?;
        let (hit, buggy, one_hit) = pair(cluster)?;
        let (dead, alive, later) = pair(cluster)?;
        let (theirs, well, admins) = pair(cluster)?;

        // A fault that affects both jobs, for example of the root port above GPU 2 and GPU 5.
        cluster.hardware(&both_hit)?.inject("gpu-lost@2")?;
        cluster.hardware(&both_hit)?.inject("gpu-lost@5")?;
        // A fault that affects one job, while the other one's program fails.
        cluster.hardware(&one_hit)?.inject("gpu-lost@1")?;
        // A fault that affects one job, while the other continues.
        cluster.hardware(&later)?.inject("gpu-lost@3")?;
        // A fault on a node that an admin is already draining.
        let node = format!("nodename={admins}");
        let reason = format!("reason={ADMINS}");
        cluster.root().run(&["scontrol", "update", &node, "state=drain", &reason])?.ok()?;
        cluster.hardware(&admins)?.inject("gpu-lost@0")?;
        for id in [one, two, hit, buggy, dead, theirs] {
            end(cluster, id, 3)?;
        }

        came_back_from(cluster, one, &both_hit)?;
        came_back_from(cluster, two, &both_hit)?;
        came_back_from(cluster, hit, &one_hit)?;
        stayed(cluster, buggy, "FAILED", &one_hit)?;
        came_back_from(cluster, dead, &later)?;
        came_back_from(cluster, theirs, &admins)?;

        let reason = |node: &str| cluster.node(node).map(|node| node.reason().to_owned());
        // Either epilog can be first.
        let both = reason(&both_hit)?;
        assert!(
            both.ends_with(&format!("[epilog job={one},{two}]"))
                || both.ends_with(&format!("[epilog job={two},{one}]")),
            "{both}"
        );
        assert!(reason(&one_hit)?.ends_with(&format!("[epilog job={hit}]")));
        assert!(reason(&later)?.ends_with(&format!("[epilog job={dead}]")));
        assert_eq!(reason(&admins)?, ADMINS);

        for id in [alive, well] {
            assert_eq!((cluster.job(id)?.state(), cluster.job(id)?.restarts()), ("RUNNING", 0));
        }
        end(cluster, alive, 0)?;
        end(cluster, well, 3)?;
        stayed(cluster, alive, "COMPLETED", &later)?;
        stayed(cluster, well, "FAILED", &admins)?;
        assert!(reason(&later)?.ends_with(&format!("[epilog job={dead}]")));
        assert_eq!(reason(&admins)?, ADMINS);

        let told = report(&alice, one)?;
        in_order(&one_line(&told), &["Xid 79 on GPU 2", "Xid 79 on GPU 5", "which this job does not use"]);
        in_order(&told, &[&format!("railgate requeued the job: gpu-lost@2 on {both_hit}; restart 1 of 3")]);
        // The node's reason names both GPUs, and each job's report its own.
        let json = alice.run(&["railgate", "report", &one.to_string(), "--format", "json"])?.ok()?;
        assert!(json.contains(&format!("[epilog job={one}]")), "{json}");
        assert!(!json.contains(&format!("{one},{two}")) && !json.contains(&format!("{two},{one}")), "{json}");
        let told = report(&bob, buggy)?;
        let head = format!("job {buggy} 'sbatch' on test: looks like the application");
        assert!(told.starts_with(&head), "{told}");
        let not_its = "Nothing that it used on the node points at hardware";
        in_order(&one_line(&told), &[not_its, "Xid 79 on GPU 1", "which this job does not use"]);
        let told = report(&alice, theirs)?;
        in_order(
            &one_line(&told),
            &[&format!("already drained by others (epilog): {ADMINS}"), "requeued the job"],
        );
        let why = format!("attempt 0 left node {admins}, which failed while it ran: gpu-lost@0: ");
        assert!(log(cluster, "rgalice", theirs).contains(&why));
        Ok(())
    })
}

/// The kernel kills a process of Bob's job. The program of Alice's job on the same node fails.
#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn an_oom_kill_in_one_job_is_not_the_verdict_of_the_other() -> Result<()> {
    Builder::new(1).test(|cluster| {
        let (alice, bob) = (cluster.alice(), cluster.bob());
        let (buggy, hungry, node) = pair(cluster)?;
        let uid = bob.run(&["id", "-u"])?.ok()?.trim().to_owned();
        let path = format!("/slurm_{node}/uid_{uid}/job_{hungry}");
        let mut hardware = cluster.hardware(&node)?;
        hardware.log_kernel_line(&format!(
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={path},\
             task_memcg={path}/step_0,task=bobsprogram,pid=770077,uid={uid}"
        ))?;
        hardware.log_kernel_line(&format!(
            "Memory cgroup out of memory: Killed process 770077 (bobsprogram) total-vm:9kB, anon-rss:9kB, \
             file-rss:0kB, shmem-rss:0kB, UID:{uid} pgtables:4kB oom_score_adj:0"
        ))?;
        hardware.xid(6, 31, Some(770_077))?;
        for id in [buggy, hungry] {
            end(cluster, id, 1)?;
            cluster.wait_job(id, &["FAILED"], MINUTE)?;
        }
        let told = report(&alice, buggy)?;
        let head = format!("job {buggy} 'sbatch' on test: looks like the application");
        assert!(told.starts_with(&head), "{told}");
        let json = alice.run(&["railgate", "report", &buggy.to_string(), "--format", "json"])?.ok()?;
        for foreign in ["bobsprogram", "770077", &format!("uid_{uid}"), &format!("job_{hungry}")] {
            assert!(!json.contains(foreign), "{foreign} in {json}");
        }
        let told = report(&bob, hungry)?;
        let head = format!("job {hungry} 'sbatch' on test: out of memory");
        assert!(told.starts_with(&head), "{told}");
        Ok(())
    })
}
