use std::path::PathBuf;

use railgate_model::{Action, Allocation, Hca, Job, PartName, Phase, Port, PortState, Reading, SiteRequest};

use crate::scene::Scene;
use crate::{CHECKS, CheckInfo, GateConfig, Scope, Seen};

/// What must be read so that everything can be judged that the phase, the job and the configuration ask
/// for: the parts, and the mounts to ask. A job without GPUs need not start NVML.
pub fn request_for(config: &GateConfig, phase: Phase, job: Option<&Job>) -> (Vec<PartName>, Vec<PathBuf>) {
    let mut parts: Vec<PartName> = Vec::new();
    let mut mounts = Vec::new();
    for check in CHECKS.iter().filter(|check| runs(check, config, phase, job)) {
        parts.extend(check.parts);
        if check.id == "mounts" {
            mounts.clone_from(&config.checks.mounts.required);
        }
    }
    parts.sort_unstable();
    parts.dedup();
    (parts, mounts)
}

/// Which of the site's own checks are to be run; `None` where none is.
pub fn site_request(config: &GateConfig, phase: Phase, job: Option<&Job>) -> Option<SiteRequest> {
    let check = CHECKS.iter().find(|check| check.id == "site")?;
    runs(check, config, phase, job).then(|| config.checks.site.request(phase, job)).flatten()
}

/// Whether NCCL's topology file is to be read.
pub fn topology_file_wanted(config: &GateConfig, phase: Phase, job: Option<&Job>) -> bool {
    let check = CHECKS.iter().find(|check| check.id == "topology-file");
    check.is_some_and(|check| runs(check, config, phase, job))
}

/// The fabric manager's program, where its version is judged.
pub fn fabric_manager_request(config: &GateConfig, phase: Phase, job: Option<&Job>) -> Option<PathBuf> {
    let check = CHECKS.iter().find(|check| check.id == "fabric-manager")?;
    runs(check, config, phase, job).then(|| config.checks.fabric_manager.program.clone())
}

/// Whether each NVLink is asked what it counts. That costs 20 ms a GPU, and no job waits for it: between jobs, and in any
/// job's hour, the periodic look does.
pub fn nvlink_errors_wanted(config: &GateConfig, phase: Phase, job: Option<&Job>) -> bool {
    let check = CHECKS.iter().find(|check| check.id == "gpu-link-errors");
    phase == Phase::Periodic && check.is_some_and(|check| runs(check, config, phase, job))
}

/// Whether drives are asked for their own log: a question to each, which has its time between jobs only.
pub fn drive_logs_wanted(config: &GateConfig, phase: Phase, job: Option<&Job>) -> bool {
    let check = CHECKS.iter().find(|check| check.id == "nvme");
    phase == Phase::Periodic && check.is_some_and(|check| runs(check, config, phase, job))
}

/// The interfaces whose statistics are judged: compute device and interface. `None` where none is.
pub fn statistics_request(config: &GateConfig, seen: &Seen<'_>) -> Option<Vec<(String, String)>> {
    let judged = |id: &str| {
        let check = CHECKS.iter().find(|check| check.id == id);
        check.is_some_and(|check| runs(check, config, seen.phase, seen.job))
    };
    (judged("roce-pause") || judged("ib-trend")).then(|| interfaces(config, seen))?
}

/// The program of the RDMA self-test and the devices that it should try: the compute devices whose first port is
/// active. `None` where nothing is to be tried.
pub fn self_test_request(config: &GateConfig, seen: &Seen<'_>) -> Option<(PathBuf, Vec<String>)> {
    let check = CHECKS.iter().find(|check| check.id == "rdma-self-test")?;
    if !runs(check, config, seen.phase, seen.job) {
        return None;
    }
    let scene = Scene::new(config, seen);
    let active = |port: &Port| port.number == 1 && port.state == Reading::Known(PortState::Active);
    let ports = scene.compute_ports().into_iter().filter(|(_, port)| active(port));
    let devices: Vec<String> = ports.map(|(hca, _)| hca.name.clone()).collect();
    (!devices.is_empty()).then(|| (config.checks.rdma_self_test.program.clone(), devices))
}

