//! Fabrics for tests, as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Nodes in units, with a leaf switch per rail and unit, and spine switches above.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    /// Maps node and rail to the leaf switch and its port.
    pub(crate) seats: BTreeMap<(usize, usize), (String, usize)>,
    uplinks: Vec<(String, usize, String, usize)>,
}

pub(crate) fn made(units: usize, nodes: usize, rails: usize, spines: usize) -> Made {
    let mut made = Made { seats: BTreeMap::new(), uplinks: Vec::new() };
    for unit in 0..units {
        for rail in 0..rails {
            let leaf = format!("leaf-{unit}-{rail}");
            for node in 0..nodes {
                made.seats.insert((unit * nodes + node, rail), (leaf.clone(), node + 1));
            }
            for spine in 0..spines {
                made.uplinks.push((
                    leaf.clone(),
                    nodes + 1 + spine,
                    format!("spine-{spine}"),
                    unit * rails + rail + 1,
                ));
            }
        }
    }
    made
}

impl Made {
    pub(crate) fn swap(&mut self, one: (usize, usize), other: (usize, usize)) {
        let (a, b) = (self.seats[&one].clone(), self.seats[&other].clone());
        self.seats.insert(one, b);
        self.seats.insert(other, a);
    }

    /// Adds a cable between two switches.
    pub(crate) fn cable(&mut self, one: (&str, usize), other: (&str, usize)) {
        self.uplinks.push((one.0.to_owned(), one.1, other.0.to_owned(), other.1));
    }

    /// The text in the format of `ibnetdiscover`: switches with their cables, then HCAs.
    pub(crate) fn text(&self) -> String {
        let mut switches: BTreeMap<&str, Vec<(usize, String)>> = BTreeMap::new();
        let mut guids: BTreeMap<&str, usize> = BTreeMap::new();
        for (leaf, _, spine, _) in &self.uplinks {
            for name in [leaf, spine] {
                let next = guids.len() + 1;
                guids.entry(name).or_insert(next);
            }
        }
        for (leaf, _) in self.seats.values() {
            let next = guids.len() + 1;
            guids.entry(leaf).or_insert(next);
        }
        for ((node, rail), (leaf, port)) in &self.seats {
            let peer = format!(
                "\"H-{:x}\"[1](0)  # \"gn{} mlx5_{rail}\" lid 0 4xNDR",
                node * 100 + rail + 1,
                node + 1
            );
            switches.entry(leaf).or_default().push((*port, peer));
        }
        for (leaf, port, spine, spine_port) in &self.uplinks {
            for (at, own, peer, far) in [(leaf, port, spine, spine_port), (spine, spine_port, leaf, port)] {
                let text = format!("\"S-{:x}\"[{far}]  # \"{peer}\" lid 0 4xNDR", guids[peer.as_str()]);
                switches.entry(at).or_default().push((*own, text));
            }
        }
        let mut text = String::new();
        for (name, ports) in switches {
            let _ =
                writeln!(text, "Switch 254 \"S-{:x}\"  # \"{name}\" base port 0 lid 0 lmc 0", guids[name]);
            for (port, peer) in ports {
                let _ = writeln!(text, "[{port}] {peer}");
            }
            text.push('\n');
        }
        for ((node, rail), (leaf, port)) in &self.seats {
            let hca = node * 100 + rail + 1;
            let _ = writeln!(text, "Ca 1 \"H-{hca:x}\"  # \"gn{} mlx5_{rail}\"", node + 1);
            let _ = writeln!(
                text,
                "[1](0) \"S-{:x}\"[{port}]  # lid 0 lmc 0 \"{leaf}\" lid 0 4xNDR\n",
                guids[leaf.as_str()]
            );
        }
        text
    }
}
