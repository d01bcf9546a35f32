//! `railgate launch`: nodes that fail under a running job, and a spare in their place; ends that are no fault of a node.

use std::time::Duration;

use anyhow::{Context as _, Result};
use railgate_tests::cluster::{Builder, CONTROLLER, Cluster, Job};
use railgate_tests::hang::RANK;
use railgate_tests::poll;

use crate::guard::{CONFIG, with_gpm};

const LEDGER: &str = "/var/lib/railgate/controller/ledger.jsonl";
const MINUTE: Duration = Duration::from_secs(60);
/// A rank writes where it runs, waits for `/shared/go`, and then does what `/shared/RANK.START` holds, if that exists.
const PROGRAM: &str = r#"#!/bin/bash
echo "start $RAILGATE_START rank $SLURM_PROCID of $SLURM_NTASKS on $SLURMD_NODENAME, master $MASTER_ADDR:$MASTER_PORT"
trap 'exit 143' TERM
touch /shared/begun.$SLURM_PROCID.$RAILGATE_START
until [ -e /shared/go.$RAILGATE_START ]; do sleep 0.1; done
[ ! -e /shared/do.$SLURM_PROCID.$RAILGATE_START ] || . /shared/do.$SLURM_PROCID.$RAILGATE_START
"#;

/// A job with `railgate launch` and these options.
fn launch(cluster: &Cluster, sbatch: &[&str], options: &str) -> Result<u32> {
    launch_after(cluster, ":", sbatch, options)
}

/// The same, with commands of the batch script before it.
fn launch_after(cluster: &Cluster, before: &str, sbatch: &[&str], options: &str) -> Result<u32> {
    cluster.write(CONTROLLER, "/shared/program", PROGRAM)?;
    let script = format!(
        "{before}; railgate launch {options} -- bash /shared/program; code=$?; echo \"exit code $code\"; exit $code"
    );
    let words = [&["--gres=gpu:8", "--ntasks-per-node=1", "-o", "log"], sbatch].concat();
    cluster.alice().sbatch(&words, &script)
}

fn log(cluster: &Cluster) -> String {
    cluster.output("/home/rgalice/log").unwrap_or_default()
}

/// Waits until all ranks of a start run.
fn begun(cluster: &Cluster, start: u32, ranks: u32) -> Result<()> {
    poll::until(MINUTE, &format!("start {start}"), || {
        let has = |rank| cluster.output(&format!("/shared/begun.{rank}.{start}")).is_some();
        Ok((0..ranks).all(has).then_some(()))
    })
    .with_context(|| log(cluster))
}

fn go(cluster: &Cluster, start: u32) -> Result<()> {
    cluster.write(CONTROLLER, &format!("/shared/go.{start}"), "")
}

/// What a rank does when it goes.
fn does(cluster: &Cluster, rank: u32, start: u32, what: &str) -> Result<()> {
    cluster.write(CONTROLLER, &format!("/shared/do.{rank}.{start}"), what)
}

fn ended(cluster: &Cluster, job: u32, state: &str) -> Result<Job> {
    cluster.wait_job(job, &[state], 2 * MINUTE).with_context(|| log(cluster))
}

/// Where each rank of a start ran.
fn places(log: &str, start: u32) -> Vec<(u32, String)> {
    let line = |line: &str| {
        let rest = line.strip_prefix(&format!("start {start} rank "))?;
        let (rank, rest) = rest.split_once(" of ")?;
        let node = rest.split_once(" on ")?.1.split_once(',')?.0;
        Some((rank.parse().ok()?, node.to_owned()))
    };
    let mut found: Vec<(u32, String)> = log.lines().filter_map(line).collect();
    found.sort();
    found
}

