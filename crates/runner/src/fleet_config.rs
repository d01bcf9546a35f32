use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use railgate_model::duration_text;
use railgate_slurm::hostlist;
use serde::{Deserialize, Serialize};

/// `[fleet]`: the history of all nodes and jobs, kept by `railgate-fleet` on the controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FleetConfig {
    /// The history: an SQLite file on a local disk. Its directory belongs to the user of `railgate-fleet`.
    pub database: PathBuf,
    /// How often the sources are read.
    #[serde(with = "duration_text")]
    pub every: Duration,
    /// How long events are kept, days.
    pub retention_days: u32,
    /// What is done about a node that fails more often than the fleet.
    pub lemons: Lemons,
    /// Most nodes that are drained for that at the same time.
    pub max_lemons: usize,
    /// An alert begins when a job has waited this long for nodes. Zero: the queue is not read.
    #[serde(with = "duration_text")]
    pub queue_wait: Duration,
    /// An alert begins when all GPUs of a running job have been idle for this long. Zero: the reports are not read for it.
    #[serde(with = "duration_text")]
    pub idle_gpus: Duration,
    /// File systems of the site that are watched, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub storage: BTreeMap<String, StorageConfig>,
    /// The fabric manager whose alarms are read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ufm: Option<UfmConfig>,
    /// The cluster whose reports are read. Needed if `[report] dir` has those of several clusters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Nodes of each leaf switch, as host lists.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub leaf: BTreeMap<String, String>,
    /// Nodes of each rack.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rack: BTreeMap<String, String>,
    /// Nodes of each power distribution unit.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub pdu: BTreeMap<String, String>,
    /// Nodes of each cooling row or loop.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub cooling: BTreeMap<String, String>,
    /// Nodes of each file server.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub file_server: BTreeMap<String, String>,
    /// Nodes of each image of the operating system.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub image: BTreeMap<String, String>,
}

/// `[fleet.storage.NAME]`: a file system that `railgate-fleet` watches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StorageConfig {
    /// A directory on it.
    pub path: PathBuf,
    /// An alert begins at this share of used space or inodes, percent.
    #[serde(default = "StorageConfig::full")]
    pub full: u8,
    /// An alert begins if two answers one after the other take longer than this.
    #[serde(default = "StorageConfig::slow", with = "duration_text")]
    pub slow: Duration,
}

impl StorageConfig {
    /// Deadline for an answer.
    pub const DEADLINE: Duration = Duration::from_secs(10);

    fn full() -> u8 {
        90
    }

    fn slow() -> Duration {
        Duration::from_secs(2)
    }

    fn problems(&self) -> Vec<(&'static str, String)> {
        let mut wrong = Vec::new();
        if !self.path.is_absolute() {
            wrong.push(("path", format!("'{}' is not an absolute path", self.path.display())));
        }
        if !(1..=99).contains(&self.full) {
            wrong.push(("full", format!("{} is not within 1 to 99 (percent)", self.full)));
        }
        if self.slow.is_zero() || self.slow >= Self::DEADLINE {
            let [is, most] = [self.slow, Self::DEADLINE].map(humantime::format_duration);
            wrong.push(("slow", format!("{is} is not more than 0s and less than {most}")));
        }
        wrong
    }
}

/// `[fleet.ufm]`: NVIDIA's Unified Fabric Manager, whose alarms are alerts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UfmConfig {
    /// Its address, without a path.
    pub url: String,
    /// A file with an access token.
    pub token_file: PathBuf,
    /// Certificates of authorities, PEM; `None`: those of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// Alarms of this severity and above count.
    #[serde(default = "UfmConfig::severity")]
    pub severity: UfmSeverity,
    /// Types of events whose alarms count in any severity.
    #[serde(default = "UfmConfig::events")]
    pub events: Vec<u32>,
}

