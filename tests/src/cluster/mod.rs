//! A real Slurm cluster on one machine.
//!
//! Each node and the controller has its own host name, address, PID namespace, root directory (an overlay over Slurm's root,
//! which is never written), /run, /tmp and /dev. All of it lives in the namespaces of one process (`inner`), so several
//! clusters run at the same time with the same addresses, and a cluster leaves nothing behind, even if it is killed.

mod builder;
mod command;
mod conf;
mod disk;
mod inner;
mod install;
mod layout;
mod logs;
mod memory;
mod mute;
mod sandbox;
mod slurm;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::hardware::Hardware;
use crate::poll;
pub use builder::{Builder, SLURM_ROOT};
pub use command::{Output, Process, Session, User};
pub use disk::Frozen;
use inner::MachineSpec;
pub use inner::dispatch;
pub use install::{HARDWARE, REPORTS, plugin_target, slurm_release};
use layout::put;
use memory::MemoryGroups;
pub use memory::{memory_groups, memory_kill};
pub use mute::Mute;
pub use sandbox::own_program;
pub(crate) use sandbox::program_dir;
use sandbox::{Machine, Sandbox};
pub use slurm::{ENDED, Job, Node};

/// Name of the controller's machine, from which users submit.
pub const CONTROLLER: &str = "ctl";

/// A running cluster, ended when dropped.
#[derive(Debug)]
pub struct Cluster {
    // Dropped after the processes that wait for the machines have been reaped.
    sandbox: Option<Sandbox>,
    machines: Mutex<Vec<Host>>,
    hardware: BTreeMap<String, Mutex<Hardware>>,
    nodes: Vec<String>,
    users: Vec<User>,
    // Removed after the machines' processes have ended.
    groups: Option<MemoryGroups>,
    keep: bool,
}

#[derive(Debug)]
struct Host {
    spec: MachineSpec,
    running: Option<Machine>,
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
            groups: None,
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

    /// Starts slurmctld, which must not be running, and waits until it answers.
    ///
    /// # Errors
    /// It did not start or did not answer; the message describes the cluster.
    pub fn start_slurmctld(&self) -> Result<()> {
        self.root().run(&["slurmctld"])?.ok().context("starting slurmctld")?;
        poll::until(Duration::from_secs(30), "slurmctld to answer", || {
            Ok((self.root().run(&["scontrol", "ping"])?.stdout.contains("is UP")).then_some(()))
        })
        .map_err(|error| error.context(self.describe()))
    }

    /// Starts slurmd on a node on which it is not running.
    ///
    /// # Errors
    /// It did not start; the message contains its log.
    pub fn start_slurmd(&self, node: &str) -> Result<()> {
        let started = self.root().on(node).run(&["slurmd"])?.ok();
        started.map(drop).with_context(|| {
            let log = self.read(node, "/var/log/slurm/slurmd.log").unwrap_or_default();
            format!("starting slurmd on {node}; its log:\n{log}")
        })
    }

    /// Stops slurmctld and waits until it has exited; [`Cluster::start_slurmctld`] starts it again.
    ///
    /// # Errors
    /// It is not running.
    pub fn stop_slurmctld(&self) -> Result<()> {
        self.signal(CONTROLLER, "slurmctld", "TERM")?;
        self.gone(CONTROLLER, "slurmctld")
    }

    /// Sends SIGKILL to a node's slurmd and leaves its jobs running; [`Cluster::start_slurmd`] starts it again.
    ///
    /// # Errors
    /// It is not running.
    pub fn kill_slurmd(&self, node: &str) -> Result<()> {
        self.signal(node, "slurmd", "KILL")?;
        self.gone(node, "slurmd")
    }

    /// Stops a daemon with SIGSTOP: its sockets stay open and it does not answer.
    ///
    /// # Errors
    /// It is not running.
    pub fn freeze(&self, machine: &str, daemon: &str) -> Result<()> {
        self.signal(machine, daemon, "STOP")
    }

    /// Continues a daemon after [`Cluster::freeze`].
    ///
    /// # Errors
    /// It is not running.
    pub fn thaw(&self, machine: &str, daemon: &str) -> Result<()> {
        self.signal(machine, daemon, "CONT")
    }

