//! Simulated hardware behind real interfaces: a sysfs tree, a kernel log and an NVML library that say what a
//! simulated snapshot says, and that can break and heal while something reads them.
//!
//! ```no_run
//! # use railgate_tests::hardware::Hardware;
//! # fn main() -> anyhow::Result<()> {
//! let mut hardware = Hardware::create("/tmp/gn1".as_ref(), "h100-sxm", "gn1")?;
//! println!("{}", hardware.source("/tmp/gn1".as_ref()));
//! hardware.inject("gpu-lost@3")?;
//! hardware.heal()?;
//! # Ok(())
//! # }
//! ```

mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::time::{ClockId, clock_gettime};
use nvidia_ml::{Behaviour, EVENTS_FILE, LOADS, Scenario};
use railgate_model::{Fabric, GpuProcess, Host, Part, Pci, Profile, Reading, Snapshot};
use railgate_simulate::{Fault, FaultKind, FaultPart};

use tree::Tree;
pub use tree::move_bytes;

const LIBRARY: &str = "libnvidia-ml.so.1";
const KMSG: &str = "kmsg";
/// What the kernel calls an error; facility 0 is the kernel itself.
const ERR: u8 = 3;

/// The hardware of one node, in one folder.
///
/// `gpus`, `fabric`, `pci` and `kernel_log` of a live look are then the snapshot's, and of the host what sysfs shows:
/// drives, memory controllers, processors, modules, services. `proc` stays the machine's own, so that boot id, addresses
/// and processes are real; so do file systems, mounts and the clock.
#[derive(Debug)]
pub struct Hardware {
    dir: PathBuf,
    tree: Tree,
    healthy: Snapshot,
    now: Snapshot,
    behaviour: Behaviour,
    gpm: BTreeMap<u32, f64>,
    /// What is left of the kernel's log when its file is away.
    next_seq: u64,
}

impl Hardware {
    /// Makes the machine that `--simulate` would, `h100-sxm:gpu-lost@3`, and puts it into the folder.
    ///
    /// # Errors
    /// The text is no machine, the NVML library is not built, or the folder cannot be written.
    pub fn create(dir: &Path, machine: &str, node: &str) -> Result<Self> {
        let (profile, faults) = railgate_simulate::parse(machine, &[])?;
        Self::of_profile(dir, &profile, &faults, node)
    }

    /// The same from a profile that is not built in.
    ///
    /// # Errors
    /// The NVML library is not built, or the folder cannot be written.
    pub fn of_profile(dir: &Path, profile: &Profile, faults: &[Fault], node: &str) -> Result<Self> {
        let mut hardware = Self::of_snapshot(dir, railgate_simulate::simulated_node(profile, &[], node))?;
        for fault in faults {
            hardware.break_it(fault)?;
        }
        Ok(hardware)
    }

    /// The same from a snapshot, a recorded one for example. Its parts must have been read.
    ///
    /// # Errors
    /// A part is missing, the NVML library is not built, or the folder cannot be written.
    pub fn of_snapshot(dir: &Path, snapshot: Snapshot) -> Result<Self> {
        let library = nvidia_ml::built_library()?;
        let tree = Tree::new(dir.join("sysfs"))?;
        fs::copy(&library, dir.join(LIBRARY)).with_context(|| library.display().to_string())?;
        // Where programs of any user say what they do on the GPUs.
        let loads = dir.join(LOADS);
        fs::create_dir_all(&loads)?;
        fs::set_permissions(&loads, fs::Permissions::from_mode(0o777))?;
        let log = read(&snapshot.kernel_log, "kernel log")?;
        let hardware = Hardware {
            dir: dir.to_owned(),
            tree,
            next_seq: log.last_seq.map_or(0, |seq| seq + 1),
            healthy: snapshot.clone(),
            now: snapshot.clone(),
            behaviour: Behaviour::default(),
            gpm: BTreeMap::new(),
        };
        let mut records = String::from("5,0,0,-;Linux version 6.1.0-32-amd64\n");
        for line in &log.lines {
            // The snapshot's clock is not this machine's: its healthy past lies right after our boot.
            records.push_str(&record(line.level, line.seq, Duration::from_millis(line.seq), &line.text));
        }
        if let Some(last) = log.last_seq {
            records.push_str(&record(6, last, Duration::from_millis(last), "systemd[1]: Startup finished."));
        }
        fs::write(dir.join(KMSG), records)?;
        hardware.sync()?;
        Ok(hardware)
    }

    /// The folder as it was given.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What the node should say now, host and mounts apart.
    pub fn snapshot(&self) -> &Snapshot {
        &self.now
    }

    /// The `[source]` table for railgate.toml; `seen_as` is the folder's path where railgate runs.
    pub fn source_table(&self, seen_as: &Path) -> toml::Table {
        let path = |name: &str| toml::Value::String(seen_as.join(name).display().to_string());
        let mut table = toml::Table::new();
        table.insert("nvml_library".to_owned(), path(LIBRARY));
        table.insert("sysfs".to_owned(), path("sysfs"));
        table.insert("kmsg".to_owned(), path(KMSG));
        table.insert("test_node".to_owned(), toml::Value::Boolean(true));
        table
    }

