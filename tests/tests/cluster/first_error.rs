//! The first error of a job's own logs, from the job to its report.

use std::os::unix::fs::MetadataExt;

use anyhow::{Context as _, Result, ensure};
use railgate_tests::cluster::{Builder, CONTROLLER, Cluster, REPORTS};
use railgate_tests::poll;

use crate::training::{MINUTE, one_line};

/// `fail` prints a traceback as Python does, with a token in its message. `awaited` waits for the test.
const SHELL: &str = r#"fail() { printf 'Traceback (most recent call last):\n  File "/home/rgalice/train.py", line 88, in main\n    step()\nValueError: bad sample in shard 17 password=hunter22\n'; }
awaited() { until [ -e go.$SLURM_JOB_ID ]; do sleep 0.1; done; }
export -f fail awaited
"#;

/// Submits a job of Alice on both nodes, waits for its end, and returns its id and the report in one line. `known`: what
/// samplers of nodes have recorded about the job's outputs before the script's `awaited` returns.
fn failed(cluster: &Cluster, known: &[(&str, &str)], script: &str) -> Result<(u32, String)> {
    let alice = cluster.alice();
    let id = alice.sbatch(&["-N2", "--gres=gpu:1", "-o", "out.%j"], &format!("{SHELL}{script}"))?;
    for (node, part) in known {
        poll::until(MINUTE, &format!("the sampler of {node} to record {part}"), || {
            let outputs = cluster.read(node, &format!("/run/railgate/jobs/{id}/current/outputs.json"));
            Ok(outputs.is_ok_and(|outputs| outputs.contains(part)).then_some(()))
        })?;
    }
    cluster.write(CONTROLLER, &format!("/home/rgalice/go.{id}"), "go\n")?;
    cluster.wait_job(id, &["FAILED"], MINUTE)?;
    for node in cluster.nodes() {
        cluster.wait_node(node, "epilogs over", MINUTE, |node| !node.state().contains("COMPL"))?;
    }
    Ok((id, one_line(&alice.run(&["railgate", "report", &id.to_string()])?.ok()?)))
}

fn recorded(cluster: &Cluster, id: u32, node: &str) -> Result<Option<(String, u32)>> {
    let path = cluster.path(CONTROLLER, &format!("{REPORTS}/test/{id}/0/{node}.error"))?;
    let Ok(text) = std::fs::read_to_string(&path) else { return Ok(None) };
    Ok(Some((text, std::fs::metadata(&path).context("metadata")?.mode() & 0o777)))
}

const SAID: &str = "ValueError: bad sample in shard 17 password=[masked] (train.py:88)";

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn the_first_error_of_a_job_is_in_its_report() -> Result<()> {
    Builder::new(2).test(|cluster| {
        // A shared log: the first node reads it, and the rank ran on the second.
        let follows = "[rank0]:[W1123 16:57:30.12 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=62)";
        let shared = format!(
            "srun -l -N2 -n2 bash -c 'echo step 1; awaited; \
             until [ $(grep -c step.1 out.$SLURM_JOB_ID) = 2 ]; do sleep 0.1; done; if [ $SLURM_PROCID = 1 ]; then fail; exit 1; fi; \
             until grep -q ValueError out.$SLURM_JOB_ID; do sleep 0.1; done; echo \"{follows}\"; exit 1'"
        );
        let (id, report) = failed(cluster, &[("gn1", "/out."), ("gn2", r#""ranks":[1]"#)], &shared)?;
        let said = format!("first error rank 1 on gn2: {SAID}; other ranks followed");
        ensure!(report.contains(&said), "{report}");
        // srun may have written lines of its own before.
        let log = cluster.output(&format!("/home/rgalice/out.{id}")).context("no log")?;
        let line = log.lines().position(|line| line.contains("Traceback")).context("no traceback")? + 1;
        ensure!(report.contains(&format!("read line {line} of /home/rgalice/out.{id}")), "{log}\n{report}");
        let (text, mode) = recorded(cluster, id, "gn1")?.context("gn1 recorded nothing")?;
        ensure!(mode == 0o600 && !text.contains("hunter22"), "{mode:o} {text}");
        ensure!(recorded(cluster, id, "gn2")?.is_none(), "gn2 has no log of its own");
        let open = cluster.alice().run(&["railgate", "report", &id.to_string(), "--redact"])?.ok()?;
        ensure!(!open.contains("shard") && !open.contains("train.py"), "{open}");
        let bob = cluster.bob().run(&["cat", &format!("{REPORTS}/test/{id}/0/gn1.error")])?;
        ensure!(bob.code != 0 && bob.stdout.is_empty(), "{bob}");

        // A file for each task: its own node reads it.
        let each = "srun -N2 -n2 -o task-%t.log bash -c 'awaited; [ $SLURM_PROCID = 0 ] || fail; exit 1'";
        let (id, report) = failed(cluster, &[("gn1", "/task-0.log"), ("gn2", "/task-1.log")], each)?;
        ensure!(report.contains(&format!("rank 1 on gn2: {SAID}")), "{report}");
        ensure!(recorded(cluster, id, "gn2")?.is_some_and(|(text, _)| text.contains("task-1.log")));

        // A script that dies within seconds, one that dies at once, and a job that succeeds although it prints an error.
        for script in ["sleep 1; fail; exit 1", "fail; exit 1"] {
            let (_, report) = failed(cluster, &[], script)?;
            ensure!(report.contains(SAID), "{script}: {report}");
        }
        let good = cluster.alice().sbatch(&["-N1", "--gres=gpu:1"], &format!("{SHELL}sleep 2; fail; exit 0"))?;
        cluster.wait_job(good, &["COMPLETED"], MINUTE)?;
        let report = cluster.alice().run(&["railgate", "report", &good.to_string()])?.ok()?;
        ensure!(!report.contains("ValueError"), "{report}");
        Ok(())
    })
}
