//! Arbitrary bytes as a topology file: no panic, and the verdict for all NCCL releases together agrees with that for
//! each release.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use railgate_simulate::{parse, simulated};
use railgate_model::{RailMap, Snapshot};
use railgate_rails::{NcclVersion, rail_map};
use railgate_topology_check::{TopologyView, check_topology};

static MACHINE: LazyLock<(Snapshot, RailMap)> = LazyLock::new(|| {
    let (profile, _) = parse("h200-sxm", &[]).expect("a profile that is built in");
    let snapshot = simulated(&profile, &[]);
    let map = rail_map(&snapshot, &profile);
    (snapshot, map)
});

const RELEASES: [NcclVersion; 4] = [
    NcclVersion::new(2, 18, 3),
    NcclVersion::new(2, 22, 3),
    NcclVersion::new(2, 28, 9),
    NcclVersion::new(2, 30, 7),
];

fuzz_target!(|text: &[u8]| {
    let (snapshot, map) = &*MACHINE;
    for machine in [None, Some((snapshot, map))] {
        let all = check_topology(text, None, machine);
        let each = RELEASES.map(|release| check_topology(text, Some(release), machine));
        assert_eq!(all.accepted, each.iter().all(|check| check.accepted));
        let lines = 1 + text.iter().filter(|byte| **byte == b'\n').count();
        for problem in &all.problems {
            assert!(problem.line <= lines && (problem.line == 0) == (problem.column == 0));
        }
        let shown = TopologyView::new("topo.xml", "gn1", None, &all).text();
        assert!(!shown.chars().any(|c| c.is_control() && c != '\n'), "{shown:?}");
    }
});
