use std::path::PathBuf;

use railgate_gate::{Memory, Seen, judge, self_test_baseline};
use railgate_model::{Fitness, Phase, Snapshot};
use railgate_profiles::{Recorded, record};
use railgate_text::{Lines, put, toml_text};

use crate::check::findings_text;
use crate::node_source::NodeArgs;
use crate::output::say;
use crate::{Site, exit, output, self_test_lines};

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
  railgate profile record --id h200-cloud --self-test node1.lines --self-test node2.lines

--self-test records the median, lowest and highest of each rate that the check gpu-self-test judges, which then compares with them. \
Make the files with `railgate-gpu-selftest --length LENGTH > FILE`, LENGTH being that of the check (quick and full do not compare).

Keys that could not be read are left out, and the file has a comment for each: absent keys are not checked. Read \
the file, then set `profile = \"h200-cloud\"` for nodes like this one.

Exit codes: 0 written; 1 the node is not healthy, with the reason; 2 wrong use.")]
struct RecordArgs {
    #[command(flatten)]
    source: NodeArgs,
    /// The profile's id: small letters, digits and hyphens
    #[arg(long)]
    id: String,
    /// Lines of `railgate-gpu-selftest` on a good node of this type, for rates to compare with; may be repeated, one file for each node
    #[arg(long, value_name = "FILE")]
    self_test: Vec<PathBuf>,
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
    let mut recorded = record(&snapshot, id, like.as_ref());
    self_test(&args.self_test, &mut recorded)?;
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

/// Adds the rates of good cards.
fn self_test(files: &[PathBuf], recorded: &mut Recorded) -> anyhow::Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    let nodes = files.iter().map(|file| self_test_lines::read(file)).collect::<anyhow::Result<Vec<_>>>()?;
    let names = &recorded.profile.gpus.names;
    for (file, lines) in files.iter().zip(&nodes) {
        if let Some(other) = lines.iter().find(|line| !names.contains(&line.model)) {
            anyhow::bail!(
                "{}: a line of '{}', and the node has {}",
                file.display(),
                other.model,
                names.join(", ")
            );
        }
    }
    let (rates, left_out) = self_test_baseline(&nodes);
    anyhow::ensure!(!rates.is_empty(), "--self-test: no rate of a good GPU; {}", left_out.join("; "));
    recorded.profile.gpus.self_test = rates;
    recorded.notes.extend(left_out.into_iter().map(|why| format!("self-test: left out: {why}")));
    Ok(())
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
