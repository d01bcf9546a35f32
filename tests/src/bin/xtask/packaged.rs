//! `cargo xtask test --packages`: the packages on real Debian releases, with the commands of `docs/install.md`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use railgate_tests::cluster::{Builder, Cluster};

use super::dist::Parts;
use super::steps::Steps;
use super::{build, packages, steps};

const MINUTE: Duration = Duration::from_secs(60);
/// Debian 12, Debian 13 and sid.
const RELEASES: [(&str, &str); 3] =
    [("22.05", "Debian 12, Slurm 22.05"), ("24.11", "Debian 13, Slurm 24.11"), ("26.05", "sid, Slurm 26.05")];
/// glibc 2.31, an example of an older container image.
const OLD_DEBIAN: &str = "NCCL profiler plugin on Debian 11, as it is shipped";
const SETTINGS: &str = "/etc/railgate/railgate.toml";

/// Tests the packages on every Debian release, and the NCCL plugin on an older one.
pub(super) fn run() -> Result<()> {
    packages::need(&packages::CLUSTER)?;
    ensure!(
        nix::unistd::geteuid().is_root(),
        "testing packages needs root: sudo cargo xtask test --packages"
    );
    // The machines' simulated NVML, and this package's programs, which run it.
    steps::run(build::cargo().args(["build", "--quiet", "-p", "nvml-sim", "-p", "railgate-tests"]))?;
    let parts = Parts::build(true)?;
    let (old, new) = (parts.pack(1)?, parts.pack(2)?);
    let mut all = Steps::default();
    all.step("man pages", man_pages);
    all.step("the RDMA self-test's package", || runs_here(&new.selftest));
    all.step("the GPU self-test starts without a driver", || gpu_selftest_starts(&new.deb));
    all.step(".rpm and .deb have the same contents", || same_contents(&old.rpm, &old.deb));
    for (slurm, name) in RELEASES {
        match packages::slurm(slurm) {
            Ok(root) => all.step(name, || {
                let builder = Builder::new(3).slurm_root(root).bare();
                builder.test(|cluster| installed(cluster, &old.deb, &new.deb))
            }),
            Err(why) => all.skip(name, &format!("{why:#}")),
        }
    }
    match packages::need(&[&packages::DEBOOTSTRAP[..], &packages::VENV, &packages::OBJDUMP].concat()) {
        Ok(()) => all.step(OLD_DEBIAN, || {
            let words = ["test", "-p", "nccl-profiler-railgate", "--test", "old_debian", "--", "--ignored"];
            steps::run(build::cargo().args(words))
        }),
        Err(why) => all.skip(OLD_DEBIAN, &format!("{why:#}")),
    }
    all.end()
}

/// Tests the packages on this machine's own Debian, which needs no other root directory.
pub(super) fn try_here(all: &mut Steps) {
    const NAME: &str = "packages on this Debian";
    if !nix::unistd::geteuid().is_root() || packages::find("dpkg").is_none() {
        return all.skip(NAME, "needs root and dpkg");
    }
    all.step(NAME, || {
        let parts = Parts::build(true)?;
        let (old, new) = (parts.pack(1)?, parts.pack(2)?);
        same_contents(&old.rpm, &old.deb)?;
        Builder::new(3).bare().test(|cluster| installed(cluster, &old.deb, &new.deb))
    });
}

