use proptest::prelude::*;
use railgate_model::{Action, Class, Finding, Fitness, Hca, Part, Phase, Severity, Snapshot, Verdict};
use railgate_simulate::{FAULTS, FaultPart};

use super::{Judged, allowed, judge_with, verdict, would_drain};
use crate::register::CheckInfo;
use crate::scene::Scene;
use crate::testing::{Case, case};
use crate::{CHECKS, Memory, PhasePolicy, Seen};

fn with_checks(case: &Case, checks: &[CheckInfo]) -> Verdict {
    judge_with(checks, &case.config, &case.seen())
}

#[test]
fn healthy_machines_are_fit() {
    for id in railgate_profiles::builtin_ids() {
        for phase in [Phase::Prolog, Phase::Epilog, Phase::Periodic] {
            let case = case(id).phase(phase);
            assert_eq!(case.findings(), Vec::<String>::new(), "{id} {phase}");
            assert_eq!(case.summary(), "fit");
            assert_eq!(case.judge().action, Action::Report);
        }
        assert_eq!(case(id).after_the_job().summary(), "fit", "{id}");
        if id != "cpu" {
            assert_eq!(case(id).remembering().holding(&[0]).summary(), "fit", "{id}");
        }
    }
}

#[test]
fn a_check_that_panics_changes_nothing_else() {
    let mut checks = CHECKS.to_vec();
    let broken = checks.iter_mut().find(|check| check.id == "gpu-remap").unwrap();
    broken.judge = |_, _, out| {
        out.add(crate::report::Found::fail(Class::Node, "0", "half a thought"));
        panic!("index {} out of bounds", 8);
    };
    let healthy = with_checks(&case("h100-sxm"), &checks);
    assert_eq!(healthy.fitness, Fitness::Fit);
    assert_eq!(healthy.action, Action::Report);
    assert_eq!(healthy.findings.len(), 1);
    assert_eq!(
        (healthy.findings[0].check.as_str(), healthy.findings[0].class),
        ("gpu-remap", Class::Internal)
    );
    assert_eq!(healthy.findings[0].what, "the check itself failed: index 8 out of bounds");

    let lost = with_checks(&case("h100-sxm:gpu-lost@3"), &checks);
    assert_eq!(lost.fitness, Fitness::Unfit);
    assert_eq!(lost.cause().unwrap().check, "gpu-lost");
    assert_eq!(lost.findings.last().unwrap().class, Class::Internal);
}

#[test]
fn the_most_specific_finding_decides() {
    let cause = |faults: &str| {
        let verdict = case(&format!("h100-sxm:{faults}")).again().judge();
        verdict.cause().unwrap().subject()
    };
    assert_eq!(cause("gpu-nvlink-down@1,gpu-ecc-uncorrected@2,gpu-lost@3"), "gpu-lost@3");
    assert_eq!(cause("gpu-nvlink-down@1,gpu-ecc-uncorrected@2"), "gpu-ecc@2");
    assert_eq!(cause("ib-port-down@1,gpu-nvlink-down@7"), "gpu-nvlink@7");
    assert_eq!(cause("gpu-remap-pending@1,ib-port-down@4"), "ib-port@mlx5_4");
    assert_eq!(cause("gpu-process-leftover@1,ib-rate-low@4"), "ib-rate@mlx5_4");
    assert_eq!(cause("gpu-lost@5,gpu-lost@3"), "gpu-lost@3");
}

