//! `cargo xtask test`: everything that a change must pass.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use railgate_tests::cluster::{SLURM_ROOT, slurm_release};
use railgate_tests::poll;

use super::steps::{self, Steps};
use super::{browser, build, dist, packaged, packages, vm};

/// Version for CI and developers.
const CARGO_DENY: &str = "0.20.2";

/// Builds the book of `docs/`; `cli/tests/book.rs` checks its links.
const MDBOOK: &str = "0.4.52";

/// Number of clusters that run at once. They are mostly waiting.
const CLUSTERS: &str = "6";

/// Differences between Slurm releases (`docs/slurm-releases.md`) and the tests that cover them. A full run repeats these tests on
/// the newest release; all cluster tests on two releases would take CI too long. `--slurm` runs all of them.
const DIFFERENT: [(&str, &str); 16] = [
    ("SPANK: one plugin file for each release, its options and hooks", "plugin::"),
    ("variables of prolog and epilog; consequences of a failed prolog", "gate::"),
    ("srun, salloc and --no-requeue after a failed prolog", "unfit::"),
    ("EpilogSlurmctld's variables, delay of a requeued job", "requeue::a_job_whose_gpu_dies"),
    ("the exit status of an attempt whose node died", "node_death::a_job_survives"),
    ("MaxBatchRequeue", "node_death::a_job_moved_ten_times"),
    ("sbatch --requeue=expedite", "expedited::"),
    ("reconfiguring while a prolog runs", "controller_away::reconfiguring"),
    ("the steps' exit code in the epilog", "profiler::"),
    ("srun with a list of nodes; a step on a node that died", "launch::a_spare_takes"),
    ("a real Apptainer, which only sid has", "apptainer::"),
    ("trees, blocks and topology.yaml", "fabric::slurm_"),
    ("scontrol's output for a job: SubmitLine", "hostile::submitted_text"),
    ("scontrol's output for the configuration", "doctor::"),
    ("scontrol's output for a job: StdErr", "without_gpus::every_end"),
    ("reason of a node resumed with State=UNDRAIN", "admin_procedures::a_drained_node"),
];

/// Tests that need slurmdbd.
const ACCOUNTED: [&str; 2] = ["accounting::", "endings::first_lines_with_slurmdbd"];