/// Severities of alarms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UfmSeverity {
    /// A threshold was crossed.
    Warning,
    /// A part works, with a fault.
    Minor,
    /// A part does not work.
    Critical,
}

impl fmt::Display for UfmSeverity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UfmSeverity::Warning => "warning",
            UfmSeverity::Minor => "minor",
            UfmSeverity::Critical => "critical",
        })
    }
}

impl UfmConfig {
    /// The values without which there is no configuration, for an address on this machine.
    pub fn example() -> UfmConfig {
        UfmConfig {
            url: "https://localhost".to_owned(),
            token_file: PathBuf::from("/etc/railgate/secrets/ufm-token"),
            ca_file: None,
            severity: Self::severity(),
            events: Self::events(),
        }
    }

    fn severity() -> UfmSeverity {
        UfmSeverity::Critical
    }

    /// Bit errors of a link (110, 917, 918): the events that Imbue watched in a cluster of 4,092 H100.
    fn events() -> Vec<u32> {
        vec![110, 917, 918]
    }

    fn problems(&self) -> Vec<(&'static str, String)> {
        let mut wrong = Vec::new();
        let host = self.url.strip_prefix("https://").or_else(|| self.url.strip_prefix("http://"));
        if host.is_none_or(|host| host.trim_end_matches('/').is_empty()) {
            wrong.push(("url", "is not an address like https://ufm.example.org".to_owned()));
        }
        for (key, file) in [("token_file", Some(&self.token_file)), ("ca_file", self.ca_file.as_ref())] {
            if let Some(file) = file.filter(|file| !file.is_absolute()) {
                wrong.push((key, format!("'{}' is not an absolute path", file.display())));
            }
        }
        wrong
    }
}

/// Values of [`FleetConfig::lemons`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lemons {
    /// `railgate fleet` and a message propose to drain it.
    Propose,
    /// It is drained, within the limits of `[breaker]` and [`FleetConfig::max_lemons`].
    Drain,
}

impl Default for FleetConfig {
    fn default() -> Self {
        FleetConfig {
            database: PathBuf::from("/var/lib/railgate/fleet/fleet.db"),
            every: Duration::from_secs(60),
            retention_days: 400,
            lemons: Lemons::Propose,
            max_lemons: 2,
            queue_wait: Duration::ZERO,
            idle_gpus: Duration::ZERO,
            storage: BTreeMap::new(),
            ufm: None,
            cluster: None,
            leaf: BTreeMap::new(),
            rack: BTreeMap::new(),
            pdu: BTreeMap::new(),
            cooling: BTreeMap::new(),
            file_server: BTreeMap::new(),
            image: BTreeMap::new(),
        }
    }
}

/// slurmctld is asked once a minute at most. A pause of more than four minutes would end the lease of the history.
const EVERY: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(240));
/// The judgement needs the last 28 days.
const DAYS: (u32, u32) = (28, 3650);
/// Limits of [`FleetConfig::queue_wait`] and [`FleetConfig::idle_gpus`], if they are not zero.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(600), Duration::from_secs(30 * 86_400));
/// Most file systems that are watched.
const MOST_STORAGE: usize = 20;
/// Highest value of [`FleetConfig::max_lemons`].
const MOST_LEMONS: usize = 100;

