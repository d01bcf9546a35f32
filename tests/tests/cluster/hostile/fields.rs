//! Text that a user puts into a job: fields, options, and the environment of sbatch, srun and tasks.

use anyhow::{Result, ensure};
use railgate_tests::poll;

use super::stage::{Case, Input, MINUTE, Stage};

pub(super) const FIELDS: Input = Input { name: "job fields", cases: FIELD_CASES };
pub(super) const ENVIRONMENT: Input = Input { name: "environment and options", cases: ENVIRONMENT_CASES };

/// A job with these sbatch options that fails, so that the epilog and the controller search for the cause.
fn fails(stage: &Stage<'_>, words: &[&str]) -> Result<()> {
    stage.bobs_with(words, "srun -n1 true; exit 3", &["FAILED"]).map(drop)
}

/// An array of jobs with one GPU each; waits until all have ended.
fn array(stage: &Stage<'_>, words: &[&str], script: &str) -> Result<()> {
    let each = ["--gres=gpu:1", "-N1", "-w", &stage.node, "-o", "/dev/null"];
    let id = stage.bob().sbatch(&[&each[..], words].concat(), script)?;
    poll::until(MINUTE, "the array to end", || {
        let left = stage.cluster.root().run(&["squeue", "-h", "-j", &id.to_string()])?.ok()?;
        Ok(left.trim().is_empty().then_some(()))
    })
}

