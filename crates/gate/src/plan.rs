use railgate_model::{Action, Allocation, Extra, FollowUp, Job, Phase, Plan};

use crate::register::Level;
use crate::scene::Scene;
use crate::{CHECKS, CheckInfo, GateConfig, Scope, Seen};

/// A reading that a check needs besides its parts. It is made where the check runs, in the given phases.
pub(crate) struct Need<S: 'static> {
    phases: Option<&'static [Phase]>,
    reading: Kind<S>,
}

enum Kind<S: 'static> {
    Extra(fn(&S, Phase, Option<&Job>) -> Option<Extra>),
    FollowUp(fn(&S, &Scene<'_>) -> Option<FollowUp>),
}

impl<S: 'static> Need<S> {
    /// A reading besides the parts, from the check's settings, the phase and the job. `of` returns `None` if the
    /// settings need no reading.
    pub(crate) const fn extra(of: fn(&S, Phase, Option<&Job>) -> Option<Extra>) -> Self {
        Need { phases: None, reading: Kind::Extra(of) }
    }

    /// A reading of devices that the parts list, from the check's settings and the scene. `of` returns `None` if no
    /// device needs it.
    pub(crate) const fn follow_up(of: fn(&S, &Scene<'_>) -> Option<FollowUp>) -> Self {
        Need { phases: None, reading: Kind::FollowUp(of) }
    }

    /// Limits the need to these phases.
    pub(crate) const fn only(self, phases: &'static [Phase]) -> Self {
        Need { phases: Some(phases), reading: self.reading }
    }

    fn in_phase(&self, phase: Phase) -> bool {
        self.phases.is_none_or(|phases| phases.contains(&phase))
    }
}

/// The extra readings that one check needs.
pub(crate) fn extras<S>(needs: &[Need<S>], set: &S, phase: Phase, job: Option<&Job>) -> Vec<Extra> {
    let needs = needs.iter().filter(|need| need.in_phase(phase));
    needs
        .filter_map(|need| match need.reading {
            Kind::Extra(of) => of(set, phase, job),
            Kind::FollowUp(_) => None,
        })
        .collect()
}

/// The device readings that one check needs.
pub(crate) fn devices<S>(needs: &[Need<S>], set: &S, scene: &Scene<'_>) -> Vec<FollowUp> {
    let needs = needs.iter().filter(|need| need.in_phase(scene.phase()));
    needs
        .filter_map(|need| match need.reading {
            Kind::Extra(_) => None,
            Kind::FollowUp(of) => of(set, scene),
        })
        .collect()
}

/// Returns the parts and extra readings that the checks of this phase and job need. For a job without GPUs, NVML need
/// not be started.
pub fn plan(config: &GateConfig, phase: Phase, job: Option<&Job>) -> Plan {
    let mut plan = Plan::default();
    for check in CHECKS.iter().filter(|check| runs(check, config, phase, job)) {
        plan.parts.extend(check.parts);
        for extra in (check.extras)(&config.checks, phase, job) {
            add(&mut plan.extras, extra);
        }
    }
    plan.parts.sort_unstable();
    plan.parts.dedup();
    plan
}

/// Returns the readings that the checks need of devices which the parts list. `full` includes checks that exercise the
/// hardware.
pub fn follow_ups(config: &GateConfig, seen: &Seen<'_>, full: bool) -> Vec<FollowUp> {
    let scene = Scene::new(config, seen);
    let mut readings = Vec::new();
    let asked = |check: &&CheckInfo| full || check.level < Level::Full;
    for check in CHECKS.iter().filter(asked).filter(|check| runs(check, config, seen.phase, seen.job)) {
        for reading in (check.follow_ups)(&config.checks, &scene) {
            add(&mut readings, reading);
        }
    }
    // A GPU that hangs takes all of the time that is left.
    readings.sort_by_key(|reading| matches!(reading, FollowUp::GpuSelfTest { .. }));
    readings
}

/// Adds a reading unless another check has already added the same one.
fn add<T: PartialEq>(to: &mut Vec<T>, reading: T) {
    if !to.contains(&reading) {
        to.push(reading);
    }
}

/// Whether a check runs in this phase for this job.
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
        // If the job's GPU list cannot be parsed, GPUs are judged, so that a job does not start on a broken one.
        Allocation::Unreadable(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use railgate_model::PartName;

    use super::*;
    use crate::testing::{case, job};

    const ALL: [PartName; 5] =
        [PartName::Gpus, PartName::Fabric, PartName::Pci, PartName::KernelLog, PartName::Host];

    fn asked(toml: &str, phase: Phase, job: Option<&Job>) -> (Vec<PartName>, Vec<PathBuf>) {
        let plan = plan(&toml::from_str(toml).unwrap(), phase, job);
        let mounts = plan.extras.into_iter().find_map(|extra| match extra {
            Extra::Mounts(mounts) => Some(mounts),
            _ => None,
        });
        (plan.parts, mounts.unwrap_or_default())
    }

    #[test]
    fn a_job_with_gpus_or_no_job_needs_every_part() {
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
    fn parts_of_checks_that_are_off_are_not_planned() {
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

    #[test]
    fn each_check_that_reads_the_fabric_reads_the_pci_tree_which_sorts_its_ports() {
        let lacks = |check: &&CheckInfo| {
            check.parts.contains(&PartName::Fabric) && !check.parts.contains(&PartName::Pci)
        };
        let lacking: Vec<_> = CHECKS.iter().filter(lacks).map(|check| check.id).collect();
        assert!(lacking.is_empty(), "{lacking:?}");
    }

    fn extras(toml: &str, phase: Phase, job: Option<&Job>) -> Vec<Extra> {
        plan(&toml::from_str(toml).unwrap(), phase, job).extras
    }

    /// Each check's phases, programs and files must be in the plan exactly where the check runs.
    #[test]
    fn each_extra_reading_is_planned_where_its_check_needs_it() {
        let program = Extra::FabricManager(PathBuf::from("/usr/bin/nv-fabricmanager"));
        let beside_jobs = [Extra::NvLinkErrors, Extra::DriveLogs, program];
        let (of_gpus, periodic) = (job(&[0]), extras("", Phase::Periodic, None));
        let prolog = extras("", Phase::Prolog, Some(&of_gpus));
        for extra in &beside_jobs {
            assert!(periodic.contains(extra) && !prolog.contains(extra), "{extra:?}");
        }
        let site = |extras: &[Extra]| extras.iter().any(|extra| matches!(extra, Extra::SiteChecks(_)));
        assert!(site(&prolog) && site(&periodic) && !site(&extras("", Phase::Epilog, Some(&of_gpus))));
        assert!(prolog.contains(&Extra::TopologyFile));
        assert!(!extras("", Phase::Prolog, Some(&job(&[]))).contains(&Extra::TopologyFile));
        for (id, extra) in ["gpu-link-errors", "nvme", "fabric-manager"].iter().zip(&beside_jobs) {
            let off = extras(&format!("[checks]\n{id} = {{ action = \"off\" }}"), Phase::Periodic, None);
            assert!(!off.contains(extra) && off.len() == periodic.len() - 1, "{id}: {off:?}");
        }
    }

    #[test]
    fn devices_are_read_once_and_exercised_only_on_request() {
        let planned = |toml: &str, full: bool, shared: bool| {
            let case = case("h100-sxm");
            let config: GateConfig = toml::from_str(toml).unwrap();
            let gpu = job(&[0]);
            let seen = Seen {
                phase: Phase::Periodic,
                now: &case.now,
                before: None,
                job: shared.then_some(&gpu),
                profile: case.profile.as_ref(),
                memory: &crate::Memory::default(),
            };
            let kind = |reading: &FollowUp| match reading {
                FollowUp::RdmaSelfTest { devices, .. } => ("test", devices.len()),
                FollowUp::GpuSelfTest { gpus, .. } => ("compute", gpus.len()),
                FollowUp::Optics(devices) => ("optics", devices.len()),
                FollowUp::Statistics(devices) => ("statistics", devices.len()),
            };
            follow_ups(&config, &seen, full).iter().map(kind).collect::<Vec<_>>()
        };
        assert_eq!(planned("", false, false), [("optics", 8), ("statistics", 8)]);
        let all = [("test", 8), ("optics", 8), ("statistics", 8), ("compute", 8)];
        assert_eq!(planned("", true, false), all, "the GPUs last");
        assert_eq!(
            planned("", true, true),
            [("optics", 1), ("statistics", 1)],
            "another job's are left alone"
        );
        let off = |id: &str| format!("[checks]\n{id}.action = \"off\"\n");
        assert_eq!(planned(&off("optic"), false, false), [("statistics", 8)]);
        assert_eq!(planned(&off("roce-pause"), false, false), [("optics", 8), ("statistics", 8)]);
        let both = format!("{}ib-trend.action = \"off\"\n", off("roce-pause"));
        assert_eq!(planned(&both, false, false), [("optics", 8)]);
    }
}
