use railgate_runner::InForce;

use crate::output::{self, Format};
use crate::{Site, exit};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  railgate config check\n  railgate --config ./railgate.toml config check\n  railgate config show --origin\n"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Say everything that is wrong, with file, line and caret
    Check,
    /// Show what is in force on this node
    Show {
        /// Say which line set each value
        #[arg(long)]
        origin: bool,
        #[arg(long, value_enum, default_value_t = Format::Table)]
        format: Format,
        /// As it would be on another node
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
    },
}

pub(crate) fn run(site: &Site, args: &Args) -> anyhow::Result<u8> {
    match &args.what {
        What::Check => {
            let loaded = site.loaded()?;
            match loaded.file {
                Some(file) => output::text(&format!("{}: ok", file.display()))?,
                None => output::text(&format!(
                    "{}: absent, the defaults are in force",
                    site.config_file.display()
                ))?,
            }
        }
        What::Show { origin, format, node } => {
            let node = node.as_ref().unwrap_or(&site.node);
            let loaded = railgate_runner::Loaded::read(&site.config_file, site.config_required, node)?;
            let listing = loaded.listing()?;
            if *format == Format::Json {
                let values: serde_json::Map<String, serde_json::Value> = listing
                    .into_iter()
                    .map(|InForce { path, value, origin }| {
                        let origin = origin.map(|at| {
                            serde_json::json!({ "file": at.file, "line": at.line, "node": at.node_table })
                        });
                        (path, serde_json::json!({ "value": value, "origin": origin }))
                    })
                    .collect();
                output::json(&serde_json::json!({ "schema": 1, "node": node, "values": values }))?;
                return Ok(exit::OK);
            }
            let rows: Vec<Vec<String>> = listing
                .into_iter()
                .map(|InForce { path, value, origin: at }| {
                    let mut row = vec![format!("{path} = {value}")];
                    if *origin {
                        row.push(match at {
                            None => "default".to_owned(),
                            Some(at) => match &at.node_table {
                                None => format!("{}:{}", at.file.display(), at.line),
                                Some(names) => {
                                    format!("{}:{} [[node]] {names}", at.file.display(), at.line)
                                }
                            },
                        });
                    }
                    row
                })
                .collect();
            output::text(&output::table(&rows))?;
        }
    }
    Ok(exit::OK)
}
