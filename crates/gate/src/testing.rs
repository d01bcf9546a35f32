//! Inputs for unit tests: simulated nodes that a test can modify.

use std::io::Write as _;

use railgate_model::{
    Allocation, Fabric, Finding, Fitness, ForgedLine, Gpu, GpuId, Host, Job, KernelLine, Part, Pci, Phase,
    Port, Profile, Severity, Snapshot, Verdict,
};
use railgate_probe::readers::kernel_log_read;

use crate::{GateConfig, Memory, Seen, judge};

pub(crate) struct Case {
    pub(crate) config: GateConfig,
    pub(crate) phase: Phase,
    pub(crate) now: Snapshot,
    pub(crate) before: Option<Snapshot>,
    pub(crate) job: Option<Job>,
    pub(crate) profile: Option<Profile>,
    pub(crate) memory: Memory,
}

/// A simulated node with faults, for example `h100-sxm:gpu-lost@3`, judged before a job that holds the whole node.
pub(crate) fn case(node: &str) -> Case {
    let (profile, faults) = railgate_simulate::parse(node, &[]).unwrap();
    let now = railgate_simulate::simulated(&profile, &faults);
    let healthy = railgate_simulate::simulated(&profile, &[]);
    let all: Vec<u32> = healthy.gpus.data().unwrap().gpus.iter().map(|gpu| gpu.index).collect();
    Case {
        config: GateConfig::default(),
        phase: Phase::Prolog,
        now,
        before: None,
        job: Some(job(&all)),
        profile: Some(profile),
        memory: Memory::default(),
    }
}

/// The same of an `h100-sxm` with RoCE ports and these faults.
pub(crate) fn roce(faults: &str) -> Case {
    case("h100-sxm").with(|case| {
        let mut profile = case.profile.take().unwrap();
        profile.fabric.link_layer = Some("ethernet".to_owned());
        let faults = railgate_simulate::parse(&format!("h100-sxm:{faults}"), &[]).unwrap().1;
        case.now = railgate_simulate::simulated(&profile, &faults);
        case.profile = Some(profile);
    })
}

pub(crate) fn job(gpus: &[u32]) -> Job {
    let allocation = if gpus.is_empty() {
        Allocation::NoGpus
    } else {
        Allocation::Gpus(gpus.iter().copied().map(GpuId::Index).collect())
    };
    Job {
        id: 48213,
        uid: 1000,
        gid: 1000,
        user: "alice".to_owned(),
        restarts: 0,
        nodelist: "n1".to_owned(),
        het_leader: None,
        allocation,
        partition: "gpu".to_owned(),
    }
}

impl Case {
    pub(crate) fn holding(mut self, gpus: &[u32]) -> Case {
        self.job = Some(job(gpus));
        self
    }

    pub(crate) fn phase(mut self, phase: Phase) -> Case {
        self.phase = phase;
        self
    }

    /// The check run is in the epilog of a job that started on the healthy node.
    pub(crate) fn after_the_job(mut self) -> Case {
        self.phase = Phase::Epilog;
        self.before = Some(railgate_simulate::simulated(self.profile.as_ref().unwrap(), &[]));
        self
    }

    /// The gate state is that after a clean check run on the healthy node.
    pub(crate) fn remembering(mut self) -> Case {
        let healthy = railgate_simulate::simulated(self.profile.as_ref().unwrap(), &[]);
        self.memory = Memory::default().after(&healthy, true);
        self
    }

    /// A second check run of the same node, one minute later.
    pub(crate) fn again(mut self) -> Case {
        let verdict = self.judge();
        self.memory.strike(&self.now, &verdict);
        self.now.taken += 60_000;
        self
    }

    pub(crate) fn with(mut self, bend: impl FnOnce(&mut Case)) -> Case {
        bend(&mut self);
        self
    }

    pub(crate) fn settings(self, toml: &str) -> Case {
        let config = toml::from_str(toml).unwrap();
        self.with(|case| case.config = config)
    }

