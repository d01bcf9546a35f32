//! The templates as a researcher gets and submits them, with stand-ins for the programs that they start.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use railgate_tests::cluster::{Builder, Cluster, SLURM_ROOT, slurm_release};

const MINUTE: Duration = Duration::from_secs(60);

/// Stand-in for `torchrun`, `python`, `apptainer` and NCCL's tests: prints its arguments. A training with a loader waits for it, as
/// a real one does; otherwise the job could end before the loader has started.
const SAYS: &str = "#!/bin/sh\n\
    case \"$*\" in *--loader*) until grep -q '^loads for ' heterogeneous.log; do sleep 0.1; done;; esac\n\
    echo \"rank ${RANK:--} of ${WORLD_SIZE:--}, $(hostname) has ${NCCL_IB_HCA:-nothing}: $(basename \"$0\") $*\"\n\
    echo '# Avg bus bandwidth    : 480.5'\n\
    [ -z \"$STAND_IN_IMAGE\" ] || echo \"in $STAND_IN_IMAGE with $STAND_IN_MOUNTS at $STAND_IN_WORKDIR\"\n";

fn template(name: &str) -> Result<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sbatch-templates");
    Ok(fs::read_to_string(root.join(name))?)
}

/// A template with the user's values, as `railgate template show` prints it.
pub(crate) fn filled(cluster: &Cluster, name: &str, settings: &[&str]) -> Result<String> {
    let mut words = vec!["railgate", "template", "show", name];
    words.extend(settings.iter().flat_map(|setting| ["--set", setting]));
    cluster.alice().run(&words)?.ok()
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn the_training_template_resumes_after_a_bad_node() -> Result<()> {
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

/// Installs pyxis' options on all machines.
pub(crate) fn pyxis(cluster: &Cluster) -> Result<()> {
    let (year, month) =
        slurm_release(Path::new(&std::env::var_os(SLURM_ROOT).unwrap_or_else(|| "/".into())))?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster/pyxis.c");
    let built = cluster.path("ctl", "/shared/pyxis.so")?;
    let done = Command::new("cc")
        .args(["-shared", "-fPIC", "-Wall", "-Werror", &format!("-DSLURM_VERSION=0x{year:02x}{month:02x}00")])
        .arg("-o")
        .args([&built, &source])
        .status()
        .context("cc")?;
    ensure!(done.success(), "{} cannot be built", source.display());
    let stack = "optional /usr/lib/railgate/spank_railgate.so\noptional /shared/pyxis.so\n";
    cluster.write("ctl", "/etc/slurm/plugstack.conf", stack)?;
    cluster.nodes().iter().try_for_each(|node| cluster.write(node, "/etc/slurm/plugstack.conf", stack))
}

/// Each template with the expected texts of its log; a repeated text must occur that often.
#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn every_template_starts_its_programs() -> Result<()> {
    let mut builder = Builder::new(4);
    for name in ["torchrun", "python", "apptainer", "all_reduce_perf", "alltoall_perf"] {
        builder = builder.file(format!("/usr/local/bin/{name}"), SAYS);
    }
    builder.test(|cluster| {
        pyxis(cluster)?;
        cluster.root().run(&["install", "-d", "-o", "rgalice", "/shared/alice"])?.ok()?;
        cluster.write("ctl", "/shared/alice/experiments.txt", "--lr 1\n--lr 2\n--lr 3\n")?;
        let ranks = ["ntasks-per-node=2", "cpus-per-task=1"];
        let container = "--nnodes=2 --nproc-per-node=8 --max-restarts=0 --rdzv-backend=c10d --rdzv-endpoint=gn";
        let cases: &[(&str, &[&str], &[&str])] = &[
            ("apptainer", &["IMAGE=/shared/x.sif"], &[
                "has =mlx5_0:1,", ": apptainer exec --nv --bind /shared/alice/apptainer:/checkpoints,/run/railgate/jobs,",
                &format!(" /shared/x.sif torchrun {container}"), "train.py --save-dir /checkpoints --resume",
            ]),
            ("array", &["array=1-3", "cpus-per-task=1", "EXPERIMENTS=/shared/alice/experiments.txt"], &[
                "gn", ": python train.py --lr ", "/array/", "--resume",
            ]),
            ("deepspeed", &ranks, &["rank 0 of 4, gn", "rank 3 of 4, gn", "--deepspeed_config ds.json --save-dir /shared/alice/deepspeed --resume"]),
            ("heterogeneous", &["LOAD=echo loads for $LOADER"], &[
                "with gn", "loads for gn", "torchrun --nnodes=1 --nproc-per-node=8", "--loader gn",
            ]),
            ("jax", &ranks, &["has =mlx5_0:1,", ": python train.py --save-dir /shared/alice/jax --resume"]),
            ("megatron", &[&ranks[..], &["MEGATRON=/opt/megatron"]].concat(), &[
                "rank 0 of 4, gn", "rank 3 of 4, gn", ": python /opt/megatron/pretrain_gpt.py --tensor-model-parallel-size 8",
                "--save /shared/alice/megatron --load /shared/alice/megatron --save-interval 500 --exit-signal-handler",
            ]),
            ("nccl-tests", &[&ranks[..], &["NCCL_TESTS=/usr/local/bin", "MPI=none"]].concat(), &[
                "has =mlx5_0:1,", ": all_reduce_perf -b 8", ": alltoall_perf -b 8",
            ]),
            ("pyxis", &["IMAGE=/shared/x.sqsh", "CODE=/shared/code"], &[
                "has =mlx5_0:1,", &format!(": torchrun {container}"),
                "in /shared/x.sqsh with /shared/alice/pyxis:/checkpoints,/shared/code:/work at /work",
            ]),
            ("soak", &[&ranks[..], &["HOURS=0", "ROUND_MINUTES=0", "NCCL_TESTS=/usr/local/bin", "MPI=none", "nodes=1"]].concat(), &[
                "round 1: 480.5 GB/s", "(h100-sxm, live), periodic: ", "1 rounds in 0 hours, best 480.5 GB/s",
            ]),
            ("torchrun-multinode", &[], &["has =mlx5_0:1,", ": torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=gn", "--save-dir /shared/alice/torchrun-multinode --resume"]),
            ("torchrun-single", &[], &["has =mlx5_0:1,", ": torchrun --standalone --nproc-per-node=8 --max-restarts=0 train.py --save-dir /shared/alice/torchrun-single --resume"]),
        ];
        let known = cluster.alice().run(&["railgate", "template", "list"])?.ok()?;
        let mut jobs = Vec::new();
        for (name, settings, _) in cases {
            ensure!(known.contains(&format!("\n{name} ")), "{known}");
            let mut settings: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
            let text = template(&format!("{name}.sbatch"))?;
            for key in ["CHECKPOINTS", "RESULTS"].into_iter().filter(|key| text.contains(&format!("\n{key}="))) {
                settings.push(format!("{key}=/shared/alice/{name}"));
            }
            if !settings.iter().any(|setting| setting.starts_with("cpus-per-task")) && text.contains("--cpus-per-task=64 ") {
                settings.push("cpus-per-task=2".to_owned());
            }
            settings.push(format!("output={name}.log"));
            let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
            let text = filled(cluster, name, &settings)?;
            let id = cluster.alice().sbatch(&[], &text).with_context(|| (*name).to_owned())?;
            jobs.push((name, id));
        }
        ensure!(known.lines().count() == jobs.len() + 1, "a template is not tested here:\n{known}");
        for ((name, id), (_, _, wanted)) in jobs.into_iter().zip(cases) {
            let job = cluster.wait_job(id, &["COMPLETED"], 2 * MINUTE);
            let log = cluster.output(&format!("/home/rgalice/{name}.log")).unwrap_or_default();
            let job = job.with_context(|| log.clone())?;
            assert_eq!(job.restarts(), 0, "{name}: {log}");
            for part in *wanted {
                assert!(log.contains(part), "{name}: no '{part}' in:\n{log}");
            }
        }
        Ok(())
    })
}