    fn signal(&self, machine: &str, daemon: &str, signal: &str) -> Result<()> {
        // The machine's PID namespace contains only its own daemons.
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
            let states = self.root().run(&["sinfo", "-h", "-N", "-o", "%N %T"])?.ok()?;
            // sinfo prints one line for each partition of a node, and may list nodes that this cluster does not have.
            let ours = |line: &&str| {
                line.split_once(' ').is_some_and(|(name, _)| self.nodes.iter().any(|n| n == name))
            };
            let all = states.lines().filter(ours).count() >= self.nodes.len();
            Ok((all && states.lines().filter(ours).all(|line| line.ends_with(" idle"))).then_some(()))
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

    /// A session of root on the controller.
    pub fn root(&self) -> Session<'_> {
        let root = User { name: "root".to_owned(), uid: 0, gid: 0, home: "/".to_owned() };
        Session::new(self, root, CONTROLLER)
    }

    /// A session of the first ordinary user, `rgalice`, on the controller.
    pub fn alice(&self) -> Session<'_> {
        Session::new(self, self.users[0].clone(), CONTROLLER)
    }

    /// A session of the second ordinary user, `rgbob`, on the controller.
    pub fn bob(&self) -> Session<'_> {
        Session::new(self, self.users[1].clone(), CONTROLLER)
    }

    /// A path on a running machine as this process can open it. Absolute links in it resolve in the wrong root directory, so
    /// use it only for files that root made.
    ///
    /// # Errors
    /// The machine is down.
    pub fn path(&self, machine: &str, path: &str) -> Result<PathBuf> {
        Ok(PathBuf::from(format!("/proc/{}/root", self.pid(machine)?)).join(path.trim_start_matches('/')))
    }

    /// The upper directory of a machine's overlay: the files that differ from the system below it.
    ///
    /// # Errors
    /// The cluster has ended.
    pub fn changes(&self, machine: &str) -> Result<PathBuf> {
        Ok(self.sandbox()?.path("machines").join(machine).join("upper"))
    }

    /// Reads a file of a machine.
    ///
    /// # Errors
    /// The machine is down or the file cannot be read.
    pub fn read(&self, machine: &str, path: &str) -> Result<String> {
        let place = self.path(machine, path)?;
        let bytes = fs::read(place).with_context(|| format!("{machine}:{path}"))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Writes a file of a machine as root. A text that begins with `#!` becomes executable.
    ///
    /// # Errors
    /// The machine is down or the file cannot be written.
    pub fn write(&self, machine: &str, path: &str, text: &str) -> Result<()> {
        put(&self.path(machine, path)?, text, if text.starts_with("#!") { 0o755 } else { 0o644 })
            .with_context(|| format!("{machine}:{path}"))
    }

    /// Powers a node off: all its processes are killed, its disk is kept.
    ///
    /// # Errors
    /// The node is down already.
    pub fn kill_node(&self, node: &str) -> Result<()> {
        let mut machines = lock(&self.machines);
        let host = machines.iter_mut().find(|host| host.spec.name == node);
        let host = host.with_context(|| format!("no machine {node}"))?;
        host.running.take().with_context(|| format!("{node} is down"))?.kill()
    }

    /// Powers a node on after [`Cluster::kill_node`], with the old disk and an empty /run and /tmp, and starts slurmd.
    ///
    /// # Errors
    /// The node is up already, or slurmd did not start.
    pub fn boot_node(&self, node: &str) -> Result<()> {
        let index = self.nodes.iter().position(|name| name == node);
        self.boot(index.with_context(|| format!("no node {node}"))? + 1)?;
        self.start_slurmd(node)
    }

    /// Unplugs the node's network cable.
    ///
    /// # Errors
    /// There is no such node.
    pub fn cut_link(&self, node: &str) -> Result<()> {
        self.sandbox()?.wire(&["link", "set", &format!("v-{node}"), "down"])
    }

    /// Plugs the node's network cable in again.
    ///
    /// # Errors
    /// There is no such node.
    pub fn mend_link(&self, node: &str) -> Result<()> {
        self.sandbox()?.wire(&["link", "set", &format!("v-{node}"), "up"])
    }

    /// A node's simulated hardware, for injecting faults and healing them.
    ///
    /// # Errors
    /// There is no such node, or the cluster runs without railgate.
    pub fn hardware(&self, node: &str) -> Result<MutexGuard<'_, Hardware>> {
        Ok(lock(self.hardware.get(node).with_context(|| format!("{node} has no simulated hardware"))?))
    }

    /// Each running machine with the PID of its first process.
    pub fn machines(&self) -> Vec<(String, u32)> {
        let up = |host: &Host| Some((host.spec.name.clone(), host.running.as_ref()?.pid));
        lock(&self.machines).iter().filter_map(up).collect()
    }

    /// PID of the cluster's first process. Killing it ends the cluster.
    ///
    /// # Errors
    /// The cluster has ended.
    pub fn first_process(&self) -> Result<u32> {
        Ok(self.sandbox()?.init())
    }
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