#[test]
fn the_cause_decides_over_its_consequences() {
    let cause = |case: Case| case.judge().cause().unwrap().subject();
    // A GPU falls off the bus, its peers lose their links, and only the driver reports it.
    let quiet = |case: Case| case.settings("[checks.gpu-lost]\naction = \"off\"");
    let after = case("h100-sxm").xid(5, 79, "GPU has fallen off the bus.").xid(1, 74, "NVLink fatal error");
    assert_eq!(cause(quiet(after)), "gpu-xid@5");
    let before = case("h100-sxm").xid(1, 48, "DBE").xid(5, 79, "GPU has fallen off the bus.");
    assert_eq!(cause(quiet(before)), "gpu-xid@1");
    let lost = case("h100-sxm:gpu-lost@5,gpu-nvlink-down@1,ib-port-down@0").xid(1, 74, "NVLink fatal error");
    assert_eq!(cause(lost), "gpu-lost@5");

    let down = |ports: std::ops::Range<u32>| {
        let faults: Vec<String> = ports.map(|port| format!("ib-port-down@{port}")).collect();
        case(&format!("h100-sxm:{}", faults.join(",")))
    };
    let leaf = down(0..8);
    assert_eq!(leaf.summary(), "unfit: fail ib-port: all 8 compute ports down; check leaf switch");
    assert_eq!(leaf.of("ib-port").len(), 9, "each port is reported as well");
    assert_eq!(cause(down(0..7)), "ib-port@mlx5_0");
    assert_eq!(cause(down(3..4)), "ib-port@mlx5_3");
    let toml = "[checks.ib-port]\naction = \"shadow\"";
    assert_eq!(down(0..8).settings(toml).fitness(), Fitness::Fit);
}

#[test]
fn jobs_without_gpus_are_not_gated_on_gpus() {
    let cpu = case("h100-sxm:gpu-lost@3,ib-port-down@2,gpu-ecc-uncorrected@1").holding(&[]);
    assert_eq!(cpu.summary(), "fit");
    let all = cpu.settings("gpus_for_all = true");
    assert_eq!(all.judge().cause().unwrap().subject(), "gpu-lost@3");
}

#[test]
fn the_action_of_a_check_can_be_limited_or_off() {
    let capped = |toml: &str| case("h100-sxm:gpu-lost@3").settings(toml);
    let report = capped("[checks.gpu-lost]\naction = \"report\"").judge();
    assert_eq!((report.fitness, report.action), (Fitness::Degraded, Action::Report));
    let notify = capped("[checks.gpu-lost]\naction = \"notify\"").judge();
    assert_eq!((notify.fitness, notify.action), (Fitness::Degraded, Action::Notify));
    let off = capped("[checks.gpu-lost]\naction = \"off\"");
    assert_eq!(off.of("gpu-lost"), []);
    assert!(off.summary().starts_with("unfit: fail gpu-xid@3: Xid 79"), "the log still has it");
}

#[test]
fn a_check_in_shadow_is_judged_without_consequences() {
    let toml = "[checks.gpu-nvlink]\naction = \"shadow\"";
    let alone = case("h100-sxm:gpu-nvlink-down@3").settings(toml).judge();
    assert_eq!((alone.fitness, alone.action, alone.deciding), (Fitness::Fit, Action::Report, None));
    assert_eq!(alone.findings, []);
    assert_eq!(alone.shadow[0].subject(), "gpu-nvlink@3");
    let config = crate::GateConfig::default();
    assert!(would_drain(&config, Phase::Prolog, &alone.shadow[0]));
    let both = case("h100-sxm:gpu-nvlink-down@3,gpu-lost@5").settings(toml).judge();
    assert_eq!((both.fitness, both.cause().unwrap().subject()), (Fitness::Unfit, "gpu-lost@5".to_owned()));

    let mut checks = CHECKS.to_vec();
    let broken = checks.iter_mut().find(|check| check.id == "gpu-nvlink").unwrap();
    broken.judge = |_, _, _| panic!("broken");
    let told = with_checks(&case("h100-sxm").settings(toml), &checks);
    assert_eq!(told.findings[0].class, Class::Internal);
}

