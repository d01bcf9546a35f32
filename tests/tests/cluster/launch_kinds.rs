//! `railgate launch` in arrays, heterogeneous jobs and containers, and where railgate is not set up.

use anyhow::{Context as _, Result};
use railgate_tests::cluster::{Builder, CONTROLLER, Cluster};
use railgate_tests::{poll, skipped};

use crate::templates::pyxis;
use crate::training::{ALL_MAY_DRAIN, MINUTE};

/// A rank of job or array task `$1` writes where it runs, waits for `/shared/go.$1.START`, and does what `/shared/do.$1.RANK.START`
/// holds, if that exists.
pub(crate) const PROGRAM: &str = r#"#!/bin/bash
echo "start $RAILGATE_START rank $SLURM_PROCID on $SLURMD_NODENAME in ${STAND_IN_IMAGE:-${APPTAINER_CONTAINER:-no image}}"
trap 'exit 143' TERM
touch /shared/begun.$1.$SLURM_PROCID.$RAILGATE_START
until [ -e /shared/go.$1.$RAILGATE_START ]; do sleep 0.1; done
[ ! -e /shared/do.$1.$SLURM_PROCID.$RAILGATE_START ] || . /shared/do.$1.$SLURM_PROCID.$RAILGATE_START
"#;

pub(crate) fn log(cluster: &Cluster, name: &str) -> String {
    cluster.output(&format!("/home/rgalice/{name}")).unwrap_or_default()
}

/// Waits until all ranks of a start run.
pub(crate) fn begun(cluster: &Cluster, name: &str, start: u32, ranks: u32) -> Result<()> {
    poll::until(MINUTE, &format!("start {start} of {name}"), || {
        let has = |rank| cluster.output(&format!("/shared/begun.{name}.{rank}.{start}")).is_some();
        Ok((0..ranks).all(has).then_some(()))
    })
    .with_context(|| log(cluster, &format!("log.{name}")))
}

pub(crate) fn go(cluster: &Cluster, name: &str, start: u32) -> Result<()> {
    cluster.write(CONTROLLER, &format!("/shared/go.{name}.{start}"), "")
}

