//! The end of a template's log, for every kind of end: one line that names the outcome and the report command, and no messages of
//! the shell.

use anyhow::{Context as _, Result, ensure};
use railgate_tests::cluster::{Builder, Cluster};
use railgate_tests::poll;

use crate::templates::{filled, pyxis};
use crate::training::MINUTE;

/// Stand-in for every program: it runs until signalled to save, or ends as `$PLAY` requests.
const PROGRAM: &str = r#"#!/usr/bin/python3
import os, signal, sys, time
play = os.environ["PLAY"]
def save(*_):
    for again in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(again, signal.SIG_IGN)
    print("saved", flush=True)
    sys.exit(3 if play == "saves-badly" else 0)
signal.signal(signal.SIGUSR1, signal.SIG_IGN if play == "deaf" else save)
if "megatron" in " ".join(sys.argv):
    signal.signal(signal.SIGTERM, save)
print("at work", flush=True)
if play.startswith("exit"):
    sys.exit(int(play[4:]))
if play.startswith("kill"):
    os.kill(os.getpid(), int(play[4:]))
while True:
    time.sleep(60)
"#;

/// What is done to a job once it runs.
#[derive(Clone, Copy)]
enum Act {
    Nothing,
    /// A command of its owner; ID stands for the job's id.
    Own(&'static [&'static str]),
    Limit,
    /// A signal to save, shortly before the time limit.
    ToldThenLimit,
    Preempt,
}

struct End {
    name: &'static str,
    play: &'static str,
    /// Options of sbatch.
    words: &'static [&'static str],
    /// Whether the job is requeued; AGAIN in the templates.
    comes_again: bool,
    act: Act,
    /// The last line, between `railgate: ` and the report.
    says: &'static str,
}

const fn end(name: &'static str, play: &'static str, act: Act, says: &'static str) -> End {
    End { name, play, words: &["-x", "gn8"], comes_again: true, act, says }
}

const CANCEL: Act = Act::Own(&["scancel", "ID"]);
const NEAR: Act = Act::Own(&["scancel", "-b", "--signal=USR1", "ID"]);
const CANCELLED: End = end("cancel", "work", CANCEL, "cancelled");
const LIMIT: &str = "stopped at the time limit; not requeued";
const SAVED: &str =
    "SIGUSR1 asked the program to save; it ended with exit code 0; the job goes back into the queue";

fn ends() -> Vec<End> {
    vec![
        CANCELLED,
        end(
            "signal",
            "work",
            Act::Own(&["scancel", "--signal=USR1", "ID"]),
            "the program ended with exit code 0",
        ),
        end("near", "work", NEAR, SAVED),
        End {
            comes_again: false,
            ..end(
                "near-again-no",
                "work",
                NEAR,
                "SIGUSR1 asked the program to save; it ended with exit code 0; not requeued: AGAIN=no",
            )
        },
        End {
            words: &["-x", "gn8", "--no-requeue"],
            ..end(
                "near-refused",
                "work",
                NEAR,
                "SIGUSR1 asked the program to save; it ended with exit code 0; not requeued: Requested operation is presently disabled",
            )
        },
        end(
            "near-badly",
            "saves-badly",
            NEAR,
            "SIGUSR1 asked the program to save; it ended with exit code 3; not requeued: it may not have saved",
        ),
        end("terminated", "work", Act::Own(&["scancel", "-b", "--signal=TERM", "ID"]), "ended by SIGTERM"),
        end("limit", "deaf", Act::Limit, LIMIT),
        end(
            "limit-deaf",
            "deaf",
            Act::ToldThenLimit,
            "stopped at the time limit; not requeued: the program received SIGUSR1 and had not ended",
        ),
        end(
            "requeue",
            "work",
            Act::Own(&["scontrol", "requeue", "ID"]),
            "requeued or preempted; the job goes back into the queue",
        ),
        end(
            "held",
            "work",
            Act::Own(&["scontrol", "requeuehold", "ID"]),
            "requeued or preempted; the job goes back into the queue, held (scontrol release ",
        ),
        End {
            words: &["-w", "gn8", "--exclusive"],
            ..end("preempt", "work", Act::Preempt, "requeued or preempted; the job goes back into the queue")
        },
        end("exit-0", "exit0", Act::Nothing, "the program ended with exit code 0"),
        end("exit-3", "exit3", Act::Nothing, "the program ended with exit code 3"),
        end("killed", "kill9", Act::Nothing, "the program was killed by SIGKILL"),
    ]
}

