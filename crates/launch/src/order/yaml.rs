//! Places from `topology.yaml` (25.05 and later), or from `scontrol show topoconf`, which prints it.

use railgate_text::shorten;

use super::topology::{BadTopology, Hostlist, MAX_TOPOLOGY, Record, Shape, Topology, build};

/// One topology of the file.
#[derive(Debug, Default)]
struct Part {
    name: String,
    default: bool,
    shape: Option<Shape>,
    records: Vec<Record>,
}

/// Parses `topology.yaml` or `scontrol show topoconf`, and returns the topology with this name, or the cluster's default.
///
/// Reads the block style in which Slurm, its manual and `railgate fabric` write the file, not all of YAML. On a cluster with
/// `topology.conf`, `scontrol show topoconf` names no switches (26.05.5): [`super::topology_lines`] reads `scontrol show topology`
/// of both.
///
/// # Errors
/// [`BadTopology`]; then no place is known.
pub fn topology_yaml(
    text: &str,
    name: Option<&str>,
    hostlist: Hostlist<'_>,
) -> Result<Topology, BadTopology> {
    if text.len() > MAX_TOPOLOGY {
        return Err(BadTopology::TooLarge);
    }
    let parts = parts(text)?;
    let found = match name {
        Some(name) => parts.iter().find(|part| part.name == name),
        None => parts.iter().find(|part| part.default).or(match &parts[..] {
            [only] => Some(only),
            _ => None,
        }),
    };
    let part = found.ok_or_else(|| BadTopology::NoSuch(shorten(name.unwrap_or("default"), 80)))?;
    part.shape.map_or_else(|| Ok(Topology::default()), |shape| build(shape, &part.records, hostlist))
}

fn parts(text: &str) -> Result<Vec<Part>, BadTopology> {
    let mut parts: Vec<Part> = Vec::new();
    // Whether `nodes` and `children` belong to the last record.
    let mut open = false;
    for (number, line) in text.lines().enumerate() {
        let bad = || BadTopology::Line { number: number + 1, line: shorten(line, 80) };
        let inner = without_comment(line).trim();
        if inner.is_empty() || inner.starts_with('%') || inner == "---" || inner == "..." {
            continue;
        }
        let (item, inner) = inner.strip_prefix("- ").map_or((false, inner), |inner| (true, inner.trim()));
        let Some((key, value)) = inner.split_once(':') else {
            // An element of `block_sizes`.
            if item && inner.bytes().all(|byte| byte.is_ascii_digit()) {
                continue;
            }
            return Err(bad());
        };
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let value = scalar(value).filter(|_| key.bytes().all(plain)).ok_or_else(bad)?;
        if item && key == "topology" {
            parts.push(Part { name: value.to_owned(), ..Part::default() });
            open = false;
            continue;
        }
        let part = parts.last_mut().ok_or_else(bad)?;
        let shape = match key {
            "tree" | "switch" => Some(Shape::Tree),
            "block" => Some(Shape::Block),
            "ring" => Some(Shape::Ring),
            "torus3d" => Some(Shape::Torus),
            _ => None,
        };
        match (key, shape) {
            // The section of a kind, or `{}` for a kind that this topology does not have.
            ("tree" | "torus3d" | "block" | "ring", _) if !item => {
                open = false;
                match value {
                    "" if part.shape.is_none() => part.shape = shape,
                    "{}" => {}
                    _ => return Err(bad()),
                }
            }
            ("switch" | "block" | "ring", _) if item && part.shape == shape && !value.is_empty() => {
                part.records.push(Record { name: value.to_owned(), ..Record::default() });
                open = true;
            }
            (_, Some(_)) => return Err(bad()),
            ("cluster_default", _) => part.default = value.eq_ignore_ascii_case("true"),
            ("nodes" | "children", _) if open && !item => {
                let record = part.records.last_mut().ok_or_else(bad)?;
                let list = (!value.is_empty()).then(|| value.to_owned());
                match key {
                    "nodes" => record.nodes = list,
                    _ => record.children = list,
                }
            }
            // Another element: what follows is not of the last record.
            _ if item => open = false,
            _ => {}
        }
    }
    Ok(parts)
}

/// A comment begins after a blank; `#` is no character of a name.
fn without_comment(line: &str) -> &str {
    if line.trim_start().starts_with('#') {
        return "";
    }
    line.split(" #").next().unwrap_or_default()
}

