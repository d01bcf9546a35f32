//! `cargo xtask demo`: follows jobs on a cluster with one bad node and prints each event as it happens.

mod fleet;
mod spare;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;
use railgate_tests::cluster::{Cluster, Job};
use railgate_tests::hang::RANK;
use railgate_tests::{poll, training};

use super::{build, packages};

const NODES: usize = 4;
const BAD_NODE: &str = "gn2";
/// The node of the job that hangs.
const HANG_NODE: &str = "gn4";
/// The shortest times, so that the demo is short.
const GUARD: &str = "[stats]\nsample = '1s'\n[guard]\nafter_stop = '20s'\n";
const HANG: &str = "#SBATCH --railgate-hang=end,after=30s\n#SBATCH --railgate-requeue=auto\n\
                    #SBATCH --open-mode=append\nsrun rank";
const TEMPLATE: &str = "sbatch-templates/torchrun-multinode.sbatch";
const HTML: &str = "railgate-demo-report.html";
/// File that identifies the kept demo: PID and start time of its first process.
const KEPT: &str = "/run/railgate-demo";

/// How the demo ends.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Keep the cluster running afterwards and print how to log in to its machines
    #[arg(long)]
    keep: bool,
    /// Stop a cluster that was kept
    #[arg(long, conflicts_with = "keep")]
    stop: bool,
    /// Everything is installed and built (for the call through sudo)
    #[arg(long, hide = true)]
    ready: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let root = nix::unistd::geteuid().is_root();
    if !arguments.stop && !arguments.ready {
        packages::need(&[&packages::CLUSTER[..], &packages::BUILD].concat())?;
        println!("building railgate (the first time takes a minute or two)");
        build::programs(false, Path::new("/"))?;
    }
    if !root {
        if packages::find("sudo").is_none() {
            bail!("the demo creates namespaces: run it as root");
        }
        let mut command = Command::new("sudo");
        command.arg(railgate_tests::cluster::own_program()?).args(["demo", "--ready"]);
        command.args(arguments.keep.then_some("--keep")).args(arguments.stop.then_some("--stop"));
        let code = command.status().context("sudo")?.code().unwrap_or(1);
        return Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)));
    }
    if arguments.stop {
        return stop().map(|()| ExitCode::SUCCESS);
    }
    none_kept()?;
    // Signals are handled between two lines of output. The cluster ends with this process in any case, even on SIGKILL.
    let stopped = on_signals()?;
    let story = Story { start: Instant::now(), stopped };
    match tell(&story, arguments.keep) {
        Err(error) if error.is::<Stopped>() => {
            println!("\nstopped; the cluster is gone");
            Ok(ExitCode::from(130))
        }
        Err(error) => Err(error),
        Ok(()) => Ok(ExitCode::SUCCESS),
    }
}

/// The user pressed Ctrl-C.
#[derive(Debug, thiserror::Error)]
#[error("stopped")]
struct Stopped;

fn on_signals() -> Result<Arc<AtomicBool>> {
    let watched: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
    // Before any other thread starts, so that all threads inherit the blocked signals and only the handler receives them.
    watched.thread_block().context("blocking signals")?;
    let stopped = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stopped);
    std::thread::spawn(move || {
        while watched.wait().is_ok() {
            if flag.swap(true, Ordering::Relaxed) {
                std::process::exit(130);
            }
        }
    });
    Ok(stopped)
}

struct Story {
    start: Instant,
    stopped: Arc<AtomicBool>,
}

impl Story {
    fn line(&self, text: &str) {
        println!("{:6.1} s  {text}", self.start.elapsed().as_secs_f32());
    }

    fn go_on(&self) -> Result<()> {
        if self.stopped.load(Ordering::Relaxed) { Err(Stopped.into()) } else { Ok(()) }
    }
}