const FIELD_CASES: &[Case] = &[
    Case {
        id: "job-name-forges-scontrol",
        does: "a job name and a comment with newlines that look like other fields of `scontrol show job`",
        run: |stage| {
            let name =
                "x\n   Requeue=0 Restarts=0 BatchFlag=0 UserId=root(0)\n   StdOut=/home/rgalice/own/stolen";
            let comment =
                "%s%n`touch /tmp/owned`\nJobId=1 JobName=x\n   StdOut=/etc/railgate/disable ExitCode=0:9";
            fails(stage, &["-J", name, "--comment", comment])
        },
    },
    Case {
        id: "job-name-terminal",
        does: "a job name and a comment of escape sequences and C1 control characters",
        run: |stage| fails(stage, &["-J", "\u{1b}[2J\u{1b}]0;x\u{7}", "--comment", "\u{9b}31m\u{90}x\u{9c}"]),
    },
    Case {
        id: "job-name-direction",
        does: "a job name with U+202E and U+009B: the report as JSON has them escaped",
        run: |stage| fails(stage, &["-J", "a\u{202e}b\u{9b}c\u{2028}"]),
    },
    Case {
        id: "job-name-huge",
        does: "a job name and a comment of 1,000 bytes, Slurm's maximum",
        run: |stage| fails(stage, &["-J", &"\u{1f980}".repeat(250), "--comment", &"x".repeat(1000)]),
    },
    Case {
        id: "job-name-ours",
        does: "a name and a comment that look like railgate's drain reasons and notes",
        run: |stage| {
            let ours = "railgate: gpu-lost@3: 0000:61:00.0 off bus, Xid 79; reboot [epilog job=1]";
            fails(stage, &["-J", ours, "--comment", ours])
        },
    },
    Case {
        id: "job-name-shell",
        does: "names, comments, mail addresses and work keys of shell, printf and path syntax",
        run: |stage| {
            let shell = "$(touch /tmp/owned)`touch /tmp/owned`;touch /tmp/owned|%s%n%n../../../../etc/x";
            fails(
                stage,
                &["-J", shell, "--comment", shell, "--wckey", shell, "--mail-user", "$(touch /tmp/owned)"],
            )
        },
    },
    Case {
        id: "job-output-of-alice",
        does: "an output file that is a link to Alice's file",
        run: |stage| {
            stage.bob().run(&["ln", "-sf", "/home/rgalice/diary", "link"])?.ok()?;
            let id = stage.submit(&["-o", "link"], "exit 3")?;
            stage.ended(id, &["FAILED", "CANCELLED"])?;
            stage.bob().run(&["rm", "link"])?.ok().map(drop)
        },
    },
    Case {
        id: "job-output-swapped",
        does: "replaces the output file by a link, a FIFO, a device or a directory while the job runs; hardware fails, so that railgate writes a last line",
        run: |stage| {
            for swap in [
                "ln -s /home/rgalice/diary out",
                "mkfifo out",
                "ln -s /dev/full out",
                "mkdir out",
                "ln /home/rgbob/other out",
            ] {
                let script = format!(
                    "echo x > other; rm -f out; {swap}; : > began; until [ -e end ]; do sleep 0.05; done; rm began end; exit 3"
                );
                let id = stage.submit(&["-o", "out", "--railgate-requeue=never"], &script)?;
                poll::until(MINUTE, "the job to begin", || Ok(stage.cluster.output("/home/rgbob/began")))?;
                // A fault of the program (Xid 31), which the last line mentions.
                stage.cluster.hardware(&stage.node)?.xid(3, 31, None)?;
                stage.bob().run(&["touch", "end"])?.ok()?;
                stage.ended(id, &["FAILED"])?;
                stage.bob().run(&["rm", "-rf", "out", "other"])?.ok()?;
            }
            Ok(())
        },
    },
    Case {
        id: "job-output-paths",
        does: "output paths of root's files and of missing directories, with newlines, patterns and U+202E",
        run: |stage| {
            for path in [
                "/etc/railgate/disable",
                "/proc/self/mem",
                "/nowhere/x",
                "a\nStdOut=/etc/x",
                "%%%j%N%u\u{202e}",
                "/dev/null",
            ] {
                let id = stage.submit(&["-o", path], "exit 3")?;
                stage.ended(id, &["FAILED", "CANCELLED"])?;
            }
            Ok(())
        },
    },
    Case {
        id: "job-workdir",
        does: "works in a directory that he removes, in one without rights, in /proc/self/fd, and in one with a newline",
        run: |stage| {
            let make = "mkdir -p gone closed $'new\\nline'; chmod 0 closed";
            stage.bob().run(&["bash", "-c", make])?.ok()?;
            stage.bobs_with(
                &["--chdir", "/home/rgbob/gone", "-o", "/dev/null"],
                "rmdir $PWD; exit 3",
                &["FAILED"],
            )?;
            stage.bobs_with(
                &["--chdir", "/home/rgbob/new\nline", "-o", "/dev/null"],
                "exit 3",
                &["FAILED"],
            )?;
            for dir in ["/home/rgbob/closed", "/proc/self/fd", "/etc/railgate"] {
                stage.bobs_with(&["--chdir", dir, "-o", "/dev/null"], "exit 3", &["FAILED"])?;
            }
            Ok(())
        },
    },
    Case {
        id: "job-resources",
        does: "requests no GPU, GPUs by another name, more than exist, and lists of nodes with brackets",
        run: |stage| {
            stage.bobs_with(&["--gres=none"], "exit 3", &["FAILED"])?;
            stage.bobs_with(&["--gres=gpu:0"], "exit 3", &["FAILED"])?;
            for words in [
                ["--gres=gpu:99"],
                ["--gres=gpu:-1"],
                ["-wgn[1-99999999]"],
                ["-wgn[1-"],
                ["-xgn[2-9],\n"],
                ["--gres=../../x:1"],
            ] {
                let id = stage.submit(&words, "exit 3");
                if let Ok(id) = id {
                    stage.bob().run(&["scancel", &id.to_string()])?;
                    stage.ended(id, &["FAILED", "CANCELLED"])?;
                }
            }
            Ok(())
        },
    },
    Case {
        id: "job-array",
        does: "an array of 16 jobs that fail at once, with array ids in every name",
        run: |stage| array(stage, &["-a", "0-15", "-J", "%a\u{1b}[2J"], "exit 3"),
    },
    Case {
        id: "job-ends-by-signals",
        does: "ends by each signal with an unusual exit status, and with codes above 127",
        run: |stage| {
            let script = "case $SLURM_ARRAY_TASK_ID in 0) exit 255;; 1) kill -SEGV $$;; 2) kill -KILL $$;; \
                          3) ulimit -c 0; kill -ABRT $$;; 4) kill -HUP $$;; 5) exit 137;; esac; sleep 60";
            array(stage, &["-a", "0-5"], script)
        },
    },
];

