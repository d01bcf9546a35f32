//! `cargo xtask bench`: prints medians, quartiles and ratios as tables for `docs/performance.md`.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, bail};
use nix::sys::resource::{UsageWho, getrusage};
use railgate_tests::cluster::{Builder, Cluster, Session};

use super::{build, hostile_files, packages, peers, reports, steady, storm, takeover, tasks};

/// Path of this program on the machines, where it measures locally.
pub(super) const CLOCK: &str = "/usr/local/bin/xtask";
const WITH: &str = "optional /usr/lib/railgate/spank_railgate.so\n";

/// What to measure.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// One of gate, tasks, steps, jobs, launch, storm, reports, hostile-files, peers (default: all but peers)
    #[arg(value_parser = ["gate", "tasks", "steps", "jobs", "launch", "storm", "reports", "hostile-files", "peers"])]
    name: Option<String>,
    /// With peers: a checkout of github.com/mej/nhc, measured in the same run
    #[arg(long, value_name = "DIR")]
    nhc: Option<PathBuf>,
    /// Number of runs of each command
    #[arg(long, default_value_t = 40)]
    count: u32,
    /// Everything is installed and built (for the call through sudo)
    #[arg(long, hide = true)]
    ready: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    if !arguments.ready {
        packages::need(&[&packages::CLUSTER[..], &packages::BUILD].concat())?;
        println!("building railgate for release (a few minutes the first time)");
        build::programs(true, Path::new("/"))?;
    }
    if !nix::unistd::geteuid().is_root() {
        if packages::find("sudo").is_none() {
            bail!("the benchmarks create namespaces: run them as root");
        }
        let mut command = Command::new("sudo");
        command.arg(railgate_tests::cluster::own_program()?).args(["bench", "--ready", "--count"]);
        command.arg(arguments.count.to_string()).args(&arguments.name);
        command.args(arguments.nhc.iter().flat_map(|path| [OsStr::new("--nhc"), path.as_os_str()]));
        let code = command.status().context("sudo")?.code().unwrap_or(1);
        return Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)));
    }
    let wanted = |name: &str| arguments.name.as_deref().is_none_or(|only| only == name);
    let programs = build::folder(true)?;
    let start = || Builder::new(1).programs(&programs).start();
    if wanted("gate") {
        gate(&start()?, arguments.count)?;
    }
    if wanted("tasks") {
        tasks::run(&programs, arguments.count * 10)?;
    }
    if wanted("steps") {
        plugin_per_step(&start()?, arguments.count)?;
    }
    if wanted("jobs") {
        let plain = Builder::new(1).plain().start()?;
        per_job(&start()?, &plain, arguments.count)?;
    }
    if wanted("launch") {
        takeover::run(&programs, arguments.count)?;
    }
    if wanted("storm") {
        storm::run(&programs, arguments.count.div_ceil(10))?;
        steady::run(&programs, arguments.count.div_ceil(20))?;
    }
    if wanted("reports") {
        reports::run(&programs, arguments.count)?;
    }
    if wanted("hostile-files") {
        hostile_files::run(&programs)?;
    }
    // Only on request, since it installs another project's program.
    if arguments.name.as_deref() == Some("peers") {
        peers::run(&start()?, arguments.count, arguments.nhc.as_deref())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a command `count` times without its output and prints the microseconds and KiB of each run.
pub(super) fn time(count: u32, command: &[OsString]) -> Result<()> {
    let (program, words) = command.split_first().context("no command")?;
    for _ in 0..count {
        let start = Instant::now();
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let status = command.status().with_context(|| program.display().to_string())?;
        let micros = start.elapsed().as_micros();
        let kib = getrusage(UsageWho::RUSAGE_CHILDREN)?.max_rss();
        println!("{micros} {} {kib}", status.code().unwrap_or(-1));
    }
    Ok(())
}

/// Copies this program to [`CLOCK`] on a machine.
pub(super) fn put_clock(cluster: &Cluster, machine: &str) -> Result<()> {
    let target = cluster.path(machine, CLOCK)?;
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::copy(railgate_tests::cluster::own_program()?, &target)
        .with_context(|| target.display().to_string())?;
    Ok(())
}

/// Milliseconds of each run. A run that fails is an error.
pub(super) fn timed(session: &Session<'_>, count: u32, words: &[&str]) -> Result<Vec<f64>> {
    let runs = clocked(session, count, words)?;
    Ok(runs.into_iter().map(|(micros, _)| micros / 1000.0).collect())
}

/// Peak memory of a command and its children, the largest of these processes, MiB.
pub(super) fn memory_mib(session: &Session<'_>, words: &[&str]) -> Result<f64> {
    let runs = clocked(session, 1, words)?;
    Ok(runs.first().context("no run")?.1 / 1024.0)
}

/// Microseconds and KiB of each run.
fn clocked(session: &Session<'_>, count: u32, words: &[&str]) -> Result<Vec<(f64, f64)>> {
    let number = count.to_string();
    let said = session.run(&[&[CLOCK, "@time", &number, "--"], words].concat())?.ok()?;
    let run = |line: &str| -> Result<(f64, f64)> {
        let [micros, code, kib] =
            line.split(' ').collect::<Vec<_>>().try_into().map_err(|_| anyhow!("no time: '{line}'"))?;
        if code != "0" {
            bail!("`{}` ended with {code}", words.join(" "));
        }
        Ok((micros.parse()?, kib.parse()?))
    };
    said.lines().map(run).collect()
}

/// Minimum, quartiles, 99th percentile and maximum.
#[derive(Debug)]
pub(super) struct Spread {
    low: f64,
    quarter: f64,
    pub(super) median: f64,
    three: f64,
    p99: f64,
    high: f64,
}

/// Percentiles of some measurements; NaN if there are none.
pub(super) fn spread(times: &[f64]) -> Spread {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |percent: usize| {
        sorted.get((sorted.len().saturating_sub(1)) * percent / 100).copied().unwrap_or(f64::NAN)
    };
    Spread { low: at(0), quarter: at(25), median: at(50), three: at(75), p99: at(99), high: at(100) }
}

/// Prints a Markdown table with one row for each series of measurements in milliseconds.
pub(super) fn table(title: &str, rows: &[(&str, &[f64])]) {
    println!("\n{title}\n");
    println!("| what | median ms | quartiles | p99 | least–most | runs |\n|---|---|---|---|---|---|");
    for (name, times) in rows {
        let Spread { low, quarter, median, three, p99, high } = spread(times);
        let runs = times.len();
        println!(
            "| {name} | {median:.1} | {quarter:.1}–{three:.1} | {p99:.1} | {low:.1}–{high:.1} | {runs} |"
        );
    }
}

/// Prints the differences between paired runs, which ran one right after the other. Returns their median.
pub(super) fn pairs(name: &str, one: &[f64], other: &[f64]) -> f64 {
    let differences: Vec<f64> = one.iter().zip(other).map(|(one, other)| one - other).collect();
    let Spread { quarter, median, three, .. } = spread(&differences);
    let ratio = spread(one).median / spread(other).median;
    println!(
        "\n{name}: median of the pairs {median:+.2} ms (quartiles {quarter:+.2} to {three:+.2}), ratio {ratio:.3}"
    );
    median
}

fn gate(cluster: &Cluster, count: u32) -> Result<()> {
    put_clock(cluster, "gn1")?;
    let root = cluster.root().on("gn1");
    timed(&root, 3, &["railgate", "check", "--phase", "prolog"])?;
    let check = timed(&root, count, &["railgate", "check", "--phase", "prolog"])?;
    let help = timed(&root, count, &["railgate", "--version"])?;
    table(
        "The gate on a simulated node of 8 GPUs and 8 HCAs",
        &[
            ("`railgate check --phase prolog`", &check),
            ("`railgate --version` (starting the program)", &help),
        ],
    );
    Ok(())
}

fn plugin_per_step(cluster: &Cluster, count: u32) -> Result<()> {
    put_clock(cluster, "ctl")?;
    let alice = cluster.alice();
    let said = alice.salloc(&["--no-shell", "-N1", "--gres=gpu:8"])?;
    let text = said.both();
    // `salloc: Granted job allocation 1`
    let job = text.split_whitespace().filter_map(|word| word.parse::<u32>().ok()).next();
    let job = format!("--jobid={}", job.with_context(|| text.clone())?);
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for round in 0..=count {
        let mut kinds = [(WITH, &mut with), ("", &mut without)];
        // Both variants alternate in going first, so that drift affects them equally.
        if round % 2 == 1 {
            kinds.reverse();
        }
        for (plugstack, times) in kinds {
            cluster.write("ctl", "/etc/slurm/plugstack.conf", plugstack)?;
            let took = timed(&alice, 1, &["srun", &job, "/bin/true"])?;
            // The first round warms the caches.
            if round > 0 {
                times.extend(took);
            }
        }
    }
    table(
        "`srun /bin/true` as a step inside one allocation",
        &[("with the plugin", &with), ("without", &without)],
    );
    pairs("plugin, per step", &with, &without);
    Ok(())
}

fn per_job(cluster: &Cluster, plain: &Cluster, count: u32) -> Result<()> {
    put_clock(cluster, "ctl")?;
    put_clock(plain, "ctl")?;
    let job = ["srun", "-N1", "--gres=gpu:8", "/bin/true"];
    let (mut all, mut no_plugin, mut none) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=count {
        let mut kinds = [(cluster, WITH, &mut all), (cluster, "", &mut no_plugin), (plain, "", &mut none)];
        if round % 2 == 1 {
            kinds.reverse();
        }
        for (place, plugstack, times) in kinds {
            place.write("ctl", "/etc/slurm/plugstack.conf", plugstack)?;
            let took = timed(&place.alice(), 1, &job)?;
            wait_until_free(place)?;
            if round > 0 {
                times.extend(took);
            }
        }
    }
    table(
        "`srun -N1 --gres=gpu:8 /bin/true` as a separate job",
        &[("prolog, epilog and plugin", &all), ("prolog and epilog", &no_plugin), ("Slurm alone", &none)],
    );
    pairs("plugin, per job", &all, &no_plugin);
    pairs("prolog and epilog, per job (the epilog runs after srun has returned)", &no_plugin, &none);
    Ok(())
}

/// Waits until the epilog of the last job has ended, so that it does not overlap the next job's prolog.
fn wait_until_free(cluster: &Cluster) -> Result<()> {
    let limit = std::time::Duration::from_secs(30);
    cluster.wait_node("gn1", "idle", limit, |node| node.state() == "IDLE").map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_one() {
        let spread = spread(&[5.0, 1.0, 4.0, 2.0, 3.0]);
        assert!((spread.median - 3.0).abs() < 1e-9 && (spread.low - 1.0).abs() < 1e-9);
        assert!((spread.quarter - 2.0).abs() < 1e-9 && (spread.high - 5.0).abs() < 1e-9);
    }
}
