//! Other Slurm setups, all in one cluster (docs/slurm-setups.md): a configless node, hooks of other programs beside railgate's, and
//! a backup slurmctld that takes over while a job runs.

use anyhow::{Result, ensure};
use railgate_tests::cluster::{Builder, Cluster, Job};
use railgate_tests::poll;

use crate::training::{ALL_MAY_DRAIN, MINUTE, in_order, one_line};

/// A hook that records when it ran and whether railgate's directory existed.
fn other_hook(name: &str) -> String {
    format!(
        "#!/bin/sh\nours=none\n[ ! -e \"/run/railgate/jobs/$SLURM_JOB_ID/current\" ] || ours=there\n\
         echo \"{name} $SLURM_JOB_ID $ours\" >>/var/log/hooks.log\n"
    )
}

/// One hook that calls two programs, as on a site that already runs jobstats.
const BOTH: &str = "#!/bin/sh\necho \"$(hostname) $SLURM_JOB_ID\" >>/shared/jobstats.log\n\
    exec /usr/libexec/railgate/railgate-epilog-ctld\n";

/// A job that records the state of its own node and of the other one.
const WORK: &str = "\
echo attempt ${SLURM_RESTART_COUNT:-0} on $SLURM_JOB_NODELIST
srun -N2 --ntasks-per-node=1 bash -c '
    echo job $SLURM_JOB_ID >$RAILGATE_JOB_DIR/user/note && cat $RAILGATE_JOB_DIR/user/note
    echo $(hostname) has $NCCL_IB_HCA'
[ ${SLURM_RESTART_COUNT:-0} = 0 ] || exit 0
until [ -e /shared/go ]; do sleep 0.1; done
exit 1
";

/// Removes the node's /etc/slurm except the hooks, and lets slurmd fetch its configuration from slurmctld.
fn configless(cluster: &Cluster, node: &str) -> Result<()> {
    cluster.kill_slurmd(node)?;
    let script = "mkdir /run/hooks && cp -a /etc/slurm/*.d /etc/slurm/epilog-ctld.sh /run/hooks/ && \
                  mount --bind /run/hooks /etc/slurm && [ ! -e /etc/slurm/slurm.conf ] && \
                  slurmd --conf-server ctl";
    cluster.root().on(node).run(&["sh", "-ec", script])?.ok()?;
    cluster.wait_node(node, "idle", MINUTE, |node| node.state() == "IDLE")?;
    Ok(())
}

