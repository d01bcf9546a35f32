use railgate_simulate::FaultPart;

use crate::output::{self, Format};
use crate::{Site, exit};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  railgate simulate --list
  railgate check --simulate h100-sxm:gpu-lost@3,ib-port-down@mlx5_2
  railgate rails --simulate h200-sxm --format env

A node is written PROFILE, or PROFILE:FAULT@WHERE,FAULT@WHERE; without @WHERE the fault is at the place that \
--list shows. A fault that no check reads leaves the node fit. Faults of mounts are found if \
`[gate.checks.mounts] required` names the mount.")]
pub(crate) struct Args {
    /// Show the machine types, those of this site included, and the faults
    #[arg(long)]
    list: bool,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

pub(crate) fn run(site: &Site, args: &Args) -> anyhow::Result<u8> {
    anyhow::ensure!(args.list, "nothing to do: try `railgate simulate --list`");
    let dirs = site.places.profiles();
    let profiles: Vec<(String, String)> = railgate_profiles::ids(&dirs)
        .into_iter()
        .map(|id| {
            let title = match railgate_profiles::load(&id, &dirs) {
                Ok(profile) => profile.title,
                Err(why) => format!("cannot be used: {}", why.to_string().lines().next().unwrap_or_default()),
            };
            (id, title)
        })
        .collect();
    if args.format == Format::Json {
        let profiles: Vec<_> =
            profiles.into_iter().map(|(id, title)| serde_json::json!({ "id": id, "title": title })).collect();
        let faults: Vec<_> = railgate_simulate::FAULTS
            .iter()
            .map(|fault| {
                let (part, index) = (part(fault.part), fault.default_index);
                serde_json::json!({ "id": fault.id, "about": fault.about, "part": part, "default": index })
            })
            .collect();
        output::json(&serde_json::json!({ "schema": 1, "profiles": profiles, "faults": faults }))?;
        return Ok(exit::OK);
    }
    let mut rows = vec![vec!["PROFILE".to_owned(), String::new(), "MACHINE".to_owned()]];
    rows.extend(profiles.into_iter().map(|(id, title)| vec![id, String::new(), title]));
    rows.push(Vec::new());
    rows.push(["FAULT", "WHERE", "WHAT"].map(str::to_owned).to_vec());
    for fault in railgate_simulate::FAULTS {
        let place = match fault.part {
            FaultPart::Node => "-".to_owned(),
            // By name or by index.
            FaultPart::Hca => format!("@mlx5_{}", fault.default_index),
            FaultPart::Gpu | FaultPart::Mount => format!("@{}", fault.default_index),
        };
        rows.push(vec![fault.id.to_owned(), place, fault.about.to_owned()]);
    }
    output::text(&output::table(&rows))?;
    Ok(exit::OK)
}

/// The kind of part that a fault affects.
fn part(part: FaultPart) -> &'static str {
    match part {
        FaultPart::Gpu => "gpu",
        FaultPart::Hca => "hca",
        FaultPart::Mount => "mount",
        FaultPart::Node => "node",
    }
}
