use std::collections::BTreeMap;

use railgate_model::{Fitness, GpuProcess, RecordedRate};

use super::rates::median;
use super::*;
use crate::testing::{Case, case, job};
use crate::{GateConfig, Memory, Seen, follow_ups};

/// A node on which each GPU has passed.
fn passed() -> Case {
    with(|_| {})
}

/// The same with other results.
fn with(bend: impl FnOnce(&mut Results)) -> Case {
    case("h100-sxm").with(|case| {
        let mut results = healthy(&addresses(case));
        bend(&mut results);
        case.now.extras.gpu_self_test = Some(Part::Read { data: results, took_ms: 9_000.0 });
    })
}

fn addresses(case: &Case) -> Vec<PciAddress> {
    let gpus = &case.now.gpus.data().unwrap().gpus;
    gpus.iter().map(|gpu| *gpu.pci.known().unwrap()).collect()
}

fn healthy(gpus: &[PciAddress]) -> Results {
    let right = || ValueCheck::Right { compared: 1000, digest: None };
    let copies = &[("host_to_device_gb_s", 55.0), ("device_to_host_gb_s", 55.0)];
    let each = gpus.iter().flat_map(|gpu| {
        [
            line(*gpu, "gemm-bf16", right(), &[]),
            line(*gpu, "gemm-fp16", right(), &[]),
            line(*gpu, "memory-bandwidth", ValueCheck::None, &[("copy_gb_s", 2830.0)]),
            line(*gpu, "memory-pattern", right(), &[("read_gb_s", 3060.0), ("write_gb_s", 3180.0)]),
            line(*gpu, GpuSelfTested::LAST, right(), copies),
            line(*gpu, "host-copy-alone", right(), copies),
        ]
    });
    Results { asked: gpus.to_vec(), tests: each.collect(), incomplete: None }
}

fn line(gpu: PciAddress, test: &str, values: ValueCheck, figures: &[(&str, f64)]) -> GpuSelfTested {
    GpuSelfTested {
        gpu,
        uuid: None,
        to: None,
        model: "NVIDIA H100 80GB HBM3".to_owned(),
        test: test.to_owned(),
        seconds: 0.5,
        values,
        measured: figures
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect::<BTreeMap<_, _>>(),
        unknown: None,
        not_applicable: None,
    }
}

fn wrong(place: &str) -> ValueCheck {
    let first =
        WrongValue { place: place.to_owned(), got: "43f60000".to_owned(), want: "43b60000".to_owned() };
    ValueCheck::Wrong { compared: 1000, wrong: 3, first: vec![first] }
}

/// The result of a test of the GPU with this index.
fn of<'a>(results: &'a mut Results, index: usize, test: &str) -> &'a mut GpuSelfTested {
    let gpu = results.asked[index];
    results.tests.iter_mut().find(|line| line.gpu == gpu && line.test == test).unwrap()
}

/// All findings of the check that are more than a note.
fn told(case: &Case) -> Vec<String> {
    let findings = case.judge().findings;
    let ours = |finding: &&railgate_model::Finding| {
        finding.check == "gpu-self-test" && finding.severity > Severity::Note
    };
    findings.iter().filter(ours).map(crate::testing::line).collect()
}

#[test]
fn gpus_that_passed_are_noted_with_their_rates() {
    assert_eq!((passed().summary().as_str(), passed().of("gpu-self-test").len()), ("fit", 8));
    let findings = passed().judge().findings;
    let note = findings.iter().find(|finding| finding.check == "gpu-self-test").unwrap();
    assert_eq!(
        (note.severity, note.what.as_str()),
        (Severity::Note, "0000:1b:00.0: 6 tests, all values right")
    );
    assert_eq!(note.evidence[0].what, "gpu 0 memory copy");
    assert_eq!(note.evidence[0].got, "2830.0 GB/s");
    assert_eq!(case("h100-sxm").of("gpu-self-test"), [], "not requested");
}