/// The modules to be read: compute device and interface. `None` where none is.
pub fn optics_request(config: &GateConfig, seen: &Seen<'_>) -> Option<Vec<(String, String)>> {
    let check = CHECKS.iter().find(|check| check.id == "optic")?;
    if !runs(check, config, seen.phase, seen.job) {
        return None;
    }
    interfaces(config, seen)
}

/// The compute devices that are judged, each with its interface.
fn interfaces(config: &GateConfig, seen: &Seen<'_>) -> Option<Vec<(String, String)>> {
    let scene = Scene::new(config, seen);
    let of = |hca: &Hca| Some((hca.name.clone(), hca.netdevs.first()?.clone()));
    let devices: Vec<_> = scene.judged_hcas().into_iter().filter_map(of).collect();
    (!devices.is_empty()).then_some(devices)
}

/// Whether a check runs at all.
pub(crate) fn runs(check: &CheckInfo, config: &GateConfig, phase: Phase, job: Option<&Job>) -> bool {
    let on = check.always || check.action(&config.checks) != Action::Off;
    on && check.phases.contains(&phase) && concerns(check.scope, config, job)
}

fn concerns(scope: Scope, config: &GateConfig, job: Option<&Job>) -> bool {
    let without_gpus = job.is_some_and(holds_no_gpu);
    match scope {
        Scope::Always => true,
        Scope::Gpus => !without_gpus || config.gpus_for_all,
        Scope::Fabric => !without_gpus || config.fabric_for_all,
    }
}

pub(crate) fn holds_no_gpu(job: &Job) -> bool {
    match &job.allocation {
        Allocation::NoGpus => true,
        Allocation::Gpus(ids) => ids.is_empty(),
        // A list that nobody understands is no reason to let a job onto a broken GPU.
        Allocation::Unreadable(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::job;

    const ALL: [PartName; 5] =
        [PartName::Gpus, PartName::Fabric, PartName::Pci, PartName::KernelLog, PartName::Host];

    fn asked(toml: &str, phase: Phase, job: Option<&Job>) -> (Vec<PartName>, Vec<PathBuf>) {
        request_for(&toml::from_str(toml).unwrap(), phase, job)
    }

    #[test]
    fn a_job_with_gpus_and_a_look_without_a_job_need_everything() {
        assert_eq!(asked("", Phase::Prolog, Some(&job(&[0]))).0, ALL);
        assert_eq!(asked("", Phase::Periodic, None).0, ALL);
    }

    #[test]
    fn a_job_without_gpus_does_not_start_nvml() {
        let toml = "[checks.mounts]\nrequired = [\"/home\"]";
        let (parts, mounts) = asked(toml, Phase::Prolog, Some(&job(&[])));
        assert_eq!(parts, [PartName::Host]);
        assert_eq!(mounts, [PathBuf::from("/home")]);
        let (parts, _) = asked("gpus_for_all = true", Phase::Prolog, Some(&job(&[])));
        assert!(parts.contains(&PartName::Gpus) && parts.contains(&PartName::KernelLog));
        let (parts, _) = asked("fabric_for_all = true", Phase::Epilog, Some(&job(&[])));
        assert!(parts.contains(&PartName::Fabric) && !parts.contains(&PartName::Gpus));
    }

    #[test]
    fn what_is_off_is_not_asked_for() {
        let reads = |part: PartName| CHECKS.iter().filter(move |check| check.parts.contains(&part));
        let mut toml = String::from("[checks]\nmounts = { action = \"off\", required = [\"/home\"] }\n");
        let mut off: Vec<&str> =
            reads(PartName::Fabric).chain(reads(PartName::Host)).map(|check| check.id).collect();
        off.sort_unstable();
        off.dedup();
        for id in off.into_iter().filter(|id| *id != "mounts") {
            toml.push_str(&format!("{id} = {{ action = \"off\" }}\n"));
        }
        let (parts, mounts) = asked(&toml, Phase::Prolog, Some(&job(&[0])));
        assert!(!parts.contains(&PartName::Fabric) && !parts.contains(&PartName::Host));
        assert!(mounts.is_empty());
    }
}
