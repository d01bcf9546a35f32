use std::path::PathBuf;

use railgate_gate::{Memory, Seen, judge};
use railgate_model::{Fitness, Phase, Snapshot};
use railgate_profiles::{Recorded, record};
use railgate_text::{Lines, put, toml_text};

use crate::check::findings_text;
use crate::node_source::NodeArgs;
use crate::output::say;
use crate::{Site, exit, output};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Write a machine profile from a healthy node
    Record(RecordArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  railgate profile record --id h200-cloud  on a healthy node, as root
  railgate profile record --id h200-cloud --out /etc/railgate/profiles/h200-cloud.toml
  railgate profile record --id h200-cloud --snapshot node.json

Keys that could not be read are left out, and the file has a comment for each: absent keys are not checked. Read \
the file, then set `profile = \"h200-cloud\"` for nodes like this one.

Exit codes: 0 written; 1 the node is not healthy, with the reason; 2 wrong use.")]
struct RecordArgs {
    #[command(flatten)]
    source: NodeArgs,
    /// The profile's id: small letters, digits and hyphens
    #[arg(long)]
    id: String,
    /// Where to write it [default: standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(crate) fn run(site: &Site, args: &Args) -> anyhow::Result<u8> {
    let What::Record(args) = &args.what;
    let id = &args.id;
    let plain = id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    anyhow::ensure!(plain && !id.is_empty(), "--id '{id}': small letters, digits and hyphens");
    anyhow::ensure!(
        !railgate_profiles::builtin_ids().contains(&id.as_str()),
        "--id '{id}': built in, choose another id"
    );
    let config = site.config()?;
    let snapshot = args.source.read(site, &config)?.snapshot;
    let dirs = site.places.profiles();
    let name = snapshot.gpus.data().and_then(|gpus| gpus.gpus.iter().find_map(|gpu| gpu.name.known()));
    let like = name.map(|name| railgate_profiles::matching(name, &dirs)).transpose()?.flatten();
    let recorded = record(&snapshot, id, like.as_ref());
    if let Some(wrong) = no_good(&config.gate, &snapshot, &recorded) {
        say!("not written: the node is not healthy")?;
        output::text(&wrong)?;
        return Ok(exit::UNFIT);
    }
    let text = Lines::kept(&toml_text(&recorded.to_toml()?));
    output::to(args.out.as_deref(), &text)?;
    match &args.out {
        None => {}
        Some(path) => {
            let mut said = Lines::new();
            put!(said, "{}", path.display());
            for (key, why) in &recorded.unknown {
                put!(said, "not recorded: {key}: {why}");
            }
            for note in &recorded.notes {
                put!(said, "check: {note}");
            }
            output::text(&said)?;
        }
    }
    Ok(exit::OK)
}

/// Findings on the node, judged by its own new profile. Its inventory matches by definition, so only conditions that
/// are wrong on any machine are found.
fn no_good(gate: &railgate_gate::GateConfig, snapshot: &Snapshot, recorded: &Recorded) -> Option<Lines> {
    let seen = Seen {
        phase: Phase::Periodic,
        now: snapshot,
        before: None,
        job: None,
        profile: Some(&recorded.profile),
        memory: &Memory::default(),
    };
    let verdict = judge(gate, &seen);
    let nothing = snapshot.gpus.data().is_none() && snapshot.fabric.data().is_none();
    (nothing || verdict.fitness == Fitness::Unfit).then(|| findings_text(&verdict))
}