#[test]
fn a_wrong_value_drains_and_names_gpu_test_and_place() {
    let one = with(|results| of(results, 3, "gemm-bf16").values = wrong("tile 3,1, row 402, column 190"));
    assert_eq!(
        one.summary(),
        "unfit: fail gpu-self-test@3: 0000:61:00.0: 3 of 1000 values of gemm-bf16 wrong; test again, then RMA"
    );
    let finding = one.judge().findings[0].clone();
    assert_eq!(finding.class, Class::Node);
    assert_eq!(finding.evidence[0].got, "43f60000 at tile 3,1, row 402, column 190");
    assert_eq!(finding.evidence[0].want, "43b60000");
    let gentle = with(|results| of(results, 3, "gemm-bf16").values = wrong("x"))
        .settings("[checks.gpu-self-test]\nseverity = \"warn\"");
    assert_eq!(gentle.fitness(), Fitness::Degraded);
}

#[test]
fn a_gpu_of_another_job_does_not_drain() {
    let one = with(|results| of(results, 3, "gemm-bf16").values = wrong("tile 0,0")).holding(&[0, 1]);
    assert_eq!(one.fitness(), Fitness::Degraded);
    assert!(told(&one)[0].contains("(not this job's)"), "{:?}", told(&one));
}

#[test]
fn a_wrong_copy_names_both_gpus() {
    let copy = with(|results| {
        let mut copy = line(results.asked[3], "peer-copy", wrong("byte 0x18"), &[]);
        copy.to = Some(results.asked[5]);
        results.tests.push(copy);
    });
    assert_eq!(
        copy.summary(),
        "unfit: fail gpu-self-test@3: 0000:61:00.0: 3 of 1000 values of peer-copy to gpu 5 wrong; \
         test again, then RMA"
    );
}

#[test]
fn the_same_wrong_values_on_all_gpus_do_not_drain() {
    let on = |gpus: std::ops::Range<usize>, place: fn(usize) -> String| {
        with(|results| {
            for index in gpus {
                of(results, index, "gemm-bf16").values = wrong(&place(index));
            }
        })
    };
    let alike = on(0..8, |_| "tile 0,0".to_owned());
    assert_eq!(
        told(&alike),
        ["warn gpu-self-test: the same wrong values of gemm-bf16 on all 8 GPUs; check driver"]
    );
    assert_eq!(alike.fitness(), Fitness::Degraded);
    assert_eq!(on(0..7, |_| "tile 0,0".to_owned()).fitness(), Fitness::Unfit, "one GPU is right");
    assert_eq!(on(0..8, |index| format!("tile {index},0")).fitness(), Fitness::Unfit, "they differ");
}

#[test]
fn results_before_a_hang_count_and_the_rest_is_unknown() {
    let hang = with(|results| {
        let (slow, bad) = (results.asked[2], results.asked[6]);
        let hung = |line: &GpuSelfTested| (line.gpu == slow || line.gpu == bad) && line.test != "gemm-bf16";
        results.tests.retain(|line| !hung(line));
        of(results, 6, "gemm-bf16").values = wrong("tile 0,0");
        results.incomplete = Some("no answer in 22000 ms".to_owned());
    });
    let bad = "0000:d1:00.0";
    let expected = [
        format!("fail gpu-self-test@6: {bad}: 3 of 1000 values of gemm-bf16 wrong; test again, then RMA"),
        "unknown gpu-self-test@2: 0000:52:00.0: no result after gemm-bf16: no answer in 22000 ms; run it by hand"
            .to_owned(),
        format!("unknown gpu-self-test@6: {bad}: no result after gemm-bf16: no answer in 22000 ms; run it by hand"),
    ];
    assert_eq!(told(&hang), expected);
    let nothing = with(|results| {
        results.tests.clear();
        results.incomplete = Some("exit code 3: error: cuInit: no CUDA-capable device".to_owned());
    });
    assert_eq!(told(&nothing).len(), 8);
    assert_eq!(nothing.fitness(), Fitness::Degraded);
    let none = with(|results| results.tests.clear());
    assert!(told(&none)[0].contains("no result: the program ended without one"), "{:?}", told(&none));
}

