use railgate_model::xid_catalogue::{Owner, explain};
use railgate_model::{
    Allocation, Class, Finding, Gpu, Job, KernelLine, PciAddress, RailMap, Severity, Snapshot, UnixMillis,
    Verdict, is_oom, oom_kills,
};

use crate::counters::RunGpus;
use crate::{EvidenceItem, KernelEvents, StatsConfig};

fn gpus(snapshot: Option<&Snapshot>) -> &[Gpu] {
    snapshot.and_then(|snapshot| snapshot.gpus.data()).map_or(&[], |gpus| &gpus.gpus)
}

/// Part of the node that a finding concerns.
enum Subject {
    Gpu(u32, Option<PciAddress>),
    Port(String),
    /// A path, another part of the node, or the node itself. A job with the whole node held it too.
    Node(String),
}

fn subject(finding: &Finding, before: Option<&Snapshot>, after: &Snapshot) -> Subject {
    let part = finding.part.as_str();
    if part.is_empty() {
        return Subject::Node(String::new());
    }
    let seen = || gpus(Some(after)).iter().chain(gpus(before));
    if let Ok(index) = part.parse::<u32>() {
        let pci = seen().find(|gpu| gpu.index == index && gpu.pci.known().is_some());
        return Subject::Gpu(index, pci.and_then(|gpu| gpu.pci.known().copied()));
    }
    if let Ok(pci) = part.parse::<PciAddress>()
        && let Some(gpu) = seen().find(|gpu| gpu.pci.known() == Some(&pci))
    {
        return Subject::Gpu(gpu.index, Some(pci));
    }
    let hca = part.split(':').next().unwrap_or(part);
    let known = [Some(after), before].into_iter().flatten().filter_map(|snapshot| snapshot.fabric.data());
    if known.flat_map(|fabric| &fabric.hcas).any(|have| have.name == hca) {
        return Subject::Port(part.to_owned());
    }
    Subject::Node(part.to_owned())
}

/// Whether the job held the GPU. The allocation uses the indices from before the run; a lost GPU shifts those
/// behind it.
fn holds_gpu(
    held: &RunGpus,
    index: u32,
    pci: Option<PciAddress>,
    before: Option<&Snapshot>,
    after: &Snapshot,
) -> Option<bool> {
    let list = if before.is_some() { gpus(before) } else { gpus(Some(after)) };
    let same = |gpu: &&Gpu| match (pci, gpu.pci.known()) {
        (Some(want), Some(have)) => want == *have,
        _ => gpu.index == index,
    };
    match list.iter().find(same) {
        Some(gpu) => held.first().has(gpu.index),
        None => None,
    }
}

fn holds_every_gpu(held: &RunGpus, before: Option<&Snapshot>, after: &Snapshot) -> Option<bool> {
    let list = if before.is_some() { gpus(before) } else { gpus(Some(after)) };
    if list.is_empty() {
        return None;
    }
    list.iter().map(|gpu| held.first().has(gpu.index)).try_fold(true, |all, own| Some(all && own?))
}

fn holds_port(
    held: &RunGpus,
    port: &str,
    rails: Option<&RailMap>,
    before: Option<&Snapshot>,
    after: &Snapshot,
) -> Option<bool> {
    if holds_every_gpu(held, before, after) == Some(true) {
        return Some(true);
    }
    let rails = rails?;
    let (hca, number) = port.split_once(':').unwrap_or((port, ""));
    let rail = rails
        .rails
        .iter()
        .position(|rail| rail.hca == hca && (number.is_empty() || rail.port.to_string() == number))?;
    let mut known = true;
    for gpu in rails.gpus.iter().filter(|gpu| gpu.rail == Some(rail)) {
        match holds_gpu(held, gpu.index, gpu.pci.known().copied(), before, after) {
            Some(true) => return Some(true),
            Some(false) => {}
            None => known = false,
        }
    }
    known.then_some(false)
}

/// The first hardware Xid on a GPU.
fn first_xid(kernel: &KernelEvents, pci: Option<PciAddress>) -> Option<UnixMillis> {
    let place = |address: PciAddress| (address.domain, address.bus, address.device);
    kernel
        .xids
        .iter()
        .filter(|xid| xid.gpu.map(place) == pci.map(place) && pci.is_some())
        .filter(|xid| explain(xid.code, &xid.text).0 == Owner::Hardware)
        .map(|xid| xid.time)
        .min()
}

