//! Cables of a fabric without a subnet manager: from LLDP, or from a table of the site.

use std::collections::{BTreeMap, BTreeSet};

use railgate_text::natural;
use serde_json::Value;

use crate::analysis::{Analysis, Options, judged};
use crate::name::plain;
use crate::units::{Gaps, Key, LeafPort, Nodes, Seat};

/// A cable between a node and a leaf switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The node.
    pub node: String,
    /// HCA, or the interface name in LLDP.
    pub hca: String,
    /// Port of the HCA, from 1; always 1 for an interface.
    pub port: u8,
    /// Leaf switch.
    pub leaf: String,
    /// Port of the leaf switch; empty if unknown.
    pub leaf_port: String,
}

/// Why a text could not be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSeen {
    /// It is not JSON.
    #[error("not JSON: {0}")]
    Json(String),
    /// It is JSON, but not an output of lldpctl.
    #[error("no `lldp` with interfaces in it: want what `lldpctl -f json` prints")]
    NoLldp,
    /// A line of a table is invalid.
    #[error("line {line}: {what}")]
    Line {
        /// Line number from 1.
        line: usize,
        /// The problem.
        what: String,
    },
}

/// Returns the neighbours of one node from its output of `lldpctl -f json` (or `json0`). An interface with more than one
/// neighbouring switch is left out, because it is unclear to which of them the cable leads.
///
/// # Errors
/// Returns [`BadSeen`] if the text is something else.
pub fn lldp(node: &str, text: &str) -> Result<Vec<Seen>, BadSeen> {
    let all: Value = serde_json::from_str(text).map_err(|why| BadSeen::Json(why.to_string()))?;
    let mut interfaces: Vec<(&str, &Value)> = Vec::new();
    for lldp in each(all.get("lldp").ok_or(BadSeen::NoLldp)?) {
        for entry in lldp.get("interface").into_iter().flat_map(each) {
            match (entry.get("name").and_then(Value::as_str), entry.as_object()) {
                (Some(name), _) => interfaces.push((name, entry)),
                (None, Some(named)) => {
                    interfaces.extend(
                        named.iter().flat_map(|(name, one)| {
                            each(one).into_iter().map(move |one| (name.as_str(), one))
                        }),
                    );
                }
                (None, None) => {}
            }
        }
    }
    let mut heard: BTreeMap<&str, BTreeSet<(String, String)>> = BTreeMap::new();
    for (name, interface) in interfaces {
        if let (Some(leaf), true) = (leaf(interface), plain(name)) {
            heard.entry(name).or_default().insert((leaf, leaf_port(interface)));
        }
    }
    let only = |(name, mut heard): (&str, BTreeSet<(String, String)>)| {
        let (leaf, leaf_port) = heard.pop_first().filter(|_| heard.is_empty())?;
        Some(Seen { node: node.to_owned(), hca: name.to_owned(), port: 1, leaf, leaf_port })
    };
    Ok(heard.into_iter().filter_map(only).collect())
}

/// lldpctl prints a single item without a list and several as a list; `json0` always prints lists.
fn each(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(all) => all.iter().collect(),
        one => vec![one],
    }
}

fn text(value: Option<&Value>) -> Option<&str> {
    match value? {
        Value::String(text) => Some(text),
        Value::Array(all) => text(all.first()),
        Value::Object(fields) => text(fields.get("value")),
        _ => None,
    }
}

fn kind_of(id: Option<&Value>) -> Option<&str> {
    each(id?).first()?.get("type")?.as_str()
}

/// Name of the neighbour, or its id if it has no name. The neighbour chose both.
fn leaf(interface: &Value) -> Option<String> {
    let chassis = *each(interface.get("chassis")?).first()?;
    let fields = chassis.as_object()?;
    let named = text(fields.get("name"));
    let told = match (named, fields.get("id")) {
        (Some(name), _) => name,
        (None, Some(id)) => text(Some(id))?,
        // The key is the name.
        (None, None) => fields.keys().next()?,
    };
    clean(told)
}

fn leaf_port(interface: &Value) -> String {
    let Some(port) = interface.get("port").and_then(|port| each(port).first().copied()) else {
        return String::new();
    };
    let id = port.get("id");
    let by_id = text(id).filter(|_| kind_of(id) != Some("mac"));
    by_id.or_else(|| text(port.get("descr"))).and_then(clean).unwrap_or_default()
}

fn clean(told: &str) -> Option<String> {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-/:".contains(c) { c } else { '_' };
    let name: String = told.trim().chars().take(64).map(plain).collect();
    (!name.is_empty()).then_some(name)
}

