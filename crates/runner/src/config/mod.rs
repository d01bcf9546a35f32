//! Site configuration: `/etc/railgate/railgate.toml`.
//!
//! One file. Its top level applies to every node; a `[[node]]` table overrides values on the nodes in its `names`
//! hostlist, and later tables override earlier ones. Unknown keys are refused. All problems are reported at once,
//! each with file, line and caret.

mod layers;
mod problem;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use railgate_alerts::AlertsConfig;
use railgate_fsutil::{Untrusted, trusted};
use railgate_gate::GateConfig;
use railgate_guard::GuardConfig;
use railgate_metrics::MetricsConfig;
use railgate_node_report::StatsConfig;
use railgate_probe::SourceConfig;
use railgate_rails::RailsConfig;
use railgate_slurm::{BreakerConfig, RequeueConfig, SlurmConfig};
use railgate_store::ReportConfig;
use serde::{Deserialize, Serialize};

use layers::Layer;
pub use problem::Problem;

use crate::fleet_config::FleetConfig;
use crate::launch_config::LaunchConfig;
use crate::logging::LogConfig;
use crate::self_test_config::SelfTestConfig;

/// Largest configuration file that is read, bytes.
const MAX_FILE: u64 = 1 << 20;

/// Site configuration. Each table is defined, documented and validated by the crate that uses it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Machine profile: an id (`h100-sxm`), or `auto` to choose by the GPU's name.
    pub profile: String,
    /// Where the machine's state is read from.
    pub source: SourceConfig,
    /// Checks, and the actions that follow.
    pub gate: GateConfig,
    /// NCCL environment.
    pub rails: RailsConfig,
    /// Whether a failed job is requeued.
    pub requeue: RequeueConfig,
    /// How many nodes railgate may keep drained at once.
    pub breaker: BreakerConfig,
    /// Statistics.
    pub stats: StatsConfig,
    /// Hangs of running jobs.
    pub guard: GuardConfig,
    /// How many nodes of a job load their GPUs at once.
    pub selftest: SelfTestConfig,
    /// Restarts inside an allocation.
    pub launch: LaunchConfig,
    /// History of all nodes and jobs.
    pub fleet: FleetConfig,
    /// Where reports are stored and who may read them.
    pub report: ReportConfig,
    /// Messages about the fleet.
    pub alerts: AlertsConfig,
    /// Prometheus text files.
    pub metrics: MetricsConfig,
    /// Slurm's commands and their deadlines.
    pub slurm: SlurmConfig,
    /// Log level and destination.
    pub log: LogConfig,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            profile: "auto".to_owned(),
            source: SourceConfig::default(),
            gate: GateConfig::default(),
            rails: RailsConfig::default(),
            requeue: RequeueConfig::default(),
            breaker: BreakerConfig::default(),
            stats: StatsConfig::default(),
            guard: GuardConfig::default(),
            selftest: SelfTestConfig::default(),
            launch: LaunchConfig::default(),
            fleet: FleetConfig::default(),
            report: ReportConfig::default(),
            alerts: AlertsConfig::default(),
            metrics: MetricsConfig::default(),
            slurm: SlurmConfig::default(),
            log: LogConfig::default(),
        }
    }
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetAt {
    /// The file.
    pub file: PathBuf,
    /// Line number, from 1.
    pub line: usize,
    /// `names` of the `[[node]]` table that set it, if one did.
    pub node_table: Option<String>,
}

/// The configuration in force on one node.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The values.
    pub config: Config,
    /// Dotted path of each value that the file sets, and its position. A value that is missing here has its default.
    pub origins: BTreeMap<String, SetAt>,
    /// The file, if there is one.
    pub file: Option<PathBuf>,
}

/// One value in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InForce<'l> {
    /// Dotted path of the key.
    pub path: String,
    /// The value as TOML.
    pub value: String,
    /// Where it was set; `None` is the default.
    pub origin: Option<&'l SetAt>,
}

/// Why the configuration could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error of the file system.
        source: io::Error,
    },
    /// A user other than root can write the file or a directory above it.
    #[error(transparent)]
    Untrusted(#[from] Untrusted),
    /// The file is invalid; every problem has its position.
    #[error("{}", list(.0))]
    Invalid(Vec<Problem>),
}

