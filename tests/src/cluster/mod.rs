//! A real Slurm cluster on one machine.
//!
//! Each node and the controller has a host name, an address, a process space, a root directory (an overlay
//! over Slurm's root, which nothing writes to) and a /run, /tmp and /dev of its own. Everything lives in the
//! namespaces of one process (`inner`), so several clusters stand side by side with the same addresses, and
//! nothing is left when one ends, however it ends.

mod command;
mod conf;
mod inner;
mod install;
mod sandbox;
mod slurm;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use railgate_node::simulate;

use crate::hardware::Hardware;
use crate::poll;
pub use command::{Output, Process, Session, User};
use conf::SlurmConf;
pub use inner::dispatch;
use inner::{HOME, MachineSpec};
pub use install::REPORTS;
use sandbox::{Machine, Sandbox};
pub use slurm::{Job, Node};

/// The controller's name. Users submit from there.
pub const CONTROLLER: &str = "ctl";

/// A cluster that is not running yet.
#[derive(Clone, Debug)]
pub struct Builder {
    nodes: Vec<String>,
    cpus: usize,
    slurm_root: PathBuf,
    conf: SlurmConf,
    options: Vec<(String, String)>,
    files: Vec<(PathBuf, String, u32)>,
    config: toml::Table,
    node_config: BTreeMap<String, toml::Table>,
    hardware: String,
    hardware_of: BTreeMap<String, String>,
    railgate: bool,
    programs: Option<PathBuf>,
    keep: bool,
}

/// A running cluster. Dropping it ends it.
#[derive(Debug)]
pub struct Cluster {
    // Dropped after the machines' waiters have been reaped.
    sandbox: Option<Sandbox>,
    machines: Mutex<Vec<Host>>,
    hardware: BTreeMap<String, Mutex<Hardware>>,
    nodes: Vec<String>,
    users: Vec<User>,
    keep: bool,
}

#[derive(Debug)]
struct Host {
    spec: MachineSpec,
    running: Option<Machine>,
}

impl Builder {
    /// As many nodes, called gn1, gn2, …
    pub fn new(nodes: usize) -> Self {
        Builder {
            nodes: (1..=nodes).map(|number| format!("gn{number}")).collect(),
            cpus: 16,
            slurm_root: PathBuf::from("/"),
            conf: SlurmConf::new("test", CONTROLLER),
            options: Vec::new(),
            files: Vec::new(),
            config: toml::Table::new(),
            node_config: BTreeMap::new(),
            hardware: "h100-sxm".to_owned(),
            hardware_of: BTreeMap::new(),
            railgate: true,
            programs: None,
            keep: false,
        }
    }

