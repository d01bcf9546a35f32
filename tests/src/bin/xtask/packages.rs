//! What the distribution must provide, installed when it is missing.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use railgate_tests::cluster::slurm_release;

use super::steps;

/// A program (or a file, with its path) and the package that brings it.
pub(super) type Need = (&'static str, &'static str);

/// For the cluster.
pub(super) const CLUSTER: [Need; 8] = [
    ("slurmctld", "slurmctld"),
    ("slurmd", "slurmd"),
    ("sbatch", "slurm-client"),
    ("munged", "munge"),
    ("ip", "iproute2"),
    ("nsenter", "util-linux"),
    ("pkill", "procps"),
    ("bash", "bash"),
];

/// For building.
pub(super) const BUILD: [Need; 1] = [("cc", "gcc")];

/// For making packages.
pub(super) const DIST: [Need; 2] = [("dpkg-deb", "dpkg"), ("rpmbuild", "rpm")];

/// For the tools of the Python package index; Debian's Python cannot make a venv without.
pub(super) const VENV: [Need; 2] =
    [("/usr/bin/python3", "python3"), ("/var/lib/dpkg/info/python3-venv.list", "python3-venv")];

/// For roots of other releases.
pub(super) const DEBOOTSTRAP: [Need; 1] = [("debootstrap", "debootstrap")];

/// For reading what a library asks of others.
pub(super) const OBJDUMP: [Need; 1] = [("objdump", "binutils")];

/// For the tests that are not on the cluster.
pub(super) const TESTS: [Need; 9] = [
    ("shellcheck", "shellcheck"),
    ("/usr/bin/python3", "python3"),
    ("valgrind", "valgrind"),
    ("zsh", "zsh"),
    ("mkfs.ext4", "e2fsprogs"),
    ("ibsim", "ibsim-utils"),
    ("ibnetdiscover", "infiniband-diags"),
    ("promtool", "prometheus"),
    ("prometheus-node-exporter", "prometheus-node-exporter"),
];

/// Where a program is; the directories of root's programs are searched too.
pub(super) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(usual).map(|dir| dir.join(program)).find(|file| file.exists())
}

/// Installs what is missing.
pub(super) fn need(needs: &[Need]) -> Result<()> {
    let mut missing: Vec<String> = Vec::new();
    for (program, package) in needs {
        if find(program).is_none() {
            missing.push((*package).to_owned());
        }
    }
    // Slurm's authentication and scheduling are plugins of a package that only some releases depend on.
    if missing.iter().any(|package| package.starts_with("slurm")) {
        missing.push("slurm-wlm-basic-plugins".to_owned());
    }
    if missing.is_empty() {
        return Ok(());
    }
    missing.sort();
    missing.dedup();
    if find("apt-get").is_none() {
        bail!("missing here, and this is neither Debian nor Ubuntu: {}", missing.join(" "));
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

/// Keeps package scripts from starting services: the cluster brings its own, in its own namespaces.
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

/// Installs packages, as root.
pub(super) fn install(names: &[String]) -> Result<()> {
    let _quiet = NoServices::new()?;
    println!("installing {}", names.join(" "));
    let apt = |words: &[&str], names: &[String]| {
        let mut command = Command::new("apt-get");
        command.args(words).args(names).env("DEBIAN_FRONTEND", "noninteractive");
        steps::run(&mut command)
    };
    // A list that cannot be renewed may still be good enough.
    if let Err(error) = apt(&["-qq", "update"], &[]) {
        eprintln!("warning: {error:#}");
    }
    apt(&["-qq", "install", "-y", "--no-install-recommends"], names)
}

/// What a root directory with a Slurm of its own needs.
const ROOT_PACKAGES: &str =
    "slurmctld,slurmd,slurm-client,slurm-wlm-basic-plugins,munge,iproute2,procps,e2fsprogs,python3";

/// Debian's newest: sid's, which moves.
pub(super) const NEWEST_SLURM: &str = "26.05";

/// The root directory of another Slurm than this machine's, made when it is not there yet.
pub(super) fn slurm(version: &str) -> Result<PathBuf> {
    // Only sid has Apptainer, and its template is tried where it is.
    let (more, size) = if version == NEWEST_SLURM { (",apptainer", "600 MB") } else { ("", "300 MB") };
    debian("slurm", version, more, size)
}

/// The same with the accounting database and what it stands on.
pub(super) fn accounting(version: &str) -> Result<PathBuf> {
    debian("slurmdbd", version, ",slurmdbd,slurm-wlm-mysql-plugin,mariadb-server", "700 MB")
}

/// MariaDB's client library 3.4.9, that of Debian 13 and sid, refuses every result of slurmdbd's ("Number of columns in result (=1)
/// set execeeds maxmimum allowed number of columns (=0)"), and slurmdbd ends; that of Debian 12 has the same interface. The list of
/// packages of a mirror may be older than apt accepts.
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
