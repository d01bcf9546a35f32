use std::collections::BTreeSet;

use railgate_model::{Class, Phase, Severity};
use railgate_node_report::HangKind;
use railgate_node_report::testing::{after, look, machine, rails};
use railgate_node_report::usage::{Field as _, GpuField, HostField};

use super::page::{Kind, Metric};
use super::*;

fn job_now() -> JobNow {
    let mut job = JobNow {
        job: 48213,
        user: "alice\"} 1".to_owned(),
        partition: "gpu".to_owned(),
        running_s: 60.0,
        ..JobNow::default()
    };
    for index in [0, 1, 3] {
        let mut gpu = GpuNow { index, uuid: format!("GPU-{index}"), ..GpuNow::default() };
        for field in GpuField::ALL {
            gpu.values.put(*field, Some(50.0));
        }
        gpu.tensor_fraction = Some(0.447);
        job.gpus.push(gpu);
    }
    for field in HostField::ALL {
        job.host.put(*field, Some(12.5));
    }
    let one = |op: &str| CollectiveNow { op: op.to_owned(), calls: 9, bytes: 99, bus_bytes_s: Some(3e11) };
    job.hang = Some(HangNow { kind: HangKind::Stopped, seconds: 45.0 });
    job.work = Some(WorkNow {
        model_flop_ratio: Some(0.41),
        goodput_ratio: Some(0.97),
        steps: Some(880),
        step_s: Some(9.78),
        collectives: vec![
            one("AllReduce"),
            one("AllGather"),
            CollectiveNow { bus_bytes_s: None, ..one("other") },
        ],
    });
    job
}

fn node_text(faults: &str) -> String {
    let snapshot = after(&machine("n1", ""), faults);
    let verdict = look(Phase::Periodic, snapshot.taken, vec![]).verdict;
    node_page(&NodeState {
        taken: snapshot.taken,
        snapshot,
        verdict,
        took_ms: 250.0,
        acting: true,
        held: None,
        pending: false,
        open: vec![
            OpenFinding {
                check: "gpu-lost".to_owned(),
                severity: Severity::Fail,
                class: Class::Node,
                shadow: false,
            };
            2
        ],
        checks: vec![CheckCounts {
            check: "gpu-lost".to_owned(),
            seen: 2,
            would_drain: 2,
            drained: 1,
            strikes: 0,
        }],
    })
}

