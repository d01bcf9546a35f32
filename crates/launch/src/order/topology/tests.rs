use super::super::testing::{known, listed, unknown};
use super::*;

/// `scontrol show topology` of small clusters, as each release printed it. 24.11 has the same code for it as 26.05.
const TREES: [&str; 3] = [
    include_str!("../testdata/22.05.8-tree.txt"),
    include_str!("../testdata/26.05.5-tree.txt"),
    include_str!("../testdata/26.05.5-tree-of-yaml.txt"),
];
const FAT: &str = include_str!("../testdata/22.05.8-two-spines.txt");
const BLOCK: &str = include_str!("../testdata/26.05.5-block.txt");
const NODES: [&str; 6] = ["gn1", "gn5", "gn3", "gn7", "gn11", "gn12"];

fn read(text: &str) -> Topology {
    topology_lines(text, &listed).unwrap()
}

#[test]
fn trees_of_each_release_are_read() {
    let mut places = known(&[
        "core.spine1.leaf1",
        "core.spine1.leaf1",
        "core.spine1.leaf2",
        "core.spine2.leaf3",
        "core.spine2.leaf4",
    ]);
    // No switch has this node.
    places.push(unknown());
    for text in TREES {
        let topology = read(text);
        assert_eq!(topology.shape(), Some(Shape::Tree));
        assert_eq!(topology.places(&NODES), places, "{text}");
    }
}

#[test]
fn topology_conf_is_read() {
    let text = "# three tiers\nSwitchName=leaf1 Nodes=gn[1-2,5] LinkSpeed=4\nswitchname=leaf2 \\\n  nodes=gn[3-4]\n\n\
                SwitchName=spine1 Switches=leaf[1-2] # both\n";
    assert_eq!(read(text).places(&["gn5", "gn4"]), known(&["spine1.leaf1", "spine1.leaf2"]));
}

#[test]
fn several_parents_are_one_switch_of_the_path() {
    assert_eq!(read(FAT).places(&["gn1", "gn4"]), known(&["spine1,spine2.leaf1", "spine1,spine2.leaf2"]));
    // Each rail has a leaf of its own, and each node is under two of them.
    let rails = "SwitchName=r0 Nodes=n[1-2]\nSwitchName=r1 Nodes=n[1-2]\nSwitchName=r2 Nodes=n3\n\
                 SwitchName=s Switches=r[0-2]\n";
    assert_eq!(read(rails).places(&["n1", "n2", "n3"]), known(&["s.r0,r1", "s.r0,r1", "s.r2"]));
}

#[test]
fn blocks_are_read_with_blocks_of_blocks() {
    let topology = read(BLOCK);
    assert_eq!(topology.shape(), Some(Shape::Block));
    assert_eq!(topology.places(&["gn1", "gn8", "gn9"]), known(&["b[1-2].b1", "b[1-2].b2", "b3"]));
    let conf = "BlockName=b1 Nodes=gn[1-4]\nBlockName=b2 Nodes=gn[4-8]\nBlockSizes=4,8\n";
    let mut places = known(&["b1", "b2"]);
    // In two blocks.
    places.push(unknown());
    assert_eq!(read(conf).places(&["gn1", "gn5", "gn4"]), places);
}

#[test]
fn rings_are_read_and_tori_are_not() {
    let ring = read("RingName=ring0 Nodes=gn[1-2] RingSize=2\nRingName=ring1 Nodes=gn3 RingSize=1\n");
    assert_eq!(ring.shape(), Some(Shape::Ring));
    assert_eq!(ring.places(&["gn2", "gn3"]), known(&["ring0", "ring1"]));
    let torus =
        read("TorusName=p Dims=4x4x2 Nodes=n[1-32]\n  TorusName=p PlacementDims=2x2x1(4) Anchors=8\n");
    assert_eq!((torus.shape(), torus.places(&["n1"])), (Some(Shape::Torus), vec![unknown()]));
}

#[test]
fn a_cluster_without_topology_has_no_places() {
    let none = read("");
    assert_eq!((none.shape(), none.places(&["gn1"])), (None, vec![unknown()]));
}

#[test]
fn what_is_not_understood_is_an_error() {
    let line = |text: &str| match topology_lines(text, &listed) {
        Err(BadTopology::Line { line, .. }) => line,
        other => panic!("{text}: {other:?}"),
    };
    assert_eq!(line("slurm_load_topo error"), "slurm_load_topo error");
    for text in [
        "NodeName=gn1",
        "SwitchName=",
        "SwitchName=a Nodes",
        "SwitchName=a Nodes=n1\nBlockName=b Nodes=n2",
        "AggregatedBlock=b[1-2] Nodes=n1",
        "AggregatedBlock=b[1-2] Nodes=n1 BlockSize=x",
        "\u{1b}[2J",
    ] {
        assert!(!line(text).contains(char::is_control));
    }
    let of = |text: &str| topology_lines(text, &listed).unwrap_err();
    assert_eq!(of("SwitchName=a Nodes=gn[1-"), BadTopology::Hostlist("gn[1-".to_owned()));
    assert_eq!(of("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2"), BadTopology::Twice("a".to_owned()));
    let text = "SwitchName=a Nodes=n1\nSwitchName=b Switches=a,c\nSwitchName=c Switches=b\n";
    assert_eq!(of(text), BadTopology::Above("a".to_owned()));
    assert_eq!(of("SwitchName=l\u{e4}f Nodes=n1"), BadTopology::Above("l\u{e4}f".to_owned()));
    assert_eq!(of(&" ".repeat(MAX_TOPOLOGY + 1)), BadTopology::TooLarge);
    let many = |_: &str| Some(vec![String::new(); MAX_PAIRS + 1]);
    assert_eq!(topology_lines("SwitchName=a Nodes=n1", &many), Err(BadTopology::TooLarge));
}
