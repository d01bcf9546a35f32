//! Jobs that hang, and jobs that only look like it: eight ranks on a node, with collectives that NCCL's profiler plugin counts. Four
//! nodes run at the same time.

use std::time::Duration;

use anyhow::Result;
use railgate_tests::cluster::{Builder, Cluster};
use railgate_tests::hang::counted_rank;
use railgate_tests::poll;
use railgate_tests::training::played_nccl;
use serde_json::Value;

use crate::guard::{CONFIG, log, until_named, with_gpm};
use crate::training::{MINUTE, one_line};

/// `$PLAY`, the ranks that do it, and the text expected in the job's log; empty: no line is expected, since it may be work.
type Kind = (&'static str, &'static str, &'static str);

/// The first four run by default; `RAILGATE_HANGS=all` runs all, `RAILGATE_HANGS=stop,lock` those with these names. Four kinds take about
/// 90 s.
const KINDS: [Kind; 32] = [
    ("lock", "6", "rank 6 is asleep (futex"),
    ("pipe", "0", "rank 0 is asleep ("),
    ("kernel", "3", "rank 3 is waiting for a kernel of its own GPU that does not end"),
    ("other", "5", "rank 5 is in another operation than the other ranks"),
    ("exit-0", "2", "the process of rank 2 ended with exit code 0"),
    ("exit-1", "7", "the process of rank 7 ended with exit code 1"),
    ("segv", "1", "the process of rank 1 was ended by SIGSEGV"),
    ("kill", "4", "the process of rank 4 was ended by SIGKILL"),
    ("abort", "0", "the process of rank 0 was ended by SIGABRT"),
    ("exit-137", "5", "the process of rank 5 ended with exit code 137"),
    ("exit-1", "2,3", "ended with exit code 1, and 6 GPUs wait"),
    ("stop", "3", "rank 3 is stopped (SIGSTOP)"),
    ("stop", "1,2", "ranks 1 and 2 are stopped (SIGSTOP)"),
    ("sleep", "0", "rank 0 is asleep (hrtimer_nanosleep)"),
    ("sleep", "7", "rank 7 is asleep (hrtimer_nanosleep)"),
    ("sleep", "2,3,4", "ranks 2, 3 and 4 are asleep"),
    ("event", "5", "rank 5 is asleep (futex"),
    ("queue", "2", "rank 2 is asleep ("),
    ("child", "1", "rank 1 is asleep ("),
    ("socket", "6", "rank 6 is asleep ("),
    ("select", "4", "rank 4 is asleep ("),
    ("fifo", "3", "rank 3 is asleep ("),
    ("flock", "2", "rank 2 is asleep ("),
    ("swapped", "6", "8 GPUs wait, and the ranks are in different operations"),
    ("waits", "none", "all 8 GPUs wait in AllReduce number 41, and no rank is behind"),
    ("kernel", "0", "rank 0 is waiting for a kernel of its own GPU that does not end"),
    ("computes", "5", ""),
    ("cpu", "5", ""),
    ("writes", "2", ""),
    ("serves", "0", ""),
    ("prints", "3", ""),
    ("traced", "6", ""),
];
/// Time to wait for a kind that must not be named: 20 s of work, 60 s until a hang is named (`guard.after`), and a margin.
const LONG: Duration = Duration::from_secs(130);

/// The guard looks at the logs every 10 s, on a busy machine later.
const LOOK: Duration = Duration::from_secs(25);

/// Starts the ranks as torchrun does: one task of Slurm, which maps NCCL itself, since it has imported PyTorch.
const LAUNCHER: &str = r#"#!/usr/bin/python3
import ctypes, os, subprocess, time
ctypes.CDLL("/shared/libnccl.so")
# So that the sampler finds it before its ranks.
time.sleep(6)
of = lambda rank: {**os.environ, "RANK": str(rank), "SLURM_NTASKS": "8"}
for one in [subprocess.Popen(["rank"], env=of(rank)) for rank in range(8)]:
    one.wait()
"#;

fn play(cluster: &Cluster, kinds: &[Kind], command: &str) -> Result<Vec<String>> {
    let alice = cluster.alice();
    let mut jobs = Vec::new();
    for (node, (play, quit, _)) in cluster.nodes().iter().zip(kinds) {
        let words = ["-N1", "-n8", "-w", node, "--gres=gpu:8", "-o", "log.%j"];
        jobs.push(alice.clone().env("PLAY", play).env("QUIT", quit).sbatch(&words, command)?);
    }
    let mut wrong = Vec::new();
    let begun = std::time::Instant::now();
    for ((id, (play, quit, what)), node) in jobs.iter().zip(kinds).zip(cluster.nodes()) {
        if what.is_empty() {
            std::thread::sleep(LONG.saturating_sub(begun.elapsed()));
            let said =
                log(cluster, *id).lines().find(|line| line.starts_with("railgate: ")).map(str::to_owned);
            println!("{play:<9} {quit:<6} {}", said.as_deref().unwrap_or("-"));
            wrong.extend(said.map(|said| format!("{play} {quit}: {said}")));
            continue;
        }
        let said = until_named(cluster, *id)?;
        println!("{play:<9} {quit:<6} {said}");
        let text = poll::until(MINUTE, &format!("the stacks of {play}"), || {
            let text = one_line(&alice.run(&["railgate", "why", &id.to_string()])?.ok()?);
            Ok(Some(text).filter(|text| text.contains("STACKS")))
        })?;
        let stacks = text.split_once("STACKS ").map(|(_, stacks)| stacks.to_owned()).unwrap_or_default();
        let has = |rank: &str| {
            stacks.contains(&format!("on {node} "))
                && (stacks.contains(&format!("rank {rank} on ")) || stacks.contains(" ranks "))
        };
        // A process that ended has none.
        let shown = said.contains("ended") || quit.split(',').all(has) || quit.contains([',', 'n']);
        if !said.contains(what) || !shown || stacks.contains("(launcher:") {
            wrong.push(format!("{play} {quit}: {said}\n{stacks}"));
        }
    }
    // Time for another look at the logs, to which the guard has written a line.
    std::thread::sleep(LOOK);
    for id in &jobs {
        alice.run(&["scancel", &id.to_string()])?.ok()?;
    }
    // A rank that is stopped or traced is killed after Slurm's KillWait.
    for (id, (play, quit, what)) in jobs.iter().zip(kinds) {
        cluster.wait_job(*id, &["CANCELLED"], 2 * MINUTE)?;
        let json = alice.run(&["railgate", "report", &id.to_string(), "--format", "json"])?.ok()?;
        let json: Value = serde_json::from_str(&json)?;
        let list = &json["attempts"][0]["nodes"][0]["hangs"]["list"];
        let to_the_end = list.as_array().is_some_and(|all| all.len() == 1 && all[0]["over"].is_null());
        if !what.is_empty() && !to_the_end {
            wrong.push(format!("{play} {quit}: not one hang to the end: {list}"));
        }
    }
    for node in cluster.nodes() {
        cluster.wait_node(node, "idle", 2 * MINUTE, |node| node.state().starts_with("IDLE"))?;
    }
    Ok(wrong)
}

/// A cluster whose ranks count their collectives.
fn counted(nodes: usize) -> Result<Builder> {
    let config = CONFIG.replace("[stats]\n", "[stats]\nnccl_profiler = 'all'\n");
    Ok(Builder::new(nodes).config(&config)?.file("/usr/local/bin/rank", &counted_rank()))
}

fn prepared(cluster: &Cluster) -> Result<()> {
    with_gpm(cluster)?;
    played_nccl(&cluster.path("ctl", "/shared/libnccl.so")?)
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn each_kind_is_named_with_its_rank_or_not_at_all() -> Result<()> {
    let wanted = std::env::var("RAILGATE_HANGS").unwrap_or_default();
    let kinds: Vec<Kind> = match wanted.as_str() {
        "" => KINDS.into_iter().take(4).collect(),
        "all" => KINDS.to_vec(),
        some => KINDS.into_iter().filter(|(play, ..)| some.split(',').any(|one| one == *play)).collect(),
    };
    counted(4)?.test(|cluster| {
        prepared(cluster)?;
        let mut wrong = Vec::new();
        for round in kinds.chunks(4) {
            wrong.extend(play(cluster, round, "srun rank")?);
        }
        anyhow::ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    })
}

/// Kinds for a job of four nodes. The first runs by default, all with `RAILGATE_HANGS=all`.
const OF_FOUR_NODES: [Kind; 4] = [
    ("exit-1", "30", "the process of rank 30 ended with exit code 1, and 7 GPUs wait in AllReduce number 41"),
    ("lock", "13", "rank 13 is asleep (futex"),
    ("stop", "21", "rank 21 is stopped (SIGSTOP)"),
    ("kernel", "0", "rank 0 on gn1 is waiting for a kernel of its own GPU that does not end"),
];

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_rank_of_a_job_of_four_nodes_is_named_with_the_stacks_of_all_nodes() -> Result<()> {
    let all = std::env::var("RAILGATE_HANGS").is_ok_and(|wanted| wanted == "all");
    let kinds = if all { &OF_FOUR_NODES[..] } else { &OF_FOUR_NODES[..1] };
    counted(4)?.test(|cluster| {
        prepared(cluster)?;
        let alice = cluster.alice();
        for (play, quit, what) in kinds {
            let words =
                ["-N4", "-n32", "--ntasks-per-node=8", "--gres=gpu:8", "-o", "log.%j", "--open-mode=append"];
            // Ended so soon that the other nodes have to be quick with their stacks.
            let ends = *play == "exit-1";
            let script = if ends { "#SBATCH --railgate-hang=end,after=30s\nsrun rank" } else { "srun rank" };
            let id = alice.clone().env("PLAY", play).env("QUIT", quit).sbatch(&words, script)?;
            let said = until_named(cluster, id)?;
            println!("{play:<9} {quit:<6} {said}");
            assert!(said.contains(what), "{said}");
            let text = poll::until(2 * MINUTE, &format!("the stacks of {play}"), || {
                let text = one_line(&alice.run(&["railgate", "why", &id.to_string()])?.ok()?);
                Ok(Some(text).filter(|text| text.contains("STACKS 31 ranks in ")))
            })?;
            // A process that has ended has no stack.
            assert!(ends || text.contains(&format!("; rank {quit} on gn")), "{text}");
            if ends {
                cluster.wait_job(id, &["FAILED"], 2 * MINUTE)?;
                let said = log(cluster, id);
                assert!(
                    said.contains("railgate: the job's steps are ended by --railgate-hang=end: "),
                    "{said}"
                );
            } else {
                alice.run(&["scancel", &id.to_string()])?.ok()?;
                cluster.wait_job(id, &["CANCELLED"], 2 * MINUTE)?;
            }
            for node in cluster.nodes() {
                cluster.wait_node(node, "idle", 2 * MINUTE, |node| node.state().starts_with("IDLE"))?;
            }
        }
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_launcher_is_never_taken_for_one_of_its_ranks() -> Result<()> {
    let kinds: [Kind; 2] = [
        ("exit-0", "0", "the process of rank 0 ended with exit code 0"),
        ("stop", "3", "rank 3 is stopped (SIGSTOP)"),
    ];
    counted(2)?.file("/usr/local/bin/launcher", LAUNCHER).test(|cluster| {
        prepared(cluster)?;
        let wrong = play(cluster, &kinds, "srun -n1 launcher")?;
        anyhow::ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    })
}

/// A rank polls the CPU while its GPU is idle, which could be work. An Xid of that GPU shows that it is not.
#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn an_xid_of_a_gpu_of_the_job_makes_a_wait_a_hang_and_one_of_another_gpu_does_not() -> Result<()> {
    counted(2)?.test(|cluster| {
        prepared(cluster)?;
        let alice = cluster.alice();
        let begun = std::time::Instant::now();
        let submit = |node: &str, ranks: u32| -> Result<u32> {
            let words =
                ["-N1", "-w", node, "-o", "log.%j", &format!("-n{ranks}"), &format!("--gres=gpu:{ranks}")];
            let id = alice.clone().env("PLAY", "cpu").env("QUIT", "3").sbatch(&words, "srun rank")?;
            poll::until(MINUTE, "the ranks to work", || {
                Ok(log(cluster, id).contains("rank 3 at work").then_some(id))
            })
        };
        let (own, other) = (submit("gn1", 8)?, submit("gn2", 4)?);
        let tasks = format!("/run/railgate/jobs/{own}/current/tasks.json");
        let pid = poll::until(MINUTE, "the process of rank 3", || {
            let tasks: Value = serde_json::from_str(&cluster.read("gn1", &tasks)?)?;
            let mut ranks = tasks["ranks"].as_array().into_iter().flatten().rev();
            Ok(ranks.find(|one| one["rank"] == 3).and_then(|one| one["pid"].as_u64()))
        })?;
        cluster.hardware("gn1")?.xid(3, 94, Some(u32::try_from(pid)?))?;
        cluster.hardware("gn2")?.xid(5, 94, None)?;

        let said = until_named(cluster, own)?;
        assert!(said.contains(": GPU 3 of rank 3 reported Xid 94 (contained ECC error) at "), "{said}");
        assert!(said.contains(", and 7 GPUs wait in AllReduce number 41 "), "{said}");
        // The partial report and the stacks are written apart.
        let text = poll::until(MINUTE, "the evidence", || {
            let text = one_line(&alice.run(&["railgate", "why", &own.to_string()])?.ok()?);
            Ok(Some(text).filter(|text| text.contains("GPUS") && text.contains("SIGN")))
        })?;
        assert!(text.contains("SIGN GPU 3 of rank 3 reported Xid 94 (contained ECC error) at "), "{text}");
        assert!(text.contains("DO likely the GPU's hardware or the driver: cancel the job"), "{text}");
        assert!(text.contains("GPUS 7 GPUs waited: SMs "), "{text}");
        assert!(
            text.contains("; GPU 3 on gn1 was idle: SMs 0 % active, tensor 0 %, memory 0 %, 130 W"),
            "{text}"
        );

        std::thread::sleep(LONG.saturating_sub(begun.elapsed()));
        let said = log(cluster, other);
        assert!(!said.contains("railgate: "), "the GPU is not of this job: {said}");
        for id in [own, other] {
            alice.run(&["scancel", &id.to_string()])?.ok()?;
            cluster.wait_job(id, &["CANCELLED"], 2 * MINUTE)?;
        }
        Ok(())
    })
}
