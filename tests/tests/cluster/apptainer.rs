//! The Apptainer template with a real Apptainer. Only sid's root directory has one.

use anyhow::Result;
use railgate_tests::cluster::{Builder, CONTROLLER, Cluster};
use railgate_tests::{poll, skipped};

use crate::launch_kinds::{PROGRAM as RANK, begun, fails, go, log};
use crate::templates::filled;
use crate::training::MINUTE;

/// Saves when signalled, and continues from what it saved.
const PROGRAM: &str = r#"
import os, signal, sys, time
rank, directory = os.environ["SLURM_PROCID"], os.environ["RAILGATE_JOB_DIR"]
print("in", os.environ.get("APPTAINER_CONTAINER", "nothing"), "with", os.environ.get("NCCL_IB_HCA"), flush=True)
open(f"{directory}/user/written-{rank}", "w").close()
print("plugin", os.path.exists("/usr/lib/railgate/libnccl-profiler-railgate.so"), "image", os.path.exists("/image"))
saved = f"/checkpoints/saved-{rank}"
if os.path.exists(saved):
    sys.exit(0)
def save(*_):
    # It may be told twice: by Slurm and by the template.
    try:
        open(saved, "x").close()
    except FileExistsError:
        return
    print("saves", flush=True)
    os._exit(0)
signal.signal(signal.SIGUSR1, save)
print("trains", flush=True)
while True:
    time.sleep(0.1)
"#;

fn is_there(cluster: &Cluster) -> Result<bool> {
    Ok(cluster.root().run(&["test", "-x", "/usr/bin/apptainer"])?.code == 0)
}

/// `/shared/image`.
fn image(cluster: &Cluster) -> Result<()> {
    // An image can be a directory: here Python and the libraries it needs.
    let image = "cd /shared && mkdir -p image/usr/bin image/usr/lib image/proc image/sys image/dev image/tmp image/etc image/root image/home && \
        touch image/image && for name in bin lib lib64 sbin; do ln -s usr/$name image/$name; done && \
        cp -a /usr/lib64 image/usr/ && cp -aL /usr/bin/bash /usr/bin/sh /usr/bin/{python3,env,sleep,touch} image/usr/bin/ && \
        cp -a /usr/lib/python3* image/usr/lib/ && cp -a /usr/lib/x86_64-linux-gnu image/usr/lib/";
    cluster.root().run(&["bash", "-ec", image])?.ok().map(drop)
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_training_in_an_apptainer_container_saves_on_signal_and_continues() -> Result<()> {
    Builder::new(2).test(|cluster| {
        let root = cluster.root();
        if !is_there(cluster)? {
            return skipped("apptainer: this Slurm's root has none");
        }
        image(cluster)?;
        root.run(&["install", "-d", "-o", "rgalice", "/shared/alice"])?.ok()?;
        cluster.write("ctl", "/shared/alice/train.py", PROGRAM)?;
        let settings = [
            "IMAGE=/shared/image",
            "TRAIN=python3 /checkpoints/train.py",
            "CHECKPOINTS=/shared/alice",
            "cpus-per-task=2",
            "output=train.log",
        ];
        let id = cluster.alice().sbatch(&[], &filled(cluster, "apptainer", &settings)?)?;
        let log = || cluster.output("/home/rgalice/train.log").unwrap_or_default();
        poll::until(MINUTE, "both to train", || Ok((log().matches("trains").count() == 2).then_some(())))
            .inspect_err(|_| eprintln!("{}", log()))?;
        cluster.alice().run(&["scancel", "--batch", "--signal=USR1", &id.to_string()])?.ok()?;
        let job = cluster.wait_job(id, &["COMPLETED"], 2 * MINUTE)?;
        assert_eq!(job.restarts(), 1, "{}", log());
        assert_eq!(log().matches("saves").count(), 2, "{}", log());
        assert_eq!(log().matches("in /shared/image with =mlx5_0:1,").count(), 4, "{}", log());
        assert_eq!(log().matches("plugin True image True").count(), 4, "{}", log());
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_program_in_an_apptainer_container_continues_on_a_spare() -> Result<()> {
    Builder::new(3).test(|cluster| {
        if !is_there(cluster)? {
            return skipped("apptainer: this Slurm's root has none");
        }
        image(cluster)?;
        cluster.write(CONTROLLER, "/shared/program", RANK)?;
        let words = ["-N3", "--gres=gpu:8", "--ntasks-per-node=1", "-o", "log.image"];
        let script = "railgate launch --spares 1 -- srun apptainer exec --bind /shared:/shared /shared/image bash /shared/program image";
        let job = cluster.alice().sbatch(&words, script)?;
        begun(cluster, "image", 0, 2)?;
        cluster.hardware("gn2")?.inject("gpu-lost@3")?;
        fails(cluster, "image", 1)?;
        go(cluster, "image", 0)?;
        begun(cluster, "image", 1, 2)?;
        go(cluster, "image", 1)?;
        cluster.wait_job(job, &["COMPLETED"], 2 * MINUTE)?;
        let text = log(cluster, "log.image");
        assert_eq!(text.matches("in /shared/image").count(), 4, "{text}");
        assert!(text.contains("gn3 takes the place of gn2"), "{text}");
        Ok(())
    })
}