impl ConfigError {
    /// All problems in one line, for a log.
    pub fn in_one_line(&self) -> String {
        match self {
            ConfigError::Unreadable { .. } | ConfigError::Untrusted(_) => self.to_string(),
            ConfigError::Invalid(problems) => {
                problems.iter().map(Problem::line_text).collect::<Vec<_>>().join("; ")
            }
        }
    }
}

fn list(problems: &[Problem]) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n")
}

impl Loaded {
    /// Reads the configuration file `path` as it is in force on `node`. A missing file means the defaults, unless it
    /// is `required` (the user named it). A file that is not required must also be [`trusted`]: the configuration
    /// names libraries and programs that root uses.
    ///
    /// # Errors
    /// The file cannot be read, or something in it is wrong: all problems at once.
    pub fn read(path: &Path, required: bool, node: &str) -> Result<Self, ConfigError> {
        let unreadable = |source| ConfigError::Unreadable { path: path.to_owned(), source };
        if !required && let Err(why) = trusted(path) {
            if why.is_absent() {
                return Ok(Loaded { config: Config::default(), origins: BTreeMap::new(), file: None });
            }
            return Err(why.into());
        }
        let file = File::open(path).map_err(unreadable)?;
        let found = file.metadata().map_err(unreadable)?;
        if found.len() > MAX_FILE {
            return Err(unreadable(io::Error::other("larger than 1 MiB")));
        }
        let mut text = String::new();
        file.take(MAX_FILE).read_to_string(&mut text).map_err(unreadable)?;
        Self::parse(path, &text, node).map_err(ConfigError::Invalid)
    }

    /// Parses a configuration file's text as it is in force on `node`.
    ///
    /// # Errors
    /// All problems of the file, also in tables of other nodes.
    pub fn parse(path: &Path, text: &str, node: &str) -> Result<Self, Vec<Problem>> {
        let mut site = Layer::parse(path, text)?;
        let mut problems = Vec::new();
        let tables = site.take_tables("node").unwrap_or_else(|problem| {
            problems.push(problem);
            Vec::new()
        });
        if let Err(found) = site.read::<Config>() {
            problems.extend(placed(found, ""));
        }
        let mut origins: BTreeMap<_, _> = places(path, &site, None).into_iter().collect();
        for mut table in tables {
            let covers = table.take_text("names").and_then(|(names, span)| {
                match railgate_slurm::hostlist::expand(&names) {
                    Ok(hosts) => Ok((hosts.iter().any(|host| host == node), names)),
                    Err(why) => Err(table.problem(Some(span), why.to_string())),
                }
            });
            if let Err(found) = table.read::<Config>() {
                problems.extend(placed(found, "node."));
            }
            match covers {
                Ok((true, names)) => {
                    origins.extend(places(path, &table, Some(&names)));
                    site.overlay(&table);
                }
                Ok((false, _)) => {}
                Err(problem) => problems.push(problem),
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let mut config: Config = site.read()?;
        // Relative to the file, so that a configuration can be tried before it is installed.
        let checks = &mut config.gate.checks.site.directory;
        if checks.is_relative()
            && let Some(beside) = std::path::absolute(path).ok().as_deref().and_then(Path::parent)
        {
            *checks = beside.join(&*checks);
        }
        let places = site.places();
        let chosen = places.iter().filter_map(|(path, _)| {
            path.strip_prefix("gate.checks.")?.strip_suffix(".action").map(str::to_owned)
        });
        config.gate.chosen = chosen.collect();
        let ranges: Vec<Problem> = config
            .problems()
            .into_iter()
            .map(|message| {
                // Each crate's message begins with the key: `gate.deadline: 0s is not between …`.
                let key = message.split([':', ' ']).next().unwrap_or_default();
                let span = places.iter().find(|(path, _)| path == key).map(|(_, span)| span.clone());
                site.problem(span, message)
            })
            .collect();
        if !ranges.is_empty() {
            return Err(ranges);
        }
        Ok(Loaded { config, origins, file: Some(path.to_owned()) })
    }

    /// The values in force.
    ///
    /// # Errors
    /// A value that TOML cannot represent: a defect in railgate.
    pub fn listing(&self) -> Result<Vec<InForce<'_>>, toml::ser::Error> {
        fn walk<'l>(table: &toml::Table, path: &str, loaded: &'l Loaded, into: &mut Vec<InForce<'l>>) {
            for (key, value) in table {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                match value {
                    toml::Value::Table(inner) if !inner.is_empty() => walk(inner, &path, loaded, into),
                    other => {
                        let origin = loaded.origins.get(&path);
                        into.push(InForce { path, value: other.to_string(), origin });
                    }
                }
            }
        }
        let mut values = Vec::new();
        walk(&toml::Table::try_from(&self.config)?, "", self, &mut values);
        Ok(values)
    }
}