    pub(crate) fn gpu(self, index: u32, bend: impl FnOnce(&mut Gpu)) -> Case {
        self.with(|case| {
            let gpus = &mut read(&mut case.now.gpus).gpus;
            bend(gpus.iter_mut().find(|gpu| gpu.index == index).unwrap());
        })
    }

    pub(crate) fn port(self, hca: &str, bend: impl FnOnce(&mut Port)) -> Case {
        self.with(|case| {
            let fabric: &mut Fabric = read(&mut case.now.fabric);
            bend(&mut fabric.hcas.iter_mut().find(|known| known.name == hca).unwrap().ports[0]);
        })
    }

    pub(crate) fn host(self, bend: impl FnOnce(&mut Host)) -> Case {
        self.with(|case| bend(read(&mut case.now.host)))
    }

    pub(crate) fn pci(self, bend: impl FnOnce(&mut Pci)) -> Case {
        self.with(|case| bend(read(&mut case.now.pci)))
    }

    /// Adds an Xid of a GPU of the healthy node to the kernel log.
    pub(crate) fn xid(self, index: u32, code: u32, text: &str) -> Case {
        let healthy = railgate_simulate::simulated(self.profile.as_ref().unwrap(), &[]);
        let at = healthy.gpus.data().unwrap().gpus[index as usize].pci.known().copied().unwrap();
        let place = format!("PCI:{:04x}:{:02x}:{:02x}", at.domain, at.bus, at.device);
        self.kernel(&format!("NVRM: Xid ({place}): {code}, {text}"))
    }

    /// Adds a line to the kernel log. It passes through the live reader, so a line that the reader drops reaches no
    /// check.
    pub(crate) fn kernel(self, text: &str) -> Case {
        self.with(|case| {
            // If the log cannot be read, the line is dropped.
            let Part::Read { data: log, .. } = &mut case.now.kernel_log else { return };
            let seq = log.last_seq.map_or(1, |seq| seq + 1);
            let mut file = tempfile::NamedTempFile::new().unwrap();
            writeln!(file, "3,{seq},1000000,-;{text}").unwrap();
            let read = kernel_log_read(file.path(), None, "this boot").unwrap();
            let time = case.now.taken;
            log.last_seq = read.last_seq;
            log.lines.extend(read.lines.into_iter().map(|line| KernelLine { time, ..line }));
            log.forged.extend(read.forged.into_iter().map(|line| ForgedLine { time, ..line }));
        })
    }

    pub(crate) fn seen(&self) -> Seen<'_> {
        Seen {
            phase: self.phase,
            now: &self.now,
            before: self.before.as_ref(),
            job: self.job.as_ref(),
            profile: self.profile.as_ref(),
            memory: &self.memory,
        }
    }

    pub(crate) fn judge(&self) -> Verdict {
        judge(&self.config, &self.seen())
    }

    /// The verdict and its cause in one line: `unfit: fail gpu-lost@3: 0000:61:00.0 off bus, Xid 79; reboot`.
    pub(crate) fn summary(&self) -> String {
        let verdict = self.judge();
        let cause = verdict.cause().map(|finding| format!(": {}", line(finding))).unwrap_or_default();
        format!("{}{cause}", verdict.fitness)
    }

    /// All findings, one line each.
    pub(crate) fn findings(&self) -> Vec<String> {
        self.judge().findings.iter().map(line).collect()
    }

    pub(crate) fn fitness(&self) -> Fitness {
        self.judge().fitness
    }

    /// The severities of the findings of one check.
    pub(crate) fn of(&self, check: &str) -> Vec<Severity> {
        let findings = self.judge().findings;
        findings.iter().filter(|finding| finding.check == check).map(|finding| finding.severity).collect()
    }
}

pub(crate) fn line(finding: &Finding) -> String {
    format!("{} {}: {}; {}", finding.severity, finding.subject(), finding.what, finding.fix)
}

pub(crate) fn read<T>(part: &mut Part<T>) -> &mut T {
    match part {
        Part::Read { data, .. } => data,
        _ => panic!("the part has no data"),
    }
}
