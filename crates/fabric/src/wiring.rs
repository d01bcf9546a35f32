//! The site's intended wiring.

use serde::Deserialize;

/// The intended leaf switches of the rails, rail 0 first. If it is empty, the majority of the nodes determines what is
/// right.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Wiring {
    /// One table `[[rail]]` for each rail, in order. HCA ports that are not in any of them are left out.
    pub rail: Vec<WiredRail>,
}

/// One rail.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WiredRail {
    /// Names of the HCA; several if machine types differ.
    pub hcas: Vec<String>,
    /// Port of the HCA, from 1.
    #[serde(default = "first_port")]
    pub port: u8,
    /// Allowed leaf switches of this rail; empty: any, but the same for all nodes of a unit.
    #[serde(default)]
    pub leafs: Vec<String>,
}

fn first_port() -> u8 {
    1
}

impl Wiring {
    /// Returns problems of the table, one line each.
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

    /// Returns the rail of an HCA port.
    pub(crate) fn rail_of(&self, hca: &str, port: u8) -> Option<usize> {
        self.rail.iter().position(|rail| rail.port == port && rail.hcas.iter().any(|name| name == hca))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wiring_table_is_parsed_and_checked() {
        let text = "[[rail]]\nhcas = ['mlx5_0', 'mlx5_4']\nleafs = ['leaf-0']\n[[rail]]\nhcas = ['mlx5_4']\n";
        let wiring: Wiring = toml::from_str(text).unwrap();
        assert_eq!(wiring.problems(), ["rail 1: mlx5_4 port 1 is in two rails"]);
        assert_eq!(wiring.rail_of("mlx5_0", 1), Some(0));
        assert_eq!(wiring.rail_of("mlx5_0", 2), None);
        assert!(toml::from_str::<Wiring>("[[rail]]\nhca = 'mlx5_0'\n").is_err());
    }
}