#[test]
fn a_check_that_an_upgrade_brought_starts_in_shadow() {
    let upgraded = |toml: &str, chosen: &[&str]| {
        let mut case = case("h100-sxm:gpu-nvlink-down@3").remembering().settings(toml);
        case.memory.checks.remove("gpu-nvlink");
        // The code that reads the file fills this in.
        case.config.chosen = chosen.iter().map(|check| (*check).to_owned()).collect();
        case
    };
    let first = upgraded("", &[]);
    assert_eq!(first.summary(), "fit");
    let mut second = upgraded("", &[]);
    second.memory = first.memory.after(&first.now, false);
    assert_eq!(second.summary(), "fit", "the next look remembers that it is new");
    assert!(second.judge().shadow.iter().any(|finding| finding.check == "gpu-nvlink"));
    for decided in [
        upgraded("new_checks = \"act\"", &[]),
        upgraded("[checks.gpu-nvlink]\naction = \"drain\"", &["gpu-nvlink"]),
        case("h100-sxm:gpu-nvlink-down@3").remembering(),
        case("h100-sxm:gpu-nvlink-down@3"),
    ] {
        assert_eq!(decided.judge().cause().unwrap().subject(), "gpu-nvlink@3");
    }
}

#[test]
fn a_transient_finding_drains_on_the_second_strike() {
    let slow = || case("h100-sxm:ib-rate-low@2");
    assert_eq!(slow().fitness(), Fitness::Degraded);
    assert_eq!(slow().again().fitness(), Fitness::Unfit);
    assert_eq!(slow().settings("strikes = 1").fitness(), Fitness::Unfit);
    assert_eq!(slow().settings("strikes = 3").again().fitness(), Fitness::Degraded);
    assert_eq!(slow().settings("strikes = 3").again().again().fitness(), Fitness::Unfit);
    let bent = |bend: fn(&mut Case)| slow().again().with(bend).fitness();
    assert_eq!(bent(|case| case.now.taken -= 45_000), Fitness::Degraded, "two looks at one moment");
    assert_eq!(bent(|case| case.now.taken += 25 * 3_600_000), Fitness::Degraded, "long ago");
    assert_eq!(bent(|case| case.memory.strikes[0].identity = "another cable".to_owned()), Fitness::Degraded);
    assert_eq!(bent(|case| case.memory.strikes[0].subject = "ib-rate@mlx5_3".to_owned()), Fitness::Degraded);
    assert_eq!(case("h100-sxm:gpu-lost@3").fitness(), Fitness::Unfit, "what is lost drains at once");
    let many = (0..400).fold(slow(), |case, _| case.again());
    assert!(many.memory.strikes.len() <= 256);
}

#[test]
fn a_check_run_covers_the_node_only_if_every_gpu_is_judged() {
    let covers = |case: &Case| crate::covers_whole_node(&case.seen());
    assert!(covers(&case("h100-sxm")));
    assert!(covers(&case("h100-sxm").with(|case| case.job = None)));
    assert!(covers(&case("h100-sxm:gpu-missing@3").remembering()), "its missing GPU is judged");
    assert!(!covers(&case("h100-sxm").holding(&[0, 1, 2])));
    assert!(!covers(&case("h100-sxm").holding(&[])));
    assert!(!covers(&case("h100-sxm:nvml-silent")));
    // Seven of eight GPUs; the missing one belonged to another job.
    assert!(!covers(&case("h100-sxm:gpu-missing@7").remembering().holding(&[0, 1, 2, 3, 4, 5, 6])));
    let mig = case("h100-sxm").with(|case| {
        let uuid = |index: usize| case.now.gpus.data().unwrap().gpus[index].uuid.known().cloned().unwrap();
        let ids =
            (0..8).map(|index| railgate_model::GpuId::Uuid(format!("MIG-{}/1/0", uuid(index)))).collect();
        case.job.as_mut().unwrap().allocation = railgate_model::Allocation::Gpus(ids);
    });
    assert!(!covers(&mig), "a slice of each GPU is not the GPU");
}

