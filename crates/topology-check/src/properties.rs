//! Properties that hold for every machine and every text.

use proptest::prelude::*;
use railgate_model::{Part, Snapshot};
use railgate_rails::{rail_map, topology};

use super::*;
use railgate_rails::testing::{flat_machine, machines, wired_profile};

/// A machine and its topology file, if one can be made.
fn with_file() -> impl Strategy<Value = (Snapshot, RailMap, String)> {
    (machines(), any::<bool>()).prop_filter_map("no file can be made", |(snapshot, wired)| {
        let profile = wired_profile();
        let map = rail_map(&snapshot, wired.then_some(&profile));
        let text = topology(&map, &snapshot).ok()?;
        Some((snapshot, map, text))
    })
}

fn right(text: &str, snapshot: &Snapshot, map: &RailMap) -> TopologyCheck {
    check_topology(text.as_bytes(), None, Some((snapshot, map)))
}

/// A good file with bytes replaced, inserted, removed or duplicated.
fn broken() -> impl Strategy<Value = Vec<u8>> {
    const PIECES: &[&str] = &[
        "<",
        ">",
        "/",
        "\"",
        "'",
        " ",
        "\t",
        "\n",
        "\r",
        "=",
        "\0",
        "<!--",
        "-->",
        "<cpu>",
        "</cpu>",
        "<pci/>",
        "<gpu/>",
        "</system>",
        "<system version=\"1\"/>",
        "<x>",
        "</x>",
        " keep=\"1\"",
        " a",
        "?>",
        "\u{feff}",
    ];
    let edit = (0..2000_usize, 0..40_usize, proptest::sample::select(PIECES), 1..3_usize);
    proptest::collection::vec(edit, 0..6).prop_map(|edits| {
        let flat = flat_machine();
        let mut text = topology(&rail_map(&flat, &wired_profile()), &flat).unwrap_or_default().into_bytes();
        for (at, length, piece, times) in edits {
            let from = at.min(text.len());
            let to = (from + length * (times - 1)).min(text.len());
            text.splice(from..to, piece.bytes());
        }
        text
    })
}

/// For any text: no panic, each problem has a position inside it, and the result for all releases agrees with that for
/// each one.
fn consistent(text: &[u8]) -> Result<(), TestCaseError> {
    let flat = flat_machine();
    let map = rail_map(&flat, &wired_profile());
    for machine in [None, Some((&flat, &map))] {
        let all = check_topology(text, None, machine);
        let releases = ["2.18.3", "2.22.3", "2.28.9", "2.30.7"].map(|release| release.parse::<NcclVersion>());
        let each: Vec<TopologyCheck> = releases
            .into_iter()
            .flatten()
            .map(|version| check_topology(text, Some(version), machine))
            .collect();
        prop_assert_eq!(each.len(), ERAS.len());
        prop_assert_eq!(all.accepted, each.iter().all(|check| check.accepted));
        let lines = 1 + text.iter().filter(|byte| **byte == b'\n').count();
        for problem in &all.problems {
            prop_assert!(problem.line <= lines && (problem.line == 0) == (problem.column == 0));
            prop_assert!(!problem.what.chars().any(char::is_control), "{}", problem.what);
            let told = each.iter().filter(|check| {
                let same =
                    |other: &TopologyProblem| (&other.what, other.line) == (&problem.what, problem.line);
                check.problems.iter().any(same)
            });
            prop_assert!(told.count() >= problem.nccl.len().max(1));
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_written_file_is_right_for_its_machine((snapshot, map, text) in with_file()) {
        let check = right(&text, &snapshot, &map);
        prop_assert!(check.accepted && check.right(), "{check:?}\n{text}");
        prop_assert!(check_topology(text.as_bytes(), None, None).right());
    }

    #[test]
    fn the_file_of_a_node_is_right_for_any_subset_of_its_gpus((snapshot, map, text) in with_file(), mask in any::<u16>()) {
        // Knowledge of a rank about the node, other than its own GPUs, does not change the file.
        prop_assert_eq!(topology(&map, &snapshot), Ok(text.clone()));
        let mut part = snapshot.clone();
        if let Part::Read { data, .. } = &mut part.gpus {
            data.gpus.retain(|gpu| mask & (1 << (gpu.index % 16)) != 0);
        }
        let mut seen = map.clone();
        seen.gpus.retain(|gpu| mask & (1 << (gpu.index % 16)) != 0);
        let check = right(&text, &part, &seen);
        prop_assert!(check.accepted && check.right(), "{check:?}\n{text}");
    }

    #[test]
    fn names_of_devices_do_not_change_the_file((mut snapshot, _, _) in with_file(), turn in 1..7_usize) {
        let before = topology(&rail_map(&snapshot, None), &snapshot);
        if let Part::Read { data, .. } = &mut snapshot.fabric {
            let count = data.hcas.len().max(1);
            let names: Vec<String> = data.hcas.iter().map(|hca| hca.name.clone()).collect();
            for (k, hca) in data.hcas.iter_mut().enumerate() {
                hca.name.clone_from(&names[(k + turn) % count]);
            }
        }
        prop_assert_eq!(topology(&rail_map(&snapshot, None), &snapshot).ok(), before.ok());
    }

    #[test]
    fn after_an_hca_is_lost_both_files_stay_right((snapshot, _, text) in with_file(), which in 0..8_usize) {
        let mut without = snapshot.clone();
        if let Part::Read { data, .. } = &mut without.fabric
            && !data.hcas.is_empty()
        {
            let at = which % data.hcas.len();
            data.hcas.remove(at);
        }
        let map = rail_map(&without, None);
        let check = right(&text, &without, &map);
        prop_assert!(check.accepted);
        if let Ok(text) = topology(&map, &without) {
            let check = right(&text, &without, &map);
            prop_assert!(check.accepted && check.right(), "{check:?}\n{text}");
        }
    }

    #[test]
    fn a_broken_file_has_consistent_results(text in broken()) {
        consistent(&text)?;
    }

    #[test]
    fn any_bytes_have_consistent_results(text in proptest::collection::vec(any::<u8>(), 0..200)) {
        consistent(&text)?;
    }
}
