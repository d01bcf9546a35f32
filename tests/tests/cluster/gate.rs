//! The gate before a job: fit nodes get their rails, and a job leaves unfit ones.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Result;
use railgate_model::Part;
use railgate_tests::cluster::{Builder, Cluster};

const MINUTE: Duration = Duration::from_secs(60);

/// Gives the node's HCAs names that no other node uses.
fn rename_hcas(cluster: &Cluster, node: &str) -> Result<()> {
    cluster.hardware(node)?.change(|snapshot| {
        if let Part::Read { data, .. } = &mut snapshot.fabric {
            for hca in &mut data.hcas {
                hca.name = hca.name.replace("mlx5_", "rail");
            }
        }
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn tasks_get_the_rails_of_their_node() -> Result<()> {
    Builder::new(2).test(|cluster| {
        rename_hcas(cluster, "gn2")?;
        let script = "show='echo $(hostname) ${NCCL_IB_HCA:-none}'\n\
                      srun bash -c \"$show\" > inherited\n\
                      NCCL_IB_HCA=mlx5_7 srun bash -c \"$show\" > own\n";
        let words = ["-N2", "--ntasks-per-node=4", "--gres=gpu:8"];
        let id = cluster.alice().sbatch(&words, script)?;
        cluster.wait_job(id, &["COMPLETED"], MINUTE)?;

        let inherited = cluster.output("/home/rgalice/inherited").unwrap_or_default();
        let mut lists: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for line in inherited.lines() {
            let (node, list) = line.split_once(' ').unwrap();
            lists.entry(node).or_default().insert(list);
        }
        assert_eq!(inherited.lines().count(), 8, "{inherited}");
        assert_eq!(lists["gn1"].len(), 1, "{inherited}");
        assert_eq!(lists["gn2"].len(), 1, "{inherited}");
        // The batch script ran on gn1; its value must not be inherited by tasks on gn2.
        assert!(lists["gn1"].iter().all(|list| list.matches("mlx5_").count() == 8), "{inherited}");
        assert!(lists["gn2"].iter().all(|list| list.matches("rail").count() == 8), "{inherited}");
        let own = cluster.output("/home/rgalice/own").unwrap_or_default();
        assert!(own.lines().all(|line| line.ends_with(" mlx5_7")), "{own}");

        let report = cluster.alice().run(&["railgate", "report", &id.to_string()])?.ok()?;
        for word in ["gn1", "gn2", "mlx5_0", "rail0"] {
            assert!(report.contains(word), "no {word} in:\n{report}");
        }
        // The report has both lists: railgate's, and the one that the user's step set instead.
        assert!(report.contains("NCCL_IB_HCA=mlx5_7"), "the user's value is missing in:\n{report}");
        for node in cluster.nodes() {
            assert!(!cluster.node(node)?.drained());
        }
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_job_leaves_the_node_whose_gpu_is_off_the_bus() -> Result<()> {
    Builder::new(3).hardware_of("gn1", "h100-sxm:gpu-lost@3").test(|cluster| {
        let words = ["-N2", "--gres=gpu:8", "-o", "log"];
        let id =
            cluster.alice().sbatch(&words, "echo attempt ${SLURM_RESTART_COUNT:-0}; srun hostname | sort")?;
        let job = cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
        assert_eq!((job.nodes(), job.restarts()), ("gn[2-3]", 1));
        let node = cluster.node("gn1")?;
        assert!(node.drained());
        assert!(node.reason().starts_with("railgate: gpu-lost@3: "), "{}", node.reason());
        let log = cluster.output("/home/rgalice/log").unwrap_or_default();
        assert!(log.ends_with("attempt 1\ngn2\ngn3\n"), "{log}");
        Ok(())
    })
}
