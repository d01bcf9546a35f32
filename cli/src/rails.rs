mod topology;

use std::path::PathBuf;

use railgate_model::{JobGpus, Net};
use railgate_rails::{
    JobShape, NcclVersion, View, env, environment, explain, net, not_set, rail_map, table, topology,
};
use railgate_text::Lines;

use crate::node_source::NodeArgs;
use crate::{Site, exit, output};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  railgate rails
  railgate rails --format env --explain
  railgate rails --gpus 0-3 --format env  what a job with four GPUs would get
  railgate rails --gpus 4-7 --profile debug --format env
  railgate rails --format env --nccl 2.30.7 --net ofi
  railgate rails --simulate h200-sxm --format json
  railgate rails --check /etc/nccl/topo.xml
      would NCCL accept it, and does it match this machine
  railgate rails --check topo.xml --snapshot gn7.json --nccl 2.28.9

Exit code with --check: 0 the file is right, 1 NCCL refuses it or it does not match this machine, 2 wrong use, 3 \
the machine could not be read.")]
pub(crate) struct Args {
    #[command(flatten)]
    node: NodeArgs,
    /// With --format env or json: for a job with these GPUs, 0,2 or 0-3 [default: all]
    #[arg(long, value_name = "LIST")]
    gpus: Option<String>,
    /// With --format env or json: for a job with --railgate-profile=NAME
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Show::Table)]
    format: Show,
    /// With --format env: rule, reason and source of each value
    #[arg(long)]
    explain: bool,
    /// Check this NCCL topology file instead, with --format table or json
    #[arg(long, value_name = "FILE", conflicts_with_all = ["gpus", "profile", "explain"])]
    check: Option<PathBuf>,
    /// With --check or --format env: for this release of NCCL [default: all]
    #[arg(long, value_name = "VERSION")]
    nccl: Option<NcclVersion>,
    /// With --format env: for a job with this network plugin: ib, ofi, sharp or other [default: the node's]
    #[arg(long, value_name = "NET")]
    net: Option<Net>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Show {
    /// GPU to HCA map
    Table,
    /// For programs: docs/json.md; map and environment
    Json,
    /// NCCL variables for the tasks of a job
    Env,
    /// NCCL topology file
    Xml,
}

pub(crate) fn run(site: &Site, args: &Args) -> anyhow::Result<u8> {
    let config = site.config()?;
    let seen = args.node.read(site, &config)?;
    if let Some(name) = &args.profile {
        config.rails.check_profile(name)?;
    }
    let map = rail_map(&seen.snapshot, Some(&seen.profile));
    if let Some(file) = &args.check {
        let format = match args.format {
            Show::Table => output::Format::Table,
            Show::Json => output::Format::Json,
            Show::Env | Show::Xml => anyhow::bail!("--check: --format is table or json"),
        };
        return topology::check(file, args.nccl, &seen, &map, format);
    }
    let gpus = args.gpus.as_deref().map(indices).transpose()?;
    let here: Vec<u32> = map.gpus.iter().map(|gpu| gpu.index).collect();
    if let Some(gone) = gpus.iter().flatten().find(|index| !here.is_empty() && !here.contains(index)) {
        let last = here.iter().max().copied().unwrap_or_default();
        anyhow::bail!("--gpus: no GPU {gone} here (0 to {last})");
    }
    let shape = JobShape {
        gpus: gpus.map_or_else(JobGpus::default, JobGpus::these),
        profile: args.profile.clone(),
        env_plugin: Some(PathBuf::from(&config.rails.env_plugin)).filter(|path| path.is_file()),
        ..JobShape::default()
    };
    let net = args.net.unwrap_or_else(|| net(&config.rails, &map, &seen.snapshot));
    let settings = environment(&map, &seen.snapshot, &config.rails, &shape);
    let left_out = not_set(&map, &seen.snapshot, &config.rails, &shape);
    match args.format {
        Show::Table => output::text(&table(&map))?,
        Show::Json => output::json(&View::new(&seen.snapshot.node, &map, &settings, &left_out))?,
        Show::Env if args.explain => output::text(&explain(&settings, &left_out, net, args.nccl))?,
        Show::Env => output::text(&env(&settings, net, args.nccl))?,
        Show::Xml => output::text(&Lines::kept(&topology(&map, &seen.snapshot)?))?,
    }
    Ok(exit::OK)
}

/// Parses GPU indices: `0,2`, `0-3`.
fn indices(text: &str) -> anyhow::Result<Vec<u32>> {
    let mut all = Vec::new();
    for item in text.split(',') {
        let (low, high) = item.split_once('-').unwrap_or((item, item));
        let range = low.trim().parse::<u32>().ok().zip(high.trim().parse::<u32>().ok());
        match range {
            Some((low, high)) if low <= high && high < 1024 => all.extend(low..=high),
            _ => anyhow::bail!("--gpus '{text}': '{item}' is neither an index nor a range like 0-3"),
        }
    }
    Ok(all)
}