#[test]
fn each_phase_has_its_own_policy() {
    let toml = "[periodic]\nfail = \"report\"\n[epilog]\nwarn = \"drain\"";
    let periodic = case("h100-sxm:gpu-lost@3").phase(Phase::Periodic).settings(toml);
    assert_eq!(periodic.fitness(), Fitness::Degraded);
    assert_eq!(case("h100-sxm:gpu-lost@3").settings(toml).fitness(), Fitness::Unfit);
    let warned = case("h100-sxm:gpu-remap-pending@3").after_the_job().settings(toml);
    assert_eq!(warned.fitness(), Fitness::Unfit);
}

#[test]
fn unknown_never_drains_even_if_the_policy_sets_it() {
    let toml = "[prolog]\nunknown = \"drain\"\nnote = \"drain\"";
    let silent = case("h100-sxm:nvml-silent,gpu-xid-31").settings(toml).judge();
    assert_eq!((silent.fitness, silent.action), (Fitness::Unknown, Action::Notify));
    let note = case("h100-sxm:gpu-xid-31").settings(toml).judge();
    assert_eq!(note.fitness, Fitness::Fit);
}

#[test]
fn the_verdict_is_deterministic_and_survives_json() {
    let case = case("h100-sxm:gpu-lost@3,ib-port-down@2,gpu-remap-pending@1");
    let verdict = case.judge();
    assert_eq!(verdict, case.judge());
    let text = serde_json::to_string(&verdict).unwrap();
    assert_eq!(serde_json::from_str::<Verdict>(&text).unwrap(), verdict);
}

#[test]
fn a_node_without_any_reading_is_unknown() {
    let case = case("h100-sxm").with(|case| {
        case.now = Snapshot {
            gpus: Part::Skipped,
            fabric: Part::Skipped,
            pci: Part::Skipped,
            kernel_log: Part::Skipped,
            host: Part::Skipped,
            ..case.now.clone()
        };
    });
    assert_eq!(case.fitness(), Fitness::Unknown);
    assert!(case.judge().cause().is_some());
}

fn severities() -> impl Strategy<Value = Severity> {
    prop::sample::select(vec![Severity::Note, Severity::Unknown, Severity::Warn, Severity::Fail])
}

fn actions() -> impl Strategy<Value = Action> {
    prop::sample::select(vec![Action::Off, Action::Report, Action::Notify, Action::Drain])
}

fn classes() -> impl Strategy<Value = Class> {
    prop::sample::select(vec![Class::Node, Class::Fabric, Class::User, Class::Site, Class::Internal])
}

prop_compose! {
    /// A policy in which a higher severity never has a weaker action.
    fn policies()(mut steps in prop::collection::vec(actions(), 4)) -> PhasePolicy {
        steps.sort();
        PhasePolicy { note: steps[0], unknown: steps[1], warn: steps[2], fail: steps[3], ..PhasePolicy::default() }
    }
}

prop_compose! {
    fn findings()(severity in severities(), class in classes(), cap in actions(), rank in 0usize..14)
        -> (Finding, Action, usize) {
        let finding = Finding {
            check: CHECKS[rank].id.to_owned(),
            part: String::new(),
            severity,
            class,
            what: "x".to_owned(),
            fix: String::new(),
            evidence: Vec::new(),
        };
        (finding, cap, rank)
    }
}

fn of_findings(policy: &PhasePolicy, findings: &[(Finding, Action, usize)]) -> Verdict {
    let case = case("h100-sxm");
    let seen = Seen {
        phase: case.phase,
        now: &case.now,
        before: None,
        job: None,
        profile: case.profile.as_ref(),
        memory: &Memory::default(),
    };
    let judged = findings
        .iter()
        .map(|(finding, cap, rank)| Judged {
            action: allowed(policy, *cap, finding),
            rank: *rank,
            finding: finding.clone(),
        })
        .collect();
    verdict(&Scene::new(&case.config, &seen), judged)
}

fn rank(fitness: Fitness) -> u8 {
    match fitness {
        Fitness::Fit => 0,
        Fitness::Degraded => 1,
        Fitness::Unknown => 2,
        Fitness::Unfit => 3,
    }
}

