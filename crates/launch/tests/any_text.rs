//! Texts of any content: a topology or an error, never a panic, and the order is one of the nodes in any case.

use proptest::prelude::*;
use railgate_launch::{Topology, choose, order, place_of_address, topology_lines, topology_yaml};

fn hostlist(list: &str) -> Option<Vec<String>> {
    railgate_slurm::hostlist::expand(list).ok()
}

fn is_an_order(topology: &Topology) -> Result<(), TestCaseError> {
    let places = topology.places(&["n1", "n2", "n3", "n4", "n5"]);
    let mut ranks = order(&places);
    ranks.sort_unstable();
    prop_assert_eq!(ranks, [0, 1, 2, 3, 4]);
    prop_assert!(
        choose(&places, 3).is_some_and(|chosen| chosen.ranks.len() == 3 && chosen.spares.len() == 2)
    );
    Ok(())
}

/// Lines made of the pieces that topologies are made of.
fn lines() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "SwitchName=",
        "BlockName=",
        "AggregatedBlock=",
        "RingName=",
        "TorusName=",
        "Nodes=",
        "Switches=",
        "BlockSize=2",
        "Level=0",
        "a",
        "b",
        "n[1-3]",
        "n4",
        "a,b",
        "(null)",
        "n[1-",
        " ",
        "\n",
        "\\\n",
        "#",
        "\0",
        "\u{1b}",
    ]);
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

/// The same for YAML.
fn yaml() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "- topology: t\n",
        "  cluster_default: true\n",
        "  tree:\n",
        "    switches:\n",
        "  block:\n",
        "    blocks:\n",
        "  flat: {}\n",
        "    - switch: a\n",
        "    - switch: b\n",
        "      children: a\n",
        "      children: b\n",
        "      nodes: n[1-2]\n",
        "      nodes: n3\n",
        "    - block: b1\n",
        "    - 4\n",
        "    - name: x\n",
        "---\n",
        "...\n",
        "  # c\n",
        ":",
        "\t",
        "{",
        "\"",
    ]);
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_lines_are_a_topology_or_an_error(text in prop_oneof![lines(), ".{0,80}"]) {
        if let Ok(topology) = topology_lines(&text, &hostlist) {
            is_an_order(&topology)?;
        }
    }

    #[test]
    fn any_yaml_is_a_topology_or_an_error(text in prop_oneof![yaml(), ".{0,80}"]) {
        if let Ok(topology) = topology_yaml(&text, None, &hostlist) {
            is_an_order(&topology)?;
        }
    }

    #[test]
    fn any_address_is_a_place_or_a_printable_error(
        address in "(core|sp[1-2]|\\PC|\\x1b|\\.){0,12}", pattern in "(switch|block|node|\\.|\\PC){0,12}"
    ) {
        if let Err(bad) = place_of_address(&address, &pattern) {
            prop_assert!(bad.to_string().chars().all(railgate_text::is_printable), "{bad:?}");
        }
    }
}
