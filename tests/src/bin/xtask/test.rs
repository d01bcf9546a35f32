//! `cargo xtask test`: everything that a change has to pass.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use railgate_tests::cluster::{SLURM_ROOT, slurm_release};
use railgate_tests::poll;

use super::steps::{self, Steps};
use super::{build, dist, packaged, packages, vm};

/// The version that CI and people share.
const CARGO_DENY: &str = "0.20.2";

/// Makes the book of `docs/`; its links are checked by `cli/tests/book.rs`.
const MDBOOK: &str = "0.4.52";

/// How many clusters run at once. They wait more than they work.
const CLUSTERS: &str = "4";

/// What Slurm's releases differ in (`docs/slurm-releases.md`), and the tests that meet it. These run on the newest release
/// whenever everything does: all cluster tests on two releases would take CI too long. `--slurm` runs all of them.
const DIFFERENT: [(&str, &str); 14] = [
    ("SPANK: one plugin file for each release, its options and hooks", "plugin::"),
    ("names of prolog's and epilog's variables; what follows a failed prolog", "gate::"),
    ("what becomes of srun, salloc and --no-requeue when a prolog fails", "unfit::"),
    ("EpilogSlurmctld's variables, the wait of a requeued job", "comes_back::a_job_whose_gpu_dies"),
    ("the exit status of an attempt whose node died", "node_death::a_job_survives"),
    ("MaxBatchRequeue", "node_death::a_job_that_the_gate_moved"),
    ("reconfiguring while a prolog runs", "controller_away::reconfiguring"),
    ("the steps' exit code in the epilog", "profiler::"),
    ("a real Apptainer, which only sid has", "apptainer::"),
    ("trees, blocks and topology.yaml", "fabric::slurm_"),
    ("what scontrol prints of a job: SubmitLine", "hostile::what_a_user_submits"),
    ("what scontrol prints of the configuration", "doctor::"),
    ("what scontrol prints of a job: StdErr", "without_gpus::every_end"),
    ("the reason of a node that State=UNDRAIN gives back", "way_back::a_drained_node"),
];

/// The tests that need a slurmdbd.
const ACCOUNTED: [&str; 2] = ["accounting::", "endings::first_lines_with_slurmdbd"];

/// What to test.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Only tests whose names contain this, without formatting, lints and the like
    filter: Option<String>,
    /// Only the tests on the real cluster
    #[arg(long)]
    cluster: bool,
    /// Only the tests on the real cluster, with this Slurm: 24.11 or 26.05 from Debian, kept in
    /// /var/cache/railgate
    #[arg(long, value_name = "VERSION")]
    slurm: Option<String>,
    /// Only the packages: installed, used, upgraded and removed on Debian 12, 13 and sid, as root
    #[arg(long, conflicts_with_all = ["filter", "cluster", "slurm"])]
    packages: bool,
    /// Only what needs an accounting database: Debian's slurmdbd and MariaDB, kept in /var/cache/railgate; where that of
    /// 22.05 is there it is one of the tests on the real cluster
    #[arg(long, value_name = "VERSION", default_missing_value = "22.05", num_args = 0..=1)]
    #[arg(conflicts_with_all = ["filter", "cluster", "slurm", "packages"])]
    accounting: Option<String>,
}

pub(super) fn run(arguments: &Arguments) -> Result<()> {
    if arguments.packages {
        return packaged::run();
    }
    if let Some(version) = &arguments.accounting {
        return accounting(version);
    }
    packages::need(&[&packages::CLUSTER[..], &packages::BUILD, &packages::TESTS].concat())?;
    let mut all = Steps::default();
    let slurm_root = match &arguments.slurm {
        Some(version) => match packages::slurm(version) {
            Ok(root) => root,
            // sid moves: what it no longer has is nobody's fault here.
            Err(why) if version == packages::NEWEST_SLURM => {
                println!("skipped: Slurm {version} cannot be had: {why:#}");
                return Ok(());
            }
            Err(why) => return Err(why),
        },
        None => PathBuf::from("/"),
    };
    let cluster_only = arguments.cluster || arguments.slurm.is_some();
    if arguments.filter.is_none() && !cluster_only {
        checks(&mut all);
    }
    if !cluster_only {
        all.step("unit, property and scenario tests", || {
            steps::run(
                build::cargo()
                    .args(["test", "--workspace", "--quiet", "--no-fail-fast"])
                    .args(&arguments.filter),
            )
        });
    }
    all.step("build for the cluster", || build::programs(false, &slurm_root));
    let everything = arguments.filter.is_none() && !cluster_only;
    let meanwhile = everything.then(Meanwhile::start);
    all.step("real Slurm cluster", || on_clusters(arguments.filter.as_deref(), &slurm_root));
    if let Some(meanwhile) = meanwhile {
        on_the_newest(&mut all, meanwhile.end());
        vm::run(&mut all);
        dist::try_nccl_plugins(&mut all);
        packaged::try_here(&mut all);
    }
    all.end()
}

