//! Simulated hardware behind real interfaces: a sysfs tree, a kernel log and an NVML library that report the values of a
//! simulated snapshot. Faults can be injected and healed while a program reads them.
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
/// The kernel's log level for an error (KERN_ERR); facility 0 is the kernel.
const ERR: u8 = 3;

/// The simulated hardware of one node, kept in one folder.
///
/// A live probe then reads `gpus`, `fabric`, `pci` and `kernel_log` of the snapshot, and of the host the parts that sysfs shows:
/// drives, memory controllers, processors, modules, services. `/proc`, file systems, mounts and the clock stay those of the
/// test machine, so boot ID, addresses and processes are real.
#[derive(Debug)]
pub struct Hardware {
    dir: PathBuf,
    tree: Tree,
    healthy: Snapshot,
    now: Snapshot,
    behaviour: Behaviour,
    gpm: BTreeMap<u32, f64>,
    /// Sequence number of the next kernel log record, kept while the log's file is removed.
    next_seq: u64,
}

impl Hardware {
    /// Creates the machine that `--simulate MACHINE` describes, for example `h100-sxm:gpu-lost@3`, in the folder `dir`.
    ///
    /// # Errors
    /// `machine` is invalid, the NVML library is not built, or the folder cannot be written.
    pub fn create(dir: &Path, machine: &str, node: &str) -> Result<Self> {
        let (profile, faults) = railgate_simulate::parse(machine, &[])?;
        Self::of_profile(dir, &profile, &faults, node)
    }

    /// As [`Hardware::create`], for a profile that is not built in.
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