fn tell(story: &Story, keep: bool) -> Result<()> {
    story.line(&format!(
        "starting a Slurm cluster: a controller and {NODES} nodes with simulated hardware, 8 H100s and 8 HCAs each"
    ));
    let mut builder =
        training::cluster(NODES)?.hardware("h100-sxm").hardware_of(BAD_NODE, "h100-sxm:gpu-lost@3");
    builder = builder.config(GUARD)?.file("/usr/local/bin/rank", RANK);
    builder = builder.slurm_conf("SlurmdTimeout", "10").file("/usr/local/bin/steps", spare::PROGRAM);
    if keep {
        builder = builder.keep();
    }
    let cluster = builder.start()?;
    training::put_on(&cluster)?;
    story.line(&format!(
        "all {NODES} nodes are idle; on {BAD_NODE} GPU 3 has fallen off the bus, which Slurm cannot see"
    ));
    story.go_on()?;

    let template =
        fs::read_to_string(build::workspace().join(TEMPLATE)).with_context(|| TEMPLATE.to_owned())?;
    let words = ["-N2", "-o", "training.log", "-J", "training"];
    let alice = cluster.alice();
    let hang = ["-N1", "-n2", "-w", HANG_NODE, "--gres=gpu:2", "-o", "hang.log", "-J", "hang"];
    let session = alice.clone().env("PLAY", "stops").env("WORK_S", "12").env("WORK_AGAIN_S", "2");
    let hung = session.sbatch(&hang, HANG)?;
    story.line(&format!("rgalice: sbatch {}   -> job {hung}, which will hang (see below)", hang.join(" ")));
    let id = alice.sbatch(&words, &template)?;
    story.line(&format!("rgalice: sbatch {} {TEMPLATE}   -> job {id}", words.join(" ")));
    let job = follow(story, &cluster, id, "training.log")?;
    story.line(&format!(
        "job {id} ended: {}, on {}, started {} time(s)",
        job.state(),
        job.nodes(),
        job.restarts() + 1
    ));
    story.go_on()?;

    let report = alice.run(&["railgate", "report", &id.to_string()])?;
    println!("\n$ railgate report {id}");
    show_head(&report.both());
    let page = alice.run(&["railgate", "report", &id.to_string(), "--format", "html"])?.ok()?;
    println!("\nthe report as an HTML page: {}", leave(HTML, &page)?.display());
    println!(
        "hardware and training are simulated; Slurm is real, and railgate reads, counts and reports as on real machines"
    );
    let spared = spare::begin(story, &cluster)?;
    println!("\nmeanwhile one of the two ranks of job {hung} is stopped, and the other one waits for it:");
    follow(story, &cluster, hung, "hang.log")?;
    let report = alice.run(&["railgate", "report", &hung.to_string()])?;
    println!("\n$ railgate report {hung}");
    show_head(&report.both());
    story.go_on()?;
    spare::end(story, &cluster, spared)?;
    story.go_on()?;

    let reasons = cluster.root().run(&["sinfo", "-R", "-o", "%n %u %E"])?.ok()?;
    println!("\n$ sinfo -R\n{}", reasons.trim_end());
    fleet::show(&cluster)?;
    if keep {
        remember(&cluster)?;
    } else {
        drop(cluster);
        println!("\nthe cluster has been removed");
    }
    Ok(())
}

/// Prints the job's state changes and its log until it has ended.
fn follow(story: &Story, cluster: &Cluster, id: u32, log: &str) -> Result<Job> {
    let mut shown = 0;
    let mut job_line = String::new();
    let mut node_lines: BTreeMap<String, String> = BTreeMap::new();
    let deadline = Duration::from_secs(180);
    let ended = poll::until(deadline, &format!("job {id} to end"), || {
        if story.go_on().is_err() {
            return Ok(Some(None));
        }
        for name in cluster.nodes() {
            let node = cluster.node(name)?;
            let line = match node.reason() {
                "" => String::new(),
                reason => format!("{} ({reason})", node.state()),
            };
            if node_lines.insert(name.clone(), line.clone()).unwrap_or_default() != line {
                story.line(&format!("{name}: {line}"));
            }
        }
        let job = cluster.job(id)?;
        let line = describe(&job);
        if line != job_line {
            story.line(&format!("job {id}: {line}"));
            job_line = line;
        }
        let output = cluster.output(&format!("/home/rgalice/{log}")).unwrap_or_default();
        let whole = output.rfind('\n').map_or(0, |end| end + 1);
        for line in output.get(shown..whole).unwrap_or_default().lines() {
            story.line(&format!("  {log} | {line}"));
        }
        shown = whole.max(shown);
        let ended = ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"].contains(&job.state());
        Ok(ended.then_some(Some(job)))
    })?;
    ended.ok_or_else(|| Stopped.into())
}

