use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use railgate_model::{Net, duration_text};
use serde::{Deserialize, Serialize};

use crate::SiteRule;

/// `[rails]`: the site's settings for NCCL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RailsConfig {
    /// Whether tasks get an NCCL environment.
    pub environment: bool,
    /// Network plugin of jobs that do not select one; `None`: derived from the node's devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub net: Option<Net>,
    /// Interface of NCCL's bootstrap, exact name; `None`: that of the default route.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket_ifname: Option<String>,
    /// RoCE traffic class, 0 to 255: DSCP times four. Has no effect on InfiniBand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic_class: Option<u32>,
    /// RoCE traffic class of NCCL's small control messages, 0 to 255; `None`: as for data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_traffic_class: Option<u32>,
    /// Whether the network routes adaptively; `None`: NCCL's default, which is yes for InfiniBand and no for RoCE.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adaptive_routing: Option<bool>,
    /// For RoCE ports with several addresses: the network of the right one, for example `10.4.0.0/16`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid_range: Option<String>,
    /// `NCCL_IB_TIMEOUT`, 14 to 26: one try lasts 4.096 µs × 2^timeout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ib_timeout: Option<u32>,
    /// `NCCL_IB_RETRY_CNT`, 1 to 7.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ib_retries: Option<u32>,
    /// Timeout of the framework's watchdog. All retries of NCCL together must end before it.
    #[serde(with = "duration_text")]
    pub watchdog: Duration,
    /// Maximum distance between a GPU and an HCA that accesses its memory directly: `LOC` (never), `PIX`, `PXB` or
    /// `PHB`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gdr_level: Option<String>,
    /// The ports of one card are on different rails, so NCCL must not merge them.
    pub split_ports: bool,
    /// Whether NCCL moves the traffic of a failed port to the other port of its card, where it can.
    pub port_failover: bool,
    /// Whether NCCL uses a port again that returns, where it can; needs `port_failover`.
    pub port_recovery: bool,
    /// InfiniBand service level, 0 to 15. Has no effect on RoCE.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_level: Option<u32>,
    /// Number of queue pairs per connection, 1 to 128. More than one spreads RoCE flows over ECMP paths; no effect on
    /// InfiniBand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_pairs: Option<u32>,
    /// `NCCL_CROSS_NIC`, 0 to 2. Set it to 0 only if the rails are not connected with each other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cross_nic: Option<u32>,
    /// Whether each job gets its own RAS port.
    pub ras: bool,
    /// Whether PyTorch's flight recorder can be read when a job hangs.
    pub flight_recorder: bool,
    /// NCCL profiler plugin for every job with GPUs, absolute path; `None`: no plugin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profiler: Option<String>,
    /// NCCL environment plugin, which sets values that depend on the NCCL release; empty: no plugin.
    pub env_plugin: String,
    /// When NCCL gets a topology file.
    pub topology_file: TopologyFile,
    /// The site's own variables for every job with GPUs. They replace the value of a rule.
    pub set: BTreeMap<String, String>,
    /// Variables that override the user's value. Names that are not set otherwise have no effect.
    pub force: Vec<String>,
    /// Variables that railgate never sets.
    pub never: Vec<String>,
    /// Variables of `--railgate-profile=NAME`. `debug`, `latency` and `throughput` are built in, and can be replaced
    /// here.
    pub profiles: BTreeMap<String, UserProfile>,
    /// Further variables under conditions. A later rule replaces the value of an earlier one.
    pub rules: Vec<SiteRule>,
}

/// When NCCL gets a topology file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TopologyFile {
    /// On virtual machines that hide their PCI switches, if the machine profile has the wiring.
    #[default]
    Auto,
    /// On no node.
    Never,
    /// On every node for which one can be made, including bare metal.
    Always,
}

/// `[rails.profiles.<name>]`: variables that a user requests by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UserProfile {
    /// One line for people.
    pub about: String,
    /// Variables. They replace those of the rules and of `[rails] set`, except variables in `force`.
    pub set: BTreeMap<String, String>,
}

