//! Files that a job's owner or another user puts into the report directory.

use std::fs;
use std::os::unix::fs::chown;

use anyhow::Result;
use railgate_tests::cluster::{Builder, Cluster};
use railgate_tests::poll;

use crate::training::{ALL_MAY_DRAIN, MINUTE, end, log, started, submit};

const REPORTS: &str = "/shared/railgate/test";
const CONTROLLERS_LOG: &str = "/var/lib/railgate/controller/epilog-ctld.log";

/// Waits until the prologs of the job's nodes have created the attempt's directory.
fn begun(cluster: &Cluster, job: u32, nodes: &[&str]) -> Result<std::path::PathBuf> {
    let dir = format!("{REPORTS}/{job}/0");
    poll::until(MINUTE, "the prologs' parts", || {
        let all = nodes.iter().all(|node| cluster.read("ctl", &format!("{dir}/{node}.json")).is_ok());
        Ok(all.then_some(()))
    })?;
    cluster.path("ctl", &dir)
}

/// A sparse file of alice.
fn hole(dir: &std::path::Path, name: &str) -> Result<()> {
    let path = dir.join(name);
    fs::File::create(&path)?.set_len(8 << 20)?;
    chown(&path, Some(5_001), Some(5_001))?;
    Ok(())
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn only_files_of_the_jobs_nodes_are_read() -> Result<()> {
    Builder::new(3).config(ALL_MAY_DRAIN)?.test(|cluster| {
        let alice = cluster.alice();
        let id = submit(&alice, &["-N2", "--gres=gpu:8"])?;
        assert_eq!(started(cluster, id)?, "gn1");
        let dir = begun(cluster, id, &["gn1", "gn2"])?;
        for number in 0..100 {
            hole(&dir, &format!("m{number}.json"))?;
        }
        let forged = format!(
            r#"{{"schema":1,"railgate":"0","cluster":"test","node":"gn9","job":{{"id":{id},"uid":5001,"gid":5001,"user":"rgalice","het_leader":null,"partition":"main","nodelist":"gn9","restarts":0,"allocation":"no-gpus"}},"attempt":0,"start":1,"end":2,"epilog":{{"taken":1,"verdict":{{"phase":"epilog","fitness":"unfit","action":"drain","deciding":0,"findings":[{{"check":"gpu-lost","part":"3","severity":"fail","class":"node","what":"forged","fix":"x","evidence":[]}}]}}}}}}"#
        );
        fs::write(dir.join("gn9.json"), forged)?;
        chown(dir.join("gn9.json"), Some(5_001), Some(5_001))?;
        cluster.hardware("gn2")?.inject("gpu-lost@3")?;
        end(cluster, id, 3)?;
        let job = cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
        assert_eq!((job.nodes(), job.restarts()), ("gn[1,3]", 1));
        let log = log(cluster, "rgalice", id);
        assert!(log.contains("attempt 0 left node gn2, which failed while it ran: gpu-lost@3"), "{log}");
        assert!(!log.contains("gn9"), "{log}");
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn an_unreadable_node_report_does_not_count_as_no_evidence() -> Result<()> {
    Builder::new(2).config(ALL_MAY_DRAIN)?.test(|cluster| {
        let alice = cluster.alice();
        let id = submit(&alice, &["-N2", "--gres=gpu:8"])?;
        started(cluster, id)?;
        begun(cluster, id, &["gn1", "gn2"])?;
        // The epilog cannot replace a directory.
        let part = format!("{REPORTS}/{id}/0/gn2.json");
        alice.run(&["sh", "-c", &format!("rm {part} && mkdir -p {part}/full")])?.ok()?;
        end(cluster, id, 3)?;
        cluster.wait_job(id, &["FAILED"], MINUTE)?;
        let told = "no node has evidence of a fault that ended it (could not tell what gn2 reported: \
                    gn2: refused: not a regular file)";
        poll::until(MINUTE, "the decision", || {
            Ok(cluster.read("ctl", CONTROLLERS_LOG)?.contains(told).then_some(()))
        })
    })
}

/// A program as on a file server with root squashing: root has no more rights than any other user.
fn squashed(name: &str) -> String {
    format!(
        "#!/bin/sh\nexec setpriv --bounding-set=-dac_override,-dac_read_search \
         /usr/libexec/railgate/railgate-{name}\n"
    )
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn no_user_can_occupy_the_directories_of_later_jobs() -> Result<()> {
    let builder = Builder::new(3).config(ALL_MAY_DRAIN)?;
    let builder = builder
        .file("/etc/slurm/squashed-prolog", &squashed("prolog"))
        .file("/etc/slurm/squashed-epilog", &squashed("epilog"))
        .slurm_conf("Prolog", "/etc/slurm/squashed-prolog")
        .slurm_conf("Epilog", "/etc/slurm/squashed-epilog");
    builder.test(|cluster| {
        let (alice, bob, root) = (cluster.alice(), cluster.bob(), cluster.root());
        // While the directory was world-writable, bob created directories for later jobs.
        root.run(&["install", "-d", "-m", "1777", REPORTS])?.ok()?;
        let squat = "for job in {1..50}; do mkdir -m 777 $job; done; mkdir .new";
        bob.clone().within(REPORTS).run(&["bash", "-c", squat])?.ok()?;
        // The change that doctor recommends.
        root.run(&["chown", "slurm", "/shared/railgate", REPORTS])?.ok()?;
        root.run(&["chmod", "755", "/shared/railgate"])?.ok()?;

        let id = submit(&alice, &["-N2", "--gres=gpu:8"])?;
        assert_eq!(started(cluster, id)?, "gn1");
        // An admin has drained the node, so only the report shows that the job failed because of it.
        root.run(&["scontrol", "update", "nodename=gn2", "state=drain", "reason=bad dimm"])?.ok()?;
        cluster.hardware("gn2")?.inject("gpu-lost@3")?;
        end(cluster, id, 3)?;
        let job = cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
        assert_eq!((job.nodes(), job.restarts()), ("gn[1,3]", 1));
        assert_ne!(bob.run(&["mkdir", &format!("{REPORTS}/99")])?.code, 0);
        let parts = alice.run(&["ls", &format!("{REPORTS}/{id}/0")])?.ok()?;
        assert!(parts.contains("gn1.json") && parts.contains("gn2.json"), "{parts}");
        Ok(())
    })
}