/// The problems, with a hint where a key belongs to a different table. `table` is the prefix of each key's path.
fn placed(problems: Vec<Problem>, table: &str) -> impl Iterator<Item = Problem> {
    fn walk(table: &toml::Table, path: &str, into: &mut Vec<String>) {
        for (key, value) in table {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            if let toml::Value::Table(inner) = value {
                walk(inner, &path, into);
            }
            into.push(path);
        }
    }
    let mut known = Vec::new();
    // Keys without a default are not in this list and get no hint.
    walk(&toml::Table::try_from(Config::default()).unwrap_or_default(), "", &mut known);
    problems.into_iter().map(move |problem| problem.placed(&known, table))
}

fn places(file: &Path, layer: &Layer<'_>, node_table: Option<&str>) -> Vec<(String, SetAt)> {
    layer
        .places()
        .into_iter()
        .map(|(path, span)| {
            let node_table = node_table.map(str::to_owned);
            (path, SetAt { file: file.to_owned(), line: layer.line(span.start), node_table })
        })
        .collect()
}

impl Config {
    /// Between two readings of the sources, the data are as old as the pause between them: this is not blindness.
    fn alerts_between_readings(&self) -> Vec<String> {
        let (blind_after, every) = (self.alerts.blind_after, self.fleet.every);
        let is_less = !self.alerts.sinks.is_empty() && blind_after < every * 2;
        let shown = humantime::format_duration;
        let problem = || {
            format!(
                "alerts.blind_after: {} is less than twice `fleet.every`, {}",
                shown(blind_after),
                shown(every)
            )
        };
        is_less.then(problem).into_iter().collect()
    }

    /// Values of the right type that are out of range or contradict each other. Each message begins with the key.
    fn problems(&self) -> Vec<String> {
        [
            self.source.problems(),
            self.gate.problems(),
            self.rails.problems(),
            self.requeue.problems(),
            self.breaker.problems(),
            self.stats.problems(),
            self.guard.problems(),
            self.selftest.problems(),
            self.launch.problems(),
            self.fleet.problems(),
            self.report.problems(),
            self.alerts.problems(),
            self.alerts_between_readings(),
            self.metrics.problems(),
            self.slurm.problems(),
        ]
        .concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, node: &str) -> Result<Loaded, Vec<Problem>> {
        Loaded::parse(Path::new("/etc/railgate/railgate.toml"), text, node)
    }

    /// Input that a fuzzer found.
    #[test]
    fn the_seeds() {
        let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/config");
        let mut good = 0;
        for seed in std::fs::read_dir(seeds).unwrap() {
            let Ok(text) = std::fs::read_to_string(seed.unwrap().path()) else { continue };
            match parse(&text, "gn1") {
                Ok(loaded) => good += usize::from(loaded.listing().is_ok()),
                Err(problems) => assert!(problems.iter().all(|problem| !problem.message().is_empty())),
            }
        }
        assert!(good >= 1);
    }

    #[test]
    fn an_empty_file_gives_the_defaults() {
        let loaded = parse("", "gn1").unwrap();
        assert_eq!(loaded.config, Config::default());
        assert!(loaded.origins.is_empty());
    }

