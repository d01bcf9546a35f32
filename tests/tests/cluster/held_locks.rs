//! Locks held by a user, an unreadable record of restarts, a drain that is killed halfway, and a state directory that cannot be
//! written.

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;
use railgate_tests::cluster::{Builder, Cluster, Process};
use railgate_tests::poll;

use crate::training::{ALL_MAY_DRAIN, MINUTE, end, report, started, submit};

const ON_NODE: [&str; 3] =
    ["/run/railgate/drain.lock", "/var/lib/railgate/history.lock", "/var/lib/railgate/findings.lock"];
const ON_CONTROLLER: [&str; 6] = [
    "/var/lib/railgate/controller/ledger.lock",
    "/var/lib/railgate/controller/sum-up.lock",
    "/var/lib/railgate/controller/askers/0",
    "/var/lib/railgate/controller/askers/1",
    "/var/lib/railgate/controller/waiters/0",
    "/var/lib/railgate/controller/waiters/1",
];

/// Creates lock files as version 0.1.0 did, lets alice lock all of them, and returns her process.
fn held_by_alice(cluster: &Cluster, machine: &str, owner: &str, files: &[&str]) -> Result<Process> {
    for file in files {
        let dir = file.rsplit_once('/').context("no directory")?.0;
        let lay = format!(
            "[ -d {dir} ] || install -d -o {owner} {dir}; install -m 644 -o {owner} /dev/null {file}"
        );
        cluster.root().on(machine).run(&["sh", "-ec", &lay])?.ok()?;
    }
    let lock =
        "n=3; for f; do eval \"exec $n<\\$f\"; flock -n $n; n=$((n + 1)); done; echo locked; sleep 1000";
    let words: Vec<&str> = ["sh", "-ec", lock, "sh"].into_iter().chain(files.iter().copied()).collect();
    let process = cluster.alice().on(machine).spawn(&words)?;
    poll::until(MINUTE, "alice to hold the locks", || {
        Ok(process.output()?.contains("locked").then_some(()))
    })?;
    Ok(process)
}

