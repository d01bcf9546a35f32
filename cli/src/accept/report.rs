//! `railgate accept report`.

use std::path::PathBuf;

use railgate_accept::{Facts, File, Overall, Report, compare, html};
use railgate_text::{Lines, put};

use super::dir::{Dir, now};
use crate::{exit, output};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  railgate accept report /shared/accept-1
  railgate accept report /shared/accept-1 --format html > accept.html
  railgate accept report /shared/accept-2 --before /shared/accept-1

Exit code: 0 every item passes or is waived, 1 an item failed, 2 wrong use, 3 items are unknown.")]
pub(crate) struct Args {
    /// Directory of the acceptance
    dir: PathBuf,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Directory of an earlier acceptance: also show what changed
    #[arg(long, value_name = "DIR")]
    before: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// The checklist
    Text,
    /// For programs: docs/json.md
    Json,
    /// A page to read and sign
    Html,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<u8> {
    let mut report = of(&Dir::open(&args.dir)?)?;
    if let Some(before) = &args.before {
        report.changes = Some(compare(&of(&Dir::open(before)?)?, &report));
    }
    match args.format {
        Format::Text => output::text(&text(&report))?,
        Format::Json => output::json(&report)?,
        Format::Html => output::text(&Lines::kept(&html(&report)))?,
    }
    Ok(match report.overall {
        Overall::Pass | Overall::PassWithWaivers => exit::OK,
        Overall::Fail => exit::UNFIT,
        Overall::Incomplete => exit::UNKNOWN,
    })
}

pub(crate) fn of(dir: &Dir) -> anyhow::Result<Report> {
    let run = dir.run()?;
    anyhow::ensure!(
        !run.journal.entries.is_empty(),
        "{}: no acceptance was started here",
        dir.path().display()
    );
    let mut files = Vec::new();
    for name in dir.result_names()? {
        let content = dir.result(&name)?;
        files.push(File { name, content });
    }
    let facts = Facts {
        plan: &run.plan,
        plan_digest: &run.plan_digest,
        entries: &run.journal.entries,
        journal_digest: &run.journal_digest,
        hostlist: &railgate_slurm::hostlist::compress(&run.plan.nodes),
        files: &files,
        now: now(),
        railgate: env!("CARGO_PKG_VERSION"),
    };
    railgate_accept::report(&facts)
        .map_err(|bad| anyhow::anyhow!("{}: journal.jsonl:{}: {}", dir.path().display(), bad.line, bad.why))
}

fn text(report: &Report) -> Lines {
    let mut text = Lines::new();
    put!(
        text,
        "{}: {} of {} jobs of the plan have a result; {}",
        report.title,
        report.units_done,
        report.units,
        report.overall.words()
    );
    for item in &report.items {
        put!(text, "{:<8} {}: {}", item.word().to_uppercase(), item.id, item.what);
        for detail in &item.details {
            put!(text, "         {detail}");
        }
        if let Some(waiver) = &item.waiver {
            put!(text, "         waived by {}: {}", waiver.by, waiver.why);
        }
    }
    for exception in &report.exceptions {
        put!(text, "NOTE     {exception}");
    }
    for change in report.changes.iter().flatten() {
        put!(text, "CHANGED  {}: {} before, {} now", change.what, change.before, change.now);
    }
    for stage in &report.not_in_plan {
        put!(text, "UNKNOWN  not in the plan: {stage}");
    }
    put!(text, "results  SHA-256 {} over {} files", report.results_digest, report.results.len());
    put!(text, "journal  SHA-256 {}", report.journal_digest);
    text
}
