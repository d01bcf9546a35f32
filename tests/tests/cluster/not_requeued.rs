//! Jobs that must not be requeued: failures of their own program, and ends that a user or an admin wanted.

use anyhow::Result;
use railgate_tests::cluster::Builder;

use crate::training::{ALL_MAY_DRAIN, MINUTE, end, in_order, one_line, report, started, submit, submit_as};

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_job_whose_program_failed_is_not_requeued() -> Result<()> {
    Builder::new(4).config(ALL_MAY_DRAIN)?.test(|cluster| {
        let alice = cluster.alice();
        let mut jobs = Vec::new();
        for _ in cluster.nodes() {
            let id = submit(&alice, &["-N1", "--gres=gpu:8"])?;
            jobs.push((id, started(cluster, id)?));
        }
        let [(plain, _), (own_xids, second), (memory, third), (other, fourth)] = jobs.as_slice() else {
            unreachable!("four nodes");
        };
        for code in [13, 31, 43] {
            cluster.hardware(second)?.xid(2, code, Some(4711))?;
        }
        let uid = alice.run(&["id", "-u"])?.ok()?;
        cluster.hardware(third)?.log_kernel_line(&format!(
            "Memory cgroup out of memory: Killed process 4711 (python) total-vm:812345678kB, anon-rss:524288000kB, \
             file-rss:0kB, shmem-rss:0kB, UID:{} pgtables:4096kB oom_score_adj:0",
            uid.trim()
        ))?;
        // Readings that are not faults: corrected errors, and an unknown Xid.
        cluster.hardware(fourth)?.xid(1, 9999, None)?;
        end(cluster, *plain, 3)?;
        end(cluster, *own_xids, 3)?;
        end(cluster, *memory, 137)?;
        end(cluster, *other, 3)?;
        let why = [
            ("looks like the application", "no hardware Xid, no new uncorrectable memory error, no link"),
            ("looks like the application", "The driver reports an error of the program (Xid 13, 31, 43)."),
            ("out of memory", "The kernel killed a process because memory ran out"),
            ("could not tell", "the driver reported Xid 9999, which railgate does not know"),
        ];
        for ((id, node), (title, why)) in jobs.iter().zip(why) {
            let job = cluster.wait_job(id, &["FAILED"], MINUTE)?;
            assert_eq!((job.restarts(), job.nodes()), (0, node.as_str()));
            assert!(!cluster.node(node)?.drained());
            let told = report(&alice, *id)?;
            assert!(told.starts_with(&format!("job {id} 'sbatch' on test: {title}")), "{told}");
            let left = "the job was not requeued: no node has evidence of a fault that ended it";
            in_order(&one_line(&told), &[why, "WHAT HAPPENED", left]);
        }
        Ok(())
    })
}

const LOST: &str = "gpu-lost@3: 0000:61:00.0 off bus, Xid 79";
const CONTROLLERS_LOG: &str = "/var/lib/railgate/controller/epilog-ctld.log";

/// A program that catches the signal and exits with an error.
const DEFIANT: &str = "\
trap 'exit 7' TERM
echo attempt ${SLURM_RESTART_COUNT:-0} on $SLURM_JOB_NODELIST
[ ${SLURM_RESTART_COUNT:-0} = 0 ] || exit 0
until [ -s end.$SLURM_JOB_ID ]; do sleep 0.1; done
exit $(cat end.$SLURM_JOB_ID)
";

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_cancelled_job_is_not_requeued_even_if_its_node_fails() -> Result<()> {
    let builder = Builder::new(4)
        .config(ALL_MAY_DRAIN)?
        .slurm_conf("PreemptType", "preempt/partition_prio")
        .slurm_conf("PreemptMode", "CANCEL")
        .slurm_conf("PartitionName=urgent Nodes", "ALL PriorityTier=10");
    builder.test(|cluster| {
        let (alice, root) = (cluster.alice(), cluster.root());
        let mut jobs = Vec::new();
        for _ in cluster.nodes() {
            let id = submit_as(&alice, &["-N1", "--gres=gpu:8", "--time=10"], DEFIANT)?;
            let node = started(cluster, id)?;
            cluster.hardware(&node)?.inject("gpu-lost@3")?;
            jobs.push((id, node));
        }
        let [(cancelled, _), (completed, _), (timed_out, _), (_, taken)] = jobs.as_slice() else {
            unreachable!("four nodes");
        };
        let soon = [&format!("jobid={timed_out}"), "EndTime=now+1"];
        root.run(&[&["scontrol", "update"], &soon[..]].concat())?.ok()?;
        alice.run(&["scancel", &cancelled.to_string()])?.ok()?;
        end(cluster, *completed, 0)?;
        let urgent = ["-p", "urgent", "-w", taken, "--gres=gpu:8", "-o", "/dev/null"];
        cluster.bob().sbatch(&urgent, "true")?;
        for ((id, node), state) in jobs.iter().zip(["CANCELLED", "COMPLETED", "TIMEOUT", "PREEMPTED"]) {
            let job = cluster.wait_job(id, &[state], MINUTE)?;
            assert_eq!((job.restarts(), job.nodes()), (0, node.as_str()));
            // The node is drained independently of the job.
            let bad = cluster.wait_node(node, "drained", MINUTE, |node| node.drained())?;
            assert_eq!(bad.reason(), format!("railgate: {LOST}; reboot [epilog job={id}]"));
            let told = report(&alice, *id)?;
            assert!(told.contains("Xid 79 on GPU 3") && !told.contains("requeued"), "{told}");
        }
        // There are no decisions about jobs with exit code 0.
        let log = cluster.read("ctl", CONTROLLERS_LOG).unwrap_or_default();
        assert!(log.is_empty(), "{log}");
        Ok(())
    })
}
