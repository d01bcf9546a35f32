use std::path::PathBuf;

use railgate_model::{Class, FollowUp, Part, PartName, Phase, Port, PortState, Reading, Severity};

use crate::plan::Need;
use crate::register::{Check, Level, Scope};
use crate::report::{Found, Report};
use crate::scene::{Scene, covers_whole_node};
use crate::settings::{absolute, amount, settings};

/// The check.
pub(crate) struct RdmaSelfTest;

settings! {
    action = Drain;
    severity: Severity = Severity::Warn, "a device that cannot send to itself";
    min_gbps: f64 = 0.0, limit amount("rate"), "Gb/s; less is warn; 0: not judged";
    program: PathBuf = PathBuf::from("/usr/libexec/railgate/railgate-rdma-selftest"), limit absolute(), "the test program";
}

impl Check for RdmaSelfTest {
    const ABOUT: &'static str = "an RDMA device cannot send to itself, or does so slowly";
    const EXPLAIN: &'static str = "
Reads what `program` reports about the compute devices whose port is active: it opens each device, connects it with itself, sends 1 MiB
messages through it for a fifth of a second and compares what arrived. Runs only if a job asked for `--railgate-gate=full` and
holds the whole node, for the next such job after a job's preflight named the node (at most once in an hour), with `railgate check --full`, and before a node is resumed (`railgate readmit`).

Why: a device can look fine in sysfs and still fail at its first work request, because of firmware, memory limits, or a PCIe
slot that lost lanes.

Fix: run `ibv_devinfo` and `ib_write_bw` by hand; check memory limits (`memlock`); then replace the card.

The bandwidth is reported, and judged only with `min_gbps`: what a loop through the device can reach depends on its slot.
If the program is missing or prints nothing, the result is `unknown`.
";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::Fabric, PartName::Pci];
    const NEEDS: &'static [Need<Settings>] = &[Need::follow_up(request)];
    const SCOPE: Scope = Scope::Fabric;
    const PHASES: &'static [Phase] = &[Phase::Prolog, Phase::Periodic];
    const LEVEL: Level = Level::Full;
    const COST: &'static str = "a fifth of a second per device";
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let Some(part) = &scene.now.extras.rdma_self_test else { return };
        let program = set.program.display().to_string();
        let Part::Read { data, .. } = part else {
            let why = part.missing().unwrap_or_default();
            out.add(Found::unknown(Class::Internal, "", format!("not run: {why}")).fix("check program").row(
                "self-test",
                why,
                "an answer",
                program,
            ));
            return;
        };
        for device in data {
            let name = &device.device;
            match (device.gbps, &device.error) {
                (_, Some(why)) => {
                    let found =
                        Found::new(set.severity, Class::Node, name, format!("cannot send to itself: {why}"));
                    out.add(found.fix("check HCA").row("loop", why, "data", &program));
                }
                (Some(gbps), None) if gbps < set.min_gbps => {
                    let what = format!("{gbps:.1} Gb/s through itself, less than {}", set.min_gbps);
                    let row = (format!("{gbps:.1} Gb/s"), format!("{} Gb/s", set.min_gbps));
                    out.add(
                        Found::warn(Class::Node, name, what)
                            .fix("check slot")
                            .row("loop", row.0, row.1, &program),
                    );
                }
                (Some(gbps), None) => {
                    let what = format!("{gbps:.1} Gb/s through itself");
                    out.add(Found::note(Class::Node, name, &what).row("loop", what, "data", &program));
                }
                (None, None) => {
                    out.add(
                        Found::unknown(Class::Node, name, "no result")
                            .fix("check HCA")
                            .row("loop", "nothing", "data", &program),
                    );
                }
            }
        }
    }
}

/// Requests the test for compute devices with an active first port, and leaves out devices that other jobs may use.
fn request(set: &Settings, scene: &Scene<'_>) -> Option<FollowUp> {
    if !covers_whole_node(&scene.seen) {
        return None;
    }
    let active = |port: &Port| port.number == 1 && port.state == Reading::Known(PortState::Active);
    let ports = scene.compute_ports().into_iter().filter(|(_, port)| active(port));
    let devices: Vec<String> = ports.map(|(hca, _)| hca.name.clone()).collect();
    (!devices.is_empty()).then(|| FollowUp::RdmaSelfTest { program: set.program.clone(), devices })
}

#[cfg(test)]
mod tests {
    use railgate_model::SelfTested;

    use super::*;
    use crate::testing::{Case, case};

    fn tested(gbps: Option<f64>, error: Option<&str>) -> Case {
        case("h100-sxm").with(|case| {
            let error = error.map(str::to_owned);
            let one = SelfTested { device: "mlx5_2".to_owned(), gbps, bytes: 1, error };
            case.now.extras.rdma_self_test = Some(Part::Read { data: vec![one], took_ms: 1.0 });
        })
    }

    #[test]
    fn each_outcome_of_the_test_is_judged() {
        assert_eq!(tested(Some(190.0), None).summary(), "fit");
        assert_eq!(tested(Some(190.0), None).of("rdma-self-test"), [Severity::Note]);
        assert_eq!(
            tested(None, Some("open: no")).summary(),
            "degraded: warn rdma-self-test@mlx5_2: cannot send to itself: open: no; check HCA"
        );
        let slow = tested(Some(190.0), None).settings("[checks.rdma-self-test]\nmin_gbps = 300.0");
        assert_eq!(
            slow.summary(),
            "degraded: warn rdma-self-test@mlx5_2: 190.0 Gb/s through itself, less than 300; check slot"
        );
        assert_eq!(tested(None, None).of("rdma-self-test"), [Severity::Unknown]);
    }

    #[test]
    fn a_missing_test_program_is_unknown_and_the_node_stays_fit() {
        let missing = case("h100-sxm").with(|case| {
            let why = "cannot be started: No such file or directory".to_owned();
            case.now.extras.rdma_self_test = Some(Part::Failed { why, took_ms: 1.0 });
        });
        assert_eq!(
            (missing.summary().as_str(), missing.of("rdma-self-test")),
            ("fit", vec![Severity::Unknown])
        );
        assert_eq!(case("h100-sxm").of("rdma-self-test"), []);
    }

    #[test]
    fn settings_out_of_range() {
        let table = "[checks.rdma-self-test]\nmin_gbps = -1.0\nprogram = \"selftest\"";
        let config: crate::GateConfig = toml::from_str(table).unwrap();
        assert_eq!(config.problems().len(), 2, "{:?}", config.problems());
    }
}