    /// The same as text, with its head line.
    pub fn source(&self, seen_as: &Path) -> String {
        format!("[source]\n{}", self.source_table(seen_as))
    }

    /// Lets a fault happen, now: `gpu-lost@3`. Indexes are those of the machine as it stands.
    ///
    /// # Errors
    /// No such fault or index; a fault that this hardware cannot have (file systems, mounts and the clock are the
    /// machine's own, no module is in its ports, `nvml-stuck` needs a frozen file system: [`Hardware::nvml_stuck`]); the folder cannot be written.
    pub fn inject(&mut self, fault: &str) -> Result<()> {
        self.break_it(&fault.parse()?)
    }

    fn break_it(&mut self, fault: &Fault) -> Result<()> {
        match fault.kind {
            FaultKind::NvmlMissing => self.away(LIBRARY),
            FaultKind::KmsgUnreadable => self.away(KMSG),
            FaultKind::GpuXidByNvml => {
                self.away(KMSG)?;
                self.xid(fault.index, 48, None)
            }
            FaultKind::NvmlSlow => {
                self.behave(|behaviour| behaviour.delay_ms.insert("nvmlInit_v2".to_owned(), 8_000))
            }
            FaultKind::NvmlSilent => self.behave(|behaviour| behaviour.hang.insert("nvmlInit_v2".to_owned())),
            FaultKind::NvmlStuck => bail!("{fault}: say where with nvml_stuck"),
            kind if kind.part() == FaultPart::Mount => bail!("{fault}: mounts are the cluster's own"),
            _ => {
                let before = self.now.clone();
                railgate_simulate::inject(&mut self.now, fault);
                if self.now == before {
                    bail!("{fault}: this machine has no such part");
                }
                if !shows(&before, &self.now) {
                    self.now = before;
                    bail!("{fault}: the simulated hardware does not show it");
                }
                self.say_what_is_new(&before)?;
                self.sync()
            }
        }
    }

