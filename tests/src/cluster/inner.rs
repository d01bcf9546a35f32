//! The processes inside a cluster's namespaces: small roles of this package's own binary.
//!
//! ```text
//! keeper   outside; starts the cluster's init and ends with it
//!   init   pid 1 of the cluster: own mounts and network (the bridge); ends when its standard input is closed
//!     chassis    one per machine (with a `host` outside of the cluster that waits for it)
//!       machine  pid 1 of that machine: own root, host name, network and processes; only reaps children
//! enter    runs one command on a machine as a given user and forwards signals to it
//! ```
//!
//! No clean-up is needed: the kernel kills all processes of a PID namespace when its pid 1 ends, and mounts and network
//! links disappear with the last process of their namespace. If the test process is killed, the pipe that the cluster's init
//! reads is closed, and the cluster ends.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::{fs, thread};

use anyhow::{Context as _, Result, bail};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::stat::{Mode, SFlag, makedev, mknod, umask};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, pivot_root, sethostname};
use serde::{Deserialize, Serialize};

use super::mute::mute;

/// Where a cluster keeps its files, as its own processes see them. The cluster mounts a tmpfs of its own there, so the
/// directory only has to exist.
pub(super) const HOME: &str = "/media";

/// Description of one machine.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct MachineSpec {
    /// Host name.
    pub(super) name: String,
    /// IPv4 address and prefix length, for example `10.77.0.1/24`.
    pub(super) address: String,
    /// Directory below [`HOME`] in which `upper`, `work` and `root` are made.
    pub(super) dir: PathBuf,
    /// Read-only layers below the machine's own changes, uppermost first.
    pub(super) layers: Vec<PathBuf>,
    /// Directories of the test machine to bind: source, target, read-only.
    pub(super) binds: Vec<(PathBuf, PathBuf, bool)>,
    /// Character devices to add to the usual ones: name below /dev, major, minor.
    pub(super) devices: Vec<(String, u64, u64)>,
}

/// Runs a hidden role. `None` means that the arguments are a user's.
pub fn dispatch() -> Option<ExitCode> {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let (role, rest) = arguments.split_first()?;
    let result = match role.to_str()? {
        "@keeper" => keeper(rest),
        "@init" => init(rest),
        "@host" => host(rest),
        "@chassis" => chassis(rest),
        "@machine" => machine(rest),
        "@enter" => enter(rest),
        "@wire" => wire(rest),
        "@thaw" => thaw(rest),
        "@mute" => mute(rest),
        _ => return None,
    };
    Some(result.unwrap_or_else(|error| {
        eprintln!("{}: {error:#}", role.display());
        ExitCode::from(125)
    }))
}

fn own(role: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(role);
    command
}