/// Every fault that leaves the parts of the snapshot readable and the GPU indices unchanged.
fn hardware_faults() -> impl Strategy<Value = String> {
    let ids: Vec<String> = FAULTS
        .iter()
        .filter(|fault| matches!(fault.part, FaultPart::Gpu | FaultPart::Hca))
        .filter(|fault| !matches!(fault.id, "gpu-missing" | "ib-missing" | "gpu-nvml-xid"))
        .map(|fault| fault.id.replace("<code>", "95"))
        .collect();
    (prop::sample::select(ids), 0u32..8).prop_map(|(id, index)| format!("{id}@{index}"))
}

/// Faults that make another one of the same GPU milder: the driver contained the errors; a process that exits holds the memory.
const EXPLAINS: [(&str, &str); 2] =
    [("gpu-ecc-contained", "gpu-ecc-uncorrected"), ("gpu-process-exiting", "gpu-memory-held")];

#[test]
fn an_explanation_makes_only_a_fault_of_its_own_gpu_milder() {
    let of = |faults: &str| rank(case(&format!("h100-sxm:{faults}")).fitness());
    for (by, what) in EXPLAINS {
        let alone = of(&format!("{what}@3"));
        assert!(of(&format!("{by}@3,{what}@3")) < alone, "{by}");
        assert!(of(&format!("{by}@5,{what}@3")) >= alone, "{by}");
    }
}

fn held() -> impl Strategy<Value = Vec<u32>> {
    prop::sample::select(vec![vec![0, 1, 2, 3, 4, 5, 6, 7], vec![0, 1, 2, 3], vec![3], vec![2, 5]])
}

/// Which HCAs are nearest to the job's GPUs, as indices of the snapshot: names and slots may change under a fault.
fn places_of_job_hcas(case: &Case) -> Vec<usize> {
    let fabric = case.now.fabric.data().unwrap();
    let near = Scene::new(&case.config, &case.seen()).nearest_hcas(fabric).unwrap_or_default();
    let counts = |hca: &Hca| near.names.contains(&hca.name) || near.unclear.contains(&hca.name);
    fabric.hcas.iter().enumerate().filter(|(_, hca)| counts(hca)).map(|(place, _)| place).collect()
}

/// Collects JSON pointers of every reading that has a value, for example `/gpus/read/data/gpus/3/uuid`.
fn readings(value: &serde_json::Value, at: &str, found: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(fields) => {
            if fields.len() == 1 && fields.contains_key("known") {
                found.push(at.to_owned());
            }
            for (name, inner) in fields {
                readings(inner, &format!("{at}/{name}"), found);
            }
        }
        serde_json::Value::Array(items) => {
            for (index, inner) in items.iter().enumerate() {
                readings(inner, &format!("{at}/{index}"), found);
            }
        }
        _ => {}
    }
}