    /// Sets a line of slurm.conf.
    pub fn slurm_conf(mut self, key: &str, value: &str) -> Self {
        self.options.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Where Slurm is installed: `/`, or a directory that debootstrap made.
    pub fn slurm_root(mut self, root: impl Into<PathBuf>) -> Self {
        self.slurm_root = root.into();
        self
    }

    /// Puts a file on every machine; a text that begins with `#!` is executable.
    pub fn file(mut self, path: impl Into<PathBuf>, text: &str) -> Self {
        let mode = if text.starts_with("#!") { 0o755 } else { 0o644 };
        self.files.push((path.into(), text.to_owned(), mode));
        self
    }

    /// Lays TOML over the railgate.toml of every node.
    ///
    /// # Errors
    /// It is not TOML.
    pub fn config(mut self, text: &str) -> Result<Self> {
        conf::merge(&mut self.config, toml::from_str(text).context("the test's configuration")?);
        Ok(self)
    }

    /// Lays TOML over the railgate.toml of one machine (`ctl` is the controller).
    ///
    /// # Errors
    /// It is not TOML.
    pub fn config_of(mut self, machine: &str, text: &str) -> Result<Self> {
        let table = toml::from_str(text).context("the test's configuration")?;
        conf::merge(self.node_config.entry(machine.to_owned()).or_default(), table);
        Ok(self)
    }

    /// Every node's machine: a profile, and faults from the beginning (`h100-sxm:gpu-lost@3,ib-port-down`).
    /// `h100-sxm` when nothing is said.
    pub fn hardware(mut self, machine: &str) -> Self {
        machine.clone_into(&mut self.hardware);
        self
    }

    /// One node's machine.
    pub fn hardware_of(mut self, node: &str, machine: &str) -> Self {
        self.hardware_of.insert(node.to_owned(), machine.to_owned());
        self
    }

    /// Where railgate's programs are, when not beside this one: `target/release`.
    pub fn programs(mut self, dir: impl Into<PathBuf>) -> Self {
        self.programs = Some(dir.into());
        self
    }

    /// Slurm without railgate.
    pub fn plain(mut self) -> Self {
        self.railgate = false;
        self
    }

    /// Lets the cluster outlive this process.
    pub fn keep(mut self) -> Self {
        self.keep = true;
        self
    }

    /// Starts it, and waits until every node is idle.
    ///
    /// # Errors
    /// This is not root, a program is missing, or a daemon did not come up; the text has its log.
    pub fn start(self) -> Result<Cluster> {
        Cluster::start(self)
    }

    /// Runs a test: starts the cluster, and keeps its logs if the test fails.
    ///
    /// # Errors
    /// The test's own, or the cluster did not start.
    pub fn test(self, test: impl FnOnce(&Cluster) -> Result<()>) -> Result<()> {
        let cluster = self.start()?;
        let result = catch_unwind(AssertUnwindSafe(|| test(&cluster)));
        if !matches!(result, Ok(Ok(()))) {
            eprintln!("{}", cluster.describe());
            let name = std::thread::current().name().unwrap_or("cluster").replace("::", "-");
            let place = std::env::temp_dir().join(format!("railgate-{name}-{}", std::process::id()));
            match cluster.save_logs(&place) {
                Ok(()) => eprintln!("logs: {}", place.display()),
                Err(error) => eprintln!("logs could not be saved: {error:#}"),
            }
        }
        match result {
            Ok(result) => result,
            Err(panic) => resume_unwind(panic),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cluster {
    fn start(builder: Builder) -> Result<Self> {
        if !nix::unistd::geteuid().is_root() {
            bail!("a test cluster needs root");
        }
        let sandbox = Sandbox::start(builder.keep)?;
        let users = [("rgalice", 5001), ("rgbob", 5002)].map(|(name, id)| User {
            name: name.to_owned(),
            uid: id,
            gid: id,
            home: format!("/home/{name}"),
        });
        let mut cluster = Cluster {
            sandbox: Some(sandbox),
            machines: Mutex::new(Vec::new()),
            hardware: BTreeMap::new(),
            nodes: builder.nodes.clone(),
            users: users.into(),
            keep: builder.keep,
        };
        cluster.lay_out(&builder).context("laying out the cluster's files")?;
        for index in 0..=builder.nodes.len() {
            cluster.boot(index)?;
        }
        cluster.start_controller()?;
        for node in &builder.nodes {
            cluster.start_slurmd(node)?;
        }
        cluster.wait_idle().map_err(|error| error.context(cluster.describe()))?;
        Ok(cluster)
    }

    fn sandbox(&self) -> Result<&Sandbox> {
        self.sandbox.as_ref().context("the cluster has ended")
    }

    /// Writes what all machines see, and describes them.
    fn lay_out(&mut self, builder: &Builder) -> Result<()> {
        let sandbox = self.sandbox()?;
        let common = sandbox.path("common");
        let slurm_etc = sandbox.path("slurm");
        let address = |index: usize| format!("10.77.0.{}", if index == 0 { 250 } else { index });
        let names: Vec<&str> =
            std::iter::once(CONTROLLER).chain(builder.nodes.iter().map(String::as_str)).collect();

        let slurm_user = self.accounts(&builder.slurm_root, &common)?;
        let mut hosts = String::from("127.0.0.1 localhost\n");
        for (index, name) in names.iter().enumerate() {
            let _ = writeln!(hosts, "{} {name}", address(index));
        }
        put(&common.join("etc/hosts"), &hosts, 0o644)?;
        for dir in ["var/log/slurm", "var/spool/slurmctld"] {
            let dir = common.join(dir);
            fs::create_dir_all(&dir)?;
            chown(&dir, Some(slurm_user), Some(slurm_user))?;
        }
        fs::create_dir_all(common.join("var/spool/slurmd"))?;

        let mut nodes = Vec::new();
        let mut cluster_hardware = BTreeMap::new();
        for (index, name) in builder.nodes.iter().enumerate() {
            let machine = builder.hardware_of.get(name).unwrap_or(&builder.hardware);
            let (profile, _) = simulate::parse(machine, &[]).with_context(|| machine.clone())?;
            let gpus = profile.gpus.count.unwrap_or(0);
            nodes.push((name.clone(), address(index + 1), usize::try_from(gpus)?));
            if builder.railgate {
                let dir = sandbox.path("machines").join(name).join("hardware");
                fs::create_dir_all(&dir)?;
                let hardware = Hardware::create(&dir, machine, name)?;
                cluster_hardware.insert(name.clone(), Mutex::new(hardware));
            }
        }
        let mut conf = builder.conf.clone();
        if builder.railgate {
            install::slurm_conf(&mut conf);
            let programs = builder.programs.clone().map_or_else(sandbox::program_dir, Ok)?;
            install::files(&programs, &common, &slurm_etc)?;
            let reports = sandbox.path("shared/railgate");
            fs::create_dir_all(&reports)?;
            fs::set_permissions(&reports, fs::Permissions::from_mode(0o1777))?;
        } else {
            put(&slurm_etc.join("plugstack.conf"), "", 0o644)?;
        }
        for (key, value) in &builder.options {
            conf.set(key, value);
        }
        put(&slurm_etc.join("slurm.conf"), &conf.text(&nodes, builder.cpus), 0o644)?;
        put(&slurm_etc.join("gres.conf"), &conf::gres(&nodes), 0o644)?;
        put(&slurm_etc.join("cgroup.conf"), "CgroupPlugin=cgroup/v1\n", 0o644)?;
        for (path, text, mode) in &builder.files {
            let target = match path.strip_prefix("/etc/slurm") {
                Ok(rest) => slurm_etc.join(rest),
                Err(_) => common.join(path.strip_prefix("/").unwrap_or(path)),
            };
            put(&target, text, *mode)?;
        }

        let munge = sandbox.path("munge");
        fs::create_dir_all(&munge)?;
        let mut key = vec![0_u8; 1024];
        std::io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut key)?;
        fs::write(munge.join("key"), key)?;
        fs::set_permissions(munge.join("key"), fs::Permissions::from_mode(0o400))?;
        for user in &self.users {
            let home = sandbox.path("home").join(&user.name);
            fs::create_dir_all(&home)?;
            chown(&home, Some(user.uid), Some(user.gid))?;
            fs::set_permissions(&home, fs::Permissions::from_mode(0o700))?;
        }
        let shared = sandbox.path("shared");
        fs::create_dir_all(&shared)?;
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777))?;

        let inside = |below: &str| Path::new(HOME).join(below);
        let shared_dirs =
            [("munge", "/run/munge"), ("slurm", "/etc/slurm"), ("home", "/home"), ("shared", "/shared")];
        let mut machines = Vec::new();
        for (index, name) in names.iter().enumerate() {
            let own = sandbox.path("machines").join(name);
            fs::create_dir_all(&own)?;
            if builder.railgate {
                let over = builder.node_config.get(*name);
                let over: Vec<&toml::Table> = std::iter::once(&builder.config).chain(over).collect();
                let hardware = cluster_hardware.get(*name).map(|hardware| lock(hardware));
                let source = hardware.map(|hardware| hardware.source_table(Path::new(install::HARDWARE)));
                let text = install::configuration(source.as_ref(), &over)?;
                put(&own.join("upper/etc/railgate/railgate.toml"), &text, 0o644)?;
            }
            let mut binds: Vec<(PathBuf, PathBuf, bool)> =
                shared_dirs.map(|(source, target)| (inside(source), PathBuf::from(target), false)).into();
            if cluster_hardware.contains_key(*name) {
                let hardware = inside("machines").join(name).join("hardware");
                binds.push((hardware, PathBuf::from(install::HARDWARE), false));
            }
            let gpus = if index == 0 { 0 } else { nodes[index - 1].2 };
            machines.push(Host {
                spec: MachineSpec {
                    name: (*name).to_owned(),
                    address: format!("{}/24", address(index)),
                    dir: inside("machines").join(name),
                    layers: vec![inside("common"), builder.slurm_root.clone()],
                    binds,
                    devices: (0..gpus).map(|gpu| (format!("nvidia{gpu}"), 240, gpu as u64)).collect(),
                },
                running: None,
            });
        }
        self.machines = Mutex::new(machines);
        self.hardware = cluster_hardware;
        Ok(())
    }

    /// passwd and group: those of Slurm's root, and the cluster's users. Returns Slurm's own user.
    fn accounts(&self, slurm_root: &Path, common: &Path) -> Result<u32> {
        let read = |name: &str| {
            let path = slurm_root.join(name);
            fs::read_to_string(&path).with_context(|| path.display().to_string())
        };
        let mut passwd = read("etc/passwd")?;
        let mut group = read("etc/group")?;
        let slurm = passwd.lines().find(|line| line.starts_with("slurm:"));
        let slurm = slurm
            .and_then(|line| line.split(':').nth(2))
            .and_then(|uid| uid.parse().ok())
            .context("Slurm's root has no user slurm")?;
        for user in &self.users {
            let User { name, uid, gid, home } = user;
            let _ = writeln!(passwd, "{name}:x:{uid}:{gid}::{home}:/bin/bash");
            let _ = writeln!(group, "{name}:x:{gid}:");
        }
        put(&common.join("etc/passwd"), &passwd, 0o644)?;
        put(&common.join("etc/group"), &group, 0o644)?;
        Ok(slurm)
    }

    fn boot(&self, index: usize) -> Result<()> {
        let sandbox = self.sandbox()?;
        let mut machines = lock(&self.machines);
        let host = machines.get_mut(index).context("no such machine")?;
        if host.running.is_some() {
            bail!("{} is already up", host.spec.name);
        }
        let console = sandbox.path("machines").join(&host.spec.name).join("console.log");
        let started = sandbox.machine(&host.spec, &console);
        host.running =
            Some(started.map_err(|error| error.context(fs::read_to_string(&console).unwrap_or_default()))?);
        drop(machines);
        let name = if index == 0 { CONTROLLER } else { &self.nodes[index - 1] };
        sandbox.wire(&["link", "set", &format!("v-{name}"), "up"])
    }

    fn start_controller(&self) -> Result<()> {
        let munged = ["munged", "--key-file=/run/munge/key", "--socket=/run/munge/munge.socket.2"];
        let files = [
            "--pid-file=/run/munge/munged.pid",
            "--log-file=/run/munge/munged.log",
            "--seed-file=/run/munge/seed",
        ];
        let root = self.root();
        root.run(&[&munged[..], &files[..], &["--num-threads=4"]].concat())?
            .ok()
            .context("starting munged")?;
        self.start_slurmctld()
    }

    /// Starts slurmctld, which must not be running.
    ///
    /// # Errors
    /// It said no.
    pub fn start_slurmctld(&self) -> Result<()> {
        self.root().run(&["slurmctld"])?.ok().context("starting slurmctld")?;
        poll::until(Duration::from_secs(30), "slurmctld to answer", || {
            Ok((self.root().run(&["scontrol", "ping"])?.stdout.contains("is UP")).then_some(()))
        })
        .map_err(|error| error.context(self.describe()))
    }

    /// Starts slurmd on a node, where it must not be running.
    ///
    /// # Errors
    /// It said no.
    pub fn start_slurmd(&self, node: &str) -> Result<()> {
        let started = self.root().on(node).run(&["slurmd"])?.ok();
        started.map(drop).with_context(|| {
            let log = self.read(node, "/var/log/slurm/slurmd.log").unwrap_or_default();
            format!("starting slurmd on {node}; its log:\n{log}")
        })
    }

    /// Ends slurmctld and waits until it is gone; [`Cluster::start_slurmctld`] starts it again.
    ///
    /// # Errors
    /// It is not running.
    pub fn stop_slurmctld(&self) -> Result<()> {
        self.signal(CONTROLLER, "slurmctld", "TERM")?;
        self.gone(CONTROLLER, "slurmctld")
    }

    /// Kills a node's slurmd, without a word to its jobs; [`Cluster::start_slurmd`] starts it again.
    ///
    /// # Errors
    /// It is not running.
    pub fn kill_slurmd(&self, node: &str) -> Result<()> {
        self.signal(node, "slurmd", "KILL")?;
        self.gone(node, "slurmd")
    }

    /// Stops a daemon where it stands: it keeps its sockets and does nothing.
    ///
    /// # Errors
    /// It is not running.
    pub fn freeze(&self, machine: &str, daemon: &str) -> Result<()> {
        self.signal(machine, daemon, "STOP")
    }

    /// Lets a daemon go on after [`Cluster::freeze`].
    ///
    /// # Errors
    /// It is not running.
    pub fn thaw(&self, machine: &str, daemon: &str) -> Result<()> {
        self.signal(machine, daemon, "CONT")
    }

    fn signal(&self, machine: &str, daemon: &str, signal: &str) -> Result<()> {
        // The machine's process space has no daemon but its own.
        self.root().on(machine).run(&["pkill", &format!("-{signal}"), "-x", daemon])?.ok()?;
        Ok(())
    }

    fn gone(&self, machine: &str, daemon: &str) -> Result<()> {
        poll::until(Duration::from_secs(30), &format!("{daemon} on {machine} to be gone"), || {
            Ok((self.root().on(machine).run(&["pgrep", "-x", daemon])?.code == 1).then_some(()))
        })
    }

    fn wait_idle(&self) -> Result<()> {
        poll::until(Duration::from_secs(60), "all nodes to be idle", || {
            let states = self.root().run(&["sinfo", "-h", "-N", "-o", "%T"])?.ok()?;
            let idle = states.lines().filter(|state| *state == "idle").count();
            Ok((idle == self.nodes.len()).then_some(()))
        })
    }

    fn pid(&self, machine: &str) -> Result<u32> {
        let machines = lock(&self.machines);
        let host = machines.iter().find(|host| host.spec.name == machine);
        let host = host.with_context(|| format!("no machine {machine}"))?;
        Ok(host.running.as_ref().with_context(|| format!("{machine} is down"))?.pid)
    }

    /// The nodes' names.
    pub fn nodes(&self) -> &[String] {
        &self.nodes
    }

    /// Root at the controller.
    pub fn root(&self) -> Session<'_> {
        let root = User { name: "root".to_owned(), uid: 0, gid: 0, home: "/".to_owned() };
        Session::new(self, root, CONTROLLER)
    }

