//! The test cluster itself, without railgate.

use std::time::Duration;

use anyhow::Result;
use railgate_tests::cluster::Builder;

const MINUTE: Duration = Duration::from_secs(60);

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn two_nodes_answer_one_user() -> Result<()> {
    Builder::new(2).test(|cluster| {
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