/// Installs as the page describes; a job is gated, moved and reported; upgrades while a job runs; removes.
fn installed(cluster: &Cluster, old: &Path, new: &Path) -> Result<()> {
    let root = cluster.root();
    let machines: Vec<&str> =
        std::iter::once("ctl").chain(cluster.nodes().iter().map(String::as_str)).collect();
    let put = |deb: &Path| -> Result<String> {
        let name = deb.file_name().context("no name")?.to_string_lossy().into_owned();
        fs::copy(deb, cluster.path("ctl", "/shared")?.join(&name))?;
        Ok(name)
    };

    put(old)?;
    let lines = quick_start()?;
    for machine in &machines {
        // The test has written this file already; an admin writes it after installation.
        let settings = cluster.read(machine, SETTINGS)?;
        fs::remove_file(cluster.path(machine, SETTINGS)?)?;
        for line in lines.iter().filter(|line| line.everywhere) {
            root.clone().on(machine).within("/shared").run(&["bash", "-c", &line.text])?.ok()?;
        }
        let theirs = cluster.read(machine, SETTINGS)?;
        ensure!(theirs.lines().all(|line| line.starts_with('#') || line.is_empty()), "{SETTINGS}: {theirs}");
        cluster.write(machine, SETTINGS, &settings)?;
    }
    for line in lines.iter().filter(|line| !line.everywhere) {
        root.run(&["bash", "-c", &line.text])?.ok()?;
    }
    restart(cluster)?;
    for node in cluster.nodes() {
        cluster.wait_node(node, "idle", MINUTE, |node| node.state() == "IDLE")?;
    }
    println!("{}", root.clone().on("gn2").run(&["railgate", "doctor"])?.ok()?);
    let complete = ". /usr/share/bash-completion/completions/railgate && complete -p railgate";
    root.clone().on("gn2").run(&["bash", "-c", complete])?.ok()?;

    // Not earlier, since the periodic check would find it first.
    cluster.hardware("gn1")?.inject("gpu-lost@3")?;
    let words = ["-N2", "--gres=gpu:8", "--railgate-requeue=auto", "-o", "log"];
    let id = cluster.alice().sbatch(&words, "srun bash -c 'echo $(hostname) $NCCL_IB_HCA'")?;
    let job = cluster.wait_job(id, &["COMPLETED"], 3 * MINUTE)?;
    ensure!((job.nodes(), job.restarts()) == ("gn[2-3]", 1), "{job:?}");
    let reason = cluster.node("gn1")?.reason().to_owned();
    ensure!(reason.starts_with("railgate: gpu-lost@3: "), "{reason}");
    let log = cluster.output("/home/rgalice/log").unwrap_or_default();
    ensure!(log.matches("mlx5_").count() == 16, "{log}");
    reported(cluster, id, "gn2")?;

    let id = cluster.alice().sbatch(
        &["-N1", "-w", "gn2", "--gres=gpu:8", "--railgate-requeue=auto", "-o", "upgraded"],
        "echo begun\nwhile [ ! -e /shared/go ]; do sleep 0.2; done\nsrun bash -c 'echo $RAILGATE_SET'",
    )?;
    cluster.wait_job_until(id, "its script runs", MINUTE, |_| {
        cluster.output("/home/rgalice/upgraded").is_some()
    })?;
    let name = put(new)?;
    for machine in &machines {
        root.clone().on(machine).within("/shared").run(&["dpkg", "-i", &name])?.ok()?;
    }
    cluster.write("ctl", "/shared/go", "")?;
    cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
    let said = cluster.output("/home/rgalice/upgraded").unwrap_or_default();
    ensure!(said.contains("NCCL_IB_HCA"), "after the upgrade: {said}");
    reported(cluster, id, "gn2")?;
    cluster.wait_node("gn2", "idle", MINUTE, |node| node.state() == "IDLE")?;

    removed(cluster, &machines)
}

/// Removal is refused while Slurm uses the package, and then works as the page describes: no node is drained, jobs keep running.
fn removed(cluster: &Cluster, machines: &[&str]) -> Result<()> {
    let root = cluster.root();
    let gone = root.clone().on("gn3");
    let refused = gone.run(&["dpkg", "-r", "railgate"])?;
    ensure!(refused.code != 0, "removed while Slurm starts it: {}", refused.both());
    for words in
        ["Prolog: /etc/slurm/prolog.d/95-railgate", "railgate: not removed, as Slurm still starts it"]
    {
        ensure!(refused.both().contains(words), "{words}: {}", refused.both());
    }
    let runs = |name: &str| -> Result<()> {
        let id = cluster.alice().sbatch(&["-N2", "-w", "gn[2-3]", "-o", name], "srun hostname")?;
        cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
        ["gn2", "gn3"].iter().try_for_each(|node| {
            cluster.wait_node(node, "idle", MINUTE, |node| node.state() == "IDLE").map(drop)
        })
    };
    runs("refused")?;

    let page = page()?;
    let (_, section) = page.split_once("## Removing it").context("docs/install.md: no removal")?;
    let mut blocks = section.split("```sh\n").skip(1).filter_map(|block| block.split("```").next());
    for line in blocks.next().context("no lines for slurm.conf")?.lines() {
        let output = root.run(&["bash", "-c", line])?;
        let doctor = line.starts_with("railgate doctor");
        ensure!(output.code == i32::from(doctor), "{line}: {}", output.both());
    }
    restart(cluster)?;
    let lines = blocks.next().context("no lines for the package")?;
    for machine in machines {
        for line in lines.lines() {
            root.clone().on(machine).run(&["bash", "-c", line])?.ok()?;
        }
    }
    runs("removed")?;
    let left =
        gone.run(&["find", "/usr", "/etc", "-path", "*railgate*", "-not", "-path", "/etc/slurm/*"])?.ok()?;
    let left: BTreeSet<&str> = left.lines().collect();
    let settings = ["/etc/logrotate.d/railgate", "/etc/railgate", "/etc/railgate/periodic.sh", SETTINGS];
    ensure!(left == BTreeSet::from(settings), "left after removal: {left:?}");

    gone.run(&["dpkg", "-P", "railgate"])?.ok()?;
    let left = gone.run(&["find", "/usr", "/etc", "/var", "-name", "*railgate*"])?.ok()?;
    // The page's file for slurm.conf, a mount of the test's machines, and the cache of the machine that runs the tests.
    let expected = ["/etc/slurm/railgate.conf", "/var/lib/railgate", "/var/cache/railgate"];
    let left: Vec<&str> = left.lines().filter(|path| !expected.contains(path)).collect();
    let state = gone.run(&["ls", "-A", "/var/lib/railgate"])?;
    ensure!(state.stdout.is_empty(), "left after purge: {}", state.stdout);
    ensure!(left.is_empty(), "left after purge: {left:?}");
    Ok(())
}