/// Findings of the epilog that may have ended the job: faults of this node or of its cables, when they
/// occurred, and whether the job held the device.
pub fn evidence(
    verdict: &Verdict,
    before: Option<&Snapshot>,
    after: &Snapshot,
    kernel: &KernelEvents,
    held: &RunGpus,
    rails: Option<&RailMap>,
) -> Vec<EvidenceItem> {
    let fatal = |finding: &&Finding| {
        finding.severity == Severity::Fail && matches!(finding.class, Class::Node | Class::Fabric)
    };
    let mut items: Vec<EvidenceItem> = verdict
        .findings
        .iter()
        .filter(fatal)
        .map(|finding| {
            let (device, own, time) = match subject(finding, before, after) {
                Subject::Gpu(index, pci) => (
                    pci.map_or_else(|| format!("GPU {index}"), |pci| pci.to_string()),
                    holds_gpu(held, index, pci, before, after),
                    first_xid(kernel, pci),
                ),
                Subject::Port(port) => {
                    let own = holds_port(held, &port, rails, before, after);
                    (port, own, None)
                }
                Subject::Node(part) => (part, holds_every_gpu(held, before, after).filter(|all| *all), None),
            };
            EvidenceItem { finding: finding.clone(), time, device, own }
        })
        .collect();
    items.sort_by_key(|item| item.time.unwrap_or(u64::MAX));
    items
}

/// Kernel messages during the run: all Xids, and the first `max_kernel_events` other lines. Of processes killed
/// for lack of memory only the job's own are included; a job without GPUs gets no other lines.
pub fn kernel_events(after: &Snapshot, start: UnixMillis, job: &Job, config: &StatsConfig) -> KernelEvents {
    let Some(log) = after.kernel_log.data() else {
        // Xids from NVML are of this run: its sampler waited for them.
        let mut xids = after.xids();
        xids.truncate(config.max_kernel_events.max(1));
        return KernelEvents { xids, unread: after.kernel_log.missing(), ..KernelEvents::default() };
    };
    let slack = u64::try_from(config.event_slack.as_millis()).unwrap_or(u64::MAX);
    // The log since the prolog's mark is the run's own. Without a mark it reaches back to the boot.
    let since = if log.since.is_some() { 0 } else { start.saturating_sub(slack) };
    let mut xids = log.xids();
    xids.retain(|xid| xid.time >= since);
    xids.sort_by_key(|xid| (xid.time, xid.seq));
    xids.truncate(config.max_kernel_events.max(1));
    let mut lines: Vec<_> = log
        .lines
        .iter()
        .filter(|line| line.time >= since && !xids.iter().any(|xid| xid.seq == line.seq))
        .cloned()
        .collect();
    keep_own_kills(&mut lines, job);
    if job.allocation == Allocation::NoGpus {
        // GPUs and other lines belong to other jobs, or are covered by checks.
        xids.clear();
        lines.retain(|line| is_oom(&line.text));
    }
    let more = lines.len().saturating_sub(config.max_kernel_events);
    KernelEvents {
        xids,
        more,
        lines: lines.into_iter().take(config.max_kernel_events).collect(),
        overrun: log.overrun,
        unread: None,
    }
}

/// Removes records of other users' processes that were killed for lack of memory.
pub(crate) fn keep_own_kills(lines: &mut Vec<KernelLine>, job: &Job) {
    let own: Vec<u64> =
        oom_kills(lines).into_iter().filter(|kill| kill.is_of(job)).flat_map(|kill| kill.seqs).collect();
    lines.retain(|line| !is_oom(&line.text) || own.contains(&line.seq));
}

#[cfg(test)]
mod tests {
    use railgate_model::{GpuInventory, KnownGpu, Part, Phase, Reading};

    use super::*;
    use crate::testing::{after, finding, job, look, machine, part};

    #[test]
    fn hung_probe_counts_as_held_by_a_whole_node_job() {
        let hangs = finding("part-silent", "gpus", Severity::Fail, Class::Node, "stuck in the kernel");
        let own = |job| part("n1", &job, "", vec![hangs.clone()], 256).evidence.remove(0).own;
        assert_eq!(own(job(0..8)), Some(true));
        assert_eq!(own(job(0..2)), None, "the affected job of several is unknown");
    }

    #[test]
    fn device_ownership_behind_a_lost_gpu_and_on_a_slice() {
        let full = machine("n1", "");
        let known = GpuInventory::new(KnownGpu::list(full.gpus.data().unwrap()), true);
        // GPU 1 was lost before the job, so Slurm's GPU 2 is NVML's GPU 1.
        let lost = machine("n1", "gpu-missing@1");
        let now = after(&lost, "");
        let own = |job: &Job, before: &Snapshot, now: &Snapshot, part: &str| {
            let held = RunGpus::resolve(&job.allocation, Some(before), now, &known);
            let fault = finding("gpu-xid", part, Severity::Fail, Class::Node, "Xid 79");
            let verdict = look(Phase::Epilog, 0, vec![fault]).verdict;
            evidence(&verdict, Some(before), now, &KernelEvents::default(), &held, None).remove(0).own
        };
        assert_eq!(own(&job(2..3), &lost, &now, "1"), Some(true));
        assert_eq!(own(&job(2..3), &lost, &now, "2"), Some(false), "that is Slurm's GPU 3");
        let mut sliced = full.clone();
        if let Part::Read { data, .. } = &mut sliced.gpus {
            data.gpus.iter_mut().for_each(|gpu| gpu.mig = Reading::Known(true));
        }
        let now = after(&sliced, "");
        assert_eq!(own(&job(9..10), &sliced, &now, "1"), None, "the tenth slice may be on GPU 1");
    }
}
