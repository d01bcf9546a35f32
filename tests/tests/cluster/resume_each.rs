//! The resume contract in all other templates whose jobs are requeued: the example program, ended at three moments.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use railgate_tests::cluster::{Builder, Cluster, Job};
use railgate_tests::poll;

use crate::templates::{filled, pyxis};
use crate::training::{ALL_MAY_DRAIN, MINUTE};

/// More steps than a slow machine runs during the whole test.
const STEPS: &str = "--plain --steps 6000 --save-every 50";
const SLOW: &str = "--step-seconds 0.04 --save-seconds 1";
/// Stand-in for Megatron-LM, which saves on SIGTERM as the example does.
const PRETRAIN: &str = "import runpy\nrunpy.run_path('/opt/example_train.py', run_name='__main__')\n";

/// A job of a template.
struct Run {
    name: &'static str,
    id: u32,
    /// Directory of its loss curve.
    dir: String,
    /// Whether the program is signalled to save before the time limit, and the job is requeued.
    told: bool,
}

impl Run {
    fn submit(cluster: &Cluster, name: &'static str, told: bool, settings: &[&str]) -> Result<Self> {
        let place = format!("/shared/alice/{name}");
        let dir = if name == "array" { format!("{place}/1") } else { place.clone() };
        let train = match name {
            "array" => "TRAIN=python3 /opt/example_train.py".to_owned(),
            "megatron" => format!("MODEL={STEPS} {SLOW}"),
            _ => format!("TRAIN=python3 /opt/example_train.py {STEPS} {SLOW} --save-dir {dir}"),
        };
        let output = format!("output={name}.log");
        let settings = [&[train.as_str(), &output], settings].concat();
        let text = filled(cluster, name, &settings)?;
        let id = cluster.alice().sbatch(&[], &text).with_context(|| name.to_owned())?;
        Ok(Run { name, id, dir, told })
    }

    fn log(&self, cluster: &Cluster) -> String {
        cluster.output(&format!("/home/rgalice/{}.log", self.name)).unwrap_or_default()
    }

    fn curve(&self, cluster: &Cluster) -> String {
        cluster.output(&format!("{}/loss.csv", self.dir)).unwrap_or_default()
    }

    fn saves(&self, cluster: &Cluster) -> Result<bool> {
        let names = fs::read_dir(cluster.path("ctl", &self.dir)?)?;
        let names = names.map(|entry| Ok(entry?.file_name())).collect::<Result<Vec<_>>>()?;
        Ok(names.iter().any(|name| name.to_string_lossy().ends_with(".ckpt.part")))
    }

    /// Waits until this attempt trains and is not saving.
    fn at_work(&self, cluster: &Cluster, attempt: usize) -> Result<()> {
        let begun = || self.log(cluster).matches("begins a").count() > attempt;
        poll::until(MINUTE, "its attempt to begin", || Ok(begun().then_some(())))
            .with_context(|| format!("{}: {}", self.name, self.log(cluster)))?;
        let from = self.curve(cluster).lines().count();
        poll::until(MINUTE, "ten more steps", || {
            Ok((self.curve(cluster).lines().count() > from + 10 && !self.saves(cluster)?).then_some(()))
        })
        .with_context(|| format!("{}: {}", self.name, self.log(cluster)))
    }

    /// A GPU falls off the bus, and the process that used it is killed, now or during its next save; returns the node. A save is
    /// short, so the waiting process itself sends the signal.
    fn strike(&self, cluster: &Cluster, saving: bool) -> Result<String> {
        let node = cluster.job(self.id)?.nodes().to_owned();
        cluster.hardware(&node)?.inject("gpu-lost@3")?;
        let wait = format!("until ls {}/.*.ckpt.part; do sleep 0.02; done; ", self.dir);
        let kill = format!("{}exec pkill -KILL -x python3", if saving { wait.as_str() } else { "" });
        cluster.root().on(&node).run(&["sh", "-c", &kill])?.ok()?;
        Ok(node)
    }

    /// Waits until the job was requeued this often.
    fn put_back(&self, cluster: &Cluster, restarts: u32) -> Result<()> {
        let back = |job: &Job| job.restarts() == restarts && job.state() != "COMPLETING";
        let job = cluster.wait_job_until(self.id, &format!("restart {restarts}"), MINUTE, back);
        job.map(drop).with_context(|| format!("{}: {}", self.name, self.log(cluster)))
    }
}