/// A rank of the first start fails when it goes.
pub(crate) fn fails(cluster: &Cluster, name: &str, rank: u32) -> Result<()> {
    cluster.write(CONTROLLER, &format!("/shared/do.{name}.{rank}.0"), "exit 3")
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn each_task_of_an_array_has_spares_and_starts_of_its_own() -> Result<()> {
    Builder::new(6).test(|cluster| {
        cluster.write(CONTROLLER, "/shared/program", PROGRAM)?;
        let words = ["--array=1-2", "-N3", "--gres=gpu:8", "--ntasks-per-node=1", "-o", "log.%a"];
        let script = "railgate launch --spares 1 -- bash /shared/program $SLURM_ARRAY_TASK_ID";
        let array = cluster.alice().sbatch(&words, script)?;
        for task in ["1", "2"] {
            begun(cluster, task, 0, 2)?;
        }
        // Rank 1 of task 1 loses its node, rank 0 of task 2 fails of its own.
        cluster.hardware(&node_of(cluster, "1", 1)?)?.inject("gpu-lost@3")?;
        fails(cluster, "1", 1)?;
        fails(cluster, "2", 0)?;
        go(cluster, "1", 0)?;
        go(cluster, "2", 0)?;
        begun(cluster, "1", 1, 2)?;
        go(cluster, "1", 1)?;
        cluster.wait_job(array, &["COMPLETED", "FAILED"], 2 * MINUTE)?;
        let (first, second) = (log(cluster, "log.1"), log(cluster, "log.2"));
        assert!(first.contains("takes the place of") && first.contains("; 2 of 3 restarts left"), "{first}");
        poll::until(MINUTE, "the second task to end", || {
            let second = log(cluster, "log.2");
            Ok(second.contains("start 0 ended after").then_some(()))
        })
        .with_context(|| second.clone())?;
        let second = log(cluster, "log.2");
        assert!(second.contains("all nodes are fit: the program's own error"), "{second}");
        assert!(!second.contains("start 1 on"), "{second}");
        Ok(())
    })
}

/// The node on which a rank of the first start runs. Its line comes through srun, and so later than the file that it makes.
fn node_of(cluster: &Cluster, name: &str, rank: u32) -> Result<String> {
    let text = || log(cluster, &format!("log.{name}"));
    let begins = format!("start 0 rank {rank} on ");
    poll::until(MINUTE, &format!("the line of rank {rank} of {name}"), || {
        let text = text();
        let node = text.lines().find_map(|line| line.strip_prefix(&begins)?.split(' ').next());
        Ok(node.map(str::to_owned))
    })
    .with_context(text)
}

/// One of the tasks has the id of the whole array, and no task waits for the steps of another one.
#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn each_task_of_an_array_continues_on_its_spare_after_its_node_died() -> Result<()> {
    let builder = Builder::new(6).slurm_conf("SlurmdTimeout", "10").slurm_conf("MessageTimeout", "5");
    builder.test(|cluster| {
        cluster.write(CONTROLLER, "/shared/program", PROGRAM)?;
        let words =
            ["--array=1-2", "-N3", "--no-kill", "--gres=gpu:8", "--ntasks-per-node=1", "-o", "log.%a"];
        let script = "railgate launch --spares 1 -- bash /shared/program $SLURM_ARRAY_TASK_ID";
        let array = cluster.alice().sbatch(&words, script)?;
        let tasks = ["1", "2"];
        for task in tasks {
            begun(cluster, task, 0, 2)?;
        }
        let dead = tasks.map(|task| node_of(cluster, task, 1));
        let dead: Vec<String> = dead.into_iter().collect::<Result<_>>()?;
        dead.iter().try_for_each(|node| cluster.kill_node(node))?;
        for task in tasks {
            begun(cluster, task, 1, 2)?;
        }
        for (task, dead) in tasks.iter().zip(&dead) {
            go(cluster, task, 1)?;
            let ended = poll::until(MINUTE, "the task to end", || {
                Ok(Some(log(cluster, &format!("log.{task}"))).filter(|text| text.contains("start 1 ended")))
            })?;
            assert!(ended.contains(&format!(" takes the place of {dead}")), "{ended}");
        }
        cluster.wait_job(array, &["COMPLETED"], 2 * MINUTE)?;
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn nodes_of_all_components_of_a_heterogeneous_job_are_judged() -> Result<()> {
    Builder::new(4).test(|cluster| {
        cluster.write(CONTROLLER, "/shared/program", PROGRAM)?;
        let alice = cluster.alice();
        let submit = |name: &str, nodes: [&str; 2]| {
            let one = ["-N1", "--ntasks-per-node=1", "--gres=gpu:8"];
            let log = format!("log.{name}");
            let words = [&["-o", &log, "-w", nodes[0]], &one[..], &[":", "-w", nodes[1]], &one[..]].concat();
            let script = format!("railgate launch -- srun --het-group=0,1 bash /shared/program {name}");
            alice.sbatch(&words, &script)
        };
        let (lost, own) = (submit("lost", ["gn1", "gn2"])?, submit("own", ["gn3", "gn4"])?);
        for name in ["lost", "own"] {
            begun(cluster, name, 0, 2)?;
            fails(cluster, name, 1)?;
        }
        cluster.hardware("gn2")?.inject("gpu-lost@3")?;
        go(cluster, "lost", 0)?;
        go(cluster, "own", 0)?;
        cluster.wait_job(own, &["FAILED"], 2 * MINUTE)?;
        let text = log(cluster, "log.own");
        assert!(text.contains("start 0 on 2 nodes gn[3-4]"), "{text}");
        assert!(text.contains("all nodes are fit: the program's own error"), "{text}");
        poll::until(MINUTE, "the judgement about gn2", || {
            Ok(log(cluster, "log.lost").contains("start 0 ended after").then_some(()))
        })
        .with_context(|| format!("job {lost}"))?;
        let text = log(cluster, "log.lost");
        assert!(text.contains("gn2 is left out: ") && text.contains("gpu-lost@3: "), "{text}");
        assert!(text.contains("no spare is left"), "{text}");
        // Spares would have no component to belong to.
        let words = ["-N1", "-o", "log.spares", ":", "-N1"];
        let refused = alice.sbatch(&words, "railgate launch --spares 1 -- srun --het-group=0,1 true")?;
        cluster.wait_job(refused, &["FAILED"], 2 * MINUTE)?;
        let text = log(cluster, "log.spares");
        assert!(
            text.contains(
                "need one number of tasks for all nodes, and this job has 2 heterogeneous components"
            ),
            "{text}"
        );
        Ok(())
    })
}

/// Slurm 22.05 counts the GPUs of `gn4` as used after this: it takes `gn2` out of the job, and then releases those of the second and
/// fourth node that are left.
#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn after_a_node_died_the_next_start_waits_for_no_gpu_of_an_ended_step() -> Result<()> {
    let builder = Builder::new(5).slurm_conf("SlurmdTimeout", "10").slurm_conf("MessageTimeout", "5");
    builder.config(ALL_MAY_DRAIN)?.test(|cluster| {
        cluster.write(CONTROLLER, "/shared/program", PROGRAM)?;
        let words = ["-N5", "--no-kill", "--gres=gpu:8", "--ntasks-per-node=1", "-o", "log.gap"];
        let job = cluster.alice().sbatch(&words, "railgate launch --spares 2 -- bash /shared/program gap")?;
        begun(cluster, "gap", 0, 3)?;
        cluster.hardware("gn3")?.inject("gpu-lost@3")?;
        fails(cluster, "gap", 2)?;
        go(cluster, "gap", 0)?;
        begun(cluster, "gap", 1, 3)?;
        cluster.kill_node("gn2")?;
        begun(cluster, "gap", 2, 3)?;
        go(cluster, "gap", 2)?;
        cluster.wait_job(job, &["COMPLETED"], 2 * MINUTE)?;
        let text = log(cluster, "log.gap");
        for line in [
            "start 1 rank 2 on gn4",
            "start 2 rank 0 on gn1",
            "start 2 rank 1 on gn5",
            "start 2 rank 2 on gn4",
        ] {
            assert!(text.contains(line), "no {line} in {text}");
        }
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_program_that_mpirun_starts_continues_on_a_spare() -> Result<()> {
    Builder::new(3).test(|cluster| {
        if cluster.root().run(&["test", "-x", "/usr/bin/mpirun"])?.code != 0 {
            return skipped("launch: no Open MPI here");
        }
        let of_open_mpi =
            "export SLURM_PROCID=$OMPI_COMM_WORLD_RANK SLURMD_NODENAME=$(hostname)\n. /shared/program $1\n";
        cluster.write(CONTROLLER, "/shared/program", PROGRAM)?;
        cluster.write(CONTROLLER, "/shared/of-open-mpi", of_open_mpi)?;
        let words = ["-N3", "--gres=gpu:8", "--ntasks-per-node=1", "-o", "log.mpi"];
        let script = "railgate launch --spares 1 -- mpirun bash /shared/of-open-mpi mpi";
        let job = cluster.alice().sbatch(&words, script)?;
        begun(cluster, "mpi", 0, 2)?;
        cluster.hardware("gn2")?.inject("gpu-lost@3")?;
        fails(cluster, "mpi", 1)?;
        go(cluster, "mpi", 0)?;
        begun(cluster, "mpi", 1, 2)?;
        go(cluster, "mpi", 1)?;
        cluster.wait_job(job, &["COMPLETED"], 2 * MINUTE)?;
        let text = log(cluster, "log.mpi");
        assert!(text.contains("gn3 takes the place of gn2"), "{text}");
        for line in ["start 0 rank 1 on gn2 in", "start 1 rank 0 on gn1 in", "start 1 rank 1 on gn3 in"] {
            assert!(text.contains(line), "no {line} in {text}");
        }
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_program_in_a_pyxis_container_continues_on_a_spare() -> Result<()> {
    Builder::new(3).test(|cluster| {
        pyxis(cluster)?;
        cluster.write(CONTROLLER, "/shared/program", PROGRAM)?;
        let words = ["-N3", "--gres=gpu:8", "--ntasks-per-node=1", "-o", "log.image"];
        let script =
            "railgate launch --spares 1 -- srun --container-image=/shared/x.sqsh bash /shared/program image";
        let job = cluster.alice().sbatch(&words, script)?;
        begun(cluster, "image", 0, 2)?;
        cluster.hardware("gn2")?.inject("gpu-lost@3")?;
        fails(cluster, "image", 1)?;
        go(cluster, "image", 0)?;
        begun(cluster, "image", 1, 2)?;
        go(cluster, "image", 1)?;
        cluster.wait_job(job, &["COMPLETED"], 2 * MINUTE)?;
        let text = log(cluster, "log.image");
        assert_eq!(text.matches("in /shared/x.sqsh").count(), 4, "{text}");
        assert!(text.contains("gn3 takes the place of gn2"), "{text}");
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn without_root_plugin_and_configuration_launch_names_what_is_missing() -> Result<()> {
    // Without any file in these directories Slurm would fail each prolog.
    let site = ["/etc/slurm/prolog.d/50-site", "/etc/slurm/epilog.d/50-site"];
    let builder = site.into_iter().fold(Builder::new(2), |builder, file| builder.file(file, "#!/bin/sh\n"));
    builder.test(|cluster| {
        cluster.write(CONTROLLER, "/shared/program", PROGRAM)?;
        let root = cluster.root();
        for machine in [CONTROLLER, "gn1", "gn2"] {
            let remove = "rm -f /etc/railgate/railgate.toml; : > /etc/slurm/plugstack.conf; rm -f /etc/slurm/{prolog,epilog}.d/*railgate*";
            root.clone().on(machine).run(&["bash", "-c", remove])?.ok()?;
        }
        let words = ["-N2", "--gres=gpu:8", "--ntasks-per-node=1", "-o", "log.bare"];
        let job = cluster.alice().sbatch(&words, "railgate launch -- bash /shared/program bare")?;
        begun(cluster, "bare", 0, 2)?;
        fails(cluster, "bare", 1)?;
        go(cluster, "bare", 0)?;
        cluster.wait_job(job, &["FAILED"], 2 * MINUTE)?;
        let text = log(cluster, "log.bare");
        assert!(text.contains("the cause is not known: "), "{text}");
        assert!(text.contains("railgate's SPANK plugin is not in use"), "{text}");
        // In a container without Slurm's commands.
        let inside = "export SLURM_JOB_ID=7 SLURM_JOB_NODELIST=gn1; PATH=/nowhere /usr/bin/railgate launch -- true";
        let said = cluster.alice().run(&["bash", "-c", inside])?;
        assert!(said.code != 0 && said.stderr.contains("cannot start srun: it is not in PATH. In a"), "{said}");
        Ok(())
    })
}
