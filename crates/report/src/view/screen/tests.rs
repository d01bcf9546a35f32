use crate::testing::{large, merged};
use crate::{brief, text};

/// Compares the screen of a job of 64 nodes with `view/screen64.txt`.
#[test]
fn job_of_64_nodes_fits_one_screen() {
    let report = large(64);
    let said = text(&report, false);
    let want = include_str!("../screen64.txt");
    assert!(*said == *want, "view/screen64.txt: it is now\n{said}");
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines.len() <= 40, "{} lines", lines.len());
    assert!(lines.iter().all(|line| line.chars().count() <= 106), "too wide");
    assert!(lines[2].starts_with("VERDICT "), "{}", lines[2]);
    assert!(text(&report, true).lines().count() > 3 * lines.len());
    let few = brief(&report);
    assert!(few.starts_with(lines[0]) && few.lines().count() <= 6, "{few}");
    let names: Vec<&str> = few.lines().skip(1).filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(names.into_iter().filter(|name| !name.is_empty()).collect::<Vec<_>>(), ["VERDICT", "DO"]);
}

/// Shares, utilisation and figures of the first line are of the training, and the phases stand apart.
#[test]
fn figures_of_a_job_with_phases_are_of_its_training() {
    use railgate_node_report::phases::{Phase, PhaseKind, Phases, Training, TrainingGpu, TrainingHost};
    let mut node = railgate_diagnosis::simulator::healthy().swap_remove(0);
    node.application = None;
    let usage = node.usage.as_mut().unwrap();
    let start = usage.coverage.start;
    let end = |seconds: u64| start + 1000 * seconds;
    let list = [(PhaseKind::StartUp, 0, 28), (PhaseKind::Steady, 28, 45), (PhaseKind::Tail, 45, 49)];
    let list =
        list.map(|(kind, from, to)| Phase { kind, start: end(from), end: end(to), start_number: 0 }).to_vec();
    let reading = |mean: f64| railgate_model::Reading::Known(mean);
    let host = TrainingHost {
        cpu_cores: reading(4.0),
        cpu_pressure_percent: reading(0.0),
        memory_pressure_percent: reading(0.0),
        io_pressure_percent: reading(0.0),
    };
    let gpu = |gpu: &railgate_node_report::usage::GpuUsage| TrainingGpu {
        // What a GPU of the simulator lacks (pauses, the processes' CPU time) stays unknown.
        counters: gpu.counters.clone().map(|all| all.map(|_| 77.0)),
        busy_clock_mhz: reading(1755.0),
        tensor_fraction: reading(0.243),
    };
    let gpus = usage.gpus.iter().map(gpu).collect();
    usage.phases =
        Some(Phases { list, training: Some(Training { seconds: 15.0, gpus, host }), ..Phases::default() });
    let mut again = node.clone();
    let said = text(&merged(vec![node], vec![], None), false);
    // The launcher started the step again after 45 s.
    for phase in again.usage.as_mut().unwrap().phases.iter_mut().flat_map(|phases| &mut phases.list).skip(2) {
        phase.start_number = 1;
    }
    let first = railgate_node_report::StepStart { start_number: 1, first: end(45) };
    again.tasks = Some(railgate_node_report::Tasks { starts: vec![first], ..Default::default() });
    let twice = text(&merged(vec![again], vec![], None), false);
    let phases =
        "\nPHASES   start 0: start-up 28 s, training 17 s; start 1: after the last work 4 s; in all 49 s\n";
    assert!(twice.contains(phases) && twice.contains(" 1 attempt with 2 starts, ran "), "{twice}");
    assert!(
        said.contains("\nPHASES   start-up 28 s, training 17 s, after the last work 4 s; in all 49 s\n"),
        "{said}"
    );
    assert!(!said.contains(" starts") && !said.contains("start 0"), "a single start has no number: {said}");
    assert!(said.contains("\nHW       24.3 % HFU while training ("), "{said}");
    assert!(said.contains("; 40.2 % of all time), GPU"), "{said}");
    assert!(said.contains("[of the training, confidence"), "{said}");
}

