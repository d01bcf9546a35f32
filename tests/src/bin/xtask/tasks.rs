//! Time that a task spends on its environment.

use std::fs;
use std::hint::black_box;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use railgate_model::Net;
use railgate_rundir::{NcclConf, TaskEnv, TaskSetting, merge};

/// The files that the prolog leaves on a node with 8 rails if the site configures all settings, and a user's own file.
fn run_dir(dir: &Path) -> Result<()> {
    let ports: Vec<String> = (0..8).map(|rail| format!("mlx5_{rail}:1")).collect();
    let setting = |name: &str, value: &str| TaskSetting {
        name: name.to_owned(),
        value: value.to_owned(),
        nets: if name.starts_with("NCCL_IB") { vec![Net::Ib, Net::Sharp] } else { vec![] },
        ..TaskSetting::default()
    };
    let env = TaskEnv {
        settings: vec![
            setting("NCCL_IB_HCA", &format!("={}", ports.join(","))),
            setting("NCCL_SOCKET_IFNAME", "=bond0"),
            setting("NCCL_RAS_ADDR", "localhost:20007"),
            setting("NCCL_IB_TC", "106"),
            setting("NCCL_IB_FIFO_TC", "184"),
            setting("NCCL_IB_QPS_PER_CONNECTION", "4"),
            setting("NCCL_IB_ADDR_RANGE", "10.4.0.0/16"),
            setting("NCCL_IB_TIMEOUT", "22"),
            setting("NCCL_TOPO_FILE", "/run/railgate/jobs/7/0-1800000000/topology.xml"),
            setting("NCCL_DEBUG", "WARN"),
            setting("NCCL_DEBUG_FILE", "/run/railgate/jobs/7/current/user/nccl.%h.%p"),
            setting("NCCL_ENV_PLUGIN", "/usr/lib/railgate/libnccl-env-railgate.so"),
        ],
        notices: vec![],
        net: Some(Net::Ib),
    };
    fs::write(dir.join("task.env"), env.to_text().0)?;
    fs::write(dir.join(".nccl.conf"), "# mine\nNCCL_NVLS_ENABLE=0\nNCCL_IB_TIMEOUT=21\n")?;
    Ok(())
}

/// One measurement, in a separate process as in a task, so that nothing is cached.
pub(super) fn once(dir: &Path) -> Result<()> {
    let start = Instant::now();
    let env = TaskEnv::read(&dir.join("task.env"))?;
    let now = |name: &str| std::env::var_os(name).map(|value| value.as_bytes().to_vec());
    let merged = merge(&env, "/run/railgate/jobs/7/current", now, || {
        NcclConf::read(&dir.join(".nccl.conf")).unwrap_or_default()
    });
    let took = start.elapsed();
    if black_box(&merged).used.len() != env.settings.len() {
        bail!("{:?}", merged.used);
    }
    println!("{}", took.as_nanos());
    Ok(())
}

pub(super) fn run(programs: &Path, count: u32) -> Result<()> {
    let dir = std::env::temp_dir().join(format!("railgate-tasks-{}", std::process::id()));
    fs::create_dir_all(&dir)?;
    let measured = run_dir(&dir).and_then(|()| measure(&programs.join("xtask"), &dir, count));
    fs::remove_dir_all(&dir)?;
    let (ours, start) = measured?;
    println!("\nTime that a task spends on its environment, and on being started\n");
    println!("| what | median µs | quartiles | least–most | runs |\n|---|---|---|---|---|");
    for (name, mut times) in
        [("reading `task.env` and `.nccl.conf`, deciding", ours), ("starting `/bin/true`", start)]
    {
        times.sort_by(f64::total_cmp);
        let at =
            |share: usize| times.get(times.len().saturating_sub(1) * share / 4).copied().unwrap_or(f64::NAN);
        let [low, quarter, median, three, high] = [0, 1, 2, 3, 4].map(at);
        println!("| {name} | {median:.0} | {quarter:.0}–{three:.0} | {low:.0}–{high:.0} | {} |", times.len());
    }
    Ok(())
}

/// Microseconds of both, measured alternately.
fn measure(program: &Path, dir: &Path, count: u32) -> Result<(Vec<f64>, Vec<f64>)> {
    let (mut ours, mut start) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let output = Command::new(program).arg("@task").arg(dir).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let nanos: f64 = text.trim().parse().with_context(|| format!("'{text}': {}", program.display()))?;
        ours.push(nanos / 1e3);
        let began = Instant::now();
        Command::new("/bin/true").status()?;
        start.push(began.elapsed().as_secs_f64() * 1e6);
    }
    Ok((ours, start))
}