/// What later steps need, made while clusters wait for something. Of builds that fail, their own steps tell.
struct Meanwhile {
    newest: JoinHandle<Result<PathBuf>>,
    built: JoinHandle<()>,
}

impl Meanwhile {
    fn start() -> Self {
        // Before, as two cannot install at once; what cannot be had is told by who needs it.
        let _ = vm::need();
        Meanwhile {
            newest: std::thread::spawn(|| packages::slurm(packages::NEWEST_SLURM)),
            built: std::thread::spawn(vm::build_ahead),
        }
    }

    /// The newest Slurm's root.
    fn end(self) -> Result<PathBuf> {
        let _ = self.built.join();
        self.newest.join().unwrap_or_else(|_| Err(anyhow::anyhow!("it could not be made")))
    }
}

/// What cannot be had is said, and fails nothing.
fn accounting(version: &str) -> Result<()> {
    packages::need(&[&packages::CLUSTER[..], &packages::BUILD].concat())?;
    let root = match packages::accounting(version) {
        Ok(root) => root,
        Err(why) => {
            println!("skipped: slurmdbd {version} cannot be had: {why:#}");
            return Ok(());
        }
    };
    let mut all = Steps::default();
    all.step("build for the cluster", || build::programs(false, &root));
    all.step("accounting database", || these_on_clusters(&ACCOUNTED, &root));
    all.end()
}

fn checks(all: &mut Steps) {
    all.step("format", || steps::run(build::cargo().args(["fmt", "--all", "--check"])));
    all.step("lints", || {
        steps::run(build::cargo().args(["clippy", "--workspace", "--all-targets", "--quiet"]))
    });
    all.step("fuzz targets compile", || {
        let mut command = build::cargo();
        command.args(["check", "--quiet", "--locked", "--manifest-path", "fuzz/Cargo.toml", "--target-dir"]);
        command.arg(build::folder(false)?.parent().context("no target folder")?);
        // Nothing is linked: its C++ need not be compiled.
        steps::run(command.env("CUSTOM_LIBFUZZER_PATH", "/nonexistent/libfuzzer.a"))
    });
    all.step("documentation", || {
        let mut command = build::cargo();
        command.args(["doc", "--workspace", "--no-deps", "--document-private-items", "--quiet"]);
        steps::run(command.env("RUSTDOCFLAGS", "-D warnings"))
    });
    all.step("dependencies", || {
        installed("cargo-deny", CARGO_DENY, &[], "two minutes")?;
        steps::run(build::cargo().args(["deny", "--all-features", "check", "bans", "licenses", "sources"]))
    });
    if advisories_known() {
        all.step("advisories", || {
            steps::run(build::cargo().args(["deny", "check", "--disable-fetch", "advisories"]))
        });
    } else {
        all.skip("advisories", "their database cannot be reached");
    }
    all.step("shell scripts", shell_scripts);
    all.step("book", || {
        installed("mdbook", MDBOOK, &["--no-default-features"], "a minute or two")?;
        let program = packages::find("mdbook").or_else(|| home_bin("mdbook")).context("mdbook")?;
        let target = build::workspace().join("target/book");
        steps::run(
            Command::new(program).args(["build", "docs", "-d"]).arg(target).current_dir(build::workspace()),
        )
    });
}

/// A program of crates.io that the distribution does not have.
fn installed(program: &str, version: &str, features: &[&str], takes: &str) -> Result<()> {
    if packages::find(program).is_some() || home_bin(program).is_some() {
        return Ok(());
    }
    println!("installing {program} {version}, once ({takes})");
    let mut command = build::cargo();
    command.args(["install", "--locked", "--quiet", program, "--version", version]).args(features);
    // It runs for seconds: to optimise it takes longer than the optimised program would save.
    steps::run(command.arg("--debug").env("CARGO_PROFILE_DEV_DEBUG", "0"))
}

fn home_bin(program: &str) -> Option<PathBuf> {
    let home = PathBuf::from(std::env::var_os("HOME")?);
    Some(home.join(".cargo/bin").join(program)).filter(|path| path.exists())
}

/// Fetches the advisory database, for at most a minute, which is three times what is asked for here.
fn advisories_known() -> bool {
    let mut command = build::cargo();
    command.args(["deny", "fetch", "db"]).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else { return false };
    let ended = poll::until(Duration::from_secs(20), "the advisory database", || Ok(child.try_wait()?));
    if ended.is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
    ended.is_ok_and(|status| status.success())
}

