//! A recording of a job that never ran: 100 s of kernels that wait for memory. It tries the replay itself.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use railgate_model::{Allocation, GpuField, GpuId, Job};
use railgate_node_report::usage::format::{Head, HeadGpu, Record};
use railgate_node_report::usage::{Sample, Values};
use railgate_node_report::{Exit, NodeReport};

use crate::recording::Recording;

const START: u64 = 1_800_000_000_000;

/// As corpus-pack.py writes a binary file.
fn words(bytes: &[u8]) -> String {
    let mut text = format!("{}\n", bytes.len());
    for (place, part) in bytes.chunks(8).enumerate() {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        let word = u64::from_le_bytes(word);
        if word != 0 {
            writeln!(text, "{place} {word:x}").unwrap();
        }
    }
    text
}

fn samples() -> Vec<u8> {
    let gpu =
        HeadGpu { uuid: "GPU-0".to_owned(), model: "NVIDIA H100 80GB HBM3".to_owned(), ..HeadGpu::default() };
    let head = Head { start: START, interval_s: 5.0, gpus: vec![gpu], ..Head::new("gn1", 7, 0) };
    let mut out = Vec::new();
    Record::Head(head).write(&mut out).unwrap();
    let mut values = Values::default();
    for (field, value) in
        [(GpuField::Graphics, 99.0), (GpuField::Sm, 95.0), (GpuField::Tensor, 4.0), (GpuField::Dram, 88.0)]
    {
        values.put(field, Some(value));
    }
    for number in 0..20 {
        let start = START + number * 5_000;
        let sample =
            Sample { start, seconds: 5.0, folded: 1, gpus: vec![values.clone()], ..Sample::default() };
        Record::Sample(sample).write(&mut out).unwrap();
    }
    out
}

fn record(place: &Path) {
    let job = Job {
        id: 7,
        uid: 1000,
        gid: 1000,
        user: "researcher".to_owned(),
        restarts: 0,
        nodelist: "gn1".to_owned(),
        het_leader: None,
        allocation: Allocation::Gpus(vec![GpuId::Index(0)]),
        partition: "all".to_owned(),
    };
    let mut node = NodeReport::new("real", "gn1", job, 0, START);
    node.end = Some(START + 100_000);
    node.exit = Some(Exit { status: 0, derived: None });
    fs::write(place.join("node.json"), serde_json::to_vec(&node).unwrap()).unwrap();
    fs::write(place.join("recorded.json"), format!("{{\"sampler_end\": {}}}", START + 100_000)).unwrap();
    fs::write(place.join("samples"), samples()).unwrap();
    fs::write(place.join("truth.json"), "{\"lost\": {\"memory\": 80.5}}\n{\"lost\": {\"memory\": 3}}\n")
        .unwrap();
    fs::create_dir(place.join("ranks")).unwrap();
    let mut file = vec![0_u8; railgate_rankfile::BYTES];
    file[..8].copy_from_slice(&railgate_rankfile::MAGIC.to_le_bytes());
    file[8..16].copy_from_slice(&railgate_rankfile::VERSION.to_le_bytes());
    fs::write(place.join("ranks/1"), words(&file)).unwrap();
    fs::create_dir(place.join("app")).unwrap();
    let told = b"railgate-app 1 rank=0 t=1800000010\nstep n=1 t=1800000011\nstep n=2 t=1800000099\n";
    fs::write(place.join("app/1"), words(told)).unwrap();
}

#[test]
fn a_recording_becomes_the_report_of_a_job() {
    let place = tempfile::tempdir().unwrap();
    record(place.path());
    let recording = Recording(place.path().to_owned());
    let said = recording.said().unwrap();
    assert_eq!(said.rules.first().map(String::as_str), Some("memory-bound"), "{said:?}");
    assert!(said.first.contains("(railgate explain memory-bound)"), "{said:?}");
    assert!(said.advice.contains("fuse element-wise kernels"), "{said:?}");
    assert!(said.cost_s.is_some_and(|cost| (cost - 84.0).abs() < 1.0), "{said:?}");
    assert!((recording.lost("memory").unwrap() - 80.5).abs() < 1e-9);
    let node = recording.node().unwrap();
    assert_eq!(node.communication.map(|found| found.processes.len()), Some(1));
    assert_eq!(node.application.map(|told| told.ranks.len()), Some(1));
}