/// Parses a cable table: one line per cable, `node hca[:port] leaf [leaf-port]`, separated by blanks, tabs or commas;
/// `#` starts a comment.
///
/// # Errors
/// Returns the first line that has another format or repeats a port.
pub fn cable_table(text: &str) -> Result<Vec<Seen>, BadSeen> {
    let mut cables: Vec<Seen> = Vec::new();
    let mut known: BTreeSet<(String, String, u8)> = BTreeSet::new();
    for (index, line) in text.lines().enumerate() {
        let bad = |what: String| BadSeen::Line { line: index + 1, what };
        let line = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = line.split([' ', '\t', ',']).filter(|word| !word.is_empty()).collect();
        let (node, hca, leaf, leaf_port) = match words[..] {
            [] => continue,
            [node, hca, leaf] => (node, hca, leaf, ""),
            [node, hca, leaf, port] => (node, hca, leaf, port),
            _ => return Err(bad(format!("{} words; want node, hca[:port], leaf, leaf port", words.len()))),
        };
        let (hca, port) = match hca.split_once(':') {
            None => (hca, 1),
            Some((hca, port)) => match port.parse() {
                Ok(port @ 1..) => (hca, port),
                _ => return Err(bad(format!("'{port}' is not a port"))),
            },
        };
        for name in [node, hca] {
            if !plain(name) {
                return Err(bad(format!("'{name}' is not a name")));
            }
        }
        if !known.insert((node.to_owned(), hca.to_owned(), port)) {
            return Err(bad(format!("{node} {hca} port {port} comes twice")));
        }
        cables.push(Seen {
            node: node.to_owned(),
            hca: hca.to_owned(),
            port,
            leaf: clean(leaf).unwrap_or_default(),
            leaf_port: clean(leaf_port).unwrap_or_default(),
        });
    }
    Ok(cables)
}

