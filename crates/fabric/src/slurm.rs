//! Topology files for Slurm.

use crate::analysis::Analysis;
use crate::tree::Branch;

/// Formats names as a Slurm host list, for example `gn[1-32]`.
pub type Hostlist<'a> = &'a dyn Fn(&[String]) -> String;

/// Returns `topology.conf` for `TopologyPlugin=topology/tree`.
pub fn topology_tree(analysis: &Analysis, hostlist: Hostlist<'_>) -> String {
    let mut text = head(analysis, "topology.conf for TopologyPlugin=topology/tree");
    for branch in &analysis.tree {
        text.push_str(&stands_for(branch, hostlist, ""));
        let (what, names) = below(branch);
        text.push_str(&format!("SwitchName={} {what}={}\n", branch.name, hostlist(names)));
    }
    text
}

/// Returns `topology.conf` for `TopologyPlugin=topology/block` (23.11 and later), with one block per unit.
pub fn topology_block(analysis: &Analysis, hostlist: Hostlist<'_>) -> String {
    let mut text = head(analysis, "topology.conf for TopologyPlugin=topology/block");
    for branch in blocks(analysis) {
        text.push_str(&stands_for(branch, hostlist, ""));
        text.push_str(&format!("BlockName={} Nodes={}\n", branch.name, hostlist(&branch.nodes)));
    }
    if let Some(size) = block_size(analysis) {
        text.push_str(&format!("BlockSizes={size}\n"));
    }
    text
}

/// Returns `topology.yaml` (25.05 and later) with both: the tree is the cluster's default, and the blocks are for
/// partitions with `Topology=block`.
pub fn topology_yaml(analysis: &Analysis, hostlist: Hostlist<'_>) -> String {
    let mut text = head(analysis, "topology.yaml");
    text.push_str("---\n- topology: tree\n  cluster_default: true\n  tree:\n    switches:\n");
    for branch in &analysis.tree {
        let (what, names) = below(branch);
        let what = if what == "Nodes" { "nodes" } else { "children" };
        text.push_str(&stands_for(branch, hostlist, "      "));
        text.push_str(&format!(
            "      - switch: {}\n        {what}: {}\n",
            quote(&branch.name),
            quote(&hostlist(names))
        ));
    }
    let Some(size) = block_size(analysis) else { return text };
    text.push_str("- topology: block\n  cluster_default: false\n  block:\n");
    text.push_str(&format!("    block_sizes:\n      - {size}\n    blocks:\n"));
    for branch in blocks(analysis) {
        text.push_str(&format!(
            "      - block: {}\n        nodes: {}\n",
            quote(&branch.name),
            quote(&hostlist(&branch.nodes))
        ));
    }
    text
}

fn head(analysis: &Analysis, what: &str) -> String {
    let mut text = format!("# {what}, from ibnetdiscover by railgate fabric\n");
    let faults = analysis.faults.len();
    if faults > 0 {
        text.push_str(&format!("# wiring faults: {faults}; railgate fabric names them\n"));
    }
    let without =
        analysis.unnamed.len() + analysis.shared.iter().map(|shared| shared.guids.len()).sum::<usize>();
    if without > 0 {
        text.push_str(&format!("# HCAs that belong to no node: {without}; railgate fabric names them\n"));
    }
    let unrecorded = analysis.unrecorded.len();
    if unrecorded > 0 {
        text.push_str(&format!(
            "# INCOMPLETE: ibnetdiscover's output lacks the records of {unrecorded} devices, so nodes may be missing\n"
        ));
    }
    if analysis.roots() > 1 {
        text.push_str(&format!(
            "# the fabric is in {} parts: no job can spread over two\n",
            analysis.roots()
        ));
    }
    text
}

fn stands_for(branch: &Branch, hostlist: Hostlist<'_>, indent: &str) -> String {
    if branch.switches.len() == 1 && branch.switches.contains(&branch.name) {
        return String::new();
    }
    format!("{indent}# {}: {}\n", branch.name, hostlist(&branch.switches))
}