/// Which tests to run.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Only tests whose names contain this; no formatting, lints and other checks
    filter: Option<String>,
    /// Only the tests on the real cluster
    #[arg(long)]
    cluster: bool,
    /// Only the tests on the real cluster, with this Slurm: 24.11 or 26.05 from Debian, kept in
    /// /var/cache/railgate
    #[arg(long, value_name = "VERSION")]
    slurm: Option<String>,
    /// Only the packages: install, use, upgrade and remove them on Debian 12, 13 and sid, as root
    #[arg(long, conflicts_with_all = ["filter", "cluster", "slurm"])]
    packages: bool,
    /// Only tests that need an accounting database: Debian's slurmdbd and MariaDB, kept in /var/cache/railgate. Once the one for
    /// 22.05 exists there, these tests are also part of those on the real cluster
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
            // sid changes; a release that it no longer has is not a failure of the tests.
            Err(why) if version == packages::NEWEST_SLURM => {
                println!("skipped: Slurm {version} is not available: {why:#}");
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
            let mut command = build::cargo();
            command.args(["test", "--workspace", "--quiet", "--no-fail-fast"]).args(&arguments.filter);
            steps::run(command.envs(browser::prepare().map(|axe| ("RAILGATE_AXE", axe))))
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

/// Prepares later steps while the clusters are waiting. Failures are reported by those steps.
struct Meanwhile {
    newest: JoinHandle<Result<PathBuf>>,
    built: JoinHandle<()>,
}

impl Meanwhile {
    fn start() -> Self {
        // Before the thread starts, since apt runs only once at a time. Missing packages are reported by the step that needs them.
        let _ = vm::need();
        Meanwhile {
            newest: std::thread::spawn(|| packages::slurm(packages::NEWEST_SLURM)),
            built: std::thread::spawn(vm::build_ahead),
        }
    }

    /// Root directory of the newest Slurm.
    fn end(self) -> Result<PathBuf> {
        let _ = self.built.join();
        self.newest.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the root directory could not be made")))
    }
}

/// If the packages are not available, the tests are skipped without a failure.
fn accounting(version: &str) -> Result<()> {
    packages::need(&[&packages::CLUSTER[..], &packages::BUILD].concat())?;
    let root = match packages::accounting(version) {
        Ok(root) => root,
        Err(why) => {
            println!("skipped: slurmdbd {version} is not available: {why:#}");
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
        // Nothing is linked, so libFuzzer's C++ code need not be compiled.
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
        all.skip("advisories", "the database is not reachable");
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

/// Installs a program of crates.io that the distribution does not have.
fn installed(program: &str, version: &str, features: &[&str], takes: &str) -> Result<()> {
    if packages::find(program).is_some() || home_bin(program).is_some() {
        return Ok(());
    }
    println!("installing {program} {version}, once ({takes})");
    let mut command = build::cargo();
    command.args(["install", "--locked", "--quiet", program, "--version", version]).args(features);
    // Not optimised: the program runs for seconds, less than the optimisation would take.
    steps::run(command.arg("--debug").env("CARGO_PROFILE_DEV_DEBUG", "0"))
}

fn home_bin(program: &str) -> Option<PathBuf> {
    let home = PathBuf::from(std::env::var_os("HOME")?);
    Some(home.join(".cargo/bin").join(program)).filter(|path| path.exists())
}

/// Fetches the advisory database, for at most one minute: [`poll::until`] waits three times the limit given here.
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

/// Runs shellcheck on every shipped script.
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

/// Collects files with a shell that shellcheck knows in their first line, and the files that those source.
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

/// Runs the tests of [`DIFFERENT`] on the newest Slurm; skipped with a message if it is not available.
fn on_the_newest(all: &mut Steps, root: Result<PathBuf>) {
    const NAME: &str = "newest Slurm";
    match root {
        Err(why) => all.skip(NAME, &format!("Slurm {} is not available: {why:#}", packages::NEWEST_SLURM)),
        Ok(root) => all.step(NAME, || {
            build::programs(false, &root)?;
            let listed = Command::new(cluster_tests()?).arg("--list").output()?;
            let listed = String::from_utf8_lossy(&listed.stdout);
            for (what, tests) in DIFFERENT {
                ensure!(listed.contains(tests), "no cluster test matches '{tests}' ({what})");
            }
            these_on_clusters(&DIFFERENT.map(|(_, tests)| tests), &root)
        }),
    }
}

/// Builds the cluster tests and returns the path of the test program.
fn cluster_tests() -> Result<PathBuf> {
    let mut compile = build::cargo();
    compile.args(["test", "--quiet", "-p", "railgate-tests", "--test", "cluster", "--no-run"]);
    compile.arg("--message-format=json").stderr(Stdio::inherit());
    let output = compile.output().context("compiling the cluster's tests")?;
    if !output.status.success() {
        bail!("the cluster's tests do not compile");
    }
    executable(&String::from_utf8_lossy(&output.stdout))
        .context("cargo did not print the path of the cluster tests")
}

/// Builds the cluster tests as the current user and runs them as root.
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
    // A shell without job control ignores these signals in background commands, and jobs would inherit that.
    command.arg("--default-signal=HUP,INT,QUIT").arg(&program);
    // Only the ignored tests: the others need no cluster and have run already.
    command.args(["--ignored", "--test-threads", CLUSTERS]).args(filters);
    // A test that builds a plugin itself builds it for this release.
    let release = slurm_release(slurm_root)?;
    command.env("RAILGATE_SLURM_VERSION", format!("{}.{:02}", release.0, release.1));
    steps::run_tests(command.env("RUST_LIB_BACKTRACE", "0").env(SLURM_ROOT, slurm_root))
}

/// Path of the test program from cargo's JSON messages.
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