/// The same snapshot with one failed reading, or with one part that does not answer.
fn without(snapshot: &Snapshot, pick: prop::sample::Index) -> (Snapshot, String) {
    let mut value = serde_json::to_value(snapshot).unwrap();
    let parts = ["/gpus", "/fabric", "/pci", "/kernel_log", "/host"];
    let mut paths: Vec<String> = parts.map(str::to_owned).into();
    readings(&value, "", &mut paths);
    let path = pick.get(&paths).clone();
    let slot = value.pointer_mut(&path).unwrap();
    *slot = if parts.contains(&path.as_str()) {
        serde_json::json!({"silent": {"after_ms": 1000.0}})
    } else {
        serde_json::json!({"failed": "gone"})
    };
    (serde_json::from_value(value).unwrap(), path)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_worse_finding_never_gives_a_milder_action(
        policy in policies(),
        findings in prop::collection::vec(findings(), 1..6),
        pick in any::<prop::sample::Index>(),
        worse in severities(),
    ) {
        let milder = of_findings(&policy, &findings);
        let mut raised = findings;
        let target = pick.index(raised.len());
        raised[target].0.severity = raised[target].0.severity.max(worse);
        let worse = of_findings(&policy, &raised);
        prop_assert!(worse.action >= milder.action);
        prop_assert!(rank(worse.fitness) >= rank(milder.fitness));
    }

    #[test]
    fn one_more_finding_never_gives_a_milder_action(
        policy in policies(),
        findings in prop::collection::vec(findings(), 1..6),
    ) {
        let all = of_findings(&policy, &findings);
        let fewer = of_findings(&policy, &findings[1..]);
        prop_assert!(all.action >= fewer.action);
        prop_assert!(rank(all.fitness) >= rank(fewer.fitness));
    }

    #[test]
    fn the_verdict_agrees_with_its_findings(
        policy in policies(),
        findings in prop::collection::vec(findings(), 0..6),
    ) {
        let verdict = of_findings(&policy, &findings);
        prop_assert_eq!(verdict.fitness == Fitness::Unfit, verdict.action == Action::Drain);
        prop_assert_eq!(verdict.fitness == Fitness::Fit, verdict.cause().is_none());
        let drains = verdict.findings.iter().any(|finding| {
            matches!(finding.class, Class::Node | Class::Fabric)
                && matches!(finding.severity, Severity::Warn | Severity::Fail)
        });
        prop_assert!(verdict.fitness != Fitness::Unfit || drains);
        prop_assert_eq!(verdict.findings.len(), findings.len());
    }
}

proptest! {
    // Each case builds whole nodes, and some of them convert nodes to JSON and back.
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn one_more_fault_never_gives_a_milder_verdict(
        faults in prop::collection::vec(hardware_faults(), 1..5),
        gpus in held(),
    ) {
        // These remove readings: a GPU that does not respond, and MIG, which hides the owners of processes.
        let hides = ["gpu-unreadable", "gpu-mig-on"];
        prop_assume!(!hides.iter().any(|fault| faults[0].starts_with(fault)));
        let (first, gpu) = faults[0].split_once('@').unwrap();
        let explained = EXPLAINS.iter().find(|(by, _)| *by == first).map(|(_, what)| format!("{what}@{gpu}"));
        prop_assume!(!explained.is_some_and(|explained| faults[1..].contains(&explained)));
        let node = |faults: &[String]| case(&format!("h100-sxm:{}", faults.join(",")));
        let (all, fewer) = (node(&faults), node(&faults[1..]));
        let worse = |all: &Case, fewer: &Case| rank(all.fitness()) >= rank(fewer.fitness());
        prop_assert!(worse(&all, &fewer), "{:?} {:?}", all.judge(), fewer.judge());
        // An HCA in another slot is another job's: a job with some of the GPUs is compared only while it has the same HCAs.
        let (all, fewer) = (all.holding(&gpus), fewer.holding(&gpus));
        prop_assert!(
            worse(&all, &fewer) || places_of_job_hcas(&all) != places_of_job_hcas(&fewer),
            "{:?} {:?}", all.judge(), fewer.judge()
        );
    }

    #[test]
    fn a_failed_reading_never_makes_an_unfit_node_fit(
        faults in prop::collection::vec(hardware_faults(), 1..4),
        gpus in held(),
        epilog in any::<bool>(),
        remembering in any::<bool>(),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 1..4),
    ) {
        let mut case = case(&format!("h100-sxm:{}", faults.join(","))).holding(&gpus);
        if epilog {
            case = case.after_the_job();
        }
        if remembering {
            case = case.remembering();
        }
        prop_assume!(case.fitness() == Fitness::Unfit);
        let mut gone = Vec::new();
        for pick in picks {
            let (now, path) = without(&case.now, pick);
            case.now = now;
            gone.push(path);
        }
        prop_assert!(case.fitness() != Fitness::Fit, "{:?} {:?}", gone, faults);
    }

    #[test]
    fn the_gate_never_panics(
        faults in prop::collection::vec(hardware_faults(), 0..6),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        gpus in prop::collection::vec(0u32..20, 0..10),
        lines in prop::collection::vec("NVRM: (Xid \\(PCI:0000:[0-9a-f]{2}:00\\): [0-9]{1,6}, )?\\PC{0,30}", 0..4),
    ) {
        let mut case = case(&format!("h100-sxm:{}", faults.join(","))).holding(&gpus);
        for line in lines {
            case = case.kernel(&line);
        }
        for pick in picks {
            case.now = without(&case.now, pick).0;
        }
        let verdict = case.judge();
        prop_assert!(verdict.findings.iter().all(|finding| finding.class != Class::Internal
            || matches!(finding.check.as_str(), "part-silent" | "gpu-count" | "mounts")), "{:?}", verdict);
    }

    #[test]
    fn a_fault_of_another_jobs_gpu_never_stops_this_job(
        faults in prop::collection::vec((hardware_faults(), 4u32..8), 1..5),
    ) {
        let faults: Vec<String> = faults
            .iter()
            .map(|(fault, index)| format!("{}@{index}", fault.split('@').next().unwrap_or_default()))
            .collect();
        let case = case(&format!("h100-sxm:{}", faults.join(","))).holding(&[0, 1, 2, 3]);
        prop_assert!(case.fitness() != Fitness::Unfit, "{:?}", case.findings());
        prop_assert!(case.of("gpu-processes").is_empty());
    }
}

