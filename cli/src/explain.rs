use crate::{exit, output};

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  railgate explain gpu-lost\n\n`railgate check --list` shows the ids.")]
pub(crate) struct Args {
    /// Id of a check, as in a drain reason: `gpu-lost`, also `gpu-lost@3`
    check: String,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<u8> {
    let id = args.check.split('@').next().unwrap_or_default();
    let Some(text) = railgate_gate::explain(id) else {
        let known: Vec<_> = railgate_gate::CHECKS.iter().map(|check| check.id).collect();
        anyhow::bail!("no check '{id}' (known: {})", known.join(", "));
    };
    output::text(text.trim_start())?;
    Ok(exit::OK)
}