/// One of the GPUs saves while the others wait for it.
#[test]
fn gpus_that_differ_from_the_others_are_named() {
    use railgate_node_report::phases::{Phase, PhaseKind, Phases};
    let mut node = railgate_diagnosis::simulator::healthy().swap_remove(0);
    let usage = node.usage.as_mut().unwrap();
    let start = usage.coverage.start;
    let phase = |kind, from: u64, to: u64| Phase {
        kind,
        start: start + 1000 * from,
        end: start + 1000 * to,
        start_number: 0,
    };
    let list = vec![phase(PhaseKind::Steady, 0, 40), phase(PhaseKind::Saving, 40, 49)];
    let own = |kind| [(PhaseKind::Steady, 40.0), (kind, 9.0)].into();
    let gpus = [PhaseKind::Saving, PhaseKind::Stalled, PhaseKind::Stalled, PhaseKind::Stalled].map(own);
    usage.phases = Some(Phases { list, gpus: gpus.to_vec(), training: None });
    let mut nodes = vec![node.clone()];
    let said =
        text(&merged(nodes.clone(), vec![], None), false).split_whitespace().collect::<Vec<_>>().join(" ");
    let row = "PHASES training 40 s, saving 9 s; in all 49 s (GPU 0 saving 9 s, 3 GPUs stalled 9 s)";
    assert!(said.contains(row), "{said}");
    // With several nodes they are named, at most two.
    for name in ["n1", "n2"] {
        nodes.push(railgate_node_report::NodeReport { node: name.to_owned(), ..node.clone() });
    }
    let said = text(&merged(nodes, vec![], None), false).split_whitespace().collect::<Vec<_>>().join(" ");
    let row =
        "(n0 GPU 0 saving 9 s, 3 GPUs stalled 9 s; n1 GPU 0 saving 9 s, 3 GPUs stalled 9 s; 1 node more)";
    assert!(said.contains(row), "{said}");
}

/// A job that the gate refused, that then lost a GPU and then completed; `story` in other tests.
#[test]
fn each_attempt_has_reason_and_decision() {
    let mut report = crate::testing::story();
    let lines = |report: &crate::JobReport| -> Vec<String> {
        super::why::rows(report).iter().map(super::Row::text).collect()
    };
    let all = lines(&report);
    assert_eq!(all.len(), 3, "{all:#?}");
    for (line, parts) in all.iter().zip([
        ["attempt 0: REFUSED BY THE GATE", "n2 gpu-lost@3: ", "; n2 drained"],
        ["attempt 1: 1 h 00 min HARDWARE FAULT, exit code 1; n1 ", " at 09:01:30Z; ", "requeued by railgate"],
        ["attempt 2: 1 h 00 min COMPLETED", ", exit code 0", ""],
    ]) {
        assert!(parts.iter().all(|part| line.contains(part)), "{line}");
    }
    // A figure that was not reported is in no line.
    assert!(!all[2].contains("again") && !all[0].contains("restart "), "{all:#?}");
    let last = report.attempts[2].clone();
    report.attempts.extend([last.clone(), last.clone(), last]);
    let many = lines(&report);
    assert_eq!((many.len(), many[2].as_str()), (5, "… 2 attempts between them"));
    assert!(many[4].starts_with("attempt "), "{many:#?}");
}

#[test]
fn verdict_counts_faults_and_refusals_apart() {
    use railgate_diagnosis::PhaseTime;
    use railgate_node_report::phases::PhaseKind;

    let mut report = crate::testing::story();
    let mut analysis = super::telling(&large(2)).unwrap().1.clone();
    let any = analysis.diagnoses.remove(0);
    analysis.diagnoses.clear();
    let verdict = |report: &crate::JobReport| super::verdict(report, &analysis);
    let whole = verdict(&report);
    assert!(
        whole.starts_with("completed; 1 attempt lost to hardware; 1 attempt refused by the gate. "),
        "{whole}"
    );
    assert!(whole.ends_with("; no performance problem found"), "{whole}");
    let found = |rule: &str, costs, what: &str| railgate_diagnosis::Diagnosis {
        rule: rule.to_owned(),
        costs: Some(costs),
        what: what.to_owned(),
        ..any.clone()
    };
    let mut idle = analysis.clone();
    idle.diagnoses = vec![
        found("saving", 0.35, "it saves"),
        found("idle-gpus", 0.125, "GPU 3 was never used: 0.20 GPU-hours unused"),
    ];
    let both = super::verdict(&report, &idle);
    assert!(
        both.ends_with(
            ". Main finding, about 35.0 % of its GPU time: it saves (railgate explain saving). Idle GPUs, about 12.5 % of its GPU time: \
             GPU 3 was never used: 0.20 GPU-hours unused (railgate explain idle-gpus)"
        ),
        "{both}"
    );
    let mut blind = analysis.clone();
    blind.shares = railgate_model::Reading::Failed("no counters".to_owned());
    let blind = super::verdict(&report, &blind);
    assert!(blind.ends_with("; no finding; some rules had no data"), "{blind}");
    let mut short = analysis.clone();
    short.too_short_s = Some(10.0);
    for (seconds, says) in [
        (&[9.6][..], "; its speed is not judged: it trained for 9 s, and at least 10 s are needed"),
        (&[], "; its speed is not judged: no training was seen"),
    ] {
        let trained = |&seconds: &f64| PhaseTime { kind: PhaseKind::Steady, start_number: 0, seconds };
        short.phases = seconds.iter().map(trained).collect();
        let said = super::verdict(&report, &short);
        assert!(said.ends_with(says), "{said}");
    }
    let in_turns = railgate_diagnosis::Analysis { in_turns: true, ..analysis.clone() };
    let said = super::verdict(&report, &in_turns);
    assert!(
        said.ends_with(
            "; its speed is not judged: its programs trained at different times, or for too short a time each"
        ),
        "{said}"
    );
    // The last attempt's own end is the title and is not counted again.
    report.attempts.truncate(2);
    report.ended = report.attempts[1].ended.clone();
    let failed = verdict(&report);
    assert!(failed.starts_with("hardware fault during the run; 1 attempt refused by the gate. "), "{failed}");
    assert!(!failed.contains("no performance problem"), "{failed}");
    report.attempts.truncate(1);
    report.ended = report.attempts[0].ended.clone();
    assert!(verdict(&report).starts_with("refused by the gate. "), "{}", verdict(&report));
}