fn rules<S>(table: &[Metric<S>], seen: &mut BTreeSet<&'static str>) {
    for Metric { name, kind, labels, help, .. } in table {
        assert!(seen.insert(name), "{name} stands twice");
        assert!(name.starts_with("railgate_"), "{name}");
        assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
        assert!(help.ends_with('.') && !help.contains(['\n', '\\', '|']), "{name}: {help}");
        assert!(
            labels.iter().all(|label| label.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')),
            "{name}"
        );
        // Prometheus adds these itself.
        assert!(!labels.iter().any(|label| ["job", "instance"].contains(label)), "{name}");
    }
}

#[test]
fn metric_name_is_in_one_file_only() {
    let mut seen = BTreeSet::new();
    rules(NODE_METRICS, &mut seen);
    rules(RAIL_METRICS, &mut seen);
    rules(JOB_METRICS, &mut seen);
    rules(CONTROLLER_METRICS, &mut seen);
    rules(FLEET_METRICS, &mut seen);
}

#[test]
fn bounds_of_the_fleet_are_two_series_and_unknown_values_none() {
    let known = FleetNow {
        incidents: [("leaf-switch".to_owned(), 1), ("rack".to_owned(), 0)].into(),
        lemons: 2,
        faults: [("gpu".to_owned(), (4, 1))].into(),
        lost_gpu_s: [("node: GPU".to_owned(), (0.0, 7200.0))].into(),
        ettr: Some((0.5, 0.75)),
        complete_s: Some(1_800_000_000.5),
        events: 12,
        ..FleetNow::default()
    };
    let text = fleet_page(&known);
    for line in [
        "railgate_fleet_open_incidents{kind=\"leaf-switch\"} 1",
        "railgate_fleet_open_incidents{kind=\"rack\"} 0",
        "railgate_fleet_lemons 2",
        "railgate_fleet_nodes_out_of_service 0",
        "railgate_fleet_faults{cause=\"gpu\",counts=\"true\"} 4",
        "railgate_fleet_faults{cause=\"gpu\",counts=\"false\"} 1",
        "railgate_fleet_lost_gpu_seconds{why=\"node: GPU\",bound=\"upper\"} 7200",
        "railgate_fleet_ettr_ratio{bound=\"lower\"} 0.5",
        "railgate_fleet_ettr_ratio{bound=\"upper\"} 0.75",
        "railgate_fleet_complete_timestamp_seconds 1800000000.5",
        "railgate_fleet_events_total 12",
    ] {
        assert!(text.lines().any(|have| have == line), "{line}\n{text}");
    }
    let unknown = fleet_page(&FleetNow::default());
    for absent in ["ettr", "goodput", "complete", "faults", "lost"] {
        assert!(!unknown.contains(absent), "{absent}\n{unknown}");
    }
}

#[test]
fn node_page_has_the_state_of_the_gate() {
    let text = node_text("gpu-lost@3");
    for line in [
        "railgate_gate_findings{check=\"gpu-lost\",severity=\"fail\",class=\"node\",shadow=\"false\"} 2",
        "railgate_gate_drains_total{check=\"gpu-lost\"} 1",
        "railgate_gate_part_answered{part=\"gpus\"} 1",
        "railgate_gate_look_duration_seconds 0.25",
        "# TYPE railgate_gate_drains_total counter",
    ] {
        assert!(text.lines().any(|have| have == line), "{line}\n{text}");
    }
    assert!(
        text.contains("railgate_gpu_up{gpu=\"3\",uuid=") && !text.contains("railgate_node_held"),
        "{text}"
    );
    let up: Vec<_> = text.lines().filter(|line| line.starts_with("railgate_gpu_up{")).collect();
    assert_eq!(up.len(), 8);
    assert_eq!(up.iter().filter(|line| line.ends_with(" 0")).count(), 1, "{up:?}");
}

#[test]
fn rails_have_numbers_and_bytes() {
    let snapshot = after(&machine("n1", ""), "ib-port-down@2");
    let map = Some(rails(&snapshot));
    let text = rail_page(&RailState { snapshot, rails: map });
    assert!(
        text.contains("railgate_rail_speed_bytes{rail=\"0\",hca=\"mlx5_0\",port=\"1\"} 50000000000\n"),
        "{text}"
    );
    let down = |line: &&str| line.starts_with("railgate_rail_up{") && line.ends_with(" 0");
    assert_eq!(text.lines().filter(down).count(), 1, "{text}");
}

#[test]
fn job_labels_are_written_only_if_configured() {
    let job = job_now();
    let text = job_page(&job, &[]);
    assert!(!text.contains("48213") && !text.contains("alice"), "{text}");
    assert!(text.contains("railgate_gpu_tensor_active_ratio{gpu=\"3\",uuid=\"GPU-3\"} 0.5\n"), "{text}");
    assert!(text.contains("railgate_job_pressure_ratio{gpus=\"0-1,3\",resource=\"io\"} 0.125\n"), "{text}");
    for line in [
        "railgate_job_model_flop_ratio{gpus=\"0-1,3\"} 0.41",
        "railgate_job_goodput_ratio{gpus=\"0-1,3\"} 0.97",
        "railgate_job_collective_bytes_total{gpus=\"0-1,3\",op=\"other\"} 99",
        "railgate_job_collective_bus_bytes{gpus=\"0-1,3\",op=\"AllReduce\"} 300000000000",
    ] {
        assert!(text.lines().any(|have| have == line), "{line}\n{text}");
    }
    let text = job_page(&job, &[JobLabel::User, JobLabel::Job, JobLabel::Job]);
    assert!(text.contains("{job_id=\"48213\",user=\"alice\\\"} 1\",gpus=\"0-1,3\"} 60\n"), "{text}");
}

#[test]
fn unknown_values_of_a_job_have_no_series() {
    let job = JobNow { gpus: vec![GpuNow::default()], ..JobNow::default() };
    let text = job_page(&job, &[]);
    let samples: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(samples, ["railgate_job_running_seconds{gpus=\"0\"} 0", "railgate_job_gpus{gpus=\"0\"} 1"]);
}

#[test]
fn gpus_without_a_kernel_are_counted_if_all_are_known() {
    let idle = |percents: [Option<f64>; 3]| {
        let mut job = job_now();
        for (gpu, percent) in job.gpus.iter_mut().zip(percents) {
            gpu.values.put(GpuField::Graphics, percent);
            gpu.values.put(GpuField::AnyKernel, percent);
        }
        let text = job_page(&job, &[]);
        let line = text.lines().find(|line| line.starts_with("railgate_job_idle_gpus{"))?;
        line.strip_prefix("railgate_job_idle_gpus{gpus=\"0-1,3\"} ")?.parse::<u32>().ok()
    };
    assert_eq!(idle([Some(93.0), Some(0.0), Some(1.0)]), Some(2));
    assert_eq!(idle([Some(93.0), Some(7.0), Some(40.0)]), Some(0));
    assert_eq!(idle([Some(93.0), Some(0.0), None]), None);
}

#[test]
fn number_of_series_is_bounded() {
    let snapshot = machine("n1", "");
    let map = Some(rails(&snapshot));
    let count = |text: &str| text.lines().filter(|line| !line.starts_with('#')).count();
    let rails = count(&rail_page(&RailState { snapshot, rails: map }));
    let (node, job) = (count(&node_text("")), count(&job_page(&job_now(), &[])));
    assert!(node <= 80 && rails <= 9 * 18 && job <= 3 * 22 + 10 + 13, "{node} {rails} {job}");
}

#[test]
fn only_files_of_railgate_are_removed() {
    use std::fs;
    let place = tempfile::tempdir().unwrap();
    let dir = TextfileDir::open(place.path()).unwrap();
    let other = place.path().join("precious");
    fs::write(&other, "x").unwrap();
    std::os::unix::fs::symlink(&other, place.path().join(job_file(8))).unwrap();
    dir.put(&job_file(7), "a 1\n").unwrap();
    dir.put(&job_file(8), "a 2\n").unwrap();
    assert_eq!(fs::read_to_string(&other).unwrap(), "x", "the link was replaced, not followed");
    for name in ["smartmon.prom", "railgate-job-07.prom", "railgate-job-x.prom", ".railgate-job-7.prom.x"] {
        fs::write(place.path().join(name), "").unwrap();
    }
    fs::write(place.path().join(".railgate-job-9.prom.4711"), "").unwrap();
    dir.put(NODE_FILE, "a 1\n").unwrap();
    assert_eq!(dir.remove_stale(0).unwrap(), 0, "nothing is old");
    assert_eq!(dir.remove_stale(i64::MAX).unwrap(), 3);
    let mut left: Vec<_> = fs::read_dir(place.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    let want = [
        ".railgate-job-7.prom.x",
        "precious",
        "railgate-job-07.prom",
        "railgate-job-x.prom",
        "railgate.prom",
        "smartmon.prom",
    ];
    assert_eq!(left, want);
    assert!(dir.remove(&job_file(7)).is_ok());
}