fn closed_to_others(cluster: &Cluster, machine: &str, files: &[&str]) -> Result<()> {
    for file in files {
        let mode = cluster.root().on(machine).run(&["stat", "-c", "%a", file])?.ok()?;
        assert_eq!(mode.trim(), "600", "{machine}:{file}");
    }
    Ok(())
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn locks_held_by_a_user_do_not_stop_drain_readmit_or_requeue() -> Result<()> {
    let builder = Builder::new(3).config(ALL_MAY_DRAIN)?.slurm_conf("HealthCheckInterval", "0");
    builder.config("requeue = { waiters = 2 }")?.test(|cluster| {
        let node = |words: &[&str]| cluster.root().on("gn1").run(words);
        let held = held_by_alice(cluster, "gn1", "root", &ON_NODE)?;
        let held_too = held_by_alice(cluster, "ctl", "slurm", &ON_CONTROLLER)?;

        cluster.hardware("gn1")?.inject("gpu-lost@3")?;
        node(&["railgate", "check", "--drain"])?.ok()?;
        assert!(cluster.node("gn1")?.reason().starts_with("railgate: gpu-lost@3: "), "not drained");
        let counted = node(&["railgate", "check", "--history"])?.ok()?;
        let line =
            counted.lines().find(|line| line.starts_with("gpu-lost ")).context("nothing remembered")?;
        assert_eq!(line.split_whitespace().nth(4), Some("1"), "{counted}");
        cluster.hardware("gn1")?.heal()?;
        let back = node(&["railgate", "readmit", "gn1"])?;
        assert_eq!(back.code, 0, "{back}");
        closed_to_others(cluster, "gn1", &ON_NODE)?;

        // A job whose node fails is requeued.
        let id = submit(&cluster.alice(), &["--gres=gpu:8"])?;
        let place = started(cluster, id)?;
        cluster.hardware(&place)?.inject("gpu-lost@3")?;
        end(cluster, id, 3)?;
        let job = cluster.wait_job(id, &["COMPLETED", "FAILED"], MINUTE)?;
        let told = report(&cluster.alice(), id)?;
        assert_eq!((job.state(), job.restarts()), ("COMPLETED", 1), "{told}");
        assert!(!told.contains("did not wait"), "{told}");
        closed_to_others(cluster, "ctl", &[ON_CONTROLLER[0], ON_CONTROLLER[2], ON_CONTROLLER[4]])?;
        drop((held, held_too));
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn an_unreadable_ledger_line_stops_requeues_of_its_job_only() -> Result<()> {
    let builder = Builder::new(4).config(ALL_MAY_DRAIN)?.slurm_conf("HealthCheckInterval", "0");
    builder.test(|cluster| {
        let alice = cluster.alice();
        let broken = submit(&alice, &["--gres=gpu:8"])?;
        let other = submit(&alice, &["--gres=gpu:8"])?;
        // As version 0.1.0 wrote it after a report with many forged faults.
        let line = format!(
            "{{\"schema\":1,\"time\":1,\"event\":\"death\",\"job\":{broken},\"name\":\"{broken}\",\"why\":\"{}\"}}",
            "x".repeat(70 << 10)
        );
        let ledger = "/var/lib/railgate/controller/ledger.jsonl";
        cluster.write("ctl", ledger, &format!("{line}\n"))?;
        cluster.root().run(&["chown", "slurm", ledger])?.ok()?;
        for id in [broken, other] {
            let node = started(cluster, id)?;
            cluster.hardware(&node)?.inject("gpu-lost@3")?;
            end(cluster, id, 3)?;
        }
        let job = cluster.wait_job(other, &["COMPLETED", "FAILED"], MINUTE)?;
        assert_eq!((job.state(), job.restarts()), ("COMPLETED", 1));
        let job = cluster.wait_job(broken, &["COMPLETED", "FAILED"], MINUTE)?;
        assert_eq!((job.state(), job.restarts()), ("FAILED", 0));
        let told = crate::training::one_line(&report(&alice, broken)?);
        assert!(told.contains("how often the job was restarted is not known"), "{told}");
        Ok(())
    })
}

/// The real `sinfo` and `scontrol`, except that a drain waits and the second count never ends.
const SINFO: &str = r#"#!/bin/sh
n=$(cat /tmp/counts 2> /dev/null || echo 0)
echo $((n + 1)) > /tmp/counts
[ -e /tmp/hang-recount ] && [ $n = 1 ] && touch /tmp/recounting && exec sleep 1000
[ -e /tmp/slow ] && sleep 11
exec /usr/bin/sinfo "$@"
"#;
const SCONTROL: &str = r#"#!/bin/sh
case "$*" in *State=DRAIN*) touch /tmp/draining; while [ -e /tmp/hold-drain ]; do sleep 0.1; done ;; esac
[ -e /tmp/slow ] && sleep 11
exec /usr/bin/scontrol "$@"
"#;

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_drain_killed_before_its_recount_is_undone_by_the_next_check() -> Result<()> {
    let builder = Builder::new(2).slurm_conf("HealthCheckInterval", "0").config(
        "[slurm]\nbin_dir = '/opt/slow'\ntimeout = '35s'\n[breaker]\nmax_nodes = 1\nmax_percent = 100.0\n\
         partition_max_nodes = 4\npartition_max_percent = 100.0\n",
    )?;
    let builder = builder.file("/opt/slow/sinfo", SINFO).file("/opt/slow/scontrol", SCONTROL);
    builder.hardware("h100-sxm:gpu-lost@3").test(|cluster| {
        let sh = |node: &str, script: &str| cluster.root().on(node).run(&["sh", "-ec", script])?.ok();
        let there = |file: &str| {
            poll::until(MINUTE, file, || {
                Ok(sh("gn2", &format!("ls {file} || true"))?.contains(file).then_some(()))
            })
        };
        // Both nodes count drained nodes before either has drained.
        sh("gn2", "touch /tmp/hold-drain /tmp/hang-recount")?;
        let check = cluster.root().on("gn2").spawn(&["railgate", "check", "--drain"])?;
        there("/tmp/draining")?;
        sh("gn1", "railgate check --drain")?;
        assert!(cluster.node("gn1")?.drained());
        sh("gn2", "rm /tmp/hold-drain")?;
        there("/tmp/recounting")?;
        check.signal(Signal::SIGKILL)?;
        sh("gn2", "pkill -9 -x railgate || true; rm /tmp/hang-recount")?;
        assert!(cluster.node("gn2")?.drained(), "over the cap, as it was killed");

        sh("gn2", "railgate check --drain")?;
        assert!(!cluster.node("gn2")?.drained(), "{}", cluster.node("gn2")?.reason());
        assert!(cluster.node("gn1")?.drained());
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_slow_periodic_check_ends_before_slurmd_kills_it() -> Result<()> {
    let builder = Builder::new(1).slurm_conf("HealthCheckInterval", "0").config(ALL_MAY_DRAIN)?;
    let builder = builder.config("[slurm]\nbin_dir = '/opt/slow'\n")?;
    let builder = builder.file("/opt/slow/sinfo", SINFO).file("/opt/slow/scontrol", SCONTROL);
    builder.test(|cluster| {
        let root = cluster.root().on("gn1");
        // A pending reason waits for slurmctld, NVML does not answer, slurmctld is slow.
        cluster.hardware("gn1")?.inject("gpu-lost@3")?;
        cluster.stop_slurmctld()?;
        root.run(&["railgate", "check", "--drain"])?.ok()?;
        cluster.start_slurmctld()?;
        root.run(&["touch", "/tmp/slow"])?.ok()?;
        cluster.hardware("gn1")?.behave(|nvml| nvml.hang.insert("nvmlInit_v2".to_owned()))?;
        // slurmd allows a HealthCheckProgram 60 s.
        let check = root.run(&["timeout", "-s", "KILL", "60", "railgate", "check", "--drain"])?;
        assert_eq!(check.code, 0, "{check}");
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_node_that_cannot_save_its_repair_is_not_resumed_and_not_drained_again() -> Result<()> {
    // NVML has no reading for auxiliary power, so only the position in the kernel log records that the fault was handled.
    let builder = Builder::new(1).slurm_conf("HealthCheckInterval", "0").config(ALL_MAY_DRAIN)?;
    builder.config("[gate]\nstrikes = 1")?.test(|cluster| {
        let sh = |script: &str| cluster.root().on("gn1").run(&["sh", "-ec", script]);
        sh("railgate check --drain")?.ok()?;
        sh("mount --bind /var/lib/railgate /var/lib/railgate && mount -o remount,bind,ro /var/lib/railgate")?
            .ok()?;
        cluster.hardware("gn1")?.xid(2, 54, None)?;
        sh("railgate check --drain")?.ok()?;
        assert!(cluster.node("gn1")?.reason().starts_with("railgate: gpu-xid@2: "), "not drained");

        // An admin resumes the node with scontrol: the old fault does not drain it again.
        cluster.root().run(&["scontrol", "update", "nodename=gn1", "state=resume"])?.ok()?;
        sh("railgate check --drain")?.ok()?;
        assert!(!cluster.node("gn1")?.drained(), "drained again: {}", cluster.node("gn1")?.reason());

        // readmit resumes it only once the directory can be written again.
        cluster.hardware("gn1")?.xid(3, 54, None)?;
        sh("railgate check --drain")?.ok()?;
        assert!(cluster.node("gn1")?.drained());
        let refused = sh("railgate readmit gn1 --repaired")?;
        assert_eq!(refused.code, 1, "{refused}");
        for text in ["/var/lib/railgate/history.json", "Read-only file system", "not resumed"] {
            assert!(refused.both().contains(text), "no '{text}' in: {refused}");
        }
        assert!(cluster.node("gn1")?.drained());
        sh("umount /var/lib/railgate")?.ok()?;
        let back = sh("railgate readmit gn1 --repaired")?;
        assert_eq!(back.code, 0, "{back}");
        sh("railgate check --drain")?.ok()?;
        assert!(!cluster.node("gn1")?.drained());
        Ok(())
    })
}