#[test]
fn queue_time_is_shown_for_the_first_attempt_only() {
    let mut report = large(2);
    report.attempts.truncate(1);
    let slurm = report.slurm.as_mut().unwrap();
    (slurm.restarts, slurm.submitted) = (Some(0), report.attempts[0].start.map(|start| start - 2_460_000));
    assert!(super::ran(&report).text().ends_with(", queued 41 min 00 s"), "{:?}", super::ran(&report));
    report.slurm.as_mut().unwrap().restarts = Some(1);
    assert!(!super::ran(&report).text().contains("queued"));
}

#[test]
fn possible_nccl_time_is_unknown_in_every_format() {
    let mut report = large(2);
    let last = report.attempts.last_mut().and_then(|attempt| attempt.analysis.as_mut()).unwrap();
    let railgate_model::Reading::Known(shares) = &mut last.shares else { unreachable!() };
    assert_eq!(shares.unknown, 0.0);
    shares.unknown = 31.25;
    let said = " | unknown 31.2 (comm, launch or compute) | ";
    let page = text(&report, false).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(page.contains(said) && crate::html(&report).contains(said));
    let mut json = Vec::new();
    crate::json(&report, &mut json).unwrap();
    assert!(String::from_utf8(json).unwrap().contains("\"unknown\": 31.25"));
}

#[test]
fn the_source_of_the_calibration_is_shown() {
    use std::collections::BTreeMap;
    let railgate_model::Reading::Known(mut hardware) =
        large(1).attempts.last().unwrap().analysis.clone().unwrap().hardware
    else {
        unreachable!()
    };
    let mut said = |counts: &[(&str, u32)]| {
        hardware.calibrations = counts.iter().map(|(from, count)| ((*from).to_owned(), *count)).collect();
        hardware.calibrated = !hardware.calibrations.contains_key("none");
        super::calibration(&hardware)
    };
    assert_eq!(said(&[("card", 8)]), "calibrated per card");
    assert_eq!(said(&[("card", 7), ("built-in", 1)]), "calibrated per card (7 of 8 GPUs), else built in");
    assert_eq!(said(&[("built-in", 6), ("none", 2)]), "calibration built in (6 of 8 GPUs), else not");
    assert_eq!(
        said(&[("card", 1), ("site", 1), ("built-in", 2)]),
        "calibrated per card (1 of 4 GPUs), else by the site or built in"
    );
    assert_eq!(said(&[("none", 8)]), "not calibrated");
    // Reports of earlier releases, and words that others wrote.
    assert_eq!(said(&[]), "calibrated");
    assert_eq!(said(&[("\u{1b}[31m", 8)]), "calibrated");
    let mut analysis = serde_json::to_value(&hardware).unwrap();
    analysis.as_object_mut().unwrap().remove("calibrations");
    let old: super::HardwareUse = serde_json::from_value(analysis).unwrap();
    assert_eq!(old.calibrations, BTreeMap::new());
}

