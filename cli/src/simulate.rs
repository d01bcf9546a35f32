use railgate_node::{Profile, simulate};

use crate::exit;
use crate::output::{self, Format};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  railgate simulate --list
  railgate check --simulate h100-sxm:gpu-lost@3,ib-port-down@mlx5_2
  railgate rails --simulate h200-sxm --format env")]
pub(crate) struct Args {
    /// Profiles and named faults
    #[arg(long)]
    list: bool,
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<u8> {
    anyhow::ensure!(args.list, "say what to do: `railgate simulate --list`");
    let profiles = Profile::builtin_ids();
    if args.format == Format::Json {
        let profiles: Vec<_> = profiles.iter().map(|id| serde_json::json!({ "id": id })).collect();
        let faults: Vec<_> = simulate::FAULTS
            .iter()
            .map(|fault| serde_json::json!({ "id": fault.id, "about": fault.about }))
            .collect();
        output::json(&serde_json::json!({ "schema": 1, "profiles": profiles, "faults": faults }))?;
        return Ok(exit::OK);
    }
    let mut rows = Vec::new();
    for id in profiles {
        let title = Profile::load(id, &[]).map(|profile| profile.title).unwrap_or_default();
        rows.push(vec!["profile".to_owned(), id.to_owned(), title]);
    }
    for fault in simulate::FAULTS {
        rows.push(vec!["fault".to_owned(), fault.id.to_owned(), fault.about.to_owned()]);
    }
    output::text(&output::table(&rows))?;
    Ok(exit::OK)
}
