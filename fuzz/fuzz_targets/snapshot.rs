//! Snapshots from files: arbitrary text, and real ones with some values replaced.

#![no_main]

#[path = "bend.rs"]
mod bend;
#[path = "judged.rs"]
mod judged;

use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use railgate_simulate::{parse, simulated};
use railgate_model::{Profile, Snapshot};
use railgate_simulate::recorded;
use railgate_rails::{rail_map, table, topology};
use serde_json::{Value, json};

static FILE: LazyLock<PathBuf> =
    LazyLock::new(|| PathBuf::from(format!("/dev/shm/railgate-fuzz-snapshot-{}", std::process::id())));

const NODES: [&str; 7] = [
    "generic",
    "cpu",
    "h100-sxm:gpu-lost@1,ib-port-down@2",
    "b200:gpu-ecc-contained@0",
    "a100-sxm:gpu-process-leftover@0,mount-hang",
    "l40s:gpu-missing@0",
    "h200-sxm:dimm-uncorrected,nvme-hot,process-blocked",
];

static MACHINES: LazyLock<Vec<(Profile, Snapshot, Value)>> = LazyLock::new(|| {
    let machine = |node: &str| {
        let (profile, faults) = parse(node, &[]).expect("what the simulator knows");
        let snapshot = simulated(&profile, &faults);
        let value = serde_json::to_value(&snapshot).expect("plain data");
        (profile, snapshot, value)
    };
    NODES.iter().map(|node| machine(node)).collect()
});

fn other(value: Value, kind: u8, number: u64) -> Value {
    match kind % 14 {
        0 => Value::Null,
        1 => json!(number),
        2 => json!(u64::MAX - number),
        3 => json!(-1),
        4 => json!(f64::MAX),
        5 => json!(""),
        6 => json!("unsupported"),
        7 => json!({"failed": "gone"}),
        8 => json!({"silent": {"after_ms": 1.0}}),
        9 => json!({"stuck": {"after_ms": 1.0}}),
        10 => json!({"known": number}),
        11 => json!([]),
        12 => json!(format!("NVRM: Xid (PCI:0000:61:00): {number}, \u{1}\n")),
        _ => match value {
            Value::Array(mut items) => {
                items.extend(items.clone());
                Value::Array(items)
            }
            Value::Bool(what) => json!(!what),
            Value::Number(what) => json!(what.as_u64().unwrap_or(0).wrapping_add(number)),
            other => other,
        },
    }
}

fuzz_target!(|bytes: &[u8]| {
    if bytes.first() == Some(&b'{') {
        std::fs::write(&*FILE, bytes).expect("memory");
        if let Ok(snapshot) = recorded(&FILE) {
            judged::judged(&snapshot, None, &MACHINES[0].0);
        }
        return;
    }
    let Some((which, edits)) = bytes.split_first() else { return };
    let (profile, healthy, value) = &MACHINES[usize::from(*which) % MACHINES.len()];
    let mut value = value.clone();
    bend::bend(&mut value, edits, 8, other);
    let Ok(snapshot) = serde_json::from_value::<Snapshot>(value) else { return };
    judged::judged(&snapshot, Some(healthy), profile);
    judged::judged(healthy, Some(&snapshot), profile);
    let map = rail_map(&snapshot, profile);
    let _ = table(&map);
    let _ = topology(&map, &snapshot);
});
