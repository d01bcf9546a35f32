use std::collections::BTreeSet;

use railgate_model::{Class, PartName, Phase};

use super::ib_port::BESIDE_JOBS;

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::settings;

/// The check.
pub(crate) struct IbCount;

settings! {
    action = Drain;
}

impl Check for IbCount {
    const ABOUT: &'static str = "fewer compute ports than the profile has";
    const EXPLAIN: &'static str = "
Reads `/sys/class/infiniband` and counts the compute ports. `railgate rails` shows which ports it
leaves out as storage or management. Compared with `fabric.hcas`, or with the number of HCAs in `[rails] wiring` where that
decides and is smaller; the devices of the last clean check run show which one is missing.

Why: NCCL pairs devices by their position in a list; if a node lacks one, its rails are crossed or its job hangs.

Fix: look for the device in `lspci`; reload its driver, reboot, reseat or replace the card.

On a shared node a missing device fails the check only if it is the nearest one to a GPU of the job; otherwise it is a
warning. If all are gone at once (for example, while their driver is reloaded), the periodic check drains on the second
sighting within an hour. Within `boot_grace` of `ib-port` after boot it is `unknown`: the driver may still be loading.
";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::Fabric, PartName::Pci, PartName::Host];
    const SCOPE: Scope = Scope::Fabric;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, _: &Settings, out: &mut Report<'_>) {
        let (Some(want), Some(fabric)) = (scene.expected_ports(), scene.now.fabric.data()) else { return };
        let count = scene.compute_ports().len();
        if count >= want {
            return;
        }
        let here: BTreeSet<&str> = fabric.hcas.iter().map(|hca| hca.name.as_str()).collect();
        let gone: Vec<&str> = scene
            .seen
            .memory
            .hcas
            .iter()
            .filter(|known| !here.contains(known.name.as_str()) && !scene.excluded(&known.name))
            // A device with the same PCI address and another name is still present.
            .filter(|known| fabric.hcas.iter().all(|hca| hca.pci.known() != known.pci.as_ref()))
            .map(|known| known.name.as_str())
            .collect();
        let which = if gone.is_empty() { String::new() } else { format!(", {} missing", gone.join(",")) };
        let what = format!("{count} of {want} RDMA ports{which}");
        let mut found = Found::fail(Class::Node, gone.first().copied().unwrap_or_default(), what);
        let near_the_job =
            scene.nearest_hcas(fabric).is_some_and(|near| gone.iter().any(|name| near.names.contains(*name)));
        if !scene.whole() && !near_the_job {
            found = found.shared();
        } else if scene.just_booted() {
            found = found.only_unknown("node just booted");
        } else if count == 0 && scene.phase() == Phase::Periodic {
            // Outside of a job's start the driver may be reloading; the missing device must be seen again.
            found = found.may_pass(BESIDE_JOBS);
        }
        out.add(found.fix("check HCA").row(
            "compute ports",
            count.to_string(),
            want.to_string(),
            "/sys/class/infiniband",
        ));
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::{Phase, Reading, Severity};

    use crate::testing::{Case, case, read};

    #[test]
    fn a_missing_device_is_named_if_the_gate_state_has_it() {
        assert_eq!(
            case("h100-sxm:ib-missing@2").summary(),
            "unfit: fail ib-count: 7 of 8 RDMA ports; check HCA"
        );
        assert_eq!(
            case("h100-sxm:ib-missing@2").remembering().summary(),
            "unfit: fail ib-count@mlx5_2: 7 of 8 RDMA ports, mlx5_2 missing; check HCA"
        );
    }

    #[test]
    fn on_a_shared_node_a_missing_device_fails_if_it_was_nearest_to_a_gpu_of_the_job() {
        let shared = |gpus: &[u32]| case("h100-sxm:ib-missing@2").remembering().holding(gpus);
        assert_eq!(shared(&[0, 1]).of("ib-count"), [Severity::Warn]);
        assert_eq!(shared(&[2]).of("ib-count"), [Severity::Fail]);
        let forgotten = case("h100-sxm:ib-missing@2").holding(&[2]);
        assert_eq!(forgotten.of("ib-count"), [Severity::Warn]);
    }

    #[test]
    fn where_the_wiring_decides_no_more_ports_are_expected_than_it_names() {
        let dual = |faults: &str| {
            case(&format!("h100-sxm{faults}")).with(|case| {
                let profile = case.profile.as_mut().unwrap();
                profile.fabric.hcas = Some(16);
                profile.rails.wiring = (0..8).map(|gpu| (gpu, format!("mlx5_{gpu}"))).collect();
                for device in &mut read(&mut case.now.pci).devices {
                    device.bridges.clear();
                }
                for hca in &mut read(&mut case.now.fabric).hcas {
                    let second = railgate_model::Port { number: 2, ..hca.ports[0].clone() };
                    hca.ports.push(second);
                }
            })
        };
        assert_eq!(dual("").summary(), "fit");
        assert_eq!(dual(":ib-missing@2").summary(), "unfit: fail ib-count: 7 of 8 RDMA ports; check HCA");
        assert_eq!(dual(":ib-port-down@2").of("ib-port"), [Severity::Fail]);
        assert_eq!(dual(":ib-layer@2").of("ib-layer"), [Severity::Warn; 2], "each port of the card");
    }

    #[test]
    fn a_driver_reload_in_the_periodic_phase_does_not_fail_at_once() {
        let none = |case: Case| case.with(|case| read(&mut case.now.fabric).hcas.clear());
        let beside = |case: Case| case.phase(Phase::Periodic).with(|case| case.job = None);
        assert_eq!(beside(none(case("h100-sxm"))).of("ib-count"), [Severity::Warn]);
        assert_eq!(beside(none(case("h100-sxm"))).again().of("ib-count"), [Severity::Fail]);
        assert_eq!(none(case("h100-sxm")).of("ib-count"), [Severity::Fail], "a job is about to start");
        assert_eq!(beside(case("h100-sxm:ib-missing@2")).of("ib-count"), [Severity::Fail]);
    }

    #[test]
    fn soon_after_boot_a_missing_device_does_not_fail() {
        let young = case("h100-sxm:ib-missing@2").with(|case| {
            let taken = case.now.taken / 1000;
            read(&mut case.now.host).boot_time = Reading::Known(taken - 60);
        });
        assert_eq!(young.of("ib-count"), [Severity::Unknown]);
    }

    #[test]
    fn renamed_devices_and_machines_without_an_expected_count_are_fit() {
        assert_eq!(case("h100-sxm:ib-renamed").remembering().summary(), "fit");
        assert_eq!(case("generic").summary(), "fit");
        assert_eq!(case("h100-sxm:ib-missing@2").holding(&[]).summary(), "fit");
    }
}
