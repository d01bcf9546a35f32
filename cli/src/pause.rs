use std::time::Duration;

use anyhow::Context as _;
use railgate_runner::switches;

use crate::history::time;
use crate::output::say;
use crate::{Site, exit};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  railgate pause --for 2h --why 'driver update'
  railgate pause  until `railgate resume`

On a node: nothing is drained from here and no job is refused. On the controller: no job is restarted, held or \
delayed. Needs root. A pause outlives a reboot.")]
pub(crate) struct PauseArgs {
    /// How long (30m, 2h, 1day); until `railgate resume` if absent
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    length: Option<Duration>,
    /// Reason, shown in logs and reports while the pause lasts
    #[arg(long, default_value = "", hide_default_value = true)]
    why: String,
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Needs root. It ends a pause of railgate on this machine; it does not resume a drained \
                        node (`railgate readmit NODE` does)."
)]
pub(crate) struct ResumeArgs {}

pub(crate) fn pause(site: &Site, args: &PauseArgs) -> anyhow::Result<u8> {
    let by = who();
    let pause = switches::pause(&site.places, args.length, &by, &args.why)
        .with_context(|| format!("cannot pause ({})", site.places.state.display()))?;
    let until = match pause.until {
        Some(until) => format!("until {}", time(until)),
        None => "until `railgate resume`".to_owned(),
    };
    say!("{}: railgate checks and reports, but changes nothing, {until}", site.node)?;
    Ok(exit::OK)
}

/// Name of the calling user, from the environment.
pub(crate) fn who() -> String {
    std::env::var("SUDO_USER").or_else(|_| std::env::var("USER")).unwrap_or_else(|_| "root".to_owned())
}

pub(crate) fn resume(site: &Site, _args: &ResumeArgs) -> anyhow::Result<u8> {
    let was = switches::resume(&site.places)
        .with_context(|| format!("cannot resume ({})", site.places.state.display()))?;
    let text = if was { "railgate acts again" } else { "was not paused" };
    say!("{}: {text}", site.node)?;
    Ok(exit::OK)
}