/// A job of a template, and its end.
struct Run {
    template: &'static str,
    end: End,
    id: String,
    /// Path of its log.
    path: String,
}

impl Run {
    fn submit(cluster: &Cluster, template: &'static str, settings: &[&str], end: End) -> Result<Self> {
        let file = format!("{template}-{}.log", end.name);
        let output = format!("output={file}");
        let place = format!("CHECKPOINTS=/shared/alice/{file}");
        let mut settings = [settings, &[&output]].concat();
        if !["array", "nccl-tests", "soak"].contains(&template) {
            settings.push(&place);
        }
        let text = filled(cluster, template, &settings)?;
        // The templates request whole machines, which does not matter here.
        let text =
            text.replace("#SBATCH --exclusive\n", "").replace("--cpus-per-task=16", "--cpus-per-task=1");
        let session = cluster.alice().env("PLAY", end.play);
        let session = if end.comes_again { session } else { session.env("AGAIN", "no") };
        let id = session.sbatch(end.words, &text).with_context(|| file.clone())?;
        let id = if template == "array" { format!("{id}_1") } else { id.to_string() };
        Ok(Run { template, end, id, path: format!("/home/rgalice/{file}") })
    }

    /// Log of the first attempt.
    fn log(&self, cluster: &Cluster) -> String {
        let log = cluster.output(&self.path).unwrap_or_default();
        log.split("attempt 1 on ").next().unwrap_or_default().to_owned()
    }

    fn wait(&self, cluster: &Cluster, what: &str) -> Result<()> {
        let name = format!("{} {}: {what}", self.template, self.end.name);
        poll::until(2 * MINUTE, &name, || Ok(self.log(cluster).contains(what).then_some(())))
            .with_context(|| self.log(cluster))
    }

    fn act(&self, cluster: &Cluster) -> Result<()> {
        let own = |words: &[&str]| {
            let words: Vec<&str> =
                words.iter().map(|word| if *word == "ID" { &self.id } else { *word }).collect();
            cluster.alice().run(&words)?.ok().map(drop)
        };
        let limit = || {
            let words = ["scontrol", "update", &format!("jobid={}", self.id), "EndTime=now+1"];
            cluster.root().run(&words)?.ok().map(drop)
        };
        match self.end.act {
            Act::Nothing => Ok(()),
            Act::Own(words) => own(words),
            Act::Limit => limit(),
            Act::ToldThenLimit => {
                let Act::Own(near) = NEAR else { unreachable!("it is") };
                own(near)?;
                limit()
            }
            Act::Preempt => {
                let words = ["-p", "urgent", "-w", "gn8", "--exclusive", "-o", "/dev/null"];
                cluster.bob().sbatch(&words, "true").map(drop)
            }
        }
    }