/// Prints the report up to the tables of the attempts, which are easier to read in the HTML page.
fn show_head(report: &str) {
    let lines: Vec<&str> = report.trim_end().lines().collect();
    let head = lines.iter().position(|line| line.starts_with("ATTEMPT ")).unwrap_or(lines.len());
    for line in &lines[..head] {
        println!("{line}");
    }
    if head < lines.len() {
        println!(
            "… and {} more lines: gate, rails, NCCL environment and counters of each attempt",
            lines.len() - head
        );
    }
}

fn describe(job: &Job) -> String {
    let place = match job.nodes() {
        "" | "(null)" => String::new(),
        nodes => format!(" on {nodes}"),
    };
    let reason = match (job.state(), job.reason()) {
        ("PENDING", "BeginTime") => ", waiting to be restarted".to_owned(),
        ("PENDING", reason) => format!(", {reason}"),
        _ => String::new(),
    };
    let restarts = match job.restarts() {
        0 => String::new(),
        count => format!(", restart {count}"),
    };
    format!("{}{place}{reason}{restarts}", job.state())
}

/// Writes a page into the current directory.
fn leave(name: &str, page: &str) -> Result<PathBuf> {
    let path = std::env::current_dir()?.join(name);
    fs::write(&path, page).with_context(|| path.display().to_string())?;
    give_back(&path);
    Ok(path)
}

/// Gives the page to the user who called sudo.
fn give_back(path: &Path) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    if let (Some(uid), Some(gid)) = (number("SUDO_UID"), number("SUDO_GID")) {
        let _ = std::os::unix::fs::chown(path, Some(uid), Some(gid));
    }
}

/// Start time of a process in clock ticks. PID and start time together identify a process.
fn started(pid: i32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19).map(str::to_owned)
}

/// Records a cluster that stays and prints how to log in to its machines.
pub(super) fn remember(cluster: &Cluster) -> Result<()> {
    let pid = i32::try_from(cluster.first_process()?)?;
    let start = started(pid).context("the cluster's first process is gone")?;
    fs::write(KEPT, format!("{pid} {start}\n")).with_context(|| KEPT.to_owned())?;
    println!("\nthe cluster keeps running. Log in to its machines, as root:");
    for (name, pid) in cluster.machines() {
        println!(
            "  nsenter -t {pid} -m -u -i -n -p -- su - {:8} # {name}",
            if name == "ctl" { "rgalice" } else { "root" }
        );
    }
    println!("Stop it with: cargo xtask demo --stop");
    Ok(())
}

/// Refuses a second kept cluster.
pub(super) fn none_kept() -> Result<()> {
    if let Some(pid) = kept() {
        bail!("a kept cluster is running (process {pid}); stop it first: cargo xtask demo --stop");
    }
    Ok(())
}

fn kept() -> Option<i32> {
    let text = fs::read_to_string(KEPT).ok()?;
    let (pid, start) = text.trim().split_once(' ')?;
    let pid = pid.parse().ok()?;
    (started(pid)? == start).then_some(pid)
}

fn stop() -> Result<()> {
    let Some(pid) = kept() else { bail!("no kept demo is running") };
    kill(Pid::from_raw(pid), Signal::SIGKILL).context("ending the cluster")?;
    poll::until(Duration::from_secs(20), "the cluster to be gone", || {
        Ok(started(pid).is_none().then_some(()))
    })?;
    fs::remove_file(PathBuf::from(KEPT))?;
    println!("the cluster has been removed");
    Ok(())
}
