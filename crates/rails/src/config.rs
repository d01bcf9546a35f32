use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `[rails]`: what the site wants NCCL to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RailsConfig {
    /// Give tasks an NCCL environment at all.
    pub environment: bool,
    /// Interface of NCCL's bootstrap, exact name; absent: the one of the default route.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket_ifname: Option<String>,
    /// RoCE traffic class, 0 to 255: DSCP times four. Has no effect on InfiniBand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic_class: Option<u32>,
    /// InfiniBand service level, 0 to 15. Has no effect on RoCE.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_level: Option<u32>,
    /// Queue pairs of each connection, 1 to 128: more than one spreads RoCE flows over ECMP paths. Has no
    /// effect on InfiniBand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_pairs: Option<u32>,
    /// `NCCL_CROSS_NIC`, 0 to 2: 0 only where the rails are not connected with one another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cross_nic: Option<u32>,
    /// Give every job a RAS port of its own.
    pub ras: bool,
    /// When NCCL gets a topology file.
    pub topology_file: TopologyFile,
    /// Variables of the site's own, for every job with GPUs; they replace a rule's value.
    pub set: BTreeMap<String, String>,
    /// Variables that override the user's own value. Names that nothing sets have no effect.
    pub force: Vec<String>,
    /// Variables that railgate never sets.
    pub never: Vec<String>,
    /// What `--railgate-profile=NAME` adds. `debug` is built in, and can be replaced here.
    pub profiles: BTreeMap<String, UserProfile>,
}

/// When NCCL gets a topology file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TopologyFile {
    /// On virtual machines that hide their PCI switches, where the machine profile knows the wiring.
    #[default]
    Auto,
    /// Nowhere.
    Never,
    /// Wherever one can be made, on bare metal too.
    Always,
}

/// `[rails.profiles.<name>]`: variables that a user asks for by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UserProfile {
    /// One line for people.
    pub about: String,
    /// Its variables; they replace those of the rules and of `[rails] set`, except where `force` holds them.
    pub set: BTreeMap<String, String>,
}

/// Nobody defined a profile of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no environment profile '{name}' (known: {})", known.join(", "))]
pub struct UnknownProfile {
    /// What was asked for, made printable and short.
    pub name: String,
    /// What there is.
    pub known: Vec<String>,
}

/// The profile that every site has.
pub(crate) const DEBUG: &str = "debug";