/// Every script that we ship.
fn shell_scripts() -> Result<()> {
    let mut scripts = Vec::new();
    for dir in ["sbatch-templates", "contrib", "crates/nhc/src", "tests/gpu", "tests/vm", ".ci"] {
        collect(&build::workspace().join(dir), &mut scripts)?;
    }
    if scripts.is_empty() {
        return Ok(());
    }
    steps::run(
        Command::new("shellcheck").args(["--severity=style", "--external-sources", "--"]).args(&scripts),
    )
}

/// Files whose first line asks for a shell that shellcheck knows, and those that such a file sources.
fn collect(dir: &Path, scripts: &mut Vec<PathBuf>) -> Result<()> {
    let Ok(entries) = fs::read_dir(dir) else { return Ok(()) };
    for entry in entries {
        let entry = entry.with_context(|| dir.display().to_string())?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            collect(&path, scripts)?;
        } else if let Ok(text) = fs::read(&path) {
            let first = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
            let program = first.starts_with(b"#!")
                && (first.ends_with(b"sh") || first.windows(3).any(|word| word == b"sh "));
            if program || first.starts_with(b"# shellcheck shell=") {
                scripts.push(path);
            }
        }
    }
    scripts.sort();
    Ok(())
}

/// What differs, on the newest Slurm; one line says why not where it cannot be had.
fn on_the_newest(all: &mut Steps, root: Result<PathBuf>) {
    const NAME: &str = "newest Slurm";
    match root {
        Err(why) => all.skip(NAME, &format!("Slurm {} cannot be had: {why:#}", packages::NEWEST_SLURM)),
        Ok(root) => all.step(NAME, || {
            build::programs(false, &root)?;
            let listed = Command::new(cluster_tests()?).arg("--list").output()?;
            let listed = String::from_utf8_lossy(&listed.stdout);
            for (what, tests) in DIFFERENT {
                ensure!(listed.contains(tests), "no test on the cluster is called '{tests}' ({what})");
            }
            these_on_clusters(&DIFFERENT.map(|(_, tests)| tests), &root)
        }),
    }
}

/// Builds the cluster's tests, and returns the program.
fn cluster_tests() -> Result<PathBuf> {
    let mut compile = build::cargo();
    compile.args(["test", "--quiet", "-p", "railgate-tests", "--test", "cluster", "--no-run"]);
    compile.arg("--message-format=json").stderr(Stdio::inherit());
    let output = compile.output().context("compiling the cluster's tests")?;
    if !output.status.success() {
        bail!("the cluster's tests do not compile");
    }
    executable(&String::from_utf8_lossy(&output.stdout))
        .context("cargo did not say where the cluster's tests are")
}

/// Builds the cluster's tests as who we are, and runs them as root.
fn on_clusters(filter: Option<&str>, slurm_root: &Path) -> Result<()> {
    these_on_clusters(filter.as_slice(), slurm_root)
}

fn these_on_clusters(filters: &[&str], slurm_root: &Path) -> Result<()> {
    let program = cluster_tests()?;
    let mut command = if nix::unistd::geteuid().is_root() {
        Command::new("env")
    } else if packages::find("sudo").is_some() {
        println!("the cluster needs root: sudo {}", program.display());
        let mut command = Command::new("sudo");
        let keep = format!("--preserve-env={SLURM_ROOT},RAILGATE_SLURM_VERSION,RUST_LIB_BACKTRACE");
        command.args([keep.as_str(), "env"]);
        command
    } else {
        bail!("the cluster needs root: run {} --ignored as root", program.display());
    };
    // A shell without job control starts background commands with these signals ignored, and jobs would inherit it.
    command.arg("--default-signal=HUP,INT,QUIT").arg(&program);
    // Tests not on the cluster have run already; what is ignored there is what needs root.
    command.args(["--ignored", "--test-threads", CLUSTERS]).args(filters);
    // A test that builds a plugin of its own builds it for this Slurm.
    let release = slurm_release(slurm_root)?;
    command.env("RAILGATE_SLURM_VERSION", format!("{}.{:02}", release.0, release.1));
    steps::run(command.env("RUST_LIB_BACKTRACE", "0").env(SLURM_ROOT, slurm_root))
}

/// The test program's path in cargo's messages.
fn executable(messages: &str) -> Option<PathBuf> {
    messages.lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let target = message.get("target")?;
        if target.get("name")?.as_str()? != "cluster" {
            return None;
        }
        Some(PathBuf::from(message.get("executable")?.as_str()?))
    })
}