    /// Checks that the log has only lines of the script, its program and Slurm, and that the last one but Slurm's is railgate's. launch
    /// adds a line for each start and its end.
    fn check(&self, cluster: &Cluster) -> Result<()> {
        let is_outcome = |line: &str| line.starts_with("railgate: ") && !line.starts_with("railgate: start ");
        let name = format!("{} {}: the outcome", self.template, self.end.name);
        poll::until(2 * MINUTE, &name, || Ok(self.log(cluster).lines().any(is_outcome).then_some(())))
            .with_context(|| self.log(cluster))?;
        let log = self.log(cluster);
        let of_slurm = |line: &str| line.starts_with("srun:") || line.contains(" error: *** ");
        let said: Vec<&str> = log
            .lines()
            .map(|line| line.strip_prefix("0: ").unwrap_or(line))
            .filter(|line| !line.is_empty() && !of_slurm(line))
            .collect();
        let known = ["attempt 0", "at work", "saved", "railgate: ", "== ", "round 1", "1 rounds in "];
        let stray: Vec<&&str> =
            said.iter().filter(|line| !known.iter().any(|known| line.starts_with(known))).collect();
        ensure!(stray.is_empty(), "{} {}: {stray:?} in\n{log}", self.template, self.end.name);
        let last = said.last().copied().unwrap_or_default();
        let report = format!(". See: railgate report {}", self.id);
        let fits = last.starts_with(&format!("railgate: {}", self.end.says)) && last.ends_with(&report);
        ensure!(fits, "{} {}: not '{}' but\n{log}", self.template, self.end.name, self.end.says);
        let lines = said.iter().filter(|line| is_outcome(line)).count();
        ensure!(lines == 1, "{} {}: {lines} lines in\n{log}", self.template, self.end.name);
        Ok(())
    }
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn the_log_of_each_template_ends_with_the_outcome_of_the_job() -> Result<()> {
    let mut builder = Builder::new(8)
        .slurm_conf("KillWait", "30")
        .slurm_conf("PreemptType", "preempt/partition_prio")
        .slurm_conf("PreemptMode", "REQUEUE")
        .slurm_conf("PartitionName=urgent Nodes", "ALL PriorityTier=10");
    for name in ["torchrun", "python", "apptainer", "all_reduce_perf", "alltoall_perf"] {
        builder = builder.file(format!("/usr/local/bin/{name}"), PROGRAM);
    }
    builder.test(|cluster| {
        pyxis(cluster)?;
        cluster.root().run(&["install", "-d", "-o", "rgalice", "/shared/alice"])?.ok()?;
        cluster.write("ctl", "/shared/alice/experiments.txt", "--lr 1\n")?;
        let node = ["gres=gpu:1", "cpus-per-task=1"];
        let task = ["nodes=1", "gres=gpu:1", "cpus-per-task=1", "ntasks-per-node=1"];
        let tests = [&task[..], &["NCCL_TESTS=/usr/local/bin", "MPI=none"]].concat();
        let settings: [(&'static str, Vec<&str>); 11] = [
            ("torchrun-multinode", task.to_vec()),
            ("torchrun-single", node.to_vec()),
            (
                "array",
                [
                    &node[..],
                    &["array=1", "EXPERIMENTS=/shared/alice/experiments.txt", "RESULTS=/shared/alice/array"],
                ]
                .concat(),
            ),
            ("jax", task.to_vec()),
            ("deepspeed", task.to_vec()),
            ("megatron", [&task[..], &["MEGATRON=/opt/megatron"]].concat()),
            ("pyxis", [&task[..], &["IMAGE=/shared/x.sqsh", "CODE=/shared"]].concat()),
            ("apptainer", [&task[..], &["IMAGE=/shared/x.sif"]].concat()),
            ("heterogeneous", [&node[..], &["LOAD=exec sleep 600"]].concat()),
            ("nccl-tests", tests.clone()),
            ("soak", tests),
        ];
        let mut runs = Vec::new();
        for (template, settings) in &settings {
            let comes_back = !["array", "heterogeneous", "nccl-tests", "soak"].contains(template);
            let ends = match *template {
                "torchrun-multinode" => ends(),
                _ if comes_back => {
                    let signal =
                        if *template == "megatron" { SAVED.replace("USR1", "TERM").leak() } else { SAVED };
                    vec![CANCELLED, end("near", "work", NEAR, signal)]
                }
                _ => vec![CANCELLED, end("limit", "deaf", Act::Limit, LIMIT)],
            };
            for end in ends {
                runs.push(Run::submit(cluster, template, settings, end)?);
            }
        }
        for run in &runs {
            // The soak template prints its program's output at the end of a round.
            run.wait(cluster, if run.template == "soak" { "== round 1" } else { "at work" })?;
            run.act(cluster)?;
        }
        let wrong: Vec<String> = runs
            .iter()
            .filter_map(|run| run.check(cluster).err())
            .take(3)
            .map(|error| format!("{error:#}"))
            .collect();
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    })
}