/// Returns the text of a plain or quoted scalar; `None` for what only YAML's other forms have. Host lists have brackets after a name, never
/// before it.
fn scalar(value: &str) -> Option<&str> {
    let value = value.trim();
    for quote in ['"', '\''] {
        if let Some(rest) = value.strip_prefix(quote) {
            return rest.strip_suffix(quote).filter(|inner| !inner.contains([quote, '\\']));
        }
    }
    let other = value.starts_with(['{', '[', '&', '*', '!', '|', '>']) && value != "{}";
    // A list of sizes in one line has no name.
    let sizes = value.starts_with('[') && !value.contains(|c: char| c.is_ascii_alphabetic());
    (!other || sizes).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{known, listed, unknown};
    use super::*;

    const MANUAL: &str = "---\n- topology: topo1\n  cluster_default: true\n  tree:\n    switches:\n      - switch: sw_root\n        children: s[1-2]\n      - switch: s1   # the first\n        nodes: node[01-02]\n      - switch: \"s2\"\n        nodes: 'node[03-04]'\n- topology: topo2\n  cluster_default: false\n  block:\n    block_sizes: [2, 4]\n    blocks:\n      - block: b1\n        nodes: node[01-03]\n- topology: topo3\n  cluster_default: false\n  flat: true\n- topology: topo5\n  torus3d:\n    toruses:\n      - name: pod1\n        dims:\n          x: 4\n        nodes: node[01-04]\n        placements:\n          - dims:\n              x: 2\n";

    #[test]
    fn what_slurm_26_05_prints_is_read() {
        let text = include_str!("testdata/26.05.5-topoconf.yaml");
        let nodes = ["gn1", "gn5", "gn3", "gn9", "gn12"];
        let fabric = topology_yaml(text, None, &listed).unwrap();
        assert_eq!(fabric.shape(), Some(Shape::Tree));
        let mut places =
            known(&["core.spine1.leaf1", "core.spine1.leaf1", "core.spine1.leaf2", "core.spine2.leaf4"]);
        places.push(unknown());
        assert_eq!(fabric.places(&nodes), places);
        let blocks = topology_yaml(text, Some("nvl"), &listed).unwrap();
        assert_eq!(blocks.shape(), Some(Shape::Block));
        assert_eq!(blocks.places(&nodes), known(&["b1", "b2", "b1", "b3", "b3"]));
        let flat = topology_yaml(text, Some("plain"), &listed).unwrap();
        assert_eq!((flat.shape(), flat.places(&["gn1"])), (None, vec![unknown()]));
    }

    #[test]
    fn what_26_05_prints_with_topology_conf_has_no_places() {
        let text = include_str!("testdata/26.05.5-topoconf-without-yaml.yaml");
        assert_eq!(topology_yaml(text, None, &listed), Ok(Topology::default()));
    }

    #[test]
    fn the_style_of_the_manual_is_read() {
        let tree = topology_yaml(MANUAL, None, &listed).unwrap();
        assert_eq!(tree.places(&["node02", "node03"]), known(&["sw_root.s1", "sw_root.s2"]));
        let torus = topology_yaml(MANUAL, Some("topo5"), &listed).unwrap();
        assert_eq!((torus.shape(), torus.places(&["node01"])), (Some(Shape::Torus), vec![unknown()]));
    }

    #[test]
    fn the_file_of_railgate_fabric_is_read() {
        let text = "# topology.yaml, from ibnetdiscover by railgate fabric\n---\n- topology: tree\n  cluster_default: true\n  tree:\n    \
                    switches:\n      # unit-1: leaf-0-0,leaf-0-1\n      - switch: \"unit-1\"\n        nodes: \"gn[1-2]\"\n      \
                    - switch: \"tier2-1\"\n        children: \"unit-1\"\n- topology: block\n  cluster_default: false\n  block:\n    \
                    block_sizes:\n      - 2\n    blocks:\n      - block: \"unit-1\"\n        nodes: \"gn[1-2]\"\n";
        let of = |name| topology_yaml(text, name, &listed).unwrap().places(&["gn2"]);
        assert_eq!(of(None), known(&["tier2-1.unit-1"]));
        assert_eq!(of(Some("block")), known(&["unit-1"]));
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        let tree = |lines: &str| format!("- topology: t\n  tree:\n    switches:\n{lines}");
        for text in [
            "tree:\n  switches:\n",
            "- topology: t\n  tree: {switches: []}\n",
            "- topology: t\n  tree:\n  block:\n",
            "just text\n",
            &tree("    - {switch: s1, nodes: n1}\n"),
            &tree("    - switch: s1\n      nodes: [n1, n2]\n"),
            &tree("    - switch: s1\n      nodes: &all n1\n"),
            &tree("    - switch: \"s1\n"),
            &tree("    - switch:\n"),
            &tree("    - block: b1\n"),
            &tree("    - switch: s1\n      nodes:\n        - n1\n"),
        ] {
            let bad = topology_yaml(text, None, &listed).unwrap_err();
            assert!(matches!(bad, BadTopology::Line { .. }), "{text}: {bad:?}");
        }
        assert!(
            matches!(topology_yaml(MANUAL, Some("x\u{1b}[2J"), &listed), Err(BadTopology::NoSuch(name)) if name == "x?[2J")
        );
        let two = "- topology: a\n  flat: true\n- topology: b\n  flat: true\n";
        assert!(matches!(topology_yaml(two, None, &listed), Err(BadTopology::NoSuch(_))));
        assert!(matches!(topology_yaml("", None, &listed), Err(BadTopology::NoSuch(_))));
    }
}