#[test]
fn the_copies_between_gpus_may_be_what_is_missing() {
    let cut = with(|results| results.incomplete = Some("no answer in 22000 ms".to_owned()));
    assert_eq!(
        told(&cut),
        ["unknown gpu-self-test: results may be missing: no answer in 22000 ms; run it by hand"]
    );
}

#[test]
fn a_test_without_a_result_is_unknown_and_one_that_does_not_apply_is_not() {
    let open = with(|results| {
        of(results, 1, "gemm-bf16").unknown = Some("cuMemAlloc: out of memory".to_owned());
        of(results, 1, "gemm-fp16").unknown = Some("cuMemAlloc: out of memory".to_owned());
    });
    assert_eq!(
        told(&open),
        [
            "unknown gpu-self-test@1: 0000:43:00.0: no result of gemm-bf16 (and 1 more): cuMemAlloc: out of memory; run it by hand"
        ]
    );
    let old = with(|results| {
        of(results, 1, "gemm-bf16").not_applicable = Some("this card does not have the type".to_owned());
    });
    assert_eq!((told(&old), old.summary().as_str()), (vec![], "fit"));
}

#[test]
fn a_missing_test_program_is_unknown_and_the_node_stays_fit() {
    let missing = case("h100-sxm").with(|case| {
        let why = "cannot be started: No such file or directory".to_owned();
        case.now.extras.gpu_self_test = Some(Part::Failed { why, took_ms: 1.0 });
    });
    assert_eq!((missing.summary().as_str(), missing.of("gpu-self-test")), ("fit", vec![Severity::Unknown]));
}

#[test]
fn contradictory_results_do_not_drain() {
    let values = |wrong, compared| {
        with(|results| {
            of(results, 3, "gemm-bf16").values = ValueCheck::Wrong { compared, wrong, first: Vec::new() };
        })
    };
    assert_eq!(values(0, 1000).summary(), "fit", "{:?}", told(&values(0, 1000)));
    assert_eq!(values(5, 4).summary(), "fit");
    assert_eq!(told(&values(5, 4)).len(), 1);
    assert_eq!(values(4, 4).fitness(), Fitness::Unfit);
    let stranger = with(|results| {
        let gpu = "0000:99:00.0".parse().unwrap();
        results.tests.push(line(gpu, "gemm-bf16", wrong("tile 0,0"), &[]));
    });
    assert_eq!(stranger.summary(), "fit");
    assert_eq!(
        told(&stranger),
        ["unknown gpu-self-test: result of 0000:99:00.0, which was not to be tested; check program"]
    );
}

#[test]
fn texts_of_the_program_are_printable_and_short() {
    let hostile = with(|results| {
        let test = of(results, 3, "gemm-bf16");
        test.test = "\u{1b}[2Jgemm\nfail gpu-lost@1".to_owned();
        test.values = wrong(&"\u{202e}x".repeat(5_000));
    });
    let finding = hostile.judge().findings[0].clone();
    for text in [&finding.what, &finding.evidence[0].got, &finding.evidence[0].what] {
        assert!(text.chars().count() <= 240 && !text.contains(['\u{1b}', '\n', '\u{202e}']), "{text:?}");
    }
}

#[test]
fn a_rate_is_judged_by_the_median_of_the_node() {
    let slow = |name: &'static str, test: &'static str, rate: f64| {
        with(move |results| {
            of(results, 5, test).measured.insert(name.to_owned(), rate);
        })
    };
    assert_eq!(
        slow("read_gb_s", "memory-pattern", 2_448.0).summary(),
        "degraded: warn gpu-self-test@5: 0000:c3:00.0: memory read 2448.0 GB/s, 20 % below the median of 8 GPUs; \
         test again"
    );
    assert_eq!(slow("read_gb_s", "memory-pattern", 2_760.0).summary(), "fit");
    assert!(slow("device_to_host_gb_s", "host-copy-alone", 27.0).summary().ends_with("; check slot, NVLink"));
    assert_eq!(slow("host_to_device_gb_s", "host-copy-alone", 27.0).summary(), "fit", "it varies by itself");
    let product = |rate| {
        with(move |results| {
            for index in 0..8 {
                let rate = if index == 5 { rate } else { 690.0 };
                let figures = [("rate_tflops", rate), ("power_w", 700.0)];
                results.tests.push(line(results.asked[index], "gemm-rate-bf16", ValueCheck::None, &figures));
            }
        })
    };
    assert_eq!(
        product(600.0).summary(),
        "degraded: warn gpu-self-test@5: 0000:c3:00.0: bf16 products 600.0 TFLOP/s, 13 % below the median of 8 GPUs; \
         check cooling, power"
    );
    assert_eq!(product(650.0).summary(), "fit");
    let off = slow("read_gb_s", "memory-pattern", 100.0)
        .settings("[checks.gpu-self-test]\nbelow_median_percent = 0.0");
    assert_eq!(off.summary(), "fit");
    for rate in [0.0, -5.0] {
        assert_eq!(slow("read_gb_s", "memory-pattern", rate).summary(), "fit", "{rate} is not a rate");
    }
}

