//! Job script templates: the built-in ones from `sbatch-templates/`, and those of the site.

mod fill;
mod values;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use railgate_text::{Lines, did_you_mean, is_printable, put};

use crate::offered::Offered;
use crate::output::{self, Format, say};
use crate::{Site, exit};

const BUILT_IN: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/templates.rs"));

/// The start of each task, shared by all templates and by the copies that users made.
const TASK: &str = include_str!("../../sbatch-templates/task.sh");

/// The start of each script.
const BATCH: &str = concat!(
    "IFS= read -r -d '' TASK <<'END_OF_TASK' || :\n",
    include_str!("../../sbatch-templates/task.sh"),
    "END_OF_TASK\n",
    include_str!("../../sbatch-templates/batch.sh")
);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  railgate template list
  railgate template show torchrun-multinode > train.sbatch
  railgate template show torchrun-multinode --set nodes=4 --set time=48:00:00 --set partition=h100
  railgate template show array --set array=1-100%16 --set 'TRAIN=python sweep.py'

A KEY in small letters is an option of sbatch, one in capitals a variable of the script; `show NAME --keys` \
lists what a template has. A site's own templates lie in /etc/railgate/sbatch-templates/NAME.sbatch; one with \
the name of a built-in one takes its place.")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// List the templates
    #[command(after_help = "Example:\n  railgate template list")]
    List {
        /// How to print it
        #[arg(long, value_enum, default_value_t = Format::Table)]
        format: Format,
    },
    /// Print a template with your values filled in
    #[command(after_help = "\
Examples:
  railgate template show nccl-tests --set nodes=16 > nccl.sbatch
  railgate template show pyxis --keys
  railgate template show jax --set account=physics --out jax.sbatch")]
    Show {
        /// Name, as in `railgate template list`
        #[arg(hide_possible_values = true, value_parser = Offered::new(BUILT_IN.iter().map(|(name, _)| *name)))]
        name: String,
        /// Fill in a value: nodes=4, partition=h100, CHECKPOINTS=/scratch/me/run7
        #[arg(long, value_name = "KEY=VALUE")]
        set: Vec<String>,
        /// List the values that can be filled in, with their defaults
        #[arg(long, conflicts_with_all = ["set", "out"])]
        keys: bool,
        /// Write to this file, which must not exist yet
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Print the start of each task: a shell that passes signals on to the program
    #[command(after_help = "\
Example, in a job script:
  srun bash -c \"$(railgate template task)\" task 'torchrun train.py'")]
    Task,
    /// Print the start of each script: it passes signals on, and prints the outcome of the job at the end
    #[command(after_help = "\
Example, in a job script:
  eval \"$(railgate template batch)\"
  run srun bash -c \"$TASK\" task 'torchrun train.py'")]
    Batch,
}

pub(crate) fn run(site: &Site, args: &Args) -> anyhow::Result<u8> {
    let templates = || all(&site.places.etc.join("sbatch-templates"));
    match &args.what {
        What::List { format } => list(&templates()?, *format)?,
        What::Show { name, set, keys, out } => {
            let templates = templates()?;
            let plain = name.trim_end_matches(".sbatch");
            let Some(text) = templates.get(plain) else {
                let known: Vec<&str> = templates.keys().map(String::as_str).collect();
                let meant = did_you_mean(plain, known.iter().copied());
                bail!("no template '{name}'{meant} (known: {})", known.join(", "));
            };
            if *keys {
                return show_keys(text);
            }
            let mut filled = text.clone();
            for setting in set {
                let (key, value) = setting
                    .split_once('=')
                    .with_context(|| format!("--set {setting}: expected KEY=VALUE, as in nodes=4"))?;
                filled = fill::set(&filled, key, value)
                    .map_err(|why| anyhow::anyhow!("--set {setting}: {why}"))?;
            }
            write(out.as_deref(), &filled)?;
        }
        What::Task => output::text(&Lines::own(TASK))?,
        What::Batch => output::text(&Lines::own(BATCH))?,
    }
    Ok(exit::OK)
}

/// All templates by name; the site's take precedence.
fn all(dir: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let mut templates: BTreeMap<String, String> =
        BUILT_IN.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => return Ok(templates),
        Err(why) => return Err(why).with_context(|| dir.display().to_string()),
    };
    for entry in entries {
        let path = entry.with_context(|| dir.display().to_string())?.path();
        if let (Some("sbatch"), Some(name)) =
            (path.extension().and_then(|end| end.to_str()), path.file_stem().and_then(|name| name.to_str()))
        {
            let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            // A script with unprintable characters would differ from what the terminal shows.
            let at = text.lines().position(|line| !line.chars().all(|c| c == '\t' || is_printable(c)));
            if let Some(at) = at {
                bail!("{}:{}: a character that is not printable", path.display(), at + 1);
            }
            templates.insert(name.to_owned(), text);
        }
    }
    Ok(templates)
}

/// A template's description: the line below `#!`.
fn about(text: &str) -> &str {
    text.lines().nth(1).and_then(|line| line.strip_prefix("# ")).unwrap_or_default()
}

fn list(templates: &BTreeMap<String, String>, format: Format) -> anyhow::Result<()> {
    if format == Format::Json {
        let templates: Vec<_> = templates
            .iter()
            .map(|(name, text)| serde_json::json!({ "id": name, "about": about(text) }))
            .collect();
        return output::json(&serde_json::json!({ "schema": 1, "templates": templates }));
    }
    let mut rows = vec![["TEMPLATE", "FOR"].map(str::to_owned).to_vec()];
    rows.extend(templates.iter().map(|(name, text)| vec![name.clone(), about(text).to_owned()]));
    output::text(&output::table(&rows))
}

fn show_keys(text: &str) -> anyhow::Result<u8> {
    let mut rows = vec![["KEY", "VALUE"].map(str::to_owned).to_vec()];
    rows.extend(fill::keys(text).into_iter().map(|(key, value)| vec![key, value]));
    let mut shown = output::table(&rows);
    shown.blank();
    put!(shown, "Besides these, lines for sbatch can be added: {}", fill::ADDED.join(", "));
    output::text(&shown)?;
    Ok(exit::OK)
}

fn write(out: Option<&Path>, text: &str) -> anyhow::Result<()> {
    let Some(path) = out else { return output::text(&Lines::kept(text)) };
    let written = std::fs::File::create_new(path)
        .and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes()));
    match written {
        Err(why) if why.kind() == std::io::ErrorKind::AlreadyExists => {
            bail!("{}: exists already: remove it, or give another name to --out", path.display())
        }
        written => written.with_context(|| path.display().to_string())?,
    }
    say!("{}: sbatch {}", path.display(), path.display())
}
