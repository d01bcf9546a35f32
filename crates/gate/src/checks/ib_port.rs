use std::time::Duration;

use railgate_model::{Class, PartName, Phase, PhysState, PortState, Reading, Severity};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::{at_most, settings};

/// The check.
pub(crate) struct IbPort;

settings! {
    action = Drain;
    #[serde(with = "railgate_model::duration_text")]
    boot_grace: Duration = Duration::from_secs(300), limit at_most(Duration::from_secs(3600)), "time after boot during which a port that is down or missing counts as unknown";
    initialising: Severity = Severity::Warn, "a link that is up and waits for the subnet manager (Init, Armed)";
}

impl Check for IbPort {
    const ABOUT: &'static str = "a compute port of the fabric is not active";
    const EXPLAIN: &'static str = "
Reads `state` and `phys_state` of the compute ports in `/sys/class/infiniband`. `railgate rails` shows
which ports it leaves out as storage or management. Without a profile, or if the machine has more of them than
`fabric.hcas`, only a port that was active before the job and no longer is counts.

Why: NCCL hangs or fails on it, or runs the whole job through fewer rails.

Fix: depends on the port's state:

- Polling: the other end is silent. Check cable, transceiver and switch port.
- Disabled: the port was switched off by hand (`ibportstate … enable`).
- Init or Armed: the link is up, and no subnet manager has configured it. Check the subnet manager, not the node
  (`initialising`, default `\"warn\"`).

A port that is down is this node's end of a link, so it may drain. If several nodes of one leaf have it, that is one
incident, and the breaker limits the drains. The periodic check drains on the second sighting within an hour: a switch that
boots is not a fault of this node, and no job is about to start. Within `boot_grace` after boot it is `unknown`. On a shared node
only the ports nearest to the job's GPUs are judged.
";
    const CLASS: Class = Class::Fabric;
    const PARTS: &'static [PartName] = &[PartName::Fabric, PartName::Pci, PartName::Host];
    const SCOPE: Scope = Scope::Fabric;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        for judged in scene.judged_ports().iter().filter(|judged| judged.expected()) {
            let (hca, port) = (judged.hca, judged.port);
            let name = judged.name();
            let source = format!("/sys/class/infiniband/{}/ports/{}/state", hca.name, port.number);
            let Some(state) = out.value(&name, &format!("{name} state"), &source, &port.state) else {
                continue;
            };
            let phys = match &port.phys_state {
                Reading::Known(phys) => Some(phys),
                // For an active port, the physical state need not be read as well.
                Reading::Failed(_) if *state != PortState::Active => {
                    out.value(&name, &format!("{name} phys_state"), &source, &port.phys_state)
                }
                Reading::Unsupported | Reading::Failed(_) => None,
            };
            let Some((severity, what, fix)) = judgement(state, phys, set) else { continue };
            let got = format!("{}, {}", state_text(state), phys.map_or("unknown", phys_text));
            let mut found = Found::new(severity, Class::Fabric, &name, what).fix(fix);
            // Soon after boot, every wrong state is only a note; otherwise a worse state would get a milder severity.
            if scene.just_booted() {
                found = found.only_unknown("node just booted");
            } else if !judged.certain {
                found = found.only_unknown("may not be the job's");
            } else if severity == Severity::Fail && scene.phase() == Phase::Periodic {
                found = found.may_pass(BESIDE_JOBS);
            }
            out.add(found.row(format!("{name} state"), got, "ACTIVE, LinkUp", source));
        }
    }
}

/// Booting a switch or replacing a cable takes minutes. Outside of a job's start, a port that is down must be seen
/// again within this time before it fails.
pub(super) const BESIDE_JOBS: Duration = Duration::from_secs(3600);

fn judgement(
    state: &PortState,
    phys: Option<&PhysState>,
    set: &Settings,
) -> Option<(Severity, String, &'static str)> {
    let fail = |what: String, fix| Some((Severity::Fail, what, fix));
    match (state, phys) {
        (PortState::Active, None | Some(PhysState::LinkUp)) => None,
        (PortState::Active, Some(phys)) => {
            Some((Severity::Warn, format!("active, but {}", phys_text(phys)), "check cable"))
        }
        (PortState::Init | PortState::Armed, _) => Some((
            set.initialising,
            format!("{}, not set up by the subnet manager", state_text(state)),
            "check subnet manager",
        )),
        (PortState::Down, Some(PhysState::Disabled)) => fail("down, disabled".to_owned(), "enable port"),
        (PortState::Down, Some(phys)) => fail(format!("down, {}", phys_text(phys)), "check cable"),
        (PortState::Down, None) => fail("down".to_owned(), "check cable"),
        (PortState::Other(text), _) => Some((Severity::Warn, format!("state {text}"), "check port")),
    }
}

