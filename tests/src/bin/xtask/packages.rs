//! Packages of the distribution, installed if missing.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use railgate_tests::cluster::slurm_release;

use super::steps;

/// A program, or a file with its path, and the package that contains it.
pub(super) type Need = (&'static str, &'static str);

/// For test clusters.
pub(super) const CLUSTER: [Need; 9] = [
    ("slurmctld", "slurmctld"),
    ("slurmd", "slurmd"),
    ("sbatch", "slurm-client"),
    ("munged", "munge"),
    ("ip", "iproute2"),
    ("nsenter", "util-linux"),
    ("pkill", "procps"),
    ("bash", "bash"),
    ("mpirun", "openmpi-bin"),
];

/// For building.
pub(super) const BUILD: [Need; 1] = [("cc", "gcc")];

/// For making packages.
pub(super) const DIST: [Need; 2] = [("dpkg-deb", "dpkg"), ("rpmbuild", "rpm")];

/// For tools of the Python package index: Debian's Python needs it to make a venv.
pub(super) const VENV: [Need; 2] =
    [("/usr/bin/python3", "python3"), ("/var/lib/dpkg/info/python3-venv.list", "python3-venv")];

/// For root directories of other releases.
pub(super) const DEBOOTSTRAP: [Need; 1] = [("debootstrap", "debootstrap")];

/// For reading the symbol versions that a library requires.
pub(super) const OBJDUMP: [Need; 1] = [("objdump", "binutils")];

/// For tests outside of the cluster.
pub(super) const TESTS: [Need; 10] = [
    ("shellcheck", "shellcheck"),
    ("/usr/bin/python3", "python3"),
    ("valgrind", "valgrind"),
    ("zsh", "zsh"),
    ("mkfs.ext4", "e2fsprogs"),
    ("ibsim", "ibsim-utils"),
    ("ibnetdiscover", "infiniband-diags"),
    ("promtool", "prometheus"),
    ("prometheus-node-exporter", "prometheus-node-exporter"),
    ("prometheus-alertmanager", "prometheus-alertmanager"),
];

/// For tests of the pages. Ubuntu has it only as a snap, so a run without it skips them.
pub(super) const BROWSER: [Need; 1] = [("chromium", "chromium")];

/// Path of a program; the directories of root's programs are searched as well.
pub(super) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(usual).map(|dir| dir.join(program)).find(|file| file.exists())
}

/// Installs missing packages.
pub(super) fn need(needs: &[Need]) -> Result<()> {
    let mut missing: Vec<String> = Vec::new();
    for (program, package) in needs {
        if find(program).is_none() {
            missing.push((*package).to_owned());
        }
    }
    // Slurm's authentication and scheduling plugins are in a package that only some releases depend on.
    if missing.iter().any(|package| package.starts_with("slurm")) {
        missing.push("slurm-wlm-basic-plugins".to_owned());
    }
    if missing.is_empty() {
        return Ok(());
    }
    missing.sort();
    missing.dedup();
    if find("apt-get").is_none() {
        bail!("missing packages, and this is neither Debian nor Ubuntu: {}", missing.join(" "));
    }
    if nix::unistd::geteuid().is_root() {
        return install(&missing);
    }
    if find("sudo").is_none() {
        bail!("please install first: apt-get install --no-install-recommends {}", missing.join(" "));
    }
    steps::run(
        Command::new("sudo").arg(railgate_tests::cluster::own_program()?).arg("@packages").args(&missing),
    )
    .with_context(|| format!("or install them yourself: apt-get install {}", missing.join(" ")))
}

