//! Slurm's topology files.

use crate::analysis::Analysis;
use crate::tree::Branch;

/// Writes names as Slurm's host list: `gn[1-32]`.
pub type Hostlist<'a> = &'a dyn Fn(&[String]) -> String;

/// `topology.conf` for `TopologyPlugin=topology/tree`.
pub fn topology_tree(analysis: &Analysis, hostlist: Hostlist<'_>) -> String {
    let mut text = head(analysis, "topology.conf for TopologyPlugin=topology/tree");
    for branch in &analysis.tree {
        text.push_str(&stands_for(branch, hostlist, ""));
        let (what, names) = below(branch);
        text.push_str(&format!("SwitchName={} {what}={}\n", branch.name, hostlist(names)));
    }
    text
}

/// `topology.conf` for `TopologyPlugin=topology/block` (23.11 and later): each unit is a block.
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

/// `topology.yaml` (25.05 and later) with both: the tree is the cluster's, the blocks are for partitions that ask
/// for `Topology=block`.
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
        text.push_str(&format!(
            "# {faults} cables are not where they should be: railgate fabric --format table\n"
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

/// Slurm wants no block smaller than the base size.
fn block_size(analysis: &Analysis) -> Option<usize> {
    blocks(analysis).map(|branch| branch.nodes.len()).min()
}

/// Names hold neither quotes nor backslashes; brackets and commas would mean something else in YAML.
fn quote(text: &str) -> String {
    format!("\"{text}\"")
}