/// Time between a fault and the last progress, from steps or collectives counted until then.
#[test]
fn fault_is_shown_with_the_last_step() {
    use railgate_node_report::application::{Application, RankApplication};
    use railgate_node_report::comm::{Communication, Communicator, LastOp};
    let fault = |report: &crate::JobReport| report.attempts[1].ended.proof[0].time.unwrap();
    let line = |report: &crate::JobReport| super::why::rows(report)[1].text();
    let mut report = crate::testing::story();
    let at = fault(&report);
    assert!(line(&report).contains(" at 09:01:30Z; "), "{}", line(&report));
    let stepped = |last| {
        let rank = |last_step| RankApplication { last_step, ..RankApplication::default() };
        Some(Application {
            ranks: vec![rank(None), rank(Some(last - 700)), rank(Some(last))],
            problems: vec![],
        })
    };
    let node = &mut report.attempts[1].nodes[0];
    let last = Some(LastOp { time: at - 1_500, ..LastOp::default() });
    let communicators = vec![Communicator { last, ..Communicator::default() }];
    node.communication = Some(Communication { communicators, ..Communication::default() });
    assert!(
        line(&report).contains(" at 09:01:30Z, 1.5 s after the last collective was launched; "),
        "{}",
        line(&report)
    );
    for (last, said) in
        [(at - 2_000, "Z, 2.0 s after the last step; "), (at + 90_000, "Z, steps continued for 1 min 30 s; ")]
    {
        report.attempts[1].nodes[0].application = stepped(last);
        assert!(line(&report).contains(said), "{}", line(&report));
    }
    // A partial report is older than the end of the job.
    report.attempts[1].nodes[0].as_of = Some(at - 60_000);
    assert!(line(&report).contains(" at 09:01:30Z; "), "{}", line(&report));
}

#[test]
fn gpudirect_is_off_only_if_there_is_evidence() {
    use railgate_model::{Class, Severity};
    use railgate_node_report::testing::finding;
    use railgate_node_report::{Applied, AppliedBy};
    let mut report = large(4);
    let line = |report: &crate::JobReport| super::network::nccl(report.attempts.last().unwrap()).unwrap();
    // Without evidence it is not reported as enabled either.
    assert!(!line(&report).contains("GPUDirect"));
    let no_way = finding("gpu-direct", "", Severity::Warn, Class::Site, "no nvidia_peermem");
    for (place, told) in [(1, "gn0002"), (2, "2 of 3 nodes")] {
        let Some(attempt) = report.attempts.last_mut() else { unreachable!() };
        let look = attempt.nodes[place].prolog.as_mut().unwrap();
        look.verdict.findings.push(no_way.clone());
        assert!(line(&report).contains(&format!("no GPUDirect on {told}")), "{}", line(&report));
    }
    let mut report = large(4);
    for (value, off) in [("PIX", false), ("LOC", true), ("0", true)] {
        report.attempts.last_mut().unwrap().nodes[0].applied = vec![Applied {
            name: "NCCL_NET_GDR_LEVEL".to_owned(),
            wanted: None,
            value: Some(value.to_owned()),
            by: AppliedBy::User,
            processes: 8,
            steps: vec![],
        }];
        let said = format!("GPUDirect off (NCCL_NET_GDR_LEVEL={value} by user)");
        assert_eq!(line(&report).contains(&said), off, "{}", line(&report));
    }
}

#[test]
fn port_is_shown_with_its_leaf_from_the_cable_table() {
    let mut report = large(16);
    let rails = |report: &crate::JobReport| {
        super::rows(report).into_iter().find(|row| row.name == "RAILS").unwrap().text()
    };
    assert!(!rails(&report).contains("leaf"), "{}", rails(&report));
    let of = |port: &str, leaf: &str| (port.to_owned(), leaf.to_owned());
    let ports = [of("mlx5_2:1", "leaf-b2"), of("mlx5_3:1", "leaf-b3")];
    report.leafs.insert("gn0007".to_owned(), ports.into());
    // An entry for another port, and one without a name.
    report.leafs.insert("gn0012".to_owned(), [of("mlx5_5:1", "leaf-a6"), of("mlx5_6:1", "")].into());
    for part in ["gn0007 r2 (leaf-b2) xmit_wait 3.1x median", "gn0012 r6 link_downed +1"] {
        assert!(rails(&report).contains(part), "{}", rails(&report));
    }
    let covered = crate::redacted(&report);
    assert!(covered.contains("xmit_wait 3.1x") && !covered.contains("leaf-b"), "{covered}");
}
