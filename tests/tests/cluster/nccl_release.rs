//! Settings that depend on NCCL's release, on the network plugin or on NCCL's own files, in real jobs.

use std::time::Duration;

use anyhow::{Context as _, Result};
use railgate_tests::cluster::Builder;

const MINUTE: Duration = Duration::from_secs(60);

const CONFIG: &str = "
[rails]
cross_nic = 0

[[rails.rules]]
why = 'an example'
set = { NCCL_EXAMPLE = '1' }
nccl = '>=2.29.2,<2.30.7'
";

/// Prints the variables of a task in one line.
const SHOW: &str = "echo ${RAILGATE_NET:-none} ${NCCL_IB_HCA:-none} ${NCCL_ENV_PLUGIN:-none} ${NCCL_CROSS_NIC:-none} \
                    ${NCCL_DEBUG:-none} ${NCCL_DEBUG_FILE:-none} ${RAILGATE_KEPT:-none}";

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn settings_respect_the_release_the_network_plugin_and_nccl_files() -> Result<()> {
    Builder::new(1).config(CONFIG)?.test(|cluster| {
        let list = "=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_7:1";
        let plugin = "/usr/lib/railgate/libnccl-env-railgate.so";
        let script = format!(
            "show='{SHOW}'\n\
             srun bash -c \"$show\" > plain\n\
             NCCL_NET='AWS Libfabric' srun bash -c \"$show\" > ofi\n\
             NCCL_ENV_PLUGIN=mine srun bash -c \"$show\" > mine\n\
             NCCL_DEBUG=INFO srun bash -c \"$show\" > debug\n\
             echo NCCL_IB_HCA=mlx5_7 > .nccl.conf\n\
             srun bash -c \"$show\" > conf\n\
             mv .nccl.conf other.conf\n\
             NCCL_CONF_FILE=$PWD/other.conf srun bash -c \"$show\" > other\n\
             cat $RAILGATE_JOB_DIR/nccl.env > releases; test -r $NCCL_ENV_PLUGIN\n"
        );
        let id = cluster.alice().sbatch(&["--gres=gpu:8", "--railgate-profile=debug"], &script)?;
        cluster.wait_job(id, &["COMPLETED"], 2 * MINUTE)?;
        let shown = |file: &str| cluster.output(&format!("/home/rgalice/{file}")).context("no output");
        let log = format!("/run/railgate/jobs/{id}/current/user/nccl.%h.%p");
        let line = |words: &[&str]| words.join(" ") + "\n";
        assert_eq!(shown("plain")?, line(&["ib", list, plugin, "0", "WARN", &log, "none"]));
        assert_eq!(shown("ofi")?, line(&["ofi", "none", plugin, "none", "WARN", &log, "none"]));
        assert_eq!(shown("mine")?, line(&["ib", list, "mine", "0", "WARN", &log, "NCCL_ENV_PLUGIN"]));
        assert_eq!(shown("debug")?, line(&["ib", list, plugin, "0", "INFO", "none", "NCCL_DEBUG"]));
        for file in ["conf", "other"] {
            assert_eq!(
                shown(file)?,
                line(&["ib", "none", plugin, "0", "WARN", &log, "NCCL_IB_HCA"]),
                "{file}"
            );
        }
        let numbered: Vec<String> = (0..8).map(|rail| format!("mlx5_{rail}:1:{rail}")).collect();
        let expected = format!(
            "railgate-nccl-env 1\n\
             default 2.29.2 2.30.7 - NCCL_EXAMPLE=1\n\
             default 2.30.7 - ib NCCL_IB_HCA=={}\n",
            numbered.join(",")
        );
        assert_eq!(shown("releases")?, expected);
        Ok(())
    })
}
