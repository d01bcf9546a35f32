//! Files and sockets that two programs share: a user must not be able to block railgate with them.

use anyhow::{Context as _, Result, ensure};
use railgate_tests::cluster::CONTROLLER;
use railgate_tests::poll;
use serde_json::Value;

use super::stage::{Case, Input, MINUTE, Stage};

pub(super) const INPUT: Input = Input { name: "locks and sockets", cases: CASES };

/// Locks every file below these directories that the user can open, for as long as the process runs.
const HOLD: &str = "find /run/railgate /var/lib/railgate -type f 2> /dev/null | while read -r f; do \
                    { exec 9< \"$f\"; } 2> /dev/null || continue; flock -n 9 || continue; flock -s -n 9; sleep 300 9<&9 & done; true";

/// A job of Alice on the second node loses a GPU.
fn alice_loses_a_gpu(stage: &Stage<'_>, while_there: impl FnOnce() -> Result<()>) -> Result<u32> {
    let cluster = stage.cluster;
    let job = stage.alice_begins_on("gn2")?;
    while_there()?;
    cluster.hardware("gn2")?.inject("gpu-lost@3")?;
    stage.alice_ends()?;
    let drained = cluster.wait_node("gn2", "drained", MINUTE / 3, |node| node.drained());
    let node = drained.context("a node with a lost GPU was not drained")?;
    ensure!(node.reason().starts_with("railgate: gpu-lost@3: "), "{}", node.reason());
    Ok(job)
}

/// Ends all processes of Bob on the machine.
fn bob_leaves(stage: &Stage<'_>, machine: &str) -> Result<()> {
    stage.cluster.root().on(machine).run(&["pkill", "-KILL", "-u", "rgbob"])?;
    Ok(())
}

/// Runs a program of Bob on a node beside a job of Alice; returns her report.
fn beside_alice(stage: &Stage<'_>, program: &str) -> Result<Value> {
    let cluster = stage.cluster;
    let script = ": > began; until [ -e end ]; do sleep 0.1; done; rm began end";
    let words = ["-N1", "-w", &stage.node, "--gres=gpu:4", "-o", "/dev/null"];
    let job = stage.alice().sbatch(&words, script)?;
    poll::until(MINUTE, "Alice's job to begin", || Ok(cluster.output("/home/rgalice/began")))?;
    let bob = stage.bob_there().env("JOB", &job.to_string());
    let attack = bob.run(&["python3", "-c", program]);
    cluster.write(CONTROLLER, "/home/rgalice/end", "")?;
    stage.ended(job, &["COMPLETED"])?;
    let attack = attack?;
    ensure!(attack.code == 0, "{attack}");
    let text = stage.alice().run(&["railgate", "report", &job.to_string(), "--format", "json"])?.ok()?;
    Ok(serde_json::from_str(&text)?)
}

const CASES: &[Case] = &[
    Case {
        id: "lock-on-the-node",
        does: "holds a lock on every file of railgate's on the node that he can open, while a GPU of Alice's is lost: the node is drained, and resumed after the repair",
        run: |stage| {
            // The first round creates all files: the node is drained and resumed once.
            for round in ["before", "while"] {
                let job = alice_loses_a_gpu(stage, || {
                    if round == "while" {
                        stage.bob().on("gn2").run(&["bash", "-c", HOLD])?.ok()?;
                    }
                    Ok(())
                })?;
                stage.cluster.wait_job(job, &["COMPLETED"], MINUTE)?;
                stage.repaired("gn2")?;
            }
            bob_leaves(stage, "gn2")
        },
    },
    Case {
        id: "lock-on-the-controller",
        does: "holds a lock on every file of railgate's on the controller that he can open: Alice's job that lost a GPU is requeued",
        run: |stage| {
            let job = alice_loses_a_gpu(stage, || stage.bob().run(&["bash", "-c", HOLD])?.ok().map(drop))?;
            let ended = stage.cluster.wait_job(job, &["COMPLETED"], MINUTE);
            bob_leaves(stage, CONTROLLER)?;
            ensure!(ended?.restarts() == 1, "Alice's job was not restarted once");
            stage.repaired("gn2")
        },
    },
    Case {
        id: "yield-socket-of-alice",
        does: "keeps 2,000 connections to the socket of Alice's job that asks its sampler to pause",
        run: |stage| {
            let report = beside_alice(
                stage,
                "import os, socket, time\nat = '/run/railgate/jobs/%s/current/yield.sock' % os.environ['JOB']\nkept = []\nend = time.time() + 2\n\
                 while time.time() < end:\n  s = socket.socket(socket.AF_UNIX); s.setblocking(False)\n\
                 \x20\x20try: s.connect(at); s.send(b'x'); kept = kept[-900:] + [s]\n  except OSError: time.sleep(0.001)",
            )?;
            let cover = &report["attempts"][0]["nodes"][0]["usage"]["coverage"];
            let seconds = |name: &str| cover[name].as_f64().unwrap_or(f64::NAN);
            ensure!(
                seconds("yielded_s") == 0.0 && seconds("sampled_s") > seconds("missing_s"),
                "Alice's sampler: {cover}"
            );
            Ok(())
        },
    },
    Case {
        id: "yield-socket-of-alice-refused",
        does: "connects to that socket and to the sampler's: only her job and root have access",
        run: |stage| {
            let report = beside_alice(
                stage,
                "import os, socket, sys\nopen_to_all = []\nfor name in ['yield.sock', 'sampler.sock']:\n  s = socket.socket(socket.AF_UNIX)\n\
                 \x20\x20try: s.connect('/run/railgate/jobs/%s/current/%s' % (os.environ['JOB'], name)); open_to_all.append(name)\n  except OSError: pass\n\
                 sys.exit(', '.join(open_to_all) or 0)",
            )?;
            ensure!(
                report["attempts"][0]["nodes"][0]["usage"]["coverage"].is_object(),
                "no samples of Alice's job"
            );
            Ok(())
        },
    },
    Case {
        id: "yield-socket-of-his-own",
        does: "floods the socket of his own job with connections, bytes and half-closed ends until the job is over",
        run: |stage| {
            stage
                .bobs(
                    "cat > flood.py <<'END'\nimport os, socket\nat = '/run/railgate/jobs/%s/current/yield.sock' % os.environ['SLURM_JOB_ID']\nkept = []\nfor n in range(3000):\n\
                     \x20\x20s = socket.socket(socket.AF_UNIX); s.setblocking(False)\n  try: s.connect(at); s.send(b'x' * 9); s.shutdown(n % 3); kept = kept[-900:] + [s]\n\
                     \x20\x20except OSError: pass\nEND\npython3 flood.py; srun -n1 true",
                )
                .map(drop)
        },
    },
    Case {
        id: "sampler-socket",
        does: "tries to end, replace and listen at the sampler's sockets of his own job",
        run: |stage| {
            stage
                .bobs(
                    "cd /run/railgate/jobs/$SLURM_JOB_ID/current; for s in sampler.sock yield.sock; do rm -f $s; mv $s x; ln -s /x $s.x; done\n\
                     python3 -c 'import socket; s = socket.socket(socket.AF_UNIX); s.connect(\"sampler.sock\"); s.send(b\"end\\n\")' && exit 4; exit 0",
                )
                .map(drop)
        },
    },
];