fn findings(cluster: &Cluster, machine: &str) -> Result<String> {
    let said = cluster.root().on(machine).run(&["railgate", "doctor", "--format", "json"])?;
    let diagnosis: serde_json::Value = serde_json::from_str(&said.stdout)?;
    let wrong = diagnosis["findings"].as_array().into_iter().flatten();
    let wrong = wrong.filter(|finding| finding["level"] == "wrong");
    Ok(wrong.map(|finding| format!("{}: {}\n", finding["rule"], finding["what"])).collect())
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn railgate_works_with_configless_nodes_other_hooks_and_a_backup_controller() -> Result<()> {
    let mut builder = Builder::new(3)
        .config(ALL_MAY_DRAIN)?
        .slurm_conf("SlurmctldHost", "ctl\nSlurmctldHost=gn3")
        .slurm_conf("StateSaveLocation", "/shared/state")
        .slurm_conf("HealthCheckInterval", "3600")
        .slurm_conf("SlurmctldTimeout", "10")
        .slurm_conf("SlurmctldParameters", "enable_configless")
        .slurm_conf("EpilogSlurmctld", "/etc/slurm/epilog-ctld.sh")
        .file("/etc/slurm/epilog-ctld.sh", BOTH);
    for phase in ["prolog", "epilog"] {
        for name in ["50-gpustat", "99-site"] {
            let name = format!("{phase}.d/{name}");
            builder = builder.file(format!("/etc/slurm/{name}"), &other_hook(&name));
        }
    }
    builder.test(|cluster| {
        let sh = |machine: &str, script: &str| cluster.root().on(machine).run(&["sh", "-ec", script])?.ok();
        // Files shared by two controllers, at the path where each expects them.
        sh("ctl", "install -d -o slurm /shared/ledger")?;
        for machine in ["ctl", "gn3"] {
            sh(machine, "mount --bind /shared/ledger /var/lib/railgate/controller")?;
        }
        configless(cluster, "gn2")?;
        sh("gn3", "slurmctld")?;
        for machine in ["ctl", "gn1", "gn2", "gn3"] {
            assert_eq!(findings(cluster, machine)?, "", "{machine}");
        }

        let words = ["-N2", "-w", "gn[1-2]", "--gres=gpu:8", "--railgate-requeue=auto", "-o", "log"];
        // On a login node slurmctld's configuration is sufficient as well.
        let id = cluster.alice().on("gn2").within("/home/rgalice").sbatch(&words, WORK)?;
        let log = || cluster.output("/home/rgalice/log").unwrap_or_default();
        poll::until(
            MINUTE,
            "both nodes to work",
            || Ok((log().matches(" has ").count() == 2).then_some(())),
        )?;
        for node in ["gn1", "gn2"] {
            ensure!(log().contains(&format!("{node} has =mlx5_0:1,")), "{}", log());
            let hooks = cluster.read(node, "/var/log/hooks.log")?;
            // Prolog scripts run in reverse order of their names: railgate's is between the two.
            let ran = format!("prolog.d/99-site {id} none\nprolog.d/50-gpustat {id} there\n");
            assert!(hooks.starts_with(&ran), "{node}: {hooks}");
        }

        // The primary controller stops, and the backup takes over its state.
        cluster.stop_slurmctld()?;
        poll::until(2 * MINUTE, "gn3 to take over", || {
            Ok((cluster.job(id).is_ok_and(|job| job.state() == "RUNNING")).then_some(()))
        })?;
        cluster.hardware("gn1")?.inject("gpu-lost@3")?;
        cluster.write("ctl", "/shared/go", "")?;
        let again = |job: &Job| job.restarts() == 1;
        cluster.wait_job_until(id, "requeued by the backup controller", MINUTE, again)?;
        // The job requested gn1; with another node it completes.
        cluster.root().run(&["scontrol", "update", &format!("job={id}"), "ReqNodeList=gn[2-3]"])?.ok()?;
        let job = cluster.wait_job(id, &["COMPLETED"], 2 * MINUTE)?;
        assert_eq!((job.nodes(), job.restarts()), ("gn[2-3]", 1));
        assert!(cluster.node("gn1")?.reason().starts_with("railgate: gpu-lost@3: "));
        let theirs = || cluster.output("/shared/jobstats.log").unwrap_or_default();
        poll::until(MINUTE, "the other hook to have run twice", || {
            Ok((theirs() == format!("gn3 {id}\ngn3 {id}\n")).then_some(()))
        })?;
        let report = cluster.alice().on("gn3").run(&["railgate", "report", &id.to_string()])?.ok()?;
        in_order(&one_line(&report), &["gpu-lost@3", "gn3"]);
        for node in ["gn1", "gn2"] {
            let hooks = cluster.read(node, "/var/log/hooks.log")?;
            in_order(&hooks, &["epilog.d/99-site", "epilog.d/50-gpustat"]);
            assert_eq!(sh(node, "grep -c /run/railgate/jobs /proc/self/mounts || true")?, "0\n", "{node}");
        }

        // The primary returns and knows the restart that the backup counted.
        cluster.root().run(&["slurmctld"])?.ok()?;
        poll::until(MINUTE, "ctl to be primary again", || {
            let said = cluster.root().run(&["scontrol", "ping"])?.stdout;
            Ok(said.lines().any(|line| line.contains("at ctl is UP")).then_some(()))
        })?;
        // It answers before all nodes have registered.
        poll::until(MINUTE, "ctl to know the nodes that railgate drained", || {
            let story = cluster.root().run(&["railgate", "nodes"])?.ok()?;
            Ok((story.contains("gn1") && story.contains("gpu-lost@3")).then_some(()))
        })?;
        let kept = cluster.read("ctl", "/shared/ledger/ledger.jsonl")?;
        assert!(kept.contains(&id.to_string()), "{kept}");
        Ok(())
    })
}
