//! The templates as a researcher submits them, with a stand-in for the program.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use railgate_tests::cluster::Builder;

const MINUTE: Duration = Duration::from_secs(60);

fn template(name: &str) -> Result<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sbatch-templates");
    Ok(fs::read_to_string(root.join(name))?)
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn the_training_template_goes_on_where_it_was_after_a_bad_node() -> Result<()> {
    Builder::new(3).hardware_of("gn1", "h100-sxm:gpu-lost@3").test(|cluster| {
        let train = "echo \"$(hostname) attempt $ATTEMPT via $MASTER_ADDR:$MASTER_PORT \
                     as $NCCL_IB_HCA\"; touch \"$CHECKPOINTS/step-$ATTEMPT\"";
        let session = cluster.alice().env("TRAIN", train).env("CHECKPOINTS", "/shared/rgalice-checkpoints");
        cluster.root().run(&["install", "-d", "-o", "rgalice", "/shared/rgalice-checkpoints"])?.ok()?;
        let words = ["-c2", "-o", "train.log"];
        let id = session.sbatch(&words, &template("torchrun-multinode.sbatch")?)?;
        let job = cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
        assert_eq!((job.nodes(), job.restarts()), ("gn[2-3]", 1));
        let log = cluster.output("/home/rgalice/train.log").unwrap_or_default();
        assert!(log.contains("attempt 1 on gn[2-3], checkpoints in /shared/rgalice-checkpoints"), "{log}");
        for node in ["gn2", "gn3"] {
            let line = log.lines().find(|line| line.contains(&format!(": {node} attempt 1 via gn2:")));
            assert!(line.is_some_and(|line| line.contains("mlx5_0:1")), "{node}: {log}");
        }
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn the_nccl_tests_template_starts_one_process_per_gpu() -> Result<()> {
    Builder::new(2).test(|cluster| {
        let program = "#!/bin/sh\necho \"$(basename \"$0\") $SLURM_PROCID $*\"\n";
        for name in ["all_reduce_perf", "alltoall_perf"] {
            cluster.write("ctl", &format!("/shared/{name}"), program)?;
        }
        let session = cluster.alice().env("NCCL_TESTS", "/shared").env("MPI", "none");
        let id = session.sbatch(&["-c1", "-o", "nccl.log"], &template("nccl-tests.sbatch")?)?;
        cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
        let log = cluster.output("/home/rgalice/nccl.log").unwrap_or_default();
        assert_eq!(log.matches("all_reduce_perf ").count(), 17, "{log}");
        assert_eq!(log.matches("-b 8 -e 8G -f 2 -g 1\n").count(), 32, "{log}");
        Ok(())
    })
}
