use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `[rails]`: what the site wants NCCL to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RailsConfig {
    /// Give tasks an NCCL environment at all.
    pub environment: bool,
    /// Interface for NCCL's bootstrap, exact name; absent: the one of the default route.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket_interface: Option<String>,
    /// RoCE traffic class, 0 to 255: DSCP times four. Ignored on InfiniBand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic_class: Option<u32>,
    /// InfiniBand service level, 0 to 15.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_level: Option<u32>,
    /// Queue pairs for each connection, 1 to 128: more than one spreads flows over ECMP paths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_pairs: Option<u32>,
    /// NCCL_CROSS_NIC, 0 to 2: 0 only where rails are not connected with one another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cross_nic: Option<u32>,
    /// Give every job a RAS port of its own.
    pub ras: bool,
    /// Variables of the site's own, for every job with GPUs; they replace a rule's value.
    pub set: BTreeMap<String, String>,
    /// Variables that override the user's own value. Names that nothing sets have no effect.
    pub force: Vec<String>,
    /// Variables that railgate never sets.
    pub leave: Vec<String>,
    /// What `--railgate-profile=NAME` adds; `debug` is built in and can be replaced here.
    pub profiles: BTreeMap<String, BTreeMap<String, String>>,
}

impl Default for RailsConfig {
    fn default() -> Self {
        RailsConfig {
            environment: true,
            socket_interface: None,
            traffic_class: None,
            service_level: None,
            queue_pairs: None,
            cross_nic: None,
            ras: true,
            set: BTreeMap::new(),
            force: Vec::new(),
            leave: Vec::new(),
            profiles: BTreeMap::new(),
        }
    }
}

/// Upper-case ASCII, as environment variables of NCCL and CUDA are.
pub(crate) fn name_ok(name: &str) -> bool {
    name.len() <= 128
        && name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

/// Printable ASCII on one line.
pub(crate) fn value_ok(value: &str) -> bool {
    value.len() <= 4096 && value.chars().all(|c| c == ' ' || c.is_ascii_graphic())
}

impl RailsConfig {
    /// Values out of range, one line each.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut range = |key: &str, value: Option<u32>, from: u32, to: u32| {
            if let Some(value) = value
                && !(from..=to).contains(&value)
            {
                problems.push(format!("rails.{key}: {value} is not within {from} to {to}"));
            }
        };
        range("traffic_class", self.traffic_class, 0, 255);
        range("service_level", self.service_level, 0, 15);
        range("queue_pairs", self.queue_pairs, 1, 128);
        range("cross_nic", self.cross_nic, 0, 2);
        if let Some(interface) = &self.socket_interface
            && (interface.is_empty() || interface.contains([',', '=', '^']) || !value_ok(interface))
        {
            problems.push(format!("rails.socket_interface: '{interface}' is not the name of one interface"));
        }
        let tables = std::iter::once(("set".to_owned(), &self.set))
            .chain(self.profiles.iter().map(|(name, table)| (format!("profiles.{name}"), table)));
        for (table, settings) in tables {
            for (name, value) in settings {
                if !name_ok(name) {
                    problems.push(format!("rails.{table}.{name}: not a variable name ([A-Z][A-Z0-9_]*)"));
                }
                if !value_ok(value) {
                    problems.push(format!("rails.{table}.{name}: value is not printable ASCII on one line"));
                }
            }
        }
        for (key, names) in [("force", &self.force), ("leave", &self.leave)] {
            for name in names.iter().filter(|name| !name_ok(name)) {
                problems.push(format!("rails.{key}: '{name}' is not a variable name"));
            }
        }
        for name in self.leave.iter().filter(|name| self.set.contains_key(*name)) {
            problems.push(format!("rails.leave: '{name}' is in rails.set as well"));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_in_range() {
        assert!(RailsConfig::default().problems().is_empty());
    }

    #[test]
    fn every_bad_value_is_named() {
        let config = RailsConfig {
            traffic_class: Some(256),
            socket_interface: Some("eth0,eth1".to_owned()),
            set: BTreeMap::from([
                ("LD_PRELOAD".to_owned(), "x\ny".to_owned()),
                ("a-b".to_owned(), String::new()),
            ]),
            force: vec!["nccl_debug".to_owned()],
            leave: vec!["LD_PRELOAD".to_owned()],
            ..RailsConfig::default()
        };
        let problems = config.problems();
        assert_eq!(problems.len(), 6, "{problems:#?}");
    }
}