/// There is no profile of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no environment profile '{name}' (known: {})", known.join(", "))]
pub struct UnknownProfile {
    /// The requested name, made printable and truncated.
    pub name: String,
    /// The known names.
    pub known: Vec<String>,
}

/// Writes NCCL's warnings to one file per process.
pub(crate) const DEBUG: &str = "debug";
/// For many small collectives.
pub(crate) const LATENCY: &str = "latency";
/// For few large collectives.
pub(crate) const THROUGHPUT: &str = "throughput";
/// Built-in profiles.
pub(crate) const BUILT_IN: [&str; 3] = [DEBUG, LATENCY, THROUGHPUT];

/// Path of the environment plugin in the packages.
const ENV_PLUGIN: &str = "/usr/lib/railgate/libnccl-env-railgate.so";
/// NCCL's own defaults, from 2.23 on.
const IB_TIMEOUT: u32 = 20;
const IB_RETRIES: u32 = 7;
/// Default of PyTorch's ProcessGroupNCCL.
const WATCHDOG: Duration = Duration::from_secs(600);
/// NCCL stores the path of a plugin in 255 bytes.
const MOST_PATH: usize = 254;

impl Default for RailsConfig {
    fn default() -> Self {
        RailsConfig {
            environment: true,
            net: None,
            socket_ifname: None,
            traffic_class: None,
            control_traffic_class: None,
            adaptive_routing: None,
            gid_range: None,
            ib_timeout: None,
            ib_retries: None,
            watchdog: WATCHDOG,
            gdr_level: None,
            split_ports: false,
            port_failover: false,
            port_recovery: false,
            service_level: None,
            queue_pairs: None,
            cross_nic: None,
            ras: true,
            flight_recorder: false,
            profiler: None,
            env_plugin: ENV_PLUGIN.to_owned(),
            topology_file: TopologyFile::Auto,
            set: BTreeMap::new(),
            force: Vec::new(),
            never: Vec::new(),
            profiles: BTreeMap::new(),
            rules: Vec::new(),
        }
    }
}

/// Whether it is an upper-case ASCII name, like those of NCCL's and CUDA's environment variables.
pub(crate) fn name_ok(name: &str) -> bool {
    name.len() <= 128
        && name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

/// Whether it is printable ASCII on one line.
pub(crate) fn value_ok(value: &str) -> bool {
    value.len() <= 4096 && value.chars().all(|c| c == ' ' || c.is_ascii_graphic())
}

/// The program that computes this variable itself, so that a fixed value would break it.
fn owner(name: &str) -> Option<&'static str> {
    const OWNERS: &[(&str, &str)] = &[("SLURM_", "Slurm"), ("SPANK_", "Slurm"), ("RAILGATE_", "railgate")];
    OWNERS.iter().find(|(prefix, _)| name.starts_with(prefix)).map(|(_, owner)| *owner)
}