    /// The first ordinary user, `rgalice`, at the controller.
    pub fn alice(&self) -> Session<'_> {
        Session::new(self, self.users[0].clone(), CONTROLLER)
    }

    /// The second ordinary user, `rgbob`, at the controller.
    pub fn bob(&self) -> Session<'_> {
        Session::new(self, self.users[1].clone(), CONTROLLER)
    }

    /// A path of a running machine, as this process can open it. Links in it are followed in the wrong
    /// root: use it for files that root made.
    ///
    /// # Errors
    /// The machine is down.
    pub fn path(&self, machine: &str, path: &str) -> Result<PathBuf> {
        Ok(PathBuf::from(format!("/proc/{}/root", self.pid(machine)?)).join(path.trim_start_matches('/')))
    }

    /// A file of a machine.
    ///
    /// # Errors
    /// The machine is down or the file cannot be read.
    pub fn read(&self, machine: &str, path: &str) -> Result<String> {
        let place = self.path(machine, path)?;
        let bytes = fs::read(place).with_context(|| format!("{machine}:{path}"))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Writes a file of a machine, as root; a text that begins with `#!` is executable.
    ///
    /// # Errors
    /// The machine is down or the file cannot be written.
    pub fn write(&self, machine: &str, path: &str, text: &str) -> Result<()> {
        put(&self.path(machine, path)?, text, if text.starts_with("#!") { 0o755 } else { 0o644 })
            .with_context(|| format!("{machine}:{path}"))
    }

    /// Power off: every process of the node is gone, its disk stays.
    ///
    /// # Errors
    /// It is down already.
    pub fn kill_node(&self, node: &str) -> Result<()> {
        let mut machines = lock(&self.machines);
        let host = machines.iter_mut().find(|host| host.spec.name == node);
        let host = host.with_context(|| format!("no machine {node}"))?;
        host.running.take().with_context(|| format!("{node} is down"))?.kill()
    }

    /// Power on after [`Cluster::kill_node`]: a fresh /run and /tmp, the old disk, slurmd started.
    ///
    /// # Errors
    /// It is up, or slurmd did not start.
    pub fn boot_node(&self, node: &str) -> Result<()> {
        let index = self.nodes.iter().position(|name| name == node);
        self.boot(index.with_context(|| format!("no node {node}"))? + 1)?;
        self.start_slurmd(node)
    }

    /// Takes the node's cable out.
    ///
    /// # Errors
    /// No such node.
    pub fn cut_link(&self, node: &str) -> Result<()> {
        self.sandbox()?.wire(&["link", "set", &format!("v-{node}"), "down"])
    }

    /// Puts the node's cable back.
    ///
    /// # Errors
    /// No such node.
    pub fn mend_link(&self, node: &str) -> Result<()> {
        self.sandbox()?.wire(&["link", "set", &format!("v-{node}"), "up"])
    }

    /// A node's simulated hardware, to break and to heal.
    ///
    /// # Errors
    /// No such node, or a cluster without railgate.
    pub fn hardware(&self, node: &str) -> Result<MutexGuard<'_, Hardware>> {
        Ok(lock(self.hardware.get(node).with_context(|| format!("{node} has no simulated hardware"))?))
    }

    /// Each running machine, and its first process.
    pub fn machines(&self) -> Vec<(String, u32)> {
        let up = |host: &Host| Some((host.spec.name.clone(), host.running.as_ref()?.pid));
        lock(&self.machines).iter().filter_map(up).collect()
    }

    /// The cluster's first process: whoever ends it ends the cluster.
    ///
    /// # Errors
    /// The cluster has ended.
    pub fn first_process(&self) -> Result<u32> {
        Ok(self.sandbox()?.init())
    }

    /// What a person wants to see first after a failure.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        let limit = Duration::from_secs(15);
        for words in [
            &["sinfo", "-N", "-l"][..],
            &["sinfo", "-R"],
            &["squeue", "-l"],
            &["scontrol", "-o", "show", "jobs"],
        ] {
            match self.root().deadline(limit).run(words) {
                Ok(output) => drop(writeln!(text, "--- {}\n{}", output.command, output.both().trim_end())),
                Err(error) => drop(writeln!(text, "--- {}: {error:#}", words.join(" "))),
            }
        }
        if let Ok(log) = self.read(CONTROLLER, "/var/log/slurm/slurmctld.log") {
            let lines: Vec<&str> = log.lines().filter(|line| line.contains("error")).collect();
            let _ = writeln!(text, "--- slurmctld's errors");
            for line in lines.iter().rev().take(20).rev() {
                let _ = writeln!(text, "{line}");
            }
        }
        text
    }

    /// Copies the machines' logs and railgate's state, and what is shared, to a directory.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn save_logs(&self, place: &Path) -> Result<()> {
        let sandbox = self.sandbox()?;
        fs::create_dir_all(place)?;
        fs::write(place.join("state.txt"), self.describe())?;
        copy_tree(&sandbox.path("slurm"), &place.join("etc-slurm"))?;
        copy_tree(&sandbox.path("shared"), &place.join("shared"))?;
        copy_tree(&sandbox.path("home"), &place.join("home"))?;
        for host in lock(&self.machines).iter() {
            let name = &host.spec.name;
            let own = sandbox.path("machines").join(name);
            let target = place.join(name);
            fs::create_dir_all(&target)?;
            let _ = fs::copy(own.join("console.log"), target.join("console.log"));
            for (from, to) in
                [("var/log", "log"), ("var/lib/railgate", "lib-railgate"), ("etc/railgate", "etc-railgate")]
            {
                copy_tree(&own.join("upper").join(from), &target.join(to))?;
            }
            if let Some(machine) = &host.running {
                let run = PathBuf::from(format!("/proc/{}/root/run/railgate", machine.pid));
                copy_tree(&run, &target.join("run-railgate"))?;
            }
        }
        Ok(())
    }
}

/// Files and directories, nothing else, and no failure for what vanishes meanwhile.
fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    let Ok(entries) = fs::read_dir(from) else { return Ok(()) };
    fs::create_dir_all(to).with_context(|| to.display().to_string())?;
    for entry in entries.flatten() {
        let target = to.join(entry.file_name());
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => copy_tree(&entry.path(), &target)?,
            Ok(kind) if kind.is_file() => drop(fs::copy(entry.path(), target)),
            _ => {}
        }
    }
    Ok(())
}

fn put(path: &Path, text: &str, mode: u32) -> Result<()> {
    let what = || path.display().to_string();
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(what)?;
    }
    let mut file = fs::File::create(path).with_context(what)?;
    file.write_all(text.as_bytes()).with_context(what)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).with_context(what)
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.sandbox.take());
        if self.keep {
            return;
        }
        for host in lock(&self.machines).drain(..) {
            if let Some(machine) = host.running {
                machine.reap();
            }
        }
    }
}