/// Runs until the cluster's init ends, so that the caller has one process to wait for.
fn keeper(arguments: &[OsString]) -> Result<ExitCode> {
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWIPC)
        .context("making namespaces (is this root?)")?;
    unshare(CloneFlags::CLONE_NEWPID).context("making a process space")?;
    let mut child = own("@init").args(arguments).spawn().context("starting the cluster's first process")?;
    println!("pid {}", child.id());
    let status = child.wait().context("waiting for the cluster's first process")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn init(arguments: &[OsString]) -> Result<ExitCode> {
    // The keeper has one thread. PR_SET_PDEATHSIG fires when the parent thread ends, which is therefore the process.
    set_pdeathsig(Signal::SIGKILL).context("asking to die with the keeper")?;
    let root = Path::new("/");
    mount(None::<&str>, root, None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .context("making mounts private")?;
    mount_new("proc", Path::new("/proc"), "proc", MsFlags::empty(), "")?;
    mount_new("railgate-cluster", Path::new(HOME), "tmpfs", MsFlags::empty(), "mode=0755")?;
    ip(&["link", "set", "lo", "up"])?;
    ip(&["link", "add", "br0", "type", "bridge"])?;
    ip(&["link", "set", "br0", "up"])?;
    println!("ready");
    if arguments.first().is_some_and(|word| word == "keep") {
        return Ok(reap());
    }
    thread::spawn(reap);
    // The test process holds the other end and never writes: end of file is the only event.
    let mut nothing = [0_u8; 64];
    while matches!(std::io::stdin().read(&mut nothing), Ok(1..)) {}
    Ok(ExitCode::SUCCESS)
}

/// Waits forever for the children that a first process inherits.
fn reap() -> ExitCode {
    loop {
        if waitid(Id::All, WaitPidFlag::WEXITED).is_err() {
            // No child at the moment; orphans are inherited at any time.
            thread::sleep(std::time::Duration::from_millis(100));
        }
    }
}

fn mount_new(source: &str, target: &Path, kind: &str, flags: MsFlags, data: &str) -> Result<()> {
    mount(Some(source), target, Some(kind), flags, Some(data))
        .with_context(|| format!("mounting {kind} at {} ({data})", target.display()))
}

fn ip(arguments: &[&str]) -> Result<()> {
    let tool = ["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip"]
        .iter()
        .find(|path| Path::new(path).exists())
        .context("no ip tool (package iproute2)")?;
    let output =
        Command::new(tool).args(arguments).stdin(Stdio::null()).output().with_context(|| tool.to_string())?;
    if !output.status.success() {
        bail!("ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// The namespaces of a process, opened before entering any of them, since /proc is another one afterwards.
pub(super) struct Namespaces(Vec<(File, CloneFlags)>);

impl Namespaces {
    /// Opens the namespaces of process `pid`; `kinds` are names below `/proc/PID/ns`.
    pub(super) fn of(pid: &str, kinds: &[&str]) -> Result<Self> {
        let mut opened = Vec::new();
        for kind in kinds {
            let flag = match *kind {
                "mnt" => CloneFlags::CLONE_NEWNS,
                "net" => CloneFlags::CLONE_NEWNET,
                "uts" => CloneFlags::CLONE_NEWUTS,
                "ipc" => CloneFlags::CLONE_NEWIPC,
                _ => CloneFlags::CLONE_NEWPID,
            };
            let path = format!("/proc/{pid}/ns/{kind}");
            opened.push((File::open(&path).with_context(|| path)?, flag));
        }
        Ok(Namespaces(opened))
    }

    /// Moves this process into the namespaces; a PID namespace takes effect for its children.
    pub(super) fn enter(&self) -> Result<()> {
        for (file, flag) in &self.0 {
            setns(file, *flag).with_context(|| format!("entering {flag:?}"))?;
        }
        Ok(())
    }
}

/// A required argument as text; `what` names it in the error.
pub(super) fn text(word: Option<&OsString>, what: &str) -> Result<String> {
    word.and_then(|word| word.to_str()).map(str::to_owned).with_context(|| format!("{what} is missing"))
}

/// `@host PID SPEC`: runs outside of the cluster whose init is PID, and waits for a machine in it.
fn host(arguments: &[OsString]) -> Result<ExitCode> {
    let cluster = text(arguments.first(), "the cluster's process")?;
    Namespaces::of(&cluster, &["ipc", "net", "pid", "mnt"])?.enter()?;
    let mut child = own("@chassis").args(arguments.get(1)).spawn().context("starting a machine")?;
    println!("pid {}", child.id());
    child.wait().context("waiting for a machine")?;
    Ok(ExitCode::SUCCESS)
}

/// `@chassis SPEC`: makes a machine's network and waits for the machine's first process, its only child. It is a process of
/// its own because a PID namespace is entered only by the children of the process that makes it.
fn chassis(arguments: &[OsString]) -> Result<ExitCode> {
    let spec = text(arguments.first(), "the machine")?;
    let machine: MachineSpec = serde_json::from_str(&spec).context("the machine's description")?;
    let wire = format!("v-{}", machine.name);
    // A machine of this name that ended a moment ago can leave its link behind.
    let _ = ip(&["link", "del", &wire]);
    let bridge = Namespaces::of("self", &["net"])?;
    unshare(CloneFlags::CLONE_NEWNET).context("making a network")?;
    let network = Namespaces::of("self", &["net"])?;
    ip(&["link", "set", "lo", "up"])?;
    // Pid 1 of the cluster is its init, in whose network namespace the bridge is.
    ip(&["link", "add", "eth0", "type", "veth", "peer", "name", &wire, "netns", "1"])?;
    ip(&["addr", "add", &machine.address, "dev", "eth0"])?;
    ip(&["link", "set", "eth0", "up"])?;
    bridge.enter()?;
    ip(&["link", "set", &wire, "master", "br0", "up"])?;
    network.enter()?;

    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS | CloneFlags::CLONE_NEWIPC)
        .context("making a machine's namespaces")?;
    unshare(CloneFlags::CLONE_NEWPID).context("making a machine's process space")?;
    let mut child = own("@machine").arg(&spec).stdin(Stdio::null()).spawn().context("starting a machine")?;
    child.wait().context("waiting for a machine")?;
    Ok(ExitCode::SUCCESS)
}

/// `@machine SPEC`: pid 1 of a machine.
fn machine(arguments: &[OsString]) -> Result<ExitCode> {
    let machine: MachineSpec = serde_json::from_str(&text(arguments.first(), "the machine")?)?;
    sethostname(&machine.name).context("setting the host name")?;
    umask(Mode::from_bits_truncate(0o022));
    let root = machine.dir.join("root");
    for name in ["upper", "work", "root"] {
        let path = machine.dir.join(name);
        fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
    }
    let layers: Vec<String> = machine.layers.iter().map(|layer| layer.display().to_string()).collect();
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        layers.join(":"),
        machine.dir.join("upper").display(),
        machine.dir.join("work").display()
    );
    mount_new("machine", &root, "overlay", MsFlags::empty(), &options)?;
    let at = |path: &str| root.join(path);
    let plain = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount_new("proc", &at("proc"), "proc", MsFlags::empty(), "")?;
    mount_new("sysfs", &at("sys"), "sysfs", plain | MsFlags::MS_RDONLY, "")?;
    // slurmd searches for either version of cgroup. An empty directory keeps it away from the host's.
    mount_new("cgroup", &at("sys/fs/cgroup"), "tmpfs", plain, "mode=0755")?;
    mount_new("run", &at("run"), "tmpfs", plain, "mode=0755,size=256m")?;
    mount_new("tmp", &at("tmp"), "tmpfs", plain, "mode=1777")?;
    mount_new("dev", &at("dev"), "tmpfs", MsFlags::MS_NOSUID, "mode=0755,size=1m")?;
    devices(&at("dev"), &machine.devices)?;
    for (source, target, read_only) in &machine.binds {
        let target = root.join(target.strip_prefix("/").unwrap_or(target));
        fs::create_dir_all(&target).with_context(|| target.display().to_string())?;
        bind(source, &target, *read_only)?;
    }
    std::env::set_current_dir(&root).context("entering the machine's root")?;
    pivot_root(".", ".").context("changing the root")?;
    umount2(".", MntFlags::MNT_DETACH).context("leaving the old root")?;
    std::env::set_current_dir("/").context("entering the new root")?;
    println!("ready");
    std::io::stdout().flush().ok();
    Ok(reap())
}

fn bind(source: &Path, target: &Path, read_only: bool) -> Result<()> {
    let none = None::<&str>;
    let what = || format!("showing {} at {}", source.display(), target.display());
    mount(Some(source), target, none, MsFlags::MS_BIND, none).with_context(what)?;
    if read_only {
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(none, target, none, flags, none).with_context(what)?;
    }
    Ok(())
}

fn devices(dev: &Path, more: &[(String, u64, u64)]) -> Result<()> {
    let usual = [("null", 3), ("zero", 5), ("full", 7), ("random", 8), ("urandom", 9)];
    let usual = usual.map(|(name, minor)| (name.to_owned(), 1, minor));
    let terminal = [("tty".to_owned(), 5, 0)];
    for (name, major, minor) in usual.iter().chain(&terminal).chain(more) {
        let path = dev.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let mode = Mode::from_bits_truncate(0o666);
        mknod(&path, SFlag::S_IFCHR, mode, makedev(*major, *minor))
            .with_context(|| format!("making {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
    }
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
    ] {
        symlink(target, dev.join(name))?;
    }
    for name in ["pts", "shm"] {
        fs::create_dir(dev.join(name))?;
    }
    mount_new("devpts", &dev.join("pts"), "devpts", MsFlags::empty(), "newinstance,ptmxmode=0666,mode=620")?;
    mount_new("shm", &dev.join("shm"), "tmpfs", MsFlags::empty(), "mode=1777")
}

/// `@wire PID WORD…`: runs the ip tool in the cluster's network namespace.
fn wire(arguments: &[OsString]) -> Result<ExitCode> {
    Namespaces::of(&text(arguments.first(), "the cluster's process")?, &["net"])?.enter()?;
    let words: Vec<&str> = arguments.iter().skip(1).filter_map(|word| word.to_str()).collect();
    ip(&words)?;
    Ok(ExitCode::SUCCESS)
}

/// `@thaw DIRECTORY`: thaws a file system when standard input is closed. A file system left frozen would block the processes
/// that wait for it, and with them the cluster, forever.
fn thaw(arguments: &[OsString]) -> Result<ExitCode> {
    let directory = text(arguments.first(), "the directory")?;
    let held = File::open(&directory).with_context(|| directory.clone())?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), held.as_raw_fd());
    println!("ready");
    let mut nothing = [0_u8; 64];
    while matches!(std::io::stdin().read(&mut nothing), Ok(1..)) {}
    let status = Command::new("fsfreeze").args(["--unfreeze", &path]).status().context("fsfreeze")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// `@enter PID UID GID DIRECTORY COMMAND…`: runs a command in PID's namespaces. SIGTERM, SIGINT, SIGHUP and SIGUSR1 are
/// forwarded to it; SIGUSR2 is forwarded as SIGKILL, which cannot be caught.
fn enter(arguments: &[OsString]) -> Result<ExitCode> {
    let [pid, uid, gid, directory, program, rest @ ..] = arguments else { bail!("too few arguments") };
    let number = |word: &OsStr| word.to_str().and_then(|word| word.parse().ok()).context("not a number");
    let (uid, gid): (u32, u32) = (number(uid)?, number(gid)?);
    let pid = pid.to_str().context("not a process")?;
    Namespaces::of(pid, &["uts", "ipc", "net", "pid", "mnt"])?.enter()?;
    let watched: SigSet =
        [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGUSR2]
            .into_iter()
            .collect();

    // The child is created before this process blocks signals, so its mask has to be cleared explicitly.
    SigSet::empty().thread_set_mask().context("clearing the signal mask")?;
    let mut command = Command::new(program);
    command.args(rest).current_dir(directory).uid(uid).gid(gid);
    let mut child = command.spawn().with_context(|| format!("starting {}", program.display()))?;
    watched.thread_block().context("blocking signals")?;
    let target = Pid::from_raw(i32::try_from(child.id()).context("process number")?);
    loop {
        if let Some(status) = child.try_wait().context("waiting")? {
            let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(125);
            return Ok(ExitCode::from(u8::try_from(code).unwrap_or(125)));
        }
        match watched.wait().context("waiting for a signal")? {
            Signal::SIGCHLD => {}
            Signal::SIGUSR2 => drop(kill(target, Signal::SIGKILL)),
            signal => drop(kill(target, signal)),
        }
    }
}
