//! `railgate accept waive`.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use railgate_accept::{Event, Outcome};

use super::dir::Dir;
use super::report;
use crate::exit;
use crate::output::say;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  railgate accept waive /shared/accept-1 node.gn3 --by 'A. Smith' \\
      --why 'fan is ordered'

The waiver holds for exactly what the item reports now. If the item fails differently later, it is a failure again.")]
pub(crate) struct Args {
    /// Directory of the acceptance
    dir: PathBuf,
    /// Id of the item, as the report shows it
    item: String,
    /// Name of the person who accepts it
    #[arg(long, value_name = "NAME", value_parser = words)]
    by: String,
    /// The reason
    #[arg(long, value_name = "TEXT", value_parser = words)]
    why: String,
}

fn words(text: &str) -> Result<String, String> {
    if text.trim().is_empty() { Err("must not be empty".to_owned()) } else { Ok(text.to_owned()) }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<u8> {
    let dir = Dir::open(&args.dir)?;
    let mut writer = dir.write()?;
    let found = report::of(&dir)?;
    let ids = || found.items.iter().map(|item| item.id.as_str());
    let item = found.items.iter().find(|item| item.id == args.item).with_context(|| {
        format!("the report has no item '{}'{}", args.item, railgate_text::did_you_mean(&args.item, ids()))
    })?;
    ensure!(item.outcome != Outcome::Pass, "{} passes: there is nothing to waive", item.id);
    let torn = dir.run()?.journal;
    if torn.torn > 0 {
        writer.cut(torn.length)?;
        writer.append(Event::Torn { bytes: torn.torn })?;
    }
    writer.append(Event::Waive {
        item: item.id.clone(),
        failure: item.failure(),
        by: args.by.clone(),
        why: args.why.clone(),
    })?;
    say!("{}: waived by {}; the failure stays in the report", item.id, args.by)?;
    Ok(exit::OK)
}