    #[test]
    fn a_file_that_other_users_can_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("etc");
        let file = dir.join("railgate.toml");
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(&file, "profile = \"h100-sxm\"\n").unwrap();
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        for (of_dir, of_file, refused) in [
            (0o755, 0o644, None),
            (0o755, 0o666, Some("railgate.toml: mode 0666: others may write it")),
            (0o755, 0o664, Some("railgate.toml: mode 0664")),
            (0o777, 0o644, Some("etc: mode 0777")),
            (0o775, 0o644, Some("etc: mode 0775")),
        ] {
            mode(&dir, of_dir);
            mode(&file, of_file);
            let read = Loaded::read(&file, false, "gn1").map_err(|why| why.in_one_line());
            match refused {
                None => assert_eq!(read.unwrap().config.profile, "h100-sxm"),
                Some(words) => assert!(read.unwrap_err().contains(words), "{words}"),
            }
            assert!(Loaded::read(&file, true, "gn1").is_ok());
        }
        let absent = Loaded::read(&dir.join("absent"), false, "gn1").map_err(|why| why.in_one_line());
        assert!(absent.unwrap_err().contains("etc: mode 0775"), "others may have removed it");
        mode(&dir, 0o755);
        assert_eq!(Loaded::read(&dir.join("absent"), false, "gn1").unwrap().config, Config::default());
    }

    #[test]
    fn the_directory_of_site_checks_is_relative_to_the_configuration_file() {
        let directory = |text: &str| parse(text, "gn1").unwrap().config.gate.checks.site.directory;
        for (text, wanted) in [
            ("", "/etc/railgate/checks.d"),
            ("[gate.checks.site]\ndirectory = \"own\"", "/etc/railgate/own"),
            ("[gate.checks.site]\ndirectory = \"/opt/checks\"", "/opt/checks"),
        ] {
            assert_eq!(directory(text), Path::new(wanted), "{text}");
        }
        let relative =
            Loaded::parse(Path::new("new/railgate.toml"), "[gate.checks.site]\ndirectory = \"own\"", "gn1");
        let wanted = std::env::current_dir().unwrap().join("new/own");
        assert_eq!(relative.unwrap().config.gate.checks.site.directory, wanted);
    }

    #[test]
    fn all_problems_are_reported_with_their_lines() {
        let text =
            "profil = \"x\"\n\n[gate]\nmood = \"enforce\"\nmode = \"enfroce\"\n\n[reprot]\ndir = \"/x\"\n";
        let problems = parse(text, "gn1").unwrap_err();
        let mut lines: Vec<_> = problems.iter().filter_map(Problem::line).collect();
        lines.sort_unstable();
        assert_eq!(lines, [1, 4, 5, 7], "{}", list(&problems));
        let shown = list(&problems);
        assert!(shown.contains("/etc/railgate/railgate.toml:4:1: unknown field `mood`"), "{shown}");
        assert!(shown.contains("  4 | mood = \"enforce\"\n    | ^^^^"), "{shown}");
    }

    #[test]
    fn a_misspelled_key_gets_the_likely_one_as_a_hint() {
        for (text, wanted) in [
            ("[breaker]\nmax_percent = 'x'", "wants a number, not string \"x\""),
            ("[requeue]\nmax_restarts = 'x'", "wants a whole number, 0 or larger, not string \"x\""),
            ("[requeue]\nmax_restarts = -1", "wants a whole number, 0 or larger, not integer `-1`"),
            ("[gate.checks.gpu-ec]", "unknown field `gpu-ec`; did you mean `gpu-ecc`?"),
            ("[gaet]", "unknown field `gaet`; did you mean `gate`?"),
            ("gate.mode = 'enfroce'", "unknown variant `enfroce`; did you mean `enforce`?"),
            ("mode = 'report'", "unknown field `mode`; it belongs to [gate] or [guard]"),
            (
                "[[node]]\nnames = 'gn1'\nmode = 'report'",
                "unknown field `mode`; it belongs to [node.gate] or [node.guard]",
            ),
            ("[gpu-ecc]\naction = 'report'", "unknown field `gpu-ecc`; it belongs to [gate.checks]"),
            ("[[nodes]]\nnames = 'gn1'", "unknown field `nodes`; did you mean [[node]]?"),
            ("profile = 3", "invalid type: integer `3`, expected a string"),
        ] {
            let problems = parse(text, "gn1").unwrap_err();
            assert_eq!(problems.first().map(Problem::message), Some(wanted), "{text}");
        }
        // Without a similar key, the message lists all known ones.
        let far = parse("[nothing-like-it]", "gn1").unwrap_err();
        assert!(list(&far).contains("expected one of `profile`, "), "{}", list(&far));
    }

    #[test]
    fn all_syntax_errors_are_reported() {
        let problems = parse("a = \nb = 1\nc = ]\n", "gn1").unwrap_err();
        assert!(problems.len() >= 2, "{}", list(&problems));
    }

    #[test]
    fn a_node_table_overrides_values_on_its_nodes_only() {
        let text = "profile = \"h100-sxm\"\n[[node]]\nnames = \"gn[2-3]\"\nprofile = \"h200-sxm\"\n";
        assert_eq!(parse(text, "gn1").unwrap().config.profile, "h100-sxm");
        let loaded = parse(text, "gn3").unwrap();
        assert_eq!(loaded.config.profile, "h200-sxm");
        let origin = &loaded.origins["profile"];
        assert_eq!((origin.line, origin.node_table.as_deref()), (4, Some("gn[2-3]")));
    }

    #[test]
    fn checks_that_the_site_configured_are_marked_for_the_gate() {
        let text = "[gate.checks.gpu-ecc]\nmax_uncorrected = 1\n[gate.checks]\nib-rate.action = \"drain\"\n\
                    [[node]]\nnames = \"gn2\"\n[node.gate.checks.mounts]\naction = \"shadow\"\n";
        let chosen = |node: &str| parse(text, node).unwrap().config.gate.chosen;
        assert_eq!(chosen("gn1").into_iter().collect::<Vec<_>>(), ["ib-rate"]);
        assert_eq!(chosen("gn2").into_iter().collect::<Vec<_>>(), ["ib-rate", "mounts"]);
    }

    #[test]
    fn a_problem_in_the_table_of_another_node_is_reported() {
        let text =
            "[[node]]\nnames = \"gn9\"\n[node.gate]\nmood = 1\n[[node]]\nnames = \"gn[1-\"\n[[node]]\n";
        let problems = parse(text, "gn1").unwrap_err();
        assert_eq!(problems.len(), 3, "{}", list(&problems));
    }

    #[test]
    fn a_value_out_of_range_is_reported_with_its_line() {
        let problems = parse("[gate]\nmode = \"enforce\"\ndeadline = \"0s\"\n", "gn1").unwrap_err();
        assert_eq!((problems.len(), problems[0].line()), (1, Some(3)), "{}", list(&problems));
    }

    #[test]
    fn a_problem_of_a_receiver_names_its_line_and_key() {
        let text = "[alerts.sinks.chat]\nkind = \"dingtalk\"\nurl_file = \"/x\"\nper_minute = 30\n\
                    [alerts.sinks.mail]\nkind = \"sendmail\"\nto = [\"a@b\"]\n";
        let problems = parse(text, "gn1").unwrap_err();
        let shown = list(&problems);
        assert!(
            shown.contains("railgate.toml:4:1: alerts.sinks.chat.per_minute: 30 is not within 1 to 20"),
            "{shown}"
        );
        assert!(
            shown.contains("railgate.toml:6:1: alerts.sinks.mail.kind: sendmail needs `from`"),
            "{shown}"
        );
        let text = "[fleet]\nevery = \"4m\"\n[alerts]\nblind_after = \"7m\"\n";
        assert!(parse(text, "gn1").is_ok(), "without receivers nothing is sent");
        let sink = "[alerts.sinks.chat]\nkind = \"dingtalk\"\nurl_file = \"/x\"\n";
        let problems = parse(&format!("{text}{sink}"), "gn1").unwrap_err();
        assert!(
            problems[0]
                .to_string()
                .contains("railgate.toml:4:1: alerts.blind_after: 7m is less than twice `fleet.every`, 4m"),
            "{problems:?}"
        );
        let problems = parse("[alerts]\nquiet_hours = \"22-7\"\n", "gn1").unwrap_err();
        assert_eq!(problems.first().and_then(Problem::line), Some(2), "{}", list(&problems));
    }

    #[test]
    fn every_listed_value_has_its_origin_or_is_a_default() {
        let loaded = parse("[gate]\nmode = \"enforce\"\n", "gn1").unwrap();
        let listing = loaded.listing().unwrap();
        let set: Vec<_> = listing.iter().filter(|value| value.origin.is_some()).collect();
        assert_eq!(set.len(), 1);
        assert_eq!(set[0].path, "gate.mode");
    }
}