#[test]
fn two_gpus_have_no_median() {
    let two = with(|results| {
        results.asked.truncate(2);
        let asked = results.asked.clone();
        results.tests.retain(|line| asked.contains(&line.gpu));
        of(results, 1, "memory-pattern").measured.insert("read_gb_s".to_owned(), 500.0);
    });
    let rates = told(&two).into_iter().filter(|line| line.contains("GB/s"));
    assert_eq!(rates.count(), 0);
    assert_eq!(median(vec![3.0, 1.0]), Some(2.0));
    assert_eq!(median(vec![3.0, 1.0, 7.0]), Some(3.0));
    assert_eq!(median(Vec::new()), None);
}

#[test]
fn a_floor_of_the_site_is_judged_also_alone() {
    let settings = "[checks.gpu-self-test]\nmin_host_to_device_gb_s = 48.0\nmin_peer_gb_s = 335.0";
    let slow = with(|results| {
        of(results, 5, "host-copy-alone").measured.insert("host_to_device_gb_s".to_owned(), 27.0);
        for (to, rate) in [(1, 390.0), (2, 20.0)] {
            let mut copy = line(results.asked[0], "peer-copy", ValueCheck::None, &[("peer_gb_s", rate)]);
            copy.to = Some(results.asked[to]);
            results.tests.push(copy);
        }
    });
    assert_eq!(
        told(&slow.settings(settings)),
        [
            "warn gpu-self-test@0: 0000:1b:00.0: copy to another GPU 20.0 GB/s, less than 335; check slot, NVLink",
            "warn gpu-self-test@5: 0000:c3:00.0: host to device 27.0 GB/s, less than 48; check slot, NVLink",
        ]
    );
}

#[test]
fn a_slowdown_during_the_test_is_a_note() {
    let slowed = |mask| {
        with(|results| {
            let clock = line(results.asked[4], "clock", ValueCheck::None, &[("throttle_reasons_mask", mask)]);
            results.tests.push(clock);
        })
    };
    assert_eq!(slowed(f64::from(0x48)).summary(), "fit");
    let findings = slowed(f64::from(0x48)).findings();
    let expected = "note gpu-self-test@4: 0000:9d:00.0: slowdown in the test: hardware, hardware thermal; check cooling, power";
    assert!(findings.iter().any(|line| line == expected), "{findings:?}");
    assert!(
        slowed(4.0).findings().iter().all(|line| !line.contains("slowdown")),
        "the power cap is no fault"
    );
}

/// The GPUs that are requested, and what is reported about the others.
fn requested(bend: impl FnOnce(&mut Case)) -> (Option<Vec<PciAddress>>, Vec<String>) {
    let mut case = case("h100-sxm").with(bend);
    let config = GateConfig::default();
    let seen = Seen {
        phase: case.phase,
        now: &case.now,
        before: None,
        job: case.job.as_ref(),
        profile: case.profile.as_ref(),
        memory: &Memory::default(),
    };
    let gpus = follow_ups(&config, &seen, true).into_iter().find_map(|reading| match reading {
        FollowUp::GpuSelfTest { gpus, length: SelfTestLength::Quick, .. } => Some(gpus),
        _ => None,
    });
    let data = healthy(gpus.as_deref().unwrap_or_default());
    case.now.extras.gpu_self_test = Some(Part::Read { data, took_ms: 1.0 });
    (gpus, told(&case))
}

