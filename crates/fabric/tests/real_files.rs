//! Compares results for `ibnetdiscover` files of other sites with those of an independent parser (`count.py`). These
//! files are not part of railgate: `RAILGATE_IBNETDISCOVER` names a directory with them.

#![expect(clippy::unwrap_used, reason = "a test that prints its table")]
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "it reads files and runs the other reader"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use railgate_fabric::{Kind, Options, analyse, parse};
use serde_json::{Value, json};

#[test]
fn real_files_give_the_same_result_as_an_independent_parser() {
    let Some(dir) = std::env::var_os("RAILGATE_IBNETDISCOVER") else {
        println!("skipped: RAILGATE_IBNETDISCOVER names no directory of ibnetdiscover's outputs");
        return;
    };
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    println!("FILE\tSWITCHES\tHCAS\tNODES\tLINKS\tAGREE");
    let mut wrong = Vec::new();
    for file in &files {
        let (ours, theirs) = (ours(file), independent(file));
        let refused = |counts: &Value| counts.get("error").is_some();
        let agree = ours == theirs || refused(&ours) && refused(&theirs);
        println!(
            "{}\t{}\t{}",
            file.file_name().unwrap().display(),
            row(&ours),
            if agree { "yes" } else { "no" }
        );
        if !agree {
            wrong.push(format!("{}: {ours} against {theirs}", file.display()));
        }
    }
    assert!(!files.is_empty());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn independent(file: &Path) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/count.py");
    let run = Command::new("python3").arg(script).arg(file).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    serde_json::from_slice(&run.stdout).unwrap()
}

fn ours(file: &Path) -> Value {
    let text = String::from_utf8_lossy(&std::fs::read(file).unwrap()).into_owned();
    let fabric = match parse(&text) {
        Ok(fabric) => fabric,
        Err(why) => return json!({"error": why.to_string()}),
    };
    let of = |kind| fabric.devices.iter().filter(|device| device.kind == kind).count();
    let mut rates: BTreeMap<String, usize> = BTreeMap::new();
    for link in &fabric.links {
        *rates.entry(link.mbps.unwrap_or_default().to_string()).or_default() += 1;
    }
    let analysis = analyse(&fabric, &Options::default());
    let hosts: BTreeSet<&String> = analysis.ports.iter().map(|port| &port.node).collect();
    let leafs = analysis.switches.iter().filter(|switch| switch.tier == Some(1)).count();
    json!({
        "switches": of(Kind::Switch), "hcas": of(Kind::Hca), "routers": of(Kind::Router), "links": rates,
        "leafs": leafs, "ports": analysis.ports.len(), "hosts": hosts,
    })
}

fn row(counts: &Value) -> String {
    if let Some(why) = counts.get("error") {
        return format!("-\t-\t-\trefused: {why}");
    }
    let links: u64 = counts["links"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
    let hosts = counts["hosts"].as_array().unwrap().len();
    format!("{}\t{}\t{hosts}\t{links}", counts["switches"], counts["hcas"])
}
