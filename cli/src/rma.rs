use std::collections::BTreeMap;
use std::path::PathBuf;

use railgate_model::{Gpu, Reading, Snapshot, SxidEvent, XidEvent};
use railgate_runner::{Episode, FindingHistory};
use railgate_text::{Lines, put};
use serde::Serialize;

use crate::history::time;
use crate::node_source::{NodeArgs, origin};
use crate::output::{self, Format, say};
use crate::{Site, exit};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  railgate rma gn7 --out gn7.json  on gn7, as root: everything in one file
  railgate rma gn7                 the same as a page, for the ticket
  railgate rma gn7 --snapshot node.json
      from a recorded node, on any machine

It has serial numbers, UUIDs, versions, ECC and row remap counts, links, Xids and SXids with their times and \
kernel lines, and findings of railgate's checks. It has no user names, processes or addresses, except in lines \
of the driver.")]
pub(crate) struct Args {
    /// Name of this node in Slurm; with --snapshot or --simulate, of that node
    node: String,
    #[command(flatten)]
    source: NodeArgs,
    /// Write everything to this file, as JSON
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(Serialize)]
struct Pack<'a> {
    schema: u32,
    node: &'a str,
    origin: &'static str,
    /// Milliseconds.
    taken: u64,
    kernel: &'a Reading<String>,
    gpus: &'a railgate_model::Part<railgate_model::Gpus>,
    fabric: &'a railgate_model::Part<railgate_model::Fabric>,
    xids: Vec<XidEvent>,
    sxids: Vec<SxidEvent>,
    found: Vec<Episode>,
}

pub(crate) fn run(site: &Site, args: &Args) -> anyhow::Result<u8> {
    let config = site.config()?;
    let live = args.source.snapshot.is_none() && args.source.simulate.is_none();
    anyhow::ensure!(
        !live || args.node == site.node,
        "run this on {node}; this is {}: ssh {node} railgate rma {node}",
        site.node,
        node = args.node
    );
    let mut snapshot = args.source.read(site, &config)?.snapshot;
    without_users(&mut snapshot);
    let log = snapshot.kernel_log.data();
    let unread = Reading::Unsupported;
    let pack = Pack {
        schema: 1,
        node: &args.node,
        origin: origin(&snapshot),
        taken: snapshot.taken,
        kernel: snapshot.host.data().map_or(&unread, |host| &host.kernel),
        gpus: &snapshot.gpus,
        fabric: &snapshot.fabric,
        xids: snapshot.xids(),
        sxids: log.map_or_else(Vec::new, |log| log.sxids()),
        found: if live { FindingHistory::load(&site.places).episodes } else { Vec::new() },
    };
    if let Some(path) = &args.out {
        output::to_json(Some(path), &pack)?;
        say!("{}: {}", args.node, path.display())?;
    } else if args.format == Format::Json {
        output::json(&pack)?;
    } else {
        output::text(&page(&pack, &snapshot))?;
    }
    Ok(exit::OK)
}

/// Removes processes, which name users and are of no use to a vendor.
fn without_users(snapshot: &mut Snapshot) {
    if let railgate_model::Part::Read { data, .. } = &mut snapshot.gpus {
        for gpu in &mut data.gpus {
            gpu.processes = Reading::Unsupported;
        }
    }
}