#[test]
fn only_gpus_that_no_process_uses_are_tested() {
    let process = GpuProcess {
        pid: 4711,
        used_mib: Reading::Known(512),
        name: Reading::Known("python3".to_owned()),
        uid: Reading::Known(1000),
        exiting: false,
        slurm_job: Reading::Known(None),
    };
    let (all, told) = requested(|_| {});
    assert_eq!((all.unwrap().len(), told), (8, vec![]));
    let (some, told) = requested(|case| {
        // Under MIG, an index of a job can be that of a slice.
        case.job = None;
        let gpus = crate::testing::read(&mut case.now.gpus);
        gpus.gpus[1].processes = Reading::Known(vec![process]);
        gpus.gpus[2].processes = Reading::Failed("999".to_owned());
        gpus.gpus[4].mig = Reading::Known(true);
        gpus.gpus[5].mig = Reading::Unsupported;
    });
    assert_eq!(some.unwrap().len(), 5);
    assert_eq!(
        told,
        [
            "unknown gpu-self-test@1: not tested: in use by process 4711; none",
            "unknown gpu-self-test@2: not tested: processes unreadable: 999; none",
        ]
    );
    let (none, told) = requested(|case| {
        for gpu in &mut crate::testing::read(&mut case.now.gpus).gpus {
            gpu.processes = Reading::Failed("999".to_owned());
        }
    });
    assert_eq!((none, told.len()), (Some(Vec::new()), 8), "an empty request, so that this is reported");
    assert_eq!(requested(|case| case.job = Some(job(&[0, 1]))).0, None, "other jobs may use the node");
}

#[test]
fn settings_out_of_range() {
    let table =
        "[checks.gpu-self-test]\nbelow_median_percent = 101.0\nmin_peer_gb_s = -1.0\nprogram = \"selftest\"";
    let config: GateConfig = toml::from_str(table).unwrap();
    assert_eq!(config.problems().len(), 3, "{:?}", config.problems());
    assert!(toml::from_str::<GateConfig>("[checks.gpu-self-test]\nlength = \"long\"").is_err());
}

/// Slowing down another job is for a person at a node, never for a prolog.
#[test]
fn a_shared_gpu_is_tested_by_hand_only() {
    let mut case = case("h100-sxm").settings("[checks.gpu-self-test]\nshared = true");
    case.job = None;
    let process = GpuProcess {
        pid: 4711,
        used_mib: Reading::Known(512),
        name: Reading::Known("python3".to_owned()),
        uid: Reading::Known(1000),
        exiting: false,
        slurm_job: Reading::Known(None),
    };
    crate::testing::read(&mut case.now.gpus).gpus[1].processes = Reading::Known(vec![process]);
    for (phase, want) in [(Phase::Periodic, (8, true)), (Phase::Prolog, (7, false))] {
        let seen = Seen {
            phase,
            now: &case.now,
            before: None,
            job: None,
            profile: case.profile.as_ref(),
            memory: &Memory::default(),
        };
        let asked = follow_ups(&case.config, &seen, true).into_iter().find_map(|reading| match reading {
            FollowUp::GpuSelfTest { gpus, shared, .. } => Some((gpus.len(), shared)),
            _ => None,
        });
        assert_eq!(asked, Some(want), "{phase:?}");
    }
}

