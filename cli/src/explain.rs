use crate::{exit, output};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  railgate explain gpu-lost
  railgate explain gpu-lost@3                          as it stands in `sinfo -R`

`railgate check --list` shows the ids; docs/checks.md has all of it.")]
pub(crate) struct Args {
    /// Id of a check, as in a drain reason: `gpu-lost`, also `gpu-lost@3`
    check: String,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<u8> {
    // Copied from a drain reason it may still have the leader and the colon.
    let subject = args.check.trim().trim_start_matches("railgate:").trim().trim_end_matches(':');
    let id = subject.split('@').next().unwrap_or_default();
    let Some(text) = railgate_gate::explain(id) else {
        let known: Vec<_> = railgate_gate::CHECKS.iter().map(|check| check.id).collect();
        anyhow::bail!("no check '{id}' (known: {})", known.join(", "));
    };
    output::text(text.trim_start())?;
    Ok(exit::OK)
}