fn profile_name_ok(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && !name.starts_with('-')
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// The address of a network such as `10.4.0.0/16`.
fn network(text: &str) -> Option<IpAddr> {
    let (address, bits) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    bits.parse::<u8>().is_ok_and(|bits| bits <= most).then_some(address)
}

impl RailsConfig {
    /// Returns the names that `--railgate-profile` accepts, sorted.
    pub fn profile_names(&self) -> Vec<String> {
        let rules = self.rules.iter().filter_map(|rule| rule.profile.clone());
        let built_in = BUILT_IN.into_iter().map(str::to_owned);
        let mut names: Vec<String> = self.profiles.keys().cloned().chain(rules).chain(built_in).collect();
        names.sort();
        names.dedup();
        names
    }

    /// Checks a name given as `--railgate-profile=NAME`.
    ///
    /// # Errors
    /// Returns [`UnknownProfile`], with the known names, if there is no such profile.
    pub fn check_profile(&self, name: &str) -> Result<(), UnknownProfile> {
        let known = self.profile_names();
        if known.iter().any(|have| have == name) {
            return Ok(());
        }
        let name = railgate_text::clip(name, 64);
        Err(UnknownProfile { name, known })
    }

    /// The network of the right address of a RoCE port.
    pub(crate) fn gid_network(&self) -> Option<(&str, IpAddr)> {
        let text = self.gid_range.as_deref()?;
        Some((text, network(text)?))
    }

    /// Time for which NCCL waits for a peer that does not respond, with the site's values or NCCL's defaults.
    pub(crate) fn patience(&self) -> Duration {
        let timeout = self.ib_timeout.unwrap_or(IB_TIMEOUT).min(31);
        let retries = self.ib_retries.unwrap_or(IB_RETRIES);
        Duration::from_nanos(4096).saturating_mul(1 << timeout).saturating_mul(retries)
    }

    /// Returns the settings that are out of range, one line each.
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
        range("control_traffic_class", self.control_traffic_class, 0, 255);
        range("ib_timeout", self.ib_timeout, 14, 26);
        range("ib_retries", self.ib_retries, 1, 7);
        if (self.ib_timeout.is_some() || self.ib_retries.is_some()) && self.patience() >= self.watchdog {
            let (has, most) = (self.patience().as_secs(), self.watchdog.as_secs());
            let what = "the framework would give up first, and the report could not name the link";
            problems.push(format!(
                "rails.ib_timeout: all tries last {has} s, rails.watchdog is {most} s: {what}"
            ));
        }
        if let Some(range) = self.gid_range.as_deref().filter(|range| network(range).is_none()) {
            problems.push(format!("rails.gid_range: '{range}' is not a network such as 10.4.0.0/16"));
        }
        if let Some(level) =
            self.gdr_level.as_deref().filter(|level| !matches!(*level, "LOC" | "PIX" | "PXB" | "PHB"))
        {
            problems.push(format!("rails.gdr_level: '{level}' is none of LOC, PIX, PXB and PHB"));
        }
        let env_plugin = Some(&self.env_plugin).filter(|path| !path.is_empty());
        for (key, path) in [("profiler", self.profiler.as_ref()), ("env_plugin", env_plugin)] {
            if let Some(path) =
                path.filter(|path| !path.starts_with('/') || path.len() > MOST_PATH || !value_ok(path))
            {
                problems.push(format!(
                    "rails.{key}: '{path}' is not an absolute path of at most {MOST_PATH} bytes"
                ));
            }
        }
        if let Some(interface) = &self.socket_ifname {
            // NCCL ignores interface names of a single character.
            let one = (2..=15).contains(&interface.len())
                && interface
                    .chars()
                    .all(|c| c.is_ascii_graphic() && !matches!(c, ',' | '=' | '^' | '/' | ':'));
            if !one {
                problems.push(format!("rails.socket_ifname: '{interface}' is not the name of one interface"));
            }
        }
        let profiles =
            self.profiles.iter().map(|(name, profile)| (format!("profiles.{name}.set"), &profile.set));
        let rules = self.rules.iter().zip(1..).map(|(rule, at)| (format!("rules.{at}.set"), &rule.set));
        let tables = std::iter::once(("set".to_owned(), &self.set)).chain(profiles).chain(rules);
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
        for (rule, at) in self.rules.iter().zip(1..) {
            if rule.set.is_empty() {
                problems.push(format!("rails.rules.{at}.set: sets nothing"));
            }
            if let Some(name) = rule.profile.as_deref().filter(|name| !profile_name_ok(name)) {
                problems.push(format!(
                    "rails.rules.{at}.profile: '{name}' is not a profile name ([a-z0-9-], at most 64)"
                ));
            }
            if !value_ok(&rule.why) {
                problems.push(format!("rails.rules.{at}.why: not printable ASCII on one line"));
            }
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
    fn the_defaults_have_no_problem() {
        assert!(RailsConfig::default().problems().is_empty());
    }

    #[test]
    fn every_value_out_of_range_is_reported() {
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
            gid_range: Some("10.4.0.0/33".to_owned()),
            gdr_level: Some("SYS".to_owned()),
            profiler: Some("libnccl-profiler.so".to_owned()),
            ib_timeout: Some(13),
            rules: vec![SiteRule {
                profile: Some("A B".to_owned()),
                why: "\n".to_owned(),
                ..SiteRule::default()
            }],
            ..RailsConfig::default()
        };
        let problems = config.problems();
        assert_eq!(problems.len(), 15, "{problems:#?}");
    }

    #[test]
    fn nccl_must_give_up_before_the_framework_does() {
        let problems = |ib_timeout: Option<u32>, ib_retries: Option<u32>, watchdog: u64| {
            let watchdog = Duration::from_secs(watchdog);
            RailsConfig { ib_timeout, ib_retries, watchdog, ..RailsConfig::default() }.problems()
        };
        // 4.096 µs × 2^22 × 7 = 120 s.
        assert!(problems(Some(22), None, 600).is_empty());
        assert!(problems(Some(24), None, 600).is_empty());
        assert_eq!(problems(Some(25), None, 600).len(), 1);
        assert!(problems(Some(25), Some(2), 600).is_empty());
        let told = problems(Some(22), None, 100);
        assert!(
            told[0].starts_with("rails.ib_timeout: all tries last 120 s, rails.watchdog is 100 s"),
            "{told:?}"
        );
        assert!(problems(None, None, 1).is_empty(), "the site sets neither");
    }

    #[test]
    fn an_unknown_profile_is_an_error_with_the_known_ones() {
        let mut config = RailsConfig::default();
        config.profiles.insert("fast".to_owned(), UserProfile::default());
        assert_eq!(config.check_profile("debug"), Ok(()));
        assert_eq!(config.check_profile("fast"), Ok(()));
        let why = config.check_profile("slow\x1b[2J").unwrap_err().to_string();
        assert_eq!(why, "no environment profile 'slow?[2J' (known: debug, fast, latency, throughput)");
    }

    #[test]
    fn the_example_of_the_documentation_is_parsed() {
        let config: RailsConfig = toml::from_str(
            r#"
            socket_ifname = "bond0"
            topology_file = "never"
            traffic_class = 106
            set = { NCCL_IB_TIMEOUT = "22" }
            force = ["NCCL_IB_HCA"]
            never = ["NCCL_RAS_ADDR"]
            net = "ofi"
            [profiles.loud]
            about = "every line"
            set = { NCCL_DEBUG = "INFO" }
            [[rules]]
            why = "a bug"
            set = { NCCL_EXAMPLE = "0" }
            link_layer = "ethernet"
            nodes = "several"
            gpus = "part"
            virtualised = false
            nccl = ">=2.29.2,<2.30.7"
            profile = "careful"
            net = ["ib", "sharp"]
            "#,
        )
        .unwrap();
        assert_eq!(config.topology_file, TopologyFile::Never);
        assert_eq!(
            (config.net, config.rules[0].nccl.to_string()),
            (Some(Net::Ofi), ">=2.29.2,<2.30.7".to_owned())
        );
        assert_eq!(config.check_profile("careful"), Ok(()));
        assert!(toml::from_str::<RailsConfig>("[[rules]]\nnccl = \"2.28\"").is_err());
        assert_eq!(config.profiles["loud"].set["NCCL_DEBUG"], "INFO");
        assert!(config.environment && config.problems().is_empty());
        assert_eq!(toml::from_str::<RailsConfig>(&toml::to_string(&config).unwrap()).unwrap(), config);
        assert!(toml::from_str::<RailsConfig>("forse = []").unwrap_err().to_string().contains("`force`"));
    }
}