/// Ends each run with a lost GPU; repaired nodes are resumed.
fn strike_all(cluster: &Cluster, runs: &[Run], attempt: u32, saving: bool) -> Result<()> {
    let mut struck = Vec::new();
    for run in runs {
        run.at_work(cluster, attempt as usize)?;
        struck.push(run.strike(cluster, saving)?);
    }
    for (run, node) in runs.iter().zip(struck) {
        run.put_back(cluster, attempt + 1)?;
        cluster.hardware(&node)?.heal()?;
        cluster.root().on(&node).run(&["railgate", "readmit", &node])?.ok()?;
    }
    Ok(())
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn each_template_resumes_after_three_interruptions() -> Result<()> {
    let builder = Builder::new(11)
        .config(ALL_MAY_DRAIN)?
        .file("/opt/example_train.py", include_str!("../../../contrib/python/example_train.py"))
        .file("/opt/megatron/pretrain_gpt.py", PRETRAIN)
        .file("/usr/local/bin/python", "#!/bin/sh\nexec python3 \"$@\"\n")
        // Called as: exec --nv --bind PLACES IMAGE PROGRAM
        .file("/usr/local/bin/apptainer", "#!/bin/sh\nshift 5\nexec \"$@\"\n");
    builder.test(|cluster| {
        pyxis(cluster)?;
        cluster.root().run(&["install", "-d", "-o", "rgalice", "/shared/alice"])?.ok()?;
        cluster.write("ctl", "/shared/experiments.txt", &format!("{STEPS} {SLOW}\n"))?;
        let one = ["nodes=1", "ntasks-per-node=1", "cpus-per-task=2"];
        let place = |name: &str| format!("CHECKPOINTS=/shared/alice/{name}");
        let submit = |name: &'static str, told: bool, settings: &[&str]| {
            Run::submit(cluster, name, told, &[&[place(name).as_str()], settings].concat())
        };
        let runs = [
            submit("torchrun-single", true, &["cpus-per-task=2"])?,
            submit("jax", true, &one)?,
            submit("deepspeed", true, &one)?,
            submit(
                "megatron",
                true,
                &[&one[..], &["MEGATRON=/opt/megatron", "KEEP=--save-dir /shared/alice/megatron"]].concat(),
            )?,
            submit("pyxis", true, &["nodes=1", "cpus-per-task=2", "IMAGE=/shared/x.sqsh", "CODE=/shared"])?,
            submit("apptainer", true, &["nodes=1", "cpus-per-task=2", "IMAGE=/shared/x.sif"])?,
            submit("heterogeneous", false, &["LOAD=sleep 600"])?,
            Run::submit(
                cluster,
                "array",
                false,
                &[
                    "array=1",
                    "gres=gpu:8",
                    "cpus-per-task=2",
                    "EXPERIMENTS=/shared/experiments.txt",
                    "RESULTS=/shared/alice/array",
                ],
            )?,
        ];
        // Near the time limit; a job whose template does not requeue itself then loses a GPU instead.
        let (told, others): (Vec<_>, Vec<_>) = runs.into_iter().partition(|run| run.told);
        for run in &told {
            run.at_work(cluster, 0)?;
            cluster.alice().run(&["scancel", "--batch", "--signal=USR1", &run.id.to_string()])?.ok()?;
        }
        strike_all(cluster, &others, 0, false)?;
        for run in &told {
            run.put_back(cluster, 1)?;
            ensure!(run.log(cluster).contains("saved at step "), "{}: {}", run.name, run.log(cluster));
        }
        let runs: Vec<Run> = told.into_iter().chain(others).collect();
        // During a step.
        strike_all(cluster, &runs, 1, false)?;
        // During a save: its incomplete file is not a checkpoint.
        strike_all(cluster, &runs, 2, true)?;
        for run in &runs {
            run.at_work(cluster, 3)?;
            cluster.alice().run(&["scancel", &run.id.to_string()])?.ok()?;
        }
        // The remaining steps run without pauses, and are compared with an uninterrupted run.
        let by_hand = |dir: &str| -> Result<String> {
            let words = format!("python3 /opt/example_train.py {STEPS} --save-dir {dir}");
            let done = cluster.alice().deadline(MINUTE).run(&["sh", "-c", &words])?;
            ensure!(done.both().contains("finished at step 6000, "), "{done}");
            Ok(cluster.output(&format!("{dir}/loss.csv")).unwrap_or_default())
        };
        let whole = by_hand("/shared/alice/whole")?;
        ensure!(whole.lines().count() == 6000);
        for run in &runs {
            cluster.wait_job(run.id, &["CANCELLED"], MINUTE)?;
            ensure!(by_hand(&run.dir)? == whole, "{}: not the curve of an uninterrupted run", run.name);
        }
        Ok(())
    })
}