/// Analyses the wiring as for InfiniBand. Links above the leaf switches are unknown, so there are no tiers, and no tree
/// for Slurm.
pub fn analyse_seen(seen: &[Seen], options: &Options) -> Analysis {
    let wanted = |node: &String| options.nodes.as_ref().is_none_or(|nodes| nodes.contains(node));
    let mut leafs: Vec<&str> = Vec::new();
    let mut nodes = Nodes::new();
    let seen = || seen.iter().filter(|one| wanted(&one.node));
    for one in seen() {
        if Key::of(&one.hca, one.port, &options.wiring).is_some() {
            leafs.push(&one.leaf);
        }
    }
    leafs.sort_by_key(|leaf| natural(leaf));
    leafs.dedup();
    for one in seen() {
        let place = leafs.iter().position(|leaf| *leaf == one.leaf);
        if let (Some(key), Some(leaf)) = (Key::of(&one.hca, one.port, &options.wiring), place) {
            let leaf_port = LeafPort::Name(one.leaf_port.clone());
            let seat = Seat { hca: one.hca.clone(), port: one.port, leaf, leaf_port };
            nodes.entry(one.node.clone()).or_default().insert(key, seat);
        }
    }
    let names = leafs.iter().enumerate().map(|(at, leaf)| (at, (*leaf).to_owned())).collect();
    let (_, mut analysis) = judged(&nodes, &names, options, &Gaps::default());
    for switch in &mut analysis.switches {
        switch.tier = Some(1);
    }
    analysis
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Output in the format of lldpctl 1.0.
    fn printed(neighbours: &[(&str, &str, &str)]) -> String {
        let interfaces: Vec<Value> = neighbours
            .iter()
            .map(|(name, leaf, port)| {
                serde_json::json!({ *name: {
                    "via": "LLDP", "rid": "1", "age": "0 day, 00:10:00",
                    "chassis": { *leaf: { "id": { "type": "mac", "value": "50:6b:4b:00:00:01" }, "descr": "Switch" } },
                    "port": { "id": { "type": "ifname", "value": *port }, "descr": "to node", "ttl": "120" }
                }})
            })
            .collect();
        serde_json::json!({ "lldp": { "interface": interfaces } }).to_string()
    }

    fn cluster() -> Vec<Seen> {
        (1..=4)
            .flat_map(|node| (0..8).map(move |rail| (node, rail)))
            .map(|(node, rail)| Seen {
                node: format!("gn{node}"),
                hca: format!("rdma{rail}"),
                port: 1,
                leaf: format!("leaf-{rail}"),
                leaf_port: format!("Ethernet{node}/1"),
            })
            .collect()
    }

    #[test]
    fn all_output_forms_of_lldpctl_are_parsed() {
        let text = printed(&[("rdma0", "leaf-0", "Ethernet1/1"), ("rdma1", "leaf-1", "Ethernet1/1")]);
        let two = lldp("gn1", &text).unwrap();
        assert_eq!(
            (two.len(), two[1].leaf.as_str(), two[1].leaf_port.as_str()),
            (2, "leaf-1", "Ethernet1/1")
        );
        // A single interface is not in a list, a switch without a name has an id, and a port can have only a MAC
        // address.
        let one = r#"{"lldp": {"interface": {"eth0": {"chassis": {"id": {"type": "mac", "value": "50:6b:4b:00:00:02"}},
            "port": {"id": {"type": "mac", "value": "50:6b:4b:00:00:03"}, "descr": "swp 7\u001b"}}}}}"#;
        let found = lldp("gn1", one).unwrap();
        assert_eq!((found[0].leaf.as_str(), found[0].leaf_port.as_str()), ("50:6b:4b:00:00:02", "swp_7_"));
        let json0 = r#"{"lldp": [{"interface": [{"name": "rdma3", "chassis": [{"name": [{"value": "leaf-3"}],
            "id": [{"type": "mac", "value": "x"}]}], "port": [{"id": [{"type": "ifname", "value": "swp3"}]}]}]}]}"#;
        let found = lldp("gn1", json0).unwrap();
        assert_eq!((found[0].hca.as_str(), found[0].leaf.as_str()), ("rdma3", "leaf-3"));
        assert_eq!(found[0].leaf_port, "swp3");
        assert_eq!(lldp("gn1", r#"{"lldp": {}}"#), Ok(vec![]));
        assert_eq!(lldp("gn1", "{}"), Err(BadSeen::NoLldp));
        assert!(lldp("gn1", "lldp").is_err());
    }

    #[test]
    fn an_interface_with_two_neighbours_is_left_out() {
        let text = printed(&[("rdma0", "leaf-0", "1"), ("rdma0", "leaf-1", "1"), ("rdma1", "leaf-1", "2")]);
        let found = lldp("gn1", &text).unwrap();
        assert_eq!(found.iter().map(|one| one.hca.as_str()).collect::<Vec<_>>(), ["rdma1"]);
    }

    #[test]
    fn a_swapped_cable_is_named_with_both_ends() {
        let mut cables = cluster();
        let (a, b) = (8 + 2, 8 + 5);
        let (leaf_a, leaf_b) = (cables[a].leaf.clone(), cables[b].leaf.clone());
        cables[a].leaf = leaf_b;
        cables[b].leaf = leaf_a;
        let analysis = analyse_seen(&cables, &Options::default());
        let texts: Vec<&str> = analysis.faults.iter().map(|fault| fault.text.as_str()).collect();
        assert_eq!(
            texts,
            [
                "gn2 rdma2 port 1 is on leaf-5 port Ethernet2/1, should be on leaf-2 (rail 2); gn2 rdma5 port 1 is in its place",
                "gn2 rdma5 port 1 is on leaf-2 port Ethernet2/1, should be on leaf-5 (rail 5); gn2 rdma2 port 1 is in its place",
            ]
        );
        assert!(analyse_seen(&cluster(), &Options::default()).faults.is_empty());
    }

    #[test]
    fn a_cable_table_is_parsed_and_checked() {
        let text = "# rack 1\ngn1 mlx5_0 leaf-0 swp1\ngn1,mlx5_1:2,leaf-1\n\n";
        let found = cable_table(text).unwrap();
        assert_eq!((found[1].hca.as_str(), found[1].port, found[1].leaf_port.as_str()), ("mlx5_1", 2, ""));
        for (text, what) in [
            ("gn1 mlx5_0\n", "line 1: 2 words; want node, hca[:port], leaf, leaf port"),
            ("\ngn1 mlx5_0:x leaf\n", "line 2: 'x' is not a port"),
            ("gn1 a;b leaf\n", "line 1: 'a;b' is not a name"),
            ("gn1 a l\ngn1 a:1 m\n", "line 2: gn1 a port 1 comes twice"),
        ] {
            assert_eq!(cable_table(text).unwrap_err().to_string(), what);
        }
    }

    proptest! {
        #[test]
        fn no_text_causes_a_panic(text in "\\PC*") {
            let _ = lldp("n", &text);
            let _ = cable_table(&text);
        }

        #[test]
        fn one_swap_gives_exactly_its_faults(node in 0..4usize, a in 0..8usize, b in 0..8usize) {
            let mut cables = cluster();
            let (leaf_a, leaf_b) = (cables[node * 8 + a].leaf.clone(), cables[node * 8 + b].leaf.clone());
            cables[node * 8 + a].leaf = leaf_b;
            cables[node * 8 + b].leaf = leaf_a;
            let found = analyse_seen(&cables, &Options::default()).faults;
            let mut expected = if a == b { vec![] } else { vec![a, b] };
            expected.sort_unstable();
            prop_assert_eq!(found.iter().map(|fault| fault.rail).collect::<Vec<_>>(), expected);
            let own = format!("gn{}", node + 1);
            prop_assert!(found.iter().all(|fault| fault.node == own));
        }
    }
}
