//! Tests of the test cluster itself, without railgate.

use std::time::Duration;

use anyhow::Result;
use nix::sys::signal::Signal;
use railgate_tests::cluster::Builder;
use railgate_tests::poll;

const MINUTE: Duration = Duration::from_secs(60);

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn two_nodes_answer_one_user() -> Result<()> {
    Builder::new(2).plain().test(|cluster| {
        let said =
            cluster.alice().srun(&["-N2", "bash", "-c", "echo $(hostname) $(id -un) $SLURM_NNODES"])?.ok()?;
        let mut lines: Vec<&str> = said.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["gn1 rgalice 2", "gn2 rgalice 2"]);

        let gpus = cluster.bob().srun(&["--gres=gpu:2", "printenv", "CUDA_VISIBLE_DEVICES"])?.ok()?;
        assert_eq!(gpus, "0,1\n");

        let id =
            cluster.alice().sbatch(&["-N2", "-o", "%x.%j.log", "-J", "hello"], "srun hostname | sort")?;
        let job = cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
        assert_eq!(job.restarts(), 0);
        let output = cluster.output(&format!("/home/rgalice/hello.{id}.log"));
        assert_eq!(output.as_deref(), Some("gn1\ngn2\n"));
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_failing_prolog_drains_the_node_and_requeues_the_job() -> Result<()> {
    let prolog = "#!/bin/sh\n[ \"$SLURMD_NODENAME\" != gn1 ]\n";
    let builder = Builder::new(3).plain().file("/etc/slurm/prolog.d/50-site", prolog);
    builder.slurm_conf("Prolog", "/etc/slurm/prolog.d/*").test(|cluster| {
        let id = cluster.alice().sbatch(&["-N2", "-o", "out"], "srun hostname | sort")?;
        let job = cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
        assert_eq!((job.nodes(), job.restarts()), ("gn[2-3]", 1));
        let node = cluster.node("gn1")?;
        assert!(node.drained());
        assert_eq!(node.reason(), "Prolog error");
        assert_eq!(cluster.output("/home/rgalice/out").as_deref(), Some("gn2\ngn3\n"));
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn jobs_leave_a_node_without_power_and_one_without_a_cable() -> Result<()> {
    Builder::new(2).plain().slurm_conf("SlurmdTimeout", "9").test(|cluster| {
        let id = cluster.alice().sbatch(&["-N1", "-w", "gn1"], "sleep 600")?;
        let other = cluster.alice().sbatch(&["-N1", "-w", "gn2"], "sleep 600")?;
        cluster.wait_job(id, &["RUNNING"], MINUTE)?;
        cluster.wait_job(other, &["RUNNING"], MINUTE)?;
        cluster.kill_node("gn1")?;
        cluster.cut_link("gn2")?;
        for (id, node) in [(id, "gn1"), (other, "gn2")] {
            cluster.wait_node(node, "down", MINUTE, |node| node.state().contains("DOWN"))?;
            cluster.wait_job_until(id, "requeued", MINUTE, |job| job.restarts() == 1)?;
        }
        // Its first attempt still runs behind the unplugged cable, where a second one could not start.
        cluster.alice().run(&["scancel", &other.to_string()])?.ok()?;
        cluster.mend_link("gn2")?;
        cluster.boot_node("gn1")?;
        for node in ["gn1", "gn2"] {
            cluster.wait_node(node, "back", MINUTE, |node| !node.state().contains("DOWN"))?;
        }
        cluster.wait_job(id, &["RUNNING"], MINUTE)?;
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn clusters_run_side_by_side_and_leave_nothing_behind() -> Result<()> {
    let mut first = Vec::new();
    Builder::new(1).plain().test(|one| {
        Builder::new(1).plain().test(|two| {
            for cluster in [one, two] {
                let said =
                    cluster.alice().srun(&["cat", "/etc/hostname", "/proc/sys/kernel/hostname"])?.ok()?;
                assert!(said.ends_with("gn1\n"), "{said}");
                first.push(cluster.first_process()?);
            }
            // Files of one cluster are visible neither in the other nor on this machine.
            one.alice().run(&["touch", "/tmp/rg-here", "/shared/rg-here"])?.ok()?;
            assert!(two.read("ctl", "/shared/rg-here").is_err());
            assert!(!std::path::Path::new("/tmp/rg-here").exists());
            Ok(())
        })
    })?;
    for pid in first {
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "process {pid} still exists");
    }
    Ok(())
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn daemons_can_be_stopped_frozen_and_restarted() -> Result<()> {
    Builder::new(1).plain().test(|cluster| {
        let id = cluster.alice().sbatch(&["-N1"], "sleep 600")?;
        cluster.wait_job(id, &["RUNNING"], MINUTE)?;
        cluster.stop_slurmctld()?;
        assert_ne!(cluster.root().run(&["scontrol", "ping"])?.code, 0);
        cluster.start_slurmctld()?;
        cluster.freeze("ctl", "slurmctld")?;
        let asked = cluster.root().spawn(&["squeue", "-h"])?;
        cluster.thaw("ctl", "slurmctld")?;
        asked.wait(MINUTE)?.ok()?;
        cluster.kill_slurmd("gn1")?;
        cluster.start_slurmd("gn1")?;
        assert_eq!(cluster.wait_job(id, &["RUNNING"], MINUTE)?.restarts(), 0);
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_frozen_disk_blocks_its_writer_until_it_is_thawed() -> Result<()> {
    Builder::new(1).plain().test(|cluster| {
        let frozen = cluster.frozen_disk("gn1", "/frozen")?;
        let mut writer = cluster.root().on("gn1").spawn(&["touch", "/frozen/file"])?;
        let state = ["ps", "-C", "touch", "-o", "state="];
        poll::until(MINUTE, "a process in the kernel", || {
            Ok(cluster.root().on("gn1").run(&state)?.stdout.contains('D').then_some(()))
        })?;
        writer.signal(Signal::SIGKILL)?;
        assert!(cluster.root().on("gn1").run(&state)?.stdout.contains('D'));
        assert!(writer.running()?);
        drop(frozen);
        assert_ne!(writer.wait(MINUTE)?.code, 0);
        Ok(())
    })
}