fn restart(cluster: &Cluster) -> Result<()> {
    cluster.stop_slurmctld()?;
    cluster.start_slurmctld()?;
    for node in cluster.nodes() {
        cluster.kill_slurmd(node)?;
        cluster.start_slurmd(node)?;
    }
    Ok(())
}

/// Checks that the owner of a job can read its report.
fn reported(cluster: &Cluster, id: u32, node: &str) -> Result<()> {
    let mut text = String::new();
    railgate_tests::poll::until(MINUTE, "the job's report", || {
        let output = cluster.alice().on("ctl").run(&["railgate", "report", &id.to_string()])?;
        text = output.both();
        Ok((text.to_lowercase().contains("completed") && text.contains(node)).then_some(()))
    })
    .with_context(|| text.clone())
}

/// A command line of the page.
struct Typed {
    text: String,
    everywhere: bool,
}

/// The command lines of `docs/install.md`, quick start.
fn quick_start() -> Result<Vec<Typed>> {
    let page = page()?;
    let (_, section) = page.split_once("## Quick start").context("docs/install.md has no quick start")?;
    let block = section.split("```").nth(1).context("no commands")?;
    let lines: Vec<Typed> = block
        .lines()
        .skip(1)
        .map(|line| Typed { text: line.to_owned(), everywhere: line.ends_with("# on every machine") })
        .collect();
    ensure!(lines.len() == 4, "{} lines in the quick start", lines.len());
    Ok(lines)
}

fn page() -> Result<String> {
    let page = build::workspace().join("docs/install.md");
    fs::read_to_string(&page).with_context(|| page.display().to_string())
}

/// Checks that groff accepts every man page without warnings.
fn man_pages() -> Result<()> {
    packages::need(&[("groff", "groff")])?;
    let pages = build::folder(false)?.with_file_name("dist").join("generated/man1");
    for page in fs::read_dir(&pages)? {
        let page = page?.path();
        let output =
            Command::new("groff").args(["-Kutf8", "-man", "-Tutf8", "-ww", "-z"]).arg(&page).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success() && said.is_empty(), "{}: {said}", page.display());
    }
    Ok(())
}

/// Checks that this machine has the dependencies of the self-test's package and that the program starts: without arguments it
/// prints its usage.
fn runs_here(deb: &Path) -> Result<()> {
    steps::run(Command::new("dpkg").args(["--dry-run", "--install"]).arg(deb))?;
    let place = tempfile::tempdir()?;
    steps::run(Command::new("dpkg-deb").arg("--extract").arg(deb).arg(place.path()))?;
    let output = Command::new(place.path().join("usr/libexec/railgate/railgate-rdma-selftest")).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(2) && said.starts_with("usage: "), "{}: {said}", output.status);
    Ok(())
}

/// Checks that the packaged program needs nothing of NVIDIA's to start.
fn gpu_selftest_starts(deb: &Path) -> Result<()> {
    let place = tempfile::tempdir()?;
    steps::run(Command::new("dpkg-deb").arg("--extract").arg(deb).arg(place.path()))?;
    steps::run(Command::new(place.path().join("usr/libexec/railgate/railgate-gpu-selftest")).arg("--version"))
}

/// Installs the .rpm into an empty root and compares its files with those of the .deb.
fn same_contents(rpm: &Path, deb: &Path) -> Result<()> {
    let place = tempfile::tempdir()?;
    let (ours, theirs) = (place.path().join("rpm"), place.path().join("deb"));
    fs::create_dir(&ours)?;
    let mut command = Command::new("rpm");
    command.args(["--install", "--nodeps", "--noscripts", "--root"]).arg(&ours).arg(rpm);
    steps::run(&mut command)?;
    steps::run(Command::new("dpkg-deb").arg("--extract").arg(deb).arg(&theirs))?;
    let list = |root: &Path| -> Result<BTreeSet<String>> {
        let output = Command::new("find")
            .args([".", "-type", "f", "-not", "-path", "./var/*", "-not", "-path", "./root/*"])
            .current_dir(root)
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout).replace("vendor-completions", "site-functions");
        Ok(text.lines().map(str::to_owned).collect())
    };
    let (ours, theirs) = (list(&ours)?, list(&theirs)?);
    let differ: Vec<_> = ours.symmetric_difference(&theirs).collect();
    ensure!(differ.is_empty() && ours.len() > 50, "{} files, these in one only: {differ:?}", ours.len());
    println!("{} files", ours.len());
    Ok(())
}
