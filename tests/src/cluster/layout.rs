//! Writes the files of a cluster before its machines start.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context as _, Result};

use super::inner::{HOME, MachineSpec};
use super::memory::{self, MemoryGroups};
use super::{Builder, CONTROLLER, Cluster, Host, User, conf, install, lock, sandbox};
use crate::hardware::Hardware;

impl Cluster {
    /// Writes the files that all machines share and adds a description of each machine to `self`.
    pub(super) fn lay_out(&mut self, builder: &Builder) -> Result<()> {
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
            let (profile, _) = railgate_simulate::parse(machine, &[]).with_context(|| machine.clone())?;
            let gpus = profile.gpus.count.unwrap_or(0);
            nodes.push((name.clone(), address(index + 1), usize::try_from(gpus)?));
            if builder.railgate {
                let dir = sandbox.path("machines").join(name).join("hardware");
                fs::create_dir_all(&dir)?;
                let hardware = Hardware::create(&dir, machine, name)?;
                cluster_hardware.insert(name.clone(), Mutex::new(hardware));
            }
        }
        let release = install::slurm_release(&builder.slurm_root)?;
        let mut conf = builder.conf.clone();
        if builder.railgate && builder.installed {
            install::slurm_conf(&mut conf);
            let programs = builder.programs.clone().map_or_else(sandbox::program_dir, Ok)?;
            let plugin = install::plugin_target(&programs, release).join("libspank_railgate.so");
            install::files(&programs, &plugin, &common, &slurm_etc)?;
        } else {
            put(&slurm_etc.join("plugstack.conf"), "", 0o644)?;
        }
        if builder.railgate {
            let reports = sandbox.path("shared/railgate");
            fs::create_dir_all(&reports)?;
            fs::set_permissions(&reports, fs::Permissions::from_mode(0o1777))?;
        }
        for (key, value) in &builder.options {
            conf.set(key, value);
        }
        put(&slurm_etc.join("slurm.conf"), &conf.text(&nodes, builder.cpus), 0o644)?;
        put(&slurm_etc.join("gres.conf"), &conf::gres(&nodes), 0o644)?;
        // Releases before 23.11 do not know "disabled". They find an empty cgroup directory (see the machine's mounts).
        let cgroup = if release >= (23, 11) && !builder.memory_groups { "disabled" } else { "cgroup/v1" };
        let limits = if builder.memory_groups { "ConstrainRAMSpace=yes\n" } else { "" };
        put(&slurm_etc.join("cgroup.conf"), &format!("CgroupPlugin={cgroup}\n{limits}"), 0o644)?;
        let groups = builder.memory_groups.then(|| MemoryGroups::make(&names)).transpose()?;
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
            // Hides the state of a railgate that is installed on the test machine.
            fs::create_dir_all(own.join("state"))?;
            if builder.installed {
                let ledger = own.join("state/controller");
                fs::create_dir_all(&ledger)?;
                chown(&ledger, Some(slurm_user), Some(slurm_user))?;
            }
            let state = inside("machines").join(name).join("state");
            binds.push((state, PathBuf::from("/var/lib/railgate"), false));
            if cluster_hardware.contains_key(*name) {
                let hardware = inside("machines").join(name).join("hardware");
                binds.push((hardware, PathBuf::from(install::HARDWARE), false));
            }
            if let Some(groups) = &groups {
                binds.push((groups.of(name), PathBuf::from(memory::PLACE), false));
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
        self.groups = groups;
        self.hardware = cluster_hardware;
        Ok(())
    }

    /// Writes passwd and group with the users of Slurm's root and the cluster's users. Returns the UID of Slurm's user.
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
            // No password, and none in /etc/shadow either: `su` does not need one there.
            let _ = writeln!(passwd, "{name}:*:{uid}:{gid}::{home}:/bin/bash");
            let _ = writeln!(group, "{name}:x:{gid}:");
        }
        put(&common.join("etc/passwd"), &passwd, 0o644)?;
        put(&common.join("etc/group"), &group, 0o644)?;
        Ok(slurm)
    }
}

/// Writes a file and creates the directories above it.
pub(super) fn put(path: &Path, text: &str, mode: u32) -> Result<()> {
    let what = || path.display().to_string();
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(what)?;
    }
    let mut file = fs::File::create(path).with_context(what)?;
    file.write_all(text.as_bytes()).with_context(what)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).with_context(what)
}