fn page(pack: &Pack<'_>, snapshot: &Snapshot) -> Lines {
    let mut text = Lines::new();
    put!(text, "{} ({}), {}", pack.node, pack.origin, time(pack.taken / 1000));
    match snapshot.gpus.data() {
        None => {
            let why = snapshot.gpus.missing().unwrap_or_default();
            put!(text, "GPUs: nothing was read: {why}");
        }
        Some(gpus) => {
            put!(
                text,
                "driver {}, NVML {}, kernel {}",
                said(&gpus.driver),
                said(&gpus.nvml),
                said(pack.kernel)
            );
            text.blank();
            let head = [
                "GPU",
                "BUS",
                "NAME",
                "SERIAL",
                "UUID",
                "VBIOS",
                "UNCORRECTED (NOW/EVER)",
                "CORRECTED",
                "ROWS REMAPPED (UNC/COR)",
                "NVLINKS UP",
                "STATE",
            ];
            let mut table = vec![head.map(str::to_owned).to_vec()];
            table.extend(gpus.gpus.iter().map(gpu_row));
            text.add(&output::table(&table));
        }
    }
    if let Some(fabric) = snapshot.fabric.data().filter(|fabric| !fabric.hcas.is_empty()) {
        text.blank();
        let head = ["HCA", "BUS", "TYPE", "NODE GUID", "FIRMWARE", "PORTS"];
        let mut table = vec![head.map(str::to_owned).to_vec()];
        for hca in &fabric.hcas {
            let port = |port: &railgate_model::Port| {
                format!("{}: {} {}", port.number, state(&port.state), said(&port.rate_text))
            };
            let ports: Vec<String> = hca.ports.iter().map(port).collect();
            table.push(vec![
                hca.name.clone(),
                said(&hca.pci),
                said(&hca.hca_type),
                said(&hca.node_guid),
                said(&hca.firmware),
                ports.join(", "),
            ]);
        }
        text.add(&output::table(&table));
    }
    match snapshot.kernel_log.missing() {
        Some(why) => {
            text.blank();
            put!(text, "kernel log: nothing was read: {why}");
        }
        None if pack.xids.is_empty() && pack.sxids.is_empty() => {
            text.blank();
            put!(text, "kernel log: no Xid, no SXid");
        }
        None => {
            text.blank();
            put!(text, "kernel log");
            let lines = pack.xids.iter().map(|xid| (xid.time, &xid.text));
            let lines = lines.chain(pack.sxids.iter().map(|sxid| (sxid.time, &sxid.text)));
            // The driver may log the same message thousands of times.
            let mut seen: BTreeMap<&str, (u64, u64, usize)> = BTreeMap::new();
            for (at, line) in lines {
                let (_, last, times) = seen.entry(line).or_insert((at, at, 0));
                (*last, *times) = (at, *times + 1);
            }
            let mut seen: Vec<_> = seen.into_iter().collect();
            seen.sort_by_key(|(_, (first, ..))| *first);
            for (line, (first, last, times)) in seen {
                let again = if times > 1 {
                    format!(" ({times} times, last {})", time(last / 1000))
                } else {
                    String::new()
                };
                put!(text, "{}  {line}{again}", time(first / 1000));
            }
        }
    }
    if !pack.found.is_empty() {
        text.blank();
        put!(text, "found by railgate");
        for episode in &pack.found {
            let (finding, part) = (&episode.finding, &episode.identity);
            let part = if part.is_empty() { String::new() } else { format!(" ({part})") };
            let (first, last) = (time(episode.first), time(episode.last));
            put!(text, "{first} to {last}  {}{part}: {}", finding.subject(), finding.what);
        }
    }
    text
}

fn gpu_row(gpu: &Gpu) -> Vec<String> {
    let remap = match &gpu.row_remap {
        Reading::Known(remap) => {
            let mut text = format!("{}/{}", remap.uncorrectable, remap.correctable);
            for (set, word) in [(remap.pending, ", pending"), (remap.failed, ", failed")] {
                if set {
                    text.push_str(word);
                }
            }
            text
        }
        other => said(&other.clone().map(|_| String::new())),
    };
    let up = gpu.nvlinks.iter().filter(|link| link.up == Reading::Known(true)).count();
    vec![
        gpu.index.to_string(),
        said(&gpu.pci),
        said(&gpu.name),
        said(&gpu.serial),
        said(&gpu.uuid),
        said(&gpu.vbios),
        format!("{}/{}", said(&gpu.ecc.volatile_uncorrected), said(&gpu.ecc.aggregate_uncorrected)),
        said(&gpu.ecc.volatile_corrected),
        remap,
        format!("{up} of {}", gpu.nvlinks.len()),
        match &gpu.access {
            railgate_model::Access::Ok => "answers".to_owned(),
            railgate_model::Access::Lost(why) => format!("lost: {why}"),
            railgate_model::Access::ResetRequired(why) => format!("reset required: {why}"),
            railgate_model::Access::Failed(why) => format!("does not answer: {why}"),
        },
    ]
}

fn said<T: ToString>(reading: &Reading<T>) -> String {
    match reading {
        Reading::Known(value) => value.to_string(),
        Reading::Unsupported => "-".to_owned(),
        Reading::Failed(_) => "unknown".to_owned(),
    }
}

fn state(state: &Reading<railgate_model::PortState>) -> String {
    match state {
        Reading::Known(state) => format!("{state:?}").to_lowercase(),
        other => said(&other.clone().map(|_| String::new())),
    }
}
