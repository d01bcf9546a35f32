use anyhow::Context as _;
use railgate_node::Profile;
use railgate_runner::{InForce, Loaded, SetAt};

use crate::output::{self, Format};
use crate::{Site, exit};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  railgate config check
  railgate --config ./railgate.toml config check       before it is rolled out
  railgate config show --origin                        every value, and the line that set it
  railgate config show --node h200-3                   as on that node

docs/configuration.md explains every key.")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Say everything that is wrong, with file, line and caret
    #[command(after_help = "Exit codes: 0 nothing is wrong, 2 something is")]
    Check {
        /// As it would be on another node: its `[[node]]` tables, its machine profile
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
    },
    /// Show what is in force on this node, as TOML
    Show {
        /// Say which line set each value
        #[arg(long)]
        origin: bool,
        /// How to print it
        #[arg(long, value_enum, default_value_t = Format::Table)]
        format: Format,
        /// As it would be on another node
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
    },
}

pub(crate) fn run(site: &Site, args: &Args) -> anyhow::Result<u8> {
    match &args.what {
        What::Check { node } => check(site, node.as_ref().unwrap_or(&site.node)),
        What::Show { origin, format, node } => {
            show(site, node.as_ref().unwrap_or(&site.node), *origin, *format)
        }
    }
}

fn check(site: &Site, node: &str) -> anyhow::Result<u8> {
    let loaded = Loaded::read(&site.config_file, site.config_required, node)?;
    let profile = &loaded.config.profile;
    if profile != "auto" {
        // A node whose profile is missing is judged as `generic`: nothing is drained, and little is seen.
        Profile::load(profile, &site.places.profiles()).with_context(|| {
            loaded
                .origins
                .get("profile")
                .map_or_else(|| "profile".to_owned(), |at| format!("{}: profile", place(at)))
        })?;
    }
    output::text(&match loaded.file {
        Some(file) => format!("{}: ok on {node}", file.display()),
        None => format!("{}: absent, the defaults are in force", site.config_file.display()),
    })?;
    Ok(exit::OK)
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
    let mut text = String::new();
    for InForce { path, value, origin: at } in listing {
        let setting = format!("{path} = {value}");
        if origin {
            // One long list must not push all the others' origins off the screen.
            let at = at.map_or_else(|| "default".to_owned(), place);
            text.push_str(&format!("{setting:<52}  # {at}\n"));
        } else {
            text.push_str(&setting);
            text.push('\n');
        }
    }
    output::text(&text)?;
    Ok(exit::OK)
}

/// `railgate.toml:6 [[node]] gn[1-4]`
fn place(at: &SetAt) -> String {
    let (file, line) = (at.file.display(), at.line);
    match &at.node_table {
        None => format!("{file}:{line}"),
        Some(names) => format!("{file}:{line} [[node]] {names}"),
    }
}

/// A value in TOML's notation as one in JSON's.
fn plain(value: &str) -> anyhow::Result<serde_json::Value> {
    let mut table: toml::Table = toml::from_str(&format!("v = {value}"))?;
    Ok(serde_json::to_value(table.remove("v"))?)
}