#[test]
fn every_simulated_fault_is_found_or_known_to_be_harmless() {
    let harmless = [
        // Before a job, these need a time window or a setting of the site, or they are notes.
        "cloud-reboot",
        "cloud-freeze",
        "cloud-silent",
        "driver-other",
        "fabric-manager-other",
        "gpu-ecc-corrected",
        "gpu-ecc-mode-pending",
        "gpu-mig-on",
        "gpu-nvlink-errors",
        "gpu-nvlink5-nonfatal",
        "gpu-pcie-replays",
        "gpu-persistence-off",
        "gpu-process-exiting",
        "gpu-throttled",
        "gpu-vbios-other",
        "nvswitch-nonfatal",
        "ib-link-flapping",
        "ib-renamed",
        "ib-symbol-errors",
        "nvml-slow",
        "ib-swapped",
        "optic-copper",
        "optic-hot",
        "optic-dark",
        "optic-dim",
        "optic-uneven",
        "optic-ageing",
        "optic-unreadable",
        "ib-pkey-limited",
        "ib-interface-down",
        "ib-far",
        "ib-receive-errors",
        "ib-recoveries",
        "ib-integrity",
        "ib-link-dropped",
        "ib-out-of-sequence",
        "ib-timeouts",
        "ib-discards",
        "roce-ecn",
        "roce-discards",
        "roce-out-of-buffer",
        "roce-paused",
        "roce-pausing",
        "roce-pause-storm",
        "ib-corrected-rising",
        "roce-gid-missing",
        "roce-gid-v1",
        "roce-gid-subnet",
        "roce-mtu-low",
        "rdma-self-test-missing",
        "gpu-self-test-missing",
        "nvme-missing",
        "nvme-worn",
        "memory-missing",
        "dimm-missing",
        "cpu-offline",
        "cpu-governor",
        "process-blocked",
        "service-down",
        "services-unreadable",
        "clock-unsynchronised",
        "module-missing",
        "boot-arg-missing",
        "memlock-low",
        "pcie-corrected",
        "memory-corrected",
        "site-not-executable",
    ];
    let mut wrong = Vec::new();
    for fault in FAULTS.iter().filter(|fault| fault.part != FaultPart::Mount) {
        let id = fault.id.replace("<code>", "48");
        let told = case(&format!("h100-sxm:{id}")).fitness() != Fitness::Fit;
        if told == harmless.contains(&fault.id) {
            wrong.push(id);
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert!(railgate_simulate::FAULTS.len() >= harmless.len());
}
