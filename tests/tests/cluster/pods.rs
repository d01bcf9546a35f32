//! Nodes with restricted access, such as a pod without permission to read the kernel log.

use anyhow::Result;
use railgate_tests::cluster::Builder;
use railgate_tests::poll;

use crate::training::{ALL_MAY_DRAIN, MINUTE, end, started, submit};

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn an_xid_known_only_from_nvml_drains_and_missing_coverage_is_reported() -> Result<()> {
    Builder::new(1).config(ALL_MAY_DRAIN)?.test(|cluster| {
        cluster.hardware("gn1")?.inject("kmsg-unreadable")?;
        cluster.hardware("gn1")?.inject("nvme-read-only")?;
        let alice = cluster.alice();
        let id = submit(&alice, &["-N1", "--gres=gpu:8"])?;
        started(cluster, id)?;
        let heard = format!("/run/railgate/jobs/{id}/current/xids.json");
        let read = || cluster.read("gn1", &heard).ok();
        poll::until(MINUTE, "a process to wait for Xids", || Ok(read()))?;
        // The watch is active shortly after it is reported.
        poll::until(MINUTE, "the Xid to be received", || {
            cluster.hardware("gn1")?.xid(3, 48, None)?;
            Ok(read().filter(|text| text.contains("\"code\":48")))
        })?;
        // A single process loads the driver's library, for readings and Xids.
        let holders = "grep -ls libnvidia-ml /proc/[0-9]*/maps | wc -l";
        let holders = cluster.root().on("gn1").run(&["sh", "-c", holders])?.ok()?;
        assert_eq!(holders.trim(), "1");
        let samples = format!("cat /run/railgate/jobs/{id}/current/samples.* | wc -c");
        let written = || cluster.root().on("gn1").run(&["sh", "-c", &samples])?.ok();
        poll::until(MINUTE, "samples beside it", || {
            Ok((written()?.trim().parse::<u64>()? > 2000).then_some(()))
        })?;
        end(cluster, id, 1)?;
        let node = cluster.wait_node("gn1", "drained", MINUTE, |node| node.drained())?;
        assert!(node.reason().starts_with("railgate: gpu-xid@3: Xid 48"), "{}", node.reason());
        let said = cluster.root().on("gn1").run(&["railgate", "check"])?.both();
        for words in ["Xids are not seen", "nvme@nvme3: reports that it is read-only"] {
            assert!(said.contains(words), "no '{words}' in:\n{said}");
        }
        Ok(())
    })
}
