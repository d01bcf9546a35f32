//! The place of a node: its switches from the top of the tree to its leaf.

use railgate_text::shorten;

/// The longest address that is read, bytes.
pub const MAX_ADDRESS: usize = 4096;

/// The longest name of a switch, bytes. Slurm allows 64 for one switch; a name here may stand for several.
const MAX_NAME: usize = 16_384;

/// Most tiers of a tree.
pub(super) const MAX_DEPTH: usize = 16;

/// What is known of the place of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// No source names the node, or sources contradict each other.
    Unknown,
    /// The switches above the node.
    Known(SwitchPath),
}

impl Place {
    pub(super) fn depth(&self) -> usize {
        match self {
            Place::Unknown => 0,
            Place::Known(path) => path.0.len(),
        }
    }
}

/// The switches above a node, from the top of the tree to its leaf. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchPath(Vec<String>);

impl SwitchPath {
    /// Creates a path of names from the top to the leaf. Returns `None` if there is none, or more than 16 of them, or if a name is empty,
    /// longer than 16 KiB or has characters other than printable ASCII.
    pub fn new(switches: Vec<String>) -> Option<Self> {
        let name = |name: &String| {
            !name.is_empty() && name.len() <= MAX_NAME && name.bytes().all(|byte| byte.is_ascii_graphic())
        };
        let good = (1..=MAX_DEPTH).contains(&switches.len()) && switches.iter().all(name);
        good.then_some(SwitchPath(switches))
    }

    /// Returns the names from the top to the leaf.
    pub fn switches(&self) -> &[String] {
        &self.0
    }

    /// Returns how many tiers a message climbs to the other node: 0 under the same leaf, 1 if only the leafs differ.
    pub(super) fn climb(&self, other: &SwitchPath) -> usize {
        let shared = self.0.iter().zip(&other.0).take_while(|(one, other)| one == other).count();
        self.0.len().max(other.0.len()) - shared
    }
}

/// An address from which no place can be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAddress {
    /// It has more than [`MAX_ADDRESS`] bytes.
    #[error("SLURM_TOPOLOGY_ADDR has more than {MAX_ADDRESS} bytes")]
    TooLong,
    /// Control characters or characters outside ASCII.
    #[error("SLURM_TOPOLOGY_ADDR '{0}': characters that no switch has in its name")]
    Characters(String),
    /// Address and pattern have different numbers of names, or the address names no switch.
    #[error("SLURM_TOPOLOGY_ADDR '{address}' does not match its pattern '{pattern}'")]
    Mismatch {
        /// The address.
        address: String,
        /// The pattern.
        pattern: String,
    },
    /// A pattern of another topology than tree or block.
    #[error("SLURM_TOPOLOGY_ADDR_PATTERN '{0}': neither a tree of switches nor a block")]
    Pattern(String),
}

/// Returns the place from `SLURM_TOPOLOGY_ADDR` and `SLURM_TOPOLOGY_ADDR_PATTERN`, for example `core.spine1.leaf7.gn12` with
/// `switch.switch.switch.node`, or `b1.gn12` with `block.node`. Slurm sets both on each node for the node's own tasks.
///
/// Where a node has several switches of a tier, the address has a host list, for example `spine[1-2]`. It stands for one switch.
///
/// # Errors
/// [`BadAddress`]; then the place is unknown.
pub fn place_of_address(address: &str, pattern: &str) -> Result<Place, BadAddress> {
    if address.len() > MAX_ADDRESS || pattern.len() > MAX_ADDRESS {
        return Err(BadAddress::TooLong);
    }
    let shown = |text: &str| shorten(text, 80);
    if let Some(text) =
        [address, pattern].into_iter().find(|text| !text.bytes().all(|byte| byte.is_ascii_graphic()))
    {
        return Err(BadAddress::Characters(shown(text)));
    }
    // Without a topology, Slurm sets the name of the node alone.
    if address.is_empty() || pattern == "node" {
        return Ok(Place::Unknown);
    }
    let kinds: Vec<&str> = pattern.split('.').collect();
    let of_switches = match kinds.split_last() {
        Some((&"node", above)) => above == ["block"] || above.iter().all(|kind| *kind == "switch"),
        _ => false,
    };
    if !of_switches {
        return Err(BadAddress::Pattern(shown(pattern)));
    }
    let mismatch = || BadAddress::Mismatch { address: shown(address), pattern: shown(pattern) };
    let names: Vec<&str> = address.split('.').collect();
    let Some((_, switches)) = names.split_last() else { return Err(mismatch()) };
    if names.len() != kinds.len() {
        return Err(mismatch());
    }
    // A tier in which no switch is above the node has an empty name.
    let switches = switches.iter().filter(|name| !name.is_empty()).map(|name| (*name).to_owned()).collect();
    SwitchPath::new(switches).map(Place::Known).ok_or_else(mismatch)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(address: &str, pattern: &str) -> Vec<String> {
        match place_of_address(address, pattern).unwrap() {
            Place::Known(path) => path.0,
            Place::Unknown => Vec::new(),
        }
    }

    #[test]
    fn addresses_of_trees_and_blocks_are_read() {
        assert_eq!(path("core.spine1.leaf7.gn12", "switch.switch.switch.node"), ["core", "spine1", "leaf7"]);
        assert_eq!(path("b1.gn12", "block.node"), ["b1"]);
        assert_eq!(path("spine[1-2].leaf1.gn3", "switch.switch.node"), ["spine[1-2]", "leaf1"]);
        assert_eq!(path(".leaf4.gn12", "switch.switch.node"), ["leaf4"]);
    }

    #[test]
    fn a_cluster_without_topology_gives_no_place() {
        assert_eq!(path("gn1", "node"), [""; 0]);
        assert_eq!(path("", ""), [""; 0]);
    }

    #[test]
    fn hostile_addresses_are_errors() {
        let long = format!("{}.gn1", "a".repeat(MAX_ADDRESS));
        assert_eq!(place_of_address(&long, "switch.node"), Err(BadAddress::TooLong));
        for address in ["leaf\n1.gn1", "leaf\u{1b}[2J.gn1", "le\u{e4}f.gn1", "leaf 1.gn1", "leaf\0.gn1"] {
            let bad = place_of_address(address, "switch.node").unwrap_err();
            assert!(matches!(bad, BadAddress::Characters(_)), "{address:?}");
            assert!(!bad.to_string().contains(char::is_control), "{bad}");
        }
        for (address, pattern) in [
            ("leaf1.rack.gn1", "switch.node"),
            ("gn1", "switch.node"),
            (".gn1", "switch.node"),
            (&"x.".repeat(40), &format!("{}node", "switch.".repeat(40))),
        ] {
            let bad = place_of_address(address, pattern).unwrap_err();
            assert!(matches!(bad, BadAddress::Mismatch { .. }), "{address}: {bad:?}");
        }
        for pattern in
            ["ring:position.node", "torus:x:y:z.node", "switch.block.node", "switch", "node.switch"]
        {
            assert!(matches!(place_of_address("a.b", pattern), Err(BadAddress::Pattern(_))), "{pattern}");
        }
    }
}