impl FleetConfig {
    /// The tables of what nodes share, by their keys.
    pub fn shared(&self) -> [(&'static str, &BTreeMap<String, String>); 6] {
        [
            ("leaf", &self.leaf),
            ("rack", &self.rack),
            ("pdu", &self.pdu),
            ("cooling", &self.cooling),
            ("file_server", &self.file_server),
            ("image", &self.image),
        ]
    }

    /// Returns why this cannot be the pause between two readings of the sources; `None` if it can.
    pub fn wrong_pause(every: Duration) -> Option<String> {
        let (least, most) = EVERY;
        (!(least..=most).contains(&every)).then(|| {
            let shown = humantime::format_duration;
            format!("{} is not within {}s to {}s", shown(every), least.as_secs(), most.as_secs())
        })
    }

    /// Values out of range, one line each.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if !self.database.is_absolute() {
            problems.push(format!("fleet.database: '{}' is not an absolute path", self.database.display()));
        }
        problems.extend(Self::wrong_pause(self.every).map(|why| format!("fleet.every: {why}")));
        let (least, most) = DAYS;
        if !(least..=most).contains(&self.retention_days) {
            problems.push(format!(
                "fleet.retention_days: {} is not within {least} to {most}",
                self.retention_days
            ));
        }
        if !(1..=MOST_LEMONS).contains(&self.max_lemons) {
            let given = self.max_lemons;
            problems.push(format!("fleet.max_lemons: {given} is not within 1 to {MOST_LEMONS}"));
        }
        for (key, value) in [("queue_wait", self.queue_wait), ("idle_gpus", self.idle_gpus)] {
            let (least, most) = PATIENCE;
            if !value.is_zero() && !(least..=most).contains(&value) {
                let [is, least, most] = [value, least, most].map(humantime::format_duration);
                problems.push(format!("fleet.{key}: {is} is not within {least} to {most}; 0s: never"));
            }
        }
        if self.storage.len() > MOST_STORAGE {
            problems.push(format!("fleet.storage: more than {MOST_STORAGE}"));
        }
        for (name, storage) in &self.storage {
            let wrong = storage.problems().into_iter();
            problems.extend(wrong.map(|(key, why)| format!("fleet.storage.{name}.{key}: {why}")));
        }
        let of_ufm = self.ufm.iter().flat_map(UfmConfig::problems);
        problems.extend(of_ufm.map(|(key, why)| format!("fleet.ufm.{key}: {why}")));
        if let Some(cluster) = &self.cluster
            && railgate_store::dir_name(cluster).is_none()
        {
            problems.push(format!("fleet.cluster: '{cluster}' is not the name of a cluster"));
        }
        for (kind, table) in self.shared() {
            for (name, nodes) in table {
                if let Err(why) = hostlist::expand(nodes) {
                    problems.push(format!("fleet.{kind}.{name}: {why}"));
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
    fn every_value_out_of_range_is_named() {
        assert!(FleetConfig::default().problems().is_empty());
        let config = FleetConfig {
            database: PathBuf::from("fleet.db"),
            every: Duration::from_secs(5),
            retention_days: 1,
            max_lemons: 0,
            queue_wait: Duration::from_secs(5),
            idle_gpus: Duration::from_secs(31 * 86_400),
            storage: BTreeMap::from([(
                "scratch".to_owned(),
                StorageConfig { path: PathBuf::from("scratch"), full: 100, slow: Duration::from_secs(10) },
            )]),
            ufm: Some(UfmConfig {
                url: "ufm.example.org".to_owned(),
                token_file: PathBuf::from("token"),
                ca_file: Some(PathBuf::from("ca.pem")),
                ..UfmConfig::example()
            }),
            cluster: Some("../x".to_owned()),
            rack: BTreeMap::from([("r1".to_owned(), "gn[1-".to_owned())]),
            ..FleetConfig::default()
        };
        let problems = config.problems();
        let keys: Vec<&str> = problems.iter().filter_map(|line| line.split(':').next()).collect();
        let wanted = [
            "fleet.database",
            "fleet.every",
            "fleet.retention_days",
            "fleet.max_lemons",
            "fleet.queue_wait",
            "fleet.idle_gpus",
            "fleet.storage.scratch.path",
            "fleet.storage.scratch.full",
            "fleet.storage.scratch.slow",
            "fleet.ufm.url",
            "fleet.ufm.token_file",
            "fleet.ufm.ca_file",
            "fleet.cluster",
            "fleet.rack.r1",
        ];
        assert_eq!(keys, wanted, "{problems:?}");
    }
}
