//! What the site says of its wiring.

use serde::Deserialize;

/// How the site means its rails to be wired, rail 0 first. Empty: the nodes themselves are asked, and the
/// majority is right.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Wiring {
    /// One table `[[rail]]` for each rail, in their order. HCA ports that none of them names are left out.
    pub rail: Vec<WiredRail>,
}

/// One rail.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WiredRail {
    /// What the HCA is called; several names where machine types differ.
    pub hcas: Vec<String>,
    /// Its port, from 1.
    #[serde(default = "first_port")]
    pub port: u8,
    /// The leafs that this rail may sit on; empty: any, all nodes of a unit the same.
    #[serde(default)]
    pub leafs: Vec<String>,
}

fn first_port() -> u8 {
    1
}

impl Wiring {
    /// What is wrong with it, for a person.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut seen = std::collections::BTreeSet::new();
        for (number, rail) in self.rail.iter().enumerate() {
            if rail.hcas.is_empty() {
                problems.push(format!("rail {number}: hcas is empty"));
            }
            for hca in &rail.hcas {
                if !seen.insert((hca, rail.port)) {
                    problems.push(format!("rail {number}: {hca} port {} is in two rails", rail.port));
                }
            }
        }
        problems
    }

    /// The rail of an HCA port.
    pub(crate) fn rail_of(&self, hca: &str, port: u8) -> Option<usize> {
        self.rail.iter().position(|rail| rail.port == port && rail.hcas.iter().any(|name| name == hca))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_and_checked() {
        let text = "[[rail]]\nhcas = ['mlx5_0', 'mlx5_4']\nleafs = ['leaf-0']\n[[rail]]\nhcas = ['mlx5_4']\n";
        let wiring: Wiring = toml::from_str(text).unwrap();
        assert_eq!(wiring.problems(), ["rail 1: mlx5_4 port 1 is in two rails"]);
        assert_eq!(wiring.rail_of("mlx5_0", 1), Some(0));
        assert_eq!(wiring.rail_of("mlx5_0", 2), None);
        assert!(toml::from_str::<Wiring>("[[rail]]\nhca = 'mlx5_0'\n").is_err());
    }
}