fn on(nodes: &[&str]) -> Vec<(u32, String)> {
    (0..).zip(nodes.iter().map(|node| (*node).to_owned())).collect()
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_spare_takes_the_place_of_a_node_whose_gpu_is_lost() -> Result<()> {
    Builder::new(4).test(|cluster| {
        let job = launch(cluster, &["-N4"], "--spares 1")?;
        begun(cluster, 0, 3)?;
        cluster.hardware("gn2")?.inject("gpu-lost@3")?;
        does(cluster, 1, 0, "exit 1")?;
        go(cluster, 0)?;
        begun(cluster, 1, 3)?;
        go(cluster, 1)?;
        ended(cluster, job, "COMPLETED")?;
        let log = log(cluster);
        assert_eq!(places(&log, 0), on(&["gn1", "gn2", "gn3"]), "{log}");
        assert_eq!(places(&log, 1), on(&["gn1", "gn4", "gn3"]), "{log}");
        // By root's check, or by its drain where Slurm shows that already.
        assert!(log.contains("gn2 is left out: ") && log.contains("gpu-lost@3: "), "{log}");
        assert!(log.contains("; gn4 takes the place of gn2; 2 of 3 restarts left"), "{log}");
        assert!(cluster.node("gn2")?.reason().starts_with("railgate: gpu-lost@3: "));
        let restarted = poll::until(MINUTE, "the restart in the ledger", || {
            let ledger = cluster.read(CONTROLLER, LEDGER).unwrap_or_default();
            Ok(ledger.lines().find(|line| line.contains("\"event\":\"restarted\"")).map(str::to_owned))
        })?;
        assert!(restarted.contains("1 restart in the same allocation, self-reported: gn2"), "{restarted}");
        assert!(restarted.contains("\"blamed\":[]"), "{restarted}");
        Ok(())
    })
}

/// Two leaf switches, of which neighbours in Slurm's order never share one.
const TWO_LEAFS: &str = "SwitchName=odd Nodes=gn[1,3,5,7]\nSwitchName=even Nodes=gn[2,4,6,8]\nSwitchName=spine Switches=odd,even\n";

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn ranks_of_eight_nodes_follow_the_leafs_and_a_spare_of_the_same_leaf_is_taken() -> Result<()> {
    let builder = Builder::new(8).file("/etc/slurm/topology.conf", TWO_LEAFS);
    builder.slurm_conf("TopologyPlugin", "topology/tree").test(|cluster| {
        let job = launch(cluster, &["-N8"], "--spares 2")?;
        begun(cluster, 0, 6)?;
        cluster.hardware("gn4")?.inject("gpu-lost@3")?;
        does(cluster, 5, 0, "exit 1")?;
        go(cluster, 0)?;
        begun(cluster, 1, 6)?;
        go(cluster, 1)?;
        ended(cluster, job, "COMPLETED")?;
        let log = log(cluster);
        assert_eq!(places(&log, 0), on(&["gn1", "gn3", "gn5", "gn7", "gn2", "gn4"]), "{log}");
        assert_eq!(places(&log, 1), on(&["gn1", "gn3", "gn5", "gn7", "gn2", "gn6"]), "{log}");
        Ok(())
    })
}

/// The prolog has found the node fit, and its first step finds the fault.
#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_node_that_becomes_unfit_before_the_first_step_is_left_out() -> Result<()> {
    Builder::new(4).test(|cluster| {
        let wait = "touch /shared/ready; until [ -e /shared/launch ]; do sleep 0.1; done";
        let job = launch_after(cluster, wait, &["-N4"], "--spares 1")?;
        poll::until(MINUTE, "the batch script", || Ok(cluster.output("/shared/ready")))?;
        cluster.hardware("gn2")?.inject("gpu-lost@3")?;
        does(cluster, 1, 0, "exit 1")?;
        go(cluster, 0)?;
        go(cluster, 1)?;
        cluster.write(CONTROLLER, "/shared/launch", "")?;
        ended(cluster, job, "COMPLETED")?;
        let log = log(cluster);
        assert_eq!(places(&log, 1), on(&["gn1", "gn4", "gn3"]), "{log}");
        assert!(log.contains("gn2 is left out: ") && log.contains("gpu-lost@3: "), "{log}");
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_spare_takes_the_place_of_a_node_that_dies() -> Result<()> {
    Builder::new(4).slurm_conf("SlurmdTimeout", "10").test(|cluster| {
        let job = launch(cluster, &["-N4", "--no-kill"], "--spares 1")?;
        begun(cluster, 0, 3)?;
        cluster.kill_node("gn3")?;
        begun(cluster, 1, 3)?;
        go(cluster, 1)?;
        ended(cluster, job, "COMPLETED")?;
        let log = log(cluster);
        assert_eq!(places(&log, 1), on(&["gn1", "gn2", "gn4"]), "{log}");
        assert!(log.contains("gn3 is left out: DOWN"), "{log}");
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_spare_takes_the_place_of_a_node_that_is_cut_off() -> Result<()> {
    Builder::new(4).slurm_conf("SlurmdTimeout", "10").test(|cluster| {
        let job = launch(cluster, &["-N4", "--no-kill"], "--spares 1")?;
        begun(cluster, 0, 3)?;
        // Its ranks continue, and cannot reach the other nodes.
        cluster.cut_link("gn3")?;
        begun(cluster, 1, 3)?;
        cluster.mend_link("gn3")?;
        go(cluster, 1)?;
        ended(cluster, job, "COMPLETED")?;
        let log = log(cluster);
        assert_eq!(places(&log, 1), on(&["gn1", "gn2", "gn4"]), "{log}");
        assert!(log.contains("gn3 is left out: DOWN"), "{log}");
        let processes = || cluster.root().on("gn3").run(&["pgrep", "-fc", "/shared/program"]);
        poll::until(MINUTE, "the ranks of the first start to end on gn3", || {
            Ok((processes()?.stdout.trim() == "0").then_some(()))
        })
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_hang_that_the_guard_ends_is_started_again_and_its_unfit_node_left_out() -> Result<()> {
    let builder = Builder::new(6).config(CONFIG)?.file("/usr/local/bin/rank", RANK);
    builder.test(|cluster| {
        with_gpm(cluster)?;
        let submit = |nodes: &str, play: &str| {
            let words = ["-N3", "-w", nodes, "--ntasks-per-node=2", "--gres=gpu:2", "-o", "log.%j"];
            let words = [&words[..], &["--railgate-hang=end,after=30s", "--railgate-requeue=auto"]].concat();
            let user = cluster.alice().env("PLAY", play).env("QUIT", "3");
            user.sbatch(&words, "railgate launch --spares 1 -- srun --label rank")
        };
        let left = submit("gn[1-3]", "leaves")?;
        let stopped = submit("gn[4-6]", "stops")?;
        let log = |id: u32| cluster.output(&format!("/home/rgalice/log.{id}")).unwrap_or_default();
        poll::until(2 * MINUTE, "the ranks to work", || {
            Ok(log(stopped).contains("rank 3 at work, attempt 0").then_some(()))
        })?;
        // A GPU of the node that the job does not use.
        cluster.hardware("gn5")?.inject("gpu-lost@3")?;
        for (id, restarted) in
            [(left, "the job hung, and the guard ended it"), (stopped, "gn5 is left out: ")]
        {
            cluster.wait_job(id, &["COMPLETED"], 4 * MINUTE).with_context(|| log(id))?;
            let log = log(id);
            assert!(log.contains(restarted) && log.contains("rank 3 at work, attempt 1"), "{log}");
            assert!(!log.contains("start 2 on"), "{log}");
        }
        let report = cluster.alice().run(&["railgate", "report", &stopped.to_string()])?.ok()?;
        assert!(
            report.contains("START    start 0 at ") && report.contains("gn6 takes the place of gn5"),
            "{report}"
        );
        Ok(())
    })
}

/// Hangs in its first start. In the second one it fails of its own, after the guard has recorded that start.
const FAILS_AGAIN: &str = r#"#!/bin/bash
[[ $RAILGATE_START == 0 ]] && exec rank
until scontrol show nodes | grep -q "$SLURM_JOB_ID restarted"; do sleep 1; done
exit 3
"#;

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_start_that_fails_of_its_own_after_a_hang_was_ended_is_not_requeued() -> Result<()> {
    let files = |builder: Builder| {
        builder.file("/usr/local/bin/rank", RANK).file("/usr/local/bin/fails-again", FAILS_AGAIN)
    };
    files(Builder::new(2).config(CONFIG)?).test(|cluster| {
        with_gpm(cluster)?;
        let words = ["-N2", "--ntasks-per-node=2", "--gres=gpu:2", "-o", "log.%j"];
        let words = [&words[..], &["--railgate-hang=end,after=30s", "--railgate-requeue=auto"]].concat();
        let user = cluster.alice().env("PLAY", "leaves").env("QUIT", "3");
        let id = user.sbatch(&words, "railgate launch -- srun --label fails-again")?;
        let log = || cluster.output(&format!("/home/rgalice/log.{id}")).unwrap_or_default();
        let job = cluster.wait_job(id, &["FAILED"], 4 * MINUTE).with_context(log)?;
        let log = log();
        assert!(
            log.contains("the job hung, and the guard ended it") && log.contains("start 1 ended"),
            "{log}"
        );
        let decision = poll::until(MINUTE, "the decision about the job", || {
            Ok(cluster.output(&format!("/shared/railgate/test/{id}/0/decision.json")))
        })?;
        let decision: serde_json::Value = serde_json::from_str(&decision)?;
        assert_eq!(decision["what"], "left", "{decision}");
        assert_eq!(job.restarts(), 0);
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_program_that_fails_on_fit_nodes_is_not_started_again() -> Result<()> {
    Builder::new(3).test(|cluster| {
        let job = launch(cluster, &["-N3"], "--spares 1 --retry-unknown 1")?;
        begun(cluster, 0, 2)?;
        let error = "echo 'Traceback (most recent call last):' >&2; echo '  File \"train.py\", line 88, in <module>' >&2; \
                     echo 'ValueError: bad batch' >&2; exit 1";
        does(cluster, 1, 0, error)?;
        go(cluster, 0)?;
        ended(cluster, job, "FAILED")?;
        let log = log(cluster);
        assert!(log.contains("all nodes are fit: the program's own error; first error: "), "{log}");
        assert!(log.contains("ValueError: bad batch"), "{log}");
        // Node reports, which a group may read, have no text of the log.
        let reports = format!("cat /shared/railgate/test/{job}/0/*.json");
        let reports = cluster.root().run(&["sh", "-c", &reports])?.ok()?;
        assert!(reports.contains("all nodes are fit: the program's own error\""), "{reports}");
        assert!(!reports.contains("bad batch"), "{reports}");
        // srun returns the highest code, and it may have ended rank 0 before that had ended by itself.
        assert!(["1", "143"].iter().any(|code| log.contains(&format!("\nexit code {code}\n"))), "{log}");
        assert!(places(&log, 1).is_empty(), "{log}");
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_rank_that_leaves_with_0_is_no_fault_of_a_node() -> Result<()> {
    Builder::new(3).test(|cluster| {
        let job = launch(cluster, &["-N3"], "--spares 1 --retry-unknown 1")?;
        begun(cluster, 0, 2)?;
        does(cluster, 1, 0, "touch /shared/left; exit 0")?;
        // As its watchdog ends a rank whose peer does not answer.
        does(cluster, 0, 0, "until [ -e /shared/left ]; do sleep 0.1; done; sleep 5; exit 6")?;
        go(cluster, 0)?;
        ended(cluster, job, "FAILED")?;
        let log = log(cluster);
        assert!(log.contains("with exit code 6: all nodes are fit: the program's own error"), "{log}");
        assert!(places(&log, 1).is_empty(), "{log}");
        for node in cluster.nodes() {
            assert_eq!(cluster.node(node)?.reason(), "", "{node}");
        }
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn two_faults_use_two_spares_and_a_third_ends_the_job() -> Result<()> {
    Builder::new(4).test(|cluster| {
        let job = launch(cluster, &["-N4"], "--spares 2")?;
        for (start, node, rank) in [(0, "gn1", 0), (1, "gn2", 1), (2, "gn3", 0)] {
            begun(cluster, start, 2)?;
            // The batch host's own GPUs as well: the script goes on there.
            cluster.hardware(node)?.inject("gpu-lost@3")?;
            does(cluster, rank, start, "exit 1")?;
            go(cluster, start)?;
        }
        ended(cluster, job, "FAILED")?;
        let log = log(cluster);
        let ran: Vec<_> = (0..3).map(|start| places(&log, start)).collect();
        assert_eq!(ran, [on(&["gn1", "gn2"]), on(&["gn3", "gn2"]), on(&["gn3", "gn4"])], "{log}");
        assert!(log.contains("gn3 is left out: ") && log.contains("no spare is left"), "{log}");
        let report = cluster.alice().run(&["railgate", "report", &job.to_string()])?.ok()?;
        assert!(
            report.contains("start 1 at ") && report.contains("2 restarts inside the allocation"),
            "{report}"
        );
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_job_that_slurm_or_its_owner_ends_is_not_started_again() -> Result<()> {
    let builder = Builder::new(2)
        .slurm_conf("PreemptType", "preempt/partition_prio")
        .slurm_conf("PreemptMode", "CANCEL")
        // Time to print why before Slurm kills it, on a busy machine too.
        .slurm_conf("KillWait", "30")
        .slurm_conf("PartitionName=urgent Nodes", "ALL PriorityTier=10");
    builder.test(|cluster| {
        for (limit, state) in [("10", "CANCELLED"), ("1", "TIMEOUT"), ("10", "PREEMPTED")] {
            cluster.root().run(&["sh", "-c", "rm -f /shared/begun.* /home/rgalice/log"])?.ok()?;
            let job = launch(cluster, &["-N2", "-t", limit], "--spares 1 --retry-unknown 3")?;
            begun(cluster, 0, 1)?;
            match state {
                "CANCELLED" => drop(cluster.alice().run(&["scancel", &job.to_string()])?.ok()?),
                "PREEMPTED" => {
                    let urgent = ["-p", "urgent", "-w", "gn2", "--gres=gpu:8", "-o", "/dev/null"];
                    cluster.bob().sbatch(&urgent, "true")?;
                }
                _ => {}
            }
            cluster.wait_job(job, &[state], 4 * MINUTE).with_context(|| log(cluster))?;
            let log = log(cluster);
            assert!(!log.contains("start 1 on") && places(&log, 1).is_empty(), "{state}: {log}");
            let says = ["Slurm ends the job (", "launch received SIGTERM"];
            assert!(says.iter().any(|says| log.contains(says)), "{state}: {log}");
        }
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_program_may_continue_on_fewer_nodes() -> Result<()> {
    Builder::new(3).test(|cluster| {
        let job = launch(cluster, &["-N3"], "--min-nodes 2")?;
        begun(cluster, 0, 3)?;
        cluster.hardware("gn2")?.inject("gpu-lost@3")?;
        does(cluster, 1, 0, "exit 1")?;
        go(cluster, 0)?;
        begun(cluster, 1, 2)?;
        go(cluster, 1)?;
        ended(cluster, job, "COMPLETED")?;
        let log = log(cluster);
        assert_eq!(places(&log, 1), on(&["gn1", "gn3"]), "{log}");
        assert!(log.contains("; 2 nodes are left; 2 of 3 restarts left"), "{log}");
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_fault_is_judged_once_slurmctld_answers_again() -> Result<()> {
    Builder::new(3).test(|cluster| {
        let job = launch(cluster, &["-N3"], "--spares 1")?;
        begun(cluster, 0, 2)?;
        cluster.hardware("gn2")?.inject("gpu-lost@3")?;
        cluster.stop_slurmctld()?;
        does(cluster, 1, 0, "exit 1")?;
        go(cluster, 0)?;
        // In 26.05 slurmstepd sends the end to slurmctld before srun, and retries.
        let is_retried = || {
            let log = cluster.root().on("gn2").run(&["cat", "/var/log/slurm/slurmd.log"])?.stdout;
            Ok::<_, anyhow::Error>(log.contains("failed sending step completion message"))
        };
        let rank_ended = || {
            let is_known = log(cluster).contains("Exited with exit code 1") || is_retried()?;
            Ok(is_known.then_some(()))
        };
        poll::until(2 * MINUTE, "the end of a rank", rank_ended)?;
        cluster.start_slurmctld()?;
        begun(cluster, 1, 2)?;
        go(cluster, 1)?;
        ended(cluster, job, "COMPLETED")?;
        assert_eq!(places(&log(cluster), 1), on(&["gn1", "gn3"]), "{}", log(cluster));
        Ok(())
    })
}
