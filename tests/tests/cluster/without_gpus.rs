//! Jobs without GPUs: their reports are as complete as those of others, and the same rules requeue them.

use std::path::Path;

use anyhow::{Result, ensure};
use railgate_tests::cluster::{Builder, Cluster, SLURM_ROOT, Session, slurm_release};
use railgate_tests::skipped;

use crate::training::{
    ALL_MAY_DRAIN, MINUTE, end, in_order, log, one_line, report, report_with, started, submit, submit_as,
};

/// Runs until the test ends it, without options for a requeue.
const WORK: &str =
    "echo attempt 0; until [ -s end.$SLURM_JOB_ID ]; do sleep 0.1; done; exit $(cat end.$SLURM_JOB_ID)";

/// A check of the site, and the fault that it detects.
const RAID: &str = "#!/bin/sh\n[ -e /run/broken ] || exit 0\necho 'CRITICAL - two disks missing'\nexit 2\n";

/// CPU nodes in a cluster that is configured to drain for that fault.
fn nodes(count: usize) -> Result<Builder> {
    let fatal = "profile = 'cpu'\n[gate]\nstrikes = 1\n[gate.checks.site.named.raid]\nworst = 'fail'\nphases = ['prolog', 'epilog']\n";
    let builder = Builder::new(count).hardware("cpu").config(ALL_MAY_DRAIN)?.config(fatal)?;
    Ok(builder.file("/etc/railgate/checks.d/raid.sh", RAID))
}

/// A script that starts its tasks as the templates do, with a program that the test kills.
const TEMPLATE: &str = "\
cat > program.$SLURM_JOB_ID <<'END'
echo attempt 0
until [ -s end.$SLURM_JOB_ID ]; do sleep 0.1; done
kill -9 $BASHPID
END
srun bash -c \"$(railgate template task)\" task \"bash program.$SLURM_JOB_ID\"
";

/// One of several processes is killed, and the script continues until an error of its own.
const GOES_ON: &str = "\
echo attempt 0
until [ -s end.$SLURM_JOB_ID ]; do sleep 0.1; done
sh -c 'kill -9 $$' || echo one of several was killed
exit $(cat end.$SLURM_JOB_ID)
";