fn state_text(state: &PortState) -> &str {
    match state {
        PortState::Down => "DOWN",
        PortState::Init => "INIT",
        PortState::Armed => "ARMED",
        PortState::Active => "ACTIVE",
        PortState::Other(text) => text,
    }
}

fn phys_text(phys: &PhysState) -> &str {
    match phys {
        PhysState::LinkUp => "LinkUp",
        PhysState::Polling => "Polling",
        PhysState::Disabled => "Disabled",
        PhysState::Other(text) => text,
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::{Fitness, LinkLayer, Phase, PhysState, PortState, Reading, Severity};

    use crate::testing::{case, read};

    #[test]
    fn a_port_that_is_physically_down_fails() {
        assert_eq!(
            case("h100-sxm:ib-port-down@2").summary(),
            "unfit: fail ib-port@mlx5_2: down, disabled; enable port"
        );
        assert_eq!(
            case("h100-sxm:ib-port-polling@2").summary(),
            "unfit: fail ib-port@mlx5_2: down, Polling; check cable"
        );
    }

    #[test]
    fn in_the_periodic_phase_a_port_fails_at_the_second_check_run() {
        let beside =
            || case("h100-sxm:ib-port-polling@2").phase(Phase::Periodic).with(|case| case.job = None);
        assert_eq!(beside().of("ib-port"), [Severity::Warn]);
        assert_eq!(beside().again().of("ib-port"), [Severity::Fail]);
        assert_eq!(beside().settings("strikes = 1").of("ib-port"), [Severity::Fail]);
    }

    #[test]
    fn a_link_in_state_init_warns_as_a_fabric_problem() {
        let init = case("h100-sxm:ib-port-init@2");
        assert_eq!(init.of("ib-port"), [Severity::Warn]);
        assert_eq!(init.fitness(), Fitness::Degraded);
    }

    #[test]
    fn on_a_shared_node_only_ports_near_the_jobs_gpus_count() {
        assert_eq!(case("h100-sxm:ib-port-down@2").holding(&[0, 1]).summary(), "fit");
        assert_eq!(case("h100-sxm:ib-port-down@2").holding(&[2]).fitness(), Fitness::Unfit);
        let no_tree = case("h100-sxm:ib-port-down@2")
            .holding(&[2])
            .with(|case| case.now.pci = railgate_model::Part::Skipped);
        assert_eq!(no_tree.of("ib-port"), [Severity::Unknown]);
        let wired = case("h100-sxm:ib-port-down@2").holding(&[5]).with(|case| {
            case.profile.as_mut().unwrap().rails.wiring = vec![(5, "mlx5_2".to_owned())];
        });
        assert_eq!(wired.fitness(), Fitness::Unfit, "the profile's wiring goes before the tree");
    }

    #[test]
    fn with_an_unreadable_pci_tree_the_owner_of_a_port_is_unknown() {
        let flat = |numa: Reading<u32>| {
            case("h100-sxm:ib-port-down@2").holding(&[2]).pci(|pci| {
                for device in &mut pci.devices {
                    device.bridges.clear();
                    device.numa_node = numa.clone();
                }
            })
        };
        assert_eq!(flat(Reading::Unsupported).of("ib-port"), [Severity::Unknown], "a virtual machine");
        assert_eq!(flat(Reading::Known(0)).of("ib-port"), [Severity::Fail], "all are equally near");
        assert_eq!(flat(Reading::Failed("gone".to_owned())).of("ib-port"), [Severity::Unknown]);

        let at = |case: &crate::testing::Case| {
            case.now.fabric.data().unwrap().hcas[2].pci.known().copied().unwrap()
        };
        let unread = case("h100-sxm:ib-port-down@2").holding(&[2]).with(|case| {
            let hca = at(case);
            let pci = read(&mut case.now.pci);
            let device = pci.devices.iter_mut().find(|device| device.address == hca).unwrap();
            device.bridges.clear();
            device.numa_node = Reading::Failed("gone".to_owned());
        });
        assert_eq!(unread.of("ib-port"), [Severity::Unknown]);
    }

    #[test]
    fn soon_after_boot_a_polling_port_does_not_fail() {
        let booted = |seconds: u64| {
            case("h100-sxm:ib-port-polling@2").with(|case| {
                let at = case.now.taken / 1000 - seconds;
                read(&mut case.now.host).boot_time = Reading::Known(at);
            })
        };
        assert_eq!(booted(60).of("ib-port"), [Severity::Unknown]);
        assert_eq!(booted(301).of("ib-port"), [Severity::Fail]);
    }

    #[test]
    fn spare_and_excluded_ports_may_be_down() {
        let spare = case("h100-sxm:ib-port-polling@2")
            .with(|case| case.profile.as_mut().unwrap().fabric.hcas = Some(7));
        assert_eq!(spare.summary(), "fit");
        let fell = spare.after_the_job();
        assert_eq!(fell.fitness(), Fitness::Unfit, "it was active before the job");
        let excluded = case("h100-sxm:ib-port-polling@2").with(|case| {
            let fabric = &mut case.profile.as_mut().unwrap().fabric;
            fabric.hcas = Some(7);
            fabric.exclude = vec!["mlx5_2*".to_owned()];
        });
        assert_eq!(excluded.after_the_job().summary(), "fit");
    }

    /// A storage HCA that the profile does not exclude: InfiniBand, active at 200 Gb/s, below no GPU's switch.
    fn with_storage(node: &str) -> crate::testing::Case {
        case(node).with(|case| case.profile.as_mut().unwrap().fabric.exclude.clear()).port(
            "mlx5_bond_0",
            |port| {
                port.link_layer = Reading::Known(LinkLayer::InfiniBand);
                port.rate_gbps = Reading::Known(200.0);
            },
        )
    }

    #[test]
    fn an_active_storage_port_does_not_stand_in_for_a_rail() {
        // It was counted as the eighth active compute port, and the gate let the job start.
        assert_eq!(with_storage("h100-sxm").summary(), "fit");
        assert_eq!(with_storage("h100-sxm:ib-port-down@2").of("ib-port"), [Severity::Fail]);
    }

    #[test]
    fn a_storage_port_that_goes_down_is_no_lost_rail() {
        // It was active before the job, and the node was drained for it.
        let down = |case: crate::testing::Case| {
            case.with(|case| case.before = Some(case.now.clone()))
                .port("mlx5_bond_0", |port| port.state = Reading::Known(PortState::Down))
                .phase(Phase::Epilog)
        };
        assert_eq!(down(with_storage("h100-sxm")).of("ib-port"), []);
        // Where fewer ports than the profile expects would remain, any port may be the missing rail.
        let ninth =
            with_storage("h100-sxm").with(|case| case.profile.as_mut().unwrap().fabric.hcas = Some(9));
        assert_eq!(down(ninth).of("ib-port"), [Severity::Fail]);
    }

    #[test]
    fn all_rails_down_are_no_storage() {
        let down = (0..8).fold(with_storage("h100-sxm"), |case, hca| {
            case.port(&format!("mlx5_{hca}"), |port| port.state = Reading::Known(PortState::Down))
        });
        // The active storage port hid that all rails are down, which points at a switch.
        assert_eq!(down.findings()[0], "fail ib-port: all 8 compute ports down; check leaf switch");
        assert_eq!(down.of("ib-port"), [Severity::Fail; 9]);
    }

    #[test]
    fn a_machine_without_a_fabric_has_no_compute_ports() {
        let none = case("h100-sxm:ib-port-polling@2")
            .after_the_job()
            .with(|case| case.profile.as_mut().unwrap().fabric.hcas = Some(0));
        assert_eq!(none.summary(), "fit");
    }

    #[test]
    fn a_storage_card_beside_a_gpu_does_not_hide_its_rail() {
        let shared = case("h100-sxm:ib-port-polling@0").holding(&[1]).with(|case| {
            // GPU 1 has a storage card under its switch, and shares the rails of its socket with the other GPUs.
            let fabric = &mut case.profile.as_mut().unwrap().fabric;
            fabric.exclude.push("mlx5_1".to_owned());
            fabric.hcas = Some(7);
        });
        assert_eq!(shared.fitness(), Fitness::Unfit);
    }

    #[test]
    fn failed_readings_are_unknown_unless_the_port_is_active() {
        let port = |state, phys| {
            case("h100-sxm").port("mlx5_2", |port| {
                port.state = state;
                port.phys_state = phys;
            })
        };
        let failed = || Reading::<PhysState>::Failed("gone".to_owned());
        assert_eq!(port(Reading::Failed("gone".to_owned()), failed()).of("ib-port"), [Severity::Unknown]);
        assert_eq!(port(Reading::Known(PortState::Active), failed()).summary(), "fit");
        let down = port(Reading::Known(PortState::Down), failed());
        assert!(down.summary().starts_with("unfit: fail ib-port@mlx5_2: down; check cable"));
        let other = Reading::Known(PhysState::Other("LinkErrorRecovery".to_owned()));
        assert_eq!(port(Reading::Known(PortState::Active), other).of("ib-port"), [Severity::Warn]);
    }

    #[test]
    fn jobs_without_gpus_are_judged_only_with_fabric_for_all() {
        let cpu = case("h100-sxm:ib-port-down@2").holding(&[]);
        assert_eq!(cpu.summary(), "fit");
        assert_eq!(cpu.settings("fabric_for_all = true").fitness(), Fitness::Unfit);
    }
}
