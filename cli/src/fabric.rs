use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use railgate_fabric::{
    Fabric, Hostlist, MAX_TEXT, Options, Seen, Wiring, analyse, analyse_seen, cable_table,
};
use railgate_fabric::{lldp, parse, table};
use railgate_fabric::{topology_block, topology_tree, topology_yaml};
use railgate_profiles::toml_error;
use railgate_slurm::{hostlist, run_program};
use railgate_text::Lines;

use crate::output::complain;
use crate::{exit, output};

/// Longest wiring table of a site, bytes.
const MAX_WIRING: usize = 1 << 20;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  railgate fabric                    runs ibnetdiscover here, as root
  railgate fabric --file fabric.txt  output of ibnetdiscover on another machine
  railgate fabric --nodes 'gn[001-064]' --format topology-tree --out topology.conf
  railgate fabric --lldp lldp/*.json
      Ethernet: gn1.json is what `lldpctl -f json` printed on gn1

Exit code: 0 all ports are where they should be, 1 some are not, 2 wrong use, 3 could not tell. A topology file \
is written regardless of faults, with exit code 0.")]
pub(crate) struct Args {
    /// Output of ibnetdiscover, instead of running it; `-` is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["ibnetdiscover", "timeout", "hca", "name_map"])]
    file: Option<PathBuf>,
    /// Output of `lldpctl -f json` of each node, in a file with its name: gn1.json
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["file", "ibnetdiscover", "timeout", "hca", "name_map"])]
    lldp: Vec<PathBuf>,
    /// The site's cable table, one line per cable: node, HCA (with `:port` if it has several), leaf, leaf port
    #[arg(long, value_name = "FILE", conflicts_with_all = ["lldp", "file", "ibnetdiscover", "timeout", "hca", "name_map"])]
    table: Option<PathBuf>,
    /// The program to run
    #[arg(long, value_name = "PATH", default_value = "/usr/sbin/ibnetdiscover")]
    ibnetdiscover: PathBuf,
    /// Limit for its run time
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = humantime::parse_duration)]
    timeout: Duration,
    /// Read the fabric of this HCA [default: chosen by ibnetdiscover]
    #[arg(long, value_name = "NAME")]
    hca: Option<String>,
    /// ibnetdiscover's table of names by GUID, for switches without a name
    #[arg(long, value_name = "FILE")]
    name_map: Option<PathBuf>,
    /// Intended wiring of the rails (docs/fabric.md) [default: that of most nodes]
    #[arg(long, value_name = "FILE")]
    wiring: Option<PathBuf>,
    /// Only these nodes, for example gn[1-64]. Topology files need it if other machines also have HCAs
    #[arg(long, value_name = "HOSTLIST")]
    nodes: Option<String>,
    #[arg(long, value_enum, default_value_t = Show::Table)]
    format: Show,
    /// Where to write it [default: standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Show {
    /// For people
    Table,
    /// For programs: docs/fabric.md
    Json,
    /// Slurm's topology.conf, topology/tree
    TopologyTree,
    /// Slurm's topology.conf, topology/block (24.05 and later)
    TopologyBlock,
    /// Slurm's topology.yaml (25.05 and later), tree and blocks
    TopologyYaml,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<u8> {
    let options = Options { wiring: wiring(args.wiring.as_deref())?, nodes: nodes(args.nodes.as_deref())? };
    let judged = matches!(args.format, Show::Table | Show::Json);
    let analysis = match seen(args)? {
        Some(seen) => {
            ensure!(
                judged,
                "--lldp and --table know the leafs and nothing above them: --format table or json"
            );
            analyse_seen(&seen, &options)
        }
        None => match discovered(args)? {
            Some(fabric) => analyse(&fabric, &options),
            None => return Ok(exit::UNKNOWN),
        },
    };
    if analysis.units.is_empty() {
        let unnamed = analysis.unnamed.first().map_or(String::new(), |name| format!(", as {name}"));
        complain!(
            "no {}node with a port on one of {} switches; {} HCAs name no node{unnamed}",
            if options.nodes.is_some() { "such " } else { "" },
            analysis.switches.len(),
            analysis.unnamed.len()
        );
        for shared in &analysis.shared {
            complain!("{}", shared.text);
        }
        return Ok(exit::UNKNOWN);
    }
    let compress: Hostlist<'_> = &|names| hostlist::compress(names);
    let content = match args.format {
        Show::Table => table(&analysis, compress),
        Show::Json => Lines::kept(&railgate_text::json_text(&analysis)?),
        Show::TopologyTree => Lines::kept(&topology_tree(&analysis, compress)),
        Show::TopologyBlock => Lines::kept(&topology_block(&analysis, compress)),
        Show::TopologyYaml => Lines::kept(&topology_yaml(&analysis, compress)),
    };
    output::to(args.out.as_deref(), &content)?;
    Ok(match judged {
        true if !analysis.faults.is_empty() => exit::UNFIT,
        true if !analysis.unrecorded.is_empty() => exit::UNKNOWN,
        _ => exit::OK,
    })
}

/// Output of ibnetdiscover, run here or read from a file; `None` after a failure, which has been reported.
fn discovered(args: &Args) -> anyhow::Result<Option<Fabric>> {
    let text = match &args.file {
        Some(path) => from_file(path)?,
        None => match from_program(args) {
            Ok(text) => text,
            Err(why) => {
                complain!("{why:#}");
                return Ok(None);
            }
        },
    };
    let source = args.file.as_ref().unwrap_or(&args.ibnetdiscover);
    Ok(Some(parse(&text).with_context(|| source.display().to_string())?))
}

/// Cable ends from LLDP or a table; `None` if neither was given.
fn seen(args: &Args) -> anyhow::Result<Option<Vec<Seen>>> {
    if let Some(path) = &args.table {
        let cables = cable_table(&from_file(path)?).with_context(|| path.display().to_string())?;
        return Ok(Some(cables));
    }
    let mut all = Vec::new();
    for path in &args.lldp {
        let said = || path.display().to_string();
        let is_name = |name: &&str| hostlist::expand(name).is_ok_and(|names| names == [*name]);
        let node = path.file_stem().and_then(|name| name.to_str()).filter(is_name);
        let node = node.with_context(|| format!("{}: not called after a node, as gn1.json is", said()))?;
        ensure!(all.iter().all(|one: &Seen| one.node != node), "{}: {node} comes twice", said());
        all.extend(lldp(node, &from_file(path)?).with_context(said)?);
    }
    Ok((!args.lldp.is_empty()).then_some(all))
}

fn from_program(args: &Args) -> anyhow::Result<String> {
    ensure!(
        args.ibnetdiscover.is_absolute(),
        "--ibnetdiscover {}: not an absolute path",
        args.ibnetdiscover.display()
    );
    let mut words = Vec::new();
    if let Some(hca) = &args.hca {
        words.extend(["--Ca".to_owned(), hca.clone()]);
    }
    if let Some(map) = &args.name_map {
        let map = std::path::absolute(map)?;
        let map = map.to_str().with_context(|| format!("--name-map {}: not UTF-8", map.display()))?;
        words.extend(["--node-name-map".to_owned(), map.to_owned()]);
    }
    let env = [("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"), ("LC_ALL", "C")]
        .map(|(name, value)| (name, OsString::from(value)));
    Ok(run_program(&args.ibnetdiscover, &words, &env, args.timeout)?)
}

pub(crate) fn from_file(path: &Path) -> anyhow::Result<String> {
    let bytes = if path == Path::new("-") {
        bounded(std::io::stdin().lock(), MAX_TEXT)
    } else {
        std::fs::File::open(path).map_err(Into::into).and_then(|file| bounded(file, MAX_TEXT))
    };
    let bytes = bytes.with_context(|| path.display().to_string())?;
    // Names may contain any bytes.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn bounded(from: impl std::io::Read, most: usize) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(u64::try_from(most)? + 1).read_to_end(&mut bytes)?;
    ensure!(bytes.len() <= most, "longer than {most} bytes");
    Ok(bytes)
}

fn wiring(path: Option<&Path>) -> anyhow::Result<Wiring> {
    let Some(path) = path else { return Ok(Wiring::default()) };
    let said = || format!("--wiring {}", path.display());
    let file = std::fs::File::open(path).with_context(said)?;
    let text = String::from_utf8(bounded(file, MAX_WIRING).with_context(said)?).with_context(said)?;
    let wiring: Wiring =
        toml::from_str(&text).map_err(|why| anyhow::anyhow!("{}: {}", said(), toml_error(&why, &text)))?;
    let problems = wiring.problems();
    if !problems.is_empty() {
        bail!("--wiring {}: {}", path.display(), problems.join("; "));
    }
    Ok(wiring)
}

fn nodes(list: Option<&str>) -> anyhow::Result<Option<BTreeSet<String>>> {
    let Some(list) = list else { return Ok(None) };
    let names = hostlist::expand(list).context("--nodes")?;
    ensure!(!names.is_empty(), "--nodes '{list}': no names");
    Ok(Some(names.into_iter().collect()))
}