/// Writes the two kernel records of a process of the job that was killed for its memory.
fn kills(cluster: &Cluster, node: &str, user: &Session<'_>, id: u32, whole_node: bool) -> Result<()> {
    let uid = user.run(&["id", "-u"])?.ok()?.trim().to_owned();
    let job = format!("/slurm_{node}/uid_{uid}/job_{id}");
    let (limit, begin) = match whole_node {
        true => {
            ("CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom".to_owned(), "Out of memory")
        }
        false => (
            format!("CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={job}"),
            "Memory cgroup out of memory",
        ),
    };
    let mut hardware = cluster.hardware(node)?;
    hardware.log_kernel_line(&format!(
        "oom-kill:constraint={limit},task_memcg={job}/step_0/task_0,task=python,pid=4711,uid={uid}"
    ))?;
    hardware.log_kernel_line(&format!(
        "{begin}: Killed process 4711 (python) total-vm:9kB, anon-rss:9kB, file-rss:0kB, shmem-rss:0kB, \
         UID:{uid} pgtables:4kB oom_score_adj:0"
    ))
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn every_end_has_a_verdict_a_decision_and_a_next_step() -> Result<()> {
    nodes(2)?.config_of("ctl", "requeue = { without_gpus = false }")?.test(|cluster| {
        let (alice, bob) = (cluster.alice(), cluster.bob());
        let plain = |script: &str| alice.sbatch(&["-n1", "-t10", "-o", "log.%j"], script);
        let (well, buggy, cancelled, late) = (plain(WORK)?, plain(WORK)?, plain(WORK)?, plain(WORK)?);
        let asked = submit(&alice, &["-n1", "-t10"])?;
        let memory = plain(TEMPLATE)?;
        let script = plain(GOES_ON)?;
        let crowded = plain(GOES_ON)?;
        let theirs = submit(&bob, &["-n1", "-t10"])?;
        for id in [well, buggy, cancelled, late, asked, memory, script, crowded, theirs] {
            started(cluster, id)?;
        }
        for (id, whole_node) in [(memory, false), (script, false), (crowded, true)] {
            kills(cluster, cluster.job(id)?.nodes(), &alice, id, whole_node)?;
        }
        let soon = [&format!("jobid={late}"), "EndTime=now+1"];
        cluster.root().run(&[&["scontrol", "update"], &soon[..]].concat())?.ok()?;
        alice.run(&["scancel", &cancelled.to_string()])?.ok()?;
        for (id, code) in
            [(well, 0), (buggy, 3), (asked, 3), (memory, 1), (script, 1), (crowded, 1), (theirs, 3)]
        {
            end(cluster, id, code)?;
        }
        let log = |id: u32| format!("read the last lines of /home/rgalice/log.{id}");
        let limit = "The job reached its memory limit, and the kernel killed one of its processes";
        let left = "the job was not requeued: ";
        let cases: [(u32, &str, &str, &[&str]); 8] = [
            (well, "COMPLETED", "completed", &[&format!("/home/rgalice/log.{well}")]),
            (buggy, "FAILED", "looks like the application", &[&log(buggy), left]),
            (
                asked,
                "FAILED",
                "looks like the application",
                &[
                    &log(asked),
                    left,
                    "this site restarts no jobs that asked for no GPU (requeue.without_gpus)",
                ],
            ),
            (memory, "FAILED", "out of memory", &[limit, "submit it with a larger --mem", left]),
            (script, "FAILED", "out of memory", &[limit, "submit it with a larger --mem", left]),
            (crowded, "FAILED", "out of memory", &["The node ran out of memory", "--mem", left]),
            (late, "TIMEOUT", "ran into its time limit", &["submit it with a longer --time"]),
            (cancelled, "CANCELLED", "cancelled", &[]),
        ];
        let mut wrong = String::new();
        for (id, state, title, parts) in cases {
            cluster.wait_job(id, &[state], MINUTE)?;
            let told = match parts.contains(&left) {
                true => report_with(&alice, id, left),
                false => report(&alice, id),
            }?;
            let line = one_line(&told);
            let head = format!("job {id} 'sbatch' on test: {title}");
            for part in std::iter::once(&head.as_str()).chain(parts) {
                if !line.contains(part) {
                    wrong.push_str(&format!("no '{part}' in:\n{told}\n"));
                }
            }
        }
        // A job beside those in which the kernel killed processes.
        cluster.wait_job(theirs, &["FAILED"], MINUTE)?;
        let told = report(&bob, theirs)?;
        assert!(
            told.starts_with(&format!("job {theirs} 'sbatch' on test: looks like the application")),
            "{told}"
        );
        ensure!(wrong.is_empty(), "{wrong}");
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_fault_of_the_whole_node_requeues_jobs_with_the_whole_node() -> Result<()> {
    nodes(6)?.test(|cluster| {
        let (alice, bob) = (cluster.alice(), cluster.bob());
        let whole = submit(&alice, &["-N1", "--exclusive"])?;
        let node = started(cluster, whole)?;
        let unasked = alice.sbatch(&["-N1", "--exclusive", "-o", "log.%j"], WORK)?;
        let unasked_node = started(cluster, unasked)?;
        let part = submit(&alice, &["-n1"])?;
        let part_node = started(cluster, part)?;
        let buggy = submit(&alice, &["-n1"])?;
        started(cluster, buggy)?;
        let beside = submit_as(&bob, &["-n1", "-w", &part_node], "echo attempt 0; sleep 600")?;
        started(cluster, beside)?;
        for broken in [&node, &unasked_node, &part_node] {
            cluster.root().on(broken).run(&["touch", "/run/broken"])?.ok()?;
        }
        for id in [whole, unasked, part] {
            end(cluster, id, 3)?;
        }
        cluster.wait_job(part, &["FAILED"], MINUTE)?;
        // The node is repaired but stays drained.
        cluster.root().on(&part_node).run(&["rm", "-f", "/run/broken"])?.ok()?;
        end(cluster, buggy, 3)?;
        cluster.wait_job(buggy, &["FAILED"], MINUTE)?;
        in_order(
            &one_line(&report_with(&alice, buggy, "the job was not requeued: ")?),
            &[
                ": looks like the application",
                "the job was not requeued: no node has evidence of a fault that ended it",
            ],
        );
        let fault = "site-raid";
        let job = cluster.wait_job(part, &["FAILED"], MINUTE)?;
        assert_eq!((job.restarts(), job.nodes()), (0, part_node.as_str()));
        let told = report_with(&alice, part, "the job was not requeued: ")?;
        in_order(
            &one_line(&told),
            &[
                "the job was not requeued: site-raid",
                &part_node,
                "does not count: unknown whether the job held the part",
            ],
        );
        cluster.wait_job(unasked, &["FAILED"], MINUTE)?;
        let told = report_with(&alice, unasked, "the job was not requeued: ")?;
        let option = "a restart was not asked for (#SBATCH --railgate-requeue=auto)";
        in_order(
            &one_line(&told),
            &["hardware fault during the run", &format!("the job was not requeued: {option}")],
        );

        let job = cluster.wait_job(whole, &["COMPLETED"], MINUTE)?;
        assert_eq!(job.restarts(), 1);
        assert_ne!(job.nodes(), node);
        let told = report_with(&alice, whole, "railgate requeued the job: ")?;
        in_order(
            &one_line(&told),
            &[
                "completed, 2 attempts",
                &format!("railgate requeued the job: {fault} on {node}; restart 1 of 3"),
            ],
        );
        assert!(cluster.node(&node)?.reason().ends_with(&format!("[epilog job={whole}]")));
        assert!(log(cluster, "rgalice", whole).contains("which failed while it ran: site-raid"));
        Ok(())
    })
}

/// If the machine has the memory controller of cgroup v1, a limit causes a real kill. What Slurm then records depends on the
/// process that was killed.
#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn slurms_record_of_a_step_shows_the_oom_kill() -> Result<()> {
    let release = slurm_release(Path::new(&std::env::var_os(SLURM_ROOT).unwrap_or_else(|| "/".into())))?;
    if release >= (23, 11) || !Path::new("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists() {
        return skipped("no memory controller of cgroup v1, or a Slurm without its plugin");
    }
    let builder = nodes(1)?
        .slurm_conf("TaskPlugin", "task/cgroup")
        .slurm_conf("SelectTypeParameters", "CR_Core_Memory")
        .file(
            "/etc/slurm/cgroup.conf",
            "CgroupPlugin=cgroup/v1\nCgroupAutomount=yes\nConstrainRAMSpace=yes\n",
        );
    builder.test(|cluster| {
        let told = of_real_limits(cluster);
        // The control groups are those of the machine, and outlive the cluster.
        cluster.kill_slurmd("gn1")?;
        let groups = "find /sys/fs/cgroup/memory/slurm_gn1 -depth -type d -exec rmdir {} \\;";
        cluster.root().on("gn1").run(&["sh", "-c", groups])?.ok()?;
        told
    })
}

fn of_real_limits(cluster: &Cluster) -> Result<()> {
    let alice = cluster.alice();
    let eat = "head -c 400m /dev/zero | tail > /dev/null";
    // srun returns 1 and the job is FAILED; the batch step itself is killed; the script continues and completes.
    let template = format!("srun bash -c \"$(railgate template task)\" task \"{eat}\"");
    let cases = [
        (template, "FAILED", "out of memory"),
        (format!("srun sh -c '{eat}' || exit 7"), "FAILED", "out of memory"),
        (format!("{eat}; exit 3"), "OUT_OF_MEMORY", "out of memory"),
        // The step has a smaller limit than the job: at the job's own limit Slurm counts it against the script as well.
        (format!("srun --mem=40 sh -c '{eat}'; exit 0"), "COMPLETED", "completed"),
    ];
    for (script, state, title) in cases {
        let id = alice.sbatch(&["-n1", "--mem=120", "-o", "log.%j"], &script)?;
        cluster.wait_job(id, &[state], MINUTE)?;
        let told = report(&alice, id)?;
        ensure!(told.starts_with(&format!("job {id} 'sbatch' on test: {title}")), "{script}: {told}");
        let step = "submit it with a larger --mem (this run asked for 120M per node)";
        ensure!(title == "completed" || one_line(&told).contains(step), "{script}: {told}");
    }
    Ok(())
}