fn below(branch: &Branch) -> (&'static str, &[String]) {
    if branch.children.is_empty() { ("Nodes", &branch.nodes) } else { ("Switches", &branch.children) }
}

fn blocks(analysis: &Analysis) -> impl Iterator<Item = &Branch> {
    analysis.tree.iter().filter(|branch| branch.children.is_empty())
}

/// The base size of blocks. Slurm does not accept smaller blocks.
fn block_size(analysis: &Analysis) -> Option<usize> {
    blocks(analysis).map(|branch| branch.nodes.len()).min()
}

/// Quotes a name. Names contain no quotes or backslashes, but brackets and commas have a meaning in YAML.
fn quote(text: &str) -> String {
    format!("\"{text}\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Made, made};
    use crate::{Options, analyse, parse};

    fn look(fabric: &Made) -> Analysis {
        analyse(&parse(&fabric.text()).unwrap(), &Options::default())
    }

    fn listed(names: &[String]) -> String {
        names.join(",")
    }

    #[test]
    fn all_files_have_the_same_units_and_nodes() {
        let analysis = look(&made(2, 2, 2, 1));
        assert_eq!(
            topology_tree(&analysis, &listed),
            "# topology.conf for TopologyPlugin=topology/tree, from ibnetdiscover by railgate fabric\n\
             # unit-1: leaf-0-0,leaf-0-1\nSwitchName=unit-1 Nodes=gn1,gn2\n\
             # unit-2: leaf-1-0,leaf-1-1\nSwitchName=unit-2 Nodes=gn3,gn4\n\
             # tier2-1: spine-0\nSwitchName=tier2-1 Switches=unit-1,unit-2\n"
        );
        let blocks = topology_block(&analysis, &listed);
        assert!(blocks.ends_with("BlockName=unit-2 Nodes=gn3,gn4\nBlockSizes=2\n"), "{blocks}");
        let yaml = topology_yaml(&analysis, &listed);
        assert!(
            yaml.contains("      - switch: \"tier2-1\"\n        children: \"unit-1,unit-2\"\n"),
            "{yaml}"
        );
        assert!(yaml.ends_with("      - block: \"unit-2\"\n        nodes: \"gn3,gn4\"\n"), "{yaml}");
    }

    #[test]
    fn three_tiers_and_a_partitioned_fabric_are_written() {
        // Two pods of two units, each with its own spine switch.
        let mut fabric = made(4, 2, 1, 0);
        for unit in 0..4 {
            let spine = format!("spine-{}", unit / 2);
            fabric.cable((&format!("leaf-{unit}-0"), 40), (&spine, unit + 1));
        }
        let parts = look(&fabric);
        assert_eq!(parts.roots(), 2);
        assert!(topology_tree(&parts, &listed).contains("# the fabric is in 2 parts"));
        fabric.cable(("spine-0", 40), ("core-0", 1));
        fabric.cable(("spine-1", 40), ("core-0", 2));
        let whole = look(&fabric);
        let lines = topology_tree(&whole, &listed);
        let lines: Vec<&str> = lines.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            lines,
            [
                "SwitchName=leaf-0-0 Nodes=gn1,gn2",
                "SwitchName=leaf-1-0 Nodes=gn3,gn4",
                "SwitchName=leaf-2-0 Nodes=gn5,gn6",
                "SwitchName=leaf-3-0 Nodes=gn7,gn8",
                "SwitchName=tier2-1 Switches=leaf-0-0,leaf-1-0",
                "SwitchName=tier2-2 Switches=leaf-2-0,leaf-3-0",
                "SwitchName=tier3-1 Switches=tier2-1,tier2-2",
            ]
        );
    }

    #[test]
    fn faults_are_listed_as_comments() {
        let mut fabric = made(1, 3, 4, 1);
        fabric.swap((0, 0), (0, 1));
        let text = topology_tree(&look(&fabric), &listed);
        assert!(text.contains("# wiring faults: 2; "), "{text}");
    }
}