/// Prevents package scripts from starting services: the cluster starts its own in its own namespaces.
struct NoServices(Option<&'static Path>);

impl NoServices {
    fn new() -> Result<Self> {
        let policy = Path::new("/usr/sbin/policy-rc.d");
        if policy.exists() {
            return Ok(NoServices(None));
        }
        fs::write(policy, "#!/bin/sh\nexit 101\n").with_context(|| policy.display().to_string())?;
        let guard = NoServices(Some(policy));
        fs::set_permissions(policy, fs::Permissions::from_mode(0o755))?;
        Ok(guard)
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if let Some(policy) = self.0 {
            let _ = fs::remove_file(policy);
        }
    }
}

/// Installs packages; needs root.
pub(super) fn install(names: &[String]) -> Result<()> {
    let _quiet = NoServices::new()?;
    println!("installing {}", names.join(" "));
    let apt = |words: &[&str], names: &[String]| {
        let mut command = Command::new("apt-get");
        command.args(words).args(names).env("DEBIAN_FRONTEND", "noninteractive");
        steps::run(&mut command)
    };
    // If updating the package lists fails, the existing ones may suffice.
    if let Err(error) = apt(&["-qq", "update"], &[]) {
        eprintln!("warning: {error:#}");
    }
    apt(&["-qq", "install", "-y", "--no-install-recommends"], names)
}

/// Packages of a root directory with its own Slurm.
const ROOT_PACKAGES: &str =
    "slurmctld,slurmd,slurm-client,slurm-wlm-basic-plugins,munge,iproute2,procps,e2fsprogs,python3";

/// The newest release, from sid. sid moves to newer ones over time.
pub(super) const NEWEST_SLURM: &str = "26.05";

/// Root directory with the given release of Slurm, made if missing.
pub(super) fn slurm(version: &str) -> Result<PathBuf> {
    // Apptainer is packaged only in sid, so its template is tested there.
    let (more, size) = if version == NEWEST_SLURM { (",apptainer", "600 MB") } else { ("", "300 MB") };
    debian("slurm", version, more, size)
}

/// The same with the accounting database and its dependencies.
pub(super) fn accounting(version: &str) -> Result<PathBuf> {
    debian("slurmdbd", version, ",slurmdbd,slurm-wlm-mysql-plugin,mariadb-server", "700 MB")
}

/// MariaDB's client library 3.4.9 (Debian 13 and sid) rejects every result of slurmdbd's queries ("Number of columns in result
/// (=1) set execeeds maxmimum allowed number of columns (=0)"), and slurmdbd exits. Debian 12's library has the same interface
/// and works. The package lists of a mirror may be older than apt accepts by default.
const OLDER_CLIENT_LIBRARY: &str = "\
echo 'deb http://deb.debian.org/debian bookworm main' > /etc/apt/sources.list
apt-get -qq -o Acquire::Check-Valid-Until=false update
DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends --allow-downgrades libmariadb3/bookworm";

fn debian(name: &str, version: &str, more: &str, size: &str) -> Result<PathBuf> {
    let suite = match version {
        "22.05" => "bookworm",
        "24.11" => "trixie",
        NEWEST_SLURM => "sid",
        _ => bail!("Slurm {version}: Debian has 22.05, 24.11 and 26.05"),
    };
    let root = Path::new("/var/cache/railgate").join(format!("{name}-{version}"));
    if root.join("usr/sbin/slurmd").exists() {
        return Ok(root);
    }
    need(&[("debootstrap", "debootstrap")])?;
    println!("making {} from Debian's {suite} (a minute or two, {size})", root.display());
    let fresh = root.with_extension(format!("new{}", std::process::id()));
    let as_root = |words: &[&std::ffi::OsStr]| {
        let (program, rest) = words.split_first().context("no command")?;
        let mut command = if nix::unistd::geteuid().is_root() {
            Command::new(program)
        } else {
            let mut command = Command::new("sudo");
            command.arg(program);
            command
        };
        steps::run(command.args(rest).stdout(std::process::Stdio::null()))
    };
    let include = format!("--include={ROOT_PACKAGES}{more}");
    as_root(&["mkdir".as_ref(), "-p".as_ref(), "/var/cache/railgate".as_ref()])?;
    let made = as_root(&[
        "debootstrap".as_ref(),
        "--variant=minbase".as_ref(),
        include.as_ref(),
        suite.as_ref(),
        fresh.as_os_str(),
    ]);
    if made.is_err() {
        let _ = as_root(&["rm".as_ref(), "-rf".as_ref(), "--one-file-system".as_ref(), fresh.as_os_str()]);
    }
    made?;
    let (year, month) = slurm_release(&fresh)?;
    if format!("{year}.{month:02}") != version {
        let _ = as_root(&["rm".as_ref(), "-rf".as_ref(), "--one-file-system".as_ref(), fresh.as_os_str()]);
        bail!("Debian's {suite} has Slurm {year}.{month:02} now");
    }
    if name == "slurmdbd" && suite != "bookworm" {
        let sh = ["sh", "-ec", OLDER_CLIENT_LIBRARY].map(std::ffi::OsStr::new);
        as_root(&[&["chroot".as_ref(), fresh.as_os_str()][..], &sh].concat())?;
    }
    as_root(&["mv".as_ref(), fresh.as_os_str(), root.as_os_str()])?;
    Ok(root)
}