#[test]
fn recorded_rates_come_before_the_median_and_judge_one_gpu_alone() {
    let recorded = |rate: f64, lowest: f64| {
        with(|results| {
            results.asked.truncate(1);
            let asked = results.asked.clone();
            results.tests.retain(|line| asked.contains(&line.gpu));
            let mut figures = vec![("rate_tflops", rate), ("sm_clock_mhz", 1_412.0)];
            figures.extend([("throttle_reasons_mask", 4.0), ("other_processes_count", 1.0)]);
            results.tests.push(line(asked[0], "gemm-rate-bf16", ValueCheck::None, &figures));
        })
        .with(|case| {
            let known = RecordedRate { median: 690.0, lowest, highest: 700.0, gpus: 16 };
            case.profile
                .as_mut()
                .unwrap()
                .gpus
                .self_test
                .insert("gemm-rate-bf16.rate_tflops".to_owned(), known);
        })
    };
    let slow = recorded(600.0, 680.0);
    assert_eq!(
        told(&slow).into_iter().filter(|line| line.contains("TFLOP")).collect::<Vec<_>>(),
        [
            "warn gpu-self-test@0: 0000:1b:00.0: bf16 products 600.0 TFLOP/s, 13 % below the recorded median of 16 GPUs; SM clock 1412 MHz; \
             slowed by power limit; another process uses the GPU; check cooling, power"
        ]
    );
    let rates = |case: &Case| told(case).iter().filter(|line| line.contains("TFLOP")).count();
    assert_eq!(rates(&recorded(630.0, 680.0)), 0);
    assert_eq!(rates(&recorded(600.0, 590.0)), 0, "a good card was as slow");
    let off = recorded(600.0, 680.0).settings("[checks.gpu-self-test]\nbelow_median_percent = 0.0");
    assert_eq!(rates(&off), 0);
}

#[test]
fn without_another_measure_the_built_in_floor_counts() {
    let slow = with(|results| {
        for (test, figure, rate) in
            [("gemm-rate-bf16", "rate_tflops", 340.0), ("peer-copy", "peer_gb_s", 200.0)]
        {
            let mut one = line(results.asked[0], test, ValueCheck::None, &[(figure, rate)]);
            one.to = (test == "peer-copy").then(|| results.asked[1]);
            results.tests.push(one);
        }
    });
    assert_eq!(
        told(&slow),
        [
            "warn gpu-self-test@0: 0000:1b:00.0: copy to another GPU 200.0 GB/s, less than 335 (built-in floor); check slot, NVLink",
            "warn gpu-self-test@0: 0000:1b:00.0: bf16 products 340.0 TFLOP/s, less than 494 (built-in floor); check cooling, power",
        ]
    );
    let own = slow.settings("[checks.gpu-self-test]\nmin_peer_gb_s = 100.0\nmin_bf16_tflops = 300.0");
    assert_eq!(told(&own), [""; 0]);
}

#[test]
fn a_peer_floor_needs_all_links() {
    let few = with(|results| {
        let mut one = line(results.asked[0], "peer-copy", ValueCheck::None, &[("peer_gb_s", 200.0)]);
        one.to = Some(results.asked[1]);
        results.tests.push(one);
    })
    .with(|case| case.profile.as_mut().unwrap().gpus.nvlinks_up = Some(12));
    assert!(told(&few).iter().all(|line| !line.contains("copy to another GPU")), "{:?}", told(&few));
}

#[test]
fn nvlink_errors_during_the_copies_are_reported() {
    let errors = |figures: &'static [(&str, f64)]| {
        with(|results| results.tests.push(line(results.asked[3], "nvlink-errors", ValueCheck::None, figures)))
    };
    let none = &[
        ("links_count", 18.0),
        ("replays_count", 0.0),
        ("recoveries_count", 0.0),
        ("crc_errors_count", 0.0),
    ];
    assert_eq!(errors(none).summary(), "fit");
    let bad = errors(&[
        ("links_count", 18.0),
        ("replays_count", 2_500.0),
        ("recoveries_count", 3.0),
        ("crc_errors_count", 400_000.0),
        ("link_4_replays_count", 1_001.0),
        ("link_5_replays_count", 999.0),
        ("link_4_crc_errors_count", 200_000.0),
        ("link_5_crc_errors_count", 200_000.0),
        ("link_4_recoveries_count", 1.0),
        ("link_11_recoveries_count", 2.0),
    ]);
    assert_eq!(
        told(&bad),
        [
            "warn gpu-self-test@3: 0000:61:00.0: NVLink link 11: 2 recoveries during copies between GPUs; test again, check NVLink",
            "warn gpu-self-test@3: 0000:61:00.0: NVLink link 4: 1001 replays during copies between GPUs; test again, check NVLink",
        ]
    );
    let more = "max_nvlink_recoveries = 2\nmax_nvlink_replays = 1001\nmax_nvlink_crc = 199999";
    assert_eq!(
        told(&bad.settings(&format!("[checks.gpu-self-test]\n{more}"))),
        [
            "warn gpu-self-test@3: 0000:61:00.0: NVLink link 5: 200000 CRC errors during copies between GPUs; test again, check NVLink"
        ]
    );
}