impl Default for RailsConfig {
    fn default() -> Self {
        RailsConfig {
            environment: true,
            socket_ifname: None,
            traffic_class: None,
            service_level: None,
            queue_pairs: None,
            cross_nic: None,
            ras: true,
            topology_file: TopologyFile::Auto,
            set: BTreeMap::new(),
            force: Vec::new(),
            never: Vec::new(),
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

/// Whose variables these are: another program computes them, and a fixed value would break it.
fn owner(name: &str) -> Option<&'static str> {
    const OWNERS: &[(&str, &str)] = &[("SLURM_", "Slurm"), ("SPANK_", "Slurm"), ("RAILGATE_", "railgate")];
    OWNERS.iter().find(|(prefix, _)| name.starts_with(prefix)).map(|(_, owner)| *owner)
}

fn profile_name_ok(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && !name.starts_with('-')
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

impl RailsConfig {
    /// Names that `--railgate-profile` accepts, in order.
    pub fn profile_names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.profiles.keys().cloned().collect();
        if !self.profiles.contains_key(DEBUG) {
            names.push(DEBUG.to_owned());
            names.sort();
        }
        names
    }

    /// Whether `--railgate-profile=NAME` means something here.
    ///
    /// # Errors
    /// [`UnknownProfile`] lists the known ones.
    pub fn check_profile(&self, name: &str) -> Result<(), UnknownProfile> {
        if name == DEBUG || self.profiles.contains_key(name) {
            return Ok(());
        }
        let name = name.chars().take(64).map(|c| if c.is_control() { '?' } else { c }).collect();
        Err(UnknownProfile { name, known: self.profile_names() })
    }

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
        if let Some(interface) = &self.socket_ifname {
            // NCCL ignores interfaces with names of one character.
            let one = (2..=15).contains(&interface.len())
                && interface
                    .chars()
                    .all(|c| c.is_ascii_graphic() && !matches!(c, ',' | '=' | '^' | '/' | ':'));
            if !one {
                problems.push(format!("rails.socket_ifname: '{interface}' is not the name of one interface"));
            }
        }
        let tables = std::iter::once(("set".to_owned(), &self.set)).chain(
            self.profiles.iter().map(|(name, profile)| (format!("profiles.{name}.set"), &profile.set)),
        );
        for (table, settings) in tables {
            for (name, value) in settings {
                if !name_ok(name) {
                    problems.push(format!("rails.{table}.{name}: not a variable name ([A-Z][A-Z0-9_]*)"));
                } else if let Some(owner) = owner(name) {
                    problems.push(format!("rails.{table}.{name}: the variable is {owner}'s own"));
                }
                if !value_ok(value) {
                    problems.push(format!("rails.{table}.{name}: value is not printable ASCII on one line"));
                }
            }
        }
        for name in self.profiles.keys().filter(|name| !profile_name_ok(name)) {
            problems.push(format!("rails.profiles.{name}: not a profile name ([a-z0-9-], at most 64)"));
        }
        for (key, names) in [("force", &self.force), ("never", &self.never)] {
            for name in names.iter().filter(|name| !name_ok(name)) {
                problems.push(format!("rails.{key}: '{name}' is not a variable name"));
            }
        }
        for name in &self.never {
            for (key, has) in [("set", self.set.contains_key(name)), ("force", self.force.contains(name))] {
                if has {
                    problems.push(format!("rails.never: '{name}' is in rails.{key} as well"));
                }
            }
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
            socket_ifname: Some("eth0,eth1".to_owned()),
            set: BTreeMap::from([
                ("LD_PRELOAD".to_owned(), "x\ny".to_owned()),
                ("a-b".to_owned(), String::new()),
                ("SLURM_PROCID".to_owned(), "0".to_owned()),
            ]),
            force: vec!["nccl_debug".to_owned()],
            never: vec!["LD_PRELOAD".to_owned()],
            profiles: BTreeMap::from([("Fast one".to_owned(), UserProfile::default())]),
            ..RailsConfig::default()
        };
        let problems = config.problems();
        assert_eq!(problems.len(), 8, "{problems:#?}");
    }

    #[test]
    fn an_unknown_profile_is_an_error_with_the_known_ones() {
        let mut config = RailsConfig::default();
        config.profiles.insert("fast".to_owned(), UserProfile::default());
        assert_eq!(config.check_profile("debug"), Ok(()));
        assert_eq!(config.check_profile("fast"), Ok(()));
        let why = config.check_profile("slow\x1b[2J").unwrap_err().to_string();
        assert_eq!(why, "no environment profile 'slow?[2J' (known: debug, fast)");
    }

    #[test]
    fn the_table_reads_as_the_documentation_writes_it() {
        let config: RailsConfig = toml::from_str(
            r#"
            socket_ifname = "bond0"
            topology_file = "never"
            traffic_class = 106
            set = { NCCL_IB_TIMEOUT = "22" }
            force = ["NCCL_IB_HCA"]
            never = ["NCCL_RAS_ADDR"]
            [profiles.loud]
            about = "every line"
            set = { NCCL_DEBUG = "INFO" }
            "#,
        )
        .unwrap();
        assert_eq!(config.topology_file, TopologyFile::Never);
        assert_eq!(config.profiles["loud"].set["NCCL_DEBUG"], "INFO");
        assert!(config.environment && config.problems().is_empty());
        assert_eq!(toml::from_str::<RailsConfig>(&toml::to_string(&config).unwrap()).unwrap(), config);
        assert!(toml::from_str::<RailsConfig>("forse = []").unwrap_err().to_string().contains("`force`"));
    }
}