    /// As [`Hardware::create`], from a snapshot, for example a recorded one. Its parts must have been read successfully.
    ///
    /// # Errors
    /// A part is missing, the NVML library is not built, or the folder cannot be written.
    pub fn of_snapshot(dir: &Path, snapshot: Snapshot) -> Result<Self> {
        let library = nvidia_ml::built_library()?;
        let tree = Tree::new(dir.join("sysfs"))?;
        fs::copy(&library, dir.join(LIBRARY)).with_context(|| library.display().to_string())?;
        // Programs of any user report their load on the GPUs here.
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
            // The snapshot's clock differs from this machine's: put its lines right after the boot of this machine.
            records.push_str(&record(line.level, line.seq, Duration::from_millis(line.seq), &line.text));
        }
        if let Some(last) = log.last_seq {
            records.push_str(&record(6, last, Duration::from_millis(last), "systemd[1]: Startup finished."));
        }
        fs::write(dir.join(KMSG), records)?;
        hardware.sync()?;
        Ok(hardware)
    }

    /// The folder that was passed to the constructor.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The snapshot that a live probe should read now, except for host parts and mounts.
    pub fn snapshot(&self) -> &Snapshot {
        &self.now
    }

    /// The `[source]` table for railgate.toml; `seen_as` is the path of the folder on the machine that runs railgate.
    pub fn source_table(&self, seen_as: &Path) -> toml::Table {
        let path = |name: &str| toml::Value::String(seen_as.join(name).display().to_string());
        let mut table = toml::Table::new();
        table.insert("nvml_library".to_owned(), path(LIBRARY));
        table.insert("sysfs".to_owned(), path("sysfs"));
        table.insert("kmsg".to_owned(), path(KMSG));
        table.insert("test_node".to_owned(), toml::Value::Boolean(true));
        table
    }

    /// The `[source]` table as TOML text, including its header.
    pub fn source(&self, seen_as: &Path) -> String {
        format!("[source]\n{}", self.source_table(seen_as))
    }

    /// Injects a fault now, for example `gpu-lost@3`. Indices count the devices that are present at this moment.
    ///
    /// # Errors
    /// There is no such fault or index, the folder cannot be written, or this hardware cannot simulate the fault: file systems,
    /// mounts and the clock are the test machine's, ports have no transceivers, and `nvml-stuck` needs a frozen file system
    /// ([`Hardware::nvml_stuck`]).
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
            FaultKind::NvmlStuck => bail!("{fault}: use nvml_stuck, which names the file"),
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
                self.append_new_kernel_lines(&before)?;
                self.sync()
            }
        }
    }

    /// Restores the initial state, except that the kernel log keeps its lines.
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

    /// Appends a line to the kernel log, now, at level error.
    ///
    /// # Errors
    /// The log cannot be written.
    pub fn log_kernel_line(&mut self, text: &str) -> Result<()> {
        let up = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?);
        let line = record(ERR, self.next_seq, up, text);
        self.next_seq += 1;
        let present = self.dir.join(KMSG);
        let path = if present.exists() { present } else { self.dir.join(format!("{KMSG}.away")) };
        // One write, so that a reader sees the complete record or nothing.
        File::options().append(true).open(&path)?.write_all(line.as_bytes()).context("kmsg")
    }

    /// Reports an Xid of a GPU in the kernel log and as an NVML event. `pid` is the process that the message names.
    ///
    /// # Errors
    /// There is no such GPU, or the log cannot be written.
    pub fn xid(&mut self, gpu: u32, code: u32, pid: Option<u32>) -> Result<()> {
        let gpus = read(&self.now.gpus, "gpus")?;
        let address = gpus.gpus.iter().find(|known| known.index == gpu).and_then(|gpu| gpu.pci.known());
        let text = railgate_simulate::xid_text(code, *address.with_context(|| format!("no gpu {gpu}"))?, pid);
        // Programs that wait for NVML events receive it too.
        let mut events = File::options().create(true).append(true).open(self.dir.join(EVENTS_FILE))?;
        events.write_all(format!("{gpu} {code}\n").as_bytes()).context(EVENTS_FILE)?;
        self.log_kernel_line(&text)
    }

    /// Adds a process to those that NVML lists on a GPU, with its memory in MiB. `/proc` is not changed.
    ///
    /// # Errors
    /// There is no such GPU, or the folder cannot be written.
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

    /// Removes a process from the list of every GPU.
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

    /// Adds `more` to a counter of every port of an HCA.
    ///
    /// # Errors
    /// There is no such HCA, or the folder cannot be written.
    pub fn count(&mut self, hca: &str, counter: &str, more: u64) -> Result<()> {
        let Part::Read { data, .. } = &mut self.now.fabric else { bail!("no fabric") };
        let hca = data.hcas.iter_mut().find(|known| known.name == hca).with_context(|| hca.to_owned())?;
        for port in &mut hca.ports {
            let value = port.counters.get(counter).and_then(|value| value.known()).copied().unwrap_or(0);
            port.counters.insert(counter.to_owned(), Reading::Known(value + more));
        }
        self.sync()
    }

    /// Makes NVML write to `file` before each answer. On a frozen file system it then hangs in the kernel and ignores SIGKILL.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn nvml_stuck(&mut self, file: &Path) -> Result<()> {
        let file = file.to_owned();
        self.behave(|behaviour| behaviour.write_to.insert("nvmlInit_v2".to_owned(), file))
    }

    /// Sets GPM metrics (metric ID, value) of every GPU from now on, added to those of programs ([`nvidia_ml::work`]). Until then
    /// the GPUs have no such metrics.
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

    /// Changes the snapshot directly, for values that no named fault has, and updates the interfaces.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn change(&mut self, change: impl FnOnce(&mut Snapshot)) -> Result<()> {
        let before = self.now.clone();
        change(&mut self.now);
        self.append_new_kernel_lines(&before)?;
        self.sync()
    }

    fn away(&self, name: &str) -> Result<()> {
        let away = self.dir.join(format!("{name}.away"));
        fs::rename(self.dir.join(name), away).with_context(|| name.to_owned())
    }

    /// Appends the lines that the snapshot's log has gained, with this machine's time and sequence numbers.
    fn append_new_kernel_lines(&mut self, before: &Snapshot) -> Result<()> {
        let known = records(before).into_iter().map(|(seq, _)| seq).collect::<BTreeSet<u64>>();
        for (_, text) in records(&self.now).into_iter().filter(|(seq, _)| !known.contains(seq)) {
            self.log_kernel_line(&text)?;
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

/// Records of a snapshot's kernel log with their sequence numbers.
fn records(snapshot: &Snapshot) -> Vec<(u64, String)> {
    let Some(log) = snapshot.kernel_log.data() else { return Vec::new() };
    let lines = log.lines.iter().map(|line| (line.seq, line.text.clone()));
    lines.chain(log.forged.iter().map(|forged| (forged.seq, forged.text.clone()))).collect()
}

/// Whether two snapshots differ in a part that a live probe reads.
fn shows(before: &Snapshot, now: &Snapshot) -> bool {
    let system = |snapshot: &Snapshot| snapshot.host.data().map(|host| tree::host::shown(&host.system));
    (&before.gpus, &before.fabric, &before.pci, &before.kernel_log)
        != (&now.gpus, &now.fabric, &now.pci, &now.kernel_log)
        || system(before) != system(now)
}

fn read<'a, T>(part: &'a Part<T>, name: &str) -> Result<&'a T> {
    part.data().with_context(|| format!("{name}: {}", part.missing().unwrap_or_default()))
}

/// One record in the format of `/dev/kmsg`.
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

/// A program in the place of railgate-gpu-selftest: all tests of the GPUs are right, after this many seconds. Without `--gpu` it
/// tests those of an `h100-sxm`.
pub fn gpu_self_test(seconds: &str) -> String {
    const PROGRAM: &str = r#"#!/bin/bash
sleep SECONDS
gpus=()
while (($#)); do
    [[ $1 == --gpu ]] && gpus+=("$2")
    shift
done
((${#gpus[@]})) || gpus=(0000:{18,2a,3a,5d,9a,ab,ba,db}:00.0)
for gpu in "${gpus[@]}"; do
    for test in gemm-bf16 gemm-fp16 gemm-tf32 gemm-fp64 memory-bandwidth memory-pattern host-copy; do
        echo '{"gpu":"'"$gpu"'","model":"NVIDIA H100 80GB HBM3","test":"'$test'","seconds":0.4,"values":{"right":{"compared":1000000}},"measured":{}}'
    done
done
"#;
    PROGRAM.replace("SECONDS", seconds)
}

/// A program in the place of railgate-rdma-selftest on one node: each device sends to itself.
pub const RDMA_SELF_TEST: &str = r#"#!/bin/bash
for device; do
    echo '{"device":"'"$device"'","gbps":190.5,"bytes":67108864,"error":null}'
done
"#;

#[cfg(test)]
mod tests;