/// Up to Ampere.
#[test]
fn sums_of_nvlink_errors_are_judged_where_links_have_no_counters() {
    let sums = with(|results| {
        let figures = &[("replays_count", 1_000.0), ("recoveries_count", 1.0), ("crc_errors_count", 0.0)];
        results.tests.push(line(results.asked[3], "nvlink-errors", ValueCheck::None, figures));
    });
    assert_eq!(
        told(&sums),
        [
            "warn gpu-self-test@3: 0000:61:00.0: NVLink: 1 recoveries during copies between GPUs; test again, check NVLink"
        ]
    );
}

/// Healthy links send some packets again, which `gpu-link-errors` allows.
#[test]
fn nvlink_errors_have_the_limits_of_gpu_link_errors() {
    let own = Settings::default();
    let defaults = super::super::gpu_link_errors::Settings::default();
    assert_eq!(
        (own.max_nvlink_recoveries, own.max_nvlink_replays, own.max_nvlink_crc),
        (defaults.max_recoveries, defaults.replays_per_hour, defaults.crc_per_hour)
    );
}

/// Published rates exist for three models at their full power limit.
#[test]
fn models_without_published_rates_have_no_floor_of_products() {
    let products = |model: &str, watts: f64| {
        with(|results| {
            let mut one =
                line(results.asked[0], "gemm-rate-bf16", ValueCheck::None, &[("rate_tflops", 340.0)]);
            one.model = model.to_owned();
            results.tests.retain(|line| line.gpu != results.asked[0]);
            results.tests.push(one);
        })
        .with(|case| case.profile.as_mut().unwrap().gpus.power_limit_w = Some(watts))
    };
    let is_slow = |case: &Case| told(case).iter().any(|line| line.contains("bf16 products 340.0 TFLOP/s"));
    for model in ["NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA A100-SXM4-40GB"] {
        assert!(is_slow(&products(model, 700.0)), "{model}");
        assert!(!is_slow(&products(model, 350.0)), "{model} with a lower power limit");
    }
    for model in ["NVIDIA L40S", "NVIDIA RTX A6000", "NVIDIA B200", "NVIDIA H20", "NVIDIA H100 PCIe"] {
        assert!(!is_slow(&products(model, 700.0)), "{model}");
    }
}

#[test]
fn a_baseline_leaves_out_cards_that_are_no_example() {
    let gpus: Vec<PciAddress> = (1..6).map(|bus| format!("0000:{bus:02x}:00.0").parse().unwrap()).collect();
    let rate =
        |gpu: usize, rate: f64| line(gpus[gpu], "gemm-rate-bf16", ValueCheck::None, &[("rate_tflops", rate)]);
    let mut shared = rate(3, 300.0);
    shared.measured.insert("other_processes_count".to_owned(), 1.0);
    let mut silent = rate(4, 600.0);
    silent.unknown = Some("no answer".to_owned());
    let one =
        vec![rate(0, 690.0), rate(1, 680.0), rate(2, 300.0), line(gpus[2], "gemm-bf16", wrong("x"), &[])];
    // The same address on another node is another card.
    let other = vec![rate(0, 700.0), shared, silent];
    let (rates, left_out) = baseline(&[one, other]);
    let want = RecordedRate { median: 690.0, lowest: 680.0, highest: 700.0, gpus: 3 };
    assert_eq!(rates, BTreeMap::from([("gemm-rate-bf16.rate_tflops".to_owned(), want)]));
    assert_eq!(
        left_out,
        [
            "0000:03:00.0: wrong values in gemm-bf16",
            "0000:04:00.0: other processes used it",
            "0000:05:00.0: no result of gemm-rate-bf16: no answer",
        ]
    );
}