    /// Everything is as it was at the beginning; only the kernel log remembers.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn heal(&mut self) -> Result<()> {
        self.now = self.healthy.clone();
        self.behaviour = Behaviour::default();
        for name in [LIBRARY, KMSG] {
            let away = self.dir.join(format!("{name}.away"));
            if away.exists() {
                fs::rename(away, self.dir.join(name))?;
            }
        }
        self.sync()
    }

    /// The kernel says something, now, as an error.
    ///
    /// # Errors
    /// The log cannot be written.
    pub fn kernel_says(&mut self, text: &str) -> Result<()> {
        let up = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?);
        let line = record(ERR, self.next_seq, up, text);
        self.next_seq += 1;
        let present = self.dir.join(KMSG);
        let path = if present.exists() { present } else { self.dir.join(format!("{KMSG}.away")) };
        // One write, so that a reader sees all of the record or nothing.
        File::options().append(true).open(&path)?.write_all(line.as_bytes()).context("kmsg")
    }

    /// An Xid of this GPU, with the process that it names.
    ///
    /// # Errors
    /// No such GPU; the log cannot be written.
    pub fn xid(&mut self, gpu: u32, code: u32, pid: Option<u32>) -> Result<()> {
        let gpus = read(&self.now.gpus, "gpus")?;
        let address = gpus.gpus.iter().find(|known| known.index == gpu).and_then(|gpu| gpu.pci.known());
        let text = railgate_simulate::xid_text(code, *address.with_context(|| format!("no gpu {gpu}"))?, pid);
        // Whoever waits hears it from NVML.
        let mut events = File::options().create(true).append(true).open(self.dir.join(EVENTS_FILE))?;
        events.write_all(format!("{gpu} {code}\n").as_bytes()).context(EVENTS_FILE)?;
        self.kernel_says(&text)
    }

    /// A process that NVML lists on a GPU; what /proc says of it is the machine's own business.
    ///
    /// # Errors
    /// No such GPU; the folder cannot be written.
    pub fn hold(&mut self, gpu: u32, pid: u32, used_mib: u64) -> Result<()> {
        self.processes(gpu, |processes| {
            processes.push(GpuProcess {
                pid,
                used_mib: Reading::Known(used_mib),
                name: Reading::Unsupported,
                uid: Reading::Unsupported,
                exiting: false,
                slurm_job: Reading::Unsupported,
            });
        })
    }

    /// The process lets go of all GPUs.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn release(&mut self, pid: u32) -> Result<()> {
        for gpu in 0..u32::try_from(read(&self.now.gpus, "gpus")?.gpus.len())? {
            self.processes(gpu, |processes| processes.retain(|process| process.pid != pid))?;
        }
        Ok(())
    }

    fn processes(&mut self, gpu: u32, change: impl FnOnce(&mut Vec<GpuProcess>)) -> Result<()> {
        let Part::Read { data, .. } = &mut self.now.gpus else { bail!("no gpus") };
        let found = data.gpus.iter_mut().find(|known| known.index == gpu);
        if let Reading::Known(processes) = &mut found.with_context(|| format!("no gpu {gpu}"))?.processes {
            change(processes);
        }
        self.sync()
    }

    /// Adds to a counter of every port of an HCA.
    ///
    /// # Errors
    /// No such HCA; the folder cannot be written.
    pub fn count(&mut self, hca: &str, counter: &str, more: u64) -> Result<()> {
        let Part::Read { data, .. } = &mut self.now.fabric else { bail!("no fabric") };
        let hca = data.hcas.iter_mut().find(|known| known.name == hca).with_context(|| hca.to_owned())?;
        for port in &mut hca.ports {
            let value = port.counters.get(counter).and_then(|value| value.known()).copied().unwrap_or(0);
            port.counters.insert(counter.to_owned(), Reading::Known(value + more));
        }
        self.sync()
    }

    /// NVML writes to this file before it answers: on a frozen file system it hangs in the kernel, where
    /// SIGKILL does not help.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn nvml_stuck(&mut self, file: &Path) -> Result<()> {
        let file = file.to_owned();
        self.behave(|behaviour| behaviour.write_to.insert("nvmlInit_v2".to_owned(), file))
    }

    /// What GPM says of every GPU from now on, by metric, besides what programs do ([`nvidia_ml::work`]); without it they
    /// have none.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn works(&mut self, metrics: &[(u32, f64)]) -> Result<()> {
        self.gpm = metrics.iter().copied().collect();
        self.sync()
    }

    /// Changes how the NVML library behaves.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn behave<T>(&mut self, change: impl FnOnce(&mut Behaviour) -> T) -> Result<()> {
        change(&mut self.behaviour);
        self.sync()
    }

    /// Other values than a named fault has: changes the snapshot by hand and makes the interfaces follow.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn change(&mut self, change: impl FnOnce(&mut Snapshot)) -> Result<()> {
        let before = self.now.clone();
        change(&mut self.now);
        self.say_what_is_new(&before)?;
        self.sync()
    }

    fn away(&self, name: &str) -> Result<()> {
        let away = self.dir.join(format!("{name}.away"));
        fs::rename(self.dir.join(name), away).with_context(|| name.to_owned())
    }

    /// Lines that the snapshot's log has gained, with this machine's time and our own numbers.
    fn say_what_is_new(&mut self, before: &Snapshot) -> Result<()> {
        let known = records(before).into_iter().map(|(seq, _)| seq).collect::<BTreeSet<u64>>();
        for (_, text) in records(&self.now).into_iter().filter(|(seq, _)| !known.contains(seq)) {
            self.kernel_says(&text)?;
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let mut scenario = Scenario::of(read(&self.now.gpus, "gpus")?);
        scenario.behaviour = self.behaviour.clone();
        scenario.gpm.clone_from(&self.gpm);
        scenario.write(&self.dir).context("nvml scenario")?;
        let (pci, fabric): (&Pci, &Fabric) = (read(&self.now.pci, "pci")?, read(&self.now.fabric, "fabric")?);
        let host: &Host = read(&self.now.host, "host")?;
        self.tree.write(pci, fabric, host)
    }
}

/// What a kernel log has, by sequence number.
fn records(snapshot: &Snapshot) -> Vec<(u64, String)> {
    let Some(log) = snapshot.kernel_log.data() else { return Vec::new() };
    let lines = log.lines.iter().map(|line| (line.seq, line.text.clone()));
    lines.chain(log.forged.iter().map(|forged| (forged.seq, forged.text.clone()))).collect()
}

/// Whether two machines differ in something that a live look would see.
fn shows(before: &Snapshot, now: &Snapshot) -> bool {
    let system = |snapshot: &Snapshot| snapshot.host.data().map(|host| tree::host::shown(&host.system));
    (&before.gpus, &before.fabric, &before.pci, &before.kernel_log)
        != (&now.gpus, &now.fabric, &now.pci, &now.kernel_log)
        || system(before) != system(now)
}

fn read<'a, T>(part: &'a Part<T>, name: &str) -> Result<&'a T> {
    part.data().with_context(|| format!("{name}: {}", part.missing().unwrap_or_default()))
}

/// One record as `/dev/kmsg` gives it.
fn record(level: u8, seq: u64, up: Duration, text: &str) -> String {
    let text: String = text
        .chars()
        .flat_map(|c| match c {
            '\\' => "\\x5c".chars().collect::<Vec<_>>(),
            c if c.is_control() => format!("\\x{:02x}", u32::from(c)).chars().collect(),
            c => vec![c],
        })
        .collect();
    format!("{level},{seq},{},-;{text}\n", up.as_micros())
}

#[cfg(test)]
mod tests;
