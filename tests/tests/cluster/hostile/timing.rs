//! Jobs that end, start and change at the worst moment.

use anyhow::{Result, ensure};
use railgate_tests::poll;

use super::stage::{Case, Input, MINUTE, Stage};

pub(super) const INPUT: Input = Input { name: "timing", cases: CASES };

/// Waits until Bob has no job left.
fn all_over(stage: &Stage<'_>) -> Result<()> {
    poll::until(MINUTE, "Bob's jobs to end", || {
        let left = stage.cluster.root().run(&["squeue", "-h", "-u", "rgbob"])?.ok()?;
        Ok(left.trim().is_empty().then_some(()))
    })
}

const CASES: &[Case] = &[
    Case {
        id: "time-cancelled-in-its-prolog",
        does: "cancels jobs while their prologs run",
        run: |stage| {
            for _ in 0..4 {
                let id = stage.submit(&["-o", "/dev/null"], "sleep 60")?;
                poll::until(MINUTE, "its prolog", || {
                    let jobs = stage.root_there().run(&["pgrep", "-x", "railgate-prolog"])?;
                    let state = stage.cluster.job(id)?.state().to_owned();
                    Ok((jobs.code == 0 || state != "PENDING").then_some(()))
                })?;
                stage.bob().run(&["scancel", &id.to_string()])?;
                stage.ended(id, &["CANCELLED"])?;
            }
            Ok(())
        },
    },
    Case {
        id: "time-requeued-in-its-prolog",
        does: "requeues a job while its prolog runs, and while it ends",
        run: |stage| {
            let id = stage.submit(
                &["--requeue", "-o", "/dev/null"],
                "[ ${SLURM_RESTART_COUNT:-0} = 0 ] || exit 0; scontrol requeue $SLURM_JOB_ID; exit 3",
            )?;
            stage.bob().run(&["scontrol", "requeue", &id.to_string()])?;
            stage.ended(id, &["COMPLETED", "FAILED"])
        },
    },
    Case {
        id: "time-killed-at-once",
        does: "sends every signal to the batch script and its steps as soon as they begin, SIGKILL and SIGSTOP too",
        run: |stage| {
            let id = stage
                .submit(&["-o", "/dev/null"], "srun -n1 sleep 60 & srun -n1 --overlap sleep 60 & sleep 60")?;
            for signal in ["USR1", "STOP", "CONT", "TERM", "KILL"] {
                stage.bob().run(&["scancel", "-f", "-s", signal, &id.to_string()])?;
            }
            stage.bob().run(&["scancel", &id.to_string()])?;
            stage.ended(id, &["CANCELLED", "FAILED"])
        },
    },
    Case {
        id: "time-many-at-once",
        does: "20 jobs of one GPU that begin and end at the same time on one node",
        run: |stage| {
            for _ in 0..20 {
                let words = ["-N1", "-w", &stage.node, "--gres=gpu:1", "-o", "/dev/null"];
                stage.bob().sbatch(&words, "exit $((SLURM_JOB_ID % 3))")?;
            }
            all_over(stage)
        },
    },
    Case {
        id: "time-many-steps",
        does: "30 steps that begin and end at the same time",
        run: |stage| {
            stage.bobs("for n in {1..30}; do srun -n1 --overlap true & done; wait; exit 0").map(drop)
        },
    },
    Case {
        id: "time-changed-while-it-runs",
        does: "changes name, comment and time limit of a job while it runs, and holds and releases it",
        run: |stage| {
            stage
                .during("", |id| {
                    let bob = stage.bob();
                    for change in [
                        "comment=railgate:\n JobState=NODE_FAIL",
                        "name=\u{1b}[2J",
                        "timelimit=5",
                        "requeue=1",
                        "nice=5",
                        "excnodelist=gn1",
                    ] {
                        bob.run(&["scontrol", "update", &format!("jobid={id}"), change])?;
                    }
                    for word in ["hold", "release", "suspend"] {
                        bob.run(&["scontrol", word, &id.to_string()])?;
                    }
                    Ok(())
                })
                .map(drop)
        },
    },
    Case {
        id: "time-client-killed",
        does: "srun and salloc whose clients are killed while their prologs run and afterwards",
        run: |stage| {
            for words in [
                &["srun", "-N1", "--gres=gpu:8", "sleep", "60"][..],
                &["salloc", "-N1", "--gres=gpu:8", "sleep", "60"],
            ] {
                let client = stage.bob().spawn(words)?;
                poll::until(MINUTE, "the client's job", || {
                    let jobs =
                        stage.cluster.root().run(&["squeue", "-h", "-u", "rgbob", "-t", "R,CF"])?.ok()?;
                    Ok((!jobs.trim().is_empty()).then_some(()))
                })?;
                drop(client);
                stage.bob().run(&["scancel", "-u", "rgbob"])?;
                all_over(stage)?;
            }
            Ok(())
        },
    },
    Case {
        id: "time-components",
        does: "a heterogeneous job of two components, one of which fails, both with the report of the other in mind",
        run: |stage| {
            let half = |node| ["-N1", "-w", node, "--gres=gpu:2", "-o", "/dev/null"];
            let words = [&half("gn1")[..], &[":"], &half("gn2")].concat();
            let id = stage.bob().sbatch(&words, "srun -n1 true; exit 3")?;
            all_over(stage)?;
            let said = stage.bob().run(&["railgate", "report", &id.to_string()])?;
            ensure!(said.both().lines().all(super::stage::clean), "{said}");
            Ok(())
        },
    },
];
