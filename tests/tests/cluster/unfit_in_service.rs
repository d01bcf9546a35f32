//! Unfit nodes that the breaker leaves in service are listed.

use std::time::Duration;

use anyhow::Result;
use railgate_tests::cluster::{Builder, Cluster};

const MINUTE: Duration = Duration::from_secs(60);

const ONE: &str = "
    [breaker]
    max_nodes = 1
    max_percent = 100.0
    partition_max_nodes = 4
    partition_max_percent = 100.0
";

fn comment(cluster: &Cluster, node: &str) -> Result<String> {
    let said = cluster.root().on("ctl").run(&["scontrol", "show", "node", node])?.ok()?;
    let line = said.lines().find_map(|line| line.trim().strip_prefix("Comment="));
    Ok(line.unwrap_or_default().trim().to_owned())
}

fn check(cluster: &Cluster, node: &str) -> Result<()> {
    cluster.root().on(node).run(&["railgate", "check", "--drain"])?.ok().map(drop)
}

/// The list as a user sees it who may not read the node's comment.
fn nodes(cluster: &Cluster, words: &[&str]) -> Result<String> {
    cluster.alice().on("ctl").run(&[&["railgate", "nodes"], words].concat())?.ok()
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn unfit_nodes_left_in_service_are_listed_until_healed_or_drained() -> Result<()> {
    // The test starts each check run itself.
    let builder = Builder::new(4).config(ONE)?.slurm_conf("HealthCheckInterval", "0");
    builder.test(|cluster| {
        let root = || cluster.root().on("ctl");
        let update = |words: &[&str]| root().run(&[&["scontrol", "update"], words].concat())?.ok();
        for node in ["gn1", "gn2", "gn3", "gn4"] {
            cluster.hardware(node)?.inject("gpu-lost@3")?;
        }
        update(&["nodename=gn4", "comment=rack 7, see ticket 9"])?;

        // On a paused node nothing is written.
        cluster.root().on("gn2").run(&["railgate", "pause", "--for", "1h", "--why", "a test"])?.ok()?;
        check(cluster, "gn1")?;
        check(cluster, "gn2")?;
        assert_eq!(comment(cluster, "gn2")?, "");
        cluster.root().on("gn2").run(&["railgate", "resume"])?.ok()?;

        for node in ["gn2", "gn3", "gn4"] {
            check(cluster, node)?;
            assert!(!cluster.node(node)?.drained(), "{node}");
        }
        assert!(cluster.node("gn1")?.drained());
        assert_eq!(
            (comment(cluster, "gn1")?, comment(cluster, "gn4")?.as_str()),
            (String::new(), "rack 7, see ticket 9")
        );
        let said = comment(cluster, "gn2")?;
        assert!(said.starts_with("railgate: unfit, not drained (breaker): gpu-lost@3: "), "{said}");
        assert!(said.contains("[periodic] since 20") && said.ends_with('Z'), "{said}");
        let listed = nodes(cluster, &[])?;
        let (_, below) = listed.split_once("unfit and not drained").unwrap_or_default();
        for (node, there) in [("gn1", false), ("gn2", true), ("gn3", true), ("gn4", false)] {
            let line = below.lines().find(|line| line.starts_with(node));
            assert_eq!(line.is_some_and(|line| line.contains("gpu-lost@3: ")), there, "{node}: {listed}");
        }
        let json: serde_json::Value = serde_json::from_str(&nodes(cluster, &["--format", "json"])?)?;
        assert_eq!(json["not_drained"].as_array().map(Vec::len), Some(2), "{json}");
        assert_eq!(
            (json["not_drained"][0]["name"].as_str(), json["not_drained"][0]["check"].as_str()),
            (Some("gn2"), Some("gpu-lost"))
        );
        assert!(json["not_drained"][0]["since"].is_u64(), "{json}");

        // A later check run or prolog with the same finding changes nothing.
        let job = cluster.alice().sbatch(&["-w", "gn2", "--gres=gpu:8"], "true")?;
        cluster.wait_job(job, &["COMPLETED"], MINUTE)?;
        check(cluster, "gn2")?;
        assert_eq!(comment(cluster, "gn2")?, said);

        // After healing the next check removes it. If /run lost the record, Slurm is queried once.
        cluster.hardware("gn2")?.heal()?;
        cluster.root().on("gn2").run(&["rm", "/run/railgate/let-through"])?.ok()?;
        check(cluster, "gn2")?;
        assert_eq!(comment(cluster, "gn2")?, "");
        // A node is drained once the breaker permits it.
        cluster.hardware("gn1")?.heal()?;
        update(&["nodename=gn1", "state=resume"])?;
        check(cluster, "gn3")?;
        assert!(cluster.node("gn3")?.drained());
        assert_eq!(
            (comment(cluster, "gn3")?, comment(cluster, "gn4")?.as_str()),
            (String::new(), "rack 7, see ticket 9")
        );
        let listed = nodes(cluster, &[])?;
        assert!(!listed.contains("unfit and not drained"), "{listed}");
        Ok(())
    })
}
