use std::path::PathBuf;
use std::time::Duration;

use railgate_store::{ReportConfig, Retention, Swept, sweep};

use crate::exit;
use crate::output::{complain, say};

/// Time limit of one call; a directory of many thousand jobs takes several.
const BUDGET: Duration = Duration::from_secs(30);

#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Prune {
    /// Remove reports older than `[report] retention_days`, and samples older than `retention_sample_days`:
    /// your own; as root those of all users
    #[arg(long, conflicts_with_all = ["format", "out", "cluster"])]
    pub(crate) prune: bool,
    /// With --prune: days, instead of `[report] retention_days`
    #[arg(long, value_name = "DAYS", requires = "prune", conflicts_with = "job")]
    days: Option<u32>,
    /// With --prune: keep at most this many jobs, the newest
    #[arg(long, value_name = "JOBS", requires = "prune", conflicts_with = "job")]
    keep: Option<u32>,
}

pub(crate) fn run(config: &ReportConfig, args: &Prune, dirs: &[PathBuf]) -> anyhow::Result<u8> {
    let mut places: Vec<(PathBuf, Retention)> = Vec::new();
    let configured = dirs.is_empty();
    for dir in if configured { config.dir.as_slice() } else { dirs } {
        places.push((dir.clone(), Retention::shared(config)));
    }
    if configured && nix::unistd::geteuid().is_root() {
        places.push((config.local_dir.clone(), Retention::local(config)));
    }
    anyhow::ensure!(
        !places.is_empty(),
        "[report] dir is not set, and only root can remove reports kept on this machine"
    );
    let mut well = true;
    for (dir, retention) in places {
        let retention = Retention {
            days: args.days.unwrap_or(retention.days),
            jobs: args.keep.unwrap_or(retention.jobs),
            ..retention
        };
        well &= one(&dir, retention)?;
    }
    Ok(if well { exit::OK } else { exit::UNKNOWN })
}

/// Repeats until nothing is left to remove, or nothing more can be removed.
fn one(dir: &std::path::Path, retention: Retention) -> anyhow::Result<bool> {
    let (mut removed, mut samples) = (0, 0);
    loop {
        let Swept { removed: now, kept, samples: files, more, problems } =
            sweep(dir, retention, railgate_runner::now(), BUDGET);
        removed += now;
        samples += files;
        if more && now + files > 0 {
            continue;
        }
        for problem in &problems {
            complain!("{problem}");
        }
        say!(
            "{}: reports of {removed} jobs and samples of {samples} nodes removed, {kept} jobs stay",
            dir.display()
        )?;
        return Ok(problems.is_empty());
    }
}