const ENVIRONMENT_CASES: &[Case] = &[
    Case {
        id: "env-of-hooks",
        does: "submits with SLURM_*, SPANK_*, LD_PRELOAD, PATH and RAILGATE_* variables that hooks of root read",
        run: |stage| {
            let names = [
                "SLURM_JOB_UID",
                "SLURM_CLUSTER_NAME",
                "SLURMD_NODENAME",
                "SLURM_JOB_NODELIST",
                "SLURM_CONF_X",
            ];
            let bob = names.iter().fold(stage.bob(), |bob, name| bob.env(name, "../../etc\n0"));
            let bob = bob.env("LD_PRELOAD", "/home/rgbob/evil.so").env("LD_LIBRARY_PATH", "/home/rgbob");
            let bob = bob
                .env("SPANK_RAILGATE_GATE", "off")
                .env("SPANK_SLURM_JOB_UID", "0")
                .env("RAILGATE_SET", "PATH,LD_PRELOAD");
            let id = stage.submit_from(&bob, &[], "exit 3")?;
            stage.ended(id, &["FAILED"])
        },
    },
    Case {
        id: "env-false-tools",
        does: "has programs called scontrol, squeue, railgate and kill before Slurm's own in PATH",
        run: |stage| {
            let make = "mkdir -p bin; for n in scontrol squeue sinfo railgate kill sacct sacctmgr logger; do \
                        printf '#!/bin/sh\\n[ $(id -u) != 0 ] || touch /tmp/owned\\nexit 0\\n' > bin/$n; chmod 755 bin/$n; done";
            stage.bob().run(&["bash", "-c", make])?.ok()?;
            stage
                .bobs_with(&["--export=ALL,PATH=/home/rgbob/bin:/usr/bin:/bin"], "exit 3", &["FAILED"])
                .map(drop)
        },
    },
    Case {
        id: "env-export",
        does: "exports nothing, then variables of railgate's and NCCL's with control characters and 100 kB",
        run: |stage| {
            stage.bobs_with(&["--export=NONE"], "exit 3", &["FAILED"])?;
            let bob =
                stage.bob().env("NCCL_IB_HCA", &"x".repeat(100_000)).env("NCCL_DEBUG", "\u{1b}[2J\u{202e}");
            let bob =
                bob.env("RAILGATE_SET", &"NCCL_IB_HCA,".repeat(5000)).env("RAILGATE_SET_NCCL_IB_HCA", "\n");
            let bob = bob
                .env("RAILGATE_JOB_DIR", "/etc/railgate")
                .env("RAILGATE_NET", "\u{1b}")
                .env("HOME", "/nowhere");
            let id = stage.submit_from(
                &bob,
                &["--export=ALL"],
                "srun -n1 printenv NCCL_DEBUG > /dev/null; exit 3",
            )?;
            stage.ended(id, &["FAILED"])
        },
    },
    Case {
        id: "env-job-dir",
        does: "sets RAILGATE_JOB_DIR and RAILGATE_APP_DIR to Alice's files and to root's, in tasks",
        run: |stage| {
            stage
                .bobs(
                    "for at in /home/rgalice /etc/railgate /run/railgate/jobs /proc/1 ''; do RAILGATE_JOB_DIR=$at RAILGATE_APP_DIR=$at \
                     RAILGATE_SET=NCCL_IB_HCA NCCL_IB_HCA=x RAILGATE_SET_NCCL_IB_HCA=x srun -n1 true || exit 3; done",
                )
                .map(drop)
        },
    },
    Case {
        id: "option-gate-off",
        does: "requests no gate although the site does not allow that, by option, by Slurm's own variable of it, and by SPANK's",
        run: |stage| {
            let variable = "_SLURM_SPANK_OPTION_railgate_railgate-gate";
            let environment = stage.bob().env(variable, "off").env("SLURM_SPANK_OPTION_railgate_gate", "off");
            for (bob, words) in [(stage.bob(), &["--railgate-gate=off"][..]), (environment, &[])] {
                let id = stage.submit_from(&bob, words, "exit 3")?;
                stage.ended(id, &["FAILED"])?;
                let text = bob.run(&["railgate", "report", &id.to_string(), "--format", "json"])?.ok()?;
                let report: serde_json::Value = serde_json::from_str(&text)?;
                let node = &report["attempts"][0]["nodes"][0];
                ensure!(node["prolog"]["verdict"]["fitness"] == "fit", "no gate: {}", node["prolog"]);
            }
            Ok(())
        },
    },
    Case {
        id: "option-values",
        does: "option values with paths, newlines, control characters, 100 kB and numbers beyond 64 bits",
        run: |stage| {
            let huge = "9".repeat(5000);
            for word in [
                "--railgate-profile=../../../etc/shadow",
                "--railgate-profile=debug\nforce LD_PRELOAD=/x",
                "--railgate-requeue=-1",
                "--railgate-requeue=99999999999999999999",
                "--railgate-profiler=\u{1b}[2J",
                "--railgate-requeue=",
                &format!("--railgate-profile={huge}"),
            ] {
                if let Ok(id) = stage.submit(&[word], "exit 3") {
                    stage.ended(id, &["FAILED", "CANCELLED"])?;
                }
            }
            Ok(())
        },
    },
    Case {
        id: "option-requeue-without-end",
        does: "requests 100 restarts and fails without a fault of the node: the job is not requeued",
        run: |stage| {
            let id = stage.bobs_with(&["--railgate-requeue=100", "--requeue"], "exit 3", &["FAILED"])?;
            let restarts = stage.cluster.job(id)?.restarts();
            ensure!(restarts == 0, "{restarts} restarts");
            Ok(())
        },
    },
];
