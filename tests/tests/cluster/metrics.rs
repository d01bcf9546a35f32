//! The files for Prometheus during and after a job.

use anyhow::{Context as _, Result};
use railgate_tests::cluster::{Builder, Cluster};
use railgate_tests::poll;

use crate::training::MINUTE;

const DIR: &str = "/var/lib/prom";

/// Two hundred samples per step, written as any program can. It starts no process, since that would lengthen the steps, whose rate
/// is tested.
const PROGRAM: &str = r#"
app=$RAILGATE_JOB_DIR/user/app; mkdir -p $app; file=$app/lines.0
exec {never}<> <(:)
echo "railgate-app 1 rank=0 local_rank=0 world=1 t=$EPOCHREALTIME" > $file
echo "model convention=explicit flops_per_sample=1e12 dtype=bf16" >> $file
n=0
until [ -e end ]; do
    n=$((n + 1))
    echo "step n=$n samples=200 t=$EPOCHREALTIME" >> $file
    read -rt 0.2 -u $never || true
done
"#;

fn file(cluster: &Cluster, job: u32) -> String {
    cluster.read("gn1", &format!("{DIR}/railgate-job-{job}.prom")).unwrap_or_default()
}

/// Waits for a line of the job's file that begins like this, and returns it.
fn line(cluster: &Cluster, job: u32, begins: &str) -> Result<String> {
    let found = || {
        let text = file(cluster, job);
        Ok(text.lines().find(|line| line.starts_with(begins)).map(str::to_owned))
    };
    poll::until(MINUTE, begins, found).with_context(|| file(cluster, job))
}

fn value(line: &str) -> f64 {
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).unwrap_or(f64::NAN)
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_running_job_has_metrics_without_private_user_names() -> Result<()> {
    let config = format!(
        "[stats]\nsample = '1s'\n[metrics]\ndir = '{DIR}'\nlabels = ['job', 'user']\ninterval = '1s'\n"
    );
    let builder = Builder::new(1).config(&config)?.file(format!("{DIR}/.keep"), "");
    let builder = builder.slurm_conf("PrivateData", "users").slurm_conf("HealthCheckInterval", "0");
    builder.test(|cluster| {
        let alice = cluster.alice();
        let job = alice.sbatch(&["-w", "gn1", "--gres=gpu:8", "-o", "log.%j"], PROGRAM)?;
        // Slurm's PrivateData is not known yet.
        let power = line(cluster, job, "railgate_gpu_power_watts")?;
        assert!(power.starts_with("railgate_gpu_power_watts{gpu=\"0\",uuid=\"GPU-"), "{power}");
        let goodput = line(cluster, job, "railgate_job_goodput_ratio{gpus=\"0-7\"} ")?;
        assert!(value(&goodput) > 0.0 && value(&goodput) <= 1.0, "{goodput}");
        // At most a thousand samples of one TFLOP each per second, of an H100's 989.4.
        let model = line(cluster, job, "railgate_job_model_flop_ratio{gpus=\"0-7\"} ")?;
        assert!(value(&model) > 0.3 && value(&model) < 1.02, "{model}");
        assert!(value(&line(cluster, job, "railgate_job_steps_total{")?) > 10.0);
        cluster.root().on("gn1").run(&["railgate", "check", "--drain"])?.ok()?;
        let named = line(cluster, job, "railgate_job_goodput_ratio{job_id=")?;
        assert!(named.contains(&format!("{{job_id=\"{job}\",gpus=\"0-7\"}}")), "{named}");
        assert!(!file(cluster, job).contains("alice"), "{}", file(cluster, job));
        cluster.write("ctl", "/home/rgalice/end", "")?;
        cluster.wait_job(job, &["COMPLETED"], MINUTE)?;
        cluster.wait_node("gn1", "idle", MINUTE, |node| node.state() == "IDLE")?;
        let left = cluster.root().on("gn1").run(&["ls", DIR])?.ok()?;
        assert_eq!(left.split_whitespace().collect::<Vec<_>>(), ["railgate-rails.prom", "railgate.prom"]);
        Ok(())
    })
}
