use std::collections::BTreeMap;

use railgate_runner::{ConfigError, InForce, Loaded, Problem, SetAt};
use railgate_slurm::hostlist;
use railgate_text::{Lines, put, toml_text};

use crate::output::{self, Format, complain, say};
use crate::{Site, exit};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  railgate config check
  railgate --config ./railgate.toml config check
      before it is rolled out
  railgate config show --origin       every value, and the line that set it
  railgate config show --node h200-3  as on that node

docs/configuration.md explains every key.")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Print each error in the configuration, with file, line and column
    #[command(after_help = "Exit codes: 0 nothing is wrong, 2 something is")]
    Check {
        /// Check for this node only [default: here, and one representative node per `[[node]]` combination]
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
    },
    /// Show the effective configuration of this node, as TOML
    Show {
        /// Show which line sets each value
        #[arg(long)]
        origin: bool,
        /// How to print it
        #[arg(long, value_enum, default_value_t = Format::Table)]
        format: Format,
        /// Show it for another node
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
    },
}

pub(crate) fn run(site: &Site, args: &Args) -> anyhow::Result<u8> {
    match &args.what {
        What::Check { node } => check(site, node.as_deref()),
        What::Show { origin, format, node } => {
            show(site, node.as_ref().unwrap_or(&site.node), *origin, *format)
        }
    }
}

/// Checks the configuration for one node, or for this one and one representative of each combination of `[[node]]`
/// tables, so that an error for other nodes is found here.
fn check(site: &Site, node: Option<&str>) -> anyhow::Result<u8> {
    let first = node.unwrap_or(&site.node);
    let mut nodes = vec![first.to_owned()];
    let loaded = Loaded::read(&site.config_file, site.config_required, first);
    if node.is_none() && !matches!(loaded, Err(ConfigError::Unreadable { .. })) {
        let text = std::fs::read_to_string(&site.config_file).unwrap_or_default();
        nodes.extend(sorts(&text).into_iter().filter(|name| name != first));
    }
    let mut problems: Vec<Problem> = Vec::new();
    let (mut profiles, mut warnings) = (Vec::new(), Vec::new());
    for name in &nodes {
        match Loaded::read(&site.config_file, site.config_required, name) {
            Ok(loaded) => {
                profiles.extend(profile_problem(site, &loaded));
                warnings.extend(loaded.config.selftest.warning());
            }
            Err(ConfigError::Invalid(found)) => {
                problems.extend(
                    found.into_iter().filter(|problem| !problems.contains(problem)).collect::<Vec<_>>(),
                );
            }
            Err(unreadable) => return Err(unreadable.into()),
        }
    }
    profiles.dedup();
    warnings.dedup();
    for warning in &warnings {
        complain!("{warning}");
    }
    for problem in &profiles {
        complain!("{problem}");
    }
    if !problems.is_empty() {
        return Err(ConfigError::Invalid(problems).into());
    }
    if !profiles.is_empty() {
        return Ok(exit::USAGE);
    }
    let path = site.config_file.display();
    match loaded?.file {
        Some(_) => say!("{path}: ok on {}", nodes.join(", "))?,
        None => say!("{path}: absent, the defaults are in force")?,
    }
    Ok(exit::OK)
}

/// A node whose profile is missing or invalid is judged as `generic`: no finding drains it, and few checks apply.
fn profile_problem(site: &Site, loaded: &Loaded) -> Option<String> {
    let profile = &loaded.config.profile;
    if profile == "auto" {
        return None;
    }
    let mut dirs = site.places.profiles().to_vec();
    // A configuration that is not installed yet has its profiles beside it.
    if site.config_required {
        dirs.extend(site.config_file.parent().map(|dir| dir.join("profiles")));
    }
    let why = railgate_profiles::load(profile, &dirs).err()?;
    let at = loaded.origins.get("profile").map(place).unwrap_or_default();
    Some(format!("{at}: profile: {why}"))
}

/// One node for each combination of `[[node]]` tables that applies to some node.
fn sorts(text: &str) -> Vec<String> {
    let table: toml::Table = toml::from_str(text).unwrap_or_default();
    let tables = table.get("node").and_then(toml::Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let mut tables_of: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, table) in tables.iter().enumerate() {
        let names = table.get("names").and_then(toml::Value::as_str).unwrap_or_default();
        for host in hostlist::expand(names).unwrap_or_default() {
            tables_of.entry(host).or_default().push(index);
        }
    }
    let mut one_of: BTreeMap<Vec<usize>, String> = BTreeMap::new();
    for (host, tables) in tables_of {
        one_of.entry(tables).or_insert(host);
    }
    one_of.into_values().collect()
}

fn show(site: &Site, node: &str, origin: bool, format: Format) -> anyhow::Result<u8> {
    let loaded = Loaded::read(&site.config_file, site.config_required, node)?;
    let listing = loaded.listing()?;
    if format == Format::Json {
        let mut values = serde_json::Map::new();
        for InForce { path, value, origin } in listing {
            let origin = origin
                .map(|at| serde_json::json!({ "file": at.file, "line": at.line, "node": at.node_table }));
            values.insert(path, serde_json::json!({ "value": plain(&value)?, "origin": origin }));
        }
        output::json(&serde_json::json!({ "schema": 1, "node": node, "values": values }))?;
        return Ok(exit::OK);
    }
    let mut text = Lines::new();
    for InForce { path, value, origin: at } in listing {
        let setting = toml_text(&format!("{path} = {value}"));
        if origin {
            // A single long list must not shift the other origins off the screen.
            let at = at.map_or_else(|| "default".to_owned(), place);
            put!(text, "{setting:<52}  # {at}");
        } else {
            put!(text, "{setting}");
        }
    }
    output::text(&text)?;
    Ok(exit::OK)
}

/// For example `railgate.toml:6 [[node]] gn[1-4]`.
fn place(at: &SetAt) -> String {
    let (file, line) = (at.file.display(), at.line);
    match &at.node_table {
        None => format!("{file}:{line}"),
        Some(names) => format!("{file}:{line} [[node]] {names}"),
    }
}

/// Converts a value in TOML notation to JSON.
fn plain(value: &str) -> anyhow::Result<serde_json::Value> {
    let mut table: toml::Table = toml::from_str(&format!("v = {value}"))?;
    Ok(serde_json::to_value(table.remove("v"))?)
}
